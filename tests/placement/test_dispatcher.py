"""Rounds of placing, and jobs that are moved, on recorded answers of a cluster."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.cluster.request import ResourceRequest
from snakemake_scheduler_plugin_tilewright.cluster.room import Room
from snakemake_scheduler_plugin_tilewright.errors import SlurmQueryError
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    UserOverrides,
)
from snakemake_scheduler_plugin_tilewright.runtime.ledger import read_ledger
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from tests.placement.dispatched import (
    CLIVE_GPU,
    DOWN,
    FULL,
    answer,
    change_jobs,
    dispatcher,
    events,
    nodes,
    pending,
    pends,
    recorded_by,
)
from tests.support.placement_rules import GPU, Rules
from tests.support.recorded import queue_line

SILENT = SlurmQueryError("squeue", "no answer within 15 s")
MOST = "Snakemake runs no more jobs at once (--jobs)"


@pytest.mark.parametrize("reason", [DOWN, "Priority", "ReqNodeNotAvail, UnavailableNodes:b1"])
def test_where_every_gpu_node_failed_jobs_go_to_cpus_at_once(tmp_path: Path, reason: str) -> None:
    run = pends(tmp_path, reason, 3, 6)
    run.bad_nodes["gpu"].add("b1")
    ready = list(run.tasks)[3:]
    places = run.round(ready, [])
    assert [place.target.device for place in places.values()] == ["cpu"] * 6
    assert (sorted(places), run.why_waiting) == (ready, {})
    (closed,) = (event["closed"] for event in events(run, "room"))
    assert closed["clive gpu"] == "every node of hpg-b200 failed here: b1"
    assert {name.split()[1] for name in closed} == {"gpu"}
    well = pends(tmp_path / "well", reason, 3, 6)
    assert "gpu" in {place.target.device for place in well.round(list(well.tasks)[3:], []).values()}


def test_a_queue_that_is_not_known_starts_nothing_and_is_said_once(tmp_path: Path) -> None:
    run = dispatcher(SILENT, tmp_path, ready=2)
    assert [run.round(list(run.tasks), []) for _ in range(2)] == [{}, {}]
    (hold,) = read_ledger(run.ledger.path)
    assert hold["event"] == "hold"
    assert "no answer within 15 s" in hold["reason"]


def test_a_run_does_not_fill_what_another_run_has_just_taken(tmp_path: Path) -> None:
    first, second = (dispatcher("", tmp_path, ready=5) for _ in range(2))
    names = list(first.tasks)
    taken = Counter(place.target.pool for place in first.round(names, []).values())
    assert taken == {"clive_gpu": 2, "maigan_gpu": 2, "brusko_gpu": 1}  # every free GPU
    (own,) = (tmp_path / "claims").glob("*.json")
    own.rename(own.with_name("other-1.json"))  # as if another process had written it
    assert {place.target.device for place in second.round(names, []).values()} == {"cpu"}


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
        ("AReasonOfTomorrow", 59, True, False),
        ("AReasonOfTomorrow", 61, True, True),
        ("Licenses", 9000, True, False),
        ("QOSGrpCPUMinutesLimit", 100, True, True),
    ],
)
def test_a_job_that_pends_in_vain_is_cancelled_and_placed_again(
    tmp_path: Path, reason: str, waited_s: float, movable: bool, moves: bool
) -> None:
    run = pends(tmp_path, reason, 1, 0, FULL)
    (task,) = run.tasks.values()
    task.sent_s = 5000.0 - waited_s
    assert run.move_pending(lambda name: movable) == [task.name] * moves
    assert run.move_pending(lambda name: movable) == []  # once
    said = events(run, "move")
    assert (len(said), bool(task.move_reason)) == (moves, moves)
    for event in said:
        assert (event["job"], event["slurm_id"]) == (task.name, 20)
        assert event["reason"] == f"{reason} on clive for {waited_s:.0f} s"
        on_nodes = reason in (DOWN, "Priority")  # then another account on them is no better
        assert event["sooner"].split()[1] == ("cpu" if on_nodes else "gpu")


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_a_wait_begins_when_a_job_is_released_or_requeued(tmp_path: Path, state: str) -> None:
    now = [5000.0]
    run = pends(tmp_path, "QOSGrpGRES", 1, 0, FULL)
    run.clock = lambda: now[0]
    for reason, before in (("JobHeldAdmin", state), ("QOSGrpGRES", "PENDING")):
        answer(run, squeue=pending(1, reason).replace("PENDING", before))
        run.state()
    for now[0], moves in ((5059.0, 0), (5061.0, 1)):
        assert len(run.move_pending()) == moves
    (event,) = events(run, "move")
    assert event["reason"] == "QOSGrpGRES on clive for 61 s"


def test_an_earlier_try_that_is_still_in_the_queue_is_cancelled_first(tmp_path: Path) -> None:
    run = dispatcher(pending(1, "Priority"), tmp_path, ready=2)
    first, second = run.tasks
    assert list(run.round([first, second], [])) == [second]
    assert "is cancelled" in run.why_waiting[first]
    assert [event["slurm_ids"] for event in events(run, "cancel")] == [[20]]


def test_nodes_that_failed_are_forgiven_only_where_nothing_else_is_left(tmp_path: Path) -> None:
    run = dispatcher("", tmp_path, ready=1)
    names = list(run.tasks)
    run.bad_nodes = {"gpu": set(), "cpu": {"c1"}}
    assert not {target.device for target in run.state().closed} & {"gpu"}  # it died under a CPU job
    run.bad_nodes = {"gpu": {"x1"}, "cpu": {"x1", "x2", "x3"}}  # of partitions that rules name
    assert not run.state().closed
    run.bad_nodes = {"gpu": {"b1"}, "cpu": {"c1", "c2"}}
    assert list(run.round(names, [])) == []
    assert [event["nodes"] for event in events(run, "forgive")] == [["b1", "c1", "c2"]]
    assert run.bad_nodes == {"gpu": set(), "cpu": set()}
    assert list(run.round(names, [])) == names


@pytest.mark.parametrize(("said", "kind"), [(nodes(8), "gpu"), (nodes(0), "cpu"),
                                            (nodes(8, "IDLE+DRAIN"), "cpu")])  # fmt: skip
def test_busy_or_drained_gpus_are_left_out(tmp_path: Path, said: dict[str, str], kind: str) -> None:
    run = dispatcher("", tmp_path, 0, 2, said)
    assert {place.target.device for place in run.round(list(run.tasks), []).values()} == {kind}


def test_jobs_for_gpus_only_wait_in_slurms_queue_a_few_at_a_time(tmp_path: Path) -> None:
    run = dispatcher("", tmp_path, 0, 9, nodes(0), kinds=("gpu",))
    sent = run.round(list(run.tasks), [])
    assert [place.target.device for place in sent.values()] == ["gpu"] * 4
    assert len({place.target.account for place in sent.values()}) > 1
    assert run.round([name for name in run.tasks if name not in sent], []) == {}
    drained = dispatcher("", tmp_path / "d", 0, 9, nodes(0, "DOWN*"), kinds=("gpu",))
    assert drained.round(list(drained.tasks), []) == {}


def test_what_jobs_were_moved_away_from_is_avoided_for_a_time_that_grows(tmp_path: Path) -> None:
    now = [5000.0]
    run = pends(tmp_path, DOWN, 1, 1)
    run.clock = lambda: now[0]
    (task, other), waits = run.tasks.values(), []
    for _ in range(3):
        task.sent_s, task.move_reason = now[0] - 1e4, ""
        assert run.move_pending() == [task.name]
        avoided = run.backoff[CLIVE_GPU]
        waits.append(avoided.until_s - now[0])
        assert {target.device for target in run.backoff} == {"gpu"}
        placed = run.round([other.name], [])
        assert {place.target.device for place in placed.values()} == {"cpu"}
        other.assignment = None
        now[0] = avoided.until_s + 1
        task.slurm_job = SlurmJob(20, "PENDING", reason=DOWN, account="clive")
        answer(run, squeue=pending(1, DOWN))
    assert waits == [60, 120, 240]
    task.sent_s, task.move_reason = now[0] - 1e4, ""
    assert run.move_pending() == []  # three times at most


def test_jobs_that_are_moved_together_count_once(tmp_path: Path) -> None:
    run = pends(tmp_path, DOWN, sent=3)
    assert len(run.move_pending()) == 3
    assert {(one.until_s, one.times) for one in run.backoff.values()} == {(5060.0, 0)}


def test_where_sbatch_takes_no_job_nothing_is_sent_for_a_while(tmp_path: Path) -> None:
    """That limits or partitions changed is seen at once, however old their answers may be."""
    run = dispatcher("", tmp_path, sent=1, ready=1)
    first, other = run.tasks
    found = run.failed(first)
    assert (found.free, found.next) == (True, "goes to another place, or back to this one later")
    assert set(run.backoff) == {CLIVE_GPU}
    recorded_by(run).asked.clear()
    (place,) = run.round([other], []).values()
    assert (place.target.account, place.target.device) != ("clive", "gpu")
    assert {"sacctmgr", "partition"} <= set(recorded_by(run).asked)


@pytest.mark.parametrize("queue", [SILENT, pending(1, "Priority")])
def test_a_refusal_beside_others_or_silence_is_free(
    tmp_path: Path, queue: str | SlurmQueryError
) -> None:
    """One of five calls failed; the job waited a minute beside a free GPU of that account."""
    run = dispatcher(queue, tmp_path, sent=2)
    assert run.failed("rule_work_wildcards_1").free
    assert not run.backoff


def test_an_invalid_job_goes_where_it_would_wait_and_nobody_follows_it(tmp_path: Path) -> None:
    run = pends(tmp_path, "InvalidQOS", 1, 1, nodes(0), kinds=("gpu",))
    task, other = run.tasks.values()
    task.sent_s = 4999.0
    assert run.move_pending() == [task.name]
    (place,) = run.round([other.name], []).values()
    assert place.target.account != "clive"


def test_an_invalid_job_that_nobody_takes_ends(tmp_path: Path) -> None:
    run = pends(tmp_path, "InvalidQOS", overrides=UserOverrides("clive"), kinds=("gpu",))
    (task,) = run.tasks.values()
    task.sent_s = 4990.0
    assert run.move_pending() == []  # it may come back
    task.sent_s = 4900.0
    assert run.move_pending() == [task.name]
    found = run.failed(task.name)
    assert found.give_up
    assert found.next == "its QOS may not be used there (Slurm: InvalidQOS)"


def test_why_jobs_pend_is_said_once_for_each_reason(tmp_path: Path) -> None:
    run = pends(tmp_path, "JobHeldAdmin", sent=3)
    run.state()
    (said,) = run.explain_pending()
    assert said.startswith("rule_work_wildcards_0 and 2 more pend: it is held")
    assert run.explain_pending() == []
    (said,) = run.explain_pending(lambda name: False)
    assert "it has no try left (--retries), so it is not moved" in said
    assert [event["slurm_id"] for event in events(run, "pend")] == [20, 21, 22] * 2


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
        ("COMPLETED", "", None),  # which the executor sees
    ],
)
def test_ends_that_the_executor_does_not_see(
    tmp_path: Path, line: str | None, final: str, found: tuple[str, bool] | None
) -> None:
    now = [5000.0]
    run = pends(tmp_path, "Priority")
    run.clock = lambda: now[0]
    run.state()
    answer(run, squeue=pending(1, "").replace("PENDING", line) if line else "", sacct=final)
    assert run.unseen_ends({}) == {}  # a job that Slurm requeues leaves such a state by itself
    now[0] += 30
    (name,) = run.tasks
    assert run.unseen_ends({}) == ({name: found} if found else {})


@pytest.mark.parametrize("forgotten", [False, True])
def test_an_end_that_the_queue_showed_holds_whatever_accounting_says(
    forgotten: bool, tmp_path: Path
) -> None:
    """Where the executor asks a slurmdbd that is down, it sees no end."""
    now = [5000.0]
    run = pends(tmp_path, "Priority")
    run.clock = lambda: now[0]
    ended = pending(1, "").replace("PENDING", "COMPLETED")
    answer(run, squeue=ended)
    (name,) = run.tasks
    for later_s, found in ((0, {}), (200, {name: ("Slurm job 20 is completed", True)})):
        now[0] += later_s
        assert run.unseen_ends({name: 20}) == found
        if forgotten:
            answer(run, squeue="")


@pytest.mark.parametrize("final", ["COMPLETED", "FAILED", "RUNNING", ""])
def test_a_job_that_no_queue_showed_ends_as_accounting_says(final: str, tmp_path: Path) -> None:
    run = dispatcher("", tmp_path, sent=1)
    now = [5000.0]
    run.clock = run.cluster.client.clock = lambda: now[0]
    answer(run, sacct=final)
    (name,) = run.tasks
    ends = []
    for _ in range(6):
        ends.append(run.unseen_ends({name: 20}))
        now[0] += 40.0
    assert ends[0] == ends[1] == {}
    known = {
        "COMPLETED": ("Slurm job 20 is completed", True),
        "FAILED": ("Slurm job 20 is failed", False),
    }
    assert ends[-1] == ({name: known[final]} if final in known else {})


def test_own_jobs_that_pend_hold_gpus_that_are_no_tres(tmp_path: Path) -> None:
    said = nodes(2)["node"].replace(",gres/gpu=8", "").replace("AllocTRES=gres/gpu=6", "AllocTRES=")
    said = said.replace("Gres=(null)", "Gres=gpu:8 GresUsed=gpu:6(IDX:0-5)", 1)
    queue = pending(1, "Resources").replace(",gres/gpu=1", "")
    run = dispatcher(queue, tmp_path, 1, 3, {"node": said, **FULL})
    state = run.state()
    assert Room(state).on_nodes(state.where(CLIVE_GPU), GPU) == 1


def test_the_end_of_a_job_that_was_moved_is_told_at_once_and_why(tmp_path: Path) -> None:
    run = pends(tmp_path, "Priority")
    run.state()
    ((name, task),) = run.tasks.items()
    task.move_reason = "another account is free"
    answer(run, squeue=pending(1, "").replace("PENDING", "CANCELLED"))
    assert run.unseen_ends({}) == {name: ("Slurm job 20 is cancelled to be moved", False)}


@pytest.mark.parametrize("most", [2, 0])
def test_no_more_jobs_are_placed_than_snakemake_runs_at_once(tmp_path: Path, most: int) -> None:
    run = dispatcher("", tmp_path, ready=6, members=4)
    assert len(run.round(list(run.tasks), [], most)) == most
    assert list(run.why_waiting.values()) == [MOST] * (6 - most)
    assert run.waiting() == {MOST: 4 * (6 - most)}  # as Snakemake counts jobs of a group
    (wait,) = events(run, "wait")
    assert (wait["ready"], wait["why"]) == (6 - most, run.waiting())
    assert not events(run, "withdraw")


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_the_queue_alone_is_asked_where_nothing_can_be_done(tmp_path: Path, state: str) -> None:
    line = queue_line(JobID="20", State=state, Account="clive", WorkDir="/data/run",
                      Comment="rule_work_wildcards_0", Reason="Priority")  # fmt: skip
    run = dispatcher(line, tmp_path, sent=1)
    (task,) = run.tasks.values()
    run.state()
    task.sent_s = 0.0 if state == "RUNNING" else 4995.0
    recorded_by(run).asked.clear()
    run.cluster.client.forget()
    assert run.move_pending() == []
    assert task.running == (state == "RUNNING")
    assert set(recorded_by(run).asked) <= {"squeue"}


@pytest.mark.parametrize("described", [False, True])
def test_slots_of_a_run_are_those_of_its_own_sizes(tmp_path: Path, described: bool) -> None:
    run = dispatcher("", tmp_path, ready=2, kinds=("cpu",))
    run.site_sizes = described
    change_jobs(run, model=Rules({"work": {"cpu": ResourceRequest(2, 100, 0, 60)}}).models["work"])
    run.begin(run.state())
    (said,) = [event["pools"] for event in read_ledger(run.ledger.path)]
    of_site = {pool.name: pool.slots for pool in run.cluster.pools}
    assert (said["clive_cpu"][2] > of_site["clive_cpu"]) != described


def test_the_ledger_says_which_device_kinds_jobs_may_use(tmp_path: Path) -> None:
    run = dispatcher("", tmp_path, ready=2, kinds=("cpu",))
    run.begin(run.state())
    run.backoff.avoid(CLIVE_GPU, "refused", 5000.0, for_all=True)
    first, second = run.tasks
    run.round([first], [])
    assert [event["kinds"] for event in events(run, "run")] == [["cpu"]]
    assert [event["closed"] for event in events(run, "room")] == [{}]
    change_jobs(run, kinds=("gpu",))
    run.tasks[first].job = replace(run.tasks[first].job, kinds=("cpu",))
    run.round([second], [])
    assert [event["kinds"] for event in events(run, "kinds")] == [["cpu", "gpu"]]
    assert "clive gpu" in events(run, "room")[-1]["closed"]
