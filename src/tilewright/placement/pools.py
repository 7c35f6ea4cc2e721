"""How many jobs fit on each account: its GPU and CPU slots, and what bounds them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tilewright.placement.shapes import Shape
from tilewright.slurm.accounts import COUNTED, Account
from tilewright.slurm.records import Partition

Device = Literal["gpu", "cpu"]
Sharing = Literal["independent", "shared"]
_DEVICES: tuple[Device, ...] = ("gpu", "cpu")

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
    device : {"gpu", "cpu"}
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
    device: Device
    slots: int
    free: int
    bound: str

    @property
    def name(self) -> str:
        """Name of the Snakemake resource that counts its slots."""
        return pool_name(self.account, self.device)


def pool_name(account: str, device: Device) -> str:
    """Return the name of the Snakemake resource that counts a pool's slots."""
    safe = "".join(c if c.isalnum() else "_" for c in account)
    return f"{safe}_{device}"


def sharing(
    mode: Literal["independent", "shared", "auto"],
    partitions: Mapping[Device, Partition | None],
) -> tuple[Sharing, str]:
    """Return whether GPU and CPU jobs draw on the same limits, and why.

    Parameters
    ----------
    mode : {"independent", "shared", "auto"}
        ``auto`` looks whether both partitions have a QOS of their own, which then counts.
    partitions : mapping
        Partition of each device kind, None where it is not known.
    """
    if mode != "auto":
        return mode, "as configured"
    own = {device: p.qos if p else None for device, p in partitions.items()}
    gpu, cpu = own.get("gpu"), own.get("cpu")
    if gpu and cpu and gpu != cpu:
        return "independent", f"partition QOS {gpu} counts GPU jobs and {cpu} CPU jobs"
    return "shared", "GPU and CPU jobs draw on the QOS of the account"


def make_pools(
    accounts: Iterable[Account],
    shapes: Mapping[Device, Shape],
    *,
    mode: Sharing = "shared",
    utilisation: float = UTILISATION,
    partitions: Mapping[Device, Partition | None] | None = None,
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
    for account in accounts:
        taken: dict[str, int] = {}
        taken_now: dict[str, int] = {}
        for device in _DEVICES:
            if device not in shapes:
                continue
            shape, share = shapes[device], utilisation if device == "cpu" else 1.0
            where = (partitions or {}).get(device)
            if where is not None and not may_use(account, where):
                continue
            rooms = _rooms(account, where, share, taken, now=False)
            slots, bound = _fit(rooms, shape)
            if not slots:  # the share of an account must not keep out the one job that it holds
                share = 1.0
                slots = min(1, _fit(_rooms(account, where, share, taken, now=False), shape)[0])
            free, _ = _fit(_rooms(account, where, share, taken_now, now=True), shape)
            free = min(free, slots)
            if mode == "shared":
                taken, taken_now = needs(shape, slots), needs(shape, free)
            if slots:
                pools.append(Pool(account.name, account.qos, device, slots, free, bound))
    return pools


def may_use(account: Account, partition: Partition) -> bool:
    """Return whether an account's jobs may go to a partition."""
    allowed = partition.allow_accounts is None or account.name in partition.allow_accounts
    return allowed and (not account.partitions or partition.name in account.partitions)


def total_slots(pools: Sequence[Pool], device: Device | None = None) -> int:
    """Return the jobs that fit at once, of one device kind or of both."""
    return sum(pool.slots for pool in pools if device in (None, pool.device))


def too_big(account: Account, shape: Shape) -> str | None:
    """Return why a job of this shape would pend on an account for ever, None if it fits."""
    for tres, needed in needs(shape, 1).items():
        for limit in (account.limit.get(tres), account.limit_per_user.get(tres)):
            if limit is not None and needed > limit and tres in COUNTED:
                return f"it asks for {tres}={needed} and account {account.name} has {limit}"
    return None


def needs(shape: Shape, jobs: int) -> dict[str, int]:
    """Return what so many jobs of a shape count as, in every unit that is limited."""
    return {
        "cpu": jobs * shape.cpus,
        "mem": jobs * shape.mem_mb,
        "gres/gpu": jobs * shape.gpus,
        "jobs": jobs,
        "submit": jobs,
    }


def _rooms(
    account: Account,
    partition: Partition | None,
    utilisation: float,
    taken: Mapping[str, int],
    *,
    now: bool,
) -> dict[str, float]:
    """Return the room in each counted unit; those without a limit are absent."""
    rooms: dict[str, float] = {}
    for tres in COUNTED:
        share = utilisation if tres == "cpu" else 1.0
        limits = [
            (limit[tres], (used or {}).get(tres, 0) if now else 0)
            for limit, used in (
                (account.limit, account.used),
                (account.limit_per_user, account.mine),
            )
            if tres in limit
        ]
        if partition is not None and tres in partition.tres:
            limits.append((partition.tres[tres], 0))
        if limits:
            rooms[tres] = min(share * limit - used for limit, used in limits) - taken.get(tres, 0)
    for name, most in (("jobs", account.jobs), ("submit", account.submit)):
        if most is not None:
            used = max(account.jobs_mine or 0, account.jobs_used or 0) if now else 0
            rooms[name] = most - used - taken.get(name, 0)
    return rooms


def _fit(rooms: Mapping[str, float], shape: Shape) -> tuple[int, str]:
    """Return how many jobs fit, and what bounds them; GPUs first where several do."""
    wanted = needs(shape, 1)
    counts = {
        name: max(0, math.floor(room / wanted[name] + 1e-9))
        for name, room in rooms.items()
        if wanted[name] > 0
    }
    if not counts:
        return _MOST_SLOTS, "partition"
    order = ("gres/gpu", "cpu", "mem", "jobs", "submit")
    bound = min(counts, key=lambda name: (counts[name], order.index(name)))
    return counts[bound], bound
