"""What administrators do to a cluster while a run is on it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.on_slurm.labmates import fill
from tests.support.cluster_runs import ClusterRun, dump
from tests.support.slurm_cluster import Cluster, peak_use, wait_for
from tests.support.slurm_fixtures import AT_NIGHT

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800), AT_NIGHT]


@pytest.fixture
def run(quiet_slurm: Cluster, tmp_path: Path) -> Iterator[ClusterRun]:
    made = ClusterRun(quiet_slurm, tmp_path)
    yield made
    made.kill()
    for partition in ("hpg-default", "hpg-b200"):
        quiet_slurm.run(["scontrol", "update", f"PartitionName={partition}", "State=UP",
                         "AllowAccounts=ALL"])  # fmt: skip
    with contextlib.suppress(TimeoutError):
        quiet_slurm.cancel_all(10)


def test_a_partition_is_taken_down_and_brought_back(run: ClusterRun) -> None:
    few = {"cpus": 32, "mem_mb": 48_000}
    process = run.prepare(jobs=12, seconds="25,40", cpu_job=few).start()
    run.wait_running(5)
    run.slurm.run(["scontrol", "update", "PartitionName=hpg-default", "State=DOWN"])
    wait_for(lambda: sum(job.ended for job in run.jobs()) >= 8, 120, "jobs on GPUs go on")
    run.slurm.run(["scontrol", "update", "PartitionName=hpg-default", "State=UP"])
    assert run.finish(process) == 0
    run.check_outputs(set(range(12)))
    assert not run.causes() - {"cancelled"}, dump(run.events)


def test_a_time_limit_is_cut_and_a_job_is_requeued(run: ClusterRun) -> None:
    process = run.prepare(jobs=4, seconds="70,90").start()
    run.wait_running(4)
    first, second, *_ = sorted(job.id for job in run.jobs())
    run.slurm.run(["scontrol", "update", f"JobId={first}", "TimeLimit=1"])
    run.slurm.run(["scontrol", "requeue", str(second)], check=False)
    assert run.finish(process, 400) == 0
    run.check_outputs(set(range(4)), once=False)
    assert "time" in run.causes(), dump(run.events)


def test_limits_are_cut_below_what_is_in_use(run: ClusterRun) -> None:
    process = run.prepare(jobs=10, seconds="25,45").start()
    run.wait_running(6)
    run.slurm.set_qos("clive", "GrpTRES=cpu=8,mem=60G,gres/gpu=0")
    wait_for(lambda: sum(job.ended for job in run.jobs()) >= 5, 120, "the first jobs")
    assert run.finish(process) == 0
    run.check_outputs(set(range(10)), once=False)
    assert not run.causes() - {"cancelled"}, dump(run.events)


def test_a_node_is_rebooted_and_every_priority_collapses(run: ClusterRun) -> None:
    process = run.prepare(jobs=8, seconds="20,40").start()
    run.wait_running(5)
    run.slurm.run(["sacctmgr", "-i", "modify", "account", "where", "name=clive,maigan", "set",
                   "fairshare=1"])  # fmt: skip
    run.slurm.crash_node("c1", noticed=True)
    run.slurm.revive_node("c1")
    assert run.finish(process) == 0
    run.check_outputs(set(range(8)), once=False)
    assert run.causes() <= {"node", "cancelled"}, dump(run.events)


def test_running_jobs_are_suspended_and_held_and_slurm_is_reconfigured(run: ClusterRun) -> None:
    process = run.prepare(jobs=6, seconds="20,25", site={"patience_s": 4}).start()
    run.wait_running(5)
    first, second, *_ = (job.id for job in run.jobs() if job.state == "RUNNING")
    run.slurm.run(["scontrol", "suspend", str(first)])
    run.slurm.run(["scontrol", "update", f"JobId={second}", "Requeue=1"])
    run.slurm.run(["scontrol", "requeuehold", str(second)])
    run.slurm.run(["scontrol", "reconfigure"])
    wait_for(lambda: "it is held" in run.log, 60, "that a job is held")
    wait_for(lambda: sum(job.ended for job in run.jobs()) >= 4, 120, "the others")
    run.slurm.run(["scontrol", "resume", str(first)])
    run.slurm.run(["scontrol", "release", str(second)])
    assert run.finish(process) == 0
    run.check_outputs(set(range(6)))
    assert run.log.count("it is held") == 1
    assert not run.causes()
    assert not run.moves()


def test_pending_jobs_are_changed_by_hand(run: ClusterRun) -> None:
    """One is sent to idle nodes, one is put last, one gets no priority at all."""
    theirs = fill(run.slurm)
    process = run.prepare(jobs=6, seconds="2,6", site={"patience_s": 4}).start()
    wait_for(lambda: len(run.pending()) == 4, 90, "four pending jobs")
    sent, last, none, _ = run.pending()
    run.slurm.run(["scontrol", "update", f"JobId={sent}", "Partition=hpg-turin"])
    run.slurm.run(["scontrol", "update", f"JobId={last}", "Nice=10000"])
    run.slurm.run(["scontrol", "update", f"JobId={none}", "Priority=0"])
    wait_for(lambda: "it is held" in run.log, 60, "that a job is held")
    assert run.slurm.wait_job(sent, 60).node == "t1"
    run.slurm.run(["scancel", *map(str, theirs)])
    wait_for(lambda: sum(job.state == "COMPLETED" for job in run.jobs()) >= 5, 120, "the others")
    run.slurm.run(["scontrol", "release", str(none)])
    assert run.finish(process) == 0
    run.check_outputs(set(range(6)))
    assert not run.causes()


def test_an_account_loses_a_partition_and_then_its_member(run: ClusterRun) -> None:
    """Removing and adding is how an account gets another name."""
    slurm = run.slurm
    mine = ["user", "where", "name=root", "account=maigan"]
    process = run.prepare(jobs=30, seconds="8,16").start()
    run.wait_running(8)
    slurm.run(["scontrol", "update", "PartitionName=hpg-default", "AllowAccounts=clive,brusko"])
    wait_for(lambda: sum(job.ended for job in run.jobs()) >= 12, 120, "the first jobs")
    slurm.run(["sacctmgr", "-i", "modify", *mine, "set", "maxsubmitjobs=0"])
    slurm.run(["scancel", "-A", "maigan", "-u", "root"])
    try:
        wait_for(lambda: not slurm.run(["squeue", "-h", "-A", "maigan"]).stdout, 60)
        slurm.run(["sacctmgr", "-i", "delete", *mine])
        assert run.finish(process, 400) == 0
    finally:
        run.kill()
        slurm.run(["sacctmgr", "-i", "add", "user", "root", "account=maigan"], check=False)
        slurm.run(["sacctmgr", "-i", "modify", *mine, "set", "maxsubmitjobs=-1"])
    run.check_outputs(set(range(30)), once=False)
    assert {"cancelled"} <= run.causes() <= {"refused", "cancelled"}, dump(run.events)
    assert max(run.refusals().values(), default=0) <= 2, dump(run.events)


def test_the_longest_job_is_cut_and_a_node_fails(run: ClusterRun) -> None:
    process = run.prepare(jobs=30, seconds="8,16").start()
    run.wait_running(8)
    run.slurm.set_qos("clive", "MaxWall=3")
    run.slurm.run(["scontrol", "update", "NodeName=c1", "State=FAIL", "Reason=test"])
    failed_s = time.time()
    assert run.finish(process, 400) == 0
    run.check_outputs(set(range(30)))
    assert run.causes() <= {"cancelled"}, dump(run.events)  # by their moves
    assert {e["reason"].split()[0] for e in run.events if e["event"] == "move"} <= {
        "QOSMaxWallDurationPerJobLimit"
    }
    assert max(run.moves().values(), default=0) <= 1, dump(run.events)
    cut = [e for e in run.events if e["event"] == "place" and e["runtime_min"] == 3]
    assert {e["account"] for e in cut} == {"clive"}, dump(run.events)
    assert not [job for job in run.jobs() if job.node == "c1" and (job.start or 0) > failed_s + 2]


def test_a_labmate_nearly_fills_the_jobs_that_may_be_in_the_queue(run: ClusterRun) -> None:
    """What pends counts as well: sbatch would refuse the third job there."""
    run.slurm.set_qos("clive", "GrpSubmitJobs=9")
    for _ in range(7):
        run.slurm.sbatch("labmate", "-A", "clive", "--begin=now+1hour", "--mem=1G", command="true")
    run.prepare(jobs=12, seconds="12,14", site={"slowdown": 1.1}).run()
    run.check_outputs(set(range(12)))
    assert peak_use(run.jobs(), "clive")["cpu"] == 2 * 8, dump(run.events)
    assert not run.causes(), dump(run.events)
    assert not run.moves()
