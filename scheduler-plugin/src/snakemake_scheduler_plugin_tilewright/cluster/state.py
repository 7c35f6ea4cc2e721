"""A cluster as one person may use it at one time: accounts, partitions, nodes, and what fits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, product
from operator import attrgetter
from typing import Literal

from ..errors import SlurmQueryError
from ..slurm.accounts import Account, LeftOut
from ..slurm.jobs import SlurmJob
from ..slurm.nodes import Node
from ..slurm.partitions import alike, is_for_gpus
from ..slurm.records import Partition
from ..words import count
from .limits import largest_ever, may_use, targets_of_limit, too_big, unknown_use
from .pending_use import PendingUse, use_of_pending, with_use
from .request import KINDS, DeviceKind, ResourceRequest, Target
from .tres import fitting_jobs, tres_of

#: Share of an account's CPUs, of no cap, that CPU jobs may fill, so that other users and the GPU
#: jobs' own CPUs fit next to them: 104 CPUs in jobs of 8 are then 11 slots.
UTILISATION = 0.85


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
        By name, each on all of its QOS, the default first; with live use where Slurm reports it.
    partitions : dict of {"gpu", "cpu"} to tuple of Partition
        Where jobs of each device kind may go that name no partition, the preferred one first.
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
    closed : dict of Target to str
        Those that take no job now, and why.
    avoided : dict of Target to str
        Those where own jobs pended in vain: nothing is sent there now but what can run nowhere
        else.
    invalid : frozenset of Target
        Those that take no job before limits or associations change.
    pending : tuple of PendingUse
        What own jobs will use that have not begun: the accounts have it as in use, nodes do not.
    """

    accounts: tuple[Account, ...]
    partitions: Mapping[DeviceKind, tuple[Partition, ...]] = field(default_factory=dict)
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
    pending: tuple[PendingUse, ...] = ()
    #: Whether nodes hold a job, by what was asked: 10,000 ready jobs are of few requests.
    _holding: dict[tuple[str, ResourceRequest, bool], bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    #: What one job may have at most, by limits and kind of partition; and what it counts as.
    _largest: dict[tuple[int, int], Mapping[str, int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _wanted: dict[tuple[ResourceRequest, int], Mapping[str, int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def _wheres(self) -> dict[str, Partition]:
        """All partitions that are known, by name."""
        return {**self.named, **{p.name: p for p in self.open_partitions}}

    @cached_property
    def _alike(self) -> dict[str, int]:
        return alike(self._wheres.values())

    def alike(self, where: Partition | None) -> int:
        """Return a number, the same for partitions that bound one job in the same way."""
        return self._alike.get(where.name, -1) if where else -1

    @cached_property
    def nodes_in(self) -> defaultdict[str, list[Node]]:
        """The nodes of each partition."""
        found = defaultdict[str, list[Node]](list)
        for node in self.nodes or ():
            for name in node.partitions:
                found[name].append(node)
        return found

    @cached_property
    def _nodes_if_up(self) -> defaultdict[str, list[Node]]:
        """The same, as if all of them were up."""
        nodes = tuple(replace(node, up=True, reserved=False) for node in self.nodes or ())
        return replace(self, nodes=nodes).nodes_in

    @property
    def open_partitions(self) -> list[Partition]:
        """Those where jobs may go that name none, each once."""
        return list({p.name: p for own in self.partitions.values() for p in own}.values())

    @cached_property
    def _entries(self) -> dict[tuple[str, str], Account]:
        """The accounts by name and QOS, and by name alone on their first one."""
        found = {(one.name, ""): one for one in reversed(self.accounts)}
        return found | {(one.name, one.qos): one for one in self.accounts}

    def places(
        self, device: DeviceKind, name: str = ""
    ) -> tuple[tuple[str | None, Partition | None], ...]:
        """Return the partitions where jobs may go that name this one or none, with their names.

        None has no record of one that is not known; for CPU jobs Slurm has a default.
        """
        if name:
            return ((name, self._wheres.get(name)),)
        known = self.partitions.get(device, ())
        return tuple((p.name, p) for p in known) or (() if device == "gpu" else ((None, None),))

    def where(self, target: Target) -> Partition | None:
        """Return the partition of a target, None where nothing is known of it."""
        return self.where_is(target.partition)

    def where_is(self, name: str | None) -> Partition | None:
        """Return the partition of a name, None where nothing is known of it."""
        return self._wheres.get(name or "")

    def account(self, name: str, qos: str = "") -> Account | None:
        """Return the account of a name on a QOS, None where there is none."""
        return self._entries.get((name, qos))

    def name_of(self, account: Account) -> str:
        """Return the name of an account, with its QOS where that is not its first one."""
        first = self.account(account.name)
        return account.name if account is first else f"{account.name} on {account.qos}"

    def target(self, account: Account, device: DeviceKind, partition: str = "") -> Target:
        """Return the target of an account, in a partition or the preferred one."""
        first = next(iter(self.places(device, partition)), (None, None))
        return Target(account.name, account.qos, first[0], device)

    def targets(self, names: Mapping[DeviceKind, str] = {"gpu": "", "cpu": ""}) -> Iterator[Target]:
        """Yield the targets of jobs that name these partitions, or none; GPUs first."""
        for _, same in groupby(self.accounts, key=attrgetter("name")):
            own = list(same)
            for device, name in names.items():
                for account, (at, where) in product(own, self.places(device, name)):
                    if account.kind in ("", device) and may_use(account, where):
                        yield Target(account.name, account.qos, at, device)

    @cached_property
    def every_target(self) -> list[Target]:
        """All targets in partitions that are known, those too that only rules name."""
        found = list(self.targets())
        for kind in KINDS:
            only_named = self._wheres.keys() - {one.name for one in self.partitions.get(kind, ())}
            found += [one for name in sorted(only_named) for one in self.targets({kind: name})]
        return found

    def rank(self, target: Target) -> int:
        """Return how far a target is from an account's default QOS and partition; 0 is that."""
        account = self.account(target.account, target.qos)
        known = self.partitions.get(target.device, ())
        first = known[0].name if known else None
        order = 2 * account.order if account else 0
        # where jobs may be preempted comes last, before that the QOS of the longest jobs
        return 1000 * bool(self.preempted_in(target)) + order + (target.partition != first)

    def preempted_in(self, target: Target) -> str:
        """Return the partition or QOS of a target where others may end its jobs; else empty."""
        account, where = self.account(target.account, target.qos), self.where(target)
        if where is not None and where.preemptable:
            return f"partition {where.name}"
        return f"QOS {target.qos}" if account is not None and account.preemptable else ""

    def why_closed(self, target: Target) -> str:
        """Return why a target takes no job now; empty if it may."""
        if not self.closed:
            return ""
        if target in self.closed or target.partition is None or target.partition in self._wheres:
            return self.closed.get(target, "")
        # in a partition that is not known, that is what closes the account in the first one
        first = self.places(target.device)[:1]
        return self.closed.get(replace(target, partition=first[0][0] if first else None), "")

    def some_node_holds(
        self, target: Target, request: ResourceRequest, *, if_up: bool = False
    ) -> bool:
        """Return whether a node there that is up, or any with ``if_up``, is large enough."""
        where = self.where(target)
        if self.nodes is None or where is None:
            return True  # as far as is known
        asked = where.name, request, if_up
        if asked not in self._holding:
            nodes = self._nodes_if_up if if_up else self.nodes_in
            self._holding[asked] = fitting_jobs(nodes[where.name], where, request) > 0
        return self._holding[asked]

    def can_ever_run(self, target: Target, request: ResourceRequest) -> bool:
        """Return whether a target may take a job at some time, however busy it is now."""
        return target not in self.invalid and self.can_take(target, request)

    def can_take(self, target: Target, request: ResourceRequest) -> bool:
        """Return whether limits of a target, and some node there, are large enough for a job."""
        return not self.why_never(target, request)

    def why_never(self, target: Target, request: ResourceRequest) -> str:
        """Return why limits of a target, or all nodes there, never take a job; else empty."""
        here, where = self.account(target.account, target.qos), self.where(target)
        if target.device == "gpu" and target.partition is None:  # for CPU jobs Slurm has a default
            return "there is no GPU partition"
        if here is None:
            return f"account {target.account} is not known"
        if here.kind not in ("", target.device):
            return (
                f"account {here.name} takes {here.kind.upper()} jobs only (accounts of site.yaml)"
            )
        if not may_use(here, where):
            return f"account {here.name} may not use partition {target.partition}"
        for name, wanted in request.licences:
            there = wanted if self.licences is None else self.licences.get(name, 0)
            if wanted > there:
                return f"it asks for {wanted} of licence {name} and there are {there}"
        key = id(here.within(where)), self.alike(where)
        if key not in self._largest:
            self._largest[key] = largest_ever(here, where)
        if too_large := too_big(here, request, where, self._largest[key]):
            return too_large
        if where is None or self.some_node_holds(target, request, if_up=True):
            return ""
        needs = [count(request.cpus, "CPU"), f"{tres_of(request, where)['mem']} MB"]
        if request.gpus:
            of_type = f" of type {request.gpu_type}" if request.gpu_type else ""
            needs.append(count(request.gpus, "GPU") + of_type)
        needs += [f"feature {name}" for name in request.features]
        needs += [f"reservation {request.reservation}"] if request.reservation else []
        return f"no node of partition {where.name} has {', '.join(needs)}"

    def wanted(self, request: ResourceRequest, where: Partition | None) -> Mapping[str, int]:
        """Return what one job counts as in a partition, of TRES that it asks for."""
        key = request, self.alike(where)
        if key not in self._wanted:
            self._wanted[key] = {t: n for t, n in tres_of(request, where).items() if n > 0}
        return self._wanted[key]

    def leaving_gpus(self, targets: Iterable[Target]) -> list[Target]:
        """Return targets without CPU jobs in partitions with GPUs, where there are others."""
        found = list(targets)
        left = [t for t in found if t.device == "gpu" or not is_for_gpus(self.where(t))]
        return left if any(t.device == "cpu" for t in left) else found

    def use_of(self, target: Target, request: ResourceRequest) -> PendingUse:
        """Return what a job will use there."""
        tres = tres_of(request, self.where(target))
        return PendingUse(target.account, tres, target.partition, request, target.qos)

    def with_pending(
        self, waiting: Iterable[SlurmJob], sent: Iterable[PendingUse], workdir: str = ""
    ) -> ClusterState:
        """Return what fits with own pending jobs, and those sent that squeue does not show yet.

        Targets whose use is not known are closed, and what a limit bounds for which own jobs pend.

        Parameters
        ----------
        workdir : str
            Folder of the run: of jobs elsewhere the reason says what the user may do.
        """
        pending = [job for job in waiting if self.counts_pending(job)]
        use = [use_of_pending(job, self._wheres.get(job.partition)) for job in pending]
        use += sent
        return replace(
            self,
            accounts=with_use(self.accounts, use),
            closed=self._closed(pending, workdir),
            pending=tuple(use),
        )

    def _closed(self, pending: Sequence[SlurmJob], workdir: str) -> dict[Target, str]:
        """Return the targets that take nothing now, and why."""
        closed: dict[Target, str] = {}
        every = self.every_target
        for target in every:
            account = self._entries[target.account, target.qos]
            for name, unknown in unknown_use(account, self.where(target)).items():
                closed[target] = f"use of {', '.join(unknown)} on {name} is not known"
        waits: dict[tuple[str, Target], str] = {}
        for job in pending:
            own = self._entry_of(job)
            if own is None or (own.qos and job.qos not in ("", own.qos)):
                continue
            advice = "" if job.workdir == workdir else "; cancel it, or wait"
            why = f"your job {job.id} waits on {job.account}: {job.reason}{advice}"
            if job.obstacle in ("limit", "spent") or (job.obstacle == "unknown" and not advice):
                waits[job.reason, self.target(own, "gpu", job.partition)] = why
        for (reason, here), why in waits.items():
            closed |= dict.fromkeys(targets_of_limit(reason, here, self.where(here), every), why)
        return closed

    def counts_pending(self, job: SlurmJob) -> bool:
        """Return whether a job pends on an account of placement, and may ever start there.

        One that asks for more than the limits never starts, and takes nothing from others.
        """
        account = self._entry_of(job)
        if account is None or job.state != "PENDING":
            return False
        names = account.counted_on(job.partition, job.qos)
        return all(
            job.tres.get(tres, 0) <= most
            for scope in account.at(job.partition).scopes
            if scope.name in names
            for tres, most in scope.limit.items()
        )

    def _entry_of(self, job: SlurmJob) -> Account | None:
        """Return the account of a job on its QOS, or on the first where that is not used."""
        return self.account(job.account, job.qos) or self.account(job.account)

    def check_known(self) -> None:
        """Raise SlurmQueryError where the partitions, or the use of all accounts, are not known."""
        about = {note.about: note.text for note in self.notes}
        if not self.accounts:
            raise SlurmQueryError("sacctmgr", f"no account of {self.user} is left to place jobs on")
        if "partitions" in about:
            raise SlurmQueryError("scontrol show partition", about["partitions"])
        where: list[Partition | None] = [*self.open_partitions] or [None]
        if all(unknown_use(account, one) for account in self.accounts for one in where):
            raise SlurmQueryError("scontrol show assoc_mgr", about.get("use", "use is not known"))
