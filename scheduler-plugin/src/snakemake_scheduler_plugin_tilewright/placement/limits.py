"""Accounts, their limits and their use: what is left, and the slots of each pool (pure)."""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from snakemake_scheduler_plugin_tilewright.placement.jobs import KINDS, Kind, Shape
from snakemake_scheduler_plugin_tilewright.placement.needs import in_hours, needs, room_on
from snakemake_scheduler_plugin_tilewright.slurm.accounts import COUNTED, LIMITED, Account
from snakemake_scheduler_plugin_tilewright.slurm.nodes import Node
from snakemake_scheduler_plugin_tilewright.slurm.records import (
    BUDGETED,
    BUDGETS,
    GPU_TYPE,
    JOBS,
    WALL,
    Partition,
    budget,
    spent,
)


def limited(account: Account, partition: Partition | None) -> list[str]:
    """Return the TRES, budgets and numbers of jobs that something limits on an account."""
    within = account.within(partition)
    names = set(within.per_job).union(*(holder.limit for holder in within.holders))
    if partition is not None:
        names |= {"cpu"} if partition.cpus_a_node else set()
        names |= {"mem"} if partition.mem_a_node else set()
    return [tres for tres in LIMITED if tres in names]


def bounds(
    account: Account,
    partition: Partition | None,
    tres: str,
    used: Callable[[str], str] = lambda tres: tres,
) -> list[tuple[int, int]]:
    """Return limit and use of all that bounds a TRES; use that is not known counts as none.

    Of budgets ``used`` may be :func:`spent`.
    """
    return [
        (holder.limit[tres], (holder.used or {}).get(used(tres), 0))
        for holder in account.within(partition).holders
        if tres in holder.limit
    ]


def left(account: Account, partition: Partition | None, tres: str) -> int | None:
    """Return what is left of a TRES, None where nothing limits it."""
    rests = [limit - used for limit, used in bounds(account, partition, tres)]
    return max(0, min(rests)) if rests else None


def largest(account: Account, partition: Partition | None, tres: str) -> int | None:
    """Return the most of a TRES that one job may ever have, None where nothing limits it."""
    limits = [limit for limit, _ in bounds(account, partition, tres)]
    if partition is not None:
        node = {"cpu": partition.cpus_a_node, "mem": partition.mem_a_node}.get(tres)
        limits += [] if node is None else [node]
    per_job = account.within(partition).per_job
    return min([*limits, *([per_job[tres]] if tres in per_job else [])], default=None)


def longest_min(account: Account, partition: Partition | None) -> int | None:
    """Return the minutes that one job may take at most, None where nothing limits them."""
    within = account.within(partition)
    of_partition = partition.max_time_min if partition and not within.beyond_partition else None
    walls = (within.longest_min, of_partition)
    return min((minutes for minutes in walls if minutes is not None), default=None)


def clipped(shape: Shape, account: Account, partition: Partition | None) -> Shape:
    """Return a shape with no more minutes than its place allows, and no less than it states."""
    most = longest_min(account, partition)
    if most is None or shape.runtime_min <= most:
        return shape
    return replace(shape, runtime_min=max(most, shape.stated_min))


def too_long(account: Account, shape: Shape, partition: Partition | None) -> str:
    """Return that a place allows a job fewer minutes than it states; empty if it does not."""
    most = longest_min(account, partition)
    if most is None or shape.stated_min <= most:
        return ""
    return f"it asks for {shape.stated_min} min and account {account.name} has {most}"


def partition_of(
    kind: Kind,
    name: str | None,
    partitions: Mapping[Kind, Partition | None],
    named: Mapping[str, Partition],
) -> Partition | None:
    """Return a job's partition: the one that it names, else that of its device kind.

    None where Slurm's default is taken, or nothing is known of the one that is named.
    """
    return named.get(name) if name else partitions.get(kind)


def may_use(account: Account, partition: Partition | None) -> bool:
    """Return whether an account's jobs may go to a partition; to Slurm's default they may."""
    if partition is None:
        return True
    accounts, qos = partition.allow_accounts, partition.allow_qos
    return (
        (accounts is None or account.name in accounts)
        and (qos is None or account.qos in qos)
        and account.name not in partition.deny_accounts
        and account.qos not in partition.deny_qos
        and (not account.partitions or partition.name in account.partitions)
    )


def has_room(account: Account, where: Partition | None, shape: Shape) -> bool:
    """Return whether use and limits of an account, as Slurm says them, leave a job room."""
    wanted = needs(shape, 1, where)
    free = {tres: left(account, where, tres) for tres in limited(account, where)}
    return all(n is None or wanted[tres] <= n for tres, n in free.items())


#: What a limit is of, by a word of Slurm's reason for which a job pends, and whose it is.
_OF = {"Submit": "submit", "Job": "jobs", "Cpu": "cpu", "Mem": "mem", "GRES": "gres/.*"}
_WHOSE = {
    "PerUser": r"\S+ on QOS .*",
    "PerAccount": r"account \S+ on QOS .*",
    "QOSGrp": r"QOS .*",
    "Assoc": r"(\S+ of )?account \S+( in partition \S+)?",
}


