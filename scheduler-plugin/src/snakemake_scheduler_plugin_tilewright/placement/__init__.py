"""Which ready jobs start now and at which target, and what becomes of them then.

Words for what is not used:

- *left out*: an account that the site file keeps out of all runs
- *closed*: a target that takes no job now: a limit, a budget or unknown use is in the way
- *avoided*: a target where own jobs pended in vain; for a while it gets what can run nowhere else
- *invalid*: a target where Slurm takes no such job until limits or associations change
- *excluded*: a target where this one job pended in vain; a node, for ``--exclude`` of sbatch
- *bad*: a node under which a job died; excluded for all jobs of that device kind
"""
