"""One round of placing: which ready jobs start now, where, and why the others wait (pure)."""

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import attrgetter

from ..cluster.request import DeviceKind, ResourceRequest, Target
from ..cluster.room import Room
from ..cluster.state import ClusterState
from ..slurm.jobs import is_held
from .estimates import Estimates
from .jobs import Assignment, Job, JobState
from .policy import schedule
from .reach import Column, Reach, Reachable, budgeted, short_of
from .workload import GpuSlots, Running, Slots, Workload

#: Jobs of one device kind that wait in Slurm's queue for nodes that others fill (no figure).
_QUEUED = 4
_NO_SLOT = "no slot is free"


class _Candidates:
    """The targets of one device kind that may have room for jobs that are alike."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self.ranks = groupby(columns, key=attrgetter("rank"))
        #: Of one rank, the best one first: jobs of its account less those that it had room for as
        #: it was looked at, order, those, target.
        self.heap: list[tuple[int, int, int, Target]] = []
        #: Jobs that limits hold, which may be those of several partitions.
        self.known: dict[tuple[int, int], int] = {}
        #: How many jobs were taken when the first target was found to have room.
        self.checked = -1


class _Places:
    """Where the jobs of a round may start now (`policy.Places`), counted as they are asked for."""

    def __init__(
        self, reach: Reach, room: Room, tasks: Mapping[str, JobState], coming: Iterable[JobState]
    ) -> None:
        self.reach, self.room = reach, room
        self.of = {name: reach.of(task) for name, task in tasks.items()}
        #: Jobs by account: those that it took, and those whose account the user chose, to which the
        #: others leave its room.
        self.load = Counter(task.job.overrides.account for task in tasks.values())
        self.taken: dict[str, tuple[Target, ResourceRequest]] = {}
        self._candidates: dict[tuple[Reachable, DeviceKind], _Candidates] = {}
        every = dict.fromkeys(self.of.values())
        self._open = {(one, kind) for one in every for kind in one.requests}
        #: What as many GPU jobs leave as there is room for: CPU jobs start there.
        self.for_cpus = room
        self.gpus: Counter[Target] = Counter()
        every |= dict.fromkeys(map(reach.of, coming))
        if gpu := [one for one in every if "gpu" in one.requests]:
            self.for_cpus = room.copy()
            for one in sorted(gpu, key=_gpu_size, reverse=True):
                self._fill(one)

    def _fill(self, alike: Reachable) -> None:
        """Take the room of as many GPU jobs that are alike as there is for."""
        known: dict[tuple[int, int], int] = {}
        for column in alike.columns("gpu"):
            for target, _ in self._with_room(alike, column, self.for_cpus, known):
                request = alike.request(target)
                if request and (jobs := self.for_cpus.jobs(target, request)):
                    self.for_cpus.take(target, request, jobs)
                    self.gpus[target] += jobs * request.gpus

    def _with_room(
        self, alike: Reachable, column: Column, room: Room, known: dict[tuple[int, int], int]
    ) -> Iterator[tuple[Target, int]]:
        """Yield the targets of a column that may have room, and how many jobs limits hold."""
        request, shortest = alike.requests[column.kind], alike.shortest[column.kind]
        if room.on_nodes(column.where, shortest) == 0 or not alike.may_reach(column):
            return
        counted, least_min = self.reach.state.alike(column.where), request.required_min
        for target, account, longest in column.entries:
            if longest < least_min:
                continue
            # limits that hold in several partitions are counted once
            at = id(account.within(column.where)), counted
            if at not in known:
                known[at] = room.by_limits(account, column.where, shortest)[0]
            if known[at]:
                yield target, known[at]

    @property
    def any_free(self) -> bool:
        return bool(self._open)

    def key(self, job: Job) -> Reachable:
        return self.of[job.name]

    def may(self, job: Job, pool: Slots) -> bool:
        assert pool.target is not None
        return self.of[job.name].request(pool.target) is not None

    def first(self, job: Job, kind: DeviceKind) -> Slots | None:
        """Return the target of the lowest rank that has room for a job, then with the most."""
        asked = self.of[job.name], kind
        if asked not in self._open:
            return None
        target = self._first(*asked)
        if target is None:
            self._open.discard(asked)
            return None
        rank = self.reach.state.rank(target)
        return Slots(target.name, target.account, kind, 0, 0, (), rank, target)

    def _first(self, alike: Reachable, kind: DeviceKind) -> Target | None:
        found = self._candidates.get((alike, kind))
        if found is None:
            found = self._candidates[alike, kind] = _Candidates(alike.columns(kind))
        while True:
            while found.heap:
                before, order, jobs, target = found.heap[0]
                if (load := self.load[target.account] - jobs) != before:
                    heapq.heapreplace(found.heap, (load, order, jobs, target))
                elif found.checked == len(self.taken) or self._has_room(alike, target):
                    found.checked = len(self.taken)
                    return target
                else:
                    heapq.heappop(found.heap)
            if (columns := next(found.ranks, None)) is None:
                return None
            room = self.for_cpus if kind == "cpu" else self.room
            each = (self._with_room(alike, one, room, found.known) for one in columns[1])
            for order, (target, jobs) in enumerate(chain.from_iterable(each)):
                found.heap.append((self.load[target.account] - jobs, order, jobs, target))
            heapq.heapify(found.heap)

    def _has_room(self, alike: Reachable, target: Target) -> bool:
        where = self.reach.state.where(target)
        if self.room.on_nodes(where, alike.shortest[target.device]) == 0:
            return False
        request = alike.request(target)
        if request is None or not self.room.jobs(target, request):
            return False
        if target.device == "gpu" or self.for_cpus is self.room:
            return True
        return self.for_cpus.jobs(target, request) > 0

    def had_room(self, alike: Reachable) -> bool:
        """Return whether any target had room for jobs that are alike at the start."""
        found = [self._candidates.get((alike, kind)) for kind in alike.requests]
        return any(one is None or one.checked >= 0 for one in found)

    def fits_with_all_cpus(self, alike: Reachable) -> bool:
        """Return whether such a job has room if all CPUs of its account are counted."""
        columns, request = alike.columns("cpu"), alike.request
        targets = (to for one in columns for to, _ in self._with_room(alike, one, self.room, {}))
        return any((asked := request(to)) and self.room.fits(to, asked) for to in targets)

    def take(self, job: Job, pool: Slots) -> None:
        assert pool.target is not None
        request = self.of[job.name].request(pool.target)
        assert request is not None
        self.taken[job.name] = pool.target, request
        self.load[pool.account] += 1
        self.room.take(pool.target, request)
        if pool.kind == "cpu" and self.for_cpus is not self.room:
            self.for_cpus.take(pool.target, request)


class Round:
    """Fills the free capacity with ready jobs (pure).

    Attributes
    ----------
    assignments : dict of str to Assignment
        Jobs that start now.
    why : dict of str to str
        Why each other ready job waits.
    room : Room
        What they leave.
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
        self.reach, self.room = Reach(estimates, state), Room(state)
        self.assignments: dict[str, Assignment] = {}
        self.why: dict[str, str] = {}

    def place(
        self,
        ready: Sequence[JobState],
        later: Sequence[JobState],
        gpu_slots: GpuSlots,
        most: float = math.inf,
    ) -> GpuSlots:
        """Place the ready jobs, ``most`` at most; return what the next round has to know.

        Those that were moved go first. CPU jobs leave room to GPU jobs that come later; where that
        leaves none, and no job runs whose slot will be free, they do not: those may wait for these.
        """
        found = self._place(ready, later, gpu_slots, most)
        if later and not (self.assignments or self._running()):
            found = self._place(ready, (), gpu_slots, most)
        if len(self.assignments) < most:
            self._queue((task for task in ready if task.name in self.why), most)
        if len(self.assignments) >= most:
            why = "Snakemake runs no more jobs at once (--jobs)"
            self.why |= {task.name: why for task in ready if task.name not in self.assignments}
        if budgeted(self.state):
            self._note_budgets(task for task in ready if task.name in self.why)
        return found

    def _place(
        self, ready: Sequence[JobState], later: Sequence[JobState], gpu_slots: GpuSlots, most: float
    ) -> GpuSlots:
        tasks = {task.name: task for task in ready}
        places = _Places(self.reach, self.room, tasks, later)
        moved = {task.name for task in ready if task.moves}
        pools = list(self._pools(places.gpus))
        made = schedule(self.work, tasks, pools, self.now_s, gpu_slots, places, moved, most)
        self.why = dict(made.waiting)
        for start in made.starts:
            self._start(tasks[start.job], *places.taken[start.job], start.reason)
        for alike, names in _grouped({name: places.of[name] for name in made.waiting}):
            if not places.had_room(alike):
                self.why |= dict.fromkeys(names, self._why_none(alike, places))
        return made.gpu_slots

    def _why_none(self, alike: Reachable, places: _Places) -> str:
        """Return why no slot is free: what closes all targets, where something does."""
        share = self.state.utilisation
        if self.state.closed:
            closed = [self.state.why_closed(target) for target in alike.every()]
            if all(closed) and closed:
                return f"{_NO_SLOT}: {'; '.join(dict.fromkeys(closed))}"
        asks = any(one.features or one.gpu_type for one in alike.requests.values())
        every = alike.every() if asks else {}
        if every and all(self._full(*one) for one in every.items()):
            return "the nodes that it asks for are full"
        if share < 1 and places.fits_with_all_cpus(alike):
            percent = f"{100 * (1 - share):.0f} %"
            return f"{_NO_SLOT} ({percent} of an account's CPUs are kept free: utilisation)"
        return _NO_SLOT

    def _note_budgets(self, tasks: Iterable[JobState]) -> None:
        """Note of which jobs no account's budget can end them."""
        for alike, names in _grouped({task.name: self.reach.of(task) for task in tasks}):
            rests = [short_of(self.state, *one) for one in alike.every().items()]
            if rests and all(rests):
                rest = "; ".join(dict.fromkeys(rests))
                why = f"no account's budget covers its time limit; what is left: {rest}"
                self.why |= dict.fromkeys(names, why)

    def _queue(self, ready: Iterable[JobState], most: float) -> None:
        """Send to nodes, or accounts, that others fill jobs that nothing else takes."""
        # They gain priority in the queue; without, jobs that others send later would start first.
        # That is where no other device kind runs own jobs, whose slots come free. A few at a time:
        # what waits there can go nowhere else without being cancelled.
        own = [(one.assignment.target.device, one) for one in self.active if one.assignment]
        served = {kind for kind, _ in own}
        free = [kind for kind, one in own if not (one.slurm_job and is_held(one.slurm_job))]
        pending = Counter(free) - Counter(kind for kind, one in own if one.slurm_state == "RUNNING")
        no_use = set[tuple[Reachable, DeviceKind]]()
        for task in ready:
            if len(self.assignments) >= most:
                break
            alike = self.reach.of(task)
            for kind in task.job.kinds:
                elsewhere = served & {k for k in task.job.kinds if k != kind}
                if pending[kind] >= _QUEUED or elsewhere or (alike, kind) in no_use:
                    continue
                open_ = self._open_full(alike, kind)
                if not open_:
                    no_use.add((alike, kind))
                    continue
                target, request = open_[pending[kind] % len(open_)]
                why = f"its {kind.upper()} nodes are full or reserved"
                if self._others_wait(target):
                    why = "other jobs wait for the same account"
                self.room.take(target, request)
                self._start(task, target, request, f"{why}, so it waits in Slurm's queue")
                pending[kind] += 1
                served.add(kind)
                break

    def _open_full(
        self, alike: Reachable, kind: DeviceKind
    ) -> list[tuple[Target, ResourceRequest]]:
        """Return the targets of the lowest rank, within limits or none is, if all are full."""
        every = [one for one in alike.every().items() if one[0].device == kind]
        if not every or not all(self._full(*one) for one in every):
            return []
        open_ = [one for one in every if self.room.within_limits(*one)]
        if not open_:
            shut = self.state.avoided.keys() | self.state.closed.keys()
            open_ = [one for one in every if one[0] not in shut and self._others_wait(one[0])]
        least = min((self.state.rank(target) for target, _ in open_), default=0)
        return [one for one in open_ if self.state.rank(one[0]) == least]

    def _full(self, target: Target, request: ResourceRequest) -> bool:
        """Return whether a target has no room: its nodes, or limits for which others wait."""
        if target in self.state.avoided:
            return True
        full = self.room.on_nodes(self.state.where(target), request) == 0
        return full or (self._others_wait(target) and not self.room.within_limits(target, request))

    def _others_wait(self, target: Target) -> bool:
        """Return whether jobs of others pend for what limits a target."""
        account, where = self.state.account(target.account, target.qos), self.state.where(target)
        used = [scope.used or {} for scope in account.within(where).scopes] if account else []
        tasks = (one.assignment for one in self.active if one.pending)
        own = sum(one is not None and one.target.account == target.account for one in tasks)
        return any(one.get("submit", 0) - one.get("jobs", 0) > own for one in used)

    def _start(self, task: JobState, target: Target, request: ResourceRequest, reason: str) -> None:
        """Send a job to a target that takes it."""
        exclude = tuple(sorted({*self.bad_nodes[target.device], *task.history.nodes}))
        estimate_s = self.estimates.seconds(task.job, target.device)
        assignment = Assignment(target, request, exclude, reason, estimate_s)
        self.assignments[task.name] = assignment
        sent = replace(task, assignment=assignment, sent_s=self.now_s, slurm_job=None)
        self.active.append(sent)
        self.why.pop(task.name, None)

    def _pools(self, gpus: Mapping[Target, int]) -> Iterator[Slots]:
        """Yield own jobs by target; GPUs, not their jobs, are counted, which are of many sizes."""
        running, held = self._running(), Counter[Target]()
        for task in self.active:
            if task.assignment:
                held[task.assignment.target] += max(1, task.assignment.request.gpus)
        for target in {**running, **gpus}:
            own = tuple(running.get(target, ()))
            rank = self.state.rank(target)
            slots = held[target] + gpus.get(target, 0)
            yield Slots(target.name, target.account, target.device, slots, 0, own, rank, target)

    def _running(self) -> dict[Target, list[Running]]:
        """Return own jobs by target; what is held, or pends at a closed one, has no slot."""
        found: dict[Target, list[Running]] = {}
        for task in self.active:
            job = task.slurm_job
            if task.assignment is None or (job and is_held(job)):
                continue
            target = task.assignment.target
            start_s = job.start_s if job and job.state == "RUNNING" else None
            if start_s is None:
                if self.state.why_closed(target):
                    continue
                start_s = 2 * self.now_s - task.pending_since_s  # as long again as it has waited
            end_s = start_s + self.estimates.seconds(task.job, target.device)
            found.setdefault(target, []).append(Running(task.name, start_s, end_s))
        return found


def _grouped(of: Mapping[str, Reachable]) -> Iterable[tuple[Reachable, list[str]]]:
    """Return the names of jobs that are alike together."""
    found: dict[Reachable, list[str]] = {}
    for name, alike in of.items():
        found.setdefault(alike, []).append(name)
    return found.items()


def _gpu_size(alike: Reachable) -> tuple[int, int, int]:
    request = alike.requests["gpu"]
    return request.gpus, request.cpus, request.mem_mb
