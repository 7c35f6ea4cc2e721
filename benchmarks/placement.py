"""Placement beside three baselines and a lower bound, on random clusters.

``python -m benchmarks.placement [--scenarios 200] [--seed 3] [--workers 2]``. The policy is the
one that runs in production. Ratios are makespans over the lower bound, which knows the true
durations and all that will happen to the slots: the best of critical path, LP relaxation and
whole waves of slots. Where slots go while jobs are in them, the bound counts those jobs as if all
of those slots had just begun the longest job; it is loose there. Estimates are off by up to 2x
(half by rule and device, half by job) and learned from finished jobs in the same run.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.placement.policy import decide
from tilewright.placement.simulator import Change, Policy, Run, View, simulate
from tilewright.placement.workload import Decision, Job, Kind, Pool, Workload

CPUS_PER_JOB, GPU_JOB_GB, CPU_JOB_GB = 8, 16, 48
KINDS: tuple[Kind, ...] = ("gpu", "cpu")
#: Rules in the order of the pipeline; the light ones never take a GPU.
RULES = ("tile_positions", "stitch", "deconvolve", "project", "register", "assemble")
BASELINES = ("gpu round robin", "static weighted", "any free slot")


@dataclass
class Scenario:
    """A run on a cluster: what is estimated, what is true, and what will happen."""

    jobs: list[Job]
    pools: list[Pool]
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


def make_pools(rng: random.Random, tags: set[str]) -> list[Pool]:
    """Return pools of one to six accounts; one CPU slot there is at least."""
    memory_bound = rng.random() < 0.33
    if memory_bound:
        tags.add("memory-bound")
    pools = []
    for a in range(rng.randint(1, 6)):
        gpus, cpus = rng.randint(0, 8), rng.randint(0, 256)
        gpu_slots, cpu_slots = gpus, int(0.85 * cpus / CPUS_PER_JOB)
        if memory_bound:
            memory_gb = rng.randint(32, 800)
            gpu_slots = min(gpu_slots, memory_gb // GPU_JOB_GB)
            cpu_slots = min(cpu_slots, memory_gb // CPU_JOB_GB)
        if a == 0:
            cpu_slots = max(1, cpu_slots)
        for kind, slots in (("gpu", gpu_slots), ("cpu", cpu_slots)):
            if slots:
                pools.append(Pool(f"a{a}_{kind}", f"a{a}", kind, slots, slots))  # type: ignore[arg-type]
    return pools


def make_changes(rng: random.Random, scenario: Scenario, tags: set[str]) -> list[Change]:
    """Return labmates coming and going, an account throttled, an account lost."""
    span_s = bound_s(scenario)
    changes: list[Change] = []
    if rng.random() < 0.4:
        tags.add("labmates")
        for pool in rng.sample(scenario.pools, max(1, len(scenario.pools) // 2)):
            at_s = 0.0
            while at_s < 1.5 * span_s:
                at_s += rng.uniform(0.05, 0.5) * span_s
                least = int(pool is scenario.pools[0])
                changes.append(Change(at_s, pool.name, rng.randint(least, pool.slots)))
            changes.append(Change(at_s, pool.name, pool.slots))
    accounts = sorted({pool.account for pool in scenario.pools} - {"a0"})
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


Floats = NDArray[np.float64]


class _Capacity:
    """Slot seconds of one kind between two times, at most."""

    def __init__(self, scenario: Scenario, kind: Kind, longest_s: float) -> None:
        now = {pool.name: pool.slots for pool in scenario.pools if pool.kind == kind}
        steps = [(0.0, sum(now.values()))]
        self.over: list[tuple[float, int]] = []
        self.longest_s = longest_s
        for change in scenario.changes:
            if change.pool in now:
                drop = now[change.pool] - change.slots
                if drop > 0 and not change.kills:
                    self.over.append((change.at_s, drop))
                now[change.pool] = change.slots
                steps.append((change.at_s, sum(now.values())))
        self.steps = steps
        self.most = max(slots for _, slots in steps)

    def between(self, start_s: float, end_s: float) -> float:
        total = 0.0
        for k, (at, slots) in enumerate(self.steps):
            until = self.steps[k + 1][0] if k + 1 < len(self.steps) else math.inf
            total += slots * max(0.0, min(until, end_s) - max(at, start_s))
        for at, drop in self.over:
            total += drop * max(0.0, min(at + self.longest_s, end_s) - max(at, start_s))
        return total


def bound_s(scenario: Scenario) -> float:
    """Return a time that no placement can beat."""
    true, index = scenario.true_s, {job.name: i for i, job in enumerate(scenario.jobs)}
    capable = {pool.kind for pool in scenario.pools}
    gpu, cpu = (
        np.array([true.get((job.name, kind), math.inf) if kind in capable else math.inf
                  for job in scenario.jobs])
        for kind in KINDS
    )  # fmt: skip
    least = np.minimum(gpu, cpu)
    head, tail = np.zeros(len(least)), np.zeros(len(least))
    for i, job in enumerate(scenario.jobs):
        head[i] = max((head[n] + least[n] for n in map(index.__getitem__, job.needs)), default=0)
    for i in reversed(range(len(least))):
        for n in map(index.__getitem__, scenario.jobs[i].needs):
            tail[n] = max(tail[n], tail[i] + least[i])
    capacity = [
        _Capacity(scenario, kind, float(d[d < math.inf].max(initial=0)))
        for kind, d in zip(KINDS, (gpu, cpu), strict=True)
    ]
    best = float((head + least + tail).max())
    sets = [head >= h for h in np.quantile(head, np.linspace(0, 0.9, 7))]
    sets += [tail >= t for t in np.quantile(tail, np.linspace(0.1, 0.9, 6))]
    sets += [np.array([job.rule == rule for job in scenario.jobs]) for rule in RULES]
    for chosen in sets:
        if chosen.any():
            part = (gpu[chosen], cpu[chosen])
            frame_s = float(head[chosen].min()), float(tail[chosen].min())
            best = max(best, _relaxed(*part, (head[chosen], tail[chosen]), capacity, best))
            best = max(best, _waves(*part, *frame_s, capacity, best))
    return best


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


def _relaxed(
    gpu: Floats, cpu: Floats, frame: tuple[Floats, Floats], capacity: list[_Capacity], low: float
) -> float:
    """Work that can be cut at will, between the earliest head and the shortest tail.

    A job that cannot be done on a CPU between its own head and tail has to be on a GPU.
    """
    head, tail = frame
    first_s, last_s = float(head.min()), float(tail.min())
    order = np.argsort(-np.where(gpu < math.inf, cpu / gpu, 0), kind="stable")
    gpu, cpu, least = gpu[order], cpu[order], (head + tail + cpu)[order]

    def fits(end_s: float) -> bool:
        room = [c.between(first_s, end_s - last_s) for c in capacity]
        forced = (least > end_s * (1 + 1e-9)) & (gpu < math.inf)
        gpu_s, g, c = room[0] - gpu[forced].sum(), gpu[~forced], cpu[~forced]
        if gpu_s < -1e-9 * room[0]:
            return False
        filled = np.cumsum(g)
        k = int(np.searchsorted(filled, gpu_s * (1 + 1e-9), side="right"))
        if k >= len(g):
            return True
        before = filled[k - 1] if k else 0.0
        part = 0.0 if g[k] == math.inf else (gpu_s - before) / g[k]
        return bool(c[k + 1 :].sum() + (1 - part) * c[k] <= room[1] * (1 + 1e-9))

    return _bisect(fits, low)


def _waves(
    gpu: Floats, cpu: Floats, head_s: float, tail_s: float, capacity: list[_Capacity], low: float
) -> float:
    """Whole jobs per slot, for the jobs that are at least so long on both kinds."""
    best = low
    for share in (0.0, 0.25, 0.5, 0.75, 0.9):
        finite = gpu[gpu < math.inf]
        g = float(np.quantile(finite, share)) if finite.size else math.inf
        c = float(np.quantile(cpu, share))
        count = int(((gpu >= g) & (cpu >= c)).sum())

        def fits(end_s: float, g: float = g, c: float = c, count: int = count) -> bool:
            span_s = (end_s - head_s - tail_s) * (1 + 1e-9)
            most = [m.most * math.floor(span_s / d) for m, d in zip(capacity, (g, c), strict=True)]
            return sum(most) >= count

        best = max(best, _bisect(fits, best))
    return best


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
        found = decide(work, view.ready, view.later, pools, view.clock_s, last=last)
        last = found.way
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


def measure(seed: int) -> tuple[frozenset[str], list[float], list[float], int]:
    """Return tags, makespans over the bound (ours first), decision times, and jobs."""
    scenario = make_scenario(seed)
    low_s = bound_s(scenario)
    policies = [
        ours(scenario),
        preassigned(scenario, weighted=False),
        preassigned(scenario, weighted=True),
        any_free(scenario),
    ]
    ratios, round_s = [], []
    for k, policy in enumerate(policies):
        run: Run = simulate(
            scenario.jobs, scenario.true_s, scenario.pools, policy, scenario.changes
        )
        ratios.append(run.makespan_s / low_s if not run.undone else math.inf)
        if not k:
            round_s = run.round_s
    return scenario.tags, ratios, round_s, len(scenario.jobs)


def main() -> None:
    """Run all scenarios and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", type=int, default=200)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    seeds = range(options.seed * 1_000_000, options.seed * 1_000_000 + options.scenarios)
    with ProcessPoolExecutor(options.workers) as pool:
        results = list(pool.map(measure, seeds, chunksize=4))
    report(results)


