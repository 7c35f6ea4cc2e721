"""A time that no placement can beat, for one who knows all durations and all that will happen.

It is the longest of the critical path, the LP relaxation by device kind, and whole waves of slots.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from snakemake_scheduler_plugin_tilewright.cluster.request import KINDS, DeviceKind
from snakemake_scheduler_plugin_tilewright.placement.jobs import Job
from snakemake_scheduler_plugin_tilewright.placement.workload import Slots
from tests.support.simulated_cluster import Change

Floats = NDArray[np.float64]
SLACK = 1e-9


@dataclass
class Scenario:
    """A run on a cluster: what is estimated, what is true, and what will happen."""

    jobs: list[Job]
    pools: list[Slots]
    estimates_s: dict[tuple[str, DeviceKind], float]
    true_s: dict[tuple[str, DeviceKind], float]
    changes: list[Change] = field(default_factory=list)
    tags: frozenset[str] = frozenset()
    #: Jobs that are longer than a pool allows, by pool.
    too_long: dict[str, frozenset[str]] = field(default_factory=dict)

    def may(self, job: str, pool: str) -> bool:
        """Return whether a pool is for jobs as long as one is estimated to be."""
        return job not in self.too_long.get(pool, ())

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
        self.profiles: dict[float, tuple[Floats, Floats]] = {}

    def most(self) -> int:
        """Return how many slots there are at once, at most."""
        return sum(max(n for _, n in steps) for steps in self.pools)

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
        most = [sum(s.most() for s in self.slots if s.kind == k) for k in range(2)]
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
