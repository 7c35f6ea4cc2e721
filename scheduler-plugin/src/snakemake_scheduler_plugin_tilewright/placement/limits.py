"""Accounts, their limits and their use: the slots of each pool (pure).

A limit of the partition's QOS replaces the account's for the same TRES, as in Slurm; where the
account's QOS has the flag ``OverPartQOS`` it is the other way round. A cap of the site holds
beside both.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from snakemake_scheduler_plugin_tilewright.placement.jobs import KINDS, Kind, Place, Shape
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
    names: set[str] = set().union(*(one.limit for one in account.above))
    for held in holders(account, partition):
        names.update(held.limit, held.limit_per_user, held.limit_per_account, held.limit_per_job)
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
    held, name = holders(account, partition), used(tres)
    found = [(h.limit[tres], (h.used or {}).get(name, 0)) for h in held if tres in h.limit][:1]
    found += [
        (h.limit_per_user[tres], (h.mine or {}).get(tres, 0))
        for h in held
        if tres in h.limit_per_user
    ][:1]
    found += [
        (h.limit_per_account[tres], _of_account(h, account).get(tres, 0))
        for h in held
        if tres in h.limit_per_account
    ][:1]
    if account.limit_from.get(tres) == "cap":
        found.append((account.limit[tres], (account.used or {}).get(tres, 0)))
    # a partition's QOS replaces them too
    replaced = partition.limit if partition and not account.before_partition else {}
    for one in account.above:
        if tres in one.limit and tres not in replaced:
            found.append((one.limit[tres], (one.used or {}).get(name, 0)))
    return found


def _of_account(holder: Account | Partition, account: Account) -> Mapping[str, int]:
    """Return what an account uses on the QOS of its jobs, or of a partition."""
    if isinstance(holder, Partition):
        return holder.by_account.get(account.name, {})
    return holder.ours or {}


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
    own = [h.limit_per_job[tres] for h in holders(account, partition) if tres in h.limit_per_job]
    return min([*limits, *own[:1]], default=None)


def longest_min(account: Account, partition: Partition | None) -> int | None:
    """Return the minutes that one job may take at most, None where nothing limits them."""
    walls = (account.max_wall_min, partition.max_time_min if partition else None)
    return min((minutes for minutes in walls if minutes is not None), default=None)


def clipped(shape: Shape, account: Account, partition: Partition | None) -> Shape:
    """Return a shape with no more minutes than its place allows."""
    most = longest_min(account, partition)
    return shape if most is None else replace(shape, runtime_min=min(shape.runtime_min, most))


def may_use(account: Account, partition: Partition) -> bool:
    """Return whether an account's jobs may go to a partition."""
    accounts, qos = partition.allow_accounts, partition.allow_qos
    return (
        (accounts is None or account.name in accounts)
        and (qos is None or account.qos in qos)
        and account.name not in partition.deny_accounts
        and account.qos not in partition.deny_qos
        and (not account.partitions or partition.name in account.partitions)
    )


def has_room(
    accounts: Iterable[Account], partitions: Mapping[Kind, Partition | None], place: Place
) -> bool:
    """Return whether use and limits of a place's account, as Slurm says them, leave it room."""
    where = partitions.get(place.kind)
    wanted = needs(place.shape, 1, where)
    here = next((account for account in accounts if account.name == place.account), None)
    if here is None:
        return False
    free = {tres: left(here, where, tres) for tres in limited(here, where)}
    return all(n is None or wanted[tres] <= n for tres, n in free.items())


def too_big(account: Account, shape: Shape, partition: Partition | None = None) -> str | None:
    """Return why a job of this shape would pend on an account for ever, None if it fits.

    What is used up of a budget does not come back in this run, what running jobs may take does.
    A limit of no jobs at all is a gate that somebody opens again.
    """
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


def unknown_use(account: Account, partition: Partition | None = None) -> tuple[str, ...]:
    """Return the limited TRES whose use Slurm did not say, of what limits a job or one above it."""
    unknown = []
    for tres in LIMITED:
        holder = next((h for h in holders(account, partition) if tres in h.limit), None)
        above = [one for one in account.above if tres in one.limit]
        if any(tres not in (h.used or {}) for h in [holder, *above] if h is not None):
            unknown.append(tres)
    return tuple(unknown)


def holders(account: Account, partition: Partition | None) -> list[Account | Partition]:
    """Return those whose limits hold, the one that wins first."""
    if partition is None:
        return [account]
    return [account, partition] if account.before_partition else [partition, account]


Sharing = Literal["independent", "shared"]