def counted(reason: str, account: Account, where: Partition | None) -> bool:
    """Return whether the limit for which a job pends is one that is known here, with its use."""
    tres, whose = (next((at[word] for word in at if word in reason), "") for at in (_OF, _WHOSE))
    named = [
        (one, holder.used or {})
        for holder in account.within(where).holders
        for one in holder.limit
        if re.fullmatch(whose, holder.name) and re.fullmatch(tres, one)
    ]
    return bool(named) and all(one in LIMITED and one in used for one, used in named)


def too_big(account: Account, shape: Shape, partition: Partition | None = None) -> str | None:
    """Return why a job of this shape would pend on an account for ever, None if it fits.

    What is used up of a budget does not come back in this run, what running jobs may take does.
    A limit of no jobs at all is a gate that somebody opens again.
    """
    if long := too_long(account, shape, partition):
        return long
    wanted = needs(shape, 1, partition)
    for tres in limited(account, partition):
        most = largest(account, partition, tres)
        if tres in BUDGETS:
            rests = [n - u for n, u in bounds(account, partition, tres, used=spent)]
            most = max(0, min([most or 0, *rests])) if rests else most
        if tres in JOBS or most is None or wanted[tres] <= most:
            continue
        if tres in BUDGETS:
            asks, has = in_hours(tres, wanted[tres]), f"{in_hours(tres, most)} left"
            return f"it may take {asks} and account {account.name} has {has}"
        whole = partition is not None and partition.whole_nodes and tres != "mem"
        asks = f"it gets a whole node with {tres}" if whole else f"it asks for {tres}"
        return f"{asks}={wanted[tres]} and account {account.name} has {most}"
    return None


def unknown_use(account: Account, partition: Partition | None = None) -> dict[str, list[str]]:
    """Return the limited TRES whose use Slurm did not say, by what limits them."""
    found = {
        holder.name: [t for t in LIMITED if t in holder.limit and t not in (holder.used or {})]
        for holder in account.within(partition).holders
    }
    return {name: unknown for name, unknown in found.items() if unknown}


def use_is_known(account: Account, partition: Partition | None, tres: str) -> bool:
    """Return whether Slurm said the use of a TRES by all that limits it."""
    return not any(tres in unknown for unknown in unknown_use(account, partition).values())


#: Share of an account's CPUs, of no cap, that CPU jobs may fill, so that other users and the GPU
#: jobs' own CPUs fit beside them: 104 CPUs in jobs of 8 are then 11 slots.
UTILISATION = 0.85
#: Jobs of a pool that nothing bounds, not even a partition of known size.
_MOST_SLOTS = 1000
#: Budgets that are used up for good, so that they bound slots also when nobody else is there.
_SPENT = frozenset({WALL, *map(budget, BUDGETED)})
#: ``bound`` of a pool that has no limit of its own.
_PARTITION = "partition"


@dataclass(frozen=True)
class Pool:
    """What one account holds of jobs of one device kind.

    Attributes
    ----------
    slots : int
        Jobs that its limits allow.
    free : int
        Jobs that fit now beside what is in use.
    bound : str
        What bounds ``slots``: ``cpu``, ``mem``, ``gres/gpu``, ``gres/gpu:type``, ``jobs``,
        ``submit``, a budget or ``partition``.
    """

    account: str
    qos: str
    kind: Kind
    slots: int
    free: int
    bound: str

    @property
    def name(self) -> str:
        """Name of the Snakemake resource that counts its slots."""
        return pool_name(self.account, self.kind)


def pool_name(account: str, kind: Kind) -> str:
    """Return the name of the Snakemake resource that counts a pool's slots.

    It is an identifier, and another one for each account: one with other characters than letters,
    digits and underscores, or with a digit in front, gets a number of its own.

    >>> pool_name("clive", "gpu"), pool_name("lab-x", "cpu"), pool_name("12345", "cpu")
    ('clive_gpu', 'lab_x_4198_cpu', 'a12345_3a1c_cpu')
    """
    safe = re.sub(r"\W", "_", account, flags=re.ASCII)
    if safe != account or safe[:1].isdigit():
        letter = "a" if safe[:1].isdigit() else ""
        safe = f"{letter}{safe}_{zlib.crc32(account.encode()) & 0xFFFF:04x}"
    return f"{safe or 'slurm'}_{kind}"


