"""Rules, accounts and partitions as tests of placement name them, and the room they leave."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from snakemake_scheduler_plugin_tilewright.cluster import pending_use
from snakemake_scheduler_plugin_tilewright.cluster.pending_use import PendingUse
from snakemake_scheduler_plugin_tilewright.cluster.pools import Pool, make_pools
from snakemake_scheduler_plugin_tilewright.cluster.request import (
    DeviceKind,
    ResourceRequest,
    Target,
)
from snakemake_scheduler_plugin_tilewright.cluster.room import Room
from snakemake_scheduler_plugin_tilewright.cluster.state import ClusterState
from snakemake_scheduler_plugin_tilewright.cluster.tres import ON_NODES
from snakemake_scheduler_plugin_tilewright.placement.jobs import Job, JobState, ResourceModel
from snakemake_scheduler_plugin_tilewright.placement.round import Round
from snakemake_scheduler_plugin_tilewright.placement.workload import GpuSlots
from snakemake_scheduler_plugin_tilewright.resources import Placement
from snakemake_scheduler_plugin_tilewright.slurm.accounts import (
    Account,
    Limits,
    LimitScope,
)
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.records import (
    JOBS,
    OTHER_ACCOUNTS,
    OTHER_USERS,
    Partition,
    Tres,
    Usage,
    on_qos,
)

BOTH: tuple[DeviceKind, ...] = ("gpu", "cpu")
GROUP_REASONS = (
    "AssocGrpCPUMinutesLimit",
    "QOSGrpGRESMinutes",
    "QOSGrpGRES",
    "QOSGrpCpuLimit",
    "AssocGrpMemLimit",
    "QOSMaxCpuPerUserLimit",
)
GPU, CPU = ResourceRequest(8, 100, 1, 60), ResourceRequest(8, 50, 0, 60)
LIMIT = {"cpu": 40, "mem": 400, "gres/gpu": 2}
#: Nothing is in use.
FREE = dict.fromkeys((*ON_NODES, *JOBS), 0)


@dataclass(frozen=True)
class Rules:
    """Rules as a test names them: a shape for each device kind."""

    shapes: Mapping[str, Mapping[DeviceKind, ResourceRequest]]
    seconds: float = 60.0

    @property
    def models(self) -> dict[str, ResourceModel]:
        return {rule: self._model(shapes) for rule, shapes in self.shapes.items()}

    def job(self, name: str, rule: str, **of: Any) -> Job:
        """Return a job of a rule."""
        model, values = self.models[rule], {"wildcards": {}, **of}
        return Job(name, rule, model.devices, cpu_seconds=self.seconds, model=model, **values)

    def _model(self, shapes: Mapping[DeviceKind, ResourceRequest]) -> ResourceModel:
        first = next(iter(shapes.values()))
        request = lambda _, kind: shapes.get(kind, first)  # noqa: E731
        return ResourceModel(tuple(shapes), request, lambda _: self.seconds)


def account(
    name: str,
    *,
    limit: Tres | None = None,
    used: Tres | None = FREE,
    mine: Tres = FREE,
    ours: Tres = FREE,
    of_user: Tres | None = None,
    of_account: Tres | None = None,
    of_cap: Tres | None = None,
    qos: str | None = None,
    above: tuple[LimitScope, ...] = (),
    per_job: Tres | None = None,
    longest_min: int | None = None,
    partitions: tuple[str, ...] = (),
) -> Account:
    """Return an account with limits of its QOS, of a user and an account on it, and a cap."""
    qos = qos or name
    all_ = (
        LimitScope(f"QOS {qos}", limit or {}, used),
        LimitScope(f"ada on QOS {qos}", of_user or {}, mine),
        LimitScope(f"account {name} on QOS {qos}", of_account or {}, ours),
        LimitScope(f"cap of account {name} on QOS {qos}", of_cap or {}, ours, cap=True),
        *above,
    )
    limits = Limits(
        tuple(one for one in all_ if one.limit),
        tuple(one.name for one in all_),
        per_job or {},
        longest_min,
    )
    return Account(name, qos, {"": limits}, partitions)


def in_partition(one: Account, name: str, *scopes: LimitScope) -> Account:
    """Return an account that a partition bounds otherwise."""
    there = Limits(scopes, tuple(scope.name for scope in scopes))
    return replace(one, limits={**one.limits, name: there})


def with_use(one: Account, use: Callable[[LimitScope], Tres | None]) -> Account:
    """Return an account with other use."""
    limits = {
        where: replace(at, scopes=tuple(replace(h, used=use(h)) for h in at.scopes))
        for where, at in one.limits.items()
    }
    return replace(one, limits=limits)


def partition(name: str, **values: Any) -> Partition:
    plain = {"max_time_min": 600, "tres": {"cpu": 9999}, "allow_accounts": None, **values}
    return Partition(name, None, up=True, default=True, allow_qos=None, **plain)


PLACES: dict[DeviceKind, Partition | None] = {"gpu": partition("g"), "cpu": partition("c")}
Places = Mapping[DeviceKind, Partition | Iterable[Partition] | None]


def open_at(places: Places) -> dict[DeviceKind, tuple[Partition, ...]]:
    """Return the partitions of each device kind, of which one, several or none are given."""
    return {
        kind: (own,) if isinstance(own, Partition) else tuple(own or ())
        for kind, own in places.items()
    }


def room(
    *accounts: Account,
    waiting: Iterable[SlurmJob] = (),
    sent: Iterable[PendingUse] = (),
    workdir: str = "",
    **of: Any,
) -> ClusterState:
    """Return what fits now, where jobs may use all of an account."""
    of = {"utilisation": 1.0, "partitions": PLACES, **of}
    of["partitions"] = open_at(of["partitions"])
    return ClusterState(accounts, **of).with_pending(waiting, sent, workdir)


def slots_of(
    accounts: Iterable[Account],
    requests: Mapping[DeviceKind, ResourceRequest],
    *,
    together: bool = False,
    partitions: Places = PLACES,
    **of: Any,
) -> list[Pool]:
    """Return the pools of accounts for jobs that ask for this."""
    places = open_at(partitions)
    state = ClusterState(tuple(accounts), places, largest_jobs=requests, **of)
    return make_pools(state, together=together)


def at(state: ClusterState, account: str, kind: DeviceKind, partition: str = "") -> Target:
    """Return the target of an account and a device kind."""
    found = state.account(account)
    return state.target(found, kind, partition) if found else Target(account, "", None, kind)


def free_slots(state: ClusterState, requests: Mapping[DeviceKind, ResourceRequest]) -> list[Pool]:
    """Return the free slots for jobs that ask for this, in all places."""
    names = {kind: one.partition for kind, one in requests.items()}
    found = []
    for _, own in groupby(state.targets(names), key=lambda one: one.account):
        room = Room(state)
        for one in own:
            free = room.jobs(one, requests[one.device])
            room.take(one, requests[one.device], free)
            found.append(Pool(one.account, one.qos, one.device, 0, free, "", one.partition))
    return found


def take(
    state: ClusterState, account: str, kind: DeviceKind, request: ResourceRequest
) -> ClusterState:
    use = [state.use_of(at(state, account, kind, request.partition), request)]
    return replace(
        state,
        accounts=pending_use.with_use(state.accounts, use),
        pending=(*state.pending, *use),
    )


def fits(state: ClusterState, account: str, kind: DeviceKind, request: ResourceRequest) -> bool:
    return Room(state).fits(at(state, account, kind, request.partition), request)


def round_on(
    state: ClusterState,
    placement: Placement,
    ready: Iterable[JobState],
    later: Iterable[JobState] = (),
    active: Iterable[JobState] = (),
    bad_nodes: dict[DeviceKind, set[str]] | None = None,
    most: float = math.inf,
) -> Round:
    """Return a round of placing that is done."""
    ready, later, active = list(ready), list(later), list(active)
    estimates = placement.estimates
    work = estimates.workload(task.job for task in (*ready, *later, *active))
    bad_nodes = bad_nodes or {"gpu": set(), "cpu": set()}
    found = Round(work, estimates, state, active, bad_nodes, 5000.0)
    found.place(ready, later, GpuSlots(), most)
    return found


def in_use(used: Mapping[str, int]) -> Usage:
    """Return that so much is in use, and of all else that is limited nothing."""
    return Usage({}, {**FREE, **used})


def idle(*qos: str) -> dict[str, Usage]:
    """Return that nobody has jobs on these QOS, in the words of the survey."""
    who = ("", OTHER_USERS, OTHER_ACCOUNTS)
    return {on_qos(name, one): in_use({}) for name in qos for one in who}
