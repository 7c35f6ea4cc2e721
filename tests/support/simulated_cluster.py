"""A simulated cluster, on which tests and ``benchmarks.placement`` judge the policy."""

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from snakemake_scheduler_plugin_tilewright.cluster.request import DeviceKind
from snakemake_scheduler_plugin_tilewright.placement.jobs import Job
from snakemake_scheduler_plugin_tilewright.placement.workload import Decision, Running, Slots


@dataclass(frozen=True, slots=True)
class Change:
    """How many slots of a pool may be filled from a time on; jobs in slots that go keep running."""

    at_s: float
    pool: str
    slots: int
    #: Jobs in slots that go are ended instead, the youngest first, to be placed again.
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
    """How a run went."""

    #: End of the last job that was done.
    makespan_s: float = 0.0
    spans: list[JobSpan] = field(default_factory=list)
    #: Jobs that no policy placed while anything could still happen.
    undone: list[str] = field(default_factory=list)
    #: Wall time of each decision.
    round_s: list[float] = field(default_factory=list)


def simulate(
    jobs: Iterable[Job],
    true_s: Mapping[tuple[str, DeviceKind], float],
    pools: Iterable[Slots],
    policy: Policy,
    changes: Iterable[Change] = (),
) -> SimulatedRun:
    """Run jobs on a cluster, empty at first, until nothing can happen any more.

    The policy is asked whenever something happened and there are both a slot and a ready job. A
    decision for a job that is not ready, a pool without a free slot, or a wrong kind is an error.
    """
    return _SimulatedCluster(jobs, true_s, pools, policy).run(changes)


class _SimulatedCluster:
    def __init__(
        self,
        jobs: Iterable[Job],
        true_s: Mapping[tuple[str, DeviceKind], float],
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
        self.result = SimulatedRun()

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
        assert job in self.ready, f"{job} is not ready"
        assert self._free(pool), f"{pool} has no free slot for {job}"
        assert self.pools[pool].kind in self.jobs[job].kinds, f"{job} cannot run in {pool}"
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