def make_pools(
    accounts: Iterable[Account],
    shapes: Mapping[Kind, Shape],
    *,
    utilisation: float = UTILISATION,
    partitions: Mapping[Kind, Partition | None] | None = None,
    nodes: Sequence[Node] | None = None,
    together: bool = False,
) -> list[Pool]:
    """Return the pools of all accounts; one without slots is left out.

    GPU jobs are packed first, and CPU slots counted from what remains, in every TRES. A limit of
    0 means no limit to Snakemake, hence no pool of 0 slots.

    Parameters
    ----------
    accounts : iterable of Account
        With use, where it is known.
    shapes : mapping
        Largest job of each device kind; a kind that is absent gets no pool.
    utilisation : float
        Share of CPUs that CPU slots are counted from, 0 to 1.
    partitions : mapping, optional
        Partition of each device kind; its size bounds slots where no account does.
    nodes : sequence of Node, optional
        What is up and free of them bounds every account; those that nothing else bounds share it.
    together : bool
        Each account gets what those before it leave, instead of all that it may have alone.

    Returns
    -------
    list of Pool
        By account, GPU first.
    """
    pools = []
    partitions = partitions or {}
    rooms = {  # of nodes: the same for every account
        kind: [room_on(nodes, where, shape, now=now) for now in (False, True)]
        for kind, shape in shapes.items()
        if nodes is not None and (where := partitions.get(kind)) is not None
    }
    taken, taken_now = _Taken(), _Taken()
    for account in accounts:
        if not together:
            taken, taken_now = _Taken(), _Taken()
        for kind in KINDS:
            where = partitions.get(kind)
            if kind not in shapes or not may_use(account, where):
                continue
            shape, share = shapes[kind], utilisation if kind == "cpu" else 1.0
            slots, free, bound = _slots(account, where, shape, share, taken, taken_now)
            if kind in rooms:
                most, now = rooms[kind]
                free = min(free, now)
                slots, bound = (most, _PARTITION) if most < slots else (slots, bound)
            if slots:
                taken.add(account, where, needs(shape, slots, where))
                taken_now.add(account, where, needs(shape, free, where))
                pools.append(Pool(account.name, account.qos, kind, slots, free, bound))
    return _shared_out(pools)


class _Taken:
    """What the jobs counted before take, by what counts them."""

    def __init__(self) -> None:
        self._of: dict[str, Counter[str]] = {}

    def add(self, account: Account, where: Partition | None, wanted: Mapping[str, int]) -> None:
        """Count jobs of an account in a partition."""
        size = [_size_of(where)] if where is not None else []
        for name in [*account.within(where).counts_on, *size]:
            self._of.setdefault(name, Counter()).update(wanted)

    def of(self, name: str, tres: str) -> int:
        return self._of[name][tres] if name in self._of else 0


def _size_of(partition: Partition) -> str:
    return f"size of partition {partition.name}"


def _slots(
    account: Account,
    where: Partition | None,
    shape: Shape,
    share: float,
    taken: _Taken,
    taken_now: _Taken,
) -> tuple[int, int, str]:
    """Return how many jobs an account's limits hold, how many of them now, and what bounds them."""
    slots, bound = _fit(account, where, shape, share, taken, now=False)
    if not slots:  # the share of an account must not keep out the one job that it holds
        share = 1.0
        slots = min(1, _fit(account, where, shape, share, taken, now=False)[0])
    return slots, min(slots, _fit(account, where, shape, share, taken_now, now=True)[0]), bound


def _shared_out(pools: Sequence[Pool]) -> list[Pool]:
    """Return the pools; those that only a partition bounds share its size."""
    together = Counter(pool.kind for pool in pools if pool.bound == _PARTITION)
    found = []
    for pool in pools:
        if pool.bound == _PARTITION:
            slots = max(1, -(-pool.slots // together[pool.kind]))
            pool = replace(pool, slots=slots, free=min(pool.free, slots))
        found.append(pool)
    return found


def total_slots(pools: Sequence[Pool], kind: Kind | None = None) -> int:
    """Return the jobs that fit at once, of one device kind or of both."""
    return sum(pool.slots for pool in pools if kind in (None, pool.kind))


def _fit(
    account: Account,
    partition: Partition | None,
    shape: Shape,
    share: float,
    taken: _Taken,
    *,
    now: bool,
) -> tuple[int, str]:
    """Return how many jobs fit beside those counted before, and what bounds them, GPUs first."""
    wanted = {tres: n for tres, n in needs(shape, 1, partition).items() if n > 0}
    most = {tres: largest(account, partition, tres) for tres in limited(account, partition)}
    for tres, n in most.items():
        if n is not None and wanted.get(tres, 0) > n:
            return 0, tres

    def jobs_in(limit: int, name: str, tres: str, used: int = 0, part: float = share) -> int:
        free = limit * (part if tres == "cpu" else 1.0) - used - taken.of(name, tres)
        return max(0, math.floor(free / wanted[tres] + 1e-9))

    counts: dict[str, int] = {}
    for holder in account.within(partition).holders:
        for tres in holder.limit.keys() & wanted.keys():
            used = (holder.used or {}).get(tres, 0) if now or tres in _SPENT else 0
            part = 1.0 if holder.cap else share
            jobs = jobs_in(holder.limit[tres], holder.name, tres, used, part)
            counts[tres] = min(jobs, counts.get(tres, jobs))
    size = [
        jobs_in(partition.tres[tres], _size_of(partition), tres)
        for tres in COUNTED
        if partition is not None and tres in partition.tres and tres in wanted
    ]
    counts[_PARTITION] = min(size, default=_MOST_SLOTS)
    order = ("gres/gpu", GPU_TYPE, "cpu", "mem", *JOBS, *BUDGETS, _PARTITION)
    bound = min(counts, key=lambda name: (counts[name], order.index(name)))
    return counts[bound], bound
