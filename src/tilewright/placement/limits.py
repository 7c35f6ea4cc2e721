"""Accounts, their limits and their use: the slots of each pool, and what fits now (pure).

A limit of the partition's QOS replaces the account's for the same TRES, as in Slurm; where the
account's QOS has the flag ``OverPartQOS`` it is the other way round. A cap of the site holds
beside both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.placement.jobs import KINDS, Kind, Place, Shape
from tilewright.slurm.accounts import COUNTED, Account
from tilewright.slurm.jobs import GROUP_LIMIT, SlurmJob
from tilewright.slurm.records import Partition, Tres


def needs(shape: Shape, jobs: int) -> dict[str, int]:
    """Return what so many jobs of a shape count as, in every unit that is limited."""
    return {
        "cpu": jobs * shape.cpus,
        "mem": jobs * shape.mem_mb,
        "gres/gpu": jobs * shape.gpus,
        "jobs": jobs,
        "submit": jobs,
    }


def bounds(account: Account, partition: Partition | None, tres: str) -> list[tuple[int, int]]:
    """Return limit and use of all that bounds a TRES; use that is not known counts as none."""
    holders = _holders(account, partition)
    found = [(h.limit[tres], (h.used or {}).get(tres, 0)) for h in holders if tres in h.limit][:1]
    found += [
        (h.limit_per_user[tres], (h.mine or {}).get(tres, 0))
        for h in holders
        if tres in h.limit_per_user
    ][:1]
    if account.limit_from.get(tres) == "cap":
        found.append((account.limit[tres], (account.used or {}).get(tres, 0)))
    return found


def left(account: Account, partition: Partition | None, tres: str) -> int | None:
    """Return what is left of a TRES, None where nothing limits it."""
    rests = [limit - used for limit, used in bounds(account, partition, tres)]
    return max(0, min(rests)) if rests else None


def largest(account: Account, partition: Partition | None, tres: str) -> int | None:
    """Return the most of a TRES that one job may ever have, None where nothing limits it."""
    limits = [limit for limit, _ in bounds(account, partition, tres)]
    own = [h.limit_per_job[tres] for h in _holders(account, partition) if tres in h.limit_per_job]
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
        and (not account.partitions or partition.name in account.partitions)
    )


def too_big(account: Account, shape: Shape, partition: Partition | None = None) -> str | None:
    """Return why a job of this shape would pend on an account for ever, None if it fits."""
    for tres, needed in needs(shape, 1).items():
        most = largest(account, partition, tres) if tres in COUNTED else None
        if most is not None and needed > most:
            return f"it asks for {tres}={needed} and account {account.name} has {most}"
    return None


def unknown_use(account: Account, partition: Partition | None) -> Iterable[str]:
    """Return the limited TRES whose use Slurm did not say."""
    for tres in COUNTED:
        holder = next((h for h in _holders(account, partition) if tres in h.limit), None)
        if holder is not None and tres not in (holder.used or {}):
            yield tres


def _holders(account: Account, partition: Partition | None) -> list[Account | Partition]:
    """Return those whose limits hold, the one that wins first."""
    if partition is None:
        return [account]
    return [account, partition] if account.before_partition else [partition, account]


Sharing = Literal["independent", "shared"]

#: Share of an account's CPUs that CPU jobs may fill, so that other users and the GPU jobs' own
#: CPUs fit beside them: 104 CPUs in jobs of 8 are then 11 slots.
UTILISATION = 0.85
#: Jobs of a pool whose account, partition and user know no limit at all.
_MOST_SLOTS = 1000


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


def _free_tres(
    account: Account, partition: Partition | None, share: float, *, now: bool
) -> dict[str, float]:
    """Return what is free in each counted unit; those without a limit are absent."""
    free: dict[str, float] = {}
    for tres in COUNTED:
        part = share if tres == "cpu" else 1.0
        rests = [part * n - (used if now else 0) for n, used in bounds(account, partition, tres)]
        if partition is not None and tres in partition.tres:
            rests.append(part * partition.tres[tres])
        if rests:
            free[tres] = min(rests)
    for name, most in (("jobs", account.jobs), ("submit", account.submit)):
        if most is not None:
            used = max(account.jobs_mine or 0, account.jobs_used or 0) if now else 0
            free[name] = most - used
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
    wanted = needs(shape, 1)
    most = {tres: largest(account, partition, tres) for tres in COUNTED}
    if any(n is not None and wanted[tres] > n for tres, n in most.items()):
        return 0, next(t for t, n in most.items() if n is not None and wanted[t] > n)
    counts = {
        name: max(0, math.floor((free - taken.get(name, 0)) / wanted[name] + 1e-9))
        for name, free in _free_tres(account, partition, share, now=now).items()
        if wanted[name] > 0
    }
    if not counts:
        return _MOST_SLOTS, "partition"
    order = ("gres/gpu", "cpu", "mem", "jobs", "submit")
    bound = min(counts, key=lambda name: (counts[name], order.index(name)))
    return counts[bound], bound


@dataclass(frozen=True)
class Claim:
    """What is promised on an account, in a partition, but not in use yet."""

    account: str
    tres: Mapping[str, int]
    partition: str | None = None


def claim_of(place: Place) -> Claim:
    """Return what a job at a place takes of its account."""
    return Claim(place.account, needs(place.shape, 1), place.partition)


@dataclass(frozen=True)
class Capacity:
    """The free capacity of all accounts now.

    Attributes
    ----------
    accounts : tuple of Account
        With live use and claims in ``used`` and ``mine``.
    closed : dict of (str, str) to str
        Account and device kind that take none now, and why.
    mode, utilisation, partitions
        As for :func:`~tilewright.placement.limits.make_pools`.
    """

    accounts: tuple[Account, ...]
    closed: Mapping[tuple[str, Kind], str]
    mode: Sharing
    utilisation: float
    partitions: Mapping[Kind, Partition | None]

    def pools(self, shapes: Mapping[Kind, Shape]) -> list[Pool]:
        """Return the pools for jobs of these shapes; one that is closed has nothing free."""
        found = make_pools(
            self.accounts,
            {kind: shape for kind, shape in shapes.items() if self.has_partition(kind)},
            mode=self.mode,
            utilisation=self.utilisation,
            partitions=self.partitions,
        )
        return [replace(p, free=0) if (p.account, p.kind) in self.closed else p for p in found]

    def has_partition(self, kind: Kind) -> bool:
        """Return whether there is a partition for a device kind; for CPUs Slurm has a default."""
        return kind == "cpu" or self.partitions.get(kind) is not None

    def fits(self, account: str, kind: Kind, shape: Shape) -> bool:
        """Return whether one more job fits, all CPUs of the account counted."""
        if (account, kind) in self.closed or not self.has_partition(kind):
            return False
        here = next((a for a in self.accounts if a.name == account), None)
        where = self.partitions.get(kind)
        if here is None or (where is not None and not may_use(here, where)):
            return False
        wanted = needs(shape, 1)
        for tres in COUNTED:
            free = (left(here, where, tres), largest(here, where, tres))
            if any(n is not None and wanted[tres] > n for n in free):
                return False
        running = max(here.jobs_mine or 0, here.jobs_used or 0)
        return all(most is None or running < most for most in (here.jobs, here.submit))

    def take(self, account: str, kind: Kind, shape: Shape) -> Capacity:
        """Return the capacity that is left when one more job has its place."""
        where = self.partitions.get(kind)
        claim = Claim(account, needs(shape, 1), where.name if where else None)
        own = {a.name: a for a in self.accounts}
        return replace(
            self,
            accounts=tuple(_claimed(a, [claim], own) for a in self.accounts),
            partitions=_with_claims(self.partitions, [claim]),
        )

    def without(self, kind: Kind, why: str) -> Capacity:
        """Return the capacity with a device kind closed on every account."""
        return replace(self, closed={**self.closed, **{(a.name, kind): why for a in self.accounts}})

    def free_cpus(self, account: Account) -> float:
        """Return the CPUs that are left for CPU jobs; infinite without a limit."""
        cpus = left(account, self.partitions.get("cpu"), "cpu")
        return math.inf if cpus is None else cpus


def capacity_now(
    accounts: Iterable[Account],
    waiting: Iterable[SlurmJob],
    sent: Iterable[Claim],
    *,
    mode: Sharing,
    utilisation: float,
    partitions: Mapping[Kind, Partition | None],
) -> Capacity:
    """Return the capacity beside live use, own pending jobs, and those sent but not seen yet.

    An account whose use is not known takes nothing. One on which own jobs pend for a group
    limit takes nothing more of the kind that waits, and nothing at all where CPUs or memory are
    what they wait for. A job that asks for more than the limit itself waits for ever and counts
    for nothing.

    Parameters
    ----------
    accounts : iterable of Account
        With live use.
    waiting : iterable of SlurmJob
        Own pending jobs, of every run.
    sent : iterable of Claim
        Jobs handed to sbatch that squeue does not show yet.
    mode, utilisation, partitions
        As for :func:`~tilewright.placement.limits.make_pools`.
    """
    known = [account for account in accounts if account.used is not None]
    own = {account.name: account for account in known}
    pending = [
        job
        for job in waiting
        if job.state in ("PENDING", "CONFIGURING")
        and (account := own.get(job.account)) is not None
        and job.qos in ("", account.qos)
        and _may_ever(job, account)
    ]
    claims = [Claim(job.account, {**job.tres, "jobs": 1}, job.partition) for job in pending]
    claims += sent
    return Capacity(
        tuple(_claimed(account, claims, own) for account in known),
        _closed(known, partitions, pending),
        mode,
        utilisation,
        _with_claims(partitions, claims),
    )


def _closed(
    accounts: Iterable[Account],
    partitions: Mapping[Kind, Partition | None],
    pending: Iterable[SlurmJob],
) -> dict[tuple[str, Kind], str]:
    """Return the account and device kinds that take nothing now, and why."""
    closed: dict[tuple[str, Kind], str] = {}
    for account in accounts:
        for kind in KINDS:
            if unknown := list(unknown_use(account, partitions.get(kind))):
                closed[account.name, kind] = f"use of {', '.join(unknown)} is not known"
    for job in pending:
        if GROUP_LIMIT.match(job.reason):
            why = f"job {job.id} pends there: {job.reason}"
            closed[job.account, "gpu"] = why
            if "GRES" not in job.reason.upper():
                closed[job.account, "cpu"] = why
    return closed


def _may_ever(job: SlurmJob, account: Account) -> bool:
    """Return whether a job asks for no more than the limits themselves."""
    return all(
        job.tres.get(tres, 0) <= most
        for limits in (account.limit, account.limit_per_user)
        for tres, most in limits.items()
    )


def _claimed(account: Account, claims: Iterable[Claim], own: Mapping[str, Account]) -> Account:
    """Return an account with what is promised on it, or on its QOS, counted as in use."""
    total: Counter[str] = Counter()
    for claim in claims:
        if claim.account in own and own[claim.account].qos == account.qos:
            total.update(claim.tres)
    if not total:
        return account
    return replace(
        account,
        used=_plus(account.used, total),
        mine=_plus(account.mine, total),
        jobs_used=(account.jobs_used or 0) + total["jobs"],
        jobs_mine=(account.jobs_mine or 0) + total["jobs"],
    )


def _plus(used: Tres | None, more: Mapping[str, int]) -> Tres:
    return {tres: (used or {}).get(tres, 0) + more.get(tres, 0) for tres in COUNTED}


def _with_claims(
    partitions: Mapping[Kind, Partition | None], claims: Iterable[Claim]
) -> dict[Kind, Partition | None]:
    """Return the partitions with what is promised on their QOS counted as in use."""
    claims = list(claims)
    qos = {p.name: p.qos for p in partitions.values() if p is not None and p.limit}
    found: dict[Kind, Partition | None] = {}
    for kind, where in partitions.items():
        total: Counter[str] = Counter()
        for claim in claims:
            if where is not None and claim.partition in qos and qos[claim.partition] == where.qos:
                total.update(claim.tres)
        if where is not None and total:
            used = None if where.used is None else _plus(where.used, total)
            where = replace(where, used=used, mine=_plus(where.mine, total))
        found[kind] = where
    return found
