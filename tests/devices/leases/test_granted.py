"""Leases under Slurm: the granted device without a lock, shards with one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.devices.budget import RESERVE_B, Request
from tilewright.devices.inventory import Device, Snapshot
from tilewright.devices.lease import NoDeviceError, lease, leases
from tilewright.devices.slurm_grant import GRANTED, use_granted_device

GIB = 2**30
ONE = Snapshot((Device("GPU-a", 0, "fake", 25 * GIB, 0),), driver="fake 1")
TWO = Snapshot((*ONE.devices, Device("GPU-b", 1, "fake", 25 * GIB, 0)))


@pytest.fixture(autouse=True)
def slurm_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv(GRANTED, "1")
    monkeypatch.setenv("SLURM_JOB_GPUS", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


def test_the_granted_device_is_held_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_LEASE_ROOT", str(tmp_path / "missing" / "root"))
    evidence = tmp_path / "jobs.jsonl"
    with lease(Request(4 * GIB, "edf"), snapshot=lambda: ONE, evidence=evidence) as held:
        assert (held.uuid, held.bytes_) == ("GPU-a", 25 * GIB - RESERVE_B)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
        assert os.environ["TILEWRIGHT_DEVICE"] == "gpu"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert '"uuid": "GPU-a"' in evidence.read_text()


def test_where_nvml_is_silent_slurm_is_trusted(tmp_path: Path) -> None:
    silent = Snapshot((), "NVML does not start")
    with lease(Request(4 * GIB, "edf"), snapshot=lambda: silent, root=tmp_path) as held:
        assert held.uuid.endswith(":0")
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
        assert "CUPY_GPU_MEMORY_LIMIT" not in os.environ
    assert leases(tmp_path) == []


@pytest.mark.parametrize("shards", [True, False])
def test_shards_and_several_devices_are_leased(
    shards: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shards:
        monkeypatch.setenv("SLURM_SHARDS_ON_NODE", "2")
    with lease(
        Request(4 * GIB, "edf"), snapshot=lambda: ONE if shards else TWO, root=tmp_path
    ) as held:
        assert (held.uuid, held.bytes_) == ("GPU-a", 4 * GIB)
        assert [claim.uuid for claim in leases(tmp_path)] == ["GPU-a"]
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a"


@pytest.mark.parametrize("absent", ["SLURM_JOB_GPUS", "SLURM_JOB_ID", GRANTED])
def test_variables_of_a_login_or_of_an_allocation_around_snakemake_are_no_grant(
    absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(absent)
    with lease(Request(4 * GIB, "edf"), snapshot=lambda: ONE, root=tmp_path):
        assert len(leases(tmp_path)) == 1


def test_a_granted_device_that_is_too_small_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(NoDeviceError, match="more than"),
        lease(Request(40 * GIB, "edf"), snapshot=lambda: ONE, root=tmp_path),
    ):
        pass


def test_the_gpus_of_a_step_are_a_grant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_GPUS")
    monkeypatch.setenv("SLURM_STEP_GPUS", "3")
    with lease(Request(4 * GIB, "edf"), snapshot=lambda: ONE, root=tmp_path):
        assert leases(tmp_path) == []


def test_of_a_divided_gpu_the_instance_is_held(tmp_path: Path) -> None:
    parent = Device("GPU-a", 0, "fake", 80 * GIB, 0, divided=True)
    instance = Device("MIG-b", 0, "fake", 20 * GIB, 0, parent="GPU-a")
    seen = Snapshot((parent, instance))
    with lease(Request(4 * GIB, "edf"), snapshot=lambda: seen, root=tmp_path) as held:
        assert (held.uuid, held.bytes_) == ("MIG-b", 20 * GIB - RESERVE_B)
        assert leases(tmp_path) == []


@pytest.mark.parametrize(
    ("granted", "device"), [("SLURM_JOB_GPUS", "gpu"), ("SLURM_STEP_GPUS", "gpu"), ("", "cpu")]
)
def test_a_job_on_slurm_uses_what_slurm_granted_and_no_variable_of_the_shell(
    granted: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_GPUS", GRANTED):
        monkeypatch.delenv(name)
    monkeypatch.setenv("TILEWRIGHT_DEVICE", "auto")
    if granted:
        monkeypatch.setenv(granted, "3")
    use_granted_device()
    assert (os.environ["TILEWRIGHT_DEVICE"], os.environ[GRANTED]) == (device, "1")
