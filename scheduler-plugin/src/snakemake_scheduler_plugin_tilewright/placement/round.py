"""One round of placing: which ready jobs start now, where, and why the others wait (pure)."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from ..cluster.request import DeviceKind, ResourceRequest, Target
from ..cluster.state import ClusterState
from .estimates import Estimates
from .jobs import Assignment, JobState
from .policy import schedule
from .reach import JobClass, Reach
from .workload import GpuSlots, Running, Slots, Workload

#: Sizes that one round tries, from the largest (no figure).
_PASSES = 6
#: Jobs of one device kind that wait in Slurm's queue for nodes that others fill (no figure).
_QUEUED = 4
_NO_SLOT = "no slot is free"


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
        self.reach = Reach(estimates, state)
        self.requests = self.reach.requests
        self.assignments: dict[str, Assignment] = {}
        self.why: dict[str, str] = {}
        self.most = math.inf
        self._short: dict[Hashable, str] = {}
        self._later: Sequence[JobState] = ()

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
        self.most, self._later = most, later
        for moved in (True, False):
            some = [task for task in ready if bool(task.excluded_targets) == moved]
            gpu_slots = self._place(some, gpu_slots)
        self._queue(task for task in ready if task.name in self.why)
        if self._enough():
            why = "Snakemake runs no more jobs at once (--jobs)"
            self.why |= {task.name: why for task in ready if task.name not in self.assignments}
        if self.state.budgeted():
            for task in ready:
                if task.name in self.why and (short := self._short_of(task)):
                    self.why[task.name] = short
        return gpu_slots

    def _place(self, rest: list[JobState], gpu_slots: GpuSlots) -> GpuSlots:
        for _ in range(_PASSES):
            rest = [task for task in rest if not self._waits_for_nodes(task)]
            fit = self._fitting(rest, self.state, note=True)
            if not fit or self._enough():
                break
            placed, gpu_slots = self._pass(fit, gpu_slots)
            if placed:
                rest = [task for task in rest if task.name not in placed]
            else:
                rest = self.requests.without_largest(fit)
        return gpu_slots

    def _fitting(
        self, tasks: list[JobState], state: ClusterState, *, note: bool = False
    ) -> list[JobState]:
        """Return the most jobs of each class of which the largest has a free slot.

        ``note`` has it noted why others have none.
        """
        free = {pool.target for pool in self._slots(tasks, state) if pool.free}
        found: list[JobState] = []
        for job_class, members in self.reach.by_class(tasks).items():
            fit = members if job_class & free else self._smaller(members, state)
            found += fit
            if note and len(fit) < len(members):
                self._note_no_slot(members, job_class)
        return found

    def _smaller(self, tasks: list[JobState], state: ClusterState) -> list[JobState]:
        """Return the most jobs of a class, the smallest first, of which the largest has a slot.

        A binary search: memory may follow the input, in 10,000 sizes.
        """

        def full(some: Sequence[JobState]) -> bool:
            return not any(pool.free for pool in self._slots(some, state))

        if not full(tasks):
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

    def _note_no_slot(self, tasks: list[JobState], job_class: JobClass) -> None:
        """Note why jobs have no slot, and of which only CPUs that stay free are in the way."""
        why = self._why_none(job_class)
        self.why |= dict.fromkeys((task.name for task in tasks), why)
        share = self.state.utilisation
        if why == _NO_SLOT and share < 1:
            whole = replace(self.state, utilisation=1.0)
            why += f" ({100 * (1 - share):.0f} % of an account's CPUs are kept free: utilisation)"
            fit = self._fitting(tasks, whole)
            self.why |= dict.fromkeys((task.name for task in fit), why)

    def _slots(self, tasks: Sequence[JobState], state: ClusterState) -> list[Slots]:
        """Return the slots of all targets of some jobs, each for the largest that may go there.

        CPU slots are next to later GPU jobs. Where those leave none, and no job runs whose slot
        will be free, they are not counted: they may wait for these.
        """
        asked = self.reach.largest(tasks)
        coming = self._later if all(target.device == "cpu" for target in asked) else ()
        every = self.reach.largest(coming).items()
        later = {target: one for target, one in every if target.device == "gpu"}
        pools = self.slots({**later, **asked}, state)
        if later:
            cpus = [pool for pool in pools if pool.kind == "cpu"]
            if not cpus or not (self.active or any(pool.free for pool in cpus)):
                pools = self.slots(asked, state)
        return pools

    def _waits_for_nodes(self, task: JobState) -> bool:
        """Note where a job asks for nodes with a feature, or a GPU type, that are all full.

        Slots are counted for any node: it would be given those on which it cannot run.
        """
        requests = self.requests.of(task).values()
        if not all(request.features or request.gpu_type for request in requests):
            return False
        full = all(self._full(*one) for one in self.targets(task))
        if full:
            self.why[task.name] = "the nodes that it asks for are full"
        return full

    def targets(self, task: JobState) -> list[tuple[Target, ResourceRequest]]:
        """Return where a job may go, with what it asks for there; see :meth:`Reach.targets`."""
        return self.reach.targets(task)

    def every_target(self, task: JobState) -> list[tuple[Target, ResourceRequest]]:
        """Return the same with those where it pended in vain."""
        return list(self.reach.every(task).items())

    def _short_of(self, task: JobState) -> str:
        """Return that no account's budget can end a job; empty where one can."""
        key = id(self.requests.of(task)), task.job.overrides.account, task.excluded_targets
        if key not in self._short:
            rests = [self.state.short_of(*one) for one in self.targets(task)]
            rest = "; ".join(dict.fromkeys(rests)) if all(rests) else ""
            why = f"no account's budget covers its time limit; what is left: {rest}"
            self._short[key] = why if rest else ""
        return self._short[key]

    def _pass(self, large: Sequence[JobState], gpu_slots: GpuSlots) -> tuple[set[str], GpuSlots]:
        pools = self._slots(large, self.state)
        may: dict[str, frozenset[str]] = {}
        for job_class, members in self.reach.by_class(large).items():
            own = frozenset(pool.name for pool in pools if pool.target in job_class)
            may |= dict.fromkeys((task.name for task in members), own)
        made = schedule(self.work, may, pools, self.now_s, gpu_slots, may)
        self.why |= made.waiting
        by_name = {task.name: task for task in large}
        where = {pool.name: pool.target for pool in pools}
        placed = set()
        for start in made.starts:
            task, target = by_name[start.job], where[start.pool]
            assert target is not None
            request = self.reach.every(task)[target]
            if self.state.fits(target, request) and not self._enough():
                self._start(task, target, request, start.reason)
                placed.add(start.job)
            else:
                held = self.state.on_nodes(target, request, now=True) != 0
                why = "its slot was filled in the same round" if held else "its nodes are full"
                self.why[start.job] = why
        return placed, made.gpu_slots

    def _why_none(self, job_class: JobClass) -> str:
        """Return why no slot is free: what closes all targets, where something does."""
        closed = [
            self.state.why_closed(target) for target in sorted(job_class, key=self.reach.order)
        ]
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
            for kind in task.job.kinds:
                elsewhere = served & {k for k in task.job.kinds if k != kind}
                targets = [one for one in self.targets(task) if one[0].device == kind]
                full = targets and all(self._full(*one) for one in targets)
                if pending[kind] >= _QUEUED or elsewhere or not full:
                    continue
                open_ = [one for one in targets if self.state.within_limits(*one)]
                least = min((self.state.rank(target) for target, _ in open_), default=0)
                if open_ := [one for one in open_ if self.state.rank(one[0]) == least]:
                    why = f"its {kind.upper()} nodes are full or reserved"
                    why += ", so it waits in Slurm's queue"
                    self._start(task, *open_[pending[kind] % len(open_)], why)
                    pending[kind] += 1
                    served.add(kind)
                    break

    def _full(self, target: Target, request: ResourceRequest) -> bool:
        return self.state.on_nodes(target, request, now=True) == 0

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

    def slots(self, requests: Mapping[Target, ResourceRequest], state: ClusterState) -> list[Slots]:
        """Return the slots for jobs that ask for this, with own jobs in them."""
        asked = {target: requests[target] for target in sorted(requests, key=self.reach.order)}
        running = self._running()
        free = state.free_slots(asked)
        return [
            Slots(
                target.name, target.account, target.device, now + len(own), now, own,
                self.reach.order(target)[-1], target,
            )
            for target in asked
            for now, own in [(free.get(target, 0), tuple(running.get(target, ())))]
            if now or own
        ]  # fmt: skip

    def _running(self) -> dict[Target, list[Running]]:
        """Return own jobs by target; what pends at a closed one holds no slot."""
        found: dict[Target, list[Running]] = {}
        for task in self.active:
            target = task.assignment.target if task.assignment else None
            if target is None:
                continue
            job = task.slurm_job
            start_s = job.start_s if job and job.state == "RUNNING" else None
            if start_s is None and self.state.why_closed(target):
                continue
            if start_s is None:  # it may wait as long again as it has
                start_s = 2 * self.now_s - task.pending_since_s
            end_s = start_s + self.estimates.seconds(task.job, target.device)
            found.setdefault(target, []).append(Running(task.name, start_s, end_s))
        return found
