"""The linear program of `benchmarks.placement_bound`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

if TYPE_CHECKING:
    from benchmarks.placement_bound import Bound, SlotTime

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SLACK = 1e-9
_LP_S = 4.0  # one program; where it takes longer, the makespan counts as possible


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
