"""Nodes and how Slurm is set up: which are up, and what is free on each (pure)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..errors import UnreadableError
from .parse import _number, parse_time_s, parse_tres, records_of
from .records import Tres

#: Words of a node's state with which it takes no job. One that power saving switched off,
#: ``IDLE+CLOUD+POWERED_DOWN`` or ``IDLE~``, does: Slurm wakes it.
_OUT = re.compile(
    r"(?<!POWERED_)(?<!POWERING_)(?<!POWER_)DOWN|DRAIN|FAIL|UNKNOWN|FUTURE"
    r"|NOT_RESPONDING|INVALID|ERROR|REBOOT(?!_REQUESTED)|\*"
)
#: Words with which it takes those of its reservation alone.
_RESERVED = re.compile(r"MAINT|RESERVED")
#: Words with which it takes none before Slurm has switched it off, or another job has ended.
_LATER = re.compile(r"POWER(ING)?_DOWN|BLOCKED")
_NODE_FIELDS = ("NodeName", "State", "CfgTRES", "AllocTRES", "Gres", "ActiveFeatures", "Owner")


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes
    ----------
    up : bool
        It takes jobs: not down, drained or failing.
    total, free : dict
        TRES that it has, and that no job holds; mem in MB.
    owner : str
        Whose jobs alone it takes now (``ExclusiveUser``); empty for everybody's.
    free_min : int or None
        Minutes until a reservation of it begins; None where there is none.
    reservations : dict of str to tuple
        In how many minutes each of its reservations begins and ends, by name.
    reserved : bool
        It takes jobs of a reservation alone now.
    shares_memory : bool
        Slurm counts none of it: each job may ask for as much as there is.
    """

    name: str
    partitions: tuple[str, ...]
    up: bool
    total: Tres
    free: Tres
    features: tuple[str, ...] = ()
    gpu_types: tuple[str, ...] = ()
    owner: str = ""
    free_min: int | None = None
    reservations: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    reserved: bool = False
    shares_memory: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """What is the same of nodes that are alike in all but their names."""
        amounts = (*self.total.items(), *self.free.items(), *self.reservations.items())
        return (
            self.partitions, self.up, self.features, self.gpu_types, self.owner, self.free_min,
            self.reserved, self.shares_memory, amounts,
        )  # fmt: skip

    def room(self, wanted: Mapping[str, int], *, now: bool) -> int:
        """Return how many jobs that want so much fit: now, or if the nodes were empty."""
        if not self.up:
            return 0
        have = self.free if now else self.total
        if self.shares_memory and wanted.get("mem", 0) <= self.total.get("mem", 0):
            wanted = {**wanted, "mem": 0}
        counts = [have.get(tres, 0) // n for tres, n in wanted.items() if n > 0]
        return max(0, min(counts, default=0))

    def taken(self, wanted: Mapping[str, int]) -> Node:
        """Return the node with one more job."""
        return replace(self, free={t: n - wanted.get(t, 0) for t, n in self.free.items()})


def parse_nodes(text: str) -> list[Node]:
    """Return the records of ``scontrol -o show node``."""
    found = []
    for line, pairs in records_of(text, *_NODE_FIELDS):
        total, used = parse_tres(pairs["CfgTRES"]), parse_tres(pairs["AllocTRES"])
        if "gres/gpu" not in total:  # Slurm counts them only where it is set up to
            total["gres/gpu"] = _gpus(pairs["Gres"])
            if total["gres/gpu"] and "GresUsed" not in pairs:
                raise UnreadableError(line, "GresUsed")
            used["gres/gpu"] = _gpus(pairs.get("GresUsed", ""))
        features = pairs["ActiveFeatures"].split(",")
        state = pairs["State"]  # with a star where the node does not respond
        if _LATER.search(state):
            used = total
        found.append(
            Node(
                pairs["NodeName"],
                tuple(filter(None, pairs.get("Partitions", "").split(","))),
                _OUT.search(state) is None,
                total,
                {tres: n - used.get(tres, 0) for tres, n in total.items()},
                tuple(name for name in features if name not in ("", "(null)")),
                tuple(re.findall(r"gpu:([^:,()]+):\d", pairs["Gres"])),
                pairs["Owner"].partition("(")[0].removeprefix("N/A"),
                reserved=_RESERVED.search(state) is not None,
            )
        )
    if found and not any(node.partitions for node in found):  # one that is in none does not say so
        raise UnreadableError(text, "Partitions")
    return found


def _gpus(gres: str) -> int:
    """Return the GPUs in ``gpu:a100:2(IDX:0-1),shard:4``.

    >>> _gpus("gpu:a100:2(IDX:0-1),gpu:1,shard:4"), _gpus("(null)")
    (3, 0)
    """
    return sum(map(int, re.findall(r"(?<![^,])gpu(?::[^:,()]+)?:(\d{1,9})", gres)))


@dataclass(frozen=True)
class Reservation:
    """Nodes of which so many CPUs are set aside for some time, in seconds since the epoch."""

    nodes: tuple[str, ...]
    start_s: float
    cpus: float
    name: str = ""
    end_s: float = math.inf


def parse_reservations(text: str) -> list[Reservation]:
    """Return the records of ``scontrol -o show reservation``."""
    found = []
    fields = ("ReservationName", "StartTime", "EndTime", "Nodes", "Flags", "TRES")
    for line, pairs in records_of(text, *fields):
        start_s, end_s = parse_time_s(pairs["StartTime"]), parse_time_s(pairs["EndTime"])
        if start_s is None or end_s is None:
            raise UnreadableError(line)
        flags = set(pairs["Flags"].split(","))
        cpus: float = parse_tres(pairs["TRES"]).get("cpu", 0)
        if {"MAINT", "ALL_NODES"} & flags:
            cpus = math.inf
        names = tuple(node_names(pairs["Nodes"]))
        if "FLEX" in flags:  # its jobs may begin before it, and end after
            end_s = math.inf
        found.append(Reservation(names, start_s, cpus, pairs["ReservationName"], end_s))
    return found


def parse_config(text: str) -> dict[str, str]:
    """Return the fields of ``scontrol show config``."""
    found = dict(re.findall(r"(?m)^(\w+)\s*= *(.*?) *$", text))
    fields = ("ClusterName", "AccountingStorageEnforce", "SelectTypeParameters")
    if lacks := [name for name in fields if name not in found]:
        raise UnreadableError(text, *(lacks if found else ()))
    return found


def parse_licences(text: str) -> dict[str, int]:
    """Return how many of each licence there are, by ``scontrol -o show lic``."""
    found = {}
    for line, pairs in records_of(text, "LicenseName", "Total"):
        if (total := _number(pairs["Total"])) is None:
            raise UnreadableError(line)
        found[pairs["LicenseName"]] = total
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
            if re.fullmatch(r"\d{1,6}-\d{1,6}", part):
                numbers = [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)]
            found += [f"{prefix}{number}{suffix}" for number in numbers]
    return found


