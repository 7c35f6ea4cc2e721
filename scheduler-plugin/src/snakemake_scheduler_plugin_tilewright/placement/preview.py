"""What a run would do on the slots that are free now, played by a discrete-event simulator."""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity
from snakemake_scheduler_plugin_tilewright.placement.jobs import KINDS, Job, Kind, Shape, Task
from snakemake_scheduler_plugin_tilewright.placement.policy import Forecast, decide
from snakemake_scheduler_plugin_tilewright.placement.sizing import Estimates, Shapes
from snakemake_scheduler_plugin_tilewright.placement.workload import (
    Decision,
    Running,
    Slots,
    Strategy,
    Workload,
)


@dataclass(frozen=True, slots=True)
class Change:
    """Slots of a pool from a time on.

    Attributes
    ----------
    at_s : float
        When, in seconds of the clock.
    pool : str
        Name of the pool.
    slots : int
        Slots that may be filled from then on; jobs in slots that go keep running.
    kills : bool
        Whether they are ended instead, the youngest first, to be placed again.
    """

    at_s: float
    pool: str
    slots: int
    kills: bool = False


@dataclass(frozen=True, slots=True)
class JobSpan:
    """One job in one pool from start to end, in seconds; ``done`` is false where it was killed."""

    job: str
    pool: str
    start_s: float
    end_s: float
    done: bool = True


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a policy sees: names of ready and of later jobs, pools, clock, and spans so far."""

    clock_s: float
    ready: tuple[str, ...]
    later: frozenset[str]
    pools: tuple[Slots, ...]
    spans: Sequence[JobSpan]


Policy = Callable[[ClusterView], Iterable[Decision]]


@dataclass
class SimulatedRun:
    """How a run went.

    Attributes
    ----------
    makespan_s : float
        End of the last job that was done.
    spans : list of JobSpan
        The timeline.
    busy_s : dict
        Slots to the seconds that its slots were filled, summed over slots.
    undone : list of str
        Jobs that no policy placed while anything could still happen.
    round_s : list of float
        Wall time of each decision.
    """

    makespan_s: float = 0.0
    spans: list[JobSpan] = field(default_factory=list)
    busy_s: dict[str, float] = field(default_factory=dict)
    undone: list[str] = field(default_factory=list)
    round_s: list[float] = field(default_factory=list)


class OversubscribedError(ValueError):
    """A policy placed a job where it cannot be."""


def simulate(
    jobs: Iterable[Job],
    true_s: Mapping[tuple[str, Kind], float],
    pools: Iterable[Slots],
    policy: Policy,
    changes: Iterable[Change] = (),
) -> SimulatedRun:
    """Run jobs on a cluster until nothing can happen any more.

    Parameters
    ----------
    jobs : iterable of Job
        The run, with what each job needs.
    true_s : mapping
        (job, kind) to the seconds it really takes.
    pools : iterable of Slots
        Pools at the start; all their slots are free.
    policy : callable
        ClusterView to decisions; asked whenever something happened and there are both a slot and a
        job that is ready.
    changes : iterable of Change
        Slots that come and go.

    Raises
    ------
    OversubscribedError
        A decision names a job that is not ready, a pool without a free slot, or a wrong kind.
    """
    return _SimulatedCluster(jobs, true_s, pools, policy).run(changes)


class _SimulatedCluster:
    def __init__(
        self,
        jobs: Iterable[Job],
        true_s: Mapping[tuple[str, Kind], float],
        pools: Iterable[Slots],
        policy: Policy,
    ) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.true_s, self.policy = true_s, policy
        self.pools = {pool.name: pool for pool in pools}
        self.slots = {pool.name: pool.slots for pool in self.pools.values()}
        self.running: dict[str, dict[str, Running]] = {name: {} for name in self.pools}
        self.waits = {job.name: len(set(job.needs)) for job in self.jobs.values()}
        self.feeds: dict[str, list[str]] = {name: [] for name in self.jobs}
        for job in self.jobs.values():
            for need in set(job.needs):
                self.feeds[need].append(job.name)
        self.ready = {name: None for name, count in self.waits.items() if not count}
        self.later = {name for name, count in self.waits.items() if count}
        self.ends: list[tuple[float, int, str, str]] = []
        self.placed: dict[str, int] = {}
        self.count = 0
        self.clock_s = 0.0
        self.result = SimulatedRun(busy_s=dict.fromkeys(self.pools, 0.0))

    def run(self, changes: Iterable[Change]) -> SimulatedRun:
        coming = sorted(changes, key=lambda change: change.at_s)[::-1]
        while True:
            while coming and coming[-1].at_s <= self.clock_s:
                self._change(coming.pop())
            while self.ends and self.ends[0][0] <= self.clock_s:
                self._end(*heapq.heappop(self.ends)[1:])
            if self.ready and any(map(self._free, self.pools)):
                self._ask()
            if not self.ready and not self.ends:
                break
            next_s = [end for end, *_ in self.ends[:1]] + [change.at_s for change in coming[-1:]]
            if not next_s:
                break
            self.clock_s = min(next_s)
        self.result.undone = [*self.ready, *sorted(self.later)]
        return self.result

    def _free(self, pool: str) -> int:
        return max(0, self.slots[pool] - len(self.running[pool]))

    def _snapshot(self) -> ClusterView:
        pools = tuple(
            Slots(name, pool.account, pool.kind, self.slots[name], self._free(name),
                 tuple(self.running[name].values()))
            for name, pool in self.pools.items()
        )  # fmt: skip
        later = frozenset(self.later)
        return ClusterView(self.clock_s, tuple(self.ready), later, pools, self.result.spans)

    def _ask(self) -> None:
        snapshot = self._snapshot()
        begin = time.perf_counter()
        decisions = list(self.policy(snapshot))
        self.result.round_s.append(time.perf_counter() - begin)
        for decision in decisions:
            self._start(decision)

    def _start(self, decision: Decision) -> None:
        job, pool = decision.job, decision.pool
        if job not in self.ready:
            raise OversubscribedError(f"{job} is not ready")
        if not self._free(pool):
            raise OversubscribedError(f"{pool} has no free slot for {job}")
        if self.pools[pool].kind not in self.jobs[job].kinds:
            raise OversubscribedError(f"{job} cannot run in {pool}")
        del self.ready[job]
        self.count += 1
        self.placed[job] = self.count
        self.running[pool][job] = Running(job, self.clock_s, decision.end_s)
        end_s = self.clock_s + self.true_s[job, self.pools[pool].kind]
        heapq.heappush(self.ends, (end_s, self.count, job, pool))

    def _end(self, count: int, job: str, pool: str) -> None:
        if self.placed.get(job) != count:
            return  # killed before
        self._leave(job, pool, done=True)
        del self.placed[job]
        self.result.makespan_s = self.clock_s
        for fed in self.feeds[job]:
            self.waits[fed] -= 1
            if not self.waits[fed]:
                self.later.discard(fed)
                self.ready[fed] = None

    def _change(self, change: Change) -> None:
        self.slots[change.pool] = change.slots
        if change.kills:
            for job in list(self.running[change.pool])[change.slots :]:
                self._leave(job, change.pool, done=False)
                del self.placed[job]
                self.ready[job] = None

    def _leave(self, job: str, pool: str, *, done: bool) -> None:
        run = self.running[pool].pop(job)
        self.result.spans.append(JobSpan(job, pool, run.start_s, self.clock_s, done))
        self.result.busy_s[pool] += self.clock_s - run.start_s


@dataclass(frozen=True)
class RuleShare:
    """Jobs of one rule: all, those placed by kind of slot and account, and their seconds in sum."""

    rule: str
    jobs: int
    gpu: int
    cpu: int
    busy_s: float
    accounts: Mapping[str, int]


@dataclass(frozen=True)
class PoolShare:
    """One pool: slots by its limits and free now, jobs it gets, seconds its slots are filled."""

    name: str
    slots: int
    free: int
    jobs: int
    busy_s: float


@dataclass(frozen=True)
class AccountUse:
    """What a run would use of one account."""

    account: str
    cpu_hours: float
    gpu_hours: float


@dataclass(frozen=True)
class Preview:
    """How a run would go.

    Attributes
    ----------
    use : tuple of AccountUse
        As long as jobs are expected to run; budgets are charged for no more.
    finish_s : float or None
        When all is done, from now; None where nothing is free for some job.
    gpu_only_s : float or None
        The same were jobs dealt out to the GPU pools in turn; None without a free GPU slot.
    bound_s : float or None
        No placement in the slots that are free now is done sooner.
    all_free_s : float or None
        When all is done were all slots of the accounts free; None where they are.
    slots_for : mapping of str to Shape
        Device kind to the largest job that remains, for which slots are counted.
    """

    rules: tuple[RuleShare, ...]
    pools: tuple[PoolShare, ...]
    use: tuple[AccountUse, ...]
    finish_s: float | None
    gpu_only_s: float | None
    bound_s: float | None
    all_free_s: float | None
    slots_for: Mapping[Kind, Shape]


def preview(tasks: Sequence[Task], estimates: Estimates, capacity: Capacity) -> Preview:
    """Play a run with estimated durations; slots that others fill now stay filled.

    Parameters
    ----------
    tasks : sequence of Task
        The jobs that remain.
    capacity : Capacity
        What is free now. Slots are counted for the largest job of each device kind.
    """
    sizes = Shapes(estimates, capacity).largest(tasks)
    counted = capacity.pools(sizes, together=True)
    free = {pool.name: pool.free for pool in counted}
    all_pools = [Slots(p.name, p.account, p.kind, p.slots, p.slots) for p in counted]
    pools = [replace(p, slots=n, free=n) for p in all_pools if (n := free[p.name])]
    play = _Play([task.job for task in tasks], estimates)
    run = play.run(pools, play.policy())
    everything = None
    if any(pool.slots > free[pool.name] for pool in all_pools):
        everything = _end_s(play.run(all_pools, play.policy()))
    gpu_only = None
    if not tasks or any(pool.kind == "gpu" for pool in pools):
        gpu_only = _end_s(play.run(pools, play.gpu_only(pools)))
    finish_s = _end_s(run)
    # bisected to 0.1 % from above
    bound_s = None if finish_s is None else min(finish_s, play.bound_s(pools))
    return Preview(
        play.by_rule(run, all_pools),
        tuple(
            PoolShare(p.name, p.slots, free[p.name], sum(span.pool == p.name for span in run.spans),
                      run.busy_s.get(p.name, 0.0))
            for p in all_pools
        ),
        play.by_account(run, all_pools), finish_s, gpu_only, bound_s, everything, sizes,
    )  # fmt: skip


class _Play:
    def __init__(self, jobs: Sequence[Job], estimates: Estimates) -> None:
        names = {job.name for job in jobs}
        self.estimates = estimates
        self.rules = {job.name: job.rule for job in jobs}
        self.jobs = [replace(j, needs=tuple(n for n in j.needs if n in names)) for j in jobs]
        self.seconds = {(j.name, k): estimates.seconds(j, k) for j in jobs for k in j.kinds}
        self.factors = {
            (rule, kind): estimates.factor(rule, kind)
            for rule in set(self.rules.values())
            for kind in KINDS
        }
        self.work = estimates.workload(self.jobs)

    def run(self, pools: Iterable[Slots], policy: Policy) -> SimulatedRun:
        return simulate(self.jobs, self.seconds, pools, policy)

    def policy(self) -> Policy:
        """Return the policy of production."""
        last: Strategy | None = None

        def policy(snapshot: ClusterView) -> Iterable[Decision]:
            nonlocal last
            ready, pools = snapshot.ready, snapshot.pools
            if not ready or not any(pool.fillable for pool in pools):
                return ()
            made = decide(self.work, ready, snapshot.later, pools, snapshot.clock_s, last=last)
            last = made.strategy
            return made.starts

        return policy

    def gpu_only(self, pools: Sequence[Slots]) -> Policy:
        """Return a policy that deals jobs out to the GPU pools in turn, before anything runs."""
        turns = {kind: cycle([p.name for p in pools if p.kind == kind] or [""]) for kind in KINDS}
        dealt = {job.name: next(turns[job.kinds[0]]) for job in self.work.jobs}

        def policy(snapshot: ClusterView) -> Iterable[Decision]:
            starts = []
            free = {pool.name: pool.fillable for pool in snapshot.pools}
            for name in snapshot.ready:
                pool = dealt[name]
                if free.get(pool):
                    free[pool] -= 1
                    starts.append(
                        Decision(name, pool, snapshot.clock_s, snapshot.clock_s, "its turn")
                    )
            return starts

        return policy

    def bound_s(self, pools: Sequence[Slots]) -> float:
        """Return seconds that no placement beats: work as water, and the longest chain."""
        open_ = {pool.kind for pool in pools}
        reachable = [
            replace(job, kinds=tuple(k for k in job.kinds if k in open_)) for job in self.jobs
        ]
        chain_s = max(Workload(reachable, self.factors).chain_s, default=0.0)
        if not self.work.jobs:
            return chain_s
        index = range(len(self.work.jobs))
        ready = [i for i in index if not self.work.needs[i]]
        later = [i for i in index if self.work.needs[i]]
        return max(chain_s, Forecast(self.work, ready, later, pools, 0.0).bound_s())

    def by_account(self, run: SimulatedRun, pools: Iterable[Slots]) -> tuple[AccountUse, ...]:
        """Return the hours of CPUs and GPUs on each account."""
        where = {pool.name: (pool.account, pool.kind) for pool in pools}
        jobs = {job.name: job for job in self.jobs}
        hours: dict[str, tuple[float, float]] = {}
        for span in run.spans:
            account, kind = where.get(span.pool, ("", "cpu"))
            job, took = jobs[span.job], (span.end_s - span.start_s) / 3600
            shape = self.estimates.shape(job.rule, job.wildcards, kind)
            cpu, gpu = hours.get(account, (0.0, 0.0))
            hours[account] = cpu + took * shape.cpus, gpu + took * shape.gpus
        return tuple(AccountUse(name, *hours[name]) for name in sorted(hours))

    def by_rule(self, run: SimulatedRun, pools: Iterable[Slots]) -> tuple[RuleShare, ...]:
        """Return the rules in the order in which they first end, those that never do last."""
        where = {pool.name: pool for pool in pools}
        kinds = {pool.name: pool.kind for pool in pools}
        accounts: dict[str, Counter[str]] = defaultdict(Counter)
        jobs = Counter(self.rules.values())
        counts: Counter[tuple[str, str]] = Counter()
        busy_s: dict[str, float] = {}
        for span in run.spans:
            rule = self.rules[span.job]
            counts[rule, kinds[span.pool]] += 1
            busy_s[rule] = busy_s.get(rule, 0.0) + span.end_s - span.start_s
            if span.pool in where:
                accounts[rule][where[span.pool].account] += 1
        return tuple(
            RuleShare(
                rule, jobs[rule], counts[rule, "gpu"], counts[rule, "cpu"],
                busy_s.get(rule, 0.0), dict(sorted(accounts[rule].items())),
            )
            for rule in dict.fromkeys([*busy_s, *sorted(jobs)])
        )  # fmt: skip


def _end_s(run: SimulatedRun) -> float | None:
    return None if run.undone else run.makespan_s
