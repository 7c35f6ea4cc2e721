"""Where each job may go: the targets that can take what it asks for (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from ..cluster.limits import clip_runtime, limited_tres, longest_min, remaining
from ..cluster.request import KINDS, DeviceKind, ResourceRequest, Target
from ..cluster.state import ClusterState
from ..cluster.tres import in_hours, tres_of
from ..errors import PlacementError
from ..slurm.accounts import Account
from ..slurm.partitions import is_for_gpus
from ..slurm.records import Partition, is_budget
from .estimates import Estimates, Shape
from .jobs import JobState


def budgeted(state: ClusterState) -> bool:
    """Return whether a budget bounds any account."""
    return any(
        is_budget(name)
        for account in state.accounts
        for within in account.limits.values()
        for names in (within.per_job, *(scope.limit for scope in within.scopes))
        for name in names
    )


def short_of(state: ClusterState, target: Target, request: ResourceRequest) -> str:
    """Return what is left of a budget that cannot end a job; empty if none is too small."""
    here, where = state.account(target.account, target.qos), state.where(target)
    wanted = tres_of(request, where)
    for tres in filter(is_budget, limited_tres(here, where) if here else ()):
        rest = remaining(here, where, tres) if here else None
        if rest is not None and wanted[tres] > rest:
            return f"{in_hours(tres, rest)} on {target.account}"
    return ""


def note_preemption(task: JobState, here: Target | None, state: ClusterState) -> None:
    """Note where a job was preempted, if it was: it does not go back where it was twice."""

    def place(target: Target) -> str:
        return state.preempted_in(target) or f"partition {target.partition}"

    task.preempted_in += (place(here),) if here else ()
    twice = {one for one in task.preempted_in if task.preempted_in.count(one) > 1}
    task.excluded_targets |= {one for one in state.every_target if twice and place(one) in twice}


class Column(NamedTuple):
    """Targets of one rank in one partition, with their accounts and most minutes."""

    rank: int
    kind: DeviceKind
    where: Partition | None
    entries: list[tuple[Target, Account, float]]


class Reachable:
    """The targets of jobs of one shape, which were in vain at some; looked at when asked.

    There are four checks; one that no target passes of those that passed the ones before is left
    out: limits and some node are large enough; it is no partition with GPUs, for CPU jobs; it has
    all the time they ask for, or twice what they are estimated to take; they were not there in
    vain.
    """

    def __init__(self, reach: Reach, shape: Shape, excluded: frozenset[Target]) -> None:
        self.reach, self.state, self.shape = reach, reach.state, shape
        self.excluded, self.fixed = excluded, shape.task.job.overrides
        request_of = reach.estimates.request_of
        self.requests = {k: request_of(shape.task, k, self.state) for k in shape.task.job.kinds}
        #: What may fit where a time limit, which may be cut, does not.
        self.shortest = {kind: replace(one, runtime_min=1) for kind, one in self.requests.items()}
        self._cut: dict[tuple[DeviceKind, int | None], ResourceRequest] = {}
        self._has: dict[int, bool] = {}
        self._found: dict[Target, ResourceRequest | None] = {}
        self._checks = (self.state.can_take, self._leaves_gpus, self._has_time, self._is_fresh)

    def columns(self, kind: DeviceKind) -> list[Column]:
        """Return all targets of a device kind, by rank and partition."""
        request = self.requests.get(kind)
        return self.reach.columns(kind, request.partition) if request else []

    def request(self, target: Target) -> ResourceRequest | None:
        """Return what such a job asks for at a target, None where it does not go."""
        if target not in self._found:
            self._found[target] = self._checked(target, len(self._checks))
        return self._found[target]

    def every(self, *, excluded: bool = False) -> dict[Target, ResourceRequest]:
        """Return the targets with what is asked for there; those where it was in vain, too."""
        count = len(self._checks) - excluded
        return {t: one for t in self._all() if (one := self._checked(t, count)) is not None}

    def may_reach(self, column: Column) -> bool:
        """Return whether a job goes to a partition with GPUs, if it is one."""
        spare = column.kind == "cpu" and is_for_gpus(column.where)
        return not (spare and self._any(self._checks.index(self._leaves_gpus)))

    def _all(self) -> Iterator[Target]:
        return (
            target
            for kind in self.requests
            for column in self.columns(kind)
            for target, *_ in column.entries
        )

    def _checked(self, target: Target, count: int) -> ResourceRequest | None:
        """Return a request that passes so many of the checks, as far as any target does."""
        request = self._chosen(target)
        for k in range(count if request else 0):
            if request and not self._checks[k](target, request) and self._any(k):
                return None
        return request

    def _any(self, k: int) -> bool:
        """Return whether any target passes a check of those that passed the ones before."""
        if k not in self._has:
            kinds = ("cpu",) if self._checks[k] == self._leaves_gpus else KINDS
            passed = ((one, self._checked(one, k)) for one in self._all() if one.device in kinds)
            # where it is in vain to wait, a job goes back
            out = self.state.invalid if self._checks[k] == self._is_fresh else ()
            self._has[k] = any(
                asked and self._checks[k](one, asked) and one not in out for one, asked in passed
            )
        return self._has[k]

    def _chosen(self, target: Target) -> ResourceRequest | None:
        """Return what is asked for at a target, if it is of the account and QOS that are chosen."""
        account = self.state.account(target.account, target.qos)
        if account is None or target.device not in self.requests:
            return None
        if self.fixed.account not in (None, target.account):
            return None
        if self.fixed.qos and target.qos != self.fixed.qos:
            first = self.state.account(target.account)
            # one that is not one of placement's is left to the default one
            if self._knows_qos or (first and first.qos != target.qos):
                return None
        where = self.state.where(target)
        key = target.device, longest_min(account, where)
        if key not in self._cut:
            self._cut[key] = clip_runtime(self.requests[target.device], account, where)
        return self._cut[key]

    @cached_property
    def _knows_qos(self) -> bool:
        names = {one.qos for one in self.state.accounts
                 if self.fixed.account in (None, one.name)}  # fmt: skip
        return self.fixed.qos in names

    def _leaves_gpus(self, target: Target, request: ResourceRequest) -> bool:
        return target.device == "gpu" or not is_for_gpus(self.state.where(target))

    def _has_time(self, target: Target, request: ResourceRequest) -> bool:
        whole = self.requests[target.device].runtime_min
        return request.runtime_min >= min(whole, self.shape.enough_min[target.device])

    def _is_fresh(self, target: Target, request: ResourceRequest) -> bool:
        return target not in self.excluded


class Reach:
    """Where the jobs of a round may go, found once for all that are alike."""

    def __init__(self, estimates: Estimates, state: ClusterState) -> None:
        self.estimates, self.state = estimates, state
        self._columns: dict[tuple[DeviceKind, str], list[Column]] = {}
        self._of: dict[tuple[Shape, frozenset[Target]], Reachable] = {}

    def of(self, task: JobState) -> Reachable:
        """Return where a job may go, the same object for jobs that are alike."""
        key = self.estimates.shape(task), task.excluded_targets
        found = self._of.get(key)
        if found is None:
            found = self._of[key] = Reachable(self, *key)
        return found

    def columns(self, kind: DeviceKind, name: str) -> list[Column]:
        """Return the targets of jobs that name a partition, or none, by rank and partition."""
        if (kind, name) not in self._columns:
            found: dict[tuple[int, str | None], Column] = {}
            for target in self.state.targets({kind: name}):
                at = self.state.rank(target), target.partition
                if at not in found:
                    found[at] = Column(at[0], kind, self.state.where(target), [])
                if account := self.state.account(target.account, target.qos):
                    longest = longest_min(account, found[at].where)
                    minutes = math.inf if longest is None else longest
                    found[at].entries.append((target, account, minutes))
            self._columns[kind, name] = sorted(found.values(), key=attrgetter("rank"))
        return self._columns[kind, name]


def check_feasible(tasks: Iterable[JobState], state: ClusterState, estimates: Estimates) -> None:
    """Refuse jobs that can never start, with a PlacementError about the first; see `infeasible`."""
    for _, why in infeasible(tasks, state, estimates):
        raise PlacementError(why)


def infeasible(
    tasks: Iterable[JobState], state: ClusterState, estimates: Estimates
) -> Iterator[tuple[str, str]]:
    """Yield names of jobs that no account may ever run, each with figures and what to change."""
    reach = Reach(estimates, state)
    feasible: dict[Reachable, bool] = {}
    for job, reachable in [(task.job, reach.of(task)) for task in tasks]:
        if reachable not in feasible:  # jobs that are alike are looked at once
            every = reachable.every().items()
            feasible[reachable] = any(state.can_take(*one) for one in every)
        if feasible[reachable]:
            continue
        accounts = [a for a in state.accounts if job.overrides.account in (None, a.name)]
        reasons = [
            state.why_never(
                Target(account.name, account.qos, name, kind), clip_runtime(request, account, where)
            )
            for account in [a for a in accounts if a.qos == job.overrides.qos] or accounts
            for kind, request in reachable.requests.items()
            for name, where in state.places(kind, request.partition) or ((None, None),)
        ]
        why = (
            f"{job.name} can never start: {'; '.join(filter(None, dict.fromkeys(reasons)))}. Lower "
            f"the resources of rule {job.rule}, or use an account that has more"
        )
        if not accounts:
            why = (
                f"rule {job.rule} is to run on account {job.overrides.account}, which cannot be "
                f"used; there are {', '.join(dict.fromkeys(a.name for a in state.accounts))}"
            )
        yield job.name, why
