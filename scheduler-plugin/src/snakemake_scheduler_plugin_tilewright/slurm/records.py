"""Records of what Slurm says; memory in MB everywhere."""

from dataclasses import dataclass, field

#: TRES by Slurm's names (``cpu``, ``mem`` in MB, ``gres/gpu``, ``node`` …), and :data:`JOBS`.
Tres = dict[str, int]
#: Numbers of jobs besides TRES: those that run, and those that run or pend.
JOBS = ("jobs", "submit")
#: Who is not listed on a QOS, where Slurm lists all who use something there.
OTHERS = "others"
OTHER_USERS, OTHER_ACCOUNTS = f"user {OTHERS}", f"account {OTHERS}"


def budget_name(tres: str) -> str:
    """Return the name of the minutes of a TRES that may be used in all (``GrpTRESMins``).

    >>> budget_name("cpu"), running_name(budget_name("cpu")), spent_name(budget_name("cpu"))
    ('cpu/min', 'cpu/min/running', 'cpu/min/spent')
    """
    return f"{tres}/min"


def running_name(budget: str) -> str:
    """Return the name of the minutes that running jobs may still take (``GrpTRESRunMins``)."""
    return f"{budget}/running"


def spent_name(budget: str) -> str:
    """Return the name of what is used up of a budget; running jobs have more of it."""
    return f"{budget}/spent"


#: Minutes of jobs, whatever they hold (``GrpWall``).
WALL = budget_name("wall")


def is_budget(name: str) -> bool:
    """Return whether a name is of minutes: those used up, or those of the jobs that run.

    >>> is_budget("cpu/min"), is_budget("cpu/min/running"), is_budget("cpu")
    (True, True, False)
    """
    return name.endswith(("/min", "/min/running"))


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
    tres, tres_per_job, tres_per_user : dict
        Group limits of the association, limits of one job, and numbers of jobs of one user; mem
        in MB, absent is no limit. Budgets (:func:`is_budget`) are among the first two.
    cluster : str
        One slurmdbd may serve several.
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
    tres_per_user: Tres = field(default_factory=dict)
    max_wall_min: int | None = None
    cluster: str = ""
    parent: str = ""


@dataclass(frozen=True)
class Qos:
    """Limits of one QOS; mem in MB, absent is no limit.

    Attributes
    ----------
    tres, tres_per_job, tres_per_user, tres_per_account : dict
        Of all jobs on the QOS, of one job, of one user, of one account; budgets
        (:func:`is_budget`) are among them.
    least : dict
        What each job must ask for at least.
    preempts : tuple of str
        The QOS whose jobs its own may end.
    """

    name: str
    tres: Tres = field(default_factory=dict)
    tres_per_job: Tres = field(default_factory=dict)
    tres_per_user: Tres = field(default_factory=dict)
    tres_per_account: Tres = field(default_factory=dict)
    max_wall_min: int | None = None
    flags: tuple[str, ...] = ()
    least: Tres = field(default_factory=dict)
    preempts: tuple[str, ...] = ()


def on_qos(qos: str, who: str = "") -> str:
    """Return the name of a QOS as one that limits jobs, or of a user or an account on it.

    >>> on_qos("lab"), on_qos("lab", "ada"), on_qos("lab", of_association("lab"))
    ('QOS lab', 'ada on QOS lab', 'account lab on QOS lab')
    """
    return f"{who} on QOS {qos}" if who else f"QOS {qos}"


def of_association(account: str, user: str = "", partition: str = "") -> str:
    """Return the name of an association as one that limits jobs.

    >>> of_association("lab"), of_association("lab", "ada", "gpu")
    ('account lab', 'ada of account lab in partition gpu')
    """
    name = f"{user} of account {account}" if user else f"account {account}"
    return f"{name} in partition {partition}" if partition else name


@dataclass(frozen=True)
class Usage:
    """Live group limits and use of a QOS, of a user or an account on it, or of an association.

    Attributes
    ----------
    limit, used : dict
        TRES, numbers of jobs and budgets; mem in MB. What running jobs may still take counts as
        used of a budget, and without it as :func:`spent_name`.
    """

    limit: Tres = field(default_factory=dict)
    used: Tres = field(default_factory=dict)


@dataclass(frozen=True)
class Partition:
    """One partition.

    Attributes
    ----------
    qos : str or None
        QOS whose limits hold for the partition.
    tres : dict
        All that its nodes have, mem in MB.
    allow_accounts, allow_qos, allow_groups : tuple of str or None
        None is all.
    whole_nodes : bool
        A job gets all of its node, and counts with all of it (``OverSubscribe=EXCLUSIVE``).
    whole : dict
        The TRES of its smallest node, where jobs get whole ones.
    cpus_a_node : int or None
        Most CPUs of a node that its jobs may hold together.
    mem_a_node, mem_a_cpu : int or None
        Most memory of a job on a node, and for each CPU: for more a job gets more CPUs.
    default_mem_a_node, default_mem_a_cpu : int
        What a job gets that asks for none; 0 is nothing, or not known.
    closed : str
        Why no job of one node may go there; empty where it may.
    tier : int or None
        Its rank: where partitions preempt, those of a higher one end its jobs.
    preempt_mode : str
        How its jobs are ended then; ``OFF`` is never.
    preemptable : bool
        Whether jobs of other partitions may end its own.
    billing : tuple of (str, float)
        What it bills for one of each TRES; empty is its CPUs.
    priority_flags : tuple of str or None
        Of the cluster, by which what it bills is added up; None where Slurm did not say.
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
    allow_groups: tuple[str, ...] | None = None
    deny_accounts: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()
    whole_nodes: bool = False
    whole: Tres = field(default_factory=dict)
    cpus_a_node: int | None = None
    mem_a_node: int | None = None
    mem_a_cpu: int | None = None
    default_mem_a_node: int = 0
    default_mem_a_cpu: int = 0
    closed: str = ""
    billing: tuple[tuple[str, float], ...] = ()
    priority_flags: tuple[str, ...] | None = ()
    tier: int | None = None
    preempt_mode: str = "OFF"
    preemptable: bool = False
