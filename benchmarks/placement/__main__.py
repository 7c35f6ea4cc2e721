"""Placement beside three baselines and the best known schedule, on random clusters.

``python -m benchmarks.placement [--scenarios 200] [--seed 3] [--workers 2]``. The policy is the
one that runs in production. The best known schedule is the shortest of all that were tried, 80 of
them by one who knows the true durations and all that will happen to the slots, which no policy
can. *Told durations* is the same policy with the true duration of every job. Estimates are off by
up to 2x (half by rule and device, half by job) and learned from finished jobs in the same run.
"""

import argparse
import math
import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.placement.best_known import best_of_many_s, told
from benchmarks.placement.bound import Bound, Scenario
from benchmarks.placement.policies import BASELINES, any_free, ours, preassigned
from benchmarks.placement.scenarios import by_length, make_scenario
from snakemake_scheduler_plugin_tilewright.cluster.request import KINDS
from snakemake_scheduler_plugin_tilewright.placement.jobs import Job
from snakemake_scheduler_plugin_tilewright.placement.policy import schedule
from snakemake_scheduler_plugin_tilewright.placement.workload import GpuSlots, Slots, Workload
from tests.support.simulated_cluster import Policy, SimulatedRun, simulate


@dataclass
class Result:
    """Makespans of one scenario in seconds, and times of decisions."""

    tags: frozenset[str]
    best_s: float
    ours_s: float
    told_s: float
    baselines_s: list[float]
    round_s: list[float]
    loss: float | None


def play(scenario: Scenario, policy: Policy) -> tuple[float, SimulatedRun]:
    """Return the makespan, infinite where jobs are left, and the run."""
    run = simulate(scenario.jobs, scenario.true_s, scenario.pools, policy, scenario.changes)
    return (math.inf if run.undone else run.makespan_s), run


def cost_of_loss(scenario: Scenario, lost_s: float, run: SimulatedRun) -> float:
    """Return the time from the loss of an account on, over that without the loss and its share.

    The share: what was left takes longer by the lost part of the speed, and the longest of the
    jobs that were killed is done again.
    """
    kills = scenario.lost_s
    at_s = max(kills.values())
    kept = replace(scenario, changes=[c for c in scenario.changes if c.pool not in kills])
    kept_s, _ = play(kept, ours(kept))
    speeds = {
        pool.name: sum(pool.slots / scenario.true_s[job.name, pool.kind]
                       for job in scenario.jobs if pool.kind in job.kinds)
        for pool in scenario.pools
    }  # fmt: skip
    share = sum(speeds.values()) / sum(v for name, v in speeds.items() if name not in kills)
    killed = [span for span in run.spans if not span.done and kills.get(span.pool) == span.end_s]
    again_s = max((span.end_s - span.start_s for span in killed), default=0.0)
    return max(0.0, lost_s - at_s) / max(1e-9, max(0.0, kept_s - at_s) * share + again_s)


def measure(seed: int, *, lengths: bool = False) -> Result:
    """Run all policies on one scenario, or the same with QOS for jobs of a length."""
    scenario = make_scenario(seed)
    scenario = by_length(scenario, seed) if lengths else scenario
    ours_s, run = play(scenario, ours(scenario))
    reversed_ = replace(scenario, pools=scenario.pools[::-1])
    free_s, turned_s = (play(s, any_free(s))[0] for s in (scenario, reversed_))
    baselines_s = [play(scenario, preassigned(scenario, weighted))[0] for weighted in (False, True)]
    baselines_s.append(free_s)
    knowing, told_s = told(scenario), ours_s
    if "durations off" in scenario.tags and len(scenario.jobs) <= 500:
        told_s, _ = play(knowing, ours(knowing, learn=False, exact=True))
    best_s = min(ours_s, told_s, turned_s, *baselines_s)
    if best_s > 1.001 * Bound(scenario).quick_s():
        best_s = min(best_s, best_of_many_s(knowing, 80))
    loss = cost_of_loss(scenario, ours_s, run) if scenario.lost_s else None
    return Result(scenario.tags, best_s, ours_s, told_s, baselines_s, run.round_s, loss)


def main() -> None:
    """Run all scenarios and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", type=int, default=200)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lengths", action="store_true", help="QOS for jobs of a length")
    options = parser.parse_args()
    seeds = range(options.seed * 1_000_000, options.seed * 1_000_000 + options.scenarios)
    begin = time.perf_counter()
    with ProcessPoolExecutor(options.workers) as pool:
        results = list(pool.map(partial(measure, lengths=options.lengths), seeds, chunksize=1))
    print(f"python -m benchmarks.placement --scenarios {options.scenarios} --seed {options.seed}, ")
    print(f"{time.perf_counter() - begin:.0f} s on {options.workers} cores\n")
    report(results)


def report(results: list[Result]) -> None:
    """Print ratios by kind of scenario as a table, and decision times."""
    print("| scenarios | n | over the best known schedule: median | p95 | max "
          "| over best baseline: median | <= 1.02 | max "
          "| told durations (up to 500 jobs), over the best known: median | p95 |")  # fmt: skip
    print("|---" * 10 + "|")
    tags = sorted({tag for result in results for tag in result.tags})
    groups = {"all": results} | {tag: [r for r in results if tag in r.tags] for tag in tags}
    for name, group in groups.items():
        known = np.array([r.ours_s / r.best_s for r in group])
        beside = np.array([r.ours_s / min(r.baselines_s) for r in group])
        knowing = [r.told_s / r.best_s for r in group]
        print(f"| {name} | {len(group)} | {_quantiles(known)} | {known.max():.2f} "
              f"| {np.median(beside):.3f} | {100 * (beside <= 1.02).mean():.0f} % "
              f"| {beside.max():.2f} | {_quantiles(knowing)} |")  # fmt: skip
    print("\n| ours over | median | p95 | max | <= 1.02 |\n|---|---|---|---|---|")
    columns = {name: [r.ours_s / r.baselines_s[k] for r in results]
               for k, name in enumerate(BASELINES)}  # fmt: skip
    for name, values in columns.items():
        share = 100 * (np.array(values) <= 1.02).mean()
        print(f"| {name} | {_quantiles(values)} | {max(values):.2f} | {share:.0f} % |")
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
        schedule(work, names, pools, 0.0, GpuSlots())
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


if __name__ == "__main__":
    main()
