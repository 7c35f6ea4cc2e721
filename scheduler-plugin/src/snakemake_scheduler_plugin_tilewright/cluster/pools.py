"""How many jobs each account holds, all in all and now (pure)."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..slurm.accounts import Account
from ..slurm.records import JOBS, Partition, is_budget
from .limits import largest, limited_tres
from .request import DeviceKind, ResourceRequest, Target, pool_name
from .tres import ON_NODES, tres_of

#: Share of an account's CPUs, of no cap, that CPU jobs may fill, so that other users and the GPU
#: jobs' own CPUs fit next to them: 104 CPUs in jobs of 8 are then 11 slots.
UTILISATION = 0.85
#: Jobs of a pool that nothing bounds, not even a partition of known size (no figure).
_MOST_SLOTS = 1000
#: So many times the nodes of a partition are filled by accounts that are counted (no figure).
_FILLED = 8
#: ``bound`` of a pool that has no limit of its own.
_PARTITION = "partition"


@dataclass(frozen=True)
class Pool:
    """What one account holds of jobs of one device kind, on one QOS and in one partition.

    Attributes
    ----------
    slots : int
        Jobs that its limits allow.
    free : int
        Jobs that fit now, next to what is in use.
    bound : str
        What bounds ``slots``: ``cpu``, ``mem``, ``gres/gpu``, ``gres/gpu:type``, ``jobs``,
        ``submit``, another TRES, a budget or ``partition``.
    partition : str or None
        None where Slurm's default is taken.
    """

    account: str
    qos: str
    kind: DeviceKind
    slots: int
    free: int
    bound: str
    partition: str | None = None

    @property
    def target(self) -> Target:
        """Where its jobs go."""
        return Target(self.account, self.qos, self.partition, self.kind)

    @property
    def name(self) -> str:
        """Name of the Snakemake resource that counts the slots of its account and kind."""
        return pool_name(self.account, self.kind)


class Asked(NamedTuple):
    """A target, its account and partition, and the largest job that may go there."""

    target: Target
    account: Account
    where: Partition | None
    request: ResourceRequest


def make_pools(
    asked: Iterable[Asked],
    held_by_nodes: Callable[[Asked, bool], int | None],
    utilisation: float = UTILISATION,
    *,
    together: bool = False,
) -> list[Pool]:
    """Return the pools of some targets; one without slots is left out.

    Those of an account come one after the other, GPU jobs first, each counted in what those before
    it leave, in every TRES. A limit of 0 means no limit to Snakemake, hence no pool of 0 slots.
    What is up and free of the nodes bounds every account; those that nothing else bounds share it.

    Parameters
    ----------
    held_by_nodes : callable
        How many such jobs the nodes there hold, now or at all; None where they are not known.
    together : bool
        Each account gets what those before it leave, instead of all that it may have alone.
    """
    pools: list[Pool] = []
    taken, taken_now, held = _Taken(), _Taken(), Counter[tuple[object, ...]]()
    for one in asked:
        target, account, where, request = one
        if not (pools and pools[-1].account == target.account):
            held = Counter()
            taken, taken_now = (taken, taken_now) if together else (_Taken(), _Taken())
        share = utilisation if target.device == "cpu" else 1.0
        slots, free, bound = _slots(account, where, request, share, taken, taken_now)
        most, now = held_by_nodes(one, False), held_by_nodes(one, True)
        if most is not None and now is not None:
            place = target.partition, target.device
            most, now = most - held[place, False], now - held[place, True]
            free = max(0, min(free, now))
            slots, bound = (max(0, most), _PARTITION) if most < slots else (slots, bound)
            held.update({(place, False): slots, (place, True): free})
        if slots:
            taken.add(account, where, tres_of(request, slots, where))
            taken_now.add(account, where, tres_of(request, free, where))
            pools.append(
                Pool(target.account, target.qos, target.device, slots, free, bound,
                     target.partition)
            )  # fmt: skip
    return _shared_out(pools)


def free_now(
    asked: Iterable[Asked],
    held_by_nodes: Callable[[Asked, bool], int | None],
    utilisation: float = UTILISATION,
) -> dict[Target, int]:
    """Return how many jobs fit now at each target that has room, counted as in :func:`make_pools`.

    Where accounts that come before fill the nodes of a partition several times, no more is counted.
    """
    found: dict[Target, int] = {}
    taken, held, filled = _Taken(), Counter[object](), Counter[object]()
    before = None
    for one in asked:
        target, account, where, request = one
        if target.account != before:
            before, taken, held = target.account, _Taken(), Counter()
        place, now = (target.partition, target.device), held_by_nodes(one, True)
        if now is not None and (now <= held[place] or filled[place] >= _FILLED * now):
            continue
        share = utilisation if target.device == "cpu" else 1.0
        free = _fit(account, where, request, share, taken, now=True)[0]
        if (
            not free
            and share < 1
            and not _fit(account, where, request, share, _Taken(), now=False)[0]
        ):
            # the share of an account must not keep out the one job that it holds
            free = min(1, _fit(account, where, request, 1.0, taken, now=True)[0])
        if free and now is not None:
            free = min(free, now - held[place])
        if free:
            found[target] = free
            held[place] += free
            filled[place] += free
            taken.add(account, where, tres_of(request, free, where))
    return found


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
    request: ResourceRequest,
    share: float,
    taken: _Taken,
    taken_now: _Taken,
) -> tuple[int, int, str]:
    """Return how many jobs an account's limits hold, how many of them now, and what bounds them."""
    slots, bound = _fit(account, where, request, share, taken, now=False)
    if not slots:  # the share of an account must not keep out the one job that it holds
        share = 1.0
        slots = min(1, _fit(account, where, request, share, taken, now=False)[0])
    return slots, min(slots, _fit(account, where, request, share, taken_now, now=True)[0]), bound


