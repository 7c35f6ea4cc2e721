"""``tilewright devices``: the table, JSON and ``--clear``."""

import json
import re
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.support.fake_nvml import GB, FakeDevice, FakeMachine, uuid
from tilewright.cli import app
from tilewright.commands.devices import DevicesView, print_view
from tilewright.devices.device_lease import Request
from tilewright.devices.health import quarantined, record_failure
from tilewright.devices.lease_folder import lease_root
from tilewright.devices.leases import Holder, lease

FALLEN = "NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """A card, a divided GPU with one instance, and a card that is quarantined."""
    card = FakeDevice(uuid(1), "NVIDIA GeForce RTX 4090", used_b=3 * GB, utilisation=0.42)
    part = FakeDevice(uuid(3, "MIG"), "NVIDIA A100-SXM4-80GB MIG 1g.10gb", 10 * GB)
    divided = FakeDevice(uuid(2), "NVIDIA A100-SXM4-80GB", 80 * GB, mig=True, instances=[part])
    part.utilisation = divided.utilisation = None
    worst = FakeDevice(uuid(4), "NVIDIA H200 NVL 141GB HBM3e", 141 * GB, 100 * GB, 1.0)
    monkeypatch.setenv("TILEWRIGHT_LEASE_ROOT", str(tmp_path / "leases"))
    record_failure(lease_root(), uuid(4), "deconvolve tonsil 1", "hardware", FALLEN)
    return FakeMachine(tmp_path / "nvml.json", [card, divided, worst]).install(monkeypatch)


def holder(uuid: str, job: str, pid: int, since_s: float = 1e9) -> Holder:
    return Holder(uuid, job, pid, since_s, 8 * GB, 0)


def seen(machine: FakeMachine, *holders: Holder) -> DevicesView:
    machine.write()
    return replace(DevicesView.now(lease_root()), leases=[*holders])


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
    assert "driver 550.54.15" in text
    assert row(text, "0 ") == ["0", "NVIDIA [bold]", "3.0/24.0", "42%", "no lease"]
    assert row(text, "1 └") == [
        "1 └", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "0.0/10.0", "no lease",
    ]  # fmt: skip
    assert row(text, "2 ")[-3:] == ["100.0/141.0", "100%", "quarantined"]
    for name in (uuid(1), uuid(3, "MIG"), uuid(4)):
        assert name in text
    assert called(machine) == (0, text)


def test_a_quarantine_gives_its_reason_and_its_fix(machine: FakeMachine) -> None:
    text = " ".join(table(seen(machine)).split())
    assert f"{uuid(4)} gets no jobs for 24.0 h: hardware fault in deconvolve" in text
    assert FALLEN in text
    assert "→ tilewright devices --clear GPU-00000004" in text
    machine.devices[2].errors = {"*": 15}
    text = " ".join(table(seen(machine)).split())
    assert f"{uuid(4)} gets no jobs" in text
    assert "note: GPU 2 is left out (GPU is lost)" in text


def test_holders(machine: FakeMachine) -> None:
    text = table(
        seen(
            machine,
            holder(uuid(1), "deconvolve tonsil [1]", 4242, time.time() - 200),
            holder(uuid(1), "register tonsil", 4243),
            holder(uuid(3, "MIG"), "edf tonsil 1", 4244),
        )
    )
    assert row(text, "0 ")[-1] == "2 leases"
    assert row(text, "1 └")[-1] == "1 lease"
    cells = row(text, "deconvolve tonsil [1]")
    assert cells[1:3] + cells[4:] == ["GPU-00000001", "8.0", "4242"]
    assert re.fullmatch(r"3\.[34] min", cells[3])
    assert row(text, "edf tonsil 1")[1] == "MIG-00000003"


def test_hidden_devices_and_reasons(machine: FakeMachine) -> None:
    text = " ".join(called(machine, CUDA_VISIBLE_DEVICES="0,7")[1].split())
    assert "hidden by CUDA_VISIBLE_DEVICES: MIG-00000003, GPU-00000004" in text
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
    with lease(Request(2 * GB, "edf")):
        code, text = called(machine, "--json", CUDA_VISIBLE_DEVICES="0")
    told = json.loads(text)
    names = {"uuid": uuid(1), "index": 0, "name": "NVIDIA GeForce RTX 4090"}
    use = {"total_b": 24 * GB, "used_b": 3 * GB, "utilisation": 0.42}
    assert told["devices"][0] == names | use | {"parent": None}
    (held,) = told["leases"]
    assert (held["uuid"], held["job"], held["granted_b"]) == (uuid(1), "edf", 2 * GB)
    assert FALLEN in told["quarantined"][uuid(4)]["reason"]
    assert (code, told["driver"], isinstance(told["cupy"], bool)) == (0, "550.54.15", True)
    assert uuid(4) in told["hidden"]


@pytest.mark.parametrize("name", [uuid(4), "GPU-00000004"])
def test_clear(machine: FakeMachine, name: str) -> None:
    said = f"{uuid(4)} may be used again: 1 failure cleared\n"
    assert called(machine, "--clear", name) == (0, said)
    assert quarantined(lease_root()) == {}
    said = f"{uuid(4)}: no failure counts against it\n"
    assert called(machine, "--clear", name) == (0, said)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("GPU-9", "there is no device 'GPU-9' here; tilewright devices lists them"),
        ("", "there is no device '' here; tilewright devices lists them"),
        ("GPU-", f"'GPU-' is more than one device: {uuid(1)}, {uuid(4)}; give more characters"),
    ],
)
def test_clear_what_is_not_there(machine: FakeMachine, name: str, said: str) -> None:
    assert called(machine, "--clear", name) == (1, f"tilewright devices: {said}\n")
    assert set(quarantined(lease_root())) == {uuid(4)}


def test_clear_a_device_that_is_gone_or_hidden(machine: FakeMachine) -> None:
    machine.devices[2].errors = {"*": 15}
    assert "may be used again" in called(machine, "--clear", "GPU-00000004")[1]
    record_failure(lease_root(), uuid(3, "MIG"), "x", "sticky", "illegal")
    said = called(machine, "--clear", "MIG-00000003", CUDA_VISIBLE_DEVICES="0")[1]
    assert "1 failure cleared" in said
    assert called(machine, "--clear", "GPU-00000004")[0] == 1
