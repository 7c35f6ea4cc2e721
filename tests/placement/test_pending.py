"""Jobs that pend in vain: where they go, that they do not come back, and when they end."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity
from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    KINDS,
    Fixed,
    Kind,
    Place,
    Shape,
    Task,
)
from snakemake_scheduler_plugin_tilewright.placement.ledger import read_ledger
from tests.placement.dispatched import dispatcher, full, nodes, pending, with_nodes
from tests.support.placement_rules import CPU, GPU, account, room
from tests.support.recorded import LIMITS, USE, Recorded, details


def answer(run: Dispatcher, **answers: str) -> None:
    """Change what Slurm says from now on."""
    recorded = run.cluster.client.run
    assert isinstance(recorded, Recorded)
    recorded.answers |= {name.replace("_", "="): text for name, text in answers.items()}
    run.cluster.client.forget(limits=True)


def gpus_in_use(**used: int) -> str:
    """Return live use with so many GPUs of each account in use."""
    text = USE
    for name, most in (("clive", 3), ("maigan", 2), ("brusko", 1)):
        before = 1 if name == "clive" else 0
        text = text.replace(f"gres/gpu={most}({before})", f"gres/gpu={most}({used.get(name, 0)})")
    return text


def only_gpus(run: Dispatcher) -> list[str]:
    for task in run.tasks.values():
        task.job = replace(task.job, kinds=("gpu",))
    return list(run.tasks)


def test_what_made_a_job_move_is_where_it_goes(tmp_path: Path) -> None:
    run = full(dispatcher(pending(1, "QOSGrpGRES"), tmp_path, sent=1, ready=9))
    first, *others = only_gpus(run)
    assert run.move_pending() == [first]
    (move,) = [event for event in read_ledger(run.ledger.path) if event["event"] == "move"]
    assert run.failed(first).free
    answer(run, squeue="")
    places = run.round([*others, first], [])
    place = places[first]
    assert f"{place.account} {place.kind}" == move["sooner"]
    assert len(places) < 10  # there was not room for all


@pytest.mark.parametrize("reason", ["QOSGrpGRES", "AReasonOfTomorrow", "ReqNodeNotAvail"])
def test_a_moved_job_does_not_return(tmp_path: Path, reason: str) -> None:
    """Also where its first place is the only one with room by then."""
    run = full(dispatcher(pending(1, reason), tmp_path, sent=1, ready=0))
    (name,) = run.tasks
    run.tasks[name].sent_s = 4000.0
    assert run.move_pending() == [name]
    run.failed(name)
    run.avoided.clear()
    answer(run, squeue="", flags_qos=gpus_in_use(maigan=2, brusko=1), node=nodes(8))
    only_gpus(run)
    assert run.round([name], []) == {}
    assert run.why_waiting[name] == "it was moved, and no other place that takes it is free"
    answer(run, flags_qos=gpus_in_use(maigan=1, brusko=1))
    (place,) = run.round([name], []).values()
    assert (place.account, place.kind) == ("maigan", "gpu")


def test_a_job_that_another_account_takes_is_not_given_up_while_that_is_full(
    tmp_path: Path,
) -> None:
    reason = "QOSMaxWallDurationPerJobLimit"
    run = dispatcher(pending(3, reason), tmp_path, sent=3, ready=0)
    names = only_gpus(run)
    answer(run, flags_qos=gpus_in_use(maigan=2, brusko=1))
    assert run.move_pending() == names
    moves = [event for event in read_ledger(run.ledger.path) if event["event"] == "move"]
    assert [event.get("later") for event in moves] == [True] * 3
    assert not any(run.failed(name).give_up for name in names)
    answer(run, squeue="")
    assert run.round(names, []) == {}
    answer(run, flags_qos=gpus_in_use(brusko=1))
    assert {place.account for place in run.round(names, []).values()} == {"maigan"}


def test_a_job_longer_than_its_only_account_allows_now_is_sent_again_with_less_time(
    tmp_path: Path,
) -> None:
    run = dispatcher(pending(1, "QOSMaxWallDurationPerJobLimit"), tmp_path, sent=1, ready=0)
    (name,) = only_gpus(run)
    run.tasks[name].job = replace(run.tasks[name].job, fixed=Fixed("clive"))
    cut = LIMITS.replace("mem=812G|||||||", "mem=812G|||||||00:03:00")
    answer(run, sacctmgr=cut)
    assert run.move_pending() == [name]
    assert not run.failed(name).give_up
    answer(run, squeue="")
    (place,) = run.round([name], []).values()
    assert (place.account, place.shape.runtime_min) == ("clive", 3)


def test_a_spent_budget_closes_the_account_for_all_kinds(tmp_path: Path) -> None:
    run = dispatcher(pending(1, "QOSGrpCPUMinutesLimit"), tmp_path, sent=1, ready=6)
    first, *others = run.tasks
    answer(run, flags_qos=gpus_in_use(maigan=2, brusko=1), node=nodes(8, "DOWN"))
    assert run.move_pending() == [first]  # to CPUs of another account
    assert not run.failed(first).give_up
    answer(run, squeue="")
    placed = run.round([first, *others], [])
    assert placed
    assert "clive" not in {place.account for place in placed.values()}
    assert {key for key, one in run.avoided.items() if one.for_all} == {
        ("clive", "gpu"), ("clive", "cpu")
    }  # fmt: skip


@pytest.mark.parametrize(("tres", "closed"), [("cpu", KINDS), ("gres/gpu", ("gpu",))])
def test_a_job_that_a_budget_ends_keeps_its_time_and_goes_elsewhere(
    tmp_path: Path, tres: str, closed: tuple[Kind, ...]
) -> None:
    said = f"Job_is_at_or_exceeds_QOS_clive's_group_max_TRES({tres})_minutes_of_1_with_2"
    ended = pending(1, "").replace("PENDING", "TIMEOUT")
    run = dispatcher(ended, tmp_path, sent=1, ready=0)
    answer(run, scontrol=details("TIMEOUT", said, "0:0", "0:0"))
    (name,) = run.tasks
    found = run.failed(name)
    assert found.free
    assert (found.past.time, run.tasks[name].past.time) == (0, 0)
    assert {key for key, one in run.avoided.items() if one.for_all} == {
        ("clive", kind) for kind in closed
    }
    (place,) = run.round([name], []).values()
    assert (place.account, place.kind) not in run.avoided
    assert place.shape.runtime_min == 60


def test_a_job_whose_only_budget_is_spent_waits_and_that_is_said(tmp_path: Path) -> None:
    run = dispatcher(pending(1, "AssocGrpCPUMinutesLimit"), tmp_path, sent=1, ready=0)
    (task,) = run.tasks.values()
    task.job = replace(task.job, fixed=Fixed("clive"))
    task.sent_s = 4000.0
    assert run.move_pending() == []
    assert not task.refused
    (said,) = run.explain_pending()
    assert "the budget of its account or QOS is used up" in said
    assert "others" not in said


def test_a_ready_job_that_no_budget_can_end_waits_with_that_reason(tmp_path: Path) -> None:
    run = dispatcher("", tmp_path, sent=0, ready=1)
    (name,) = run.tasks
    spent = USE.replace(" GrpTRES=", " GrpTRESMins=cpu=600(599) GrpTRESRunMins=cpu=N(0) GrpTRES=")
    answer(run, flags_qos=spent)
    assert run.round([name], []) == {}
    assert run.why_waiting[name].startswith("the budgets of its accounts are too small")
    assert "0.0167 CPU-hours on clive" in run.why_waiting[name]


def test_a_job_that_used_its_moves_says_that_it_waits(tmp_path: Path) -> None:
    run = full(dispatcher(pending(1, "Priority"), tmp_path, sent=1, ready=0))
    (task,) = run.tasks.values()
    task.moves, task.sent_s = 3, 1000.0
    assert run.move_pending() == []
    (said,) = run.explain_pending()
    assert "it was moved 3 times and waits here, where it ends first" in said


def test_what_pends_while_its_nodes_have_room_is_not_said_to_wait_for_others(
    tmp_path: Path,
) -> None:
    run = with_nodes(dispatcher(pending(1, "Resources"), tmp_path, sent=1, ready=0), nodes(8))
    run.capacity()
    (said,) = run.explain_pending()
    assert "by Slurm's own numbers hpg-b200 has room for it" in said
    assert "go first" not in said


def test_two_runs_move_no_jobs_to_one_gpu(tmp_path: Path) -> None:
    def waits() -> Dispatcher:
        run = full(dispatcher(pending(1, "QOSGrpGRES"), tmp_path, sent=1, ready=0))
        only_gpus(run)
        answer(run, flags_qos=gpus_in_use(clive=3, maigan=1, brusko=1))
        return run

    first, second = waits(), waits()
    assert len(first.move_pending()) == 1
    (own,) = (tmp_path / "claims").glob("*.json")
    assert json.loads(own.read_text())[0]["tres"]["gres/gpu"] == 1
    own.rename(own.with_name("other-1.json"))  # as if another process had written it
    assert second.move_pending() == []
    own.with_name("other-1.json").unlink()
    assert len(second.move_pending()) == 1


def test_a_moved_job_keeps_its_place_from_the_others_of_its_run(tmp_path: Path) -> None:
    run = full(dispatcher(pending(1, "QOSGrpGRES"), tmp_path, sent=1, ready=9))
    first, *others = only_gpus(run)
    answer(run, flags_qos=gpus_in_use(clive=3, maigan=1, brusko=1))
    assert run.move_pending() == [first]
    assert run.round(others, []) == {}  # the one GPU of maigan is the moved job's
    run.failed(first)
    answer(run, squeue="")
    assert set(run.round([*others, first], [])) == {first}


def test_a_job_that_cannot_stay_goes_back_before_it_is_given_up(tmp_path: Path) -> None:
    run = dispatcher(pending(1, "InvalidQOS"), tmp_path, sent=1, ready=0)
    (name,) = only_gpus(run)
    task = run.tasks[name]
    task.left = frozenset({("maigan", "gpu"), ("brusko", "gpu")})
    answer(run, flags_qos=gpus_in_use(maigan=2, brusko=1))
    assert run.move_pending() == [name]
    assert not run.failed(name).give_up
    answer(run, squeue="", flags_qos=gpus_in_use(brusko=1))
    (place,) = run.round([name], []).values()
    assert place.account == "maigan"


PLACES: list[tuple[str, Kind]] = [(name, kind) for name in "abc" for kind in KINDS]
places = st.frozensets(st.sampled_from(PLACES))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PLACES), places, places, places, st.booleans())
def test_no_move_returns_before_nothing_else_takes_the_job(
    tmp_path: Path,
    here: tuple[str, Kind],
    left: frozenset[tuple[str, Kind]],
    full: frozenset[tuple[str, Kind]],
    invalid: frozenset[tuple[str, Kind]],
    anywhere: bool,
) -> None:
    run = dispatcher("", tmp_path, sent=1, ready=0)
    (task,) = run.tasks.values()
    shapes: dict[Kind, Shape] = {"gpu": GPU, "cpu": CPU}
    task.place = Place(*here[:1], None, here[1], here[1], shapes[here[1]], "pool")
    task.left = left
    capacity = replace(room(*map(account, "abc")), closed=dict.fromkeys(full, "full"),
                       invalid=frozenset(invalid))  # fmt: skip
    round_ = run.begin_round(capacity)
    best = round_.sooner_elsewhere(task, math.inf, anywhere=anywhere)
    fresh = {place for place in PLACES if place not in left | {here}}
    if best is None:
        assert not fresh - full
        return
    assert best[:2] != here
    assert best[:2] not in full
    assert best[:2] not in left or (anywhere and fresh <= invalid)
    task.bound, task.left = best[:2], left | {here}
    (start,) = placed_by(run, capacity, task)
    assert start == best[:2]


def placed_by(run: Dispatcher, capacity: Capacity, task: Task) -> list[tuple[str, Kind]]:
    """Return where a round puts a task that was moved."""
    task.place = None
    round_ = run.begin_round(capacity)
    round_.place([task], [], None)
    return [(found.place.account, found.place.kind) for found in round_.placements]


@pytest.mark.parametrize(
    "reason",
    [
        "QOSGrpBilling", "QOSGrpNodeLimit", "QOSGrpEnergy", "QOSGrpSubmitJobsLimit",
        "AssocGrpBilling", "AssocGrpCpuLimit", "AssocGrpJobsLimit", "AssocMaxJobsLimit",
        "QOSMaxBillingPerUser", "QOSMaxCpuPerUserLimit", "MaxCpuPerAccount", "QOSResourceLimit",
    ],
)  # fmt: skip
def test_where_a_limit_is_not_counted_slurms_reason_stands_and_the_job_moves(
    reason: str, tmp_path: Path
) -> None:
    run = with_nodes(dispatcher(pending(1, reason), tmp_path, sent=1, ready=2), nodes(8))
    first, *others = run.tasks
    run.capacity()
    (said,) = run.explain_pending()
    assert said.endswith(f"running jobs fill a limit of its account or QOS (Slurm: {reason})")
    assert run.move_pending() == [first]
    (move,) = [event for event in read_ledger(run.ledger.path) if event["event"] == "move"]
    assert move["sooner"] == "brusko gpu"
    assert run.failed(first).free
    answer(run, squeue="")
    placed = run.round([first, *others], [])
    assert len(placed) == 3
    assert "clive" not in {place.account for place in placed.values()}


@pytest.mark.parametrize("reason", ["QOSGrpBilling", "AssocGrpCpuLimit"])
def test_where_only_one_account_takes_a_job_it_waits_there(reason: str, tmp_path: Path) -> None:
    run = with_nodes(dispatcher(pending(1, reason), tmp_path, sent=1, ready=2), nodes(8))
    for task in run.tasks.values():
        task.job = replace(task.job, fixed=Fixed("clive"))
    assert run.move_pending() == []
    assert not run.avoided


@pytest.mark.parametrize("use", ["gres/gpu=3", "gres/gpu=N(1)", "gres/gpu=3(1),gres/shard=8(8)"])
def test_a_limit_counts_only_where_it_and_its_use_are_known(use: str, tmp_path: Path) -> None:
    """Slurm 22.05 names GPUs of the QOS also where those of the nodes are in the way."""
    for said, reason in ((USE, "busy"), (USE.replace("gres/gpu=3(1)", use), "uncounted")):
        limits = LIMITS.replace("clive|cpu=104,gres/gpu=3,", "clive|cpu=104,")
        run = dispatcher(pending(1, "QOSGrpGRES"), tmp_path, sent=1, ready=0)
        answer(run, flags_qos=said, sacctmgr=limits)
        run.capacity()
        (stuck,) = run.pending._stuck(run.tasks.values())
        assert stuck.why.obstacle == reason