#: Share of an account's CPUs that CPU jobs may fill, so that other users and the GPU jobs' own
#: CPUs fit beside them: 104 CPUs in jobs of 8 are then 11 slots.
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
    account, qos : str
    kind : {"gpu", "cpu"}
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

    Examples
    --------
    >>> pool_name("clive", "gpu"), pool_name("lab-x", "cpu"), pool_name("12345", "cpu")
    ('clive_gpu', 'lab_x_4198_cpu', 'a12345_3a1c_cpu')
    """
    safe = re.sub(r"\W", "_", account, flags=re.ASCII)
    if safe != account or safe[:1].isdigit():
        letter = "a" if safe[:1].isdigit() else ""
        safe = f"{letter}{safe}_{zlib.crc32(account.encode()) & 0xFFFF:04x}"
    return f"{safe or 'slurm'}_{kind}"


def sharing(
    mode: Literal["independent", "shared", "auto"],
    partitions: Mapping[Kind, Partition | None],
) -> tuple[Sharing, str]:
    """Return whether GPU and CPU jobs draw on the same limits, and why.

    Parameters
    ----------
    mode : {"independent", "shared", "auto"}
        ``auto`` looks whether both partitions have a QOS with limits of their own.
    partitions : mapping
        Partition of each device kind, None where it is not known.
    """
    if mode != "auto":
        return mode, "as configured"
    gpu, cpu = partitions.get("gpu"), partitions.get("cpu")
    if gpu and cpu and gpu.qos != cpu.qos and set(gpu.limit) - {*JOBS} and set(cpu.limit) - {*JOBS}:
        return (
            "independent",
            f"partition QOS {gpu.qos} counts GPU jobs and {cpu.qos} CPU jobs",
        )
    return "shared", "GPU and CPU jobs draw on the QOS of the account"


def make_pools(
    accounts: Iterable[Account],
    shapes: Mapping[Kind, Shape],
    *,
    mode: Sharing = "shared",
    utilisation: float = UTILISATION,
    partitions: Mapping[Kind, Partition | None] | None = None,
    nodes: Sequence[Node] | None = None,
) -> list[Pool]:
    """Return the pools of all accounts; one without slots is left out.

    ``shared`` packs GPU jobs first and counts CPU slots from what remains, in every TRES. A
    limit of 0 means no limit to Snakemake, hence no pool of 0 slots.

    Parameters
    ----------
    accounts : iterable of Account
        With use, where it is known.
    shapes : mapping
        Largest job of each device kind; a kind that is absent gets no pool.
    mode : {"independent", "shared"}
        See :func:`sharing`.
    utilisation : float
        Share of CPUs that CPU slots are counted from, 0 to 1.
    partitions : mapping, optional
        Partition of each device kind; its size bounds slots where no account does.
    nodes : sequence of Node, optional
        What is up and free of them bounds every account; those that nothing else bounds share it.

    Returns
    -------
    list of Pool
        By account, GPU first.
    """
    pools = []
    partitions = partitions or {}
    for account in accounts:
        apart = _apart(account, partitions)
        taken: Counter[str] = Counter()
        taken_now: Counter[str] = Counter()
        for kind in KINDS:
            where = partitions.get(kind)
            if kind not in shapes or (where is not None and not may_use(account, where)):
                continue
            shape, share = shapes[kind], utilisation if kind == "cpu" else 1.0
            slots, free, bound = _slots(account, where, shape, share, taken, taken_now)
            if nodes is not None and where is not None:
                most = room_on(nodes, where, shape, now=False)
                free = min(free, room_on(nodes, where, shape, now=True))
                slots, bound = (most, _PARTITION) if most < slots else (slots, bound)
            if mode == "shared":
                for counted, jobs in ((taken, slots), (taken_now, free)):
                    wanted = needs(shape, jobs, where)
                    counted.update({t: n for t, n in wanted.items() if t not in apart})
            if slots:
                pools.append(Pool(account.name, account.qos, kind, slots, free, bound))
    return _shared_out(pools)


def _slots(
    account: Account,
    where: Partition | None,
    shape: Shape,
    share: float,
    taken: Mapping[str, int],
    taken_now: Mapping[str, int],
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


def _apart(account: Account, partitions: Mapping[Kind, Partition | None]) -> frozenset[str]:
    """Return what the CPU partition's own QOS alone counts: GPU jobs take nothing of it."""
    gpu, cpu = partitions.get("gpu"), partitions.get("cpu")
    if account.before_partition or gpu is None or cpu is None or gpu.qos == cpu.qos:
        return frozenset()
    both = {tres for tres, origin in account.limit_from.items() if origin == "cap"}
    both |= account.limit_per_user.keys() - cpu.limit_per_user.keys()
    both |= account.limit_per_account.keys() - cpu.limit_per_account.keys()
    return frozenset(cpu.limit.keys() - both)


def total_slots(pools: Sequence[Pool], kind: Kind | None = None) -> int:
    """Return the jobs that fit at once, of one device kind or of both."""
    return sum(pool.slots for pool in pools if kind in (None, pool.kind))


def _free_tres(
    account: Account, partition: Partition | None, share: float, *, now: bool
) -> dict[str, float]:
    """Return what limits leave free in each counted unit; those without a limit are absent."""
    free: dict[str, float] = {}
    for tres in limited(account, partition):
        part = share if tres == "cpu" else 1.0
        counts = now or tres in _SPENT
        rests = [part * n - (used if counts else 0) for n, used in bounds(account, partition, tres)]
        if rests:
            free[tres] = min(rests)
    return free


def _fit(
    account: Account,
    partition: Partition | None,
    shape: Shape,
    share: float,
    taken: Mapping[str, int],
    *,
    now: bool,
) -> tuple[int, str]:
    """Return how many jobs fit beside those counted before, and what bounds them, GPUs first."""
    wanted = needs(shape, 1, partition)
    most = {tres: largest(account, partition, tres) for tres in limited(account, partition)}
    if any(n is not None and wanted[tres] > n for tres, n in most.items()):
        return 0, next(t for t, n in most.items() if n is not None and wanted[t] > n)

    def jobs_in(free: float, name: str) -> int:
        return max(0, math.floor((free - taken.get(name, 0)) / wanted[name] + 1e-9))

    counts = {
        name: jobs_in(free, name)
        for name, free in _free_tres(account, partition, share, now=now).items()
        if wanted[name] > 0
    }
    all_ = partition.tres if partition else {}
    size = [
        jobs_in(all_[tres] * (share if tres == "cpu" else 1.0), tres)
        for tres in COUNTED
        if tres in all_ and wanted[tres] > 0
    ]
    counts[_PARTITION] = min(size, default=_MOST_SLOTS)
    order = ("gres/gpu", GPU_TYPE, "cpu", "mem", *JOBS, *BUDGETS, _PARTITION)
    bound = min(counts, key=lambda name: (counts[name], order.index(name)))
    return counts[bound], bound
