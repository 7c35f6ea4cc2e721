"""Nodes of a partition: which are up, and what is free on each (pure)."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ..errors import UnreadableError
from .parse import parse_time_s, parse_tres, records_of
from .records import Tres

#: Words of a node's state with which it takes no job. One that power saving switched off,
#: ``IDLE+CLOUD+POWERED_DOWN`` or ``IDLE~``, does: Slurm wakes it.
_OUT = re.compile(
    r"(?<!POWERED_)(?<!POWERING_)(?<!POWER_)DOWN|DRAIN|FAIL|MAINT|RESERVED|UNKNOWN|FUTURE"
    r"|NOT_RESPONDING|INVALID|ERROR|REBOOT(?!_REQUESTED)|\*"
)
#: Words with which it takes none before Slurm has switched it off, or another job has ended.
_LATER = re.compile(r"POWER(ING)?_DOWN|BLOCKED")
_NODE_FIELDS = ("NodeName", "State", "CfgTRES", "AllocTRES", "Gres", "ActiveFeatures", "Owner")


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes
    ----------
    up : bool
        It takes jobs: not down, drained, failing, reserved or under maintenance.
    state : str
        As Slurm says it, ``IDLE+DRAIN``.
    total, free : dict
        TRES that it has, and that no job holds; mem in MB.
    owner : str
        Whose jobs alone it takes now (``ExclusiveUser``); empty for everybody's.
    free_min : int or None
        Minutes until a reservation of it begins; None where there is none.
    """

    name: str
    partitions: tuple[str, ...]
    up: bool
    state: str
    total: Tres
    free: Tres
    features: tuple[str, ...] = ()
    gpu_types: tuple[str, ...] = ()
    owner: str = ""
    free_min: int | None = None

    def room(self, wanted: Mapping[str, int], *, now: bool) -> int:
        """Return how many jobs that want so much fit: now, or if the nodes were empty."""
        if not self.up:
            return 0
        have = self.free if now else self.total
        counts = [have.get(tres, 0) // n for tres, n in wanted.items() if n > 0]
        return max(0, min(counts, default=0))

    def taken(self, wanted: Mapping[str, int]) -> Node:
        """Return the node with one more job."""
        return replace(self, free={t: n - wanted.get(t, 0) for t, n in self.free.items()})


def parse_nodes(text: str) -> list[Node]:
    """Return the records of ``scontrol -o show node``."""
    found = []
    for _, pairs in records_of(text, *_NODE_FIELDS):
        total, used = parse_tres(pairs["CfgTRES"]), parse_tres(pairs["AllocTRES"])
        if "gres/gpu" not in total:  # Slurm counts them only where it is set up to
            gpus = re.findall(r"gpu(?::[^:,()]+)?:(\d+)", pairs["Gres"])
            total["gres/gpu"] = sum(map(int, gpus))
        features = pairs["ActiveFeatures"].split(",")
        state = pairs["State"]  # with a star where the node does not respond
        if _LATER.search(state):
            used = total
        found.append(
            Node(
                pairs["NodeName"],
                tuple(filter(None, pairs.get("Partitions", "").split(","))),
                _OUT.search(state) is None,
                state,
                total,
                {tres: n - used.get(tres, 0) for tres, n in total.items()},
                tuple(name for name in features if name not in ("", "(null)")),
                tuple(re.findall(r"gpu:([^:,()]+):\d", pairs["Gres"])),
                pairs["Owner"].partition("(")[0].removeprefix("N/A"),
            )
        )
    if found and not any(node.partitions for node in found):  # one that is in none does not say so
        raise UnreadableError(text, "Partitions")
    return found


@dataclass(frozen=True)
class Reservation:
    """Nodes of which so many CPUs are set aside from a time on, in seconds since the epoch."""

    nodes: tuple[str, ...]
    start_s: float
    cpus: float


def parse_reservations(text: str) -> list[Reservation]:
    """Return the records of ``scontrol -o show reservation``."""
    found = []
    for line, pairs in records_of(text, "ReservationName", "StartTime", "Nodes", "Flags", "TRES"):
        start_s = parse_time_s(pairs["StartTime"])
        if start_s is None:
            raise UnreadableError(line)
        maintains = {"MAINT", "ALL_NODES"} & set(pairs["Flags"].split(","))
        cpus = math.inf if maintains else parse_tres(pairs["TRES"]).get("cpu", 0)
        found.append(Reservation(tuple(node_names(pairs["Nodes"])), start_s, cpus))
    return found


def node_names(text: str) -> list[str]:
    """Return the nodes of Slurm's short form.

    >>> node_names("c[1-2,05],b1"), node_names("(null)")
    (['c1', 'c2', 'c05', 'b1'], [])
    """
    found = []
    for prefix, ranges, suffix in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)", text):
        if prefix == "(null)":
            continue
        for part in ranges.split(",") if ranges else [""]:
            first, _, last = part.partition("-")
            numbers = [first]
            if first.isdigit() and last.isdigit() and len(last) < 7:
                numbers = [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)]
            found += [f"{prefix}{number}{suffix}" for number in numbers]
    return found


def before_reservations(
    nodes: Iterable[Node], reservations: Iterable[Reservation], now_s: float
) -> list[Node]:
    """Return the nodes with the minutes until a reservation of each begins; those of now are over.

    A node that is reserved now says so in its state. One that takes some CPUs of its nodes counts
    for nothing: other jobs may start with it.
    """
    nodes = list(nodes)
    cpus = {node.name: node.total.get("cpu", 0) for node in nodes}
    begins: dict[str, float] = {}
    for one in reservations:
        if one.start_s > now_s and one.cpus >= sum(cpus.get(name, 0) for name in one.nodes):
            for name in one.nodes:
                begins[name] = min(one.start_s, begins.get(name, one.start_s))
    return [
        replace(node, free_min=int((begins[node.name] - now_s) // 60))
        if node.name in begins
        else node
        for node in nodes
    ]


def open_to(user: str, nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes as a user finds them: what another one owns for now has nothing free."""
    return [
        replace(node, free=dict.fromkeys(node.free, 0)) if node.owner not in ("", user) else node
        for node in nodes
    ]


def placed(
    nodes: Iterable[Node],
    partition: str | None,
    wanted: Mapping[str, int],
    may: Collection[str] | None = None,
) -> list[Node]:
    """Return the nodes after one more job, on the fullest node of the partition that holds it.

    ``may`` names the nodes that it may be on; None where it may be on all.
    """
    nodes = list(nodes)
    here = [n for n in nodes if partition in n.partitions and (may is None or n.name in may)]
    fit = [n for n in here if n.room(wanted, now=True)]
    if not fit:
        return nodes
    chosen = min(fit, key=lambda node: (node.room(wanted, now=True), node.name))
    return [node.taken(wanted) if node is chosen else node for node in nodes]
