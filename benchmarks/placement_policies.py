"""The policy of production and three baselines, as the simulator asks them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from tilewright.placement.restarts import after, restarts

from benchmarks.placement_scenarios import Scenario
from tilewright.placement.jobs import KINDS, Kind
from tilewright.placement.policy import decide
from tilewright.placement.preview import Policy, View
from tilewright.placement.workload import Decision, Workload

BASELINES = ("gpu round robin", "static weighted", "any free slot")


def ours(scenario: Scenario, learn: bool = True) -> Policy:
    """Return the policy of production, with estimates learned from finished jobs."""
    jobs = {job.name: job for job in scenario.jobs}
    kinds = {pool.name: pool.kind for pool in scenario.pools}
    estimates = dict(scenario.estimates_s)
    work, last, seen = Workload(scenario.jobs, estimates), None, 0
    logs: dict[tuple[str, Kind], list[float]] = defaultdict(list)

    def policy(view: View) -> Iterable[Decision]:
        nonlocal work, last, seen
        stale = False
        for bar in view.bars[seen:]:
            if bar.done:
                key = jobs[bar.job].rule, kinds[bar.pool]
                per_work_s = (bar.end_s - bar.start_s) / jobs[bar.job].work
                logs[key].append(math.log(per_work_s / scenario.estimates_s[key]))
                learned_s = scenario.estimates_s[key] * math.exp(
                    sum(logs[key]) / (len(logs[key]) + 0.5)
                )
                if abs(learned_s / estimates[key] - 1) > 0.05:
                    estimates[key], stale = learned_s, True
        seen = len(view.bars)
        if stale and learn:
            work = Workload(scenario.jobs, estimates)
        pools = [replace(p, running=tuple(
            replace(r, end_s=r.start_s + estimates[jobs[r.job].rule, p.kind] * jobs[r.job].work)
            for r in p.running)) for p in view.pools]  # fmt: skip
        starts: tuple[Decision, ...] = ()
        if view.ready:
            found = decide(work, view.ready, view.later, pools, view.clock_s, last=last)
            last, starts = found.way, found.starts
        pools = after(pools, starts)
        waiting = set(view.ready) - {start.job for start in starts}
        return [*starts, *restarts(work, waiting, view.later, pools, view.clock_s, last)]

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
        for pool in pools:
            speed = pool.slots / scenario.estimates_s[job.rule, pool.kind] if weighted else 1.0
            credit[pool.name] += speed
        chosen = max(pools, key=lambda pool: credit[pool.name])
        credit[chosen.name] -= sum(
            p.slots / scenario.estimates_s[job.rule, p.kind] if weighted else 1.0 for p in pools
        )
        plan[job.name] = chosen.name

    def policy(view: View) -> Iterable[Decision]:
        pools = {pool.name: pool for pool in view.pools}
        free = {pool.name: pool.free for pool in view.pools}
        alive = {kind: [p.name for p in view.pools if p.kind == kind and p.slots] for kind in KINDS}
        for name in view.ready:
            pool = plan[name]
            if not pools[pool].slots:
                others = alive[pools[pool].kind] or alive["cpu"]
                if not others:
                    continue
                pool = plan[name] = others[len(name) % len(others)]
            if free[pool]:
                free[pool] -= 1
                yield Decision(name, pool, view.clock_s, view.clock_s, "planned")

    return policy


def any_free(scenario: Scenario) -> Policy:
    """Return a policy that takes whatever slot is free, GPUs first."""
    jobs = {job.name: job for job in scenario.jobs}

    def policy(view: View) -> Iterable[Decision]:
        free = {p.name: p.free for p in sorted(view.pools, key=lambda p: p.kind, reverse=True)}
        kinds = {p.name: p.kind for p in view.pools}
        for name in view.ready:
            pool = next((p for p, n in free.items() if n and kinds[p] in jobs[name].kinds), None)
            if pool is not None:
                free[pool] -= 1
                yield Decision(name, pool, view.clock_s, view.clock_s, "free")

    return policy
