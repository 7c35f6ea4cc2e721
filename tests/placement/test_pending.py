"""Jobs that pend in vain: where they go, that they do not come back, and when they end."""

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.cluster.limits import targets_of_limit
from snakemake_scheduler_plugin_tilewright.cluster.request import KINDS, DeviceKind, Target
from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher
from snakemake_scheduler_plugin_tilewright.placement.jobs import Assignment, UserOverrides
from snakemake_scheduler_plugin_tilewright.placement.move import sooner_elsewhere
from snakemake_scheduler_plugin_tilewright.placement.workload import GpuSlots
from tests.placement.dispatched import (
    CLIVE_GPU,
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
from tests.support.placement_rules import CPU, GPU, account, partition, room
from tests.support.recorded import LIMITS, USE, details, queue_line

GONE = {"squeue": ""}
#: One GPU of maigan is all that is free.
ONE_FREE = gpus_in_use(clive=3, maigan=1, brusko=1)
#: No account but clive has one.
OTHERS_FULL = gpus_in_use(maigan=2, brusko=1)
TOO_LONG = "QOSMaxWallDurationPerJobLimit"


def closed_for_all(run: Dispatcher) -> set[tuple[str, DeviceKind]]:
    return {(to.account, to.device) for to, one in run.backoff.items() if one.for_all}


@pytest.mark.parametrize("reason", ["QOSGrpGRES", "AReasonOfTomorrow", "ReqNodeNotAvail"])
def test_a_moved_job_does_not_return(tmp_path: Path, reason: str) -> None:
    """Also where its first place is the only one with room by then."""
    run = pends(tmp_path, reason, 1, 0, FULL)
    (name,) = run.tasks
    run.tasks[name].sent_s = 4000.0
    assert run.move_pending() == [name]
    run.failed(name)
    run.backoff.clear()
    answer(run, OTHERS_FULL | nodes(8) | GONE)
    change_jobs(run, kinds=("gpu",))
    assert run.round([name], []) == {}
    assert run.why_waiting[name].startswith(
        ("no account has a GPU slot", "no slot is free", "every")
    )
    answer(run, gpus_in_use(maigan=1, brusko=1))
    (place,) = run.round([name], []).values()
    assert (place.target.account, place.target.device) == ("maigan", "gpu")


def test_a_job_is_not_given_up_while_the_other_account_is_full(tmp_path: Path) -> None:
    run = pends(tmp_path, TOO_LONG, 3, 0, OTHERS_FULL, kinds=("gpu",))
    names = list(run.tasks)
    assert run.move_pending() == names
    assert [event.get("later") for event in events(run, "move")] == [True] * 3
    assert not any(run.failed(name).give_up for name in names)
    answer(run, GONE)
    assert run.round(names, []) == {}
    answer(run, gpus_in_use(brusko=1))
    assert {place.target.account for place in run.round(names, []).values()} == {"maigan"}


def test_a_job_that_cannot_stay_goes_back_before_it_is_given_up(tmp_path: Path) -> None:
    run = pends(tmp_path, "InvalidQOS", 1, 0, OTHERS_FULL, kinds=("gpu",))
    (name,) = run.tasks
    others = (replace(CLIVE_GPU, account=one, qos=one) for one in ("maigan", "brusko"))
    run.tasks[name].excluded_targets = frozenset(others)
    assert run.move_pending() == [name]
    assert not run.failed(name).give_up
    answer(run, gpus_in_use(brusko=1) | GONE)
    (place,) = run.round([name], []).values()
    assert place.target.account == "maigan"


def test_a_job_that_became_too_long_is_sent_again_with_less_time(tmp_path: Path) -> None:
    cut = {"sacctmgr": LIMITS.replace("mem=812G|||||||", "mem=812G|||||||00:03:00")}
    run = pends(tmp_path, TOO_LONG, kinds=("gpu",), overrides=UserOverrides("clive"))
    (name,) = run.tasks
    answer(run, cut)
    assert run.move_pending() == [name]
    assert not run.failed(name).give_up
    answer(run, GONE)
    (place,) = run.round([name], []).values()
    assert (place.target.account, place.request.runtime_min) == ("clive", 3)


def test_a_spent_budget_closes_the_account_for_all_kinds(tmp_path: Path) -> None:
    run = pends(tmp_path, "QOSGrpCPUMinutesLimit", 1, 6, OTHERS_FULL | nodes(8, "DOWN"))
    first, *others = run.tasks
    assert run.move_pending() == [first]  # to CPUs of another account
    assert not run.failed(first).give_up
    answer(run, GONE)
    accounts = {place.target.account for place in run.round([first, *others], []).values()}
    assert accounts
    assert "clive" not in accounts
    assert closed_for_all(run) == {("clive", "gpu"), ("clive", "cpu")}


@pytest.mark.parametrize(("tres", "closed"), [("cpu", KINDS), ("gres/gpu", ("gpu",))])
def test_what_a_budget_ends_moves(
    tmp_path: Path, tres: str, closed: tuple[DeviceKind, ...]
) -> None:
    said = f"Job_is_at_or_exceeds_QOS_clive's_group_max_TRES({tres})_minutes_of_1_with_2"
    run = dispatcher(pending(1, "").replace("PENDING", "TIMEOUT"), tmp_path, sent=1)
    answer(run, scontrol=details("TIMEOUT", said, "0:0", "0:0"))
    (name,) = run.tasks
    found = run.failed(name)
    assert (found.free, found.history.time, run.tasks[name].history.time) == (True, 0, 0)
    assert closed_for_all(run) == {("clive", kind) for kind in closed}
    (place,) = run.round([name], []).values()
    assert place.target not in run.backoff
    assert place.request.runtime_min == 60


def test_a_ready_job_that_no_budget_can_end_waits_with_that_reason(tmp_path: Path) -> None:
    spent = USE.replace(" GrpTRES=", " GrpTRESMins=cpu=600(599) GrpTRESRunMins=cpu=N(0) GrpTRES=")
    run = dispatcher("", tmp_path, 0, 1, {"flags=qos": spent})
    (name,) = run.tasks
    assert run.round([name], []) == {}
    assert run.why_waiting[name].startswith("no account's budget covers its time limit")
    assert "0.0167 CPU-hours on clive" in run.why_waiting[name]


@pytest.mark.parametrize(
    ("reason", "fixed", "moves", "answers", "part", "none"),
    [
        ("AssocGrpCPUMinutesLimit", "clive", 0, {},
         "a budget of its account or QOS is used up", "others"),
        ("Priority", None, 3, FULL,
         "it was moved 3 times and waits here, where it ends first", "has room"),
        ("Resources", None, 3, nodes(8), "no node has room for it yet", "reserved"),
    ],
    ids=["a spent budget", "moves used up", "nodes said to be free"],
)  # fmt: skip
def test_why_a_job_waits_where_it_is_is_said(
    tmp_path: Path, reason: str, fixed: str | None, moves: int, answers: dict[str, str],
    part: str, none: str,
) -> None:  # fmt: skip
    run = pends(tmp_path, reason, 1, 0, answers, overrides=UserOverrides(fixed))
    (task,) = run.tasks.values()
    task.moves, task.sent_s = moves, 1000.0
    assert (run.move_pending(), task.refused) == ([], "")
    (said,) = run.explain_pending()
    assert part in said
    assert none not in said


def test_moved_jobs_go_before_others_and_no_more_are_until_they_are_ready(
    tmp_path: Path,
) -> None:
    run = pends(tmp_path, "QOSGrpGRES", 2, 9, ONE_FREE, kinds=("gpu",))
    first, second, *others = run.tasks
    assert run.move_pending() == [first]  # to the one GPU of maigan
    assert run.move_pending() == []
    run.failed(first)
    answer(run, GONE)
    assert set(run.round([*others, first], [])) == {first}
    assert second in run.tasks


PLACES = [Target(name, name, kind[0], kind) for name in "abc" for kind in KINDS]
places = st.frozensets(st.sampled_from(PLACES))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PLACES), places, places, places, st.booleans())
def test_no_moved_job_returns_before_nothing_else_takes_it(
    tmp_path: Path,
    here: Target,
    excluded: frozenset[Target],
    full: frozenset[Target],
    invalid: frozenset[Target],
    anywhere: bool,
) -> None:
    run = dispatcher("", tmp_path, sent=1)
    (task,) = run.tasks.values()
    task.assignment = Assignment(here, GPU if here.device == "gpu" else CPU)
    task.excluded_targets = excluded
    state = replace(room(*map(account, "abc")), closed=dict.fromkeys(full, "full"),
                    invalid=frozenset(invalid))  # fmt: skip
    best = sooner_elsewhere(run.begin_round(state), task, math.inf, anywhere=anywhere)
    fresh = {target for target in PLACES if target not in excluded | {here}}
    if best is None:
        assert not fresh - full
        return
    target, _ = best
    assert target not in full | {here}
    assert target not in excluded or (anywhere and fresh <= invalid)
    task.assignment, task.excluded_targets = None, (excluded | {here}) - {target}
    again = run.begin_round(state)
    again.place([task], [], GpuSlots())
    (assignment,) = again.assignments.values()
    assert assignment.target not in full
    assert assignment.target != here or fresh <= invalid


