"""A night's run in small: everything that a shared cluster does, in one run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster_runs import ClusterRun, dump
from tests.support.slurm_cluster import Cluster, SlurmCommandError, wait_for

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(900),
    pytest.mark.skipif("TILEWRIGHT_NIGHT" not in os.environ, reason="minutes: TILEWRIGHT_NIGHT=1"),
]
_JOBS = 40


def labmate(slurm: Cluster, stop: threading.Event, seen: list[int]) -> None:
    """Fill and free one account after the other."""
    accounts = ("clive", "maigan")
    while not stop.is_set():
        with contextlib.suppress(SlurmCommandError):  # slurmctld is being restarted
            seen.append(
                slurm.sbatch("labmate", "-A", accounts[len(seen) % 2], "-p", "hpg-default",
                             "--mem=500G", command="sleep 25")
            )  # fmt: skip
        stop.wait(30)


def test_a_night(quiet_slurm: Cluster, tmp_path: Path) -> None:
    slurm, run = quiet_slurm, ClusterRun(quiet_slurm, tmp_path)
    few = {"cpus": 16, "mem_mb": 48_000}
    run.prepare(jobs=_JOBS, seconds="4,12", cpu_job=few, site={"patience_s": 8, "stale": "wait"})
    stop, theirs = threading.Event(), list[int]()
    other = threading.Thread(target=labmate, args=(slurm, stop, theirs), daemon=True)

    def done() -> int:
        return len(list((tmp_path / "out").glob("*.txt")))

    def after(share: float, act: Callable[[], object]) -> None:
        wait_for(lambda: done() >= share * _JOBS, 400, f"{share:.0%} of the jobs")
        act()

    def restart() -> None:
        slurm.kill_part("slurmctld")
        time.sleep(5)
        slurm.start_part("slurmctld")

    try:
        first = run.start()
        other.start()
        after(0.15, lambda: slurm.run(["scontrol", "update", "NodeName=c2", "State=DRAIN",
                                       "Reason=night"]))  # fmt: skip
        after(0.3, restart)
        after(0.5, lambda: os.killpg(first.pid, signal.SIGKILL))
        slurm.run(["scontrol", "update", "NodeName=c2", "State=RESUME"])
        assert run.finish(run.start(), 600) == 0
    finally:
        stop.set()
        run.kill()
        slurm.run(["scontrol", "update", "NodeName=c2", "State=RESUME"], check=False)
    run.check_outputs(set(range(_JOBS)))
    run.check_limits(tuple(slurm.job(number) for number in theirs))
    moves = [event["job"] for event in run.events if event["event"] == "move"]
    assert len(moves) <= _JOBS / 4, dump(run.events)
