"""What is known of GPUs, from what NVML's library answers; ``pynvml`` itself runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from tests.support.fake_nvml import GB, FakeDevice, FakeMachine, uuid
from tilewright.devices.inventory import Device, Snapshot, snapshot

LOST, DENIED, UNSUPPORTED, UNKNOWN = 15, 4, 3, 999


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """Three GPUs of different sizes."""
    devices = [FakeDevice(uuid(n), f"NVIDIA {n}", total_b=24 * GB * n) for n in (1, 2, 3)]
    made = FakeMachine(tmp_path / "nvml.json", devices)
    made.install(monkeypatch)
    return made


def look(machine: FakeMachine, **environ: str) -> Snapshot:
    """Look at the machine as it is now; the library must be closed after it."""
    machine.write()
    found = snapshot(environ)
    assert pynvml._nvmlLib_refcount == 0
    return found


def uuids(found: Snapshot) -> list[str]:
    return [device.uuid for device in found.devices]


def test_everything_of_a_gpu(machine: FakeMachine) -> None:
    machine.devices[1].used_b = 5 * GB
    machine.devices[1].utilisation = 0.42
    machine.devices[1].compute = [(7, 2 * GB)]
    found = look(machine)
    assert found.devices[1] == Device(
        uuid(2), 1, "NVIDIA 2", 48 * GB, 7 * GB, 0.42, ((7, 2 * GB),), None, divided=False
    )
    assert [device.total_b for device in found.devices] == [24 * GB, 48 * GB, 72 * GB]
    assert (found.driver, found.reason, found.hidden) == ("550.54.15", "", ())


def test_every_look_is_new(machine: FakeMachine) -> None:
    assert look(machine).devices[0].used_b == 0
    machine.hold(uuid(1), 7, 3 * GB)
    assert look(machine).devices[0].used_by_pid == ((7, 3 * GB),)
    machine.hold(uuid(1), 7, 0)
    assert look(machine).devices[0].used_b == 0


def test_a_process_that_computes_and_draws_counts_once(machine: FakeMachine) -> None:
    machine.devices[0].compute = [(9, 3), (7, 5)]
    machine.devices[0].graphics = [(7, 5), (8, 2)]
    assert look(machine).devices[0].used_by_pid == ((7, 5), (8, 2), (9, 3))


def test_memory_that_the_driver_does_not_tell_is_not_zero(machine: FakeMachine) -> None:
    machine.devices[0].compute = [(7, None), (8, 2)]
    found = look(machine)
    assert found.devices[0].used_by_pid == ((8, 2),)
    assert found.reason == "GPU 0: memory of process 7 is not known"


def test_no_library(machine: FakeMachine) -> None:
    machine.library = False
    found = look(machine)
    assert found.devices == ()
    assert "NVML Shared Library Not Found" in found.reason


@pytest.mark.parametrize(("code", "words"), [(9, "Driver Not Loaded"), (18, "mismatch")])
def test_a_library_that_does_not_start(machine: FakeMachine, code: int, words: str) -> None:
    machine.errors = {"nvmlInitWithFlags": code}
    found = look(machine)
    assert found.devices == ()
    assert words in found.reason


def test_no_python_package(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = snapshot({})
    assert found.devices == ()
    assert "pip install nvidia-ml-py" in found.reason


def test_no_gpus(machine: FakeMachine) -> None:
    machine.devices = []
    assert look(machine).reason == "NVML lists no GPU"
    machine.errors = {"nvmlDeviceGetCount_v2": UNKNOWN}
    assert look(machine).reason == "the number of GPUs is not known (Unknown Error)"


def test_the_driver_may_keep_its_version(machine: FakeMachine) -> None:
    machine.errors = {"nvmlSystemGetDriverVersion": UNSUPPORTED}
    found = look(machine)
    assert len(found.devices) == 3
    assert (found.driver, found.reason) == ("", "the driver's version is not known (Not Supported)")


def test_a_library_that_does_not_close(machine: FakeMachine) -> None:
    machine.errors = {"nvmlShutdown": UNKNOWN}
    machine.write()
    assert len(snapshot({}).devices) == 3


@pytest.mark.parametrize("code", [LOST, DENIED, UNKNOWN])
@pytest.mark.parametrize(
    ("symbol", "said"),
    [
        ("*", "GPU 1 is left out"),
        ("nvmlDeviceGetHandleByIndex_v2", "GPU 1 is left out"),
        ("nvmlDeviceGetUUID", "GPU 1 is left out: its UUID"),
        ("nvmlDeviceGetMigMode", "GPU 1 is left out: its MIG mode"),
        ("nvmlDeviceGetMemoryInfo", "GPU 1 is left out: its memory"),
    ],
)
def test_a_gpu_of_which_too_little_is_known_is_left_out(
    machine: FakeMachine, symbol: str, said: str, code: int
) -> None:
    machine.devices[1].errors = {symbol: code}
    found = look(machine)
    assert uuids(found) == [uuid(1), uuid(3)]
    assert said in found.reason
    assert str(pynvml.NVMLError(code)) in found.reason


@pytest.mark.parametrize(
    ("symbol", "said"),
    [
        ("nvmlDeviceGetName", "its name"),
        ("nvmlDeviceGetPciInfo_v3", "its PCI bus"),
        ("nvmlDeviceGetUtilizationRates", "its utilisation"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "who uses its memory (compute)"),
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", "who uses its memory (graphics)"),
    ],
)
def test_a_gpu_of_which_enough_is_known_stays(machine: FakeMachine, symbol: str, said: str) -> None:
    machine.devices[1].errors = {symbol: DENIED}
    found = look(machine)
    assert uuids(found) == [uuid(1), uuid(2), uuid(3)]
    assert found.reason == f"GPU 1: {said} is not known (Insufficient Permissions)"


def test_one_failing_list_of_processes_does_not_lose_the_other(machine: FakeMachine) -> None:
    machine.devices[0].compute, machine.devices[0].graphics = [(7, 5)], [(8, 2)]
    machine.devices[0].errors = {"nvmlDeviceGetComputeRunningProcesses_v3": UNSUPPORTED}
    found = look(machine)
    assert found.devices[0].used_by_pid == ((8, 2),)
    assert "Not Supported" in found.reason


def test_no_utilisation_is_usual(machine: FakeMachine) -> None:
    machine.devices[0].utilisation = None
    found = look(machine)
    assert (found.devices[0].utilisation, found.devices[1].utilisation) == (None, 0.0)
    assert found.reason == ""


def test_numbers_go_by_pci_bus(machine: FakeMachine) -> None:
    for device, bus in zip(machine.devices, ("C1", "0A", "3B"), strict=True):
        device.pci = f"00000000:{bus}:00.0"
    found = look(machine)
    assert uuids(found) == [uuid(2), uuid(3), uuid(1)]
    assert [device.index for device in found.devices] == [0, 1, 2]
    assert uuids(look(machine, CUDA_VISIBLE_DEVICES="2")) == [uuid(1)]


def test_a_lost_gpu_keeps_its_number_and_a_forbidden_one_has_none(machine: FakeMachine) -> None:
    machine.devices[0].errors = {"nvmlDeviceGetHandleByIndex_v2": LOST}
    assert [device.index for device in look(machine).devices] == [1, 2]
    machine.devices[0].errors = {"nvmlDeviceGetHandleByIndex_v2": DENIED}
    assert [device.index for device in look(machine).devices] == [0, 1]


def test_cuda_visible_devices_hides(machine: FakeMachine) -> None:
    found = look(machine, CUDA_VISIBLE_DEVICES="2,0")
    assert uuids(found) == [uuid(3), uuid(1)]
    assert found.hidden == (uuid(2),)
    machine.devices[1].errors = {"nvmlDeviceGetMemoryInfo": LOST}
    found = look(machine, CUDA_VISIBLE_DEVICES="2,1,0")
    assert uuids(found) == [uuid(3)]
    assert "GPU 1 is left out" in found.reason
    assert "'1' names no GPU here" in found.reason


@pytest.fixture
def mig(machine: FakeMachine) -> FakeMachine:
    """The second GPU is divided, with an empty place between two instances."""
    small = FakeDevice(uuid(1, "MIG"), "MIG 1g", total_b=5 * GB, utilisation=None)
    large = FakeDevice(uuid(2, "MIG"), "MIG 3g", total_b=20 * GB, utilisation=None)
    large.compute = [(7, GB)]
    machine.devices[0].mig = False
    machine.devices[1].mig = True
    machine.devices[1].instances = [small, None, large]
    return machine


def test_mig_instances_are_devices(mig: FakeMachine) -> None:
    found = look(mig)
    assert uuids(found) == [uuid(1), uuid(2), uuid(1, "MIG"), uuid(2, "MIG"), uuid(3)]
    assert [device.divided for device in found.devices] == [False, True, False, False, False]
    assert found.devices[3] == Device(
        uuid(2, "MIG"), 1, "MIG 3g", 20 * GB, GB, None, ((7, GB),), uuid(2)
    )
    assert found.reason == ""


def test_instances_stay_where_the_memory_of_all_is_for_administrators(mig: FakeMachine) -> None:
    mig.devices[1].errors = {"nvmlDeviceGetMemoryInfo": DENIED}
    found = look(mig)
    assert uuids(found) == [uuid(1), uuid(1, "MIG"), uuid(2, "MIG"), uuid(3)]
    assert found.reason == ""


@pytest.mark.parametrize("symbol", ["nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"])
def test_an_instance_of_which_too_little_is_known_is_left_out(
    mig: FakeMachine, symbol: str
) -> None:
    assert mig.devices[1].instances[0]
    mig.devices[1].instances[0].errors = {symbol: UNKNOWN}
    found = look(mig)
    assert uuids(found) == [uuid(1), uuid(2), uuid(2, "MIG"), uuid(3)]
    assert "instance 0 of GPU 1 is left out" in found.reason


@pytest.mark.parametrize(
    "symbol", ["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"]
)
def test_instances_that_cannot_be_listed(mig: FakeMachine, symbol: str) -> None:
    mig.devices[1].errors = {symbol: UNKNOWN}
    found = look(mig)
    assert uuids(found) == [uuid(1), uuid(2), uuid(3)]
    assert "GPU 1" in found.reason


def test_an_instance_named_by_the_environment(mig: FakeMachine) -> None:
    found = look(mig, CUDA_VISIBLE_DEVICES=uuid(2, "MIG"))
    assert uuids(found) == [uuid(2), uuid(2, "MIG")]


def test_a_driver_without_the_call_has_no_instances(machine: FakeMachine) -> None:
    machine.missing = ["nvmlDeviceGetMigMode"]
    found = look(machine)
    assert (len(found.devices), found.reason) == (3, "")


def test_an_old_driver_does_not_tell_of_processes(machine: FakeMachine) -> None:
    machine.devices[0].graphics = [(8, 2)]
    machine.missing = ["nvmlDeviceGetComputeRunningProcesses_v3"]
    found = look(machine)
    assert (len(found.devices), found.devices[0].used_by_pid) == (3, ((8, 2),))
    assert "GPU 0: who uses its memory (compute) is not known (Function Not Found)" in found.reason


CHILD = """
import json, sys
from dataclasses import asdict
import tilewright.devices.inventory as nvml
lazy = "pynvml" not in sys.modules
found = nvml.snapshot()
libraries = [name for name in ("cupy", "torch", "jax", "numpy") if name in sys.modules]
print(json.dumps([asdict(found), lazy, libraries]))
"""


def test_a_child_process_sees_the_same_machine_and_loads_no_array_library(
    machine: FakeMachine,
) -> None:
    machine.devices[2].used_b = 5
    here = look(machine)
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=machine.environ(), capture_output=True, check=True
    )
    there, lazy, libraries = json.loads(done.stdout)
    assert [device["uuid"] for device in there["devices"]] == uuids(here)
    assert there["devices"][2]["used_b"] == 5
    assert (lazy, libraries) == (True, [])


def test_a_driver_forgets_the_dead(machine: FakeMachine) -> None:
    machine.real_pids = True
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        machine.devices[0].compute = [(child.pid, 5)]
        assert look(machine).devices[0].used_by_pid == ((child.pid, 5),)
        child.kill()
        child.wait()
        assert look(machine).devices[0].used_b == 0


@pytest.mark.gpu
def test_the_driver_of_this_machine_tells_what_nvidia_smi_tells() -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no NVIDIA driver")
    asked = ["nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    listed = dict(line.split(", ") for line in done.stdout.splitlines())
    found = {device.uuid: device for device in snapshot({}).devices if device.parent is None}
    assert set(found) == set(listed)
    for name, device in found.items():
        assert device.total_b // 2**20 == int(listed[name])
        assert 0 <= device.used_b <= device.total_b