@pytest.mark.parametrize("reason", ["QOSGrpBilling", "MaxCpuPerAccount", "AReasonOfTomorrow"])
def test_a_limit_closes_its_place_until_a_job_starts_there(reason: str, tmp_path: Path) -> None:
    """Also where only one account takes the job, and where Slurm's numbers leave it room."""
    run = pends(tmp_path, reason, 1, 2, nodes(8), overrides=UserOverrides("clive"), kinds=("gpu",))
    first, *others = run.tasks
    assert run.move_pending() == []
    assert run.round(others, []) == {}
    (said,) = run.explain_pending()
    assert said.endswith(f"no more such jobs go to clive until one starts there (Slurm: {reason})")
    run.clock = lambda: 5010.0
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(5005))
    answer(run, squeue=queue_line(JobID="20", State="RUNNING", Account="clive", StartTime=start,
                                  WorkDir="/data/run", Comment=first))  # fmt: skip
    assert len(run.round(others, [])) == 2
    assert not run.backoff


GPUS_AND_CPUS: tuple[tuple[str, DeviceKind], ...] = (("g", "gpu"), ("g", "cpu"), ("c", "cpu"))
HERE = Target("a", "a", "g", "gpu")
OTHERS = [
    Target(account, qos, where, device)
    for account, qos in (("a", "a"), ("a", "long"), ("b", "a"))
    for where, device in GPUS_AND_CPUS
]


