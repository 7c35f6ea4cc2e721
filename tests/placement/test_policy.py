"""Who goes where: properties of every round, cases worked by hand, and whole runs simulated."""

from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.cluster.request import DeviceKind
from snakemake_scheduler_plugin_tilewright.placement.jobs import Job, UserOverrides
from snakemake_scheduler_plugin_tilewright.placement.policy import schedule
from snakemake_scheduler_plugin_tilewright.placement.workload import (
    Choice,
    Decision,
    GpuSlots,
    Running,
    Slots,
    Workload,
)
from tests.support.placement_rules import BOTH
from tests.support.simulated_cluster import (
    Change,
    ClusterView,
    Policy,
    SimulatedRun,
    simulate,
)

ESTIMATES_S: dict[tuple[str, DeviceKind], float] = {
    ("stitch", "gpu"): 60.0,
    ("stitch", "cpu"): 300.0,
    ("edf", "gpu"): 20.0,
    ("edf", "cpu"): 30.0,
    ("qc", "cpu"): 15.0,
}
Question = tuple[list[Job], list[str], list[Slots], float]


def pool(
    account: str, kind: DeviceKind, slots: int, free: int | None = None, *ends_s: float
) -> Slots:
    running = tuple(Running(f"{account}_{kind}_{k}", 0.0, end) for k, end in enumerate(ends_s))
    name = f"{account}_{kind}"
    return Slots(name, account, kind, slots, slots if free is None else free, running)


def kinds_of(rule: str) -> tuple[DeviceKind, ...]:
    return ("cpu",) if rule == "qc" else BOTH


def same(count: int, rule: str = "stitch", account: str | None = None) -> list[Job]:
    return [
        Job(f"j{i}", rule, kinds_of(rule), overrides=UserOverrides(account)) for i in range(count)
    ]


def chain(count: int, rule: str = "edf", account: str | None = None) -> list[Job]:
    """Return jobs of which each needs the one before."""
    needs: list[tuple[str, ...]] = [(), *((f"c{i}",) for i in range(count))]
    fixed = UserOverrides(account)
    return [Job(f"c{i}", rule, kinds_of(rule), needs[i], 1.0, fixed) for i in range(count)]


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """A run at some moment: jobs, names of the ready ones, pools and the clock."""
    jobs: list[Job] = []
    for i in range(draw(st.integers(0, 25))):
        rule = draw(st.sampled_from(["stitch", "edf", "qc"]))
        able: list[tuple[DeviceKind, ...]] = [BOTH, BOTH, ("cpu",), ("gpu",)]
        kinds = kinds_of(rule) if rule == "qc" else draw(st.sampled_from(able))
        needs = draw(st.sets(st.sampled_from([j.name for j in jobs]), max_size=2)) if jobs else ()
        account = draw(st.sampled_from([None, None, None, "a", "b", "gone"]))
        cpu_seconds = draw(st.floats(0.1, 10))
        jobs.append(
            Job(f"j{i}", rule, kinds, tuple(sorted(needs)), cpu_seconds, UserOverrides(account))
        )
    pools = [
        pool(account, kind, draw(st.integers(0, 4)), draw(st.integers(-1, 6)),
             *draw(st.lists(st.floats(0, 900), max_size=4)))
        for account in "ab" for kind in BOTH
    ]  # fmt: skip
    ready = [job.name for job in jobs if not job.needs]
    return jobs, ready, pools, draw(st.floats(0, 1000))


def ask(
    jobs: list[Job],
    pools: list[Slots],
    clock_s: float = 0.0,
    gpu_slots: GpuSlots | None = None,
    ready: list[str] | None = None,
) -> Choice:
    ready = [job.name for job in jobs if not job.needs] if ready is None else ready
    return schedule(Workload(jobs, ESTIMATES_S), ready, pools, clock_s, gpu_slots or GpuSlots())


def placed(*args: object) -> dict[str, str]:
    """Return which job starts in which pool."""
    return {start.job: start.pool for start in ask(*args).starts}  # type: ignore[arg-type]


