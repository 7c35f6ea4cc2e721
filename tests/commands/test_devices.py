"""``tilewright devices``: the table, JSON, ``--watch`` and ``--clear``."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.support.fake_nvml import GB, FakeDevice, FakeMachine, uuid
from tilewright.cli import app
from tilewright.commands.devices import DevicesView, as_json, look, print_view
from tilewright.devices.budget import RESERVE_B, LeaseClaim, Request
from tilewright.devices.health import note_failure, quarantined
from tilewright.devices.inventory import Snapshot
from tilewright.devices.lease_queue import lease_root

FALLEN = "NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """A card, a divided GPU with one instance, and a card that is quarantined."""
    card = FakeDevice(uuid(1), "NVIDIA GeForce RTX 4090", used_b=3 * GB, utilisation=0.42)
    part = FakeDevice(uuid(3, "MIG"), "NVIDIA A100-SXM4-80GB MIG 1g.10gb", 10 * GB)
    divided = FakeDevice(uuid(2), "NVIDIA A100-SXM4-80GB", 80 * GB, mig=True, instances=[part])
    part.utilisation = divided.utilisation = None
    worst = FakeDevice(uuid(4), "NVIDIA H200 NVL 141GB HBM3e", 141 * GB, 100 * GB, 1.0)
    made = FakeMachine(tmp_path / "nvml.json", [card, divided, worst])
    made.install(monkeypatch)
    monkeypatch.setenv("TILEWRIGHT_LEASE_ROOT", str(tmp_path / "leases"))
    note_failure(lease_root(), uuid(4), "deconvolve tonsil 1", "hardware", FALLEN)
    return made


def claim(uuid: str, bytes_: int, job: str, pid: int, since_s: float) -> LeaseClaim:
    """Return a lease, or what waits for one where it has no device."""
    request = Request(bytes_, job)
    return LeaseClaim(1, pid, request, (), since_s, uuid=uuid, granted_b=bytes_ * bool(uuid))


def seen(machine: FakeMachine, *, holders: Sequence[LeaseClaim] = (), **job_b: int) -> DevicesView:
    machine.write()
    return replace(look(lease_root(), job_b), holders=tuple(holders))


def table(view: DevicesView, *, terminal: bool = False) -> str:
    text = StringIO()
    print_view(view, Console(file=text, width=80, force_terminal=terminal))
    assert max(len(re.sub("\x1b.*?m", "", line)) for line in text.getvalue().splitlines()) <= 80
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


def started(machine: FakeMachine, *args: str) -> subprocess.Popen[str]:
    machine.write()
    return subprocess.Popen(
        [sys.executable, "-m", "tilewright.cli", "devices", *args],
        env=machine.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # tests in the background of a shell would hand on that SIGINT is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_devices_of_the_table(machine: FakeMachine) -> None:
    machine.devices[0].name = "NVIDIA [bold]"  # brackets are text
    text = table(seen(machine))
    assert "driver 550.54.15" in text
    assert row(text, "0 ") == ["0", "NVIDIA [bold]", "3.0/24.0", "42%", "no lease"]
    assert row(text, "1 └") == [
        "1 └", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "0.0/10.0", "no lease",
    ]  # fmt: skip
    assert row(text, "1  ")[-1] == "divided"
    assert row(text, "2 ")[-3:] == ["100.0/141.0", "100%", "quarantined"]
    for name in (uuid(1), uuid(2), uuid(3, "MIG"), uuid(4)):
        assert name in text
    assert "slots for jobs" not in text
    assert ("\x1b[" in text, "\x1b[" in table(seen(machine), terminal=True)) == (False, True)
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
    since_s = time.time() - 200
    holders = [
        claim(uuid(1), 8 * GB, "deconvolve tonsil 1", 4242, since_s),
        claim(uuid(1), 2 * GB, "register tonsil", 4243, since_s),
        claim(uuid(3, "MIG"), GB, "edf tonsil 1", 4244, since_s),
        claim("", 9 * GB, "deconvolve tonsil 2", 4245, since_s),
    ]
    text = table(seen(machine, holders=holders))
    assert row(text, "0 ")[-1] == "2 leases"
    assert row(text, "1 └")[-1] == "1 lease"
    cells = row(text, "deconvolve tonsil 1")
    assert cells[1:3] + cells[4:] == ["GPU 0", "8.0", "4242"]
    assert re.fullmatch(r"3\.[34] min", cells[3])
    assert row(text, "edf tonsil 1")[1:3] == ["MIG-00000003", "1.0"]
    assert row(text, "deconvolve tonsil 2")[1:3] == ["waits", "9.0"]


def test_slots_of_each_rule(machine: FakeMachine) -> None:
    view = seen(machine, deconvolve=6 * GB, register=2 * GB)
    assert view.slots == {
        "deconvolve": {uuid(1): 3, uuid(3, "MIG"): 1},
        "register": {uuid(1): 11, uuid(3, "MIG"): 4},
    }
    text = table(view)
    assert row(text, "slots for jobs") == ["slots for jobs", "GPU 0", "MIG-00000003", "GPU 2"]
    lines = [line.split() for line in text.splitlines()]
    assert ["deconvolve", "of", "5722", "MB", "3", "1", "0"] in lines
    assert ["register", "of", "1907", "MB", "11", "4", "0"] in lines
    machine.devices[0].total_b = RESERVE_B // 2
    assert seen(machine, edf=GB).slots["edf"][uuid(1)] == 0


def test_hidden_devices_and_reasons(machine: FakeMachine) -> None:
    text = " ".join(called(machine, CUDA_VISIBLE_DEVICES="0,7")[1].split())
    assert "hidden by CUDA_VISIBLE_DEVICES: GPU-00000002, MIG-00000003, GPU-00000004" in text
    assert "note: CUDA_VISIBLE_DEVICES: '7' names no GPU here" in text


def test_no_gpu_and_no_cupy(machine: FakeMachine) -> None:
    machine.library = False
    text = table(seen(machine))
    assert text.startswith("no GPU can be used here")
    assert "NVML does not start" in text
    assert "CuPy is installed" in table(DevicesView(Snapshot(()), cupy=True))
    assert "CuPy is not installed: install" in table(DevicesView(Snapshot(())))


def test_json_has_what_the_table_has(machine: FakeMachine) -> None:
    machine.devices[0].compute = [(7, GB)]
    holder = claim(uuid(1), 8 * GB, "deconvolve", 4242, 1e9)
    plain: dict[str, Any] = json.loads(
        json.dumps(as_json(seen(machine, holders=[holder], deconvolve=6 * GB)))
    )
    names = {"uuid": uuid(1), "index": 0, "name": "NVIDIA GeForce RTX 4090"}
    use = {"total_b": 24 * GB, "used_b": 4 * GB, "utilisation": 0.42}
    more = {"processes": [{"pid": 7, "used_b": GB}], "parent": None, "divided": False}
    assert plain["devices"][0] == names | use | more
    assert plain["devices"][2]["parent"] == uuid(2)
    assert plain["driver"] == "550.54.15"
    assert plain["leases"] == [
        {"uuid": uuid(1), "bytes": 8 * GB, "job": "deconvolve", "pid": 4242, "since_s": 1e9}
    ]
    assert FALLEN in plain["quarantined"][uuid(4)]["reason"]
    assert plain["slots"] == {"deconvolve": {uuid(1): 3, uuid(3, "MIG"): 1}}
    assert plain["hidden"] == []
    assert isinstance(plain["cupy"], bool)
    code, text = called(machine, "--json", CUDA_VISIBLE_DEVICES="0")
    assert [device["uuid"] for device in json.loads(text)["devices"]] == [uuid(1)]
    assert (code, json.loads(text)["hidden"]) == (0, [uuid(2), uuid(3, "MIG"), uuid(4)])


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
        ("GPU-", f"'GPU-' is more than one: {uuid(1)}, {uuid(2)}, {uuid(4)}; give more"),
    ],
)
def test_clear_what_is_not_there(machine: FakeMachine, name: str, said: str) -> None:
    assert called(machine, "--clear", name) == (1, f"tilewright devices: {said}\n")
    assert set(quarantined(lease_root())) == {uuid(4)}


def test_clear_a_device_that_is_gone_or_hidden(machine: FakeMachine) -> None:
    machine.devices[2].errors = {"*": 15}
    assert "may be used again" in called(machine, "--clear", "GPU-00000004")[1]
    note_failure(lease_root(), uuid(2), "x", "sticky", "illegal")
    said = called(machine, "--clear", "GPU-00000002", CUDA_VISIBLE_DEVICES="0")[1]
    assert "1 failure cleared" in said
    assert called(machine, "--clear", "GPU-00000004")[0] == 1


def test_a_broken_file_of_failures_is_one_sentence(machine: FakeMachine) -> None:
    (lease_root() / "health.json").write_text("{")
    with started(machine) as process:
        said, errors = process.communicate()
    assert (process.returncode, said) == (1, "")
    assert re.fullmatch(r"tilewright devices: .*health\.json cannot be read .*\n", errors)


def test_watch_looks_again_until_it_is_interrupted(machine: FakeMachine) -> None:
    watching = started(machine, "--watch", "--json")
    try:
        assert watching.stdout
        looks = (json.loads(line)["devices"][0]["used_b"] for line in watching.stdout)
        assert next(looks) == 3 * GB
        machine.devices[0].compute = [(7, 5 * GB)]
        machine.write()
        assert next(used_b for used_b in looks if used_b != 3 * GB) == 8 * GB
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=300)
    finally:
        watching.kill()
        watching.communicate()
    assert (watching.returncode, errors) == (0, "")
