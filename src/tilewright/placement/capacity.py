"""What fits where now, in every TRES: limits less live use less what waits already (pure)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.placement.bounds import largest, may_use, needs, unknown_use
from tilewright.placement.bounds import room as room_of
from tilewright.placement.jobs import KINDS, Kind, Shape
from tilewright.placement.pools import Pool, Sharing, make_pools
from tilewright.slurm.accounts import COUNTED, Account
from tilewright.slurm.jobs import GROUP_LIMIT, SlurmJob
from tilewright.slurm.records import Partition, Tres


@dataclass(frozen=True)
class Claim:
    """Room on an account, in a partition, that is promised but not in use yet."""

    account: str
    tres: Mapping[str, int]
    partition: str | None = None


@dataclass(frozen=True)
class Room:
    """The accounts that may take jobs now.

    Attributes
    ----------
    accounts : tuple of Account
        With live use and claims in ``used`` and ``mine``.
    closed : dict of (str, str) to str
        Account and device kind that take none now, and why.
    mode, utilisation, partitions
        As for :func:`~tilewright.placement.pools.make_pools`.
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
            {kind: shape for kind, shape in shapes.items() if self.has(kind)},
            mode=self.mode,
            utilisation=self.utilisation,
            partitions=self.partitions,
        )
        return [replace(p, free=0) if (p.account, p.kind) in self.closed else p for p in found]

    def has(self, kind: Kind) -> bool:
        """Return whether there is a partition for a device kind; for CPUs Slurm has a default."""
        return kind == "cpu" or self.partitions.get(kind) is not None

    def fits(self, account: str, kind: Kind, shape: Shape) -> bool:
        """Return whether one more job fits, all CPUs of the account counted."""
        if (account, kind) in self.closed or not self.has(kind):
            return False
        here = next((a for a in self.accounts if a.name == account), None)
        where = self.partitions.get(kind)
        if here is None or (where is not None and not may_use(here, where)):
            return False
        wanted = needs(shape, 1)
        for tres in COUNTED:
            free = (room_of(here, where, tres), largest(here, where, tres))
            if any(n is not None and wanted[tres] > n for n in free):
                return False
        running = max(here.jobs_mine or 0, here.jobs_used or 0)
        return all(most is None or running < most for most in (here.jobs, here.submit))

    def take(self, account: str, kind: Kind, shape: Shape) -> Room:
        """Return the room that is left when one more job has its place."""
        where = self.partitions.get(kind)
        claim = Claim(account, needs(shape, 1), where.name if where else None)
        own = {a.name: a for a in self.accounts}
        return replace(
            self,
            accounts=tuple(_claimed(a, [claim], own) for a in self.accounts),
            partitions=_with_claims(self.partitions, [claim]),
        )

    def free_cpus(self, account: Account) -> float:
        """Return the CPUs that are left for CPU jobs; infinite without a limit."""
        left = room_of(account, self.partitions.get("cpu"), "cpu")
        return math.inf if left is None else left


def room_now(
    accounts: Iterable[Account],
    waiting: Iterable[SlurmJob],
    sent: Iterable[Claim],
    *,
    mode: Sharing,
    utilisation: float,
    partitions: Mapping[Kind, Partition | None],
) -> Room:
    """Return the room beside live use, own pending jobs, and those sent but not seen yet.

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
        As for :func:`~tilewright.placement.pools.make_pools`.
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
    return Room(
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