@settings(max_examples=120)
@given(questions(), st.sampled_from([GpuSlots(), GpuSlots(0.0, 9)]))
def test_no_pool_is_exceeded_nor_a_reason_absent(question: Question, gpu_slots: GpuSlots) -> None:
    jobs, ready, pools, clock_s = question
    found = ask(jobs, pools, clock_s, gpu_slots)
    by_name, by_pool = {job.name: job for job in jobs}, {p.name: p for p in pools}
    for name, count in Counter(start.pool for start in found.starts).items():
        p = by_pool[name]
        assert count <= min(p.free, p.slots - len(p.running))
    for start in found.starts:
        job, p = by_name[start.job], by_pool[start.pool]
        assert p.kind in job.kinds
        assert job.overrides.account in (None, p.account)
        assert start.start_s == clock_s < start.end_s
        assert start.end_s == pytest.approx(
            clock_s + ESTIMATES_S[job.rule, p.kind] * job.cpu_seconds
        )
        assert start.reason
    assert sorted([s.job for s in found.starts] + list(found.waiting)) == sorted(ready)
    assert all(found.waiting.values())


@settings(max_examples=50)
@given(questions())
def test_an_idle_cluster_never_waits_and_answers_stay_the_same(question: Question) -> None:
    jobs, ready, pools, clock_s = question
    assert ask(jobs, pools, clock_s) == ask(jobs, pools, clock_s, ready=ready[::-1])
    idle = [pool(p.account, p.kind, p.slots) for p in pools]
    able = any(
        p.slots and p.kind in job.kinds and job.overrides.account in (None, p.account)
        for job in jobs if job.name in ready for p in idle
    )  # fmt: skip
    assert bool(ask(jobs, idle, clock_s).starts) == able


def test_a_cpu_slot_is_used_only_where_it_finishes_sooner() -> None:
    jobs, cpus = same(4), pool("a", "cpu", 8)
    found = ask(jobs, [pool("a", "gpu", 1, 0, 10.0), cpus])
    assert not found.starts  # 10 + 4 × 60 s on the GPU is less than 300 s on a CPU
    assert set(found.waiting.values()) == {"a GPU that falls free ends it sooner than a CPU"}
    assert set(placed(jobs, [pool("a", "gpu", 1, 0, 200.0), cpus]).values()) == {"a_cpu"}
    assert len(placed(jobs, [pool("a", "gpu", 0), cpus])) == 4


def test_what_is_known_of_gpu_slots() -> None:
    fell = GpuSlots().counted(4, 0.0).counted(3, 5.0).counted(1, 10.0)
    assert (fell.slots, fell.gone_s) == (1, (5.0, 10.0, 10.0))
    assert fell.counted(4, 10.0) == fell  # a later count of the same round is for smaller jobs
    rose = fell.counted(3, 20.0)
    assert (rose.returns_s(30.0), rose.counted(9, 40.0).gone_s) == ([55.0], ())


def test_gpus_that_go_are_waited_for_as_long_as_they_have_been_gone() -> None:
    jobs, last = same(4), GpuSlots(0.0, 2)
    gone = [pool("a", "gpu", 0), pool("a", "cpu", 8, 7, 50.0)]
    at_once = ask(jobs, gone, 10.0, last)
    assert not at_once.starts
    assert not placed(jobs, gone, 100.0, at_once.gpu_slots)  # two more a minute after 190 s end 400
    assert set(placed(jobs, gone, 1000.0, at_once.gpu_slots).values()) == {"a_cpu"}
    idle = [gone[0], pool("a", "cpu", 8)]
    assert len(placed(jobs, idle, 10.0, last)) == 4  # nothing else would happen


def test_qc_leaves_the_gpu_alone_and_does_not_wait_for_it() -> None:
    jobs = [Job("q", "qc", ("cpu",)), Job("s", "stitch", BOTH)]
    assert placed(jobs, [pool("a", "gpu", 1), pool("a", "cpu", 1)]) == {"q": "a_cpu", "s": "a_gpu"}
    found = ask(jobs, [pool("a", "gpu", 2)])
    assert [s.job for s in found.starts] == ["s"]
    assert found.waiting == {"q": "no account has a CPU slot for it"}
    for cpus in (0, 2):
        found = ask(same(9, "qc"), [pool("a", "gpu", 2), pool("a", "cpu", cpus)])
        assert len(found.starts) == cpus
        assert not any("GPU" in why for why in found.waiting.values())


