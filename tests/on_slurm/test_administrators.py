"""What administrators do to a cluster while a run is on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_runs import ClusterRun, dump
from tests.support.slurm_cluster import Cluster, wait_for
from tests.support.slurm_fixtures import AT_NIGHT

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600), AT_NIGHT]


@pytest.fixture
def run(quiet_slurm: Cluster, tmp_path: Path) -> Iterator[ClusterRun]:
    made = ClusterRun(quiet_slurm, tmp_path)
    yield made
    made.kill()
    for partition in ("hpg-default", "hpg-b200"):
        quiet_slurm.run(["scontrol", "update", f"PartitionName={partition}", "State=UP"])
    with contextlib.suppress(TimeoutError):
        quiet_slurm.cancel_all(10)


def causes(run: ClusterRun) -> set[str]:
    return {event["cause"] for event in run.events if event["event"] == "fail"}


def test_a_partition_is_taken_down_and_brought_back(run: ClusterRun) -> None:
    few = {"cpus": 32, "mem_mb": 48_000}
    process = run.prepare(jobs=12, seconds="25,40", cpu_job=few).start()
    run.wait_running(5)
    run.slurm.run(["scontrol", "update", "PartitionName=hpg-default", "State=DOWN"])
    wait_for(lambda: sum(job.ended for job in run.jobs()) >= 8, 120, "jobs on GPUs go on")
    run.slurm.run(["scontrol", "update", "PartitionName=hpg-default", "State=UP"])
    assert run.finish(process) == 0
    run.check_outputs(set(range(12)))
    assert not causes(run) - {"cancelled"}, dump(run.events)


def test_a_time_limit_is_cut_and_a_job_is_requeued(run: ClusterRun) -> None:
    process = run.prepare(jobs=4, seconds="70,90").start()
    run.wait_running(4)
    first, second, *_ = sorted(job.id for job in run.jobs())
    run.slurm.run(["scontrol", "update", f"JobId={first}", "TimeLimit=1"])
    run.slurm.run(["scontrol", "requeue", str(second)], check=False)
    assert run.finish(process, 400) == 0
    run.check_outputs(set(range(4)), once=False)
    assert "time" in causes(run), dump(run.events)


def test_limits_are_cut_below_what_is_in_use(run: ClusterRun) -> None:
    process = run.prepare(jobs=10, seconds="25,45").start()
    run.wait_running(6)
    run.slurm.set_qos("clive", "GrpTRES=cpu=8,mem=60G,gres/gpu=0")
    wait_for(lambda: sum(job.ended for job in run.jobs()) >= 5, 120, "the first jobs")
    assert run.finish(process) == 0
    run.check_outputs(set(range(10)), once=False)
    assert not causes(run) - {"cancelled"}, dump(run.events)


def test_a_node_is_rebooted_and_every_priority_collapses(run: ClusterRun) -> None:
    process = run.prepare(jobs=8, seconds="20,40").start()
    run.wait_running(6)
    run.slurm.run(["sacctmgr", "-i", "modify", "account", "where", "name=clive,maigan", "set",
                   "fairshare=1"])  # fmt: skip
    run.slurm.crash_node("c1", noticed=True)
    run.slurm.revive_node("c1")
    assert run.finish(process) == 0
    run.check_outputs(set(range(8)), once=False)
    assert causes(run) <= {"node", "cancelled"}, dump(run.events)
