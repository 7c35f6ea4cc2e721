"""The simulated slurmctld: jobs, limits, nodes and its cycle, from event to event in virtual time.

It follows the sources of Slurm where they matter to a user: limits as ``acct_policy.c`` counts
them (a QOS before associations, TRES by TRES), the order of ``sort_job_queue``, and backfill that
starts a job before others only where it does not delay the first of each partition.
"""

import heapq
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from .limits import Limits
from .records import Change, Kind, OtherJob, Partition, Request, Scenario, Task, Tres, holds

#: Seconds between cycles: ``bf_interval`` of Slurm.
CYCLE_S = 30.0
#: Jobs of each partition for which nodes are kept free, on a node each (no figure).
_PLANNED = 3


@dataclass(eq=False)
class SlurmJob:
    """One job of the simulated Slurm."""

    id: int
    user: str
    account: str
    qos: str
    partitions: tuple[str, ...]
    request: Request
    submit_s: float
    run_s: float = 0.0
    name: str = ""
    comment: str = ""
    workdir: str = ""
    exclude: frozenset[str] = frozenset()
    state: str = "PENDING"
    reason: str = "None"
    partition: str = ""
    node: str = ""
    start_s: float | None = None
    end_s: float | None = None
    exit: str = "0:0"
    derived: str = "0:0"
    planned_s: float | None = None
    tres: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.tres = self.request.tres
        self.partition = ",".join(self.partitions)

    @property
    def active(self) -> bool:
        """Whether it pends or runs."""
        return self.state in ("PENDING", "RUNNING")

    @property
    def limit_s(self) -> float:
        """When its time limit ends it, once it runs."""
        return (self.start_s or 0.0) + 60.0 * self.request.minutes


@dataclass
class _Room:
    """What a node has free, what runs there, and for whom it is kept from a time on."""

    total: Tres
    free: dict[str, int]
    state: str = "IDLE"
    jobs: dict[int, SlurmJob] = field(default_factory=dict)
    kept_s: float | None = None
    spare: dict[str, int] = field(default_factory=dict)