@pytest.mark.parametrize("kind", BOTH)
def test_a_higher_priority_goes_before_a_longer_chain(kind: DeviceKind) -> None:
    jobs = [Job("long", "stitch", BOTH, cpu_seconds=3.0), Job("first", "edf", BOTH, priority=0.5)]
    assert [set(placed(jobs, [pool("a", kind, n)])) for n in (1, 2)] == [
        {"first"},
        {"first", "long"},
    ]


def test_the_account_that_a_user_chose_is_kept() -> None:
    jobs = same(3, account="b")
    pools = [pool("a", "gpu", 3), pool("b", "gpu", 1), pool("b", "cpu", 4)]
    assert list(placed(jobs, pools).values()) == ["b_gpu"]  # three in a row end before one on a CPU
    gone = ask(jobs, pools[:1])
    assert set(gone.waiting.values()) == {"account b has no GPU or CPU slot for it"}


OWN = Job("own", "edf", BOTH, overrides=UserOverrides("a"))


@pytest.mark.parametrize(
    "jobs",
    [
        same(5, "edf") + chain(6),
        [OWN, *chain(3)],
        [*chain(2, account="a"), Job("j", "edf", BOTH)],
        [OWN, *chain(3, account="a")],
    ],
    ids=["many", "a job with an account", "a chain with an account", "both with one"],
)
def test_the_longest_chain_goes_first(jobs: list[Job]) -> None:
    assert set(placed(jobs, [pool("a", "gpu", 1)])) == {"c0"}


def test_a_job_with_an_account_takes_what_longer_chains_leave() -> None:
    jobs = [OWN, *chain(3)]
    assert len(placed(jobs, [pool("a", "gpu", 2)])) == 2
    assert placed(jobs, [pool("a", "gpu", 1), pool("b", "gpu", 1)])["own"] == "a_gpu"
    jobs = [OWN, Job("s", "stitch", BOTH)]
    assert placed(jobs, [pool("a", "gpu", 1, 0, 100.0), pool("a", "cpu", 1)]) == {"own": "a_cpu"}


LONGEST_STITCH = [*(Job(f"e{i}", "edf", BOTH, cpu_seconds=2) for i in range(2)), *same(1)]


@pytest.mark.parametrize(
    ("jobs", "pools", "end_s"),
    [  # three of a chain in one slot, three others in the other; 4 in a row the other way round
        (same(3, "edf") + chain(3), [pool("a", "gpu", 2)], 3 * 20.0),
        (same(3, "qc") + chain(3, "qc"), [pool("a", "cpu", 2)], 3 * 15.0),
        # the CPU takes what loses least there
        ([*same(1), Job("e", "edf", BOTH)], [pool("a", "gpu", 1), pool("a", "cpu", 1)], 60.0),
        # 300 s beside 2 x 60 s; the other way round 60 + 300 s
        (LONGEST_STITCH, [pool("a", "cpu", 2)], 300.0),
    ],
    ids=["chains on GPUs", "chains on CPUs", "least loss", "no GPU"],
)
def test_the_order_that_ends_soonest(jobs: list[Job], pools: list[Slots], end_s: float) -> None:
    true_s = {(j.name, k): ESTIMATES_S[j.rule, k] * j.cpu_seconds for j in jobs for k in j.kinds}
    assert simulate(jobs, true_s, pools, production(jobs, ESTIMATES_S)).makespan_s == end_s


def test_jobs_in_a_circle_are_refused() -> None:
    circle = [Job("a", "qc", ("cpu",), ("b",)), Job("b", "qc", ("cpu",), ("a",))]
    with pytest.raises(ValueError, match="circle"):
        Workload(circle, ESTIMATES_S)


@pytest.mark.parametrize(("margin", "kinds"), [(0.4, {"gpu"}), (0.05, {"gpu", "cpu"})])
def test_a_job_takes_a_cpu_where_its_margin_lets_it(margin: float, kinds: set[DeviceKind]) -> None:
    # on the GPU alone 400 s; with one job on the CPU 300 s, or 420 s if it takes 40 % longer
    jobs = same(4)
    work = Workload(jobs, {("stitch", "gpu"): 100.0, ("stitch", "cpu"): 300.0}, {"stitch": margin})
    slots = [pool("a", "gpu", 1), pool("a", "cpu", 1)]
    starts = schedule(work, [job.name for job in jobs], slots, 0.0, GpuSlots()).starts
    assert {start.pool.removeprefix("a_") for start in starts} == kinds


