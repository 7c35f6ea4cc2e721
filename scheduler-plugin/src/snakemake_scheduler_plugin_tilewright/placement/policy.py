"""Who goes where now: ready jobs, free slots and the clock in, places out; nothing is read.

Every round plays the rest of the run with estimated durations under a few simple strategies of
filling slots, and starts what the best of them starts now. All strategies share an *aim*, the
time by which everything should be done: a job takes a CPU slot only if it and all that waits for
it can still be done by the aim; otherwise it waits for a GPU.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from snakemake_scheduler_plugin_tilewright.placement.jobs import KINDS, Job
from snakemake_scheduler_plugin_tilewright.placement.workload import (
    Choice,
    Decision,
    GpuSlots,
    Running,
    Slots,
    Strategy,
    Workload,
)

BUDGET = 1500  # jobs times forecasts in one round, about 2.5 µs each
_BLOCK = 128  # jobs whose sums are kept together
_SLOT = -2  # in place of a job: a slot that comes back
#: A start: end in seconds of the clock, 0 for GPU or 1 for CPU, number of the job.
Start = tuple[float, int, int]


class Queues:
    """Ready jobs in line for GPU and CPU slots: heaps of their places in an order."""

    def __init__(self, forecast: Forecast, strategy: Strategy) -> None:
        self.work, self.slots = forecast.work, forecast.slots
        work, slots = self.work, self.slots
        # without a GPU in sight there is nothing to wait for
        self.aim_s = strategy.aim_s if slots[0] else math.inf
        self.gpu_order = work.by_chain
        self.cpu_order = work.by_loss if slots[0] else work.by_chain
        self.gpus, self.cpus = [list[int]() for _ in KINDS]
        self.taken: set[int] = set()
        self.add(forecast.ready, forecast.now_s)

    def add(self, numbers: Sequence[int], clock_s: float) -> None:
        """Put jobs that became ready in line; those that are too late for a CPU only for GPUs."""
        (gpu_s, cpu_s), slow_s = self.work.seconds, self.work.slow_s
        most_s, gpu_place, cpu_place = (
            self.aim_s - clock_s,
            self.gpu_order.place,
            self.cpu_order.place,
        )
        if self.slots[0]:
            _push(self.gpus, [gpu_place[i] for i in numbers if gpu_s[i] < math.inf])
        if self.slots[1]:
            able = (i for i in numbers if slow_s[i] <= most_s and cpu_s[i] < math.inf)
            _push(self.cpus, [cpu_place[i] for i in able])

    def fill(self, free: list[int], clock_s: float) -> list[Start]:
        """Take slots from ``free`` and return what starts in them."""
        starts: list[Start] = []
        gpus, cpus, taken = self.gpus, self.cpus, self.taken
        (gpu_s, cpu_s), slow_s = self.work.seconds, self.work.slow_s
        while gpus and free[0]:
            i = self.gpu_order.jobs[heapq.heappop(gpus)]
            if i not in taken:
                taken.add(i)
                starts.append((clock_s + gpu_s[i], 0, i))
                free[0] -= 1
        while cpus and free[1]:
            i = self.cpu_order.jobs[heapq.heappop(cpus)]
            # what is too late for a CPU now is so for ever
            if i not in taken and clock_s + slow_s[i] <= self.aim_s:
                taken.add(i)
                starts.append((clock_s + cpu_s[i], 1, i))
                free[1] -= 1
        return starts


def _push(line: list[int], places: list[int]) -> None:
    """Put places into a heap: one by one, or all at once where it is empty."""
    if line:
        for place in places:
            heapq.heappush(line, place)
    else:
        line += places
        heapq.heapify(line)


class Forecast:
    """The rest of the run from now on, played with estimated durations."""

    def __init__(
        self,
        work: Workload,
        ready: list[int],
        later: list[int],
        pools: Iterable[Slots],
        now_s: float,
        returns_s: Iterable[float] = (),
    ) -> None:
        self.work, self.ready, self.later, self.now_s = work, ready, later, now_s
        self.free, self.slots = [0, 0], [0, 0]
        self.events: list[Start] = []
        for pool in pools:
            kind = KINDS.index(pool.kind)
            self.free[kind] += pool.fillable
            ends = sorted(
                (expected_end_s(run, now_s), work.index.get(run.job, -1)) for run in pool.running
            )
            # where a pool has shrunk, the first slots to fall free are not filled again
            gone = len(ends) + pool.fillable - pool.slots
            self.events += [(end, kind if k >= gone else 2, i) for k, (end, i) in enumerate(ends)]
            self.slots[kind] += pool.fillable + min(len(ends), len(ends) - gone)
        self.coming = [(end_s, 0, _SLOT) for end_s in returns_s]
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
        flow = _Flow(work, [*self.ready, *self.later])

        def fits(end_s: float) -> bool:
            room = [n * (end_s - now_s) for n in self.free] + [0.0]
            for end, kind, _ in self.events + self.coming:
                room[kind] += max(0.0, end_s - end)
            return flow.cpu_left_s(end_s - now_s, room[0]) <= room[1]

        if fits(low):
            return low
        high = 2 * low - now_s + 1.0
        while not fits(high) and high - now_s < 1e9:
            high += high - now_s
        for _ in range(10):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high

    def play(self, strategy: Strategy, limit_s: float = math.inf) -> tuple[float, float]:
        """Return when all is done and the sum of all ends; infinite where later than a limit.

        A job on a CPU that a GPU could run too may take longer than estimated, by its margin: one
        that still runs when all else is done delays the run. The end is the latest of the
        estimated ends and of the ends with that margin.
        """
        queues = Queues(self, strategy)
        free, events, feeds = list(self.free), self.events + self.coming, self.work.feeds
        if self.coming:
            heapq.heapify(events)
        open_ = {*self.ready, *self.later, *(i for *_, i in events)} if self.later else set()
        waits = {i: sum(n in open_ for n in self.work.needs[i]) for i in self.later}
        clock_s, total_s, margin_s, done_s = self.now_s, 0.0, 0.0, self.now_s
        gpus, slow_s = self.slots[0], self.work.slow_s
        while done_s <= limit_s:
            for start in queues.fill(free, clock_s):
                heapq.heappush(events, start)
                end_s, kind, i = start
                total_s += end_s
                if kind and gpus and clock_s + slow_s[i] > margin_s:
                    margin_s = clock_s + slow_s[i]
            if not events:
                return max(done_s, margin_s), total_s
            clock_s = events[0][0]
            while events and events[0][0] <= clock_s:
                end_s, kind, done = heapq.heappop(events)
                if kind < 2:
                    free[kind] += 1
                if done == _SLOT:
                    continue
                done_s = end_s
                if waits and done >= 0:
                    for i in feeds[done]:
                        if i in waits:
                            waits[i] -= 1
                            if not waits[i]:
                                queues.add((i,), clock_s)
        return math.inf, math.inf


class _Flow:
    """Jobs by what they gain on a GPU, most first, in blocks whose sums are known.

    One look at 10,000 jobs takes 0.1 ms instead of 2.

    Parameters
    ----------
    numbers : sequence of int
        The jobs that are to be done.
    """

    def __init__(self, work: Workload, numbers: Sequence[int]) -> None:
        (self.gpu_s, self.cpu_s), self.on_cpu_s = work.seconds, work.on_cpu_s
        places = sorted(map(work.by_gain.place.__getitem__, numbers))
        ordered = list(map(work.by_gain.jobs.__getitem__, places))
        both = [i for i in ordered if self.gpu_s[i] < math.inf]
        self.fixed_s = sum(self.cpu_s[i] for i in ordered if self.gpu_s[i] == math.inf)
        self.blocks = [both[at : at + _BLOCK] for at in range(0, len(both), _BLOCK)]
        self.on_cpus: list[list[float]] = []
        self.sums: list[list[list[float]]] = []  # for each block, of GPU and CPU seconds
        for block in self.blocks:
            by_end = sorted(block, key=self.on_cpu_s.__getitem__)
            self.on_cpus.append([self.on_cpu_s[i] for i in by_end])
            self.sums.append(
                [list(accumulate((of[i] for i in by_end), initial=0.0)) for of in work.seconds]
            )

    def cpu_left_s(self, span_s: float, gpu_room_s: float) -> float:
        """Return the CPU seconds that GPUs do not take; infinite if they cannot take all they must.

        Parameters
        ----------
        span_s : float
            The time for a job on a CPU and all that waits for it: what takes longer must take a
            GPU.
        gpu_room_s : float
            The seconds of GPUs that there are.
        """
        on_time = [bisect_right(ends, span_s) for ends in self.on_cpus]
        taken = [(gpu[k], gpu[-1] - gpu[k]) for (gpu, _), k in zip(self.sums, on_time, strict=True)]
        gpu_room_s -= sum(late_s for _, late_s in taken)
        if gpu_room_s < 0:
            return math.inf
        left_s, full = self.fixed_s, False
        for at, (block_s, _) in enumerate(taken):
            if not full and block_s <= gpu_room_s:
                gpu_room_s -= block_s
            elif full:
                left_s += self.sums[at][1][on_time[at]]
            else:
                for i in self.blocks[at]:
                    if self.on_cpu_s[i] > span_s:
                        continue
                    full = full or self.gpu_s[i] > gpu_room_s
                    gpu_room_s -= self.gpu_s[i]
                    left_s += self.cpu_s[i] * full
        return left_s


def expected_end_s(run: Running, now_s: float) -> float:
    """Return when a running job ends, in seconds of the clock.

    One that is late needs as much again as it is late.
    """
    late_s = now_s - run.end_s
    return run.end_s if late_s < 0 else now_s + max(late_s, 0.05 * (now_s - run.start_s), 1e-6)


_GAIN = 0.02  # of the rest of the run that another strategy must save: forecasts are no better
_WHY = ("a GPU slot is free", "a CPU slot finishes it in time")
#: Aims of the strategies over the bound of what is left, best ones first; with infinity a job
#: takes any slot. Of 13 strategies, among them others that gave GPUs to the jobs that gain most,
#: these three did as well as all (mean 1.000, 95th percentile 1.00; one alone: 1.037, 1.18).
AIMS = (1.0, 1.3, math.inf)


def decide(
    work: Workload,
    ready: Sequence[str],
    later: Collection[str],
    pools: Sequence[Slots],
    clock_s: float,
    *,
    last: Strategy | None = None,
    aims: Sequence[float] = AIMS,
) -> Choice:
    """Decide which ready jobs start now, and where.

    Parameters
    ----------
    work : Workload
        All jobs with estimates.
    ready, later : collection of str
        Jobs that can start, and those that cannot yet.
    pools : sequence of Slots
        Slots of each account and kind.
    clock_s : float
        Now, in seconds.
    last : Strategy, optional
        The strategy of the round before, which is tried too.
    aims : sequence of float
        Aims of the strategies that are tried, over the bound of what is left.
    """
    assignment = _Assignment(work, pools, clock_s)
    numbers = sorted(work.index[name] for name in ready)
    fixed = [i for i in numbers if work.jobs[i].fixed.account is not None]
    left = [i for i in numbers if work.jobs[i].fixed.account is None]
    wait = assignment.outranked(fixed, left)
    assignment.place_fixed([i for i in fixed if i not in wait])
    seen = last.gpu_slots if last else GpuSlots()
    seen = seen.counted(sum(pool.slots for pool in pools if pool.kind == "gpu"), clock_s)
    coming = [work.index[n] for n in later]
    strategy = last or Strategy(math.inf)
    for returns_s in (seen.returns_s(clock_s), ()):
        forecast = Forecast(work, left, coming, assignment.pools(), clock_s, returns_s)
        if left and sum(forecast.free):
            strategy = _best_strategy(forecast, last, aims)
        assignment.place(Queues(forecast, strategy).fill(list(forecast.free), clock_s))
        if assignment.starts or any(pool.running for pool in pools):
            break  # otherwise nothing would tell that it waits in vain
    assignment.place_fixed(sorted(wait))
    waiting = assignment.waiting(ready)
    return Choice(tuple(assignment.starts), waiting, replace(strategy, gpu_slots=seen))


def _best_strategy(forecast: Forecast, last: Strategy | None, aims: Sequence[float]) -> Strategy:
    """Play the rest as often as a round allows, and return the strategy that ends first."""
    jobs = len(forecast.ready) + len(forecast.later)
    now_s = forecast.now_s
    span_s = forecast.bound_s() - now_s
    strategies = [Strategy(now_s + aim * span_s) for aim in aims]
    # the last one is played beside all the others: one that is never tried cannot take its place
    tries = max(1, min(len(strategies) + bool(last), BUDGET // jobs))
    best, score = strategies[0], (math.inf, math.inf)
    if last:
        # few tries start elsewhere every time, so that a long run sees all strategies
        turn = jobs * tries % len(strategies)
        strategies = [*strategies[turn:], *strategies[:turn]]
        best = last
        if tries > 1 or jobs % 3 == 0:
            best, tries = replace(last, end_s=forecast.play(last)[0]), tries - 1
        score = (1 - _GAIN) * best.end_s + _GAIN * now_s, math.inf
    for strategy in strategies[:tries]:
        found = forecast.play(strategy, score[0])
        if found < score:
            best, score = replace(strategy, end_s=found[0]), found
    return best


class _Assignment:
    """Gives starts of a kind to accounts, and keeps what is left of each pool."""

    def __init__(self, work: Workload, pools: Sequence[Slots], clock_s: float) -> None:
        self.work, self.clock_s = work, clock_s
        self.given, self.free = list(pools), [pool.fillable for pool in pools]
        self.added: dict[int, list[Running]] = defaultdict(list)
        self.starts: list[Decision] = []

    def pools(self) -> list[Slots]:
        """Return the pools with what was placed here."""
        return [
            replace(pool, free=self.free[k], running=(*pool.running, *self.added[k]))
            for k, pool in enumerate(self.given)
        ]

    def _give(self, i: int, k: int, reason: str) -> None:
        job, pool = self.work.jobs[i], self.given[k]
        end_s = self.clock_s + self.work.seconds[KINDS.index(pool.kind)][i]
        self.free[k] -= 1
        self.added[k].append(Running(job.name, self.clock_s, end_s))
        self.starts.append(Decision(job.name, pool.name, self.clock_s, end_s, reason))

    def outranked(self, fixed: list[int], others: list[int]) -> set[int]:
        """Return the jobs with a fixed account that wait, because longer chains need the slots."""
        chain_s, (gpu_s, _) = self.work.chain_s, self.work.seconds
        rooms = [sum(self.free[k] for k in self._open(kind)) for kind in range(len(KINDS))]
        ranks = [
            sorted(chain_s[i] for i in others if seconds[i] < math.inf)
            for seconds in self.work.seconds
        ]

        def longer(i: int, kind: int) -> bool:
            return 0 < rooms[kind] <= len(ranks[kind]) - bisect_right(ranks[kind], chain_s[i])

        return {i for i in fixed if longer(i, 0 if rooms[0] and gpu_s[i] < math.inf else 1)}

    def place_fixed(self, jobs: list[int]) -> None:
        """Place jobs whose account the user chose, longest chain first, where each ends first."""
        gpus_s: dict[str, list[float]] = defaultdict(list)
        with_cpus = {p.account for p in self.given if p.kind == "cpu" and p.slots > 0}
        for pool in self.pools():
            if pool.kind == "gpu" and pool.slots > 0:
                ends = sorted(expected_end_s(run, self.clock_s) for run in pool.running)
                ends = ends[pool.fillable - pool.slots :] if pool.fillable < pool.slots else []
                gpus_s[pool.account] += [self.clock_s] * pool.fillable + ends
        for i in sorted(jobs, key=self.work.by_chain.place.__getitem__):
            account = self.work.jobs[i].fixed.account or ""
            gpu_s, cpu_s = (seconds[i] for seconds in self.work.seconds)
            line = gpus_s[account] if gpu_s < math.inf else []
            cpu_end_s = self.clock_s + cpu_s if account in with_cpus else math.inf
            kind = 1
            if line and min(line) + gpu_s <= cpu_end_s:
                kind, soonest = 0, line.index(min(line))
                start_s, line[soonest] = line[soonest], line[soonest] + gpu_s
                if start_s > self.clock_s:
                    continue
            pools = [k for k in self._open(kind) if self.given[k].account == account]
            if pools and self.work.seconds[kind][i] < math.inf:
                self._give(i, pools[0], "the account that was chosen for it has a slot")

    def place(self, starts: Iterable[Start]) -> None:
        """Give starts to the accounts where most slots are free."""
        for _, kind, i in starts:
            self._give(i, max(self._open(kind), key=lambda k: (self.free[k], -k)), _WHY[kind])

    def _open(self, kind: int) -> list[int]:
        return [k for k, p in enumerate(self.given) if p.kind == KINDS[kind] and self.free[k] > 0]

    def waiting(self, ready: Iterable[str]) -> dict[str, str]:
        """Return why ready jobs were not placed."""
        placed = {start.job for start in self.starts}
        jobs = [self.work.jobs[self.work.index[name]] for name in ready if name not in placed]
        alike = {(job.kinds, job.fixed.account): job for job in jobs}
        why = {key: self._why_waiting(job) for key, job in alike.items()}
        return {job.name: why[job.kinds, job.fixed.account] for job in jobs}

    def _why_waiting(self, job: Job) -> str:
        fits = [k for k, pool in enumerate(self.given) if pool.kind in job.kinds and pool.slots > 0
                and job.fixed.account in (None, pool.account)]  # fmt: skip
        if not fits:
            slot = f"{' or '.join(kind.upper() for kind in job.kinds)} slot for it"
            chosen = job.fixed.account
            return f"account {chosen} has no {slot}" if chosen else f"no account has a {slot}"
        if not any(self.free[k] for k in fits):
            return "every slot it may use is taken"
        if "gpu" in job.kinds:
            return "a GPU slot falls free in time to finish it sooner"
        return "jobs that more work waits for take the slots first"
