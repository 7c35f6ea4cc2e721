"""Jobs that pend in vain: where they go, that they do not come back, and when they end."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher
from snakemake_scheduler_plugin_tilewright.placement.jobs import KINDS, Fixed, Kind, Place
from snakemake_scheduler_plugin_tilewright.placement.workload import GpuSlots
from tests.placement.dispatched import (
    FULL,
    answer,
    change_jobs,
    dispatcher,
    events,
    gpus_in_use,
    nodes,
    pending,
    pends,
)
from tests.support.placement_rules import CPU, GPU, account, room
from tests.support.recorded import LIMITS, USE, details

GONE = {"squeue": ""}
#: One GPU of maigan is all that is free.
ONE_FREE = gpus_in_use(clive=3, maigan=1, brusko=1)
#: No account but clive has one.
OTHERS_FULL = gpus_in_use(maigan=2, brusko=1)
TOO_LONG = "QOSMaxWallDurationPerJobLimit"


def closed_for_all(run: Dispatcher) -> set[tuple[str, Kind]]:
    return {key for key, one in run.avoided.items() if one.for_all}


@pytest.mark.parametrize("reason", ["QOSGrpGRES", "AReasonOfTomorrow", "ReqNodeNotAvail"])
def test_a_moved_job_does_not_return(tmp_path: Path, reason: str) -> None:
    """Also where its first place is the only one with room by then."""
    run = pends(tmp_path, reason, 1, 0, FULL)
    (name,) = run.tasks
    run.tasks[name].sent_s = 4000.0
    assert run.move_pending() == [name]
    run.failed(name)
    run.avoided.clear()
    answer(run, OTHERS_FULL | nodes(8) | GONE)
    change_jobs(run, kinds=("gpu",))
    assert run.round([name], []) == {}
    assert run.why_waiting[name] == "it was moved, and no other place that takes it is free"
    answer(run, gpus_in_use(maigan=1, brusko=1))
    (place,) = run.round([name], []).values()
    assert (place.account, place.kind) == ("maigan", "gpu")


def test_a_job_is_not_given_up_while_the_other_account_is_full(tmp_path: Path) -> None:
    run = pends(tmp_path, TOO_LONG, 3, 0, OTHERS_FULL, kinds=("gpu",))
    names = list(run.tasks)
    assert run.move_pending() == names
    assert [event.get("later") for event in events(run, "move")] == [True] * 3
    assert not any(run.failed(name).give_up for name in names)
    answer(run, GONE)
    assert run.round(names, []) == {}
    answer(run, gpus_in_use(brusko=1))
    assert {place.account for place in run.round(names, []).values()} == {"maigan"}


def test_a_job_that_cannot_stay_goes_back_before_it_is_given_up(tmp_path: Path) -> None:
    run = pends(tmp_path, "InvalidQOS", 1, 0, OTHERS_FULL, kinds=("gpu",))
    (name,) = run.tasks
    run.tasks[name].left = frozenset({("maigan", "gpu"), ("brusko", "gpu")})
    assert run.move_pending() == [name]
    assert not run.failed(name).give_up
    answer(run, gpus_in_use(brusko=1) | GONE)
    (place,) = run.round([name], []).values()
    assert place.account == "maigan"


def test_a_job_that_became_too_long_is_sent_again_with_less_time(tmp_path: Path) -> None:
    cut = {"sacctmgr": LIMITS.replace("mem=812G|||||||", "mem=812G|||||||00:03:00")}
    run = pends(tmp_path, TOO_LONG, kinds=("gpu",), fixed=Fixed("clive"))
    (name,) = run.tasks
    answer(run, cut)
    assert run.move_pending() == [name]
    assert not run.failed(name).give_up
    answer(run, GONE)
    (place,) = run.round([name], []).values()
    assert (place.account, place.shape.runtime_min) == ("clive", 3)


def test_a_spent_budget_closes_the_account_for_all_kinds(tmp_path: Path) -> None:
    run = pends(tmp_path, "QOSGrpCPUMinutesLimit", 1, 6, OTHERS_FULL | nodes(8, "DOWN"))
    first, *others = run.tasks
    assert run.move_pending() == [first]  # to CPUs of another account
    assert not run.failed(first).give_up
    answer(run, GONE)
    accounts = {place.account for place in run.round([first, *others], []).values()}
    assert accounts
    assert "clive" not in accounts
    assert closed_for_all(run) == {("clive", "gpu"), ("clive", "cpu")}


@pytest.mark.parametrize(("tres", "closed"), [("cpu", KINDS), ("gres/gpu", ("gpu",))])
def test_what_a_budget_ends_moves(tmp_path: Path, tres: str, closed: tuple[Kind, ...]) -> None:
    said = f"Job_is_at_or_exceeds_QOS_clive's_group_max_TRES({tres})_minutes_of_1_with_2"
    run = dispatcher(pending(1, "").replace("PENDING", "TIMEOUT"), tmp_path, sent=1)
    answer(run, scontrol=details("TIMEOUT", said, "0:0", "0:0"))
    (name,) = run.tasks
    found = run.failed(name)
    assert (found.free, found.past.time, run.tasks[name].past.time) == (True, 0, 0)
    assert closed_for_all(run) == {("clive", kind) for kind in closed}
    (place,) = run.round([name], []).values()
    assert (place.account, place.kind) not in run.avoided
    assert place.shape.runtime_min == 60


def test_a_ready_job_that_no_budget_can_end_waits_with_that_reason(tmp_path: Path) -> None:
    spent = USE.replace(" GrpTRES=", " GrpTRESMins=cpu=600(599) GrpTRESRunMins=cpu=N(0) GrpTRES=")
    run = dispatcher("", tmp_path, 0, 1, {"flags=qos": spent})
    (name,) = run.tasks
    assert run.round([name], []) == {}
    assert run.why_waiting[name].startswith("the budgets of its accounts are too small")
    assert "0.0167 CPU-hours on clive" in run.why_waiting[name]


@pytest.mark.parametrize(
    ("reason", "fixed", "moves", "answers", "part", "none"),
    [
        ("AssocGrpCPUMinutesLimit", "clive", 0, {},
         "the budget of its account or QOS is used up", "others"),
        ("Priority", None, 3, FULL,
         "it was moved 3 times and waits here, where it ends first", "has room"),
        ("Resources", None, 3, nodes(8),
         "by Slurm's own numbers hpg-b200 has room for it", "go first"),
    ],
    ids=["a spent budget", "moves used up", "nodes have room"],
)  # fmt: skip
def test_why_a_job_waits_where_it_is_is_said(
    tmp_path: Path, reason: str, fixed: str | None, moves: int, answers: dict[str, str],
    part: str, none: str,
) -> None:  # fmt: skip
    run = pends(tmp_path, reason, 1, 0, answers, fixed=Fixed(fixed))
    (task,) = run.tasks.values()
    task.moves, task.sent_s = moves, 1000.0
    assert (run.move_pending(), task.refused) == ([], "")
    (said,) = run.explain_pending()
    assert part in said
    assert none not in said


def test_two_runs_move_no_jobs_to_one_gpu(tmp_path: Path) -> None:
    first, second = (
        pends(tmp_path, "QOSGrpGRES", 1, 0, ONE_FREE, kinds=("gpu",)) for _ in range(2)
    )
    assert len(first.move_pending()) == 1
    (own,) = (tmp_path / "claims").glob("*.json")
    assert json.loads(own.read_text())[0]["tres"]["gres/gpu"] == 1
    other = own.rename(own.with_name("other-1.json"))  # as if another process had written it
    assert second.move_pending() == []
    other.unlink()
    assert len(second.move_pending()) == 1


def test_a_moved_job_keeps_its_place_from_the_others_of_its_run(tmp_path: Path) -> None:
    run = pends(tmp_path, "QOSGrpGRES", 1, 9, ONE_FREE, kinds=("gpu",))
    first, *others = run.tasks
    assert run.move_pending() == [first]
    assert run.round(others, []) == {}  # the one GPU of maigan is the moved job's
    run.failed(first)
    answer(run, GONE)
    assert set(run.round([*others, first], [])) == {first}


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
    run = dispatcher("", tmp_path, sent=1)
    (task,) = run.tasks.values()
    name, kind = here
    task.place = Place(name, None, kind, kind, GPU if kind == "gpu" else CPU, "pool")
    task.left = left
    capacity = replace(room(*map(account, "abc")), closed=dict.fromkeys(full, "full"),
                       invalid=frozenset(invalid))  # fmt: skip
    best = run.begin_round(capacity).sooner_elsewhere(task, math.inf, anywhere=anywhere)
    fresh = {place for place in PLACES if place not in left | {here}}
    if best is None:
        assert not fresh - full
        return
    assert best[:2] not in full | {here}
    assert best[:2] not in left or (anywhere and fresh <= invalid)
    task.place, task.bound, task.left = None, best[:2], left | {here}
    again = run.begin_round(capacity)
    again.place([task], [], GpuSlots())
    assert [(one.place.account, one.place.kind) for one in again.placements] == [best[:2]]


@pytest.mark.parametrize(
    "reason",
    [
        "QOSGrpBilling", "QOSGrpNodeLimit", "QOSGrpEnergy", "QOSGrpSubmitJobsLimit",
        "AssocGrpBilling", "AssocGrpCpuLimit", "AssocGrpJobsLimit", "AssocMaxJobsLimit",
        "QOSMaxBillingPerUser", "QOSMaxCpuPerUserLimit", "MaxCpuPerAccount", "QOSResourceLimit",
    ],
)  # fmt: skip
def test_where_a_limit_is_not_counted_the_job_moves(reason: str, tmp_path: Path) -> None:
    run = pends(tmp_path, reason, 1, 2, nodes(8))
    first, *others = run.tasks
    run.capacity()
    (said,) = run.explain_pending()
    assert said.endswith(f"running jobs fill a limit of its account or QOS (Slurm: {reason})")
    assert run.move_pending() == [first]
    assert [move["sooner"] for move in events(run, "move")] == ["brusko gpu"]
    assert run.failed(first).free
    answer(run, GONE)
    accounts = [place.account for place in run.round([first, *others], []).values()]
    assert (len(accounts), "clive" in accounts) == (3, False)
    alone = pends(tmp_path / "alone", reason, 1, 2, nodes(8), fixed=Fixed("clive"))
    assert alone.move_pending() == []  # where only one account takes it
    assert not alone.avoided


@pytest.mark.parametrize("use", ["gres/gpu=3", "gres/gpu=N(1)", "gres/gpu=3(1),gres/shard=8(8)"])
def test_a_limit_counts_only_where_it_and_its_use_are_known(use: str, tmp_path: Path) -> None:
    """Slurm 22.05 names GPUs of the QOS also where those of the nodes are in the way."""
    for said, reason in ((USE, "busy"), (USE.replace("gres/gpu=3(1)", use), "uncounted")):
        limits = LIMITS.replace("clive|cpu=104,gres/gpu=3,", "clive|cpu=104,")
        run = pends(tmp_path, "QOSGrpGRES")
        answer(run, {"flags=qos": said, "sacctmgr": limits})
        run.capacity()
        (stuck,) = run.pending._stuck(run.tasks.values())
        assert stuck.why.obstacle == reason
