"""The policy of production and three baselines, as the simulator asks them."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from benchmarks.placement.bound import Scenario
from snakemake_scheduler_plugin_tilewright.cluster.request import KINDS, DeviceKind
from snakemake_scheduler_plugin_tilewright.placement.estimates import margin_of
from snakemake_scheduler_plugin_tilewright.placement.jobs import Job
from snakemake_scheduler_plugin_tilewright.placement.policy import FreeSlots, schedule
from snakemake_scheduler_plugin_tilewright.placement.workload import (
    Decision,
    GpuSlots,
    Running,
    Slots,
    Workload,
)
from tests.support.simulated_cluster import ClusterView, Policy


class ByLength(FreeSlots):
    """Free slots of pools that are each for jobs of a length."""

    def __init__(self, scenario: Scenario, jobs: Iterable[Job], pools: Sequence[Slots]) -> None:
        super().__init__(jobs, pools)
        self.scenario = scenario
        self.keys = {job.name: tuple(self.may(job, p) for p in pools) for job in jobs}

    def key(self, job: Job) -> Hashable:
        """Return which pools are for a job."""
        return self.keys[job.name]

    def may(self, job: Job, pool: Slots) -> bool:
        """Return whether a pool is for jobs of its length."""
        return self.scenario.may(job.name, pool.name)


BASELINES = ("gpu round robin", "static weighted", "any free slot")


def ours(
    scenario: Scenario,
    learn: bool = True,
    *,
    exact: bool = False,
) -> Policy:
    """Return the policy of production, with estimates learned from finished jobs.

    With exact estimates no job has a margin.
    """
    jobs = {job.name: job for job in scenario.jobs}
    kinds = {pool.name: pool.kind for pool in scenario.pools}
    estimates = dict(scenario.estimates_s)
    logs: dict[tuple[str, DeviceKind], list[float]] = defaultdict(list)

    def workload() -> Workload:
        margins = {
            rule: 0.0 if exact else margin_of([math.exp(log) for log in logs[rule, "cpu"]])
            for rule, _ in scenario.estimates_s
        }
        return Workload(scenario.jobs, estimates, margins)

    work, gpu_slots, seen = workload(), GpuSlots(), 0

    def policy(snapshot: ClusterView) -> Iterable[Decision]:
        nonlocal work, gpu_slots, seen
        stale = False
        for span in snapshot.spans[seen:]:
            if span.done:
                key = jobs[span.job].rule, kinds[span.pool]
                per_nominal_s = (span.end_s - span.start_s) / jobs[span.job].cpu_seconds
                logs[key].append(math.log(per_nominal_s / scenario.estimates_s[key]))
                learned_s = scenario.estimates_s[key] * math.exp(
                    sum(logs[key]) / (len(logs[key]) + 0.5)
                )
                if abs(learned_s / estimates[key] - 1) > 0.05:
                    estimates[key], stale = learned_s, True
        seen = len(snapshot.spans)
        if stale and learn:
            work = workload()

        def end_s(run: Running, kind: DeviceKind) -> float:
            job = jobs[run.job]
            return run.start_s + estimates[job.rule, kind] * job.cpu_seconds

        pools = [
            replace(p, running=tuple(replace(r, end_s=end_s(r, p.kind)) for r in p.running))
            for p in snapshot.pools
        ]
        open_ = [jobs[name] for name in snapshot.ready]
        places = ByLength(scenario, open_, pools) if scenario.too_long else None
        found = schedule(work, snapshot.ready, pools, snapshot.clock_s, gpu_slots, places)
        gpu_slots = found.gpu_slots
        return found.starts

    return policy


def preassigned(scenario: Scenario, weighted: bool) -> Policy:
    """Return a policy that gives every job its pool beforehand.

    A job whose pool has no slot left goes to the next pool of its kind that has.
    """
    gpu_pools = [pool for pool in scenario.pools if pool.kind == "gpu"]
    cpu_pools = [pool for pool in scenario.pools if pool.kind == "cpu"]
    credit: dict[str, float] = defaultdict(float)
    plan: dict[str, str] = {}
    for job in scenario.jobs:
        pools = cpu_pools if len(job.kinds) == 1 or not gpu_pools else gpu_pools
        if weighted and len(job.kinds) == 2:
            pools = scenario.pools
        pools = [pool for pool in pools if scenario.may(job.name, pool.name)] or [
            pool for pool in cpu_pools if scenario.may(job.name, pool.name)
        ]
        for pool in pools:
            speed = pool.slots / scenario.estimates_s[job.rule, pool.kind] if weighted else 1.0
            credit[pool.name] += speed
        chosen = max(pools, key=lambda pool: credit[pool.name])
        credit[chosen.name] -= sum(
            p.slots / scenario.estimates_s[job.rule, p.kind] if weighted else 1.0 for p in pools
        )
        plan[job.name] = chosen.name

    def policy(snapshot: ClusterView) -> Iterable[Decision]:
        pools = {pool.name: pool for pool in snapshot.pools}
        free = {pool.name: pool.free for pool in snapshot.pools}
        alive = {
            kind: [p.name for p in snapshot.pools if p.kind == kind and p.slots] for kind in KINDS
        }
        for name in snapshot.ready:
            pool = plan[name]
            if not pools[pool].slots:
                others = alive[pools[pool].kind] or alive["cpu"]
                if not others:
                    continue
                pool = plan[name] = others[len(name) % len(others)]
            if free[pool] and scenario.may(name, pool):
                free[pool] -= 1
                yield Decision(name, pool, snapshot.clock_s, snapshot.clock_s, "planned")

    return policy


def any_free(scenario: Scenario) -> Policy:
    """Return a policy that takes whatever slot is free, GPUs first, accounts as ours does."""
    jobs = {job.name: job for job in scenario.jobs}

    def policy(snapshot: ClusterView) -> Iterable[Decision]:
        free = {p.name: p.free for p in snapshot.pools}
        kinds = {p.name: p.kind for p in snapshot.pools}
        for name in snapshot.ready:
            open_ = [p for p, n in free.items()
                     if n and kinds[p] in jobs[name].kinds and scenario.may(name, p)]  # fmt: skip
            pool = max(open_, key=lambda p: (kinds[p], free[p]), default=None)
            if pool is not None:
                free[pool] -= 1
                yield Decision(name, pool, snapshot.clock_s, snapshot.clock_s, "free")

    return policy
