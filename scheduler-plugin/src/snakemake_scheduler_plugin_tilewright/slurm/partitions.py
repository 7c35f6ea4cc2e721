"""The partitions of each device kind (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from .nodes import Node
from .records import Partition, Qos

#: TRES of which it only matters how many a partition has.
_AMOUNTS = ("cpu", "mem", "node", "billing")


def gpu_partitions(partitions: Iterable[Partition]) -> tuple[Partition, ...]:
    """Return the partitions that have GPUs: Slurm's default first, then by their number."""
    found = [p for p in partitions if p.tres.get("gres/gpu")]
    return tuple(sorted(found, key=lambda p: (not p.default, -p.tres["gres/gpu"])))


def cpu_partitions(partitions: Iterable[Partition]) -> tuple[Partition, ...]:
    """Return the partitions as CPU jobs prefer them: Slurm's default, the largest, with GPUs."""
    by_size = sorted(partitions, key=lambda p: -p.tres.get("cpu", 0))
    return tuple(sorted(by_size, key=lambda p: (is_for_gpus(p), not p.default)))


def is_for_gpus(partition: Partition | None) -> bool:
    """Return whether CPU jobs go to a partition only where no other takes them."""
    return partition is not None and not partition.default and bool(partition.tres.get("gres/gpu"))


def why_not(partition: Partition, groups: frozenset[str] | None) -> str:
    """Return why a person may not use a partition, or no one may; empty if nothing forbids it.

    Parameters
    ----------
    groups : frozenset of str or None
        The person's groups; None where they do not matter.
    """
    if not partition.up:
        return "is not up"
    if partition.closed:
        return f"is of no use: {partition.closed}"
    allowed = partition.allow_groups
    if allowed is not None and groups is not None and not groups & set(allowed):
        return f"is for the groups {', '.join(allowed)} only, and you are in none of them"
    return ""


def alike(partitions: Iterable[Partition]) -> dict[str, int]:
    """Return a number for each partition, the same for those alike but in their time and nodes."""
    kinds: list[Partition] = []
    found = {}
    for one in partitions:
        gpus = {tres: 1 for tres in (*one.tres, gpu_type_of(one)) if not tres.startswith(_AMOUNTS)}
        kind = replace(one, name="", max_time_min=None, tres=gpus, nodes=0, default=False,
                       allow_accounts=None, tier=None, preemptable=False)  # fmt: skip
        kinds += [] if kind in kinds else [kind]
        found[one.name] = kinds.index(kind)
    return found


def with_accounts_below(partition: Partition, lines: Mapping[str, Iterable[str]]) -> Partition:
    """Return a partition whose lists of accounts hold for those below too, as from Slurm 24.05 on.

    Parameters
    ----------
    lines : mapping
        Account to itself and all above it.
    """

    def below(names: Iterable[str]) -> tuple[str, ...]:
        return (*names, *(one for one, line in lines.items() if {*names} & {*line} - {one}))

    allow = partition.allow_accounts
    return replace(
        partition,
        allow_accounts=None if allow is None else below(allow),
        deny_accounts=below(partition.deny_accounts),
    )


def with_preemption(
    partitions: Sequence[Partition], nodes: Iterable[Node] | None
) -> list[Partition]:
    """Return which partitions lose jobs to one of a higher tier that has nodes of theirs."""
    own = {p.name: {n.name for n in nodes or () if p.name in n.partitions} for p in partitions}

    def loses(one: Partition, other: Partition) -> bool:
        # where nodes are not known, all may share them
        shares = nodes is None or bool(own[one.name] & own[other.name])
        higher = one.tier is not None and other.tier is not None and other.tier > one.tier
        return shares and higher and one.preempt_mode != "OFF"

    return [replace(p, preemptable=any(loses(p, one) for one in partitions)) for p in partitions]


def with_whole_nodes(partition: Partition, nodes: Iterable[Node] | None) -> Partition:
    """Return a partition that gives whole nodes with the smallest of them."""
    if not partition.whole_nodes:
        return partition
    own = [node.total for node in nodes or () if partition.name in node.partitions]
    mean = {tres: n // max(1, partition.nodes) for tres, n in partition.tres.items()}
    return replace(partition, whole=min(own, key=lambda total: total.get("cpu", 0), default=mean))


def gpu_type_of(partition: Partition | None) -> str:
    """Return the type of all GPUs of a partition, by which limits may name them."""
    # empty where Slurm does not count them by type (AccountingStorageTRES), or has several
    tres = partition.tres if partition else {}
    types = [name for name in tres if name.startswith("gres/gpu:")]
    if len(types) != 1 or tres[types[0]] < tres.get("gres/gpu", 0):
        return ""
    return types[0].removeprefix("gres/gpu:")


def with_qos(partition: Partition, qos: Iterable[Qos]) -> Partition:
    """Return a partition whose longest job is no longer than its QOS allows."""
    own = [record.max_wall_min for record in qos if record.name == partition.qos]
    walls = [minutes for minutes in (partition.max_time_min, *own) if minutes is not None]
    return replace(partition, max_time_min=min(walls, default=None))
