"""How many jobs each account holds, all in all and now (pure)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

from .request import KINDS, DeviceKind, Target, pool_name
from .room import PARTITION, Room
from .state import ClusterState


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


def make_pools(
    state: ClusterState, kinds: Iterable[DeviceKind] = KINDS, *, together: bool = False
) -> list[Pool]:
    """Return the pools for the largest jobs of the site; one without slots is left out.

    Those of an account come one after the other, GPU jobs first, each counted in what those before
    it leave, in every TRES. A limit of 0 means no limit to Snakemake, hence no pool of 0 slots.
    What is up and free of the nodes bounds every account; those that nothing else bounds share it.

    Parameters
    ----------
    together : bool
        Each account gets what those before it leave, instead of all that it may have alone.
    """
    largest = {kind: state.largest_jobs[kind] for kind in kinds if kind in state.largest_jobs}
    targets = state.leaving_gpus(state.targets({k: one.partition for k, one in largest.items()}))
    empty, busy = Room(state, empty=True), Room(state)
    pools: list[Pool] = []
    for _, own in groupby(targets, key=attrgetter("account")):
        whole, now = (empty, busy) if together else (empty.copy(), busy.copy())
        for target in own:
            request = largest[target.device]
            slots, bound = whole.count(target, request)
            free = min(slots, now.count(target, request)[0])
            whole.take(target, request, slots)
            now.take(target, request, free)
            if slots:
                pools.append(Pool(target.account, target.qos, target.device, slots, free, bound,
                                  target.partition))  # fmt: skip
    return _shared_out(pools)


def _shared_out(pools: Sequence[Pool]) -> list[Pool]:
    """Return the pools; those that only a partition bounds share its size."""
    together = Counter((p.kind, p.partition) for p in pools if p.bound == PARTITION)
    found = []
    for pool in pools:
        if pool.bound == PARTITION:
            slots = max(1, -(-pool.slots // together[pool.kind, pool.partition]))
            pool = replace(pool, slots=slots, free=min(pool.free, slots))
        found.append(pool)
    return found


def slots_by_name(pools: Iterable[Pool]) -> dict[str, tuple[str, DeviceKind, int]]:
    """Return account, kind and slots of pools by name, the targets of one together."""
    found: dict[str, tuple[str, DeviceKind, int]] = {}
    for pool in pools:
        more = found[pool.name][2] if pool.name in found else 0
        found[pool.name] = pool.account, pool.kind, pool.slots + more
    return found


def total_slots(pools: Sequence[Pool], kind: DeviceKind | None = None) -> int:
    """Return the jobs that fit at once, of one device kind or of both.

    >>> gpu = Pool("lab", "normal", "gpu", 2, 2, "mem")
    >>> pools = [gpu, Pool("lab", "normal", "cpu", 8, 6, "cpu")]
    >>> total_slots(pools), total_slots(pools, "gpu")
    (10, 2)
    """
    return sum(pool.slots for pool in pools if kind in (None, pool.kind))
