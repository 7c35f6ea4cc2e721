"""Placement beside three baselines and a lower bound, on random clusters.

``python -m benchmarks.placement [--scenarios 200] [--seed 3] [--workers 2]``. The policy is the
one that runs in production. The bound (`benchmarks.placement_bound`) knows the true durations and
all that will happen to the slots, which no policy can. *Told durations* is the same policy with
the true duration of every job. Estimates are off by up to 2x (half by rule and device, half by
job) and learned from finished jobs in the same run.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.placement_bound import Bound
from benchmarks.placement_exact import best_of_many_s, told
from tilewright.placement.policy import decide
from tilewright.placement.restarts import after, restarts
from tilewright.placement.simulator import Change, Policy, Run, View, simulate
from tilewright.placement.workload import Decision, Job, Kind, Slots, Workload

CPUS_PER_JOB, GPU_JOB_GB, CPU_JOB_GB = 8, 16, 48
KINDS: tuple[Kind, ...] = ("gpu", "cpu")
#: Rules in the order of the pipeline; the light ones never take a GPU.
RULES = ("tile_positions", "stitch", "deconvolve", "project", "register", "assemble")
BASELINES = ("gpu round robin", "static weighted", "any free slot")


@dataclass
class Scenario:
    """A run on a cluster: what is estimated, what is true, and what will happen."""

    jobs: list[Job]
    pools: list[Slots]
    estimates_s: dict[tuple[str, Kind], float]
    true_s: dict[tuple[str, Kind], float]
    changes: list[Change] = field(default_factory=list)
    tags: frozenset[str] = frozenset()


# fmt: off
def pipeline(rng: random.Random, count: int) -> list[Job]:
    """Return about ``count`` jobs of whole samples, QC included."""
    jobs: list[Job] = []
    cycles, channels = rng.randint(1, 8), rng.randint(1, 5)
    sample = 0
    while len(jobs) < count:
        ends: list[str] = []
        work = math.exp(rng.uniform(-0.7, 0.7))
        for cycle in range(cycles):
            group = f"s{sample}c{cycle}"

            def add(rule: str, part: str, needs: Iterable[str], light: bool = False,
                    group: str = group, work: float = work) -> str:
                name = f"{rule}_{group}_{part}"
                kinds: tuple[Kind, ...] = ("cpu",) if light else KINDS
                jobs.append(Job(name, rule, kinds, tuple(needs), work, group))
                return name

            places = add("tile_positions", "", ())
            planes = []
            for channel in range(channels):
                last = places
                for rule in RULES[1:4]:
                    last = add(rule, str(channel), (last,))
                    add("qc", f"{rule}{channel}", (last,), light=True)
                planes.append(last)
            ends.append(add("register", "", [*planes, *ends[:1]]))
        add("assemble", "", ends)
        sample += 1
    return jobs


def independent(rng: random.Random, count: int) -> list[Job]:
    """Return jobs that wait for nothing, of one to five rules."""
    rules = rng.sample(RULES, rng.randint(1, 5))
    return [Job(f"j{i}", rng.choice(rules), KINDS, (), math.exp(rng.uniform(-0.5, 0.5)))
            for i in range(count)]


def layered(rng: random.Random, count: int) -> list[Job]:
    """Return jobs that each need up to three earlier ones."""
    jobs: list[Job] = []
    reach = rng.randint(3, 60)
    for i in range(count):
        near = [job.name for job in jobs[-reach:]]
        needs = rng.sample(near, min(len(near), rng.randint(0, 3)))
        kinds = ("cpu",) if rng.random() < 0.1 else KINDS
        rule = "qc" if len(kinds) == 1 else rng.choice(RULES)
        jobs.append(Job(f"j{i}", rule, kinds, tuple(needs), math.exp(rng.uniform(-0.5, 0.5))))
    return jobs
# fmt: on


def make_scenario(seed: int) -> Scenario:
    """Return one random scenario."""
    rng = random.Random(seed)
    count = round(math.exp(rng.uniform(math.log(5), math.log(2000))))
    shape = rng.choice([pipeline, pipeline, independent, layered])
    jobs = shape(rng, count)[:count]
    tags = {shape.__name__, "<= 40 jobs" if count <= 40 else "> 40 jobs"}
    ratio = math.exp(rng.uniform(math.log(1.5), math.log(25)))
    estimates: dict[tuple[str, Kind], float] = {("qc", "cpu"): rng.uniform(10, 60)}
    for rule in RULES:
        gpu_s = math.exp(rng.uniform(math.log(30), math.log(600)))
        own = min(25.0, max(1.5, ratio * math.exp(rng.uniform(-0.5, 0.5))))
        estimates[rule, "gpu"], estimates[rule, "cpu"] = gpu_s, gpu_s * own
    exact = rng.random() < 0.25
    tags.add("durations known" if exact else "durations off")
    half = 0.0 if exact else math.log(2) / 2
    off = {key: math.exp(rng.uniform(-half, half)) for key in estimates}
    true = {
        (job.name, kind): estimates[job.rule, kind]
        * job.work
        * off[job.rule, kind]
        * math.exp(rng.uniform(-half, half))
        for job in jobs
        for kind in job.kinds
    }
    scenario = Scenario(jobs, make_pools(rng, tags), estimates, true)
    scenario.changes = make_changes(rng, scenario, tags)
    scenario.tags = frozenset(tags)
    return scenario


def make_pools(rng: random.Random, tags: set[str]) -> list[Slots]:
    """Return pools of one to six accounts; one of them has a CPU slot at least."""
    memory_bound = rng.random() < 0.33
    if memory_bound:
        tags.add("memory-bound")
    pools = []
    count = rng.randint(1, 6)
    sure = rng.randrange(count)
    for a in range(count):
        gpus, cpus = rng.randint(0, 8), rng.randint(0, 256)
        gpu_slots, cpu_slots = gpus, int(0.85 * cpus / CPUS_PER_JOB)
        if memory_bound:
            memory_gb = rng.randint(32, 800)
            gpu_slots = min(gpu_slots, memory_gb // GPU_JOB_GB)
            cpu_slots = min(cpu_slots, memory_gb // CPU_JOB_GB)
        if a == sure:
            cpu_slots = max(1, cpu_slots)
        for kind, slots in (("gpu", gpu_slots), ("cpu", cpu_slots)):
            if slots:
                pools.append(Slots(f"a{a}_{kind}", f"a{a}", kind, slots, slots))  # type: ignore[arg-type]
    return pools


def make_changes(rng: random.Random, scenario: Scenario, tags: set[str]) -> list[Change]:
    """Return labmates coming and going, an account throttled, an account lost.

    One pool, any, never goes to nothing for labmates; an account that has all CPUs is not lost.
    """
    span_s, sure = Bound(scenario).quick_s(), rng.choice(scenario.pools)
    changes: list[Change] = []
    if rng.random() < 0.4:
        tags.add("labmates")
        for pool in rng.sample(scenario.pools, max(1, len(scenario.pools) // 2)):
            at_s = 0.0
            while at_s < 1.5 * span_s:
                at_s += rng.uniform(0.05, 0.5) * span_s
                least = int(pool is sure)
                changes.append(Change(at_s, pool.name, rng.randint(least, pool.slots)))
            changes.append(Change(at_s, pool.name, pool.slots))
    with_cpus = {pool.account for pool in scenario.pools if pool.kind == "cpu"}
    accounts = sorted(a for a in {p.account for p in scenario.pools} if with_cpus - {a})
    fate = rng.random()
    if accounts and fate < 0.4:
        lost = fate < 0.15
        tags.add("account lost" if lost else "account throttled")
        account, at_s = rng.choice(accounts), rng.uniform(0.1, 0.7) * span_s
        own = [pool for pool in scenario.pools if pool.account == account]
        changes = [c for c in changes if c.pool not in {pool.name for pool in own}]
        for pool in own:
            left = 0 if lost else int(pool.slots * rng.uniform(0, 0.5))
            changes.append(Change(at_s, pool.name, left, kills=lost))
            if not lost:
                changes.append(Change(at_s + rng.uniform(0.1, 1) * span_s, pool.name, pool.slots))
    if not changes:
        tags.add("steady")
    return sorted(changes, key=lambda change: change.at_s)


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


@dataclass
class Result:
    """Makespans of one scenario in seconds, its bound, and times of decisions."""

    tags: frozenset[str]
    jobs: int
    bound_s: float
    best_s: float
    ours_s: float
    told_s: float
    baselines_s: list[float]
    turned_s: float
    round_s: list[float]
    loss: float | None


def play(scenario: Scenario, policy: Policy) -> tuple[float, Run]:
    """Return the makespan, infinite where jobs are left, and the run."""
    run = simulate(scenario.jobs, scenario.true_s, scenario.pools, policy, scenario.changes)
    return (math.inf if run.undone else run.makespan_s), run


def cost_of_loss(scenario: Scenario, lost_s: float, run: Run) -> float:
    """Return the time from the loss of an account on, over that without the loss and its share.

    The share: what was left takes longer by the lost part of the speed, and the longest of the
    jobs that were killed is done again.
    """
    kills = {change.pool: change.at_s for change in scenario.changes if change.kills}
    at_s = max(kills.values())
    kept = replace(scenario, changes=[c for c in scenario.changes if not c.kills])
    kept_s, _ = play(kept, ours(kept))
    speeds = {
        pool.name: sum(pool.slots / scenario.true_s[job.name, pool.kind]
                       for job in scenario.jobs if pool.kind in job.kinds)
        for pool in scenario.pools
    }  # fmt: skip
    share = sum(speeds.values()) / sum(v for name, v in speeds.items() if name not in kills)
    killed = [bar for bar in run.bars if not bar.done and kills.get(bar.pool) == bar.end_s]
    again_s = max((bar.end_s - bar.start_s for bar in killed), default=0.0)
    return max(0.0, lost_s - at_s) / max(1e-9, max(0.0, kept_s - at_s) * share + again_s)


def measure(seed: int) -> Result:
    """Run all policies on one scenario."""
    scenario = make_scenario(seed)
    ours_s, run = play(scenario, ours(scenario))
    reversed_ = replace(scenario, pools=scenario.pools[::-1])
    free_s, turned_s = (play(s, any_free(s))[0] for s in (scenario, reversed_))
    baselines_s = [play(scenario, preassigned(scenario, weighted))[0] for weighted in (False, True)]
    baselines_s.append(free_s)
    knowing, told_s = told(scenario), ours_s
    if "durations off" in scenario.tags and len(scenario.jobs) <= 500:
        told_s, _ = play(knowing, ours(knowing, learn=False))
    best_s = min(ours_s, told_s, turned_s, *baselines_s)
    bound = Bound(scenario)
    if best_s > 1.001 * bound.quick_s() and len(scenario.jobs) <= 40:
        best_s = min(best_s, best_of_many_s(knowing))
    bound_s = bound.tight_s(best_s)
    loss = None
    if any(change.kills for change in scenario.changes):
        loss = cost_of_loss(scenario, ours_s, run)
    jobs = len(scenario.jobs)
    return Result(scenario.tags, jobs, bound_s, best_s, ours_s, told_s, baselines_s, turned_s,
                  run.round_s, loss)  # fmt: skip


def main() -> None:
    """Run all scenarios and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", type=int, default=200)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    seeds = range(options.seed * 1_000_000, options.seed * 1_000_000 + options.scenarios)
    begin = time.perf_counter()
    with ProcessPoolExecutor(options.workers) as pool:
        results = list(pool.map(measure, seeds, chunksize=1))
    print(f"python -m benchmarks.placement --scenarios {options.scenarios} --seed {options.seed}, ")
    print(f"{time.perf_counter() - begin:.0f} s on {options.workers} cores\n")
    report(results)


