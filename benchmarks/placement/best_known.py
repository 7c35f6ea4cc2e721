"""Schedules of one who knows more than a policy can, to judge bound and policy by."""

import math
import random
from collections.abc import Iterable
from dataclasses import replace

from benchmarks.placement.bound import Bound, Scenario
from snakemake_scheduler_plugin_tilewright.placement.workload import Decision
from tests.support.simulated_cluster import ClusterView, simulate


def told(scenario: Scenario) -> Scenario:
    """Return the same scenario with the true duration of every job as its estimate."""
    jobs = [replace(job, rule=job.name, cpu_seconds=1.0) for job in scenario.jobs]
    return replace(scenario, jobs=jobs, estimates_s=dict(scenario.true_s))


def best_of_many_s(scenario: Scenario, tries: int) -> float:
    """Return the makespan of the best of many list schedules that know what will happen.

    Jobs have random weights on chain and gain; a job takes a CPU where it is done by a random
    aim. Nothing starts in an account that is lost first, nor, in half of the schedules, in a pool
    whose jobs are preempted first.
    """
    rng, best_s = random.Random(0), math.inf
    bound, kinds = Bound(scenario), {pool.name: pool.kind for pool in scenario.pools}
    low_s, index = bound.quick_s(), {job.name: i for i, job in enumerate(scenario.jobs)}
    kills_s: dict[str, list[float]] = {pool: [at_s] for pool, at_s in scenario.lost_s.items()}
    careful_s = {pool: list(times) for pool, times in kills_s.items()}
    for change in scenario.changes:
        if change.kills:
            careful_s.setdefault(change.pool, []).append(change.at_s)
    (gpu_s, cpu_s), tail_s = bound.kind_s.tolist(), bound.tail.tolist()
    for _ in range(tries):
        aim_s = low_s * rng.choice([1, 1.02, 1.05, 1.1, 1.2, 1.3, 1.6, math.inf])
        power, noise = rng.choice([0, 0.5, 1, 3]), rng.choice([0, 0.1, 0.3])
        avoided_s = rng.choice([kills_s, careful_s])
        weight = [
            (t + min(g, c)) * (c / g) ** power * math.exp(rng.gauss(0, noise))
            for g, c, t in zip(gpu_s, cpu_s, tail_s, strict=True)
        ]

        def policy(
            snapshot: ClusterView,
            aim_s: float = aim_s,
            weight: list[float] = weight,
            avoided_s: dict[str, list[float]] = avoided_s,
        ) -> Iterable[Decision]:
            free = {
                p.name: p.free for p in sorted(snapshot.pools, key=lambda p: p.kind, reverse=True)
            }
            for i in sorted(
                (index[n] for n in snapshot.ready), key=weight.__getitem__, reverse=True
            ):
                if not any(free.values()):
                    break
                for pool, count in free.items():
                    on_gpu = kinds[pool] == "gpu"
                    end_s = snapshot.clock_s + (gpu_s[i] if on_gpu else cpu_s[i])
                    safe = not any(
                        snapshot.clock_s < at_s < end_s for at_s in avoided_s.get(pool, ())
                    )
                    timely = on_gpu or gpu_s[i] == math.inf or end_s + tail_s[i] <= aim_s
                    if (count and end_s < math.inf and safe and timely
                            and scenario.may(scenario.jobs[i].name, pool)):  # fmt: skip
                        free[pool] -= 1
                        yield Decision(scenario.jobs[i].name, pool, snapshot.clock_s, end_s, "")
                        break

        run = simulate(scenario.jobs, scenario.true_s, scenario.pools, policy, scenario.changes)
        best_s = min(best_s, math.inf if run.undone else run.makespan_s)
        if best_s <= 1.001 * low_s:
            break
    return best_s
