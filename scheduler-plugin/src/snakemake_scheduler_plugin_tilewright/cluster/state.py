"""A cluster as one person may use it at one time: accounts, partitions, nodes, and what fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from ..errors import SlurmQueryError
from ..slurm.accounts import Account, LeftOut
from ..slurm.jobs import SlurmJob, why_pending
from ..slurm.nodes import Node
from ..slurm.records import BUDGETS, Partition
from .limits import largest, limited_tres, may_use, remaining, too_big, too_long, unknown_use
from .pending_use import PendingUse, may_start, use_of_pending, with_use, with_use_of_nodes
from .pools import UTILISATION, Pool, make_pools
from .request import KINDS, DeviceKind, ResourceRequest, Target
from .tres import fitting_jobs, in_hours, tres_of


@dataclass(frozen=True)
class Note:
    """What is old or unknown, and what it is about."""

    about: Literal["limits", "use", "partitions", "nodes", "site", "blocked"]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ClusterState:
    """A cluster at one time.

    Attributes
    ----------
    accounts : tuple of Account
        By name, with live use where Slurm reports it.
    partitions : dict of {"gpu", "cpu"} to Partition or None
        Where jobs of each device kind go that name no partition.
    named : dict of str to Partition
        All partitions that the person may use.
    nodes : tuple of Node or None
        None where Slurm did not say.
    licences : dict of str to int or None
        How many of each there are; None where Slurm did not say.
    utilisation : float
        Share of CPUs that CPU slots are counted from.
    largest_jobs : dict of {"gpu", "cpu"} to ResourceRequest
        Of each device kind that there is a partition for, by the site.
    user : str
        Whose it is.
    left_out : tuple of LeftOut
        Accounts that are not used.
    notes : tuple of Note
        What is old or unknown.
    closed : dict of Target to str
        Those that take no job now, and why.
    avoided : dict of Target to str
        Those where own jobs pended in vain: nothing is sent there now but what can run nowhere
        else.
    invalid : frozenset of Target
        Those that take no job before limits or associations change.
    """

    accounts: tuple[Account, ...]
    partitions: Mapping[DeviceKind, Partition | None] = field(default_factory=dict)
    named: Mapping[str, Partition] = field(default_factory=dict)
    nodes: tuple[Node, ...] | None = None
    licences: Mapping[str, int] | None = None
    utilisation: float = UTILISATION
    largest_jobs: Mapping[DeviceKind, ResourceRequest] = field(default_factory=dict)
    user: str = ""
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[Note, ...] = ()
    closed: Mapping[Target, str] = field(default_factory=dict)
    avoided: Mapping[Target, str] = field(default_factory=dict)
    invalid: frozenset[Target] = frozenset()
    #: Jobs that nodes hold, by what was asked: 10,000 ready jobs are of few requests.
    _fitting: dict[tuple[str, ResourceRequest, bool], int] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def partition(self, device: DeviceKind, name: str = "") -> Partition | None:
        """Return the partition of a name, without one that of a device kind.

        None where Slurm's default is taken, or nothing is known of the one that is named.
        """
        own = self.partitions.get(device)
        return own if not name or (own and own.name == name) else self.named.get(name)

    def where(self, target: Target) -> Partition | None:
        """Return the partition of a target; see :meth:`partition`."""
        return self.partition(target.device, target.partition or "")

    def target(self, account: Account, device: DeviceKind, partition: str = "") -> Target:
        """Return the target of an account, for jobs that name this partition or none."""
        own = self.partitions.get(device)
        name = partition or (own.name if own else None)
        return Target(account.name, account.qos, name, device)

    def targets(self) -> Iterator[Target]:
        """Yield the targets of all accounts, in the partition of each device kind."""
        for account in self.accounts:
            for device in KINDS:
                yield self.target(account, device)

    @cached_property
    def pools(self) -> tuple[Pool, ...]:
        """Slots of each account alone, GPU jobs first and CPU jobs in what they leave."""
        return tuple(self.slots(KINDS))

    def slots(self, kinds: Iterable[DeviceKind], *, together: bool = False) -> list[Pool]:
        """Return the slots for the largest jobs of these device kinds; see :func:`make_pools`."""
        largest = {kind: self.largest_jobs[kind] for kind in kinds if kind in self.largest_jobs}
        return self._pools(largest, together=together)

    def _pools(
        self, requests: Mapping[DeviceKind, ResourceRequest], *, together: bool = False
    ) -> list[Pool]:
        at = {kind: self.partition(kind, one.partition) for kind, one in requests.items()}
        return make_pools(
            self.accounts, requests, at, self.nodes, self.utilisation, together=together
        )

    def free_slots(self, requests: Mapping[DeviceKind, ResourceRequest]) -> list[Pool]:
        """Return the slots for jobs that ask for this; one that is closed has nothing free."""
        found = self._pools(
            {kind: one for kind, one in requests.items() if self.has_partition(kind, one)}
        )
        accounts = {account.name: account for account in self.accounts}
        return [
            replace(pool, free=0) if self.why_closed(target) or target in self.avoided else pool
            for pool in found
            for target in [
                self.target(accounts[pool.account], pool.kind, requests[pool.kind].partition)
            ]
        ]

    def has_partition(self, device: DeviceKind, request: ResourceRequest) -> bool:
        """Return whether there is a partition for a job; for CPUs Slurm has a default."""
        named = bool(request.partition)
        return device == "cpu" or named or self.partitions.get(device) is not None

    def why_closed(self, target: Target) -> str:
        """Return why a target takes no job now; empty if it may.

        What closes an account in the partition of a device kind closes its other partitions too.
        """
        account = self.account(target.account)
        own = self.target(account, target.device) if account else target
        return self.closed.get(target) or self.closed.get(own, "")

    def fits(self, target: Target, request: ResourceRequest) -> bool:
        """Return whether one more job fits now, all CPUs of the account counted."""
        room = self.on_nodes(target.device, request, now=True)
        if room == 0 or target in self.avoided:
            return False
        return self.within_limits(target, request)

    def on_nodes(self, device: DeviceKind, request: ResourceRequest, *, now: bool) -> int | None:
        """Return how many jobs the nodes of its partition hold; None where they are not known."""
        where = self.partition(device, request.partition)
        if self.nodes is None or where is None:
            return None
        asked = where.name, request, now
        if asked not in self._fitting:
            self._fitting[asked] = fitting_jobs(self.nodes, where, request, now=now)
        return self._fitting[asked]

    def nodes_of(self, partition: Partition | None) -> set[str]:
        """Return the names of a partition's nodes; none where they are not known."""
        if partition is None or self.nodes is None:
            return set()
        return {node.name for node in self.nodes if partition.name in node.partitions}

    def within_limits(self, target: Target, request: ResourceRequest) -> bool:
        """Return whether no limit keeps one more job from starting once a node has room for it."""
        device = target.device
        if self.why_closed(target) or not self.has_partition(device, request):
            return False
        if self.on_nodes(device, request, now=False) == 0:
            return False
        here, where = self.account(target.account), self.where(target)
        if here is None or not may_use(here, where) or too_long(here, request, where):
            return False
        if request.partition and unknown_use(here, where):
            return False
        wanted = tres_of(request, 1, where)
        for tres in limited_tres(here, where):
            free = (remaining(here, where, tres), largest(here, where, tres))
            if any(n is not None and wanted[tres] > n for n in free):
                return False
        return True

    def can_ever_run(self, target: Target, request: ResourceRequest) -> bool:
        """Return whether a target may take a job at some time, however busy it is now."""
        here, where = self.account(target.account), self.where(target)
        if here is None or target in self.invalid or not self.has_partition(target.device, request):
            return False
        if not may_use(here, where) or too_big(here, request, where) is not None:
            return False
        return self.some_node_holds(target.device, request)

    def some_node_holds(self, device: DeviceKind, request: ResourceRequest) -> bool:
        """Return whether a node of its partition is large enough, were it up and free."""
        where = self.partition(device, request.partition)
        if self.nodes is None or where is None:
            return True
        up = [replace(node, up=True, reserved=False) for node in self.nodes]
        return fitting_jobs(up, where, request, now=False) > 0

    def budgeted(self) -> bool:
        """Return whether a budget bounds any account."""
        return any(
            name in BUDGETS
            for account in self.accounts
            for where in self.partitions.values()
            for name in limited_tres(account, where)
        )

    def short_of(self, target: Target, request: ResourceRequest) -> str:
        """Return what is left of a budget that cannot end a job; empty if none is too small."""
        here, where = self.account(target.account), self.where(target)
        wanted = tres_of(request, 1, where)
        for tres in limited_tres(here, where) if here else ():
            rest = remaining(here, where, tres) if here and tres in BUDGETS else None
            if rest is not None and wanted[tres] > rest:
                return f"{in_hours(tres, rest)} on {target.account}"
        return ""

    def use_of(self, target: Target, request: ResourceRequest) -> PendingUse:
        """Return what a job will use there."""
        tres = tres_of(request, 1, self.where(target))
        return PendingUse(target.account, tres, target.partition, request)

    def take(self, target: Target, request: ResourceRequest) -> ClusterState:
        """Return what is left when one more job has its place."""
        use = [self.use_of(target, request)]
        return replace(
            self,
            accounts=with_use(self.accounts, use),
            nodes=with_use_of_nodes(self.nodes, use),
        )

    def account(self, name: str) -> Account | None:
        """Return the account of a name, None where there is none."""
        return next((account for account in self.accounts if account.name == name), None)

    def without(self, device: DeviceKind, why: str) -> ClusterState:
        """Return it with a device kind closed on every account."""
        closed = {target: why for target in self.targets() if target.device == device}
        return replace(self, closed={**self.closed, **closed})

    def with_pending(
        self, waiting: Iterable[SlurmJob], sent: Iterable[PendingUse], workdir: str = ""
    ) -> ClusterState:
        """Return what fits with own pending jobs, and those sent that squeue does not show yet.

        An account whose use is not known is closed. One on which own jobs pend for a group limit
        is closed too: for GPU jobs where that limit is of GPUs (``GRES``), for all jobs otherwise.
        A job that asks for more than the limit itself never starts and counts for nothing.

        Parameters
        ----------
        waiting : iterable of SlurmJob
            Own pending jobs, of every run.
        sent : iterable of PendingUse
            Jobs handed to sbatch that squeue does not show yet.
        workdir : str
            Folder of the run: of jobs elsewhere the reason says what the user may do.
        """
        own = {account.name: account for account in self.accounts}
        pending = [job for job in waiting if may_start(job, own.get(job.account))]
        where = {p.name: p for p in self.partitions.values() if p is not None} | dict(self.named)
        use = [use_of_pending(job, where.get(job.partition)) for job in pending]
        use += sent
        return replace(
            self,
            accounts=with_use(self.accounts, use),
            closed=self._closed(pending, workdir),
            nodes=with_use_of_nodes(self.nodes, use),
        )

    def _closed(self, pending: Sequence[SlurmJob], workdir: str) -> dict[Target, str]:
        """Return the targets that take nothing now, and why."""
        closed: dict[Target, str] = {}
        for account in self.accounts:
            for device in KINDS:
                for name, unknown in unknown_use(account, self.partitions.get(device)).items():
                    why = f"use of {', '.join(unknown)} on {name} is not known"
                    closed[self.target(account, device)] = why
        own = {account.name: account for account in self.accounts}
        for job in pending:
            account = own[job.account]
            if account.qos and job.qos not in ("", account.qos):
                continue
            if why_pending(job.reason).obstacle in ("limit", "budget"):
                advice = "" if job.workdir == workdir else "; cancel it, or wait"
                why = f"your job {job.id} waits on {job.account}: {job.reason}{advice}"
                closed[self.target(account, "gpu")] = why
                if "GRES" not in job.reason.upper():
                    closed[self.target(account, "cpu")] = why
        return closed

    def check_known(self) -> None:
        """Refuse a state of which no job could be placed.

        Raises
        ------
        SlurmQueryError
            The partitions are not known, or the use of no account is.
        """
        about = {note.about: note.text for note in self.notes}
        if "partitions" in about:
            raise SlurmQueryError("scontrol show partition", about["partitions"])
        where = self.partitions.values()
        if all(unknown_use(account, one) for account in self.accounts for one in where):
            raise SlurmQueryError("scontrol show assoc_mgr", about.get("use", "use is not known"))
