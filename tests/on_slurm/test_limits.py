"""Limits that a site sets on one account, options in the environment, what is not counted."""

from __future__ import annotations

import time

import pytest

from tests.on_slurm.labmates import running
from tests.support.cluster_runs import ClusterRun, dump
from tests.support.site_limits import LIMITS, Limit
from tests.support.slurm_fixtures import AT_NIGHT

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800), AT_NIGHT]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_an_account_with_a_limit_that_takes_no_job_gets_none(limit: Limit, run: ClusterRun) -> None:
    """What that costs beside a run that is never offered the account: benchmarks/situations.py."""
    limit.set(run.slurm)
    try:
        run.prepare(jobs=6, light=True, seconds="9,10", site={"slowdown": 1.1}).run()
    finally:
        limit.take_back(run.slurm)
    run.check_outputs(*range(6))
    assert {job.account for job in run.jobs()} == {"maigan"}, dump(run.events)
    run.check_calm()


def test_a_budget_that_is_spent_in_mid_run_closes_the_account(run: ClusterRun) -> None:
    """Slurm ends the jobs that run there; they are tried again elsewhere with the same time."""
    process = run.prepare(jobs=8, light=True, seconds="45,46", site={"slowdown": 1.1}).start()
    run.wait_running(7)
    theirs = run.slurm.sbatch("labmate", "-A", "clive", "-c", "32", "--mem=1G", command="sleep 5")
    run.slurm.wait_job(theirs, 60)
    run.slurm.set_qos("clive", "GrpTRESMins=cpu=1")
    spent_s = time.time()
    assert run.finish(process, 300) == 0
    run.check_outputs(*range(8))
    assert "budget" in run.causes() <= {"budget", "cancelled"}, dump(run.events)
    places = [event for event in run.events if event["event"] == "place"]
    assert {event["runtime_min"] for event in places} == {5}
    later = [event for event in places if event["time_s"] > spent_s + 15]
    assert {event["account"] for event in later} == {"maigan"}, dump(run.events)


def test_what_a_user_runs_besides_counts_and_options_in_the_environment_change_nothing(
    run: ClusterRun,
) -> None:
    run.slurm.set_qos("clive", "MaxTRESPerUser=cpu=16", "MaxJobsPerUser=9")
    own = run.slurm.sbatch("root", "-A", "clive", "-c", "16", "--mem=1G", command="sleep 900")
    running(run.slurm, own)
    run.env |= {"SBATCH_QOS": "clive-b", "SBATCH_ACCOUNT": "brusko", "SBATCH_TIMELIMIT": "1"}
    run.env |= {"SQUEUE_ACCOUNT": "brusko", "SQUEUE_PARTITION": "none", "SACCT_FORMAT": "User"}
    run.prepare(jobs=6, light=True, seconds="9,10", site={"patience_s": 20, "slowdown": 1.1}).run()
    run.check_outputs(*range(6))
    jobs = run.check_placed({"maigan"})
    assert {job.qos for job in jobs} == {"maigan"}, jobs
    assert not run.moves()
    assert "is a lower bound" not in run.log
    names = "SACCT_FORMAT, SBATCH_ACCOUNT, SBATCH_QOS, SBATCH_TIMELIMIT, SQUEUE_ACCOUNT"
    assert run.log.count(f"this run takes {names}, SQUEUE_PARTITION out of its environment") == 1


def test_jobs_that_pend_for_a_limit_that_is_not_counted_go_elsewhere(run: ClusterRun) -> None:
    run.slurm.set_qos("clive", "GrpTRES=billing=8")
    run.prepare(jobs=6, light=True, seconds="9,10", site={"patience_s": 8, "slowdown": 1.1})
    try:
        run.run()
    finally:
        run.slurm.set_qos("clive", "GrpTRES=billing=-1")
    run.check_outputs(*range(6))
    reasons = {e["reason"].split(" on ")[0] for e in run.events if e["event"] == "move"}
    assert reasons == {"QOSGrpBilling"}, dump(run.events)
    assert max(run.moves().values()) == 1
    assert "a reservation may be in the way" not in run.log
    assert {job.account for job in run.jobs() if job.state == "COMPLETED"} == {"clive", "maigan"}
