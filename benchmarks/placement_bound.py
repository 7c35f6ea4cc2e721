"""Times that no placement can beat, for one who knows all durations and all that will happen.

`quick_s` is the best of critical path, LP relaxation by device kind, and whole waves of slots.
`tight_s` asks a linear program whether a makespan is possible at all and bisects: in every slice
of time each job is processed at most at the speed of one slot, within its own window and on
devices that it can leave in time; a job only follows what is done; slots that go are filled by
jobs that began before; and no slot takes more long jobs than fit one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from snakemake_scheduler_plugin_tilewright.placement.jobs import KINDS, Job, Kind
from snakemake_scheduler_plugin_tilewright.placement.workload import Slots
from tests.support.simulated_cluster import Change

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SLACK = 1e-9
_LP_S = 4.0  # one program; where it takes longer, the makespan counts as possible


@dataclass
class Scenario:
    """A run on a cluster: what is estimated, what is true, and what will happen."""

    jobs: list[Job]
    pools: list[Slots]
    estimates_s: dict[tuple[str, Kind], float]
    true_s: dict[tuple[str, Kind], float]
    changes: list[Change] = field(default_factory=list)
    tags: frozenset[str] = frozenset()

    @property
    def lost_s(self) -> dict[str, float]:
        """Pools of accounts that are lost, and when: their jobs are killed, nobody comes back."""
        last = {change.pool: change for change in self.changes}
        return {name: c.at_s for name, c in last.items() if c.kills and not c.slots}


class SlotTime:
    """Slots of one kind: those that stay, or those of accounts that are lost at ``until_s``."""

    def __init__(self, scenario: Scenario, kind: int, until_s: float, names: list[str]) -> None:
        self.kind, self.until_s = kind, until_s
        self.pools: list[list[tuple[float, int]]] = []
        for pool in scenario.pools:
            if pool.name in names:
                steps = [(c.at_s, c.slots) for c in scenario.changes if c.pool == pool.name]
                steps = steps if until_s == math.inf else []
                self.pools.append([(0.0, pool.slots), *steps])
        self.changing = any(len(steps) > 1 for steps in self.pools)
        self.profiles: dict[float, tuple[Floats, Floats]] = {}

    def most(self, end_s: float) -> int:
        """Return how many slots there are at once, at most, until then."""
        return sum(max(n for at, n in steps if at < end_s) for steps in self.pools)

    def _profile(self, longest_s: float) -> tuple[Floats, Floats]:
        ats = sorted({at for steps in self.pools for at, _ in steps})
        times = np.unique([0.0, 1e9, *ats, *(at + longest_s for at in ats[1:])])
        middles = (times[1:] + times[:-1]) / 2
        slots = np.zeros(len(middles))
        for steps in self.pools:
            at, count = np.array(steps).T
            until = np.append(at[1:], math.inf)
            # as many run as there were slots when the last of them started
            open_ = (at <= middles[:, None]) & (until > middles[:, None] - longest_s)
            slots += np.where(open_, count, 0).max(axis=1)
        return times, np.concatenate([[0.0], np.cumsum(slots * np.diff(times))])

    def seconds(self, longest_s: float, start_s: float, end_s: float) -> float:
        """Return the slot seconds between two times that jobs of at most a duration can fill."""
        if longest_s not in self.profiles:
            self.profiles[longest_s] = self._profile(longest_s)
        ends = np.interp(np.minimum([start_s, end_s], self.until_s), *self.profiles[longest_s])
        return float(ends[1] - ends[0])


class Bound:
    """Lower bounds of the makespan of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.jobs = scenario.jobs
        self.rules = np.array([job.rule for job in self.jobs])
        index = {job.name: i for i, job in enumerate(self.jobs)}
        self.needs = [[index[name] for name in job.needs] for job in self.jobs]
        lost = scenario.lost_s
        self.slots: list[SlotTime] = []
        for k, kind in enumerate(KINDS):
            names = [pool.name for pool in scenario.pools if pool.kind == kind]
            for until_s in sorted({lost.get(name, math.inf) for name in names}):
                own = [name for name in names if lost.get(name, math.inf) == until_s]
                self.slots.append(SlotTime(scenario, k, until_s, own))
        capable = {pool.kind for pool in scenario.pools}
        self.kind_s: Floats = np.array(
            [[scenario.true_s.get((job.name, kind), math.inf) if kind in capable else math.inf
              for job in self.jobs] for kind in KINDS]
        )  # fmt: skip
        self.least = self.kind_s.min(axis=0)
        self.head, self.tail = np.zeros(len(self.jobs)), np.zeros(len(self.jobs))
        for i, needs in enumerate(self.needs):
            self.head[i] = max((self.head[n] + self.least[n] for n in needs), default=0)
        for i in reversed(range(len(self.jobs))):
            for n in self.needs[i]:
                self.tail[n] = max(self.tail[n], self.tail[i] + self.least[i])

    def quick_s(self) -> float:
        """Return the best of critical path, LP relaxation and whole waves, of sets of jobs."""
        head, tail = self.head, self.tail
        best = float((head + self.least + tail).max())
        sets = [head >= h for h in np.quantile(head, np.linspace(0, 0.9, 7))]
        sets += [tail >= t for t in np.quantile(tail, np.linspace(0.1, 0.9, 6))]
        sets += [self.rules == rule for rule in sorted(set(self.rules) - {"qc"})]
        for chosen in sets:
            if chosen.any():
                best = max(best, self._relaxed_s(chosen, best))
                best = max(best, self._waves_s(chosen, best))
        return best

    def tight_s(self, known_s: float, tries: int = 4) -> float:
        """Return a bound by linear programs; a schedule that takes ``known_s`` is known."""
        low = self.quick_s()
        if known_s < 1.02 * low or self._possible(low):
            return low
        for _ in range(tries):
            middle = math.sqrt(low * known_s)
            low, known_s = (low, middle) if self._possible(middle) else (middle, known_s)
        return low

    def _possible(self, end_s: float) -> bool:
        slices = 1 if not any(self.needs) and not any(s.changing for s in self.slots) else 6
        return Program(self, end_s, slices if len(self.jobs) <= 1000 else min(slices, 4)).fits()

    def _room(self, kind: int, start_s: float, end_s: float) -> float:
        finite = self.kind_s[kind][self.kind_s[kind] < math.inf]
        longest_s = float(finite.max(initial=0))
        return sum(s.seconds(longest_s, start_s, end_s) for s in self.slots if s.kind == kind)

    def _relaxed_s(self, chosen: NDArray[np.bool_], low: float) -> float:
        """Work that can be cut at will, between the earliest head and the shortest tail.

        A job that cannot be done on a CPU between its own head and tail has to be on a GPU.
        """
        (gpu, cpu), head, tail = self.kind_s[:, chosen], self.head[chosen], self.tail[chosen]
        first_s, last_s = float(head.min()), float(tail.min())
        order = np.argsort(-np.where(gpu < math.inf, cpu / gpu, 0), kind="stable")
        gpu, cpu, least = gpu[order], cpu[order], (head + tail + cpu)[order]

        def fits(end_s: float) -> bool:
            room = [self._room(k, first_s, end_s - last_s) for k in range(len(KINDS))]
            forced = (least > end_s * (1 + SLACK)) & (gpu < math.inf)
            gpu_s, g, c = room[0] - gpu[forced].sum(), gpu[~forced], cpu[~forced]
            if gpu_s < -SLACK * room[0]:
                return False
            filled = np.cumsum(g)
            k = int(np.searchsorted(filled, gpu_s * (1 + SLACK), side="right"))
            if k >= len(g):
                return True
            before = filled[k - 1] if k else 0.0
            part = 0.0 if g[k] == math.inf else (gpu_s - before) / g[k]
            return bool(c[k + 1 :].sum() + (1 - part) * c[k] <= room[1] * (1 + SLACK))

        return _bisect(fits, low)

    def _waves_s(self, chosen: NDArray[np.bool_], low: float) -> float:
        """Whole jobs per slot, for the jobs that are at least so long on both kinds."""
        gpu, cpu = self.kind_s[:, chosen]
        frame_s = float(self.head[chosen].min() + self.tail[chosen].min())
        most = [sum(s.most(math.inf) for s in self.slots if s.kind == k) for k in range(2)]
        finite = gpu[gpu < math.inf]
        for share in (0.0, 0.25, 0.5, 0.75, 0.9):
            g = float(np.quantile(finite, share)) if finite.size else math.inf
            c = float(np.quantile(cpu, share))
            count = int(((gpu >= g) & (cpu >= c)).sum())

            def fits(end_s: float, g: float = g, c: float = c, count: int = count) -> bool:
                span_s = (end_s - frame_s) * (1 + SLACK)
                return most[0] * (span_s // g) + most[1] * (span_s // c) >= count

            low = max(low, _bisect(fits, low))
        return low


class Program:
    """The linear program: is a makespan possible? One variable per job, slots and slice of time.

    A variable is the part of a job that is processed there; one more is the overload, of all
    limits together, that is least where the makespan is possible.
    """

    def __init__(self, bound: Bound, end_s: float, slices: int) -> None:
        self.bound, self.end_s, self.slices = bound, end_s, slices
        self.times = np.linspace(0, end_s, slices + 1)
        slots = bound.slots
        self.seconds = np.array([bound.kind_s[s.kind] for s in slots])
        until_s = np.array([[min(s.until_s, end_s)] for s in slots])
        slack_s = SLACK * end_s
        self.able = bound.head + self.seconds + bound.tail <= end_s + slack_s
        self.able &= bound.head + self.seconds <= until_s + slack_s
        first = np.maximum(bound.head[:, None], self.times[:-1])
        last = np.minimum(np.minimum(end_s - bound.tail, until_s)[..., None], self.times[1:])
        with np.errstate(invalid="ignore"):
            most = np.where(self.able[..., None], (last - first) / self.seconds[..., None], 0)
        # by job, then slice, so that the variables of a job lie side by side
        most = most.transpose(1, 2, 0)
        self.job, self.slice, self.place = (np.asarray(v) for v in np.nonzero(most > SLACK))
        self.most = np.minimum(1.0, most[self.job, self.slice, self.place])
        self.length = self.seconds[self.place, self.job]
        self.begin: Ints = np.searchsorted(
            self.job * slices + self.slice, np.arange(len(bound.jobs) * slices + 1)
        )
        self.rows: list[tuple[Ints, Floats, float]] = []

    def fits(self) -> bool:
        """Return false where it is proven that nothing ends so early."""
        if not self.able.any(axis=0).all():
            return False
        for k, slots in enumerate(self.bound.slots):
            if self.able[k].any():
                self._limit_seconds(k, slots)
                self._limit_long_jobs(k, slots)
        if self.slices > 1:
            self._limit_speed()
            self._follow()
        count, jobs = len(self.job), len(self.bound.jobs)
        sizes = [len(which) for which, *_ in self.rows]
        where = np.repeat(np.arange(len(self.rows)), sizes)
        which = np.concatenate([row[0] for row in self.rows])
        values = np.concatenate([row[1] for row in self.rows])
        found = linprog(  # type: ignore[call-overload]
            np.append(np.zeros(count), 1.0),
            A_ub=csr_matrix((values, (where, which)), shape=(len(self.rows), count + 1)),
            b_ub=np.array([row[2] for row in self.rows]),
            A_eq=csr_matrix((np.ones(count), (self.job, np.arange(count))), (jobs, count + 1)),
            b_eq=np.ones(jobs),
            bounds=np.column_stack([np.zeros(count + 1), np.append(self.most, np.inf)]),
            # on thousands of variables the interior point method is several times as fast
            method="highs-ipm" if count > 3000 else "highs",
            options={"time_limit": _LP_S},
        )
        return found.status != 2 and not (found.status == 0 and found.fun > 1e-5)

    def _limit(self, which: Ints, values: Floats, most: float, scale: float = 0.0) -> None:
        """Values of variables may not exceed a limit; a scale lets the overload exceed it."""
        if scale:
            which, values = np.append(which, len(self.job)), np.append(values, -scale)
        self.rows.append((which, values, most))

    def _limit_seconds(self, k: int, slots: SlotTime) -> None:
        """Slot seconds in every slice; where slots go, also those of the shorter jobs alone."""
        own = self.seconds[k][self.able[k]]
        levels = np.unique(np.quantile(own, [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0]))
        for level in levels if slots.changing else levels[-1:]:
            longest_s = float(level)
            mine = np.flatnonzero(self.place == k)
            if slots.changing:
                # of each job that is running its first seconds alone
                most = slots.seconds(longest_s, 0, self.end_s)
                self._limit(mine, np.minimum(self.length[mine], longest_s), most, self.end_s)
            mine = mine[self.length[mine] <= longest_s]
            for b, (start, end) in enumerate(zip(self.times, self.times[1:], strict=False)):
                now = mine[self.slice[mine] == b]
                self._limit(now, self.length[now], slots.seconds(longest_s, start, end), end)

    def _limit_long_jobs(self, k: int, slots: SlotTime) -> None:
        """No slot takes more than n jobs that are longer than an (n + 1)th of its time."""
        head, tail, able = self.bound.head, self.bound.tail, self.able[k]
        most = slots.most(self.end_s)
        mine = np.flatnonzero(self.place == k)
        shares = (0.0, 0.3, 0.6)
        for first_s in np.unique(np.quantile(head[able], shares)):
            for last_s in np.unique(np.quantile(tail[able], shares)):
                chosen = able & (head >= first_s) & (tail >= last_s)
                if not chosen.any():
                    continue
                until_s = min(slots.until_s, self.end_s - float(tail[chosen].min()))
                span_s = until_s - float(head[chosen].min())
                for n in (1, 2, 3, 4):
                    long = chosen & (self.seconds[k] > span_s / (n + 1) * (1 + SLACK))
                    if long.sum() > n * most:
                        which = mine[long[self.job[mine]]]
                        self._limit(which, np.ones(len(which)), n * most, 1.0)

    def _limit_speed(self) -> None:
        """Jobs that follow each other share the time of a slice."""
        bound, seen = self.bound, set[int]()
        feeds: list[list[int]] = [[] for _ in bound.jobs]
        for i, needs in enumerate(bound.needs):
            for n in needs:
                feeds[n].append(i)
        chain = bound.tail + bound.least
        for first in np.argsort(-chain).tolist():
            path: list[int] = []
            after = [first]
            while after := [i for i in after if i not in seen]:
                path.append(max(after, key=chain.__getitem__))
                seen.add(path[-1])
                after = feeds[path[-1]]
            for b in range(self.slices if len(path) > 1 else 0):
                which = np.concatenate([self._of(i, b, b + 1) for i in path])
                if which.size:
                    self._limit(which, self.length[which], self.end_s / self.slices)

    def _of(self, i: int, start: int, end: int) -> Ints:
        first = i * self.slices
        return np.arange(self.begin[first + start], self.begin[first + end])

    def _follow(self) -> None:
        """Let a job begin when what it needs is done, early enough for a slow device too."""
        bound = self.bound
        for j, needs in enumerate(bound.needs):
            whole_j = self._of(j, 0, self.slices)
            urgent_s = self.end_s - bound.tail[j] - self.length[whole_j]
            for i in needs:
                whole_i = self._of(i, 0, self.slices)
                for b in range(1, self.slices):
                    time_s = self.times[b]
                    done = self._of(i, 0, b)
                    begun = self._of(j, 0, b)
                    might = done[bound.head[i] + self.length[done] < time_s * (1 + SLACK)]
                    must = whole_j[urgent_s <= time_s * (1 + SLACK)]
                    if len(begun) and len(might) < len(whole_i):
                        self._less(begun, might)
                    if len(must) and len(done) < len(whole_i):
                        self._less(must, done)

    def _less(self, small: Ints, large: Ints) -> None:
        which = np.concatenate([small, large])
        self._limit(which, np.repeat([1.0, -1.0], [len(small), len(large)]), 0.0)


def _bisect(fits: Callable[[float], bool], low: float) -> float:
    if fits(low):
        return low
    high = 2 * low + 1
    while not fits(high):
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return low
