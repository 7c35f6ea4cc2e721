"""What Slurm allocated is used as it is, without a lease."""

import os

import pytest

from tests.devices.leases.lease_jobs import GIB, gpus
from tests.support.fake_nvml import FakeMachine
from tilewright.devices.leases import (
    ALLOCATED,
    CONTEXT_B,
    RESERVE_B,
    Lease,
    allocated,
    by_slurm,
    use_allocated_device,
)


@pytest.fixture(autouse=True)
def slurm_job(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, text in {"SLURM_JOB_ID": "7", ALLOCATED: "1", "SLURM_JOB_GPUS": "3"}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


def test_the_job_has_all_of_the_allocated_device() -> None:
    assert allocated() == Lease("GPU-a", 25 * GIB - RESERVE_B - CONTEXT_B)


@pytest.mark.parametrize("case", ["NVML does not answer", "several devices"])
def test_where_it_is_not_known_which_one_it_is_slurm_is_trusted(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    machine.library = case == "several devices"
    machine.devices = gpus(25, 25)
    machine.write()
    visible = "0,1" if machine.library else "0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    lease = allocated()
    assert (lease.uuid.partition(":")[2], lease.arrays_b) == (visible, 0)


@pytest.mark.parametrize(
    ("changes", "is_allocated"),
    [
        ({"SLURM_JOB_GPUS": "", "SLURM_STEP_GPUS": "3"}, True),
        # variables of a login, or of an allocation around Snakemake
        ({"SLURM_JOB_GPUS": ""}, False),
        ({"SLURM_JOB_ID": ""}, False),
        ({ALLOCATED: ""}, False),
    ],
)
def test_what_is_an_allocation(
    changes: dict[str, str], is_allocated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in changes.items():
        monkeypatch.setenv(name, text)
    assert by_slurm() == is_allocated


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
