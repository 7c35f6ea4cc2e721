"""Records of what Slurm says; memory in MB everywhere."""

from __future__ import annotations

from dataclasses import dataclass, field

#: TRES by Slurm's names (``cpu``, ``mem`` in MB, ``gres/gpu``, ``node`` …).
Tres = dict[str, int]
#: GPUs of the one type that jobs get, where limits name it (``gres/gpu:a100``).
GPU_TYPE = "gres/gpu:type"
#: Numbers of jobs beside TRES: those that run, and those that run or pend.
JOBS = ("jobs", "submit")
#: What budgets are of: TRES times minutes.
BUDGETED = ("cpu", "mem", "node", "billing", "gres/gpu", GPU_TYPE)


def budget(tres: str) -> str:
    """Return the name of the minutes of a TRES that may be used in all (``GrpTRESMins``).

    Examples
    --------
    >>> budget("cpu"), running(budget("cpu")), spent(budget("cpu"))
    ('cpu/min', 'cpu/min/running', 'cpu/min/spent')
    """
    return f"{tres}/min"


def running(budget: str) -> str:
    """Return the name of the minutes that running jobs may still take (``GrpTRESRunMins``)."""
    return f"{budget}/running"


def spent(budget: str) -> str:
    """Return the name of what is used up of a budget; running jobs have more of it."""
    return f"{budget}/spent"


#: Minutes of jobs, whatever they hold (``GrpWall``).
WALL = budget("wall")
#: All budgets: those that are used up, and those of the jobs that run.
BUDGETS = (WALL, *map(budget, BUDGETED), *(running(budget(tres)) for tres in BUDGETED))


@dataclass(frozen=True)
class Association:
    """One row of the association table; ``user`` is empty for the account's own row.

    Attributes
    ----------
    account, user, partition : str
        ``partition`` is empty where the association is good for all.
    qos : tuple of str
        QOS that jobs may name.
    default_qos : str
        Taken where a job names none; may be empty.
    tres, tres_per_job : dict
        Group limits of the association and limits of one job, mem in MB; absent is no limit.
        Budgets (:data:`BUDGETS`) are among them.
    jobs, submit : int or None
        Running, and running or pending, jobs of all that the association holds.
    max_wall_min : int or None
        Longest job in minutes.
    cluster : str
        One slurmdbd may serve several.
    jobs_per_user, submit_per_user : int or None
        The same of one user.
    parent : str
        The account above this account's own row; empty for the root and for users.
    """

    account: str
    user: str = ""
    partition: str = ""
    qos: tuple[str, ...] = ()
    default_qos: str = ""
    tres: Tres = field(default_factory=dict)
    tres_per_job: Tres = field(default_factory=dict)
    jobs: int | None = None
    submit: int | None = None
    max_wall_min: int | None = None
    cluster: str = ""
    jobs_per_user: int | None = None
    submit_per_user: int | None = None
    parent: str = ""


@dataclass(frozen=True)
class Qos:
    """Limits of one QOS; mem in MB, absent or None is no limit.

    Attributes
    ----------
    name : str
    tres, tres_per_job, tres_per_user, tres_per_account : dict
        Of all jobs on the QOS, of one job, of one user, of one account; budgets
        (:data:`BUDGETS`) are among the first two.
    jobs, submit, jobs_per_user, submit_per_user, jobs_per_account, submit_per_account : int or None
    max_wall_min : int or None
        Longest job in minutes.
    flags : tuple of str
    """

    name: str
    tres: Tres = field(default_factory=dict)
    tres_per_job: Tres = field(default_factory=dict)
    tres_per_user: Tres = field(default_factory=dict)
    jobs: int | None = None
    submit: int | None = None
    jobs_per_user: int | None = None
    submit_per_user: int | None = None
    max_wall_min: int | None = None
    flags: tuple[str, ...] = ()
    tres_per_account: Tres = field(default_factory=dict)
    jobs_per_account: int | None = None
    submit_per_account: int | None = None


@dataclass(frozen=True)
class Usage:
    """Live limits and use of one QOS or account, of everybody; mem in MB.

    Attributes
    ----------
    name : str
    limit, used : dict
        Group TRES and budgets. What running jobs may still take counts as used of a budget, and
        without it as :func:`spent`.
    jobs, submit : int
        Running jobs, and running or pending ones.
    used_by_uid : dict of int to dict
        TRES of each user.
    jobs_by_uid : dict of int to int
        Running jobs of each user.
    used_by_account : dict of str to dict
        TRES of each account, of a QOS only.
    jobs_by_account : dict of str to int
        Running jobs of each account.
    submit_by_uid, submit_by_account : dict
        Running or pending jobs of each user and of each account.
    """

    name: str
    limit: Tres
    used: Tres
    jobs: int = 0
    submit: int = 0
    used_by_uid: dict[int, Tres] = field(default_factory=dict)
    jobs_by_uid: dict[int, int] = field(default_factory=dict)
    used_by_account: dict[str, Tres] = field(default_factory=dict)
    jobs_by_account: dict[str, int] = field(default_factory=dict)
    submit_by_uid: dict[int, int] = field(default_factory=dict)
    submit_by_account: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Partition:
    """One partition.

    Attributes
    ----------
    name : str
    qos : str or None
        QOS whose limits hold for the partition.
    max_time_min : int or None
    tres : dict
        All that its nodes have, mem in MB.
    up, default : bool
    allow_accounts, allow_qos, allow_groups : tuple of str or None
        None is all.
    nodes : int
        How many nodes it has.
    deny_accounts, deny_qos : tuple of str
    whole_nodes : bool
        A job gets all of its node, and counts with all of it (``OverSubscribe=EXCLUSIVE``).
    whole : dict
        The TRES of its smallest node, where jobs get whole ones.
    cpus_a_node : int or None
        Most CPUs of a node that its jobs may hold together.
    mem_a_node, mem_a_cpu : int or None
        Most memory of a job on a node, and for each CPU: for more a job gets more CPUs.
    closed : str
        Why no job of one node may go there; empty where it may.
    limit, limit_per_user, limit_per_account, limit_per_job : dict
        Of its QOS, which replace those of a job's own QOS; mem in MB, absent is no limit. Numbers
        of jobs (:data:`JOBS`) are among them.
    used, mine : dict or None
        TRES and jobs on its QOS of everybody and of this user; None where Slurm did not say.
    by_account : dict of str to dict
        TRES and jobs on its QOS of each account.
    """

    name: str
    qos: str | None
    max_time_min: int | None
    tres: Tres
    up: bool
    default: bool
    allow_accounts: tuple[str, ...] | None
    allow_qos: tuple[str, ...] | None
    nodes: int = 1
    limit: Tres = field(default_factory=dict)
    limit_per_user: Tres = field(default_factory=dict)
    limit_per_job: Tres = field(default_factory=dict)
    used: Tres | None = None
    mine: Tres | None = None
    limit_per_account: Tres = field(default_factory=dict)
    by_account: dict[str, Tres] = field(default_factory=dict)
    allow_groups: tuple[str, ...] | None = None
    deny_accounts: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()
    whole_nodes: bool = False
    whole: Tres = field(default_factory=dict)
    cpus_a_node: int | None = None
    mem_a_node: int | None = None
    mem_a_cpu: int | None = None
    closed: str = ""
