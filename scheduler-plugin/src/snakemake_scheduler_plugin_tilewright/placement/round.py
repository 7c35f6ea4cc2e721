"""One round of placing: which ready jobs start now, where, and why the others wait (pure)."""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from ..cluster.limits import clip_runtime, too_long
from ..cluster.request import DeviceKind, ResourceRequest, Target
from ..cluster.state import ClusterState
from .estimates import Estimates, RequestCache
from .jobs import Assignment, JobState
from .policy import schedule
from .workload import GpuSlots, Running, Slots, Workload

#: Sizes that one round tries, from the largest (no figure).
_PASSES = 6
#: Jobs of one device kind that wait in Slurm's queue for nodes that others fill (no figure).
_QUEUED = 4
_NO_SLOT = "no slot is free"


class _JobClass(NamedTuple):
    """Jobs of rules that name the same partition (or none), and that may not use these targets."""

    partition: str
    excluded: frozenset[Target]


class Round:
    """Fills the free capacity in passes: where the largest job fits nowhere, the next (pure).

    Attributes
    ----------
    assignments : dict of str to Assignment
        Jobs that start now.
    why : dict of str to str
        Why each other ready job waits.
    """

    def __init__(
        self,
        work: Workload,
        estimates: Estimates,
        state: ClusterState,
        active: Sequence[JobState],
        bad_nodes: Mapping[DeviceKind, Collection[str]],
        now_s: float,
    ) -> None:
        self.work, self.estimates, self.state, self.now_s = work, estimates, state, now_s
        self.active, self.bad_nodes = list(active), bad_nodes
        self.requests = RequestCache(estimates, state)
        self.assignments: dict[str, Assignment] = {}
        self.why: dict[str, str] = {}
        self.most = math.inf
        self._short: dict[Hashable, str] = {}
        self._class_of: dict[Hashable, _JobClass] = {}
        self._later: defaultdict[_JobClass, list[JobState]] = defaultdict(list)

    def place(
        self,
        ready: Sequence[JobState],
        later: Sequence[JobState],
        gpu_slots: GpuSlots,
        most: float = math.inf,
    ) -> GpuSlots:
        """Place the ready jobs, ``most`` at most; return what the next round has to know.

        Those that were moved go first.
        """
        self.most = most
        classes: dict[_JobClass, list[JobState]] = {}
        for task in sorted(ready, key=lambda task: not task.moves):
            classes.setdefault(self._job_class(task), []).append(task)
        for task in later:
            self._later[self._job_class(task)].append(task)
        for job_class, members in classes.items():
            gpu_slots = self._place_class(members, job_class, gpu_slots)
        self._queue(task for task in ready if task.name in self.why)
        if self._enough():
            why = "Snakemake runs no more jobs at once (--jobs)"
            self.why |= {task.name: why for task in ready if task.name not in self.assignments}
        if self.state.budgeted():
            for task in ready:
                if task.name in self.why and (short := self._short_of(task)):
                    self.why[task.name] = short
        return gpu_slots

    def _place_class(
        self, rest: list[JobState], job_class: _JobClass, gpu_slots: GpuSlots
    ) -> GpuSlots:
        for _ in range(_PASSES):
            rest = [task for task in rest if not self._waits_for_nodes(task)]
            fit = self._fitting(rest, job_class, self.state)
            if len(fit) < len(rest):
                self._note_no_slot(rest, job_class)
            if not fit or self._enough():
                break
            placed, gpu_slots = self._pass(fit, job_class, gpu_slots)
            if placed:
                rest = [task for task in rest if task.name not in placed]
            else:
                rest = self.requests.without_largest(fit)
        return gpu_slots

    def _fitting(
        self, tasks: list[JobState], job_class: _JobClass, state: ClusterState
    ) -> list[JobState]:
        """Return the most jobs, the smallest first, of which the largest has a free slot.

        A binary search: memory may follow the input, in 10,000 sizes.
        """

        def full(some: Sequence[JobState]) -> bool:
            return not any(pool.free for pool in self._slots(some, job_class, state))

        if not tasks or not full(tasks):
            return tasks
        each = {id(self.requests.of(task)): task for task in tasks}.values()
        found: list[JobState] = []
        for names in (("mem_mb", "cpus"), ("cpus", "mem_mb")):
            size = attrgetter(*names)
            ordered = sorted(each, key=lambda task: max(map(size, self.requests.of(task).values())))
            most = bisect_left(range(1, len(ordered)), True, key=lambda n: full(ordered[:n]))
            found = max(found, ordered[:most], key=len)
        held = {id(self.requests.of(task)) for task in found}
        return [task for task in tasks if id(self.requests.of(task)) in held]

    def _note_no_slot(self, tasks: list[JobState], job_class: _JobClass) -> None:
        """Note why jobs have no slot, and of which only CPUs that stay free are in the way."""
        why = self._why_none(self._slots(tasks, job_class, self.state), job_class)
        self.why |= dict.fromkeys((task.name for task in tasks), why)
        share = self.state.utilisation
        if why == _NO_SLOT and share < 1:
            whole = replace(self.state, utilisation=1.0)
            why += f" ({100 * (1 - share):.0f} % of an account's CPUs are kept free: utilisation)"
            fit = self._fitting(tasks, job_class, whole)
            self.why |= dict.fromkeys((task.name for task in fit), why)

    def _slots(
        self, tasks: Sequence[JobState], job_class: _JobClass, state: ClusterState
    ) -> list[Slots]:
        """Return the pools for the largest of some jobs; CPU slots are next to later GPU jobs.

        Where later GPU jobs leave no CPU slot, and no job runs whose slot will be free, they are
        not counted: they may wait for these.
        """
        requests = self.requests.largest(tasks)
        coming = () if "gpu" in requests else self._later[job_class]
        later = self.requests.largest(coming).get("gpu")
        pools = self.slots({"gpu": later, **requests} if later else requests, state)
        if later:
            cpus = [pool for pool in pools if pool.kind == "cpu"]
            if not cpus or not (self.active or any(pool.free for pool in cpus)):
                pools = self.slots(requests, state)
        return [pool for pool in pools if self._target(pool, job_class) not in job_class.excluded]

    def _target(self, pool: Slots, job_class: _JobClass) -> Target:
        account = self.state.account(pool.account)
        assert account is not None
        return self.state.target(account, pool.kind, job_class.partition)

    def _job_class(self, task: JobState) -> _JobClass:
        """Return the class of a job; for most there is but one."""
        key = id(self.requests.of(task)), task.excluded_targets
        if key not in self._class_of:
            requests, of_name = self.requests.of(task), {a.name: a for a in self.state.accounts}
            excluded = task.excluded_targets - {target for target, _ in self.targets(task)}
            excluded |= {
                target
                for target, _ in self.every_target(task, any_account=True)
                if too_long(
                    of_name[target.account], requests[target.device], self.state.where(target)
                )
            }
            named = next(iter(requests.values())).partition
            self._class_of[key] = _JobClass(named, excluded)
        return self._class_of[key]

    def _waits_for_nodes(self, task: JobState) -> bool:
        """Note where a job asks for nodes with a feature, or a GPU type, that are all full.

        Slots are counted for any node: it would be given those on which it cannot run.
        """
        requests = self.requests.of(task).items()
        if not all(request.features or request.gpu_type for _, request in requests):
            return False
        full = all(self._full(kind, request) for kind, request in requests)
        if full:
            self.why[task.name] = "the nodes that it asks for are full"
        return full

    def targets(self, task: JobState) -> list[tuple[Target, ResourceRequest]]:
        """Return where a job may go, with what it asks for there; not back where it pended in vain.

        Where nothing else will ever take it, it may go back.
        """
        every = self.every_target(task)
        fresh = [(target, one) for target, one in every if target not in task.excluded_targets]
        return fresh if any(self.state.can_ever_run(*one) for one in fresh) else every

    def every_target(
        self, task: JobState, *, any_account: bool = False
    ) -> list[tuple[Target, ResourceRequest]]:
        """Return the targets of a job, those of its own account where one was chosen for it."""
        requests, chosen = self.requests.of(task), task.job.overrides.account
        return [
            (target, clip_runtime(requests[kind], account, self.state.where(target)))
            for account in self.state.accounts
            if any_account or chosen in (None, account.name)
            for kind in task.job.kinds
            for target in [self.state.target(account, kind, requests[kind].partition)]
        ]

    def _short_of(self, task: JobState) -> str:
        """Return that no account's budget can end a job; empty where one can."""
        key = id(self.requests.of(task)), task.job.overrides.account, task.excluded_targets
        if key not in self._short:
            rests = [self.state.short_of(*one) for one in self.targets(task)]
            rest = "; ".join(dict.fromkeys(rests)) if all(rests) else ""
            why = f"no account's budget covers its time limit; what is left: {rest}"
            self._short[key] = why if rest else ""
        return self._short[key]

    def _pass(
        self, large: Sequence[JobState], job_class: _JobClass, gpu_slots: GpuSlots
    ) -> tuple[set[str], GpuSlots]:
        pools = self._slots(large, job_class, self.state)
        made = schedule(self.work, [task.name for task in large], pools, self.now_s, gpu_slots)
        self.why |= made.waiting
        by_name = {task.name: task for task in large}
        where = {pool.name: self._target(pool, job_class) for pool in pools}
        placed = set()
        for start in made.starts:
            task, target = by_name[start.job], where[start.pool]
            request = next(one for to, one in self.every_target(task) if to == target)
            if self.state.fits(target, request) and not self._enough():
                self._start(task, target, request, start.reason)
                placed.add(start.job)
            else:
                held = self.state.on_nodes(target.device, request, now=True) != 0
                why = "its slot was filled in the same round" if held else "its nodes are full"
                self.why[start.job] = why
        return placed, made.gpu_slots

    def _why_none(self, pools: Iterable[Slots], job_class: _JobClass) -> str:
        """Return why no slot is free: what closes all of them, where something does."""
        closed = [self.state.why_closed(self._target(pool, job_class)) for pool in pools]
        whys = [why for why in dict.fromkeys(closed) if why]
        return f"{_NO_SLOT}: {'; '.join(whys)}" if all(closed) and whys else _NO_SLOT

    def _enough(self) -> bool:
        """Return whether nothing more may start."""
        return len(self.assignments) >= self.most

    def _queue(self, ready: Iterable[JobState]) -> None:
        """Send to nodes that others fill, to gain queue priority, jobs that nothing else takes.

        That is where no other device kind runs own jobs, whose slots come free. A few at a time:
        what waits there can go nowhere else without being cancelled.
        """
        own = [(one.assignment.target.device, one) for one in self.active if one.assignment]
        served = {kind for kind, _ in own}
        pending = Counter(kind for kind, one in own if one.slurm_state != "RUNNING")
        for task in ready:
            if self._enough():
                break
            for kind, request in self.requests.of(task).items():
                elsewhere = served & {k for k in task.job.kinds if k != kind}
                if pending[kind] >= _QUEUED or elsewhere or not self._full(kind, request):
                    continue
                targets = [one for one in self.targets(task) if one[0].device == kind]
                if open_ := [one for one in targets if self.state.within_limits(*one)]:
                    full = f"its {kind.upper()} nodes are full or reserved"
                    why = f"{full}, so it waits in Slurm's queue"
                    self._start(task, *open_[pending[kind] % len(open_)], why)
                    pending[kind] += 1
                    served.add(kind)
                    break

    def _full(self, kind: DeviceKind, request: ResourceRequest) -> bool:
        return self.state.on_nodes(kind, request, now=True) == 0

    def _start(self, task: JobState, target: Target, request: ResourceRequest, reason: str) -> None:
        """Send a job to a target that takes it."""
        exclude = tuple(sorted({*self.bad_nodes[target.device], *task.history.nodes}))
        estimate_s = self.estimates.seconds(task.job, target.device)
        assignment = Assignment(target, request, exclude, reason, estimate_s)
        self.state = self.state.take(target, request)
        self.assignments[task.name] = assignment
        sent = replace(task, assignment=assignment, sent_s=self.now_s, slurm_job=None)
        self.active.append(sent)
        self.why.pop(task.name, None)

    def slots(
        self, requests: Mapping[DeviceKind, ResourceRequest], state: ClusterState
    ) -> list[Slots]:
        """Return the pools for jobs that ask for this, with own jobs in them."""
        return [
            Slots(pool.name, pool.account, pool.kind, pool.free + len(own), pool.free, tuple(own))
            for pool in state.free_slots(requests)
            for own in [self._running(pool.account, pool.kind)]
        ]

    def _running(self, account: str, kind: DeviceKind) -> list[Running]:
        """Return own jobs in the slots of a pool; what pends at a closed target holds none."""
        found = []
        for task in self.active:
            target = task.assignment.target if task.assignment else None
            if target is None or (target.account, target.device) != (account, kind):
                continue
            job = task.slurm_job
            start_s = job.start_s if job and job.state == "RUNNING" else None
            if start_s is None and self.state.why_closed(target):
                continue
            if start_s is None:  # it may wait as long again as it has
                start_s = 2 * self.now_s - task.pending_since_s
            end_s = start_s + self.estimates.seconds(task.job, kind)
            found.append(Running(task.name, start_s, end_s))
        return found
