"""Records of what Slurm says; memory in MB everywhere."""

from dataclasses import dataclass, field

#: Amounts by Slurm's names: ``cpu``, ``mem`` in MB, ``gres/gpu``, ``node``; and :data:`JOBS`.
Tres = dict[str, int]
#: Numbers of jobs besides TRES: those that run, and those that run or pend.
JOBS = ("jobs", "submit")


@dataclass(frozen=True)
class Association:
    """One row of the association table; ``user`` is empty for the account's own row.

    Attributes
    ----------
    qos : tuple of str
        QOS that jobs may name; ``default_qos`` is taken where a job names none.
    tres, tres_per_job, tres_per_user : dict
        Group limits, limits of one job, and numbers of jobs of one user; absent is no limit.
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
    """Limits of one QOS: of all its jobs, of one job, one user, one account; absent is no limit.

    Attributes
    ----------
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
    preempts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Usage:
    """Live limits and use of a QOS, of a user or an account on it, or of an association."""

    limit: Tres = field(default_factory=dict)
    used: Tres = field(default_factory=dict)


@dataclass(frozen=True)
class Partition:
    """One partition.

    Attributes
    ----------
    tres : dict
        All that its nodes have.
    allow_accounts, allow_qos : tuple of str or None
        None is all.
    up : bool
        Whether it starts jobs. Whether it takes those of this user, Slurm says when some are sent.
    tier : int or None
        Its rank: where partitions preempt, those of a higher one end its jobs.
    preempt_mode : str
        How its jobs are ended then; ``OFF`` is never.
    """

    name: str
    max_time_min: int | None = None
    tres: Tres = field(default_factory=dict)
    default: bool = False
    nodes: str = ""
    allow_accounts: tuple[str, ...] | None = None
    allow_qos: tuple[str, ...] | None = None
    deny_accounts: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()
    up: bool = True
    tier: int | None = None
    preempt_mode: str = "OFF"

    @property
    def has_gpus(self) -> bool:
        """Whether Slurm counts GPUs among what its nodes have."""
        return any(name.startswith("gres/gpu") for name in self.tres)


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
