"""Who goes where now: ready jobs, free slots and the clock in, places out; nothing is read.

List scheduling (HEFT; Topcuoglu, Hariri and Wu 2002, doi:10.1109/71.993206): the job that most work
waits for comes first, and takes the slot in which it ends first, among those that are free and
those that will be. Jobs whose slot is free start; the others wait for a slot that ends them sooner.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..cluster.request import KINDS
from .jobs import Job
from .workload import Choice, Decision, GpuSlots, Running, Slots, Workload

_REASONS = ("a GPU slot is free", "a CPU slot ends it first")


def schedule(
    work: Workload,
    ready: Iterable[str],
    pools: Sequence[Slots],
    clock_s: float,
    gpu_slots: GpuSlots,
    may: Mapping[str, frozenset[str]] = {},
) -> Choice:
    """Decide which ready jobs start now, and where.

    Parameters
    ----------
    work : Workload
        All jobs with estimates.
    ready : iterable of str
        Jobs that can start.
    pools : sequence of Slots
        Slots of each account and kind.
    clock_s : float
        Now, in seconds.
    gpu_slots : GpuSlots
        What the round before knew of the number of GPU slots.
    may : mapping, optional
        Job to the names of the pools that can take it; all where it is not there.

    Examples
    --------
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
    counted = gpu_slots.counted(sum(p.slots for p in pools if p.kind == "gpu"), clock_s)
    jobs = sorted(map(work.index.__getitem__, ready), key=work.by_chain.place.__getitem__)
    starts: list[Decision] = []
    for returns_s in (counted.returns_s(clock_s), []):
        timetable = _Schedule(work, jobs, pools, clock_s, returns_s, may)
        starts = list(timetable.starts())
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


class _Schedule:
    """The times at which slots are free, as jobs take them one after the other."""

    def __init__(
        self,
        work: Workload,
        jobs: Sequence[int],
        pools: Sequence[Slots],
        clock_s: float,
        returns_s: Sequence[float],
        may: Mapping[str, frozenset[str]],
    ) -> None:
        self.work, self.jobs, self.pools, self.clock_s = work, jobs, pools, clock_s
        self.may = may
        self.free = [pool.fillable for pool in pools]
        #: Jobs whose account the user chose, by account: the others leave them its slots.
        self.chosen = Counter(work.jobs[i].overrides.account for i in jobs)
        #: For each pool a heap of the times at which its slots are free; the last one is of the
        #: GPU slots that were lost and are expected back, of whatever account.
        self.times: list[list[float]] = [[] for _ in pools]
        for pool, times in zip(pools, self.times, strict=True):
            ends = sorted(expected_end_s(run, clock_s) for run in pool.running)
            # where a pool has shrunk, the first slots to fall free are not filled again
            gone = max(0, len(ends) + pool.fillable - pool.slots)
            times += [clock_s] * pool.fillable + ends[gone:]
        self.times.append(sorted(max(at, math.nextafter(clock_s, math.inf)) for at in returns_s))
        self.kinds = [KINDS.index(pool.kind) for pool in pools] + [0]
        #: For each kind, account and class of jobs a heap of their pools, see `_entry`.
        self.next: dict[tuple[object, ...], list[tuple[float, int, int, int]]] = {}

    def starts(self) -> Iterator[Decision]:
        """Yield the jobs that start now; each job takes its slot's time."""
        for i in self.jobs:
            if not any(self.free):
                return
            found = min(self._ends(i), default=None)
            if found is None:
                continue
            _, kind, k, start_s, seconds = found
            heapq.heapreplace(self.times[k], start_s + seconds)
            if start_s <= self.clock_s:
                self.free[k] -= 1
                job, pool = self.work.jobs[i], self.pools[k]
                reason = _REASONS[kind]
                if job.overrides.account is not None:
                    reason = "the account that was chosen for it has a slot"
                yield Decision(job.name, pool.name, start_s, start_s + seconds, reason)

    def _ends(self, i: int) -> Iterator[tuple[float, int, int, float, float]]:
        """Yield a job's end on each kind, with its margin; kind, pool, start, and its seconds."""
        any_gpu = False
        for kind, seconds_of in enumerate(self.work.seconds):
            seconds = seconds_of[i]
            k = self._pool(kind, self.work.jobs[i]) if seconds < math.inf else None
            if k is not None:
                start_s = max(self.clock_s, self.times[k][0])
                # one that a GPU could run too may take longer on CPUs than estimated
                margin = self.work.margin[i] if any_gpu else 0.0
                any_gpu = True
                yield start_s + seconds * (1 + margin), kind, k, start_s, seconds

    def _pool(self, kind: int, job: Job) -> int | None:
        """Return the pool that can take a job and is free first; see `_entry` for equal ones."""
        account, may = job.overrides.account, self.may.get(job.name)
        key = kind, account, id(may)  # the same one for all jobs of a class
        if key not in self.next:
            self.next[key] = [self._entry(k) for k in self._pools(kind, account, may)]
            heapq.heapify(self.next[key])
        line = self.next[key]
        while line and line[0] != (now := self._entry(line[0][-1])):  # it was taken since
            heapq.heapreplace(line, now)
        return line[0][-1] if line else None

    def _pools(self, kind: int, account: str | None, may: frozenset[str] | None) -> Iterator[int]:
        """Yield the pools of a kind that can take the jobs of a class; lost slots are for all."""
        for k in range(len(self.times)):
            if not self.times[k] or self.kinds[k] != kind:
                continue
            pool = self.pools[k] if k < len(self.pools) else None
            if (account is None or (pool and pool.account == account)) and (
                may is None or pool is None or pool.name in may
            ):
                yield k

    def _entry(self, k: int) -> tuple[float, int, int, int]:
        """Return a pool's place among others: its next time, rank, then most slots to spare."""
        if k == len(self.pools):
            return self.times[k][0], 0, 0, k
        pool = self.pools[k]
        return self.times[k][0], pool.rank, self.chosen[pool.account] - self.free[k], k

    def reasons(self, jobs: Iterable[Job]) -> dict[str, str]:
        """Return why jobs were not placed, by name."""
        alike: dict[tuple[object, ...], str] = {}
        found = {}
        for job in jobs:
            key = job.kinds, job.overrides.account, id(self.may.get(job.name))
            if key not in alike:
                alike[key] = self._reason(job)
            found[job.name] = alike[key]
        return found

    def _reason(self, job: Job) -> str:
        account, may = job.overrides.account, self.may.get(job.name)
        fits = [k for kind in map(KINDS.index, job.kinds) for k in self._pools(kind, account, may)
                if k < len(self.pools)]  # fmt: skip
        if not fits:
            slot = f"{' or '.join(kind.upper() for kind in job.kinds)} slot for it"
            return f"account {account} has no {slot}" if account else f"no account has a {slot}"
        if not any(self.free[k] for k in fits):
            return "every slot it may use is taken"
        if "gpu" in job.kinds:
            return "a GPU that falls free ends it sooner than a CPU"
        return "jobs with more work depending on them take the slots first"
