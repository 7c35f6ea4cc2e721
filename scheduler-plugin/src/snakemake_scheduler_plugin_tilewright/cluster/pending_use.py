"""What is promised on accounts and nodes but not in use yet (pure)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..slurm.accounts import Account
from ..slurm.jobs import SlurmJob
from ..slurm.records import Partition
from .request import ResourceRequest
from .tres import ON_NODES, tres_of


@dataclass(frozen=True)
class PendingUse:
    """What one job will use of an account, in a partition.

    ``request`` says which nodes it may be on, None where that is not known; ``qos`` is the one
    that it names, empty for the account's own.
    """

    account: str
    tres: Mapping[str, int]
    partition: str | None = None
    request: ResourceRequest | None = None
    qos: str = ""


def use_of_pending(job: SlurmJob, where: Partition | None) -> PendingUse:
    """Return what a job that pends will use; before it runs squeue does not show whole nodes."""
    cpus, mem_mb, gpus = (job.tres.get(tres, 0) for tres in ON_NODES)
    wanted = tres_of(ResourceRequest(cpus, mem_mb, gpus, job.limit_min or 0), where)
    own = {tres: max(n, wanted[tres]) for tres, n in job.tres.items()}
    tres = {**wanted, **own, "submit": 0}  # it counts as submitted already
    return PendingUse(job.account, tres, job.partition, qos=job.qos)


def with_use(accounts: tuple[Account, ...], uses: Iterable[PendingUse]) -> tuple[Account, ...]:
    """Return the accounts with what is promised counted as in use, by all that it counts on."""
    first = {account.name: account for account in reversed(accounts)}
    own = {(account.name, account.qos): account for account in accounts}
    more: dict[str, Counter[str]] = {}
    for use in uses:
        if account := own.get((use.account, use.qos), first.get(use.account)):
            for name in account.counted_on(use.partition, use.qos):
                more.setdefault(name, Counter()).update(use.tres)
    if not more:
        return accounts
    return tuple(_with_more(account, more) for account in accounts)


def _with_more(account: Account, more: Mapping[str, Counter[str]]) -> Account:
    """Return an account with more in use; the same where nothing of it is."""
    limits = {
        where: replace(
            one,
            scopes=tuple(
                scope.with_more(more[scope.name]) if scope.name in more else scope
                for scope in one.scopes
            ),
        )
        for where, one in account.limits.items()
        if any(scope.name in more for scope in one.scopes)
    }
    return replace(account, limits={**account.limits, **limits}) if limits else account
