"""Where jobs go: what a user may use, the round that places them, and what becomes of them.

It knows jobs and Slurm, and nothing of Snakemake.
"""
