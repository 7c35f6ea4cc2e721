"""Rounds of placing, and jobs that are moved, on recorded answers of a cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity
from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    Fixed,
    Job,
    Kind,
    Place,
    Shape,
    Task,
)
from snakemake_scheduler_plugin_tilewright.placement.ledger import read_ledger
from snakemake_scheduler_plugin_tilewright.placement.round import Round
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.query import Unknown
from tests.placement.dispatched import DOWN, RULES, dispatcher, full, nodes, pending, with_nodes
from tests.support.placement_rules import CPU, GPU, LIMIT, Rules, account, room
from tests.support.recorded import Recorded, cluster_with, queue_line


def test_the_place_that_ends_a_pending_job_soonest(tmp_path: Path) -> None:
    plan = Plan(RULES, cluster=cluster_with("", tmp_path)[0])  # 600 s on CPUs, 120 s on GPUs
    job = Job("t", "work", ("gpu", "cpu"), nominal_s=600.0, wildcards={})
    task = Task(job, Place("a", None, None, "gpu", GPU, "a_gpu"))

    def sooner(task: Task, capacity: Capacity, waited_s: float) -> object:
        work = plan.estimates.workload([task.job])
        bad_nodes: dict[Kind, set[str]] = {"gpu": set(), "cpu": set()}
        made = Round(work, plan, capacity, [task], bad_nodes, 5000.0)
        return made.sooner_elsewhere(task, waited_s)

    both = room(account("a", limit=LIMIT), account("b", limit=LIMIT))
    assert sooner(task, both, 60.0) == ("b", "gpu", GPU)
    own = room(account("a", limit=LIMIT))
    assert sooner(task, own, 470.0) is None  # 470 + 120 s is less than 600
    assert sooner(task, own, 490.0) == ("a", "cpu", CPU)
    fixed = replace(task, job=replace(job, fixed=Fixed("a")))
    assert sooner(fixed, both, 60.0) is None
    assert sooner(task, room(), 9999.0) is None


@pytest.mark.parametrize("reason", [DOWN, "Priority", "ReqNodeNotAvail, UnavailableNodes:b1"])
def test_where_every_gpu_node_failed_ready_jobs_go_to_cpus_at_once(
    tmp_path: Path, reason: str
) -> None:
    run = dispatcher(pending(3, reason), tmp_path, sent=3, ready=6)
    run.bad_nodes["gpu"].add("b1")
    ready = list(run.tasks)[3:]
    places = run.round(ready, [])
    assert [place.kind for place in places.values()] == ["cpu"] * 6
    assert sorted(places) == ready
    assert run.why_waiting == {}
    (closed,) = (event["closed"] for event in read_ledger(run.ledger.path)
                 if event["event"] == "room")  # fmt: skip
    assert closed["clive gpu"] == "every node of hpg-b200 failed in this run: b1"
    assert {name.split()[1] for name in closed} == {"gpu"}

    well = dispatcher(pending(3, reason), tmp_path / "well", sent=3, ready=6)
    kinds = Counter(place.kind for place in well.round(ready, []).values())
    assert kinds["gpu"] > 0


def test_a_queue_that_is_not_known_starts_nothing_and_is_said_once(tmp_path: Path) -> None:
    run = dispatcher(Unknown("squeue", "no answer within 15 s"), tmp_path, sent=0, ready=2)
    for _ in range(2):
        assert run.round(list(run.tasks), []) == {}
    events = list(read_ledger(run.ledger.path))
    assert [event["event"] for event in events] == ["hold"]
    assert "no answer within 15 s" in events[0]["reason"]


def test_a_run_does_not_fill_what_another_run_has_just_taken(tmp_path: Path) -> None:
    first = dispatcher("", tmp_path, sent=0, ready=5)
    names = list(first.tasks)
    taken = Counter(place.pool for place in first.round(names, []).values())
    assert taken == {"clive_gpu": 2, "maigan_gpu": 2, "brusko_gpu": 1}  # every free GPU
    (own,) = (tmp_path / "claims").glob("*.json")
    own.rename(own.with_name("other-1.json"))  # as if another process had written it
    second = dispatcher("", tmp_path, sent=0, ready=5)
    assert {place.kind for place in second.round(names, []).values()} == {"cpu"}


@pytest.mark.parametrize(
    ("reason", "waited_s", "movable", "moves"),
    [
        ("QOSGrpGRES", 100, True, True),
        (DOWN, 100, True, True),
        ("QOSGrpGRES", 59, True, False),  # the site's patience
        ("QOSGrpGRES", 100, False, False),
        ("Priority", 100, True, False),  # on GPUs it is done in 220 s, on CPUs in 600
        ("Priority", 900, True, True),
        ("InvalidQOS", 1, True, True),
        ("JobHeldAdmin", 9000, True, False),
        ("AReasonOfTomorrow", 239, True, False),  # nobody knows it: four times the patience
        ("AReasonOfTomorrow", 241, True, True),
        ("Licenses", 9000, True, False),
        ("QOSGrpCPUMinutesLimit", 100, True, True),
    ],
)
def test_a_job_that_pends_in_vain_is_cancelled_and_placed_again(
    tmp_path: Path, reason: str, waited_s: float, movable: bool, moves: bool
) -> None:
    run = full(dispatcher(pending(1, reason), tmp_path, sent=1, ready=0))
    (task,) = run.tasks.values()
    task.sent_s = 5000.0 - waited_s
    assert run.move_pending(lambda name: movable) == [task.name] * moves
    assert run.move_pending(lambda name: movable) == []  # once
    events = [e for e in read_ledger(run.ledger.path) if e["event"] == "move"]
    assert len(events) == moves
    assert bool(task.moved) == moves
    for event in events:
        assert (event["job"], event["slurm_id"]) == (task.name, 20)
        assert event["reason"] == f"{reason} on clive for {waited_s:.0f} s"
        on_nodes = reason in (DOWN, "Priority")  # then another account on them is no better
        assert event["sooner"].split()[1] == ("cpu" if on_nodes else "gpu")


def test_an_earlier_try_that_is_still_in_the_queue_is_cancelled_first(tmp_path: Path) -> None:
    run = dispatcher(pending(1, "Priority"), tmp_path, sent=0, ready=2)
    names = list(run.tasks)
    assert list(run.round(names, [])) == names[1:]
    assert "is cancelled" in run.why_waiting[names[0]]
    events = [e for e in read_ledger(run.ledger.path) if e["event"] == "cancel"]
    assert [event["slurm_ids"] for event in events] == [[20]]


def test_nodes_that_failed_are_forgiven_only_where_nothing_else_is_left(tmp_path: Path) -> None:
    run = dispatcher("", tmp_path, sent=0, ready=1)
    (name,) = run.tasks
    run.bad_nodes = {"gpu": {"b1"}, "cpu": {"c1", "c2"}}
    assert list(run.round([name], [])) == []
    events = [e for e in read_ledger(run.ledger.path) if e["event"] == "forgive"]
    assert [event["nodes"] for event in events] == [["b1", "c1", "c2"]]
    assert run.bad_nodes == {"gpu": set(), "cpu": set()}
    assert list(run.round([name], [])) == [name]


def test_a_dead_node_counts_for_the_kind_that_it_died_under(tmp_path: Path) -> None:
    run = dispatcher(pending(0, ""), tmp_path, 0, 2)
    run.bad_nodes["cpu"].add("c1")
    found = run.capacity()
    assert not isinstance(found, Unknown)
    assert not any(kind == "gpu" for _, kind in found.closed)


@pytest.mark.parametrize(("said", "kind"), [(nodes(8), "gpu"), (nodes(0), "cpu"),
                                            (nodes(8, "IDLE+DRAIN"), "cpu")])  # fmt: skip
def test_busy_or_drained_gpus_are_not_offered(tmp_path: Path, said: str, kind: str) -> None:
    run = with_nodes(dispatcher("", tmp_path, sent=0, ready=2), said)
    assert {place.kind for place in run.round(list(run.tasks), []).values()} == {kind}


def test_jobs_for_gpus_only_wait_in_slurms_queue_a_few_at_a_time(tmp_path: Path) -> None:
    run = with_nodes(dispatcher("", tmp_path, sent=0, ready=0), nodes(0))
    run.load(Job(f"rule_work_wildcards_{i}", "work", ("gpu",), wildcards={"i": i})
             for i in range(9))  # fmt: skip
    sent = run.round(list(run.tasks), [])
    assert Counter(place.kind for place in sent.values()) == {"gpu": 4}
    assert len({place.account for place in sent.values()}) > 1
    assert run.round([name for name in run.tasks if name not in sent], []) == {}
    drained = with_nodes(dispatcher("", tmp_path / "d", sent=0, ready=0), nodes(0, "DOWN*"))
    drained.load(run.tasks[name].job for name in run.tasks)
    assert drained.round(list(drained.tasks), []) == {}


def test_what_jobs_were_moved_away_from_is_avoided_for_a_time_that_grows(tmp_path: Path) -> None:
    now = [5000.0]
    run = dispatcher(pending(1, DOWN), tmp_path, sent=1, ready=1)
    run.clock = lambda: now[0]
    (task, other), waits = run.tasks.values(), []
    for _ in range(3):
        task.sent_s, task.moved = now[0] - 1e4, ""
        assert run.move_pending() == [task.name]
        avoided = run.avoided["clive", "gpu"]
        waits.append(avoided.until_s - now[0])
        assert {kind for _, kind in run.avoided} == {"gpu"}
        placed = run.round([other.name], [])
        assert {place.kind for place in placed.values()} == {"cpu"}
        other.place = None
        now[0] = avoided.until_s + 1
        task.seen = SlurmJob(20, "PENDING", reason=DOWN, account="clive")
        run.cluster.client.run.answers["squeue"] = pending(1, DOWN)  # type: ignore[attr-defined]
        run.cluster.client._kept.clear()
    assert waits == [60, 120, 240]
    task.sent_s, task.moved = now[0] - 1e4, ""
    assert run.move_pending() == []  # three times at most


def test_a_limit_that_slurms_own_numbers_leave_free_means_busy_nodes(tmp_path: Path) -> None:
    run = dispatcher(pending(1, "QOSGrpGRES"), tmp_path, sent=1, ready=0)
    (task,) = run.tasks.values()
    assert run.move_pending() == []  # two of clive's three GPUs are free; CPUs take longer
    task.sent_s = 4000.0
    assert run.move_pending() == [task.name]
    assert {kind for _, kind in run.avoided} == {"gpu"}


def test_jobs_that_are_moved_together_count_once(tmp_path: Path) -> None:
    run = dispatcher(pending(3, DOWN), tmp_path, sent=3, ready=0)
    assert len(run.move_pending()) == 3
    assert {(one.until_s, one.times) for one in run.avoided.values()} == {(5060.0, 0)}


def test_where_sbatch_takes_no_job_nothing_is_sent_for_a_while(tmp_path: Path) -> None:
    """That limits or partitions changed is seen at once, however old their answers may be."""
    run = dispatcher("", tmp_path, sent=1, ready=1)
    (task, other), recorded = run.tasks.values(), run.cluster.client.run
    assert isinstance(recorded, Recorded)
    found = run.failed(task.name)
    assert (found.free, found.next) == (True, "goes elsewhere, or there after a while")
    assert set(run.avoided) == {("clive", "gpu")}
    recorded.asked.clear()
    (place,) = run.round([other.name], []).values()
    assert (place.account, place.kind) != ("clive", "gpu")
    assert {"sacctmgr", "partition"} <= set(recorded.asked)


def test_a_place_that_took_others_of_the_same_round_stays_open(tmp_path: Path) -> None:
    """One of five calls failed; the job waited a minute beside a free GPU of that account."""
    run = dispatcher(pending(1, "Priority"), tmp_path, sent=2, ready=0)
    assert run.failed("rule_work_wildcards_1").free
    assert not run.avoided


def test_while_slurmctld_is_away_sbatch_refuses_nothing(tmp_path: Path) -> None:
    run = dispatcher(Unknown("squeue", "no answer within 15 s"), tmp_path, sent=1, ready=0)
    assert run.failed(*run.tasks).free
    assert not run.avoided


def test_an_invalid_job_goes_where_it_would_wait_and_nobody_follows_it(tmp_path: Path) -> None:
    run = with_nodes(dispatcher(pending(1, "InvalidQOS"), tmp_path, 1, 1), nodes(0))
    task, other = run.tasks.values()
    for one in (task, other):
        one.job = replace(one.job, kinds=("gpu",))
    task.sent_s = 4999.0
    assert run.move_pending() == [task.name]
    (place,) = run.round([other.name], []).values()
    assert place.account != "clive"


def test_an_invalid_job_that_nobody_takes_ends(tmp_path: Path) -> None:
    run = dispatcher(pending(1, "InvalidQOS"), tmp_path, sent=1, ready=0)
    (task,) = run.tasks.values()
    task.job = replace(task.job, fixed=Fixed("clive"), kinds=("gpu",))
    task.sent_s = 4990.0
    assert run.move_pending() == []  # it may come back
    task.sent_s = 4900.0
    assert run.move_pending() == [task.name]
    found = run.failed(task.name)
    assert found.give_up
    assert "withdrawn" in found.next


def test_why_jobs_pend_is_said_once_for_each_reason(tmp_path: Path) -> None:
    run = dispatcher(pending(3, "JobHeldAdmin"), tmp_path, sent=3, ready=0)
    run.capacity()
    assert len(said := run.explain_pending()) == 1
    assert said[0].startswith("rule_work_wildcards_0 and 2 more pend: it is held")
    assert run.explain_pending() == []
    events = [e for e in read_ledger(run.ledger.path) if e["event"] == "pend"]
    assert [event["slurm_id"] for event in events] == [20, 21, 22]


@pytest.mark.parametrize(
    ("line", "final", "found"),
    [
        ("PREEMPTED", "", ("Slurm job 20 is preempted", False)),
        ("REVOKED", "", ("Slurm job 20 is revoked", False)),
        (None, "COMPLETED", ("Slurm job 20 is completed", True)),
        (None, "FAILED", ("Slurm job 20 is failed", False)),
        (None, "", ("Slurm job 20 is lost", False)),
        (None, "RUNNING", None),
        ("RUNNING", "", None),
    ],
)
def test_ends_that_the_executor_does_not_see(
    tmp_path: Path, line: str | None, final: str, found: tuple[str, bool] | None
) -> None:
    now = [5000.0]
    run = dispatcher(pending(1, "Priority"), tmp_path, sent=1, ready=0)
    run.clock = lambda: now[0]
    run.capacity()
    recorded = run.cluster.client.run
    assert isinstance(recorded, Recorded)
    recorded.answers |= {"squeue": pending(1, "").replace("PENDING", line) if line else "",
                         "sacct": final}  # fmt: skip
    run.cluster.client._kept.clear()
    assert run.lost() == {}  # a requeued job leaves such a state by itself
    now[0] += 30
    (name,) = run.tasks
    assert run.lost() == ({name: found} if found else {})


def test_the_end_of_a_job_that_was_moved_is_told_at_once_and_why(tmp_path: Path) -> None:
    run = dispatcher(pending(1, "Priority"), tmp_path, sent=1, ready=0)
    run.capacity()
    ((name, task),) = run.tasks.items()
    task.moved = "another account is free"
    recorded = run.cluster.client.run
    assert isinstance(recorded, Recorded)
    recorded.answers["squeue"] = pending(1, "").replace("PENDING", "CANCELLED")
    run.cluster.client._kept.clear()
    assert run.lost() == {name: ("Slurm job 20 is cancelled to be placed again", False)}


def test_no_more_jobs_are_placed_than_snakemake_runs_at_once(tmp_path: Path) -> None:
    run = dispatcher("", tmp_path, sent=0, ready=6)
    assert len(run.round(list(run.tasks), [], 2)) == 2
    assert set(run.why_waiting.values()) == {"Snakemake runs no more jobs at once (--jobs)"}
    assert len(run.why_waiting) == 4
    events = list(read_ledger(run.ledger.path))
    assert not any(event["event"] == "withdraw" for event in events)
    (wait,) = (event for event in events if event["event"] == "wait")
    assert (wait["ready"], wait["why"]) == (4, {"Snakemake runs no more jobs at once (--jobs)": 4})


@pytest.mark.parametrize("state", ["pends for a moment", "runs"])
def test_slurm_is_asked_for_the_queue_alone_where_nothing_can_be_done(
    tmp_path: Path, state: str
) -> None:
    line = pending(1, "Priority")
    if state == "runs":
        line = queue_line(JobID="20", State="RUNNING", Account="clive", WorkDir="/data/run",
                          Comment="rule_work_wildcards_0")  # fmt: skip
    run = dispatcher(line, tmp_path, 1, 0)
    (task,) = run.tasks.values()
    run.capacity()
    task.sent_s = 0.0 if state == "runs" else 4995.0
    recorded = run.cluster.client.run
    assert isinstance(recorded, Recorded)
    recorded.asked.clear()
    run.cluster.client.forget()
    assert run.move_pending() == []
    assert task.runs == (state == "runs")
    assert set(recorded.asked) <= {"squeue"}


def known(run: Dispatcher) -> Capacity:
    capacity = run.capacity()
    assert not isinstance(capacity, Unknown)
    return capacity


@pytest.mark.parametrize("described", [False, True])
def test_slots_of_a_run_are_counted_for_its_own_jobs_where_they_state_their_size(
    tmp_path: Path, described: bool
) -> None:
    run = dispatcher("", tmp_path, sent=0, ready=2)
    run.plan = Plan(cluster=run.cluster)
    run.plan.sizes.add("work", Rules({"work": {"cpu": Shape(2, 100, 0, 60)}}))
    run.plan.described = RULES if described else None
    for task in run.tasks.values():
        task.job = replace(task.job, kinds=("cpu",))
    run.begin(known(run))
    (said,) = [event["pools"] for event in read_ledger(run.ledger.path)]
    of_site = {pool.name: pool.slots for pool in run.cluster.survey.pools}
    more = said["clive_cpu"][2] > of_site["clive_cpu"]
    assert more != described


def test_the_ledger_says_which_device_kinds_jobs_may_use(tmp_path: Path) -> None:
    run = dispatcher("", tmp_path, sent=0, ready=2)
    for task in run.tasks.values():
        task.job = replace(task.job, kinds=("cpu",))
    run.begin(known(run))
    run.avoided.avoid(("clive", "gpu"), "refused", 5000.0, for_all=True)
    first, second = run.tasks
    run.round([first], [])
    events = list(read_ledger(run.ledger.path))
    assert [event["kinds"] for event in events if event["event"] == "run"] == [["cpu"]]
    assert [event["closed"] for event in events if event["event"] == "room"] == [{}]
    run.tasks[second].job = replace(run.tasks[second].job, kinds=("gpu",))
    run.round([second], [])
    events = list(read_ledger(run.ledger.path))
    assert [event["kinds"] for event in events if event["event"] == "kinds"] == [["cpu", "gpu"]]
    assert events[-1]["event"] != "room" or "clive gpu" in events[-1]["closed"]
    assert any("clive gpu" in event.get("closed", {}) for event in events)


def test_jobs_that_wait_are_counted_as_those_of_snakemake(tmp_path: Path) -> None:
    run = dispatcher("", tmp_path, sent=0, ready=2)
    first, second = run.tasks
    run.tasks[first].job = replace(run.tasks[first].job, members=4)
    run.round([first, second], [], most=0)
    assert run.waiting() == {"Snakemake runs no more jobs at once (--jobs)": 5}
    (wait,) = (event for event in read_ledger(run.ledger.path) if event["event"] == "wait")
    assert wait["why"] == run.waiting()
