"""Nodes of a partition: which are up, and what is free on each (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.slurm.parse import parse_tres
from tilewright.slurm.records import Tres

#: Words of a node's state with which it takes no job.
_OUT = re.compile(
    r"DOWN|DRAIN|FAIL|MAINT|RESERVED|UNKNOWN|FUTURE|POWERING_DOWN|NOT_RESPONDING|INVALID|ERROR"
    r"|REBOOT|\*"
)


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes
    ----------
    name : str
    partitions : tuple of str
    up : bool
        It takes jobs: not down, drained, failing, reserved or under maintenance.
    state : str
        As Slurm says it, ``IDLE+DRAIN``.
    total, free : dict
        TRES that it has, and that no job holds; mem in MB.
    """

    name: str
    partitions: tuple[str, ...]
    up: bool
    state: str
    total: Tres
    free: Tres

    def room(self, wanted: Mapping[str, int], *, now: bool) -> int:
        """Return how many jobs that want so much fit: now, or if nobody else were there."""
        if not self.up:
            return 0
        have = self.free if now else self.total
        counts = [have.get(tres, 0) // n for tres, n in wanted.items() if n > 0]
        return max(0, min(counts, default=0))

    def taken(self, wanted: Mapping[str, int]) -> Node:
        """Return the node with one more job."""
        return replace(self, free={t: n - wanted.get(t, 0) for t, n in self.free.items()})


def parse_nodes(text: str) -> list[Node]:
    """Return the records of ``scontrol -o show node``; other lines are left out."""
    found = []
    for line in text.splitlines():
        pairs = dict(re.findall(r"(\S+?)=(\S*)", line))
        if not pairs.get("NodeName") or "CfgTRES" not in pairs:
            continue
        total, used = parse_tres(pairs["CfgTRES"]), parse_tres(pairs.get("AllocTRES", ""))
        if "gres/gpu" not in total:  # Slurm counts them only where it is told to
            gpus = re.findall(r"gpu(?::[^:,()]+)?:(\d+)", pairs.get("Gres", ""))
            total["gres/gpu"] = sum(map(int, gpus))
        state = pairs.get("State", "UNKNOWN")  # with a star where the node does not respond
        found.append(
            Node(
                pairs["NodeName"],
                tuple(filter(None, pairs.get("Partitions", "").split(","))),
                _OUT.search(state) is None,
                state,
                total,
                {tres: n - used.get(tres, 0) for tres, n in total.items()},
            )
        )
    return found


def placed(nodes: Iterable[Node], partition: str | None, wanted: Mapping[str, int]) -> list[Node]:
    """Return the nodes after one more job, on the fullest node of the partition that holds it."""
    nodes = list(nodes)
    fit = [n for n in nodes if partition in n.partitions and n.room(wanted, now=True)]
    if not fit:
        return nodes
    chosen = min(fit, key=lambda node: (node.room(wanted, now=True), node.name))
    return [node.taken(wanted) if node is chosen else node for node in nodes]
