"""What is known of GPUs, from what NVML answers, and which of them are visible."""

import re
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.fake_nvml import GB, FakeDevice, FakeMachine, uuid
from tests.support.fake_nvml.preload import fake_nvml_library
from tilewright.devices.inventory import Device, Snapshot, has_driver, snapshot, visible

LOST, DENIED, NO_FUNCTION, UNKNOWN = 15, 4, 13, 999
#: The GPUs and instances of the tests, in NVML's order.
A, B, C, B1, B2 = uuid(1), uuid(2), uuid(3), uuid(1, "MIG"), uuid(2, "MIG")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """Three GPUs of different sizes."""
    devices = [FakeDevice(uuid(n), f"NVIDIA {n}", total_b=24 * GB * n) for n in (1, 2, 3)]
    return FakeMachine(tmp_path / "nvml.json", devices).install(monkeypatch)


@pytest.fixture
def mig(machine: FakeMachine) -> FakeMachine:
    """The second GPU is divided, with an empty place between two instances."""
    small = FakeDevice(B1, "MIG 1g", total_b=5 * GB)
    large = FakeDevice(B2, "MIG 3g", total_b=20 * GB, used_b=GB)
    machine.devices[0].mig, machine.devices[1].mig = False, True
    machine.devices[1].instances = [small, None, large]
    return machine


def look(machine: FakeMachine, **environ: str) -> Snapshot:
    """Look at the machine as it is now; the library must be closed after it."""
    machine.write()
    found = snapshot(environ)
    assert fake_nvml_library.started == 0
    return found


def uuids(found: Snapshot) -> list[str]:
    return [device.uuid for device in found.devices]


def test_everything_of_a_gpu(machine: FakeMachine) -> None:
    for used_b in (5 * GB, 7 * GB):  # every look is new
        machine.devices[1].used_b = used_b
        found = look(machine)
        assert found.devices[1] == Device(B, 1, "NVIDIA 2", 48 * GB, used_b)
    assert [device.total_b for device in found.devices] == [24 * GB, 48 * GB, 72 * GB]
    assert found.reason == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"library": False}, ".*NVML Shared Library Not Found.*"),
        ({"errors": {"nvmlInit": 9}}, ".*Driver Not Loaded.*"),
        ({"devices": []}, "NVML lists no GPU"),
    ],
)  # fmt: skip
def test_why_there_is_no_gpu(machine: FakeMachine, changes: dict[str, Any], said: str) -> None:
    vars(machine).update(changes)
    found = look(machine)
    assert found.devices == ()
    assert re.fullmatch(said, found.reason)


@pytest.mark.parametrize("driver", [True, False])
def test_a_machine_without_nvidia_ml_py(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: bool
) -> None:
    """With a driver the package that is missing is said; without one there is nothing to say."""
    monkeypatch.setattr("tilewright.devices.inventory._DRIVER", [tmp_path] if driver else [])
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert has_driver() is driver
    missing = "nvidia-ml-py is not installed: install tilewright[cuda12] or [cuda13]"
    assert snapshot({}) == Snapshot((), missing if driver else "there is no NVIDIA driver")


@pytest.mark.parametrize("code", [LOST, DENIED])
@pytest.mark.parametrize(
    "symbol",
    [
        *("*", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo", "nvmlDeviceGetUUID"),
        "nvmlDeviceGetMemoryInfo",
    ],
)
def test_a_gpu_of_which_too_little_is_known_is_left_out(
    machine: FakeMachine, symbol: str, code: int
) -> None:
    machine.devices[1].errors = {symbol: code}
    found = look(machine)
    assert uuids(found) == [A, C]
    assert found.reason == f"GPU 1 is left out ({pynvml.NVMLError(code)})"


def test_numbers_go_by_pci_bus(machine: FakeMachine) -> None:
    for device, bus in zip(machine.devices, ("C1", "0A", "3B"), strict=True):
        device.pci = f"00000000:{bus}:00.0"
    found = look(machine)
    assert [(device.uuid, device.index) for device in found.devices] == [(B, 0), (C, 1), (A, 2)]
    assert uuids(look(machine, CUDA_VISIBLE_DEVICES="2")) == [A]


def test_cuda_visible_devices_hides(mig: FakeMachine) -> None:
    found = look(mig, CUDA_VISIBLE_DEVICES="2,0")
    assert uuids(found) == [A, C]
    assert uuids(look(mig, CUDA_VISIBLE_DEVICES=B2)) == [B2]
    mig.devices[0].errors = {"nvmlDeviceGetMemoryInfo": LOST}
    found = look(mig, CUDA_VISIBLE_DEVICES="2,0,1")
    assert uuids(found) == [B1, B2, C]
    assert "GPU 0 is left out" in found.reason
    assert "'0' names no GPU here" in found.reason


def test_mig_instances_are_devices(mig: FakeMachine) -> None:
    found = look(mig)
    assert uuids(found) == [A, B1, B2, C]
    assert found.devices[2] == Device(B2, 1, "MIG 3g", 20 * GB, GB, B)
    assert found.reason == ""


WHOLE = [Device(uuid(index + 1), index, "fake", 24, 0) for index in range(3)]
#: The GPU of two instances.
HALVED = uuid(4)
LEFT, RIGHT = (Device(uuid(n, "MIG"), 3, "fake", 5, 0, parent=HALVED) for n in (1, 2))
MIXED = [*WHOLE, LEFT, RIGHT]


@pytest.mark.parametrize(
    ("devices", "text", "shown", "said"),
    [
        (WHOLE, "2,1", [1, 2], "^$"),
        (WHOLE, "0,7,1", [0, 1], "'7' names no GPU here"),
        (WHOLE, uuid(2), [1], "^$"),
        (WHOLE, "GPU-00000003, 0", [0, 2], "^$"),
        (WHOLE, "", [], "'' names no GPU here"),
        (MIXED, RIGHT.uuid, [4], "^$"),
        (MIXED, "3", [3, 4], "^$"),
        (MIXED, HALVED, [3, 4], "^$"),
        (MIXED, "1,MIG-9", [1], "'MIG-9' names no GPU here"),
    ],
)
def test_what_a_process_sees(devices: list[Device], text: str, shown: list[int], said: str) -> None:
    found, reason = visible(devices, text)
    assert list(found) == [devices[place] for place in shown]
    assert re.search(said, reason)
