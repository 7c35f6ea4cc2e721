"""Limits that a site sets on one account, beside a run that is never offered that account."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.on_slurm.labmates import fill, hold_the_gpus_of
from tests.support.cluster_runs import ClusterRun, dump
from tests.support.site_limits import LIMITS, Limit
from tests.support.slurm_cluster import Cluster, wait_for
from tests.support.slurm_fixtures import AT_NIGHT

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800), AT_NIGHT]

#: Lengths of a job by which two equal runs differ: 6 s of 20 s on two busy cores.
JITTER = 0.3
JOBS: dict[str, Any] = {"jobs": 6, "seconds": "9,10", "nominal_s": 20}


@pytest.fixture
def make(quiet_slurm: Cluster, tmp_path: Path) -> Iterator[Callable[..., ClusterRun]]:
    made: list[ClusterRun] = []

    def run(name: str, *allowed: str, **of: Any) -> ClusterRun:
        folder = tmp_path / name
        folder.mkdir()
        site = {"allowed": list(allowed), "slowdown": 1.1, **of.pop("site", {})}
        made.append(ClusterRun(quiet_slurm, folder).prepare(site=site, **{**JOBS, **of}))
        return made[-1]

    yield run
    for one in made:
        one.kill()


def lengths(run: ClusterRun) -> float:
    """Return how long a run took, from its begin to its last job's end, in lengths of its jobs.

    In seconds two equal runs took 86 and 60 where other work came and went beside them.
    """
    (begun_s,) = [event["time_s"] for event in run.events if event["event"] == "run"]
    times = [(job.start, job.end) for job in run.jobs() if job.start and job.end]
    median_s = statistics.median(end - start for start, end in times)
    return float((max(end for _, end in times) - begun_s) / median_s)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_a_limit_of_one_account_costs_no_more_than_its_absence(
    limit: Limit, make: Callable[..., ClusterRun], quiet_slurm: Cluster
) -> None:
    limit.set(quiet_slurm)
    try:
        offered = make("offered", "clive", "maigan")
        offered.run()
        never = make("never", "maigan")
        never.run()
    finally:
        limit.take_back(quiet_slurm)
    took, least = lengths(offered), lengths(never)
    sys.stderr.write(f"{limit.name}: {took:.2f} lengths of a job, never offered {least:.2f}\n")
    offered.check_outputs(set(range(6)))
    assert {job.account for job in offered.jobs()} == {"maigan"}, dump(offered.events)
    assert not offered.moves()
    assert not offered.causes()
    assert took <= 1.15 * least + JITTER


def test_jobs_that_pend_where_their_account_is_denied_then_go_elsewhere(
    make: Callable[..., ClusterRun], quiet_slurm: Cluster
) -> None:
    limit = Limit("denied", (), ("DenyAccounts=clive",), ("DenyAccounts=",))
    theirs = fill(quiet_slurm)
    run = make("denied", "clive", "maigan", jobs=4, seconds="3,4", site={"patience_s": 20})
    process = run.start()
    try:
        wait_for(lambda: len(run.pending()) == 4, 90, "four pending jobs")
        limit.set(quiet_slurm)
        wait_for(lambda: len(run.moves()) >= 1, 60, "a move")
        quiet_slurm.run(["scancel", *map(str, theirs)])
        assert run.finish(process) == 0
    finally:
        run.kill()
        limit.take_back(quiet_slurm)
    run.check_outputs(set(range(4)))
    moves = [event for event in run.events if event["event"] == "move"]
    assert {event["reason"].split(" not ")[0] for event in moves} == {"Job's account"}, moves
    assert max(run.moves().values()) == 1
    assert {job.account for job in run.jobs() if job.state == "COMPLETED"} == {"maigan"}


def test_a_budget_that_is_spent_in_mid_run_closes_the_account(
    make: Callable[..., ClusterRun], quiet_slurm: Cluster
) -> None:
    """Slurm ends the jobs that run there; they are tried again elsewhere with the same time."""
    run = make("spent", "clive", "maigan", jobs=8, seconds="45,46")
    process = run.start()
    try:
        run.wait_running(7)
        theirs = quiet_slurm.sbatch("labmate", "-A", "clive", "-c", "32", "--mem=1G",
                                    command="sleep 5")  # fmt: skip
        quiet_slurm.wait_job(theirs, 60)
        quiet_slurm.set_qos("clive", "GrpTRESMins=cpu=1")
        spent_s = time.time()
        assert run.finish(process, 300) == 0
    finally:
        run.kill()
        quiet_slurm.restore_limits()
    run.check_outputs(set(range(8)))
    assert "budget" in run.causes() <= {"budget", "cancelled"}, dump(run.events)
    places = [event for event in run.events if event["event"] == "place"]
    assert {event["runtime_min"] for event in places} == {5}
    later = [event for event in places if event["time_s"] > spent_s + 15]
    assert {event["account"] for event in later} == {"maigan"}, dump(run.events)


def test_a_maintenance_that_begins_before_a_job_could_end_gets_none(
    make: Callable[..., ClusterRun], quiet_slurm: Cluster
) -> None:
    quiet_slurm.run(["scontrol", "create", "reservation", "ReservationName=care", "Nodes=c1,c2",
                     "StartTime=now+4minutes", "Duration=60", "Flags=MAINT",
                     "Users=labmate"])  # fmt: skip
    run = make("care", "clive", "maigan", jobs=6, seconds="3,4")
    try:
        run.run()
    finally:
        quiet_slurm.run(["scontrol", "delete", "ReservationName=care"])
    run.check_outputs(set(range(6)))
    assert {job.node for job in run.jobs()} == {"b1"}, dump(run.events)
    assert not run.moves()
    assert not run.causes()


def test_a_job_that_another_account_takes_waits_until_that_has_room(
    make: Callable[..., ClusterRun], quiet_slurm: Cluster
) -> None:
    """MaxWall is cut below three that pend, while labmates fill the other account."""
    theirs = hold_the_gpus_of(quiet_slurm, "maigan")
    able = {"cpus": 8, "mem_mb": 180_000, "runtime_min": 5}
    never = {"cpus": 129, "mem_mb": 48_000, "runtime_min": 5}
    run = make("cut", "clive", "maigan", jobs=3, seconds="5,5", gpu_job=able, cpu_job=never,
               site={"patience_s": 4})  # fmt: skip
    process = run.start()
    try:
        wait_for(lambda: len(run.pending()) == 3, 90, "three pending jobs")
        quiet_slurm.set_qos("clive", "MaxWall=1")
        wait_for(lambda: run.moves(), 60, "a move")
        time.sleep(15)
        quiet_slurm.run(["scancel", *map(str, theirs)])
        assert run.finish(process) == 0, run.log[-3000:]
    finally:
        run.kill()
        quiet_slurm.restore_limits()
    run.check_outputs(set(range(3)))
    assert not any(event.get("give_up") for event in run.events), dump(run.events)
    assert {job.account for job in run.jobs() if job.state == "COMPLETED"} == {"maigan"}