@pytest.mark.parametrize(
    ("reason", "qos_of_partition", "limits"),
    [
        ("QOSGrpCpuLimit", None, "a/a/g/gpu a/a/g/cpu a/a/c/cpu b/a/g/gpu b/a/g/cpu b/a/c/cpu"),
        ("QOSGrpCpuLimit", "part", "a/a/g/gpu a/a/g/cpu b/a/g/gpu b/a/g/cpu"),
        ("QOSMaxGRESPerUser", None, "a/a/g/gpu b/a/g/gpu"),
        ("AssocGrpGRES", "part", "a/a/g/gpu a/long/g/gpu"),
        ("MaxNodePerAccount", None,
         "a/a/g/gpu a/a/g/cpu a/a/c/cpu a/long/g/gpu a/long/g/cpu a/long/c/cpu"),
        ("AReasonOfTomorrow", None, "a/a/g/gpu a/a/g/cpu"),
    ],
)  # fmt: skip
def test_what_a_limit_bounds(reason: str, qos_of_partition: str | None, limits: str) -> None:
    where = replace(partition("g"), qos=qos_of_partition)
    found = targets_of_limit(reason, HERE, where, OTHERS)
    wanted = {tuple(one.split("/")) for one in limits.split()}
    assert {(to.account, to.qos, to.partition, to.device) for to in found} == wanted
