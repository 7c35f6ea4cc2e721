"""Who goes where now: ready jobs, free slots and the clock in, places out; nothing is read.

Every round plays the rest of the run with estimated durations under a few simple ways of
filling slots, and starts what the best of them starts now. All ways share an *aim*, the time by
which everything should be done: a job takes a CPU slot only if it and all that waits for it can
still be done by the aim; otherwise it waits for a GPU.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.placement.forecast import BUDGET, Forecast, Queues, Start, expected_end_s
from tilewright.placement.jobs import KINDS, Kind
from tilewright.placement.workload import Decision, Job, Round, Running, Seen, Slots, Way, Workload

_SHORT = 300  # jobs of a run that has time to try its best way in some more orders, 24 of 100
_GAIN = 0.02  # of the rest of the run that another way must save: forecasts are no better
_WHY = ("a gpu slot is free", "a cpu slot finishes it in time")
#: Aim over the bound (0: GPU only, inf: any slot), ``by_gain`` and ``patient``; best ones first.
_WAYS = (
    (1.0, False, False),
    (2.0, True, True),
    (1.3, False, False),
    (1.6, True, False),
    (1.15, False, False),
    (math.inf, False, False),
    (1.0, True, False),
    (0.0, False, False),
    (1.06, True, False),
    (1.06, False, False),
    (1.15, True, False),
    (1.06, False, True),
    (math.inf, True, False),
)


def decide(
    work: Workload,
    ready: Sequence[str],
    later: Collection[str],
    pools: Sequence[Slots],
    clock_s: float,
    *,
    preferred: Mapping[str, str] | None = None,
    last: Way | None = None,
) -> Round:
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
    preferred : mapping, optional
        Group to the account it better stays on; honoured where the kind of slot is the same.
    last : Way, optional
        The way of the round before, which is tried too.
    """
    desk = _Desk(work, pools, clock_s, preferred or {})
    numbers = sorted(work.index[name] for name in ready)
    fixed = [i for i in numbers if work.jobs[i].account is not None]
    left = [i for i in numbers if work.jobs[i].account is None]
    wait = desk.outranked(fixed, left)
    desk.place_fixed([i for i in fixed if i not in wait])
    seen = last.seen if last else Seen()
    seen = seen.after(sum(pool.slots for pool in pools if pool.kind == "gpu"), clock_s)
    coming = [work.index[n] for n in later]
    way = last or Way(math.inf)
    for back_s in (seen.back_s(clock_s), ()):
        forecast = Forecast(work, left, coming, desk.pools(), clock_s, back_s)
        if left and sum(forecast.free):
            way = _best_way(forecast, last)
        desk.place(Queues(forecast, way).fill(list(forecast.free), clock_s))
        if desk.starts or any(pool.running for pool in pools):
            break  # otherwise nothing would tell that it waits in vain
    desk.place_fixed(sorted(wait))
    placed = {start.job for start in desk.starts}
    why: dict[tuple[tuple[Kind, ...], str | None], str] = {}
    waiting = {}
    for name in ready:
        if name not in placed:
            job = work.jobs[work.index[name]]
            if (job.kinds, job.account) not in why:
                why[job.kinds, job.account] = desk.why_waiting(job)
            waiting[name] = why[job.kinds, job.account]
    return Round(tuple(desk.starts), waiting, replace(way, seen=seen))


def _best_way(forecast: Forecast, last: Way | None) -> Way:
    """Play the rest as often as the time of a round allows, and return the way that ends first."""
    jobs = len(forecast.ready) + len(forecast.later)
    now_s = forecast.now_s
    span_s = forecast.bound_s() - now_s
    ways = [Way(now_s + f * span_s if f else -math.inf, gain, wait) for f, gain, wait in _WAYS]
    tries = max(1, min(len(ways), BUDGET // jobs))
    best, score = ways[0], (math.inf, math.inf)
    if last:
        # few tries start elsewhere every time, so that a long run sees all ways
        turn = jobs * tries % len(ways)
        ways = [*ways[turn:], *ways[:turn]]
        best = last
        if tries > 1 or jobs % 3 == 0:
            best, tries = replace(last, end_s=forecast.play(last)[0]), tries - 1
        score = (1 - _GAIN) * best.end_s + _GAIN * now_s, math.inf
    for way in ways[:tries]:
        found = forecast.play(way, score[0])
        if found < score:
            best, score = replace(way, end_s=found[0]), found
    for shake in range(1, max(0, _SHORT - jobs) // 8):
        found = forecast.play(way := replace(best, shake=shake), score[0])
        if found < score:
            best, score = replace(way, end_s=found[0]), found
    return best


class _Desk:
    """Gives starts of a kind to accounts, and keeps what is left of each pool."""

    def __init__(
        self, work: Workload, pools: Sequence[Slots], clock_s: float, preferred: Mapping[str, str]
    ) -> None:
        self.work, self.clock_s, self.preferred = work, clock_s, preferred
        self.given, self.room = list(pools), [pool.room for pool in pools]
        self.added: dict[int, list[Running]] = defaultdict(list)
        self.starts: list[Decision] = []

    def pools(self) -> list[Slots]:
        """Return the pools with what was placed here."""
        return [
            replace(pool, free=self.room[k], running=(*pool.running, *self.added[k]))
            for k, pool in enumerate(self.given)
        ]

    def _give(self, i: int, k: int, reason: str) -> None:
        job, pool = self.work.jobs[i], self.given[k]
        end_s = self.clock_s + self.work.seconds[KINDS.index(pool.kind)][i]
        self.room[k] -= 1
        self.added[k].append(Running(job.name, self.clock_s, end_s))
        self.starts.append(Decision(job.name, pool.name, self.clock_s, end_s, reason))

    def outranked(self, fixed: list[int], others: list[int]) -> set[int]:
        """Return the jobs with an account that leave their slot to longer chains without one."""
        chain_s, (gpu_s, _) = self.work.chain_s, self.work.seconds
        rooms = [sum(self.room[k] for k in self._open(kind)) for kind in range(len(KINDS))]
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
                ends = ends[pool.room - pool.slots :] if pool.room < pool.slots else []
                gpus_s[pool.account] += [self.clock_s] * pool.room + ends
        for i in sorted(jobs, key=self.work.by_chain.place.__getitem__):
            account = self.work.jobs[i].account or ""
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
        """Give starts to accounts: those with a preference first, the others where most is free."""
        others = []
        for _, kind, i in starts:
            account = self.preferred.get(self.work.jobs[i].group or "")
            pools = [k for k in self._open(kind) if self.given[k].account == account]
            if pools:
                self._give(i, pools[0], f"{_WHY[kind]}, on the account of its group")
            else:
                others.append((kind, i))
        for kind, i in others:
            self._give(i, max(self._open(kind), key=lambda k: (self.room[k], -k)), _WHY[kind])

    def _open(self, kind: int) -> list[int]:
        return [k for k, p in enumerate(self.given) if p.kind == KINDS[kind] and self.room[k] > 0]

    def why_waiting(self, job: Job) -> str:
        """Return why a ready job was not placed."""
        fits = [k for k, pool in enumerate(self.given) if pool.kind in job.kinds and pool.slots > 0
                and job.account in (None, pool.account)]  # fmt: skip
        if not fits:
            return f"no slot of {' or '.join(job.kinds)} on {job.account or 'any account'}"
        if any(self.room[k] for k in fits):
            return "a gpu slot falls free in time to finish it sooner"
        return "every slot it may use is taken"
