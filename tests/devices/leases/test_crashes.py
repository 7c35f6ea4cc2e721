"""Killed holders and waiters, folders that go, and turns: real processes, real locks."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.devices.leases.lease_jobs import (
    GIB,
    Job,
    Jobs,
    code,
    evidence,
    gpus,
    holders,
    kill,
    said,
)
from tests.support.fake_nvml import FakeMachine
from tests.support.fake_nvml.preload.fake_nvml_library import install
from tests.support.forked import fork
from tests.support.slurm_cluster import wait_for
from tilewright.devices.device_lease import Request
from tilewright.devices.leases import PATIENCE_S, RETRY_S, lease, leases


@pytest.mark.parametrize("number", [45, pytest.param(201, marks=pytest.mark.long)])
def test_of_many_jobs_a_third_is_killed(
    machine: FakeMachine, root: Path, tmp_path: Path, jobs: Jobs, number: int
) -> None:
    """15 at a time; those killed wait then, hold, or are on the way."""
    machine.devices, rng = gpus(25, 25, 13, 25), random.Random(1)
    machine.devices[3].used_b = 3 * GIB
    machine.write()
    begun: list[BaseProcess] = []
    for k in range(number):
        wait_for(lambda: sum(process.is_alive() for process in begun) < 15, 100)
        hold_s = 5.0 if k % 6 == 0 else rng.uniform(0.02, 0.25)
        die_s = 0.0 if k % 3 else rng.uniform(0.001, 0.8)
        more = {"whole": rng.random() < 0.08, "hold_s": hold_s, "die_s": die_s}
        begun.append(jobs.start(rng.choice((2, 4, 6, 10, 14, 20)), f"{k}", **more))
    codes = [code(process, 400) for process in begun]
    assert [found for k, found in enumerate(codes) if k % 3] == [0] * (number * 2 // 3)
    assert set(codes[::3]) <= {0, -signal.SIGKILL}
    assert {*codes[::6]} == {-signal.SIGKILL}
    assert {str(k) for k in range(number) if k % 3} <= {*said(tmp_path, "ends")}
    assert leases(root) == []
    lines = Counter(line["job"] for line in evidence(tmp_path))
    assert {lines[str(k)] for k in range(number) if k % 3} == {1}
    # no device is lost: all can be had at once
    for device in machine.devices:
        jobs.holder(1, device.uuid, whole=True)
    assert {holder.uuid for holder in leases(root)} == {d.uuid for d in machine.devices}


def hold_beside_a_program(folder: Path) -> None:
    """Hold, and start a program that gets all descriptors."""
    install()
    with lease(Request(20 * GIB, "edf")):
        program = subprocess.Popen(["sleep", "600"], close_fds=False)
        (folder / "program").write_text(str(program.pid))
        signal.pause()


@pytest.mark.usefixtures("machine")
def test_a_program_that_a_killed_holder_started_does_not_keep_the_lease(tmp_path: Path) -> None:
    holder = fork(hold_beside_a_program, tmp_path)
    wait_for(lambda: (tmp_path / "program").exists() and (tmp_path / "program").read_text(), 100)
    assert holders() == ["edf"]
    kill(holder)
    program = int((tmp_path / "program").read_text())
    try:
        with lease(Request(20 * GIB, "next", wait_limit_s=300)):
            os.kill(program, 0)  # it lives
    finally:
        os.kill(program, signal.SIGKILL)


def coordinate(job: Job) -> None:
    """Let another process run a job, and wait for nothing."""
    if os.fork() == 0:
        job()
        os._exit(0)
    signal.pause()


def test_a_lease_outlives_its_coordinator(jobs: Jobs, tmp_path: Path) -> None:
    go = tmp_path / "go"
    coordinator = fork(coordinate, Job(tmp_path, Request(20 * GIB, "orphan"), until=go))
    wait_for(lambda: holders() == ["orphan"], 100)
    kill(coordinator)
    rerun = jobs.waiter(20, "rerun")
    assert holders() == ["orphan"]
    go.touch()
    assert code(rerun) == 0
    assert said(tmp_path, "ends") == ["orphan", "rerun"]


def test_a_folder_that_goes_fails_those_who_wait_and_nobody_who_computes(
    root: Path, jobs: Jobs, tmp_path: Path
) -> None:
    with lease(Request(20 * GIB, "edf"), tmp_path / "evidence.jsonl"):
        late = jobs.waiter(20, "late")
        shutil.rmtree(root)
        assert code(late) == 1
    assert evidence(tmp_path)[-1]["outcome"] == "done"
    root.mkdir(mode=0o700)


def test_of_twelve_that_wait_each_has_its_turn_within_a_bound(jobs: Jobs, tmp_path: Path) -> None:
    """No order is kept, and nobody waits for more than the others' turns and a try for each."""
    go = tmp_path / "go"
    jobs.holder(4, "first", hold_s=0.0, until=go)
    began_s = time.monotonic()
    assert code(jobs.start(20, "alone", hold_s=0.2)) == 0
    alone_s = time.monotonic() - began_s  # as fast as this machine is now
    jobs.holder(20, "second", hold_s=0.0, until=go)
    waiting = [jobs.start(20, f"{k}", hold_s=0.2) for k in range(12)]
    wait_for(lambda: len(said(tmp_path, "asks")) == 15, 100)
    go.touch()
    began_s = time.monotonic()
    assert [code(process) for process in waiting] == [0] * 12
    assert time.monotonic() - began_s < 12 * (alone_s + 1.5 * RETRY_S) + PATIENCE_S


@pytest.mark.parametrize(("gib", "whole"), [(1, True), (20, False)])
def test_a_stream_of_small_jobs_does_not_starve_a_large_one(
    machine: FakeMachine, jobs: Jobs, tmp_path: Path, gib: int, whole: bool
) -> None:
    stop = tmp_path / "stop"
    small = [jobs.start(4, f"{k}", hold_s=0.4, until=stop, repeated=True) for k in range(7)]
    wait_for(lambda: len(said(tmp_path, "holds")) > 7, 100)
    large = jobs.start(gib, "large", whole=whole, wait_limit_s=60, patience_s=1.0)
    assert code(large) == 0
    stop.touch()
    assert [code(process) for process in small] == [0] * 7
