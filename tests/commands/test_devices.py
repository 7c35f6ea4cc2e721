"""``tilewright devices``: the table, JSON and ``--clear``."""

import contextlib
import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.support.fake_nvml import GB, FakeDevice, FakeMachine, uuid
from tilewright.cli import app
from tilewright.commands.devices import DevicesView, print_view
from tilewright.devices.health import failures, record_failure
from tilewright.devices.lease_folder import lease_root
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


def seen(machine: FakeMachine, *leases: tuple[str, str]) -> DevicesView:
    machine.write()
    return replace(DevicesView.now(lease_root()), leases=[*leases])


def table(view: DevicesView) -> str:
    text = StringIO()
    print_view(view, Console(file=text, width=80))
    assert max(len(line) for line in text.getvalue().splitlines()) <= 80
    return text.getvalue()


def row(text: str, start: str) -> list[str]:
    """Return the cells of the line that begins so."""
    line = next(line for line in text.splitlines() if line.startswith(start))
    return re.split(r"\s{2,}", line.strip())


def called(machine: FakeMachine, *args: str, **variables: str) -> tuple[int, str]:
    """Return the exit code of the command, and what it says."""
    machine.write()
    done = CliRunner().invoke(app, ["devices", *args], env={"COLUMNS": "80", **variables})
    assert done.exit_code == 0 or isinstance(getattr(done.exception, "code", None), str)
    return done.exit_code, done.output


def test_devices_of_the_table(machine: FakeMachine) -> None:
    machine.devices[0].name = "NVIDIA [bold]"  # brackets are text
    text = table(seen(machine))
    assert row(text, "0 ") == ["0", "NVIDIA [bold]", "3.0/24.0", "no job"]
    assert row(text, "1 └") == ["1 └", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "0.0/10.0", "no job"]
    assert row(text, "2 ")[-2:] == ["100.0/141.0", "CUDA failed"]
    for name in (uuid(1), uuid(3, "MIG"), uuid(4)):
        assert name in text
    assert called(machine) == (0, text)


def test_a_failure_gives_its_reason_and_its_fix(machine: FakeMachine) -> None:
    text = " ".join(table(seen(machine)).split())
    words = r"gets no jobs until the machine restarts: CUDA failed 20.* in deconvolve tonsil 1: "
    assert re.search(f"{uuid(4)} {words}{FALLEN}", text)
    assert "→ tilewright devices --clear GPU-00000004" in text
    machine.devices[2].errors = {"*": 15}
    text = " ".join(table(seen(machine)).split())
    assert f"{uuid(4)} gets no jobs" in text
    assert "note: GPU 2 is left out (GPU is lost)" in text


def test_leases(machine: FakeMachine) -> None:
    jobs = ["2026-11-21 08:55 deconvolve tonsil [1], process 4242", "2026-11-21 08:56 register, 7"]
    text = table(
        seen(machine, *((uuid(1), job) for job in jobs), (uuid(3, "MIG"), "2026-11-21 09:00 edf"))
    )
    assert row(text, "0 ")[-1] == "2 jobs"
    assert row(text, "1 └")[-1] == "1 job"
    assert row(text, "GPU-00000001") == ["GPU-00000001", jobs[0]]
    assert row(text, "MIG-00000003")[1].endswith("edf")


def test_hidden_devices_and_reasons(machine: FakeMachine) -> None:
    text = " ".join(called(machine, CUDA_VISIBLE_DEVICES="0,7")[1].split())
    assert "only those of CUDA_VISIBLE_DEVICES=0,7" in text
    assert "note: CUDA_VISIBLE_DEVICES: '7' names no GPU here" in text


def test_no_gpu_and_no_cupy(machine: FakeMachine) -> None:
    machine.library = False
    text = table(seen(machine))
    assert text.startswith("no GPU can be used here")
    assert "NVML does not start" in text
    assert "CuPy is installed" in table(replace(seen(machine), cupy=True))
    assert "CuPy is not installed: install tilewright[cuda12]" in table(
        replace(seen(machine), cupy=False)
    )


def test_json_has_what_the_table_has(machine: FakeMachine) -> None:
    with contextlib.ExitStack() as locks:
        wait_for_lease("edf", GB, 0.0, locks)
        code, text = called(machine, "--json", CUDA_VISIBLE_DEVICES="0")
    told = json.loads(text)
    names = {"uuid": uuid(1), "index": 0, "name": "NVIDIA GeForce RTX 4090", "parent": None}
    assert told["devices"] == [{**names, "total_b": 24 * GB, "used_b": 3 * GB}]
    ((device, job),) = told["leases"]
    assert (device, " edf, process " in job) == (uuid(1), True)
    assert FALLEN in told["failed"][uuid(4)]
    assert (code, isinstance(told["cupy"], bool)) == (0, True)


@pytest.mark.parametrize("name", [uuid(4), "GPU-00000004"])
def test_clear(machine: FakeMachine, name: str) -> None:
    machine.devices[2].errors = {"*": 15}  # also where it is gone
    assert called(machine, "--clear", name) == (0, f"{uuid(4)} may be used again\n")
    assert failures(lease_root()) == {}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("GPU-9", "CUDA failed on no device 'GPU-9'; tilewright devices lists failures"),
        (uuid(1), f"CUDA failed on no device '{uuid(1)}'; tilewright devices lists failures"),
        ("", "CUDA failed on no device ''; tilewright devices lists failures"),
        ("GPU-", f"'GPU-' is more than one device: {uuid(4)}, {uuid(5)}; give more characters"),
    ],
)
def test_clear_what_is_not_there(machine: FakeMachine, name: str, said: str) -> None:
    record_failure(lease_root(), uuid(5), "edf/a", "illegal")
    assert called(machine, "--clear", name) == (1, f"tilewright devices: {said}\n")
    assert set(failures(lease_root())) == {uuid(4), uuid(5)}