def _shared_out(pools: Sequence[Pool]) -> list[Pool]:
    """Return the pools; those that only a partition bounds share its size."""
    together = Counter((p.kind, p.partition) for p in pools if p.bound == _PARTITION)
    found = []
    for pool in pools:
        if pool.bound == _PARTITION:
            slots = max(1, -(-pool.slots // together[pool.kind, pool.partition]))
            pool = replace(pool, slots=slots, free=min(pool.free, slots))
        found.append(pool)
    return found


def total_slots(pools: Sequence[Pool], kind: DeviceKind | None = None) -> int:
    """Return the jobs that fit at once, of one device kind or of both.

    >>> gpu = Pool("lab", "normal", "gpu", 2, 2, "mem")
    >>> pools = [gpu, Pool("lab", "normal", "cpu", 8, 6, "cpu")]
    >>> total_slots(pools), total_slots(pools, "gpu")
    (10, 2)
    """
    return sum(pool.slots for pool in pools if kind in (None, pool.kind))


def _fit(
    account: Account,
    partition: Partition | None,
    request: ResourceRequest,
    share: float,
    taken: _Taken,
    *,
    now: bool,
) -> tuple[int, str]:
    """Return how many jobs fit after those counted before, and what bounds them, GPUs first."""
    wanted = {tres: n for tres, n in tres_of(request, 1, partition).items() if n > 0}
    most = {tres: largest(account, partition, tres) for tres in limited_tres(account, partition)}
    for tres, n in most.items():
        if n is not None and wanted.get(tres, 0) > n:
            return 0, tres

    def jobs_in(limit: int, name: str, tres: str, used: int = 0, part: float = share) -> int:
        free = limit * (part if tres == "cpu" else 1.0) - used - taken.of(name, tres)
        return max(0, math.floor(free / wanted[tres] + 1e-9))

    counts: dict[str, int] = {}
    for scope in account.within(partition).scopes:
        for tres in scope.limit.keys() & most.keys() & wanted.keys():
            spent = is_budget(tres) and not tres.endswith("/running")  # on an empty cluster too
            used = (scope.used or {}).get(tres, 0) if now or spent else 0
            part = 1.0 if scope.cap else share
            jobs = jobs_in(scope.limit[tres], scope.name, tres, used, part)
            counts[tres] = min(jobs, counts.get(tres, jobs))
    size = [
        jobs_in(partition.tres[tres], _size_of(partition), tres)
        for tres in ON_NODES
        if partition is not None and tres in partition.tres and tres in wanted
    ]
    counts[_PARTITION] = min(size, default=_MOST_SLOTS)

    def rank(name: str) -> tuple[int, bool, bool, bool, bool, str]:
        gpus = name.startswith("gres/")
        return counts[name], name == _PARTITION, is_budget(name), name in JOBS, not gpus, name

    bound = min(counts, key=rank)
    return counts[bound], bound
