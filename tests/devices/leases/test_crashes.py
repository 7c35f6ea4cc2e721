"""Killed holders and waiters: real processes, real locks."""

import contextlib
import os
import random
import signal
import subprocess
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.devices.leases.lease_jobs import GIB, Jobs, code, gpus, held, kill, said
from tests.support.fake_nvml import FakeMachine
from tests.support.fake_nvml.preload.fake_nvml_library import install
from tests.support.forked import fork
from tests.support.slurm_cluster import wait_for
from tilewright.devices.leases import holders, wait_for_lease


@pytest.mark.parametrize("number", [45, pytest.param(201, marks=pytest.mark.long)])
def test_of_many_jobs_a_third_is_killed(
    machine: FakeMachine, root: Path, tmp_path: Path, jobs: Jobs, number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """15 at a time, up to 4 on a device; those killed wait then, hold, or are on the way."""
    monkeypatch.setenv("TILEWRIGHT_JOBS_PER_GPU", "4")
    machine.devices, rng = gpus(25, 25, 13, 25), random.Random(1)
    machine.write()
    begun: list[BaseProcess] = []
    for k in range(number):
        wait_for(lambda: sum(process.is_alive() for process in begun) < 15, 100)
        hold_s = 5.0 if k % 6 == 0 else rng.uniform(0.02, 0.25)
        die_s = 0.0 if k % 3 else rng.uniform(0.001, 0.8)
        begun.append(jobs.start(rng.choice((1, 2, 4, 5, 20)), f"{k}", hold_s=hold_s, die_s=die_s))
    codes = [code(process, 400) for process in begun]
    assert [found for k, found in enumerate(codes) if k % 3] == [0] * (number * 2 // 3)
    assert set(codes[::3]) <= {0, -signal.SIGKILL}
    assert {*codes[::6]} == {-signal.SIGKILL}
    assert {str(k) for k in range(number) if k % 3} <= {*said(tmp_path, "ends")}
    assert holders(root) == []
    # no device is lost: all can be had at once
    for device in machine.devices:
        jobs.holder(10, device.uuid)
    wait_for(lambda: sorted(held().values()) == [*"abcd"], 100)


def hold_beside_a_program(folder: Path) -> None:
    """Hold, and start a program that gets all descriptors."""
    install()
    with contextlib.ExitStack() as locks:
        wait_for_lease("edf", GIB, 0.0, locks)
        program = subprocess.Popen(["sleep", "600"], close_fds=False)
        (folder / "program").write_text(str(program.pid))
        signal.pause()


@pytest.mark.usefixtures("machine")
def test_a_program_that_a_killed_holder_started_does_not_keep_the_lease(tmp_path: Path) -> None:
    holder = fork(hold_beside_a_program, tmp_path)
    wait_for(lambda: (tmp_path / "program").exists() and (tmp_path / "program").read_text(), 100)
    assert held() == {"edf": "a"}
    kill(holder)
    program = int((tmp_path / "program").read_text())
    try:
        with contextlib.ExitStack() as locks:
            wait_for_lease("next", GIB, 300, locks)
            os.kill(program, 0)  # it lives
    finally:
        os.kill(program, signal.SIGKILL)
