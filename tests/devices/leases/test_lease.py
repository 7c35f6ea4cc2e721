"""A lease: which device it is of, how much of it, what ends it, and when there is none."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.devices.leases.lease_jobs import GIB, Jobs, code, gpus, held, kill
from tests.support.fake_nvml import FakeMachine
from tests.support.fake_nvml.preload.fake_nvml_library import install
from tests.support.forked import fork
from tests.support.slurm_cluster import wait_for
from tilewright.devices.lease_folder import record_failure
from tilewright.devices.leases import (
    CONTEXT_B,
    RESERVE_B,
    SLOTS,
    Lease,
    holders,
    wait_for_lease,
)
from tilewright.errors import LeaseTimeoutError


def leased(gib: int = 1, limit_s: float = 5.0) -> Lease:
    """Take a lease and end it."""
    with contextlib.ExitStack() as locks:
        return wait_for_lease("edf", gib * GIB, limit_s, locks)


@pytest.mark.usefixtures("machine")
def test_a_job_has_a_gpu_alone_until_its_lease_ends(root: Path) -> None:
    with contextlib.ExitStack() as locks:
        lease = wait_for_lease("edf/a", GIB, 0.0, locks)
        assert lease == Lease("GPU-a", 25 * GIB - RESERVE_B - CONTEXT_B)
        ((uuid, text),) = holders(root)
        assert uuid == "GPU-a"
        assert text.startswith(time.strftime("%Y-"))
        assert text.endswith(f" edf/a, process {os.getpid()}")
        with pytest.raises(LeaseTimeoutError, match=r"job edf got no GPU within 0\.1 s"):
            leased(limit_s=0.1)
    assert holders(root) == []
    assert leased() == lease


@pytest.mark.parametrize(
    ("totals_gib", "used_gib", "gib", "failed_on", "uuid"),
    [
        ((25, 9), 0, 10, "", "a"),  # the other is too small
        ((13, 25), 0, 20, "", "b"),
        ((25, 13), 20, 10, "", "b"),  # the emptiest
        ((25, 25), 0, 1, "a", "b"),
        ((25, 9), 0, 20, "a", "b"),  # no other is left: the work is halved
        ((9, 25), 0, 90, "", "b"),
    ],
)
def test_which_device_a_job_gets(
    machine: FakeMachine, root: Path,
    totals_gib: tuple[int, ...], used_gib: int, gib: int, failed_on: str, uuid: str,
) -> None:  # fmt: skip
    machine.devices = gpus(*totals_gib)
    machine.devices[0].used_b = used_gib * GIB
    machine.write()
    for letter in failed_on:
        record_failure(root, f"GPU-{letter}", "other", "illegal address")
    assert leased(gib).uuid == f"GPU-{uuid}"


def test_small_jobs_share_by_equal_parts_and_a_large_one_has_all(
    machine: FakeMachine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_JOBS_PER_GPU", "3")
    machine.devices = gpus(25, 25)
    machine.write()
    for name in "123456":
        jobs.holder(7, name)
    assert sorted(held().values()) == [*"aaabbb"]
    assert [held()["1"], held()["2"]] == ["a", "b"]  # they spread
    with pytest.raises(LeaseTimeoutError):
        leased(limit_s=0.1)
    kill(jobs.started[0])
    assert leased(7) == Lease("GPU-a", (25 * GIB - RESERVE_B) // 3 - CONTEXT_B)
    with pytest.raises(LeaseTimeoutError):
        leased(8, limit_s=0.1)
    for process in jobs.started[2::2]:
        kill(process)
    assert leased(8) == Lease("GPU-a", 25 * GIB - RESERVE_B - CONTEXT_B)


@pytest.mark.usefixtures("machine")
def test_runs_that_share_otherwise_leave_the_gpu_of_a_single_job_alone(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.holder(1, "single")
    monkeypatch.setenv("TILEWRIGHT_JOBS_PER_GPU", f"{SLOTS}")
    with pytest.raises(LeaseTimeoutError):
        leased(limit_s=0.1)


def test_a_device_that_fails_while_a_job_waits_is_not_leased_to_it(
    machine: FakeMachine, root: Path, jobs: Jobs
) -> None:
    machine.devices = gpus(25, 25)
    machine.write()
    first, second = jobs.holder(20, "1"), jobs.holder(20, "2")
    late = jobs.waiter(20, "late", hold_s=600)
    record_failure(root, "GPU-a", "other", "ECC")
    kill(first)
    time.sleep(1.0)
    assert held() == {"2": "b"}
    kill(second)
    wait_for(lambda: held() == {"late": "b"}, 100)
    last = jobs.waiter(20, "last")
    record_failure(root, "GPU-b", "other", "ECC")
    assert code(last) == 1
    assert code(late, 0.0) is None


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
