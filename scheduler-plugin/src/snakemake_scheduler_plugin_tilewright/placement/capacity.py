"""What fits on each account now: limits less live use, pending jobs and what is sent (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from snakemake_scheduler_plugin_tilewright.placement.jobs import KINDS, Kind, Place, Shape
from snakemake_scheduler_plugin_tilewright.placement.limits import (
    Pool,
    largest,
    left,
    limited,
    make_pools,
    may_use,
    partition_of,
    too_big,
    too_long,
    unknown_use,
)
from snakemake_scheduler_plugin_tilewright.placement.needs import (
    ON_NODES,
    in_hours,
    may_hold,
    needs,
    room_on,
)
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob, why_pending
from snakemake_scheduler_plugin_tilewright.slurm.nodes import Node, placed
from snakemake_scheduler_plugin_tilewright.slurm.records import BUDGETS, Partition


@dataclass(frozen=True)
class Claim:
    """What is promised on an account, in a partition, but not in use yet.

    ``shape`` says which nodes it may be on, None where that is not known; ``qos`` is the one that
    it names, empty for the account's own.
    """

    account: str
    tres: Mapping[str, int]
    partition: str | None = None
    shape: Shape | None = None
    qos: str = ""


def claim_of(place: Place, where: Partition | None) -> Claim:
    """Return what a job at a place takes of its account."""
    return Claim(place.account, needs(place.shape, 1, where), place.partition, place.shape)


def claim_at(account: str, shape: Shape, where: Partition | None) -> Claim:
    """Return what a job of a shape would take of an account in a partition."""
    return Claim(account, needs(shape, 1, where), where.name if where else None, shape)


@dataclass(frozen=True)
class Capacity:
    """The free capacity of all accounts now.

    Attributes
    ----------
    accounts : tuple of Account
        With live use, and claims counted as in use.
    closed : dict of (str, str) to str
        Account and device kind that take none now, and why.
    utilisation, partitions
        As for :func:`make_pools`.
    nodes : tuple of Node or None
        With claims taken off what is free; None where they are not known.
    avoided : dict of (str, str) to str
        Account and device kind where own jobs pended in vain: nothing is sent there now but what
        can run nowhere else.
    invalid : set of (str, str)
        Those that take no job before limits or associations change.
    licences : dict of str to int or None
        How many of each there are; None where that is not known.
    named : dict of str to Partition
        All partitions that a rule may name.
    """

    accounts: tuple[Account, ...]
    closed: Mapping[tuple[str, Kind], str]
    utilisation: float
    partitions: Mapping[Kind, Partition | None]
    nodes: tuple[Node, ...] | None = None
    avoided: Mapping[tuple[str, Kind], str] = field(default_factory=dict)
    invalid: frozenset[tuple[str, Kind]] = frozenset()
    licences: Mapping[str, int] | None = None
    named: Mapping[str, Partition] = field(default_factory=dict)
    #: Jobs that nodes hold, by what was asked: 10,000 ready jobs are of few shapes.
    _rooms: dict[tuple[str, Shape, bool], int] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def pools(self, shapes: Mapping[Kind, Shape]) -> list[Pool]:
        """Return the pools for jobs of these shapes; one that is closed has nothing free."""
        found = make_pools(
            self.accounts,
            {kind: shape for kind, shape in shapes.items() if self.has_partition(kind, shape)},
            utilisation=self.utilisation,
            partitions={kind: self.where(kind, shape) for kind, shape in shapes.items()},
            nodes=self.nodes,
        )
        shut = {**self.closed, **self.avoided}
        return [replace(p, free=0) if (p.account, p.kind) in shut else p for p in found]

    def where(self, kind: Kind, shape: Shape) -> Partition | None:
        """Return the partition of a job; see :func:`partition_of`."""
        return partition_of(kind, shape.partition, self.partitions, self.named)

    def has_partition(self, kind: Kind, shape: Shape) -> bool:
        """Return whether there is a partition for a job; for CPUs Slurm has a default."""
        return kind == "cpu" or bool(shape.partition) or self.partitions.get(kind) is not None

    def fits(self, account: str, kind: Kind, shape: Shape) -> bool:
        """Return whether one more job fits now, all CPUs of the account counted."""
        room = self.on_nodes(kind, shape, now=True)
        if room == 0 or (account, kind) in self.avoided:
            return False
        return self.may_queue(account, kind, shape)

    def on_nodes(self, kind: Kind, shape: Shape, *, now: bool) -> int | None:
        """Return how many jobs the nodes of its partition hold; None where they are not known."""
        where = self.where(kind, shape)
        if self.nodes is None or where is None:
            return None
        asked = where.name, shape, now
        if asked not in self._rooms:
            self._rooms[asked] = room_on(self.nodes, where, shape, now=now)
        return self._rooms[asked]

    def may_queue(self, account: str, kind: Kind, shape: Shape) -> bool:
        """Return whether no limit keeps one more job from starting once a node has room for it."""
        if (account, kind) in self.closed or not self.has_partition(kind, shape):
            return False
        if self.on_nodes(kind, shape, now=False) == 0:
            return False
        here, where = self.account(account), self.where(kind, shape)
        if here is None or not may_use(here, where) or too_long(here, shape, where):
            return False
        if shape.partition and unknown_use(here, where):
            return False
        wanted = needs(shape, 1, where)
        for tres in limited(here, where):
            free = (left(here, where, tres), largest(here, where, tres))
            if any(n is not None and wanted[tres] > n for n in free):
                return False
        return True

    def may_ever(self, account: str, kind: Kind, shape: Shape) -> bool:
        """Return whether a place may take a job at some time, however busy it is now."""
        here, where = self.account(account), self.where(kind, shape)
        if here is None or (account, kind) in self.invalid or not self.has_partition(kind, shape):
            return False
        if not may_use(here, where):
            return False
        return too_big(here, shape, where) is None and self.some_node_holds(kind, shape)

    def some_node_holds(self, kind: Kind, shape: Shape) -> bool:
        """Return whether a node of its partition is large enough, were it up and free."""
        where = self.where(kind, shape)
        if self.nodes is None or where is None:
            return True
        up = [replace(node, up=True) for node in self.nodes]
        return room_on(up, where, shape, now=False) > 0

    def budgeted(self) -> bool:
        """Return whether a budget bounds any account."""
        return any(
            name in BUDGETS
            for account in self.accounts
            for where in self.partitions.values()
            for name in limited(account, where)
        )

    def short_of(self, account: str, kind: Kind, shape: Shape) -> str:
        """Return what is left of a budget that cannot end a job; empty if none is too small."""
        here, where = self.account(account), self.where(kind, shape)
        wanted = needs(shape, 1, where)
        for tres in limited(here, where) if here else ():
            rest = left(here, where, tres) if here and tres in BUDGETS else None
            if rest is not None and wanted[tres] > rest:
                return f"{in_hours(tres, rest)} on {account}"
        return ""

    def take(self, account: str, kind: Kind, shape: Shape) -> Capacity:
        """Return the capacity that is left when one more job has its place."""
        claim = claim_at(account, shape, self.where(kind, shape))
        return replace(
            self,
            accounts=_with_claims(self.accounts, [claim]),
            nodes=_on_nodes(self.nodes, [claim]),
        )

    def account(self, name: str) -> Account | None:
        """Return the account of a name, None where there is none."""
        return next((account for account in self.accounts if account.name == name), None)

    def without(self, kind: Kind, why: str) -> Capacity:
        """Return the capacity with a device kind closed on every account."""
        return replace(self, closed={**self.closed, **{(a.name, kind): why for a in self.accounts}})


def capacity_now(
    accounts: Iterable[Account],
    waiting: Iterable[SlurmJob],
    sent: Iterable[Claim],
    *,
    utilisation: float,
    partitions: Mapping[Kind, Partition | None],
    nodes: tuple[Node, ...] | None = None,
    licences: Mapping[str, int] | None = None,
    named: Mapping[str, Partition] | None = None,
    workdir: str = "",
) -> Capacity:
    """Return the capacity beside live use, own pending jobs, and those sent but not seen yet.

    Where use is not known nothing is taken. An account on which own jobs pend for a group
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
    utilisation, partitions, nodes
        As for :func:`make_pools`.
    licences : mapping, optional
        How many of each there are.
    named : mapping, optional
        All partitions that a rule may name.
    workdir : str
        Folder of the run: of jobs elsewhere it is said what the user may do.
    """
    accounts = tuple(accounts)
    own = {account.name: account for account in accounts}
    pending = [job for job in waiting if _may_start(job, own.get(job.account))]
    where = {p.name: p for p in partitions.values() if p is not None} | dict(named or {})
    claims = [_claim_of_pending(job, where.get(job.partition)) for job in pending]
    claims += sent
    return Capacity(
        _with_claims(accounts, claims),
        _closed(accounts, partitions, pending, workdir),
        utilisation,
        partitions,
        _on_nodes(nodes, claims),
        licences=licences,
        named=named or {},
    )


def _claim_of_pending(job: SlurmJob, where: Partition | None) -> Claim:
    """Return what a job that pends will take; before it runs squeue does not show whole nodes.

    It is in the queue already, for limits of what may be submitted.
    """
    cpus, mem_mb, gpus = (job.tres.get(tres, 0) for tres in ("cpu", "mem", "gres/gpu"))
    wanted = needs(Shape(cpus, mem_mb, gpus, job.limit_min or 0), 1, where)
    return Claim(job.account, {**wanted, "submit": 0}, job.partition, qos=job.qos)


def _closed(
    accounts: Sequence[Account],
    partitions: Mapping[Kind, Partition | None],
    pending: Iterable[SlurmJob],
    workdir: str,
) -> dict[tuple[str, Kind], str]:
    """Return the account and device kinds that take nothing now, and why."""
    closed: dict[tuple[str, Kind], str] = {}
    for account in accounts:
        for kind in KINDS:
            for name, unknown in unknown_use(account, partitions.get(kind)).items():
                why = f"use of {', '.join(unknown)} on {name} is not known"
                closed[account.name, kind] = why
    own_qos = {account.name: ("", account.qos) for account in accounts}
    for job in pending:
        if job.qos not in own_qos[job.account]:
            continue
        if why_pending(job.reason).obstacle in ("limit", "budget"):
            advice = "" if job.workdir == workdir else "; cancel it, or wait"
            why = f"your job {job.id} waits on {job.account}: {job.reason}{advice}"
            closed[job.account, "gpu"] = why
            if "GRES" not in job.reason.upper():
                closed[job.account, "cpu"] = why
    return closed


def _may_start(job: SlurmJob, account: Account | None) -> bool:
    """Return whether a job pends on an account of placement and may ever start there.

    One that asks for more than the limits themselves waits for ever and takes nothing from others.
    """
    if account is None or job.state not in ("PENDING", "CONFIGURING"):
        return False
    names = account.counted_on(job.partition, job.qos)
    return all(
        job.tres.get(tres, 0) <= most
        for holder in account.at(job.partition).holders
        if holder.name in names
        for tres, most in holder.limit.items()
    )


def _with_claims(accounts: tuple[Account, ...], claims: Iterable[Claim]) -> tuple[Account, ...]:
    """Return the accounts with what is promised counted as in use, by all that it counts on."""
    own = {account.name: account for account in accounts}
    more: dict[str, Counter[str]] = {}
    for claim in claims:
        if claim.account in own:
            for name in own[claim.account].counted_on(claim.partition, claim.qos):
                more.setdefault(name, Counter()).update(claim.tres)
    if not more:
        return accounts
    found = []
    for account in accounts:
        limits = {
            where: replace(
                one,
                holders=tuple(
                    holder.with_more(more[holder.name]) if holder.name in more else holder
                    for holder in one.holders
                ),
            )
            for where, one in account.limits.items()
        }
        found.append(replace(account, limits=limits))
    return tuple(found)


def _on_nodes(nodes: tuple[Node, ...] | None, claims: Iterable[Claim]) -> tuple[Node, ...] | None:
    """Return the nodes with what is promised, as Slurm would fill them."""
    if nodes is None:
        return None
    for claim in claims:
        wanted = {tres: n for tres, n in claim.tres.items() if tres in ON_NODES}
        may = [node.name for node in nodes if claim.shape is None or may_hold(node, claim.shape)]
        nodes = tuple(placed(nodes, claim.partition, wanted, may))
    return nodes
