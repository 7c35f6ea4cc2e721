"""The simulated cluster, and whole runs of the policy on it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.placement.jobs import Job, Kind
from snakemake_scheduler_plugin_tilewright.placement.policy import decide
from snakemake_scheduler_plugin_tilewright.placement.preview import (
    Change,
    ClusterView,
    OversubscribedError,
    Policy,
    SimulatedRun,
    simulate,
)
from snakemake_scheduler_plugin_tilewright.placement.workload import (
    Decision,
    Slots,
    Strategy,
    Workload,
)

BOTH: tuple[Kind, ...] = ("gpu", "cpu")
UNIT_S: dict[tuple[str, Kind], float] = {("s", "gpu"): 1, ("s", "cpu"): 5, ("qc", "cpu"): 0.5}
#: The worked example: 5 GPU and 19 CPU slots on two accounts.
POOLS = [
    Slots("clive_gpu", "clive", "gpu", 3, 3),
    Slots("clive_cpu", "clive", "cpu", 11, 11),
    Slots("maigan_gpu", "maigan", "gpu", 2, 2),
    Slots("maigan_cpu", "maigan", "cpu", 8, 8),
]


def production(jobs: list[Job]) -> Policy:
    work = Workload(jobs, UNIT_S)
    last: Strategy | None = None

    def policy(seen: ClusterView) -> Iterable[Decision]:
        nonlocal last
        found = decide(work, seen.ready, seen.later, seen.pools, seen.clock_s, last=last)
        last = found.strategy
        return found.starts

    return policy


def play(jobs: list[Job], changes: Iterable[Change] = (), factor: float = 1.0) -> SimulatedRun:
    true_s = {(j.name, kind): UNIT_S[j.rule, kind] * factor for j in jobs for kind in j.kinds}
    return simulate(jobs, true_s, POOLS, production(jobs), changes)


def same(count: int) -> list[Job]:
    return [Job(f"j{i}", "s", BOTH) for i in range(count)]


@pytest.mark.parametrize(("count", "limit_s"), [(1, 1.0), (5, 1.0), (24, 6.0), (100, 15.6)])
def test_identical_jobs_of_the_worked_example(count: int, limit_s: float) -> None:
    run = play(same(count))
    assert not run.undone
    assert run.makespan_s <= limit_s
    assert len(run.spans) == count


def test_both_kinds_of_both_accounts_are_used_and_busy_time_is_counted() -> None:
    run = play(same(100))
    assert set(run.busy_s) == {span.pool for span in run.spans}
    for name, busy_s in run.busy_s.items():
        assert busy_s == pytest.approx(
            sum(span.end_s - span.start_s for span in run.spans if span.pool == name)
        )
    # nobody waits for the last job: GPUs are filled to the end
    assert run.busy_s["clive_gpu"] + run.busy_s["maigan_gpu"] >= 5 * (run.makespan_s - 1)


def test_a_lost_account_costs_no_more_than_its_share() -> None:
    lost = [Change(4.0, "clive_gpu", 0, kills=True), Change(4.0, "clive_cpu", 0, kills=True)]
    run = play(same(100), lost)
    assert not run.undone
    assert not [span for span in run.spans if span.pool.startswith("clive") and span.end_s > 4]
    done = sum(span.done and span.end_s <= 4 for span in run.spans)
    # what is left flows through 2 GPU and 8 CPU slots, to whole jobs on CPUs
    assert run.makespan_s <= 4 + (100 - done) / (2 + 8 / 5) + 5


def test_long_chains_go_first_and_stay_on_gpus() -> None:
    chain = [Job(f"c{i}", "s", BOTH, (f"c{i - 1}",) if i else ()) for i in range(12)]
    run = play(same(40) + chain)
    assert run.makespan_s == pytest.approx(12.0)
    pools = {span.job: span.pool for span in run.spans}
    assert all(pools[f"c{i}"].endswith("gpu") for i in range(12))


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Job], list[Change], float]:
    jobs: list[Job] = []
    for i in range(draw(st.integers(1, 20))):
        needs = draw(st.sets(st.sampled_from(jobs), max_size=2)) if jobs else set()
        small = draw(st.booleans())
        kinds: tuple[Kind, ...] = ("cpu",) if small else BOTH
        jobs.append(Job(f"j{i}", "qc" if small else "s", kinds, tuple({n.name for n in needs})))
    changes = draw(
        st.lists(
            st.builds(
                Change,
                st.floats(0, 20),
                st.sampled_from([pool.name for pool in POOLS]),
                st.integers(0, 3),
                st.booleans(),
            ),
            max_size=6,
        )
    )
    changes.append(Change(30.0, "maigan_cpu", 1))
    return jobs, changes, draw(st.floats(0.5, 2))


@settings(max_examples=60)
@given(runs())
def test_every_job_is_done_once_in_order_and_no_pool_is_exceeded(
    given_run: tuple[list[Job], list[Change], float],
) -> None:
    jobs, changes, factor = given_run
    run = play(jobs, changes, factor)
    assert not run.undone
    done = {span.job: span for span in run.spans if span.done}
    assert sorted(span.job for span in run.spans if span.done) == sorted(job.name for job in jobs)
    for job in jobs:
        assert all(done[need].end_s <= done[job.name].start_s for need in job.needs)  # no margin
        assert "gpu" in job.kinds or done[job.name].pool.endswith("cpu")
    for pool in POOLS:
        spans = [span for span in run.spans if span.pool == pool.name]
        for span in spans:
            steps = [c for c in changes if c.pool == pool.name and c.at_s <= span.start_s]
            slots = sorted(steps, key=lambda c: c.at_s)[-1].slots if steps else pool.slots
            at_once = sum(other.start_s <= span.start_s < other.end_s for other in spans)
            assert at_once <= slots
    assert run.makespan_s == max(span.end_s for span in done.values())
    kills = {(c.pool, c.at_s) for c in changes if c.kills}
    assert all((span.pool, span.end_s) in kills for span in run.spans if not span.done)
    assert play(jobs, changes, factor).spans == run.spans


@pytest.mark.parametrize("pool", ["clive_gpu", "maigan_cpu"])
def test_a_policy_that_oversubscribes_is_caught(pool: str) -> None:
    def greedy(seen: ClusterView) -> Iterable[Decision]:
        return [Decision(name, pool, seen.clock_s, math.inf, "") for name in seen.ready]

    with pytest.raises(OversubscribedError, match="no free slot"):
        simulate(same(20), {("j0", k): 1.0 for k in BOTH} | dict.fromkeys(
            [(f"j{i}", k) for i in range(20) for k in BOTH], 1.0), POOLS, greedy)  # fmt: skip


def test_a_job_that_is_done_may_not_start_again() -> None:
    def restless(seen: ClusterView) -> Iterable[Decision]:
        if any(span.done for span in seen.spans) or "j0" in seen.ready:
            yield Decision("j0", "clive_gpu", seen.clock_s, math.inf, "")

    true_s = {(f"j{i}", kind): 1.0 for i in range(2) for kind in BOTH}
    with pytest.raises(OversubscribedError, match="j0 is not ready"):
        simulate(same(2), true_s, POOLS, restless)


def test_jobs_that_nothing_can_run_are_named() -> None:
    jobs = [Job("q", "qc", ("cpu",)), Job("after", "s", BOTH, ("q",)), Job("s", "s", BOTH)]
    true_s = {(job.name, kind): 1.0 for job in jobs for kind in job.kinds}
    run = simulate(jobs, true_s, POOLS[:1], production(jobs))
    assert [span.job for span in run.spans] == ["s"]
    assert run.undone == ["q", "after"]


def test_jobs_in_slots_that_go_keep_running_unless_killed() -> None:
    keeps = play(same(5), [Change(0.5, "clive_gpu", 0)])
    assert keeps.makespan_s == pytest.approx(1.0)
    kills = play(same(5), [Change(0.5, "clive_gpu", 0, kills=True)])
    assert sum(not span.done for span in kills.spans) == 3
    assert kills.makespan_s == pytest.approx(3.0)  # three again on the two GPUs left, after 1 s
