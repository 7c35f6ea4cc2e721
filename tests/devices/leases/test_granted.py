"""Leases under Slurm: the granted device without a lock, shards with one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.devices.leases.lease_jobs import GIB
from tilewright.devices.budget import RESERVE_B, Request
from tilewright.devices.evidence import Held
from tilewright.devices.inventory import Device, Snapshot
from tilewright.devices.lease import lease, leases
from tilewright.devices.slurm_grant import GRANTED, use_granted_device
from tilewright.errors import NoDeviceError

ONE = Snapshot((Device("GPU-a", 0, "fake", 25 * GIB, 0),), driver="fake 1")
TWO = Snapshot((*ONE.devices, Device("GPU-b", 1, "fake", 25 * GIB, 0)))
PARENT = Device("GPU-a", 0, "fake", 80 * GIB, 0, divided=True)
DIVIDED = Snapshot((PARENT, Device("MIG-b", 0, "fake", 20 * GIB, 0, parent="GPU-a")))


@pytest.fixture(autouse=True)
def slurm_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, text in {"SLURM_JOB_ID": "7", GRANTED: "1", "SLURM_JOB_GPUS": "3"}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


@contextmanager
def held(root: Path, seen: Snapshot = ONE, gib: int = 4) -> Iterator[tuple[Held, list[str]]]:
    """Hold a device; yield what is held, and the devices of the queue."""
    with lease(Request(gib * GIB, "edf"), snapshot=lambda: seen, root=root) as own:
        yield own, [claim.uuid for claim in leases(root)]


def test_the_granted_device_is_held_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_LEASE_ROOT", str(tmp_path / "missing" / "root"))
    evidence = tmp_path / "jobs.jsonl"
    with lease(Request(4 * GIB, "edf"), snapshot=lambda: ONE, evidence=evidence) as own:
        assert (own.uuid, own.bytes_) == ("GPU-a", 25 * GIB - RESERVE_B)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
        assert os.environ["TILEWRIGHT_DEVICE"] == "gpu"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert '"uuid": "GPU-a"' in evidence.read_text()


def test_where_nvml_is_silent_slurm_is_trusted(tmp_path: Path) -> None:
    with held(tmp_path, Snapshot((), "NVML does not start")) as (own, queue):
        assert (own.uuid.partition(":")[2], queue) == ("0", [])
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
        assert "CUPY_GPU_MEMORY_LIMIT" not in os.environ


@pytest.mark.parametrize(
    ("changes", "seen", "uuid"),
    [
        ({"SLURM_JOB_GPUS": None, "SLURM_STEP_GPUS": "3"}, ONE, "GPU-a"),
        ({}, DIVIDED, "MIG-b"),
        ({"SLURM_SHARDS_ON_NODE": "2"}, ONE, None),
        ({}, TWO, None),
        # variables of a login, or of an allocation around Snakemake
        ({"SLURM_JOB_GPUS": None}, ONE, None),
        ({"SLURM_JOB_ID": None}, ONE, None),
        ({GRANTED: None}, ONE, None),
    ],
)
def test_what_is_a_grant_and_what_is_leased(
    changes: dict[str, str | None], seen: Snapshot, uuid: str | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, text in changes.items():
        if text is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, text)
    with held(tmp_path, seen) as (own, queue):
        if uuid:
            (device,) = (device for device in seen.devices if device.uuid == uuid)
            assert (own.uuid, own.bytes_, queue) == (uuid, device.total_b - RESERVE_B, [])
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
        else:
            assert (own.uuid, own.bytes_, queue) == ("GPU-a", 4 * GIB, ["GPU-a"])
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a"


def test_a_granted_device_that_is_too_small_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoDeviceError, match="more than"), held(tmp_path, gib=40):
        pass


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