def report(results: list[Result]) -> None:
    """Print ratios by kind of scenario as a table, and decision times."""
    print("| scenarios | n | over bound: median | p95 | max | over best baseline: median "
          "| <= 1.02 | max | told durations, over bound: median | p95 |")  # fmt: skip
    print("|---" * 10 + "|")
    tags = sorted({tag for result in results for tag in result.tags})
    groups = {"all": results} | {tag: [r for r in results if tag in r.tags] for tag in tags}
    groups["durations known, steady"] = [
        r for r in results if {"durations known", "steady"} <= r.tags
    ]
    for name, group in groups.items():
        if not group:
            continue
        over = [r.ours_s / r.bound_s for r in group]
        beside = np.array([r.ours_s / min(r.baselines_s) for r in group])
        knowing = [r.told_s / r.bound_s for r in group]
        print(f"| {name} | {len(group)} | {_quantiles(over)} | {max(over):.2f} "
              f"| {np.median(beside):.3f} | {100 * (beside <= 1.02).mean():.0f} % "
              f"| {beside.max():.2f} | {_quantiles(knowing)} |")  # fmt: skip
    print("\n| ours over | median | p95 | max | <= 1.02 |\n|---|---|---|---|---|")
    columns = {name: [r.ours_s / r.baselines_s[k] for r in results]
               for k, name in enumerate(BASELINES)}  # fmt: skip
    columns["best known schedule"] = [r.ours_s / r.best_s for r in results]
    columns["(any free slot, accounts in reverse, over the same not in reverse)"] = [
        r.turned_s / r.baselines_s[2] for r in results if r.turned_s < math.inf
    ]
    for name, values in columns.items():
        share = 100 * (np.array(values) <= 1.02).mean()
        print(f"| {name} | {_quantiles(values)} | {max(values):.2f} | {share:.0f} % |")
    small = [r for r in results if r.jobs <= 40]
    proven = sum(r.best_s <= 1.001 * r.bound_s for r in small)
    print(f"\n<= 40 jobs: a schedule that meets the bound, which is so the optimum, is known in "
          f"{proven} of {len(small)}")  # fmt: skip
    losses = [r.loss for r in results if r.loss is not None]
    if losses:
        print(
            f"{len(losses)} lost accounts: time from the loss on over its share, "
            f"median and p95: {_quantiles(losses)}"
        )
    round_ms = 1e3 * np.concatenate([r.round_s for r in results])
    print(f"{len(round_ms)} rounds in ms, median and p95: {_quantiles(round_ms)}")
    for count in (1_000, 10_000):
        print(f"one round at {count} ready jobs: {time_round_ms(count):.1f} ms (least of 15)")


def _quantiles(values: Sequence[float] | NDArray[np.float64]) -> str:
    median, p95 = np.quantile(values, [0.5, 0.95], method="higher")
    return f"{median:.3f} | {p95:.2f}"


def time_round_ms(count: int) -> float:
    """Return the wall time of a round with so many ready jobs of seven rules, in ms."""
    rng = random.Random(1)
    jobs = [Job(f"j{i}", f"r{i % 7}", KINDS, (), rng.uniform(1, 2)) for i in range(count)]
    seconds = {
        (f"r{i}", kind): 60.0 * (1 + i * (kind == "cpu")) for i in range(7) for kind in KINDS
    }
    pools = [Slots("g", "a", "gpu", 5, 5), Slots("c", "a", "cpu", 19, 19)]
    work, names = Workload(jobs, seconds), [job.name for job in jobs]
    times = []
    for _ in range(15):
        begin = time.perf_counter()
        decide(work, names, (), pools, 0.0)
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


if __name__ == "__main__":
    main()
