"""Who goes where now: ready jobs, free slots and the clock in, places out; nothing is read.

List scheduling (HEFT; Topcuoglu, Hariri and Wu 2002, doi:10.1109/71.993206): the job that most work
waits for comes first, and takes the slot in which it ends first, among those that are free and
those that will be. Jobs whose slot is free start; the others wait for a slot that ends them sooner.

Two jobs of 100 s on a CPU and 10 s on a GPU share one slot of each: one starts on the GPU, and
the other waits for it, which ends it sooner than the CPU.

>>> jobs = [Job("a", "r", KINDS, cpu_seconds=100), Job("b", "r", KINDS, cpu_seconds=100)]
>>> work = Workload(jobs, {("r", "gpu"): 0.1, ("r", "cpu"): 1.0})
>>> pools = [Slots("lab_gpu", "lab", "gpu", 1, 1), Slots("lab_cpu", "lab", "cpu", 1, 1)]
>>> choice = schedule(work, ["a", "b"], pools, 0.0, GpuSlots())
>>> [(start.job, start.pool, start.end_s) for start in choice.starts]
[('a', 'lab_gpu', 10.0)]
>>> choice.waiting
{'b': 'a GPU that falls free ends it sooner than a CPU'}
"""

import heapq
import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from ..cluster.request import KINDS, DeviceKind
from .jobs import Job
from .workload import Choice, Decision, GpuSlots, Running, Slots, Workload

_REASONS = {"gpu": "a GPU slot is free", "cpu": "a CPU slot ends it first"}
#: GPU slots that were lost and are expected back, of whatever account.
_LOST = Slots("", "", "gpu", 0, 0)


class Places(Protocol):
    """Where jobs may start now; what takes a job changes."""

    @property
    def any_free(self) -> bool:
        """Whether some job may still start."""

    def key(self, job: Job) -> Hashable:
        """Return what is the same for jobs that may go to the same pools."""

    def may(self, job: Job, pool: Slots) -> bool:
        """Return whether a job may go to a pool, now or later."""

    def first(self, job: Job, kind: DeviceKind) -> Slots | None:
        """Return the pool where a job may start now, None where there is none."""

    def take(self, job: Job, pool: Slots) -> None:
        """Start a job in a pool."""


def schedule(
    work: Workload,
    ready: Iterable[str],
    pools: Sequence[Slots],
    clock_s: float,
    gpu_slots: GpuSlots,
    places: Places | None = None,
    moved: Collection[str] = (),
    most: float = math.inf,
) -> Choice:
    """Decide which ready jobs start now, and where.

    Parameters
    ----------
    pools : sequence of Slots
        Slots of each account and kind, with the jobs in them.
    gpu_slots : GpuSlots
        What the round before knew of the number of GPU slots.
    places : Places, optional
        Where jobs may start now; the free slots of the pools, if it is not given.
    moved : collection of str
        Jobs that go before all others.
    most : float
        Jobs that start at most.

    Examples
    --------
    >>> work = Workload([Job("a", "r", KINDS)], {("r", "gpu"): 0.1, ("r", "cpu"): 1.0})
    >>> schedule(work, ["a"], [Slots("g", "lab", "gpu", 1, 1)], 0.0, GpuSlots()).starts[0].pool
    'g'
    """
    counted = gpu_slots.counted(sum(p.slots for p in pools if p.kind == "gpu"), clock_s)
    jobs = sorted(map(work.index.__getitem__, ready), key=work.place.__getitem__)
    jobs.sort(key=lambda i: work.jobs[i].name not in moved)
    places = places or FreeSlots([work.jobs[i] for i in jobs], pools)
    starts: list[Decision] = []
    for returns_s in (counted.returns_s(clock_s), []):
        timetable = _Schedule(work, jobs, pools, clock_s, returns_s, places)
        starts = list(islice(timetable.starts(), None if most == math.inf else int(most)))
        if starts or any(pool.running for pool in pools):
            break  # otherwise nothing would tell that a job waits in vain for a lost slot
    placed = {start.job for start in starts}
    waiting = [work.jobs[i] for i in jobs if work.jobs[i].name not in placed]
    return Choice(tuple(starts), timetable.reasons(waiting), counted)


