"""What a simulated cluster has, what a workflow runs on it, and what will happen to both.

Memory is in MB, times are in seconds after the start of the run, and absent limits are none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Tres = Mapping[str, int]
Kind = Literal["gpu", "cpu"]
#: What limits count, in the order in which Slurm looks at them: it names the first that is reached.
COUNTED = ("jobs", "cpu", "mem", "node", "gres/gpu")
Seen = Literal["all", "no live use", "no limits", "old limits", "no accounts"]


@dataclass(frozen=True)
class Request:
    """What one job asks for of one node, for so many minutes."""

    cpus: int
    mem_mb: int
    gpus: int
    minutes: int

    @property
    def tres(self) -> dict[str, int]:
        """What it holds while it runs."""
        gpus = {"gres/gpu": self.gpus} if self.gpus else {}
        return {"cpu": self.cpus, "mem": self.mem_mb, "node": 1, **gpus}


@dataclass(frozen=True)
class Node:
    """A node, by what jobs may hold of it together."""

    name: str
    cpus: int
    mem_mb: int
    gpus: int = 0

    @property
    def tres(self) -> dict[str, int]:
        """All that it has."""
        gpus = {"gres/gpu": self.gpus} if self.gpus else {}
        return {"cpu": self.cpus, "mem": self.mem_mb, **gpus}


@dataclass(frozen=True)
class Partition:
    """A partition; jobs of a lower ``tier`` are ended by those of a higher one on its nodes."""

    name: str
    nodes: tuple[str, ...]
    longest_min: int | None = None
    default: bool = False
    accounts: tuple[str, ...] | None = None
    qos: tuple[str, ...] | None = None
    tier: int = 1


@dataclass(frozen=True)
class Qos:
    """A QOS: limits of all its jobs together and of each user's, ``jobs`` and ``submit`` too."""

    name: str
    group: Tres = field(default_factory=dict)
    user: Tres = field(default_factory=dict)
    longest_min: int | None = None
    priority: int = 0


@dataclass(frozen=True)
class Account:
    """An account, the QOS that its jobs may name, and limits of all its jobs together."""

    name: str
    qos: tuple[str, ...]
    group: Tres = field(default_factory=dict)
    parent: str = "root"


@dataclass(frozen=True)
class Task:
    """A job of the workflow.

    Attributes
    ----------
    size : float
        Its share of the estimated seconds of its rule.
    true_s : dict
        Kind of device to the seconds it takes there.
    memory : float
        Share of the memory asked for that it needs; above 1 it runs out of it.
    failures : int
        Tries that end with an error, whatever they are given.
    """

    name: str
    rule: str
    needs: tuple[str, ...]
    requests: Mapping[Kind, Request]
    size: float
    true_s: Mapping[Kind, float]
    memory: float = 0.7
    failures: int = 0


@dataclass(frozen=True)
class OtherJob:
    """A job of somebody else."""

    at_s: float
    user: str
    account: str
    qos: str
    partition: str
    request: Request
    run_s: float


@dataclass(frozen=True)
class Change:
    """What an administrator does: a limit, or a node that drains, fails or comes back."""

    at_s: float
    what: Literal["limit", "drain", "fail", "resume"]
    name: str
    limit: Tres = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """A cluster, a workflow and what will happen.

    Attributes
    ----------
    seen : str
        What Slurm tells the user: ``all``, no use of limits, no limits either, limits of long ago
        without their use, or nothing as it keeps no accounts.
    estimates_s : dict
        Rule and kind of device to estimated seconds.
    old_limits : dict
        QOS to limits that sacctmgr still tells where ``seen`` is ``old limits``.
    span_s : float
        About how long the workflow takes.
    """

    seed: int
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    qos: tuple[Qos, ...]
    accounts: tuple[Account, ...]
    tasks: tuple[Task, ...] = ()
    others: tuple[OtherJob, ...] = ()
    changes: tuple[Change, ...] = ()
    estimates_s: Mapping[tuple[str, Kind], float] = field(default_factory=dict)
    seen: Seen = "all"
    old_limits: Mapping[str, Tres] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    release: str = "24.11.5"
    forget_s: float = 300.0
    span_s: float = 3600.0
    user: str = "ada"

    def places(self, account: Account, request: Request) -> tuple[str, ...]:
        """Return the partitions where an account's default QOS may ever run such a job."""
        first = next(one for one in self.qos if one.name == account.qos[0])
        wall = first.longest_min
        if wall is not None and request.minutes > wall:
            return ()
        rows = {one.name: one for one in self.accounts}
        limits = [first.group, first.user]
        above: Account | None = account
        while above:
            limits.append({t: n for t, n in above.group.items() if t not in first.group})
            above = rows.get(above.parent)
        if any(n > limit.get(tres, n) for limit in limits for tres, n in request.tres.items()):
            return ()
        return tuple(
            one.name for one in self.partitions
            if one.tier > 0 and (one.accounts is None or account.name in one.accounts)
            and (one.qos is None or first.name in one.qos)
            and (one.longest_min is None or request.minutes <= one.longest_min)
            and any(holds(node.tres, request.tres) for node in self.nodes if node.name in one.nodes)
            and bool(request.gpus) == any(n.gpus for n in self.nodes if n.name in one.nodes)
        )  # fmt: skip


def holds(room: Tres, wanted: Tres) -> bool:
    """Return whether a node's room holds a job."""
    return all(room.get(tres, 0) >= n for tres, n in wanted.items() if tres != "node")