# Whole runs on the simulated cluster

UNIT_S: dict[tuple[str, DeviceKind], float] = {
    ("stitch", "gpu"): 1, ("stitch", "cpu"): 5, ("qc", "cpu"): 0.5,
}  # fmt: skip
#: The worked example: 5 GPU and 19 CPU slots on two accounts.
POOLS = [pool("clive", "gpu", 3), pool("clive", "cpu", 11),
         pool("maigan", "gpu", 2), pool("maigan", "cpu", 8)]  # fmt: skip


def production(
    jobs: list[Job], estimates_s: Mapping[tuple[str, DeviceKind], float] = UNIT_S
) -> Policy:
    work, gpu_slots = Workload(jobs, estimates_s), GpuSlots()

    def policy(seen: ClusterView) -> Iterable[Decision]:
        nonlocal gpu_slots
        found = schedule(work, seen.ready, seen.pools, seen.clock_s, gpu_slots)
        gpu_slots = found.gpu_slots
        return found.starts

    return policy


def play(jobs: list[Job], changes: Iterable[Change] = (), factor: float = 1.0) -> SimulatedRun:
    true_s = {(j.name, kind): UNIT_S[j.rule, kind] * factor for j in jobs for kind in j.kinds}
    return simulate(jobs, true_s, POOLS, production(jobs), changes)


@pytest.mark.parametrize(("count", "limit_s"), [(1, 1.0), (5, 1.0), (24, 6.0), (100, 15.6)])
def test_identical_jobs_of_the_worked_example(count: int, limit_s: float) -> None:
    run = play(same(count))
    assert (run.undone, len(run.spans)) == ([], count)
    assert run.makespan_s <= limit_s
    if count == 100:
        assert {span.pool for span in run.spans} == {pool.name for pool in POOLS}
        # nobody waits for the last job: GPUs are filled to the end
        on_gpus = [span.end_s - span.start_s for span in run.spans if span.pool.endswith("gpu")]
        assert sum(on_gpus) >= 5 * (run.makespan_s - 1)


def test_a_lost_account_costs_no_more_than_its_share() -> None:
    run = play(same(100), [Change(4.0, name, 0, kills=True) for name in ("clive_gpu", "clive_cpu")])
    assert not run.undone
    assert not [span for span in run.spans if span.pool.startswith("clive") and span.end_s > 4]
    done = sum(span.done and span.end_s <= 4 for span in run.spans)
    # what is left flows through 2 GPU and 8 CPU slots, to whole jobs on CPUs
    assert run.makespan_s <= 4 + (100 - done) / (2 + 8 / 5) + 5


def test_long_chains_go_first_and_stay_on_gpus() -> None:
    run = play(same(40) + chain(12, "stitch"))
    assert run.makespan_s == pytest.approx(12.0)
    assert {span.pool[-3:] for span in run.spans if span.job.startswith("c")} == {"gpu"}


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Job], list[Change], float]:
    jobs: list[Job] = []
    for i in range(draw(st.integers(1, 20))):
        needs = draw(st.sets(st.sampled_from(jobs), max_size=2)) if jobs else set()
        rule = draw(st.sampled_from(["qc", "stitch"]))
        jobs.append(Job(f"j{i}", rule, kinds_of(rule), tuple({n.name for n in needs})))
    pools = st.sampled_from([pool.name for pool in POOLS])
    change = st.builds(Change, st.floats(0, 20), pools, st.integers(0, 3), st.booleans())
    changes = [*draw(st.lists(change, max_size=6)), Change(30.0, "maigan_cpu", 1)]
    return jobs, changes, draw(st.floats(0.5, 2))


@settings(max_examples=60)
@given(runs())
def test_a_run_does_all_jobs_in_order(given_run: tuple[list[Job], list[Change], float]) -> None:
    jobs, changes, factor = given_run
    run = play(jobs, changes, factor)
    assert not run.undone
    done = {span.job: span for span in run.spans if span.done}
    assert sorted(span.job for span in run.spans if span.done) == sorted(job.name for job in jobs)
    for job in jobs:
        assert all(done[need].end_s <= done[job.name].start_s for need in job.needs)
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
