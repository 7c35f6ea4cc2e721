"""The rest of a run, played with estimated durations under a way of filling slots."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

import numpy as np

from tilewright.placement.jobs import KINDS
from tilewright.placement.workload import Running, Slots, Way, Workload

#: Of its time, how much longer a job may take on a CPU where a GPU would do it too: nothing makes
#: up for one that runs on when all else is done.
RISK = 0.4
BUDGET = 1500  # jobs times forecasts in one round, about 2.5 µs each
_SLOT = -2  # in place of a job: a slot that comes back
#: A start: end in seconds of the clock, 0 for GPU or 1 for CPU, number of the job.
Start = tuple[float, int, int]


class Queues:
    """Ready jobs in line for GPU and CPU slots: heaps of their places in an order."""

    def __init__(self, forecast: Forecast, way: Way) -> None:
        self.work, self.slots = forecast.work, forecast.slots
        work, slots = self.work, self.slots
        # without a GPU in sight there is nothing to wait for
        self.aim_s = way.aim_s if slots[0] else math.inf
        self.patient = way.patient and slots[0] > 0
        self.by_gain = way.by_gain
        chain, gain, loss = work.lines(way.shake)
        self.by_chain = chain
        line = gain if way.by_gain else chain
        # a place below zero is one in the order by chain: for those that may not be late
        self.gpu_place, self.gpu_jobs = line.place, line.jobs + chain.jobs
        line = loss if slots[0] else chain
        self.cpu_place, self.cpu_jobs = line.place, line.jobs
        self.gpus, self.cpus = [list[int]() for _ in KINDS]
        self.taken: set[int] = set()
        self.queue_s = 0.0
        ends_s = [end_s for end_s, kind, _ in forecast.events if not kind]
        self.busy, self.ends_s = len(ends_s), sum(ends_s)
        for i in forecast.ready:
            self.add(i, forecast.now_s)

    def add(self, i: int, clock_s: float) -> None:
        """Put a job that became ready in line; one that is too late for a CPU only for GPUs."""
        (gpu_s, cpu_s), tail_s = self.work.seconds, self.work.tail_s
        gpu = self.slots[0] > 0 and gpu_s[i] < math.inf
        late = gpu and clock_s + (1 + RISK) * cpu_s[i] + tail_s[i] > self.aim_s
        if gpu:
            heapq.heappush(self.gpus, self._late_place(i) if late else self.gpu_place[i])
            self.queue_s += gpu_s[i]
        if self.slots[1] and cpu_s[i] < math.inf and not late:
            heapq.heappush(self.cpus, self.cpu_place[i])

    def _late_place(self, i: int) -> int:
        """Return a place by chain, before all others where the order is by gain."""
        return self.by_chain.place[i] - len(self.work.jobs) * self.by_gain

    def fill(self, free: list[int], clock_s: float) -> list[Start]:
        """Take slots from ``free`` and return what starts in them."""
        starts: list[Start] = []
        gpus, cpus, taken = self.gpus, self.cpus, self.taken
        (gpu_s, cpu_s), tail_s = self.work.seconds, self.work.tail_s
        while gpus and free[0]:
            i = self.gpu_jobs[heapq.heappop(gpus)]
            if i not in taken:
                taken.add(i)
                starts.append((clock_s + gpu_s[i], 0, i))
                free[0] -= 1
                self.busy += 1
                self.ends_s += clock_s + gpu_s[i]
                self.queue_s -= gpu_s[i]
        while cpus and free[1]:
            i = self.cpu_jobs[cpus[0]]
            end_s, either = clock_s + cpu_s[i], gpu_s[i] < math.inf
            if i in taken:
                heapq.heappop(cpus)
            elif either and end_s + RISK * cpu_s[i] + tail_s[i] > self.aim_s:
                heapq.heappop(cpus)  # what is too late for a CPU now is so for ever
                if self.by_gain:
                    heapq.heappush(gpus, self._late_place(i))
            elif (
                self.patient
                and either
                and cpu_s[i] > (self.queue_s + self.ends_s - self.busy * clock_s) / self.slots[0]
            ):
                break
            else:
                heapq.heappop(cpus)
                taken.add(i)
                starts.append((end_s, 1, i))
                free[1] -= 1
                self.queue_s -= gpu_s[i] if either else 0.0
        return starts


class Forecast:
    """The rest of the run from now on, played with estimated durations."""

    def __init__(
        self,
        work: Workload,
        ready: list[int],
        later: list[int],
        pools: Iterable[Slots],
        now_s: float,
        back_s: Iterable[float] = (),
    ) -> None:
        self.work, self.ready, self.later, self.now_s = work, ready, later, now_s
        self.free, self.slots = [0, 0], [0, 0]
        self.events: list[Start] = []
        for pool in pools:
            kind = KINDS.index(pool.kind)
            self.free[kind] += pool.room
            ends = sorted(
                (expected_end_s(run, now_s), work.index.get(run.job, -1)) for run in pool.running
            )
            # where a pool has shrunk, the first slots to fall free are not filled again
            gone = len(ends) + pool.room - pool.slots
            self.events += [(end, kind if k >= gone else 2, i) for k, (end, i) in enumerate(ends)]
            self.slots[kind] += pool.room + min(len(ends), len(ends) - gone)
        self.coming = [(end_s, 0, _SLOT) for end_s in back_s]
        self.slots[0] += len(self.coming)
        heapq.heapify(self.events)

    def bound_s(self) -> float:
        """Return when all is done at best, were work to flow like water through the slots.

        A job that cannot be done by then on a CPU, with all that waits for it, flows to GPUs;
        of the others those that gain most from a GPU do, as far as there is room.
        """
        work, now_s = self.work, self.now_s
        tails = [end + (work.tail_s[i] if i >= 0 else 0.0) for end, _, i in self.events]
        low: float = max([now_s, *tails, *(now_s + work.chain_s[i] for i in self.ready)])
        chosen = np.zeros(len(work.jobs), dtype=bool)
        chosen[self.ready + self.later] = True
        gpu, cpu, tail = work.flows[:, work.flow_order[chosen[work.flow_order]]]
        only = np.isinf(gpu)
        fixed_s = float(cpu[only].sum())
        gpu, cpu, tail = gpu[~only], cpu[~only], tail[~only]

        def fits(end_s: float) -> bool:
            room = [n * (end_s - now_s) for n in self.free] + [0.0]
            for end, kind, _ in self.events + self.coming:
                room[kind] += max(0.0, end_s - end)
            late = cpu + tail > end_s - now_s
            gpu_room = room[0] - float(gpu[late].sum())
            taken = int(np.searchsorted(np.cumsum(gpu[~late]), gpu_room, side="right"))
            return gpu_room >= 0 and float(cpu[~late][taken:].sum()) + fixed_s <= room[1]

        if fits(low):
            return low
        high = 2 * low - now_s + 1.0
        while not fits(high) and high - now_s < 1e9:
            high += high - now_s
        for _ in range(10):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high

    def play(self, way: Way, limit_s: float = math.inf) -> tuple[float, float]:
        """Return when all is done and the sum of all ends; infinite where later than a limit.

        All is done when also any one of the jobs on CPUs might be that takes longer by its risk.
        """
        queues = Queues(self, way)
        free, events, feeds = list(self.free), self.events + self.coming, self.work.feeds
        if self.coming:
            heapq.heapify(events)
        open_ = {*self.ready, *self.later, *(i for *_, i in events)} if self.later else set()
        waits = {i: sum(n in open_ for n in self.work.needs[i]) for i in self.later}
        clock_s, total_s, risk_s, done_s = self.now_s, 0.0, 0.0, self.now_s
        (gpu_s, cpu_s), tail_s = self.work.seconds, self.work.tail_s
        while done_s <= limit_s:
            for start in queues.fill(free, clock_s):
                heapq.heappush(events, start)
                end_s, kind, i = start
                total_s += end_s
                if kind and self.slots[0] and gpu_s[i] < math.inf:
                    risk_s = max(risk_s, end_s + RISK * cpu_s[i] + tail_s[i])
            if not events:
                return max(done_s, risk_s), total_s
            clock_s = events[0][0]
            while events and events[0][0] <= clock_s:
                end_s, kind, done = heapq.heappop(events)
                if kind < 2:
                    free[kind] += 1
                if done == _SLOT:
                    continue
                done_s = end_s
                if not kind:
                    queues.busy -= 1
                    queues.ends_s -= end_s
                if waits and done >= 0:
                    for i in feeds[done]:
                        if i in waits:
                            waits[i] -= 1
                            if not waits[i]:
                                queues.add(i, clock_s)
        return math.inf, math.inf


def expected_end_s(run: Running, now_s: float) -> float:
    """Return when a running job ends, in seconds of the clock.

    One that is late needs as much again as it is late.
    """
    late_s = now_s - run.end_s
    return run.end_s if late_s < 0 else now_s + max(late_s, 0.05 * (now_s - run.start_s), 1e-6)