class Scheduler:
    """The state of a simulated cluster at ``clock_s``.

    Attributes
    ----------
    twice : int
        Jobs of the workflow that ran although one with the same comment runs, or is completed.
    lost_s : float
        Seconds that jobs ran of which nothing came.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock_s = min([0.0, *(one.at_s for one in scenario.others)])
        self.jobs: dict[int, SlurmJob] = {}
        self.pending: dict[int, SlurmJob] = {}
        self.limits = Limits(scenario)
        self.partitions = {one.name: one for one in scenario.partitions}
        self.rooms = {n.name: _Room(n.tres, dict(n.tres)) for n in scenario.nodes}
        self.tasks = {task.name: task for task in scenario.tasks}
        self.tries: Counter[str] = Counter()
        self.done_s: dict[str, float] = {}
        self.twice, self.lost_s = 0, 0.0
        self._running: Counter[str] = Counter()
        self._ids, self._order = itertools.count(1000), itertools.count()
        self._events: list[tuple[float, int, object]] = []
        self._cycle_s: float | None = None
        rng = random.Random(scenario.seed)
        self._share: defaultdict[tuple[str, str], float] = defaultdict(lambda: rng.uniform(0, 500))
        events: list[OtherJob | Change] = [*scenario.others, *scenario.changes]
        for one in events:
            self._push(one.at_s, one)
        self.advance(0.0)

    def advance(self, to_s: float) -> None:
        """Let happen what happens until a time."""
        while self._events and self._events[0][0] <= to_s:
            at_s, _, event = heapq.heappop(self._events)
            self.clock_s = max(self.clock_s, at_s)
            match event:
                case SlurmJob():
                    if event.state == "RUNNING" and event.end_s == at_s:
                        self._finish(event)
                case OtherJob():
                    self._other(event)
                case Change():
                    self._change(event)
                case _:
                    self._cycle_s = None
                    self._cycle()
        self.clock_s = max(self.clock_s, to_s)

    def next_event_s(self) -> float:
        """Return when something happens next."""
        return self._events[0][0] if self._events else float("inf")

    def submit(self, job: SlurmJob) -> SlurmJob:
        """Take a job, and start it at once where it is the first of its partition."""
        self.jobs[job.id] = self.pending[job.id] = job
        self._count(job, 1, {"submit": 1})
        first = self.priority(job)
        if all(self.priority(one) < first for one in self.pending.values()
               if one is not job and {*one.partitions} & {*job.partitions}):  # fmt: skip
            self._cycle([job])
        self.wake()
        return job

    def new_id(self) -> int:
        """Return the number of the next job."""
        return next(self._ids)

    def wake(self) -> None:
        """Have a cycle at its next time, as something changed."""
        if self._cycle_s is None:
            self._cycle_s = CYCLE_S * (self.clock_s // CYCLE_S + 1)
            self._push(self._cycle_s, None)

    def end(self, job: SlurmJob, state: str, code: str = "0:0") -> None:
        """End a job now."""
        if job.state == "RUNNING":
            room = self.rooms[job.node]
            del room.jobs[job.id]
            for tres, n in job.tres.items():
                if tres != "node":
                    room.free[tres] += n
            self._count(job, -1, {**job.tres, "jobs": 1})
            self._running[job.comment] -= 1
            if state != "COMPLETED" and job.comment in self.tasks:
                self.lost_s += self.clock_s - (job.start_s or 0.0)
        self.pending.pop(job.id, None)
        self._count(job, -1, {"submit": 1})
        job.state, job.end_s, job.exit = state, self.clock_s, code
        job.start_s = job.start_s if job.start_s is not None else self.clock_s
        self.wake()

    def recount(self, job: SlurmJob, account: str, qos: str) -> None:
        """Move a pending job to another account and QOS; its number and its age stay."""
        self._count(job, -1, {"submit": 1})
        job.account, job.qos = account, qos
        self._count(job, 1, {"submit": 1})

    def invalid(self, job: SlurmJob, where: Partition) -> str:
        """Return why a job may never start in a partition as things are; empty where it may."""
        qos = self.limits.qos.get(job.qos)
        if where.accounts is not None and job.account not in where.accounts:
            return "AccountNotAllowed"
        if where.qos is not None and job.qos not in where.qos:
            return "QOSNotAllowed"
        if where.longest_min is not None and job.request.minutes > where.longest_min:
            return "PartitionTimeLimit"
        if qos and qos.longest_min is not None and job.request.minutes > qos.longest_min:
            return "QOSMaxWallDurationPerJobLimit"
        return ""

    def can_hold(self, request: Request, partitions: Iterable[str]) -> bool:
        """Return whether some node of the partitions, if empty, holds a job."""
        names = {name for one in partitions for name in self.partitions[one].nodes}
        return any(holds(self.rooms[name].total, request.tres) for name in names)

    def priority(self, job: SlurmJob) -> float:
        """Return the priority of a job: its QOS, its user's share, and a point a minute of age."""
        qos = self.limits.qos.get(job.qos)
        base = 10.0 * qos.priority if qos else 0.0
        return base + self._share[job.user, job.account] + (self.clock_s - job.submit_s) / 60

    def _push(self, at_s: float, event: object) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), event))

    def _count(self, job: SlurmJob, sign: int, amounts: Tres) -> None:
        self.limits.count(job.user, job.account, job.qos, sign, amounts)

    def _cycle(self, only: Iterable[SlurmJob] | None = None) -> None:
        """Start what may start now; of the others note why they wait."""
        for room in self.rooms.values():
            room.kept_s = None
        for job in self.pending.values():
            job.planned_s = None
        queue = [
            (-where.tier, -self.priority(job), job.id, n, where, job)
            for job in (self.pending.values() if only is None else only)
            for n, where in enumerate(self.partitions[name] for name in job.partitions)
        ]
        queue.sort(key=lambda row: row[:4])
        full, limited, waits = set[object](), dict[object, str](), Counter[str]()
        for *_, where, job in queue:
            if job.state != "PENDING":
                continue
            if why := self.invalid(job, where):
                job.reason = why
                continue
            size = tuple(job.tres.items())
            of = job.account, job.user, job.qos, size
            if of not in limited:
                limited[of] = self.limits.reached(job.user, job.account, job.qos, job.tres)
            if limited[of]:
                job.reason = limited[of]
                continue
            shape = where.name, size, job.request.minutes, job.exclude
            if shape not in full and self._place(job, where):
                limited = {key: why for key, why in limited.items() if why}
                continue
            full.add(shape)
            job.reason = self._why_full(job, where, first=not waits[where.name])
            if waits[where.name] < _PLANNED and only is None:
                self._plan(job, where)
            waits[where.name] += 1

    def _why_full(self, job: SlurmJob, where: Partition, *, first: bool) -> str:
        up = [n for n in where.nodes if self.rooms[n].state == "IDLE" and n not in job.exclude
              and holds(self.rooms[n].total, job.tres)]  # fmt: skip
        if up:
            return "Resources" if first else "Priority"
        down = ",".join(n for n in where.nodes if self.rooms[n].state != "IDLE")
        return f"ReqNodeNotAvail, UnavailableNodes:{down}" if down else "BadConstraints"

    def _place(self, job: SlurmJob, where: Partition) -> bool:
        """Start a job on the first node that has room, or whose jobs of a lower tier end for it."""
        rooms = [(name, self.rooms[name]) for name in where.nodes if name not in job.exclude]
        rooms = [row for row in rooms if row[1].state == "IDLE"]
        end_s = self.clock_s + 60 * job.request.minutes
        for name, room in rooms:
            if not holds(room.free, job.tres):
                continue
            late = room.kept_s is not None and end_s > room.kept_s
            if late and not holds(room.spare, job.tres):
                continue
            if late:
                for tres in room.spare:
                    room.spare[tres] -= job.tres.get(tres, 0)
            self._start(job, where, name)
            return True
        for name, room in rooms:
            lower = [one for one in room.jobs.values()
                     if self.partitions[one.partition].tier < where.tier]  # fmt: skip
            ended = dict(room.free)
            victims = []
            for one in sorted(lower, key=lambda one: -(one.start_s or 0)):
                if holds(ended, job.tres):
                    break
                victims.append(one)
                for tres in ended:
                    ended[tres] += one.tres.get(tres, 0)
            if victims and holds(ended, job.tres):
                for one in victims:
                    self.end(one, "PREEMPTED", "0:15")
                self._start(job, where, name)
                return True
        return False

    def _plan(self, job: SlurmJob, where: Partition) -> None:
        """Keep the node free that a job will have first, from then on, by the time limits."""
        best: tuple[float, _Room, dict[str, int]] | None = None
        for name in where.nodes:
            room = self.rooms[name]
            if (room.state != "IDLE" or room.kept_s is not None or name in job.exclude
                    or not holds(room.total, job.tres)):  # fmt: skip
                continue
            free, at_s = dict(room.free), self.clock_s
            for one in sorted(room.jobs.values(), key=lambda one: one.limit_s):
                if holds(free, job.tres):
                    break
                at_s = one.limit_s
                for tres in free:
                    free[tres] += one.tres.get(tres, 0)
            if best is None or at_s < best[0]:
                best = at_s, room, free
        if best is not None:
            job.planned_s, room, free = best
            room.kept_s = job.planned_s
            # what runs beyond that time holds the rest
            room.spare = {tres: n - job.tres.get(tres, 0) for tres, n in free.items()}

    def _start(self, job: SlurmJob, where: Partition, node: str) -> None:
        del self.pending[job.id]
        room = self.rooms[node]
        room.jobs[job.id] = job
        for tres, n in job.tres.items():
            if tres != "node":
                room.free[tres] -= n
        self._count(job, 1, {**job.tres, "jobs": 1})
        job.state, job.reason, job.partition, job.node = "RUNNING", "None", where.name, node
        job.start_s = self.clock_s
        if task := self.tasks.get(job.comment):
            self.tries[task.name] += 1
            self.twice += self._running[task.name] > 0 or task.name in self.done_s
            job.run_s = self._seconds(job, task)
        self._running[job.comment] += 1
        job.end_s = min(job.start_s + job.run_s, job.limit_s)
        self._push(job.end_s, job)

    def _seconds(self, job: SlurmJob, task: Task) -> float:
        """Return how long a try runs by itself; what fails does so on the way."""
        kind: Kind = "gpu" if job.request.gpus else "cpu"
        seconds = task.true_s.get(kind) or max(task.true_s.values())
        if self.tries[task.name] <= task.failures:
            job.exit = "1:0"
            return 0.3 * seconds
        asked = task.requests.get(kind)
        if asked and job.request.mem_mb < task.memory * asked.mem_mb:
            job.exit, job.derived = "1:0", "0:125"  # of a step, as every job of Snakemake is
            return 0.6 * seconds
        return seconds

    def _finish(self, job: SlurmJob) -> None:
        timeout = job.start_s is not None and job.start_s + job.run_s > job.limit_s
        if timeout:
            job.derived = "0:0"
            self.end(job, "TIMEOUT")
            job.reason = "TimeLimit"
        elif job.exit != "0:0":
            self.end(job, "FAILED", job.exit)
            job.reason = "NonZeroExitCode"
        else:
            self.end(job, "COMPLETED")
            if job.comment in self.tasks:
                self.done_s.setdefault(job.comment, self.clock_s)

    def _other(self, one: OtherJob) -> None:
        job = SlurmJob(self.new_id(), one.user, one.account, one.qos, (one.partition,), one.request,
                       self.clock_s, one.run_s, "other", workdir="/home")  # fmt: skip
        self.submit(job)

    def _change(self, change: Change) -> None:
        if change.what == "limit":
            self.limits.group[change.name] = change.limit
        else:
            room = self.rooms[change.name]
            room.state = {"drain": "DRAIN", "fail": "DOWN", "resume": "IDLE"}[change.what]
            if change.what == "fail":
                for job in list(room.jobs.values()):
                    self.end(job, "NODE_FAIL", "0:0")
                    job.reason = "NodeDown"
        self.wake()
