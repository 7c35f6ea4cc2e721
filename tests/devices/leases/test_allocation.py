"""What Slurm allocated is used as it is, without a lease."""

import os
from pathlib import Path

import pytest

from tests.devices.leases.lease_jobs import GIB, gpus, holders
from tests.support.fake_nvml import FakeDevice, FakeMachine
from tilewright.devices.device_lease import Request
from tilewright.devices.leases import RESERVE_B, lease
from tilewright.devices.slurm_allocation import ALLOCATED, use_allocated_device


@pytest.fixture(autouse=True)
def slurm_job(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, text in {"SLURM_JOB_ID": "7", ALLOCATED: "1", "SLURM_JOB_GPUS": "3"}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


def test_the_allocated_device_is_held_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_LEASE_ROOT", str(tmp_path / "missing" / "root"))
    evidence = tmp_path / "jobs.jsonl"
    with lease(Request(4 * GIB, "edf"), evidence) as own:
        assert (own.uuid, own.bytes_) == ("GPU-a", 25 * GIB - RESERVE_B)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
        assert os.environ["TILEWRIGHT_DEVICE"] == "gpu"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert '"uuid": "GPU-a"' in evidence.read_text()


@pytest.mark.parametrize("case", ["NVML does not answer", "several devices"])
def test_where_it_is_not_known_which_one_it_is_slurm_is_trusted(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    machine.library = case == "several devices"
    machine.devices = gpus(25, 25)
    machine.write()
    visible = "0,1" if machine.library else "0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with lease(Request(4 * GIB, "edf")) as own:
        assert own.uuid.partition(":")[2] == os.environ["CUDA_VISIBLE_DEVICES"] == visible
        assert "CUPY_GPU_MEMORY_LIMIT" not in os.environ
        assert holders() == []


@pytest.mark.parametrize(
    ("changes", "leased"),
    [
        ({"SLURM_JOB_GPUS": "", "SLURM_STEP_GPUS": "3"}, False),
        # variables of a login, or of an allocation around Snakemake
        ({"SLURM_JOB_GPUS": ""}, True),
        ({"SLURM_JOB_ID": ""}, True),
        ({ALLOCATED: ""}, True),
    ],
)
def test_what_is_an_allocation_and_what_is_leased(
    changes: dict[str, str], leased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in changes.items():
        monkeypatch.setenv(name, text)
    with lease(Request(4 * GIB, "edf")) as own:
        assert own.bytes_ == (4 * GIB if leased else 25 * GIB - RESERVE_B)
        assert holders() == ["edf"] * leased
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ("GPU-a" if leased else "0")


def test_an_allocated_instance(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.devices[0].mig = True
    machine.devices[0].instances = [FakeDevice(f"MIG-{k}", total_b=20 * GIB) for k in "bc"]
    machine.write()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-c")
    with lease(Request(4 * GIB, "edf")) as own:
        assert (own.uuid, own.bytes_) == ("MIG-c", 20 * GIB - RESERVE_B)


@pytest.mark.parametrize(
    ("allocation", "device"), [("SLURM_JOB_GPUS", "gpu"), ("SLURM_STEP_GPUS", "gpu"), ("", "cpu")]
)
def test_a_job_on_slurm_uses_what_slurm_allocated_and_no_variable_of_the_shell(
    allocation: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_GPUS", ALLOCATED):
        monkeypatch.delenv(name)
    monkeypatch.setenv("TILEWRIGHT_DEVICE", "auto")
    if allocation:
        monkeypatch.setenv(allocation, "3")
    use_allocated_device()
    assert (os.environ["TILEWRIGHT_DEVICE"], os.environ[ALLOCATED]) == (device, "1")
