"""``tilewright devices``: its lines and ``--clear``."""

import contextlib
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.fake_nvml import GB, FakeDevice, FakeMachine, uuid
from tilewright.cli import app
from tilewright.devices.lease_folder import failures, lease_root, record_failure
from tilewright.devices.leases import wait_for_lease

FALLEN = "cudaErrorECCUncorrectable: uncorrectable ECC error"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """A card, a divided GPU with one instance, and a card on which CUDA failed."""
    card = FakeDevice(uuid(1), "NVIDIA GeForce RTX 4090", used_b=3 * GB)
    part = FakeDevice(uuid(3, "MIG"), "NVIDIA A100-SXM4-80GB MIG 1g.10gb", 10 * GB)
    divided = FakeDevice(uuid(2), "NVIDIA A100-SXM4-80GB", 80 * GB, mig=True, instances=[part])
    worst = FakeDevice(uuid(4), "NVIDIA H200 NVL 141GB HBM3e", 141 * GB, 100 * GB)
    monkeypatch.setenv("TILEWRIGHT_LEASE_ROOT", str(tmp_path / "leases"))
    record_failure(lease_root(), uuid(4), "deconvolve tonsil 1", FALLEN)
    return FakeMachine(tmp_path / "nvml.json", [card, divided, worst]).install(monkeypatch)


def called(machine: FakeMachine, *args: str, **variables: str) -> tuple[int, str]:
    """Return the exit code of the command, and what it says."""
    machine.write()
    done = CliRunner().invoke(app, ["devices", *args], env={"COLUMNS": "80", **variables})
    assert done.exit_code == 0 or isinstance(getattr(done.exception, "code", None), str)
    return done.exit_code, done.output


def said(machine: FakeMachine, **variables: str) -> str:
    code, text = called(machine, **variables)
    assert code == 0
    return text


def test_each_device_has_a_line(machine: FakeMachine) -> None:
    machine.devices[0].name = "NVIDIA [bold]\x1b[2J"  # text is data
    text = said(machine)
    a100 = "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    assert text.splitlines()[:3] == [
        f"GPU 0: {uuid(1)}, NVIDIA [bold]\\x1b[2J, 3.0/24.0 GB, no job",
        f"part of GPU 1: {uuid(3, 'MIG')}, {a100}, 0.0/10.0 GB, no job",
        f"GPU 2: {uuid(4)}, NVIDIA H200 NVL 141GB HBM3e, 100.0/141.0 GB, CUDA failed",
    ]


def test_a_failure_gives_its_reason_and_its_fix(machine: FakeMachine) -> None:
    words = rf"tilewright devices --clear {uuid(4)}; CUDA failed 20.* in deconvolve tonsil 1: "
    assert re.search(f"{uuid(4)} gets no jobs until .*: {words}{FALLEN}", said(machine))
    machine.devices[2].errors = {"*": 15}
    text = said(machine)
    assert f"{uuid(4)} gets no jobs" in text
    assert "note: GPU 2 is left out (GPU is lost)" in text


def test_jobs(machine: FakeMachine) -> None:
    machine.write()
    with contextlib.ExitStack() as locks:
        wait_for_lease("edf", GB, 0.0, locks)
        text = said(machine)
    assert f"job on {uuid(1)} since 20" in text
    assert " edf, process " in text
    assert re.search(f"{uuid(1)}.*, 1 job\n", text)


def test_no_gpu_and_no_cupy(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.library = False
    text = said(machine)
    assert text.startswith("no GPU can be used here")
    assert "NVML does not start" in text
    for found, words in ((None, "not installed: install tilewright[cuda12]"), (1, "installed\n")):
        monkeypatch.setattr("tilewright.commands.devices.find_spec", lambda _, one=found: one)
        assert f"CuPy is {words}" in said(machine)


def test_clear(machine: FakeMachine) -> None:
    machine.devices[2].errors = {"*": 15}  # also where it is gone
    assert called(machine, "--clear", uuid(4)) == (0, f"{uuid(4)} may be used again\n")
    assert failures(lease_root()) == {}


@pytest.mark.parametrize("name", [uuid(1), "", "GPU-00000004"])
def test_clear_what_is_not_there(machine: FakeMachine, name: str) -> None:
    said = f"tilewright devices: CUDA failed on no device '{name}'; tilewright devices lists fail"
    status, text = called(machine, "--clear", name)
    assert (status, text[: len(said)]) == (1, said)
    assert set(failures(lease_root())) == {uuid(4)}
