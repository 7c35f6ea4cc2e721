"""What fits where now, in every TRES: limits less live use less what waits already (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.placement.pools import Device, Pool, Sharing, make_pools, may_use, needs
from tilewright.placement.shapes import Shape
from tilewright.slurm.accounts import COUNTED, Account
from tilewright.slurm.jobs import GROUP_LIMIT, SlurmJob
from tilewright.slurm.records import Partition, Tres


@dataclass(frozen=True)
class Claim:
    """Room on an account that is promised but not in use yet."""

    account: str
    tres: Mapping[str, int]


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
    closed: Mapping[tuple[str, Device], str]
    mode: Sharing
    utilisation: float
    partitions: Mapping[Device, Partition | None]

    def pools(self, shapes: Mapping[Device, Shape]) -> list[Pool]:
        """Return the pools for jobs of these shapes; one that is closed has nothing free."""
        found = make_pools(
            self.accounts,
            {kind: shape for kind, shape in shapes.items() if self.has(kind)},
            mode=self.mode,
            utilisation=self.utilisation,
            partitions=self.partitions,
        )
        return [replace(p, free=0) if (p.account, p.device) in self.closed else p for p in found]

    def has(self, kind: Device) -> bool:
        """Return whether there is a partition for a device kind; for CPUs Slurm has a default."""
        return kind == "cpu" or self.partitions.get(kind) is not None

    def fits(self, account: str, kind: Device, shape: Shape) -> bool:
        """Return whether one more job fits, all CPUs of the account counted."""
        if (account, kind) in self.closed or not self.has(kind):
            return False
        here = next((a for a in self.accounts if a.name == account), None)
        where = self.partitions.get(kind)
        if here is None or (where is not None and not may_use(here, where)):
            return False
        wanted = needs(shape, 1)
        free = {tres: here.free(tres) for tres in COUNTED}
        if any(n is not None and wanted[tres] > n for tres, n in free.items()):
            return False
        running = max(here.jobs_mine or 0, here.jobs_used or 0)
        return all(most is None or running < most for most in (here.jobs, here.submit))

    def take(self, account: str, shape: Shape) -> Room:
        """Return the room that is left when one more job has its place."""
        claim = Claim(account, needs(shape, 1))
        own = {a.name: a for a in self.accounts}
        return replace(self, accounts=tuple(_claimed(a, [claim], own) for a in self.accounts))


def room_now(
    accounts: Iterable[Account],
    waiting: Iterable[SlurmJob],
    sent: Iterable[Claim],
    *,
    mode: Sharing,
    utilisation: float,
    partitions: Mapping[Device, Partition | None],
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
    claims = [Claim(job.account, {**job.tres, "jobs": 1}) for job in pending] + list(sent)
    closed: dict[tuple[str, Device], str] = {}
    for account in known:
        if account.unknown_use:
            why = f"use of {', '.join(account.unknown_use)} is not known"
            closed[account.name, "gpu"] = closed[account.name, "cpu"] = why
    for job in pending:
        if GROUP_LIMIT.match(job.reason):
            why = f"job {job.id} pends there: {job.reason}"
            closed[job.account, "gpu"] = why
            if "GRES" not in job.reason.upper():
                closed[job.account, "cpu"] = why
    return Room(
        tuple(_claimed(account, claims, own) for account in known),
        closed,
        mode,
        utilisation,
        partitions,
    )


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