def report(results: list[tuple[frozenset[str], list[float], list[float], int]]) -> None:
    """Print ratios by kind of scenario, and decision times."""
    groups = ["all", *sorted({tag for tags, *_ in results for tag in tags})]
    print(f"{'scenarios':18}{'n':>4}{'median':>9}{'p95':>7}{'max':>7}{'> 1.02':>8}   ours over")
    for group in groups:
        table = np.array([r for tags, r, *_ in results if group == "all" or group in tags])
        columns = {"bound": table[:, 0], "best baseline": table[:, 0] / table[:, 1:].min(axis=1)}
        if group == "all":
            columns |= {n: table[:, 0] / table[:, k + 1] for k, n in enumerate(BASELINES)}
        for name, values in columns.items():
            median, p95 = np.quantile(values, [0.5, 0.95], method="higher")
            worse = f"{100 * (values > 1.02).mean():.0f} %"
            figures = f"{median:9.3f}{p95:7.2f}{values.max():7.2f}{worse:>8}"
            print(f"{group:18}{len(table):4}{figures}   {name}")
    round_ms = 1e3 * np.concatenate([times for _, _, times, _ in results])
    median, p95 = np.quantile(round_ms, [0.5, 0.95])
    print(
        f"{len(round_ms)} rounds: median {median:.1f}, p95 {p95:.1f}, max {round_ms.max():.1f} ms"
    )
    for count in (1_000, 10_000):
        print(f"one round at {count} ready jobs: {time_round_ms(count):.1f} ms (least of 5)")


def time_round_ms(count: int) -> float:
    """Return the wall time of a round with so many ready jobs of seven rules, in ms."""
    rng = random.Random(1)
    jobs = [Job(f"j{i}", f"r{i % 7}", KINDS, (), rng.uniform(1, 2)) for i in range(count)]
    seconds = {
        (f"r{i}", kind): 60.0 * (1 + i * (kind == "cpu")) for i in range(7) for kind in KINDS
    }
    pools = [Pool("g", "a", "gpu", 5, 5), Pool("c", "a", "cpu", 19, 19)]
    work, names = Workload(jobs, seconds), [job.name for job in jobs]
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        decide(work, names, (), pools, 0.0)
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


if __name__ == "__main__":
    main()
