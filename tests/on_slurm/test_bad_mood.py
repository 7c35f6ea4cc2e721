"""What a shared cluster does all day: busy, reserved, preempting, holding, withdrawing."""

import pytest

from tests.on_slurm.labmates import fill, hold_all_gpus, running
from tests.support.cluster_runs import ClusterRun, dump
from tests.support.slurm_cluster import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]

#: On GPUs 2 s, on CPUs 6 s.
QUICK = "2,6"


def test_busy_gpus_keep_no_job_waiting_and_are_used_when_they_come_free(run: ClusterRun) -> None:
    run.slurm.update("NodeName=c2", "State=DRAIN", "Reason=test")
    held = hold_all_gpus(run.slurm, 600)
    few = {"cpus": 32, "mem_mb": 48_000}  # four at once on CPUs
    process = run.prepare(jobs=10, light=True, seconds="2,12", cpu_job=few).start()
    run.wait_running(2)
    busy = run.slurm.run(["squeue", "-h", "-u", "root", "-p", "hpg-b200", "-o", "%t"]).stdout
    assert busy.split() == ["PD"] * min(8, len(busy.split())), dump(run.events)  # of two accounts
    run.slurm.run(["scancel", str(held)])
    assert run.finish(process) == 0
    run.check_outputs(*range(10))
    assert "c2" not in {job.node for job in run.jobs()}, dump(run.events)
    assert "gpu" in {event["kind"] for event in run.events if event["event"] == "done"}


def test_jobs_that_would_wait_for_a_node_that_is_reserved_soon_go_elsewhere(
    run: ClusterRun,
) -> None:
    """It is idle, and jobs that end before the reservation begins could run there."""
    run.prepare(jobs=10, light=True, seconds=QUICK)
    run.slurm.run(["scontrol", "create", "reservation", "ReservationName=class", "Nodes=b1",
                   "StartTime=now+60", "Duration=60", "Users=labmate"])  # fmt: skip
    try:
        run.run()
    finally:
        run.slurm.run(["scontrol", "delete", "ReservationName=class"])
    run.check_outputs(*range(10))
    assert {event["kind"] for event in run.events if event["event"] == "done"} == {"cpu"}
    assert not run.causes(), dump(run.events)


def test_jobs_queue_with_those_of_others_for_full_accounts(run: ClusterRun) -> None:
    """While all accounts are full, each job that a labmate sends later would start first."""
    theirs = [
        run.slurm.sbatch("labmate", "-A", name, "-c", cpus, "--mem=1G", command="sleep 600")
        for name, cpus in (("clive", "104"), ("maigan", "80")) * 3
    ]
    running(run.slurm, *theirs[:2])
    run.prepare(jobs=6, light=True, seconds=QUICK, settings={"gpu-partitions": "none"})
    process = run.start()
    wait_for(lambda: len(run.pending()) in range(1, 9), 60, "own jobs in the queue")
    later = run.slurm.sbatch("labmate", "-A", "clive", "-c", "104", "--mem=1G", command="sleep 600")
    run.slurm.run(["scancel", *map(str, theirs)])
    assert run.finish(process) == 0
    run.check_outputs(*range(6))
    first = min(job.start for job in run.jobs() if job.start is not None)
    assert (run.slurm.job(later).start or first) >= first, dump(run.events)


def test_preempted_jobs_are_placed_again(run: ClusterRun) -> None:
    """``PreemptMode=CANCEL`` ends in the same state as ``REQUEUE`` without requeueing."""
    slurm = run.slurm
    slurm.modify("qos", "brusko", "preempt=clive,maigan")
    slurm.modify("qos", "clive,maigan", "preemptmode=REQUEUE")
    try:
        process = run.prepare(jobs=4, light=True, seconds="40,15").start()
        wait_for(lambda: any(job.state == "RUNNING" and job.partition == "hpg-b200"
                             for job in run.jobs()), 90)  # fmt: skip
        hold_all_gpus(slurm, 60)
        assert run.finish(process) == 0
    finally:
        slurm.modify("qos", "brusko", "preempt=")
    run.check_outputs(*range(4), once=False)
    assert {"preempted"} <= run.causes() <= {"preempted", "cancelled"}, dump(run.events)
    assert not any(event.get("give_up") for event in run.events if event["event"] == "fail")


def test_on_a_full_cluster_jobs_wait_and_what_is_changed_by_hand_is_seen(run: ClusterRun) -> None:
    """One is sent to idle nodes, one is put last, one is held, one gets no priority at all."""
    slurm = run.slurm
    theirs = fill(slurm)
    process = run.prepare(jobs=8, light=True, seconds=QUICK).start()
    wait_for(lambda: len(run.pending()) >= 4, 90, "four pending jobs")
    wait_for(lambda: "pend: " in run.log, 60, "why they pend")
    sent, last, held, none, *_ = run.pending()
    slurm.update(f"JobId={sent}", "Partition=hpg-turin")
    slurm.update(f"JobId={last}", "Nice=10000")
    slurm.run(["scontrol", "hold", str(held)])
    slurm.update(f"JobId={none}", "Priority=0")

    def said() -> list[str]:
        events = [event for event in run.events if event["event"] == "pend"]
        return [event["job"] for event in events if "scontrol release" in event["words"]]

    assert slurm.wait_job(sent, 60).node == "t1"
    slurm.run(["scancel", *map(str, theirs)])
    wait_for(lambda: len(said()) == 2, 60, "that two jobs are held")
    wait_for(lambda: sum(job.ended for job in run.jobs()) >= 6, 120, "the others")
    slurm.run(["scontrol", "release", str(held), str(none)])
    assert run.finish(process) == 0
    run.check_outputs(*range(8))
    assert len(set(said())) == len(said()) == 2
    assert run.log.count("it is held") in (1, 2)  # where both are seen at once, in one sentence
    assert not run.causes()


def test_jobs_whose_qos_is_withdrawn_go_elsewhere(run: ClusterRun) -> None:
    slurm = run.slurm
    theirs = fill(slurm)
    process = run.prepare(jobs=6, light=True, seconds=QUICK).start()
    try:
        wait_for(lambda: len(run.pending()) >= 4, 90, "four pending jobs")
        slurm.modify("user", "root account=maigan", "qos=maigan-b", "defaultqos=maigan-b")
        wait_for(lambda: run.moves(), 60, "a move")
        slurm.run(["scancel", *map(str, theirs)])
        assert run.finish(process) == 0
    finally:
        slurm.modify("user", "root account=maigan", "qos=maigan,maigan-b", "defaultqos=maigan")
    run.check_outputs(*range(6))
    reasons = {event["reason"] for event in run.events if event["event"] == "move"}
    assert "Slurm does not start it there" in reasons, dump(run.events)
