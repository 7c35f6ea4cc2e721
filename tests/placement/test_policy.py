"""Who goes where: properties of every round, and cases worked by hand."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.placement.jobs import Fixed, Job, Kind
from snakemake_scheduler_plugin_tilewright.placement.policy import Forecast, Queues, decide
from snakemake_scheduler_plugin_tilewright.placement.workload import (
    Choice,
    GpuSlots,
    Running,
    Slots,
    Strategy,
    Workload,
)

BOTH: tuple[Kind, ...] = ("gpu", "cpu")
ESTIMATES_S: dict[tuple[str, Kind], float] = {
    ("stitch", "gpu"): 60.0,
    ("stitch", "cpu"): 300.0,
    ("edf", "gpu"): 20.0,
    ("edf", "cpu"): 30.0,
    ("qc", "cpu"): 15.0,
}


def pool(account: str, kind: Kind, slots: int, free: int | None = None, *ends_s: float) -> Slots:
    running = tuple(Running(f"{account}_{kind}_{k}", 0.0, end) for k, end in enumerate(ends_s))
    return Slots(
        f"{account}_{kind}", account, kind, slots, slots if free is None else free, running
    )


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[Job], list[str], list[Slots], float]:
    """A run at some moment: jobs, names of the ready ones, pools and the clock."""
    jobs: list[Job] = []
    for i in range(draw(st.integers(0, 25))):
        rule = draw(st.sampled_from(["stitch", "edf", "qc"]))
        kinds: tuple[Kind, ...] = (
            ("cpu",) if rule == "qc" else draw(st.sampled_from([BOTH, BOTH, ("cpu",), ("gpu",)]))
        )
        needs = draw(st.sets(st.sampled_from([j.name for j in jobs]), max_size=2)) if jobs else ()
        account = draw(st.sampled_from([None, None, None, "a", "b", "gone"]))
        nominal_s = draw(st.floats(0.1, 10))
        jobs.append(Job(f"j{i}", rule, kinds, tuple(sorted(needs)), nominal_s, Fixed(account)))
    pools = [
        pool(account, kind, draw(st.integers(0, 4)), draw(st.integers(-1, 6)),
             *draw(st.lists(st.floats(0, 900), max_size=4)))
        for account in "ab" for kind in BOTH
    ]  # fmt: skip
    ready = [job.name for job in jobs if not job.needs]
    return jobs, ready, pools, draw(st.floats(0, 1000))


def ask(
    jobs: list[Job],
    ready: list[str],
    pools: list[Slots],
    clock_s: float,
    last: Strategy | None = None,
) -> Choice:
    later = [job.name for job in jobs if job.name not in set(ready)]
    work = Workload(jobs, ESTIMATES_S)
    return decide(work, ready, later, pools, clock_s, last=last)


@settings(max_examples=120)
@given(questions(), st.sampled_from([None, Strategy(0.0), Strategy(900.0, 950.0)]))
def test_no_pool_is_exceeded_and_every_ready_job_is_placed_or_has_a_reason(
    question: tuple[list[Job], list[str], list[Slots], float], last: Strategy | None
) -> None:
    jobs, ready, pools, clock_s = question
    found = ask(jobs, ready, pools, clock_s, last)
    by_name, by_pool = {job.name: job for job in jobs}, {p.name: p for p in pools}
    used = Counter(start.pool for start in found.starts)
    for name, count in used.items():
        p = by_pool[name]
        assert count <= min(p.free, p.slots - len(p.running))
    for start in found.starts:
        job, p = by_name[start.job], by_pool[start.pool]
        assert p.kind in job.kinds
        assert job.fixed.account in (None, p.account)
        assert start.start_s == clock_s < start.end_s
        assert start.end_s == pytest.approx(clock_s + ESTIMATES_S[job.rule, p.kind] * job.nominal_s)
        assert start.reason
    assert sorted([s.job for s in found.starts] + list(found.waiting)) == sorted(ready)
    assert all(found.waiting.values())


@settings(max_examples=40)
@given(questions())
def test_the_same_question_has_the_same_answer(
    question: tuple[list[Job], list[str], list[Slots], float],
) -> None:
    jobs, ready, pools, clock_s = question
    assert ask(jobs, ready, pools, clock_s) == ask(jobs, ready[::-1], pools, clock_s)


@settings(max_examples=60)
@given(questions())
def test_an_idle_cluster_never_waits_for_nothing(
    question: tuple[list[Job], list[str], list[Slots], float],
) -> None:
    jobs, ready, pools, clock_s = question
    idle = [pool(p.account, p.kind, p.slots) for p in pools]
    found = ask(jobs, ready, idle, clock_s)
    able = any(
        p.slots and p.kind in job.kinds and job.fixed.account in (None, p.account)
        for job in jobs if job.name in ready for p in idle
    )  # fmt: skip
    assert bool(found.starts) == able


def test_a_strategy_that_has_become_too_strict_holds_no_job_back() -> None:
    """Its aim was for shorter jobs; the last job waited 70 s for a GPU beside a free CPU slot."""
    jobs = [Job(f"j{i}", "work", BOTH, (), 60.0) for i in range(3)]
    work = Workload(jobs, {("work", "gpu"): 1.15, ("work", "cpu"): 1.17}, {"work": 0.32})
    gpus = Slots("a_gpu", "a", "gpu", 2, 0, (Running("j0", 72, 141), Running("j1", 72, 141)))
    made = decide(work, ["j2"], [], [gpus, pool("a", "cpu", 1)], 77.0, last=Strategy(121.0))
    assert [start.pool for start in made.starts] == ["a_cpu"], made.waiting


def test_a_cpu_slot_is_used_only_where_it_finishes_sooner() -> None:
    jobs = [Job(f"j{i}", "stitch", BOTH) for i in range(4)]
    names = [job.name for job in jobs]
    soon = [pool("a", "gpu", 1, 0, 10.0), pool("a", "cpu", 8)]
    found = ask(jobs, names, soon, 0.0)
    assert not found.starts  # 10 + 4 × 60 s on the GPU is less than 300 s on a CPU
    assert set(found.waiting.values()) == {"a GPU slot falls free in time to finish it sooner"}
    late = [pool("a", "gpu", 1, 0, 200.0), pool("a", "cpu", 8)]
    assert {s.pool for s in ask(jobs, names, late, 0.0).starts} == {"a_cpu"}
    lost = [pool("a", "gpu", 0), pool("a", "cpu", 8)]
    assert len(ask(jobs, names, lost, 0.0).starts) == 4


def test_what_is_known_of_gpu_slots() -> None:
    fell = GpuSlots().counted(4, 0.0).counted(3, 5.0).counted(1, 10.0)
    assert (fell.slots, fell.gone_s) == (1, (5.0, 10.0, 10.0))
    assert fell.counted(4, 10.0) == fell  # a later count of the same round is for smaller jobs
    rose = fell.counted(3, 20.0)
    assert rose.returns_s(30.0) == [55.0]
    assert rose.counted(9, 40.0).gone_s == ()


def test_gpus_that_go_are_waited_for_as_long_as_they_have_been_gone() -> None:
    jobs = [Job(f"j{i}", "stitch", BOTH) for i in range(4)]
    names = [job.name for job in jobs]
    last = Strategy(math.inf, gpu_slots=GpuSlots(0.0, 2))
    gone = [pool("a", "gpu", 0), pool("a", "cpu", 8, 7, 50.0)]
    at_once = ask(jobs, names, gone, 10.0, last)
    assert not at_once.starts
    assert at_once.strategy is not None
    soon = ask(jobs, names, gone, 100.0, at_once.strategy)
    assert not soon.starts  # two more a minute after 190 s are done before 400 s
    late = ask(jobs, names, gone, 1000.0, at_once.strategy)
    assert {s.pool for s in late.starts} == {"a_cpu"}
    idle = [pool("a", "gpu", 0), pool("a", "cpu", 8)]
    assert len(ask(jobs, names, idle, 10.0, last).starts) == 4  # nothing else would happen


def test_long_chains_go_first() -> None:
    chain = [Job(f"c{i}", "edf", BOTH, (f"c{i - 1}",) if i else ()) for i in range(6)]
    jobs = [Job(f"j{i}", "edf", BOTH) for i in range(5)] + chain
    ready = [f"j{i}" for i in range(5)] + ["c0"]
    found = ask(jobs, ready, [pool("a", "gpu", 1)], 0.0)
    assert [s.job for s in found.starts] == ["c0"]


def test_qc_leaves_the_gpu_alone_and_does_not_wait_for_it() -> None:
    jobs = [Job("q", "qc", ("cpu",)), Job("s", "stitch", BOTH)]
    found = ask(jobs, ["q", "s"], [pool("a", "gpu", 1), pool("a", "cpu", 1)], 0.0)
    assert {s.job: s.pool for s in found.starts} == {"q": "a_cpu", "s": "a_gpu"}
    found = ask(jobs, ["q", "s"], [pool("a", "gpu", 2)], 0.0)
    assert [s.job for s in found.starts] == ["s"]
    assert found.waiting == {"q": "no account has a CPU slot for it"}


def test_jobs_that_need_no_gpu_do_not_wait_for_one() -> None:
    jobs = [Job(f"j{i}", "qc", ("cpu",)) for i in range(9)]
    names = [job.name for job in jobs]
    for cpus in (0, 2):
        found = ask(jobs, names, [pool("a", "gpu", 2), pool("a", "cpu", cpus)], 0.0)
        assert len(found.starts) == cpus
        assert not any("GPU" in why for why in found.waiting.values())


@pytest.mark.parametrize("kind", BOTH)
def test_a_higher_priority_goes_before_a_longer_chain(kind: Kind) -> None:
    jobs = [Job("long", "stitch", BOTH, nominal_s=3.0), Job("first", "edf", BOTH, priority=0.5)]
    for slots, expected in ((1, ["first"]), (2, ["first", "long"])):
        found = ask(jobs, ["long", "first"], [pool("a", kind, slots)], 0.0)
        assert sorted(s.job for s in found.starts) == expected


def test_the_account_that_a_user_chose_is_kept() -> None:
    jobs = [Job(f"j{i}", "stitch", BOTH, fixed=Fixed("b")) for i in range(3)]
    names = [job.name for job in jobs]
    pools = [pool("a", "gpu", 3), pool("b", "gpu", 1), pool("b", "cpu", 4)]
    found = ask(jobs, names, pools, 0.0)
    assert [s.pool for s in found.starts] == ["b_gpu"]  # three in a row end before one on a CPU
    gone = ask(jobs, names, pools[:1], 0.0)
    assert set(gone.waiting.values()) == {"account b has no GPU or CPU slot for it"}


def test_a_longer_chain_goes_before_a_job_with_an_account() -> None:
    chain = [Job(f"c{i}", "edf", BOTH, (f"c{i - 1}",) if i else ()) for i in range(3)]
    jobs = [Job("own", "edf", BOTH, fixed=Fixed("a")), *chain]
    one = [pool("a", "gpu", 1)]
    assert [s.job for s in ask(jobs, ["own", "c0"], one, 0.0).starts] == ["c0"]
    assert len(ask(jobs, ["own", "c0"], [pool("a", "gpu", 2)], 0.0).starts) == 2
    # what the others leave is taken at once
    both = [pool("a", "gpu", 1), pool("b", "gpu", 1)]
    assert {s.job: s.pool for s in ask(jobs, ["own", "c0"], both, 0.0).starts}["own"] == "a_gpu"
    longer = [
        Job(f"o{i}", "edf", BOTH, (f"o{i - 1}",) if i else (), 1, Fixed("a")) for i in range(2)
    ]
    found = ask([*longer, Job("j", "edf", BOTH)], ["o0", "j"], one, 0.0)
    assert [s.job for s in found.starts] == ["o0"]


def test_of_jobs_with_one_account_the_longest_chain_goes_first() -> None:
    chain = [
        Job(f"o{i}", "edf", BOTH, (f"o{i - 1}",) if i else (), 1, Fixed("a")) for i in range(3)
    ]
    jobs = [Job("own", "edf", BOTH, fixed=Fixed("a")), *chain]
    assert [s.job for s in ask(jobs, ["own", "o0"], [pool("a", "gpu", 1)], 0.0).starts] == ["o0"]


def forecast(jobs: list[Job], *pools: Slots) -> Forecast:
    ready = [i for i, job in enumerate(jobs) if not job.needs]
    later = [i for i, job in enumerate(jobs) if job.needs]
    return Forecast(Workload(jobs, ESTIMATES_S), ready, later, pools, 0.0)


@pytest.mark.parametrize(
    ("aim_s", "end_s"),
    [(479.0, 180.0), (481.0, 480.0), (0.0, 180.0), (math.inf, 480.0)],
)
def test_a_cpu_takes_what_it_and_its_chain_can_end_by_the_aim(aim_s: float, end_s: float) -> None:
    jobs = [Job("a", "stitch", BOTH), Job("b", "stitch", BOTH, ("a",))]
    # 300 s on the CPU with a risk of 120 s and 60 s for what follows; or both on the GPU after 60 s
    found = forecast(jobs, pool("a", "gpu", 1, 0, 60.0), pool("a", "cpu", 1))
    assert found.play(Strategy(aim_s))[0] == end_s


@pytest.mark.parametrize("strategy", [Strategy(0.0), Strategy(math.inf)])
def test_gpus_and_cpus_take_the_longest_chains_first_in_every_strategy(strategy: Strategy) -> None:
    def jobs(rule: str, kinds: tuple[Kind, ...]) -> list[Job]:
        chain = [Job(f"c{i}", rule, kinds, (f"c{i - 1}",) if i else ()) for i in range(3)]
        return [Job(f"j{i}", rule, kinds) for i in range(3)] + chain

    # three of a chain in one slot, three others in the other; 4 in a row the other way round
    on_gpus = forecast(jobs("edf", BOTH), pool("a", "gpu", 2))
    assert on_gpus.play(strategy)[0] == 3 * 20.0
    on_cpus = forecast(jobs("qc", ("cpu",)), pool("a", "cpu", 2))
    assert on_cpus.play(strategy)[0] == 3 * 15.0


def test_what_is_too_late_for_a_cpu_goes_to_gpus_by_chain() -> None:
    chain = [Job(f"c{i}", "edf", BOTH, (f"c{i - 1}",) if i else ()) for i in range(3)]
    jobs = [Job(f"j{i}", "edf", BOTH) for i in range(3)] + chain
    found = forecast(jobs, pool("a", "gpu", 2, 0, 10.0, 10.0), pool("a", "cpu", 1))
    assert found.play(Strategy(0.0))[0] == 10 + 3 * 20.0
    stitch = [*jobs[:3], Job("s", "stitch", BOTH, nominal_s=0.5), *jobs[3:]]
    late = Queues(forecast(stitch, pool("a", "gpu", 2), pool("a", "cpu", 1)), Strategy(0.0))
    # 80 s on a GPU, of which 60 for the chain, and 30 for the stitch
    assert [stitch[i].name for *_, i in late.fill([2, 1], 0.0)] == ["c0", "s"]
    queues = Queues(found, Strategy(0.0))
    assert queues.fill([0, 1], 0.0) == []
    assert [jobs[i].name for *_, i in queues.fill([2, 0], 10.0)] == ["c0", "j0"]


def test_cpus_take_what_loses_least_there() -> None:
    jobs = [Job("s", "stitch", BOTH), Job("e", "edf", BOTH)]
    found = forecast(jobs, pool("a", "gpu", 1, 0, 25.0), pool("a", "cpu", 1))
    assert found.play(Strategy(math.inf))[0] == 25 + 60.0


def test_without_a_gpu_cpus_take_the_longest_jobs_first() -> None:
    jobs = [Job(f"e{i}", "edf", BOTH, nominal_s=2) for i in range(2)] + [Job("s", "stitch", BOTH)]
    # 300 s beside 2 x 60 s; the other way round 60 + 300 s
    assert forecast(jobs, pool("a", "cpu", 2)).play(Strategy(math.inf))[0] == 300.0


def test_a_job_with_an_account_takes_what_longer_chains_leave() -> None:
    jobs = [Job("own", "edf", BOTH, fixed=Fixed("a")), Job("s", "stitch", BOTH)]
    found = ask(jobs, ["own", "s"], [pool("a", "gpu", 1, 0, 100.0), pool("a", "cpu", 1)], 0.0)
    assert {s.job: s.pool for s in found.starts} == {"own": "a_cpu"}


def test_jobs_in_a_circle_are_refused() -> None:
    circle = [Job("a", "qc", ("cpu",), ("b",)), Job("b", "qc", ("cpu",), ("a",))]
    with pytest.raises(ValueError, match="circle"):
        Workload(circle, ESTIMATES_S)


@pytest.mark.parametrize(("margin", "kinds"), [(0.4, {"gpu"}), (0.05, {"gpu", "cpu"})])
def test_a_job_takes_a_cpu_where_its_margin_lets_it_end_in_time(
    margin: float, kinds: set[Kind]
) -> None:
    # on the GPU alone 400 s; with one job on the CPU 300 s, or 420 s if it takes 40 % longer
    jobs = [Job(f"j{i}", "stitch", BOTH) for i in range(4)]
    work = Workload(jobs, {("stitch", "gpu"): 100.0, ("stitch", "cpu"): 300.0}, {"stitch": margin})
    slots = [Slots("a_gpu", "a", "gpu", 1, 1), Slots("a_cpu", "a", "cpu", 1, 1)]
    starts = decide(work, [job.name for job in jobs], (), slots, 0.0).starts
    assert {start.pool.removeprefix("a_") for start in starts} == kinds
