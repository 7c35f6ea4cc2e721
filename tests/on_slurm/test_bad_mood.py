"""What a shared cluster does all day: busy, drained, preempting, holding, withdrawing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.on_slurm.labmates import fill, hold_all_gpus
from tests.support.cluster_runs import ClusterRun, dump
from tests.support.slurm_cluster import Cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(1800)]

#: On GPUs 2 s, on CPUs 6 s.
QUICK = "2,6"


@pytest.fixture
def run(quiet_slurm: Cluster, tmp_path: Path) -> Iterator[ClusterRun]:
    made = ClusterRun(quiet_slurm, tmp_path)
    yield made
    made.kill()
    with contextlib.suppress(TimeoutError):
        quiet_slurm.cancel_all(10)
    for node in quiet_slurm.node_names:
        quiet_slurm.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)


def test_a_drained_partition_is_not_offered(run: ClusterRun) -> None:
    run.slurm.run(["scontrol", "update", "NodeName=b1", "State=DRAIN", "Reason=test"])
    run.prepare(jobs=6, seconds=QUICK).run()
    run.check_outputs(set(range(6)))
    assert not any(pool.endswith("_gpu") for pool in run.placed()), dump(run.events)
    assert not run.moves()


def test_busy_gpus_keep_no_job_waiting_and_are_used_when_they_come_free(run: ClusterRun) -> None:
    held = hold_all_gpus(run.slurm, 600)
    few = {"cpus": 32, "mem_mb": 48_000}  # five at once on CPUs
    process = run.prepare(jobs=10, seconds="2,12", cpu_job=few).start()
    run.wait_running(4)
    assert not any(pool.endswith("_gpu") for pool in run.placed()), dump(run.events)
    run.slurm.run(["scancel", str(held)])
    assert run.finish(process) == 0
    run.check_outputs(set(range(10)))
    assert any(pool.endswith("_gpu") for pool in run.placed())
    assert max(run.moves().values(), default=0) <= 1


def test_a_job_that_waits_for_a_node_is_moved_once_and_the_node_is_avoided(
    run: ClusterRun,
) -> None:
    """Reserved nodes look idle until a job pends there."""
    run.prepare(jobs=8, seconds=QUICK, site={"patience_s": 3})
    run.slurm.run(["scontrol", "create", "reservation", "ReservationName=class", "Nodes=b1",
                   "StartTime=now+60", "Duration=60", "Users=labmate"])  # fmt: skip
    try:
        run.run()
    finally:
        run.slurm.run(["scontrol", "delete", "ReservationName=class"])
    run.check_outputs(set(range(8)), once=False)
    assert max(run.moves().values(), default=0) <= 1, dump(run.events)
    # later jobs do not try what the first found closed
    assert sum(run.moves().values()) <= 5


def test_preempted_jobs_are_placed_again(run: ClusterRun) -> None:
    """``PreemptMode=CANCEL`` ends in the same state as ``REQUEUE`` without requeueing."""
    slurm = run.slurm
    slurm.set_qos("brusko", "GrpTRES=cpu=112,mem=2000G,gres/gpu=8")
    slurm.run(["sacctmgr", "-i", "modify", "qos", "where", "name=brusko", "set",
               "preempt=clive,maigan"])  # fmt: skip
    slurm.run(["sacctmgr", "-i", "modify", "qos", "where", "name=clive,maigan", "set",
               "preemptmode=REQUEUE"])  # fmt: skip
    try:
        process = run.prepare(jobs=4, seconds="40,15").start()
        wait_for(lambda: any(job.state == "RUNNING" and job.partition == "hpg-b200"
                             for job in run.jobs()), 90)  # fmt: skip
        hold_all_gpus(slurm, 60)
        assert run.finish(process) == 0
    finally:
        slurm.run(["sacctmgr", "-i", "modify", "qos", "where", "name=brusko", "set", "preempt="])
    run.check_outputs(set(range(4)), once=False)
    assert {"preempted"} <= run.causes() <= {"preempted", "cancelled"}, dump(run.events)
    tries = [event.get("give_up") for event in run.events if event["event"] == "fail"]
    assert not any(tries)


def test_on_a_full_cluster_jobs_wait_in_the_queue_and_a_held_one_is_said(run: ClusterRun) -> None:
    slurm = run.slurm
    theirs = fill(slurm)
    process = run.prepare(jobs=8, seconds=QUICK, site={"patience_s": 4}).start()
    wait_for(lambda: len(run.pending()) == 4, 90, "four pending jobs")
    wait_for(lambda: "pend: " in run.log, 60, "why they pend")
    first = run.pending()[0]
    slurm.run(["scontrol", "hold", str(first)])
    slurm.run(["scancel", *map(str, theirs)])
    wait_for(lambda: "it is held" in run.log, 60, "that a job is held")
    wait_for(lambda: sum(job.ended for job in run.jobs()) >= 7, 120, "the others")
    slurm.run(["scontrol", "release", str(first)])
    assert run.finish(process) == 0
    run.check_outputs(set(range(8)))
    assert run.log.count("it is held") == 1
    said = [event["words"] for event in run.events if event["event"] == "pend"]
    assert any("scontrol release" in words for words in said)


def test_jobs_whose_qos_is_withdrawn_go_elsewhere(run: ClusterRun) -> None:
    slurm = run.slurm
    theirs = fill(slurm)
    mine = ["sacctmgr", "-i", "modify", "user", "where", "name=root", "account=maigan", "set"]
    process = run.prepare(jobs=6, seconds=QUICK, site={"patience_s": 20}).start()
    try:
        wait_for(lambda: len(run.pending()) == 4, 90, "four pending jobs")
        slurm.run([*mine, "qos=maigan-b", "defaultqos=maigan-b"])
        wait_for(lambda: run.moves(), 60, "a move")
        slurm.run(["scancel", *map(str, theirs)])
        assert run.finish(process) == 0
    finally:
        slurm.run([*mine, "qos=maigan,maigan-b", "defaultqos=maigan"])
    run.check_outputs(set(range(6)))
    reasons = {event["reason"].split()[0] for event in run.events if event["event"] == "move"}
    assert "InvalidQOS" in reasons, dump(run.events)
    assert max(run.moves().values()) <= 1