def before_reservations(
    nodes: Iterable[Node], reservations: Iterable[Reservation], now_s: float
) -> list[Node]:
    """Return the nodes with their reservations, and the minutes until the first of them begins."""
    nodes = list(nodes)
    cpus = {node.name: node.total.get("cpu", 0) for node in nodes}
    begins: dict[str, float] = {}
    own: dict[str, dict[str, tuple[float, float]]] = {}
    for one in reservations:
        begin_s = -math.inf if one.end_s == math.inf else one.start_s
        # one that takes some CPUs of its nodes counts for nothing: other jobs may start with it
        takes_all = one.cpus >= sum(cpus.get(name, 0) for name in one.nodes)
        for name in one.nodes:
            times = (begin_s - now_s) / 60, (one.end_s - now_s) / 60
            own.setdefault(name, {})[one.name] = times
            if one.start_s > now_s and takes_all:  # a node that is reserved now says so
                begins[name] = min(one.start_s, begins.get(name, math.inf))
    return [
        replace(
            node,
            free_min=int((begins[node.name] - now_s) // 60) if node.name in begins else None,
            reservations=own.get(node.name, {}),
        )
        for node in nodes
    ]


def open_to(user: str, nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes as a user finds them: what another one owns for now has nothing free."""
    return [
        replace(node, free=dict.fromkeys(node.free, 0)) if node.owner not in ("", user) else node
        for node in nodes
    ]