def expected_end_s(run: Running, now_s: float) -> float:
    """Return when a running job ends, in seconds of the clock.

    One that is late runs as much longer as it is late, at least 5 % (no figure) of its time so far.

    >>> expected_end_s(Running("a", 0, 100), 50), expected_end_s(Running("a", 0, 100), 120)
    (100, 140)
    """
    late_s, least_s = now_s - run.end_s, 0.05 * (now_s - run.start_s)
    return run.end_s if late_s < 0 else now_s + max(late_s, least_s, 1e-6)  # later than now


class FreeSlots:
    """The free slots of pools, in which jobs of any size fit."""

    def __init__(self, jobs: Iterable[Job], pools: Sequence[Slots]) -> None:
        self.pools, self.free = pools, {pool.name: pool.fillable for pool in pools}
        #: Jobs whose account the user chose, by account: the others leave them its slots.
        self.chosen = Counter(job.overrides.account for job in jobs)

    @property
    def any_free(self) -> bool:
        """Whether a slot is free."""
        return any(self.free.values())

    def key(self, job: Job) -> Hashable:
        """Return the account that the user chose."""
        return job.overrides.account

    def may(self, job: Job, pool: Slots) -> bool:
        """Return whether a pool is of the account that the user chose, where he did."""
        return job.overrides.account in (None, pool.account)

    def first(self, job: Job, kind: DeviceKind) -> Slots | None:
        """Return the pool of the lowest rank, then with the most slots to spare."""
        own = (p for p in self.pools if p.kind == kind and self.free[p.name] and self.may(job, p))
        spare = lambda p: (p.rank, self.chosen[p.account] - self.free[p.name])  # noqa: E731
        return min(own, key=spare, default=None)

    def take(self, job: Job, pool: Slots) -> None:
        """Take a slot of a pool."""
        self.free[pool.name] -= 1


class _NextSlots:
    """The pools of one kind for jobs of one key, by the time of the next slot."""

    def __init__(self, kind: DeviceKind) -> None:
        self.kind = kind
        self.heap: list[tuple[float, int, str]] = []
        self.seen = 0  # how many of `_Schedule._earlier` it has had


#: The pools of a kind for a job, its seconds there, and those with a margin.
_Option = tuple[_NextSlots, float, float]


