"""Rules, accounts and partitions as tests of placement name them, and the room they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity, Claim, capacity_now
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    Job,
    Kind,
    ResourceModel,
    Shape,
    Task,
)
from snakemake_scheduler_plugin_tilewright.placement.resources import Placement
from snakemake_scheduler_plugin_tilewright.placement.round import Round
from snakemake_scheduler_plugin_tilewright.placement.workload import GpuSlots
from snakemake_scheduler_plugin_tilewright.slurm.accounts import COUNTED, Account, Holder, Limits
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

BOTH: tuple[Kind, ...] = ("gpu", "cpu")
GROUP_REASONS = (
    "AssocGrpCPUMinutesLimit",
    "QOSGrpGRESMinutes",
    "QOSGrpGRES",
    "QOSGrpCpuLimit",
    "AssocGrpMemLimit",
    "QOSMaxCpuPerUserLimit",
)
GPU, CPU = Shape(8, 100, 1, 60), Shape(8, 50, 0, 60)
LIMIT = {"cpu": 40, "mem": 400, "gres/gpu": 2}
#: Nothing is in use.
FREE = dict.fromkeys((*COUNTED, *JOBS), 0)


@dataclass(frozen=True)
class Rules:
    """Rules as a test names them: a shape for each device kind."""

    shapes: Mapping[str, Mapping[Kind, Shape]]
    seconds: float = 60.0

    @property
    def models(self) -> dict[str, ResourceModel]:
        return {rule: self._model(shapes) for rule, shapes in self.shapes.items()}

    def job(self, name: str, rule: str, **of: Any) -> Job:
        """Return a job of a rule."""
        model, values = self.models[rule], {"wildcards": {}, **of}
        return Job(name, rule, model.devices, nominal_s=self.seconds, model=model, **values)

    def _model(self, shapes: Mapping[Kind, Shape]) -> ResourceModel:
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
    above: tuple[Holder, ...] = (),
    per_job: Tres | None = None,
    longest_min: int | None = None,
    partitions: tuple[str, ...] = (),
) -> Account:
    """Return an account with limits of its QOS, of a user and an account on it, and a cap."""
    qos = qos or name
    all_ = (
        Holder(f"QOS {qos}", limit or {}, used),
        Holder(f"ada on QOS {qos}", of_user or {}, mine),
        Holder(f"account {name} on QOS {qos}", of_account or {}, ours),
        Holder(f"cap of account {name} on QOS {qos}", of_cap or {}, ours, cap=True),
        *above,
    )
    limits = Limits(
        tuple(one for one in all_ if one.limit),
        tuple(one.name for one in all_),
        per_job or {},
        longest_min,
    )
    return Account(name, qos, {"": limits}, partitions)


def in_partition(one: Account, name: str, *holders: Holder) -> Account:
    """Return an account that a partition bounds otherwise."""
    there = Limits(holders, tuple(holder.name for holder in holders))
    return replace(one, limits={**one.limits, name: there})


def with_use(one: Account, use: Callable[[Holder], Tres | None]) -> Account:
    """Return an account with other use."""
    limits = {
        where: replace(at, holders=tuple(replace(h, used=use(h)) for h in at.holders))
        for where, at in one.limits.items()
    }
    return replace(one, limits=limits)


def partition(name: str, **values: Any) -> Partition:
    plain = {"max_time_min": 600, "tres": {"cpu": 9999}, "allow_accounts": None, **values}
    return Partition(name, None, up=True, default=True, allow_qos=None, **plain)


PLACES: dict[Kind, Partition | None] = {"gpu": partition("g"), "cpu": partition("c")}


def room(
    *accounts: Account,
    waiting: Iterable[SlurmJob] = (),
    sent: Iterable[Claim] = (),
    partitions: Mapping[Kind, Partition | None] = PLACES,
    **of: Any,
) -> Capacity:
    """Return what fits now, where jobs may use all of an account."""
    of = {"utilisation": 1.0, **of}
    return capacity_now(accounts, waiting, sent, partitions=partitions, **of)


def round_on(
    capacity: Capacity,
    placement: Placement,
    ready: Iterable[Task],
    later: Iterable[Task] = (),
    active: Iterable[Task] = (),
    bad_nodes: dict[Kind, set[str]] | None = None,
) -> Round:
    """Return a round of placing that is done."""
    ready, later, active = list(ready), list(later), list(active)
    work = placement.estimates.workload(task.job for task in (*ready, *later, *active))
    bad_nodes = bad_nodes or {"gpu": set(), "cpu": set()}
    found = Round(work, placement, capacity, active, bad_nodes, 5000.0)
    found.place(ready, later, GpuSlots())
    return found


def jobs_of(rules: Rules, **of: Any) -> list[Job]:
    """Return a job of each rule, with what is said of it by the name of its rule."""
    return [
        Job(rule, rule, model.devices, nominal_s=600.0, wildcards={}, model=model,
            **of.get(rule, {}))
        for rule, model in rules.models.items()
    ]  # fmt: skip


def in_use(used: Mapping[str, int]) -> Usage:
    """Return that so much is in use, and of all else that is limited nothing."""
    return Usage({}, {**FREE, **used})


def idle(*qos: str) -> dict[str, Usage]:
    """Return that nobody has jobs on these QOS, in the words of the survey."""
    who = ("", OTHER_USERS, OTHER_ACCOUNTS)
    return {on_qos(name, one): in_use({}) for name in qos for one in who}
