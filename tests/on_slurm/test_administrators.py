"""What administrators do to a cluster while a run is on it."""

from collections import Counter

import pytest

from tests.support.cluster_runs import AT_NIGHT, ClusterRun, dump
from tests.support.slurm_cluster import wait_for

pytestmark = [pytest.mark.slurm, AT_NIGHT]


def test_a_partition_a_node_a_limit_and_priorities_are_changed_one_after_the_other(
    run: ClusterRun,
) -> None:
    slurm, few = run.slurm, {"cpus": 32, "mem_mb": 48_000}
    process = run.prepare(jobs=20, light=True, seconds="25,40", cpu_job=few).start()
    run.wait_running(5)
    slurm.update("PartitionName=hpg-default", "State=DOWN")
    wait_for(lambda: sum(job.ended for job in run.jobs()) >= 8, 120, "jobs on GPUs go on")
    slurm.update("PartitionName=hpg-default", "State=UP")
    slurm.set_qos("clive", "GrpTRES=cpu=8,mem=60G,gres/gpu=0")  # less than is in use
    slurm.modify("account", "clive,maigan", "fairshare=1")
    run.wait_running(2)
    assert run.causes() <= {"cancelled"}, dump(run.events)
    node, *_ = wait_for(lambda: [job.node for job in run.jobs() if job.state == "RUNNING"], 60)
    slurm.crash_node(node)
    slurm.revive_node(node)
    assert run.finish(process, 600) == 0
    run.check_outputs(*range(20), once=False)
    assert run.causes() <= {"node", "cancelled"}, dump(run.events)


def test_running_jobs_are_suspended_held_and_requeued_and_their_time_is_cut(
    run: ClusterRun,
) -> None:
    slurm = run.slurm
    # a requeued job may begin after 15 s only: until then it pends for that
    # five jobs: no other takes the slot of the one that is held
    process = run.prepare(jobs=5, light=True, seconds="70,90").start()
    run.wait_running(5)
    suspended, held, cut, *_ = (job.id for job in run.jobs() if job.state == "RUNNING")
    slurm.run(["scontrol", "suspend", str(suspended)])
    slurm.update(f"JobId={cut}", "TimeLimit=1")
    slurm.update(f"JobId={held}", "Requeue=1")
    slurm.run(["scontrol", "requeuehold", str(held)])
    slurm.run(["scontrol", "reconfigure"])
    wait_for(lambda: "it is held" in run.log, 60, "that a job is held")
    slurm.run(["scontrol", "resume", str(suspended)])
    slurm.run(["scontrol", "release", str(held)])
    assert run.finish(process, 400) == 0
    run.check_outputs(*range(5), once=False)
    assert run.log.count("it is held") == 1
    assert run.causes() == {"time"}, dump(run.events)
    assert not run.moves()


def test_an_account_loses_a_partition_and_then_its_member(run: ClusterRun) -> None:
    """Removing and adding is how an account gets another name."""
    slurm = run.slurm
    mine = "root account=maigan"
    process = run.prepare(jobs=30, light=True, seconds="8,16").start()
    run.wait_running(8)
    slurm.update("PartitionName=hpg-default", "AllowAccounts=clive,brusko")
    wait_for(lambda: sum(job.ended for job in run.jobs()) >= 6, 120, "the first jobs")
    wait_for(
        lambda: any(job.qos == "maigan" and not job.ended for job in run.jobs()), 60, "its jobs"
    )
    slurm.modify("user", mine, "maxsubmitjobs=0")
    slurm.run(["scancel", "-A", "maigan", "-u", "root"])
    try:
        wait_for(lambda: not slurm.run(["squeue", "-h", "-A", "maigan"]).stdout, 60)
        slurm.run(["sacctmgr", "-i", "delete", "user", "where", *f"name={mine}".split()])
        assert run.finish(process, 400) == 0
    finally:
        slurm.end_clients()
        slurm.run(["sacctmgr", "-i", "add", "user", "root", "account=maigan"], check=False)
        slurm.modify("user", mine, "maxsubmitjobs=-1")
    run.check_outputs(*range(30), once=False)
    assert {"cancelled"} <= run.causes() <= {"refused", "cancelled"}, dump(run.events)
    refused = Counter(event["job"] for event in run.events if event.get("cause") == "refused")
    assert max(refused.values(), default=0) <= 2, dump(run.events)