class _Schedule:
    """The times at which slots fall free, as jobs take them one after the other."""

    def __init__(
        self,
        work: Workload,
        jobs: Sequence[int],
        pools: Sequence[Slots],
        clock_s: float,
        returns_s: Sequence[float],
        places: Places,
    ) -> None:
        self.work, self.jobs, self.clock_s, self.places = work, jobs, clock_s, places
        self.pools = {pool.name: pool for pool in (*pools, _LOST)}
        #: For each pool a heap of the times at which its taken slots fall free.
        self.times: dict[str, list[float]] = {}
        for pool in pools:
            ends = sorted(expected_end_s(run, clock_s) for run in pool.running)
            # where a pool has shrunk, the first slots to fall free are not filled again
            self.times[pool.name] = ends[max(0, len(ends) + pool.fillable - pool.slots) :]
        later_s = math.nextafter(clock_s, math.inf)
        self.times[_LOST.name] = sorted(max(at, later_s) for at in returns_s)
        #: The pools of each kind, once more each time that their next slot became an earlier one.
        self._earlier: dict[DeviceKind, list[Slots]] = {kind: [] for kind in KINDS}
        for pool in self.pools.values():
            if self.times[pool.name]:
                self._earlier[pool.kind].append(pool)
        self._lines: dict[tuple[DeviceKind, Hashable], _NextSlots] = {}
        self._alike: dict[tuple[Hashable, float, float, float], list[_Option]] = {}

    def starts(self) -> Iterator[Decision]:
        """Yield the jobs that start now; each job takes its slot's time."""
        for i in self.jobs:
            if not self.places.any_free:
                return
            job = self.work.jobs[i]
            if (found := self._soonest(job, self._lines_of(i))) is None:
                continue
            line, pool, start_s, seconds = found
            if start_s > self.clock_s:
                heapq.heapreplace(self.times[pool.name], start_s + seconds)
                continue
            self.places.take(job, pool)
            self._fill(pool, start_s + seconds)
            reason = _REASONS[line.kind]
            if job.overrides.account is not None:
                reason = "the account that was chosen for it has a slot"
            yield Decision(job.name, pool.name, start_s, start_s + seconds, reason)

    def _lines_of(self, i: int) -> list[_Option]:
        """Return the lines of a job, one for each device kind that it may use."""
        (gpu_s, cpu_s), margin = self.work.seconds, self.work.margin[i]
        key = self.places.key(self.work.jobs[i])
        alike = key, gpu_s[i], cpu_s[i], margin
        found = self._alike.get(alike)
        if found is None:
            found = self._alike[alike] = []
            for kind, seconds in zip(KINDS, alike[1:3], strict=True):
                if seconds < math.inf:
                    line = self._lines.setdefault((kind, key), _NextSlots(kind))
                    # one that a GPU could run too may take longer on CPUs than estimated
                    found.append((line, seconds, seconds * (1 + margin) if found else seconds))
        return found

    def _soonest(
        self, job: Job, lines: Iterable[_Option]
    ) -> tuple[_NextSlots, Slots, float, float] | None:
        """Return the line in which a job ends first, its pool, start, and seconds."""
        best, best_s = None, math.inf
        for line, seconds, with_margin_s in lines:
            start_s = self.clock_s
            pool = self.places.first(job, line.kind)
            if pool is None:
                if (pool := self._next(line, job)) is None:
                    continue
                start_s = self.times[pool.name][0]
            if start_s + with_margin_s < best_s:
                best, best_s = (line, pool, start_s, seconds), start_s + with_margin_s
        return best

    def _next(self, line: _NextSlots, job: Job) -> Slots | None:
        """Return the pool that may take a job and has a slot that falls free first."""
        earlier = self._earlier[line.kind]
        for pool in earlier[line.seen :]:
            heapq.heappush(line.heap, self._entry(pool))
        line.seen = len(earlier)
        while line.heap:
            at_s, _, name = line.heap[0]
            pool = self.pools[name]
            if at_s != self.times[name][0]:  # it was taken since
                heapq.heapreplace(line.heap, self._entry(pool))
            elif self._may(job, pool, line.kind):
                return pool
            else:
                heapq.heappop(line.heap)
        return None

    def _may(self, job: Job, pool: Slots, kind: DeviceKind) -> bool:
        return pool.kind == kind and (pool is _LOST or self.places.may(job, pool))

    def _entry(self, pool: Slots) -> tuple[float, int, str]:
        return self.times[pool.name][0], pool.rank, pool.name

    def _fill(self, pool: Slots, end_s: float) -> None:
        """Note when a slot falls free that was free until now."""
        self.pools[pool.name] = pool
        times = self.times.setdefault(pool.name, [])
        if not times or end_s < times[0]:
            self._earlier[pool.kind].append(pool)
        heapq.heappush(times, end_s)

    def reasons(self, jobs: Sequence[Job]) -> Mapping[str, str]:
        """Return why jobs were not placed, by name."""
        keys = [(job.kinds, self.places.key(job)) for job in jobs]
        why = {key: self._reason(job) for key, job in dict(zip(keys, jobs, strict=True)).items()}
        return {job.name: why[key] for key, job in zip(keys, jobs, strict=True)}

    def _reason(self, job: Job) -> str:
        if any(self.places.first(job, kind) for kind in job.kinds):
            return "a GPU that falls free ends it sooner than a CPU"
        account, pools = job.overrides.account, self.pools.values()
        if any(self._may(job, p, kind) for p in pools for kind in job.kinds if p is not _LOST):
            return "every slot it may use is taken"
        slot = f"{' or '.join(kind.upper() for kind in job.kinds)} slot for it"
        return f"account {account} has no {slot}" if account else f"no account has a {slot}"
