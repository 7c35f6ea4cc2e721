"""Leases under Slurm: the granted device without a lock, shards with one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.devices.budget import RESERVE_B, Request
from tilewright.devices.choose import GRANTED
from tilewright.devices.lease import NoDeviceError, lease, leases
from tilewright.devices.records import Device, Snapshot

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


def test_variables_left_over_from_a_login_are_no_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_GPUS")
    with lease(Request(4 * GIB, "edf"), snapshot=lambda: ONE, root=tmp_path):
        assert len(leases(tmp_path)) == 1


def test_a_granted_device_that_is_too_small_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(NoDeviceError, match="more than"),
        lease(Request(40 * GIB, "edf"), snapshot=lambda: ONE, root=tmp_path),
    ):
        pass
