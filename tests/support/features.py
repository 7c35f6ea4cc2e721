"""What becomes of each feature of a workflow on a cluster, and what shows it.

The table of ``docs/placement-for-your-workflow.md`` is made of this list, and
``tests/on_slurm/test_features.py`` counts the jobs that it names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

HOLD = "test_what_a_workflow_may_hold"
ASK = "test_what_a_command_may_ask_for"
RUNS = "tests/on_slurm/test_cluster_runs.py"
LATER = "tests/scheduler_plugin/test_later_jobs.py"


@dataclass(frozen=True)
class Feature:
    """A feature, what placement does with it, the test that shows it, and its jobs there.

    ``jobs`` are rules of the workflow ``tests/support/foreign/features`` to their jobs of Slurm;
    groups have the names of their rules.
    """

    name: str
    what: str
    test: str = HOLD
    jobs: Mapping[str, int] = field(default_factory=dict)


FEATURES = (
    Feature(
        "checkpoints", "new jobs are placed as they become ready", jobs={"parts": 1, "part": 2,
        "joined": 1},
    ),
    Feature(
        "groups, `--groups`, `--group-components`",
        "one job, with threads, memory and time as Snakemake sums them; jobs that are done are "
        "counted as Snakemake's, those that run or wait as Slurm's",
        jobs={"alignment_mapped_sorted": 1, "loose_included_other_greeting": 1},
    ),
    Feature(
        "a group that pends in vain", "goes elsewhere whole",
        "test_a_group_that_pends_in_vain_is_moved_whole",
    ),
    Feature("pipes, services", "their group, as one job", jobs={"read_write": 1, "ask_serve": 1}),
    Feature("scatter, gather", "unchanged", jobs={"scattered": 1, "half": 2, "gathered": 1}),
    Feature(
        "`retries` in the profile; resources by `attempt`, `input`, `wildcards`",
        "asked again for each try; after want of memory or time doubled as well",
        jobs={"attempt": 1, "wildcard": 2},
    ),
    Feature(
        "`retries` of a rule",
        "Snakemake tries again inside the same Slurm job: put `retries` into the profile instead",
        jobs={"retried": 1},
    ),
    Feature("`temp`, `ensure`, `protected`", "unchanged", jobs={"made": 1, "kept": 1}),
    Feature("`localrules`; modules, `include`", "unchanged"),
    Feature(
        "`slurm_account`, `slurm_partition`, `slurm_extra`, `constraint`, `qos` of a rule",
        "kept; what Slurm refuses fails with its words",
        jobs={"account": 1, "partition": 1, "qos": 1, "constraint": 1, "extra": 1},
    ),
    Feature("`tasks`, `mpi`", "CPUs count times tasks", jobs={"mpi": 1}),
    Feature(
        "`gpu`, `gres`, `gpu_model`", "the GPU partition, unless the rule names another",
        jobs={"gpu": 1, "gres": 1, "model": 1},
    ),
    Feature(
        "conda, containers", "unchanged (tried with pretended conda and Apptainer)",
        "test_environments_and_containers",
    ),
    Feature("`--until`, `--omit-from`, `--batch`", "only what is left is placed", ASK),
    Feature("`--jobs N`", "Slurm has no more jobs of the run, pending ones among them", ASK),
    Feature(
        "`--default-resources`, `--set-resources`, `--set-threads`", "count as if rules said them",
        ASK,
    ),
    Feature(
        "`--tilewright-reservation`", "all jobs run in the reservation",
        "tests/on_slurm/test_sites.py::test_a_course_on_nodes_that_are_all_reserved",
    ),
    Feature("`--executor local`, `--dry-run`", "nothing is placed", ASK),
    Feature(
        "`--keep-going`",
        "what fails is named at the end, with its log; without it no more jobs are sent, and those "
        "that Slurm has end first",
        f"{RUNS}::test_retries_by_cause",
    ),
    Feature(
        "SIGKILL, then `--unlock` and the same command",
        "its jobs go on, and no run begins while they write; `orphaned` lists or cancels them",
        f"{RUNS}::test_coordinators_killed_and_restarted",
    ),
    Feature(
        "SIGTERM", "no more jobs are sent; the run ends with those that Slurm has",
        f"{RUNS}::test_coordinators_killed_and_restarted",
    ),
    Feature(
        "SIGINT (Ctrl-C), once", "all jobs are cancelled, and the run ends",
        f"{RUNS}::test_coordinators_killed_and_restarted",
    ),
    Feature(
        "a job that, by its input, asks for more than any account has",
        "fails at once by name; the others go on", LATER,
    ),
    Feature(
        "a group of rules with `either` or `resources` of placement",
        "jobs of one rule: as one job, on the first device kind of the rule; of several rules: "
        "Snakemake refuses it", "",
    ),
    Feature(
        "`--group-components` above 1 after a checkpoint has run",
        "do not use it: whatever the scheduler, Snakemake 9.27 submits groups that overlap", "",
    ),
    Feature(
        "`--resources`", "jobs that exceed them wait in Snakemake, and no other job waits for them",
        "tests/on_slurm/test_elsewhere.py::test_a_resource_of_the_user_holds_back_its_own_jobs_alone",
    ),
    Feature(
        "`--slurm-…` options", "do not count: they belong to Snakemake's own Slurm executor", "",
    ),
)  # fmt: skip
