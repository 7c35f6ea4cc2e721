"""How many jobs fit on each account: its GPU and CPU slots, and what bounds them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tilewright.placement.bounds import bounds, largest, may_use, needs
from tilewright.placement.jobs import KINDS, Kind, Shape
from tilewright.slurm.accounts import COUNTED, Account
from tilewright.slurm.records import Partition

Sharing = Literal["independent", "shared"]

#: Share of an account's CPUs that CPU jobs may fill, so that labmates and the GPU jobs' own CPUs
#: find room: 104 CPUs in jobs of 8 are then 11 slots.
UTILISATION = 0.85
#: Jobs of a pool whose account, partition and user know no limit at all.
_MOST_SLOTS = 1000


@dataclass(frozen=True)
class Pool:
    """Room of one account for jobs of one device kind.

    Attributes
    ----------
    account, qos : str
    kind : {"gpu", "cpu"}
    slots : int
        Jobs that its limits allow.
    free : int
        Jobs that fit now beside what is in use.
    bound : str
        What bounds ``slots``: ``cpu``, ``mem``, ``gres/gpu``, ``jobs``, ``submit`` or
        ``partition``.
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
    """Return the name of the Snakemake resource that counts a pool's slots."""
    safe = "".join(c if c.isalnum() else "_" for c in account)
    return f"{safe}_{kind}"


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
    if gpu and cpu and gpu.qos != cpu.qos and gpu.limit and cpu.limit:
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
            slots, bound = _fit(account, where, shape, share, taken, now=False)
            if not slots:  # the share of an account must not keep out the one job that it holds
                share = 1.0
                slots = min(1, _fit(account, where, shape, share, taken, now=False)[0])
            free = min(slots, _fit(account, where, shape, share, taken_now, now=True)[0])
            if mode == "shared":
                for counted, jobs in ((taken, slots), (taken_now, free)):
                    counted.update({t: n for t, n in needs(shape, jobs).items() if t not in apart})
            if slots:
                pools.append(Pool(account.name, account.qos, kind, slots, free, bound))
    return pools


def _apart(account: Account, partitions: Mapping[Kind, Partition | None]) -> frozenset[str]:
    """Return the TRES that the CPU partition's own QOS counts: GPU jobs take nothing of them."""
    gpu, cpu = partitions.get("gpu"), partitions.get("cpu")
    if account.before_partition or gpu is None or cpu is None or gpu.qos == cpu.qos:
        return frozenset()
    return frozenset(cpu.limit)


def total_slots(pools: Sequence[Pool], kind: Kind | None = None) -> int:
    """Return the jobs that fit at once, of one device kind or of both."""
    return sum(pool.slots for pool in pools if kind in (None, pool.kind))


def _rooms(
    account: Account, partition: Partition | None, share: float, *, now: bool
) -> dict[str, float]:
    """Return the room in each counted unit; those without a limit are absent."""
    rooms: dict[str, float] = {}
    for tres in COUNTED:
        part = share if tres == "cpu" else 1.0
        left = [part * n - (used if now else 0) for n, used in bounds(account, partition, tres)]
        if partition is not None and tres in partition.tres:
            left.append(part * partition.tres[tres])
        if left:
            rooms[tres] = min(left)
    for name, most in (("jobs", account.jobs), ("submit", account.submit)):
        if most is not None:
            used = max(account.jobs_mine or 0, account.jobs_used or 0) if now else 0
            rooms[name] = most - used
    return rooms


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
    wanted = needs(shape, 1)
    most = {tres: largest(account, partition, tres) for tres in COUNTED}
    if any(n is not None and wanted[tres] > n for tres, n in most.items()):
        return 0, next(t for t, n in most.items() if n is not None and wanted[t] > n)
    counts = {
        name: max(0, math.floor((room - taken.get(name, 0)) / wanted[name] + 1e-9))
        for name, room in _rooms(account, partition, share, now=now).items()
        if wanted[name] > 0
    }
    if not counts:
        return _MOST_SLOTS, "partition"
    order = ("gres/gpu", "cpu", "mem", "jobs", "submit")
    bound = min(counts, key=lambda name: (counts[name], order.index(name)))
    return counts[bound], bound
