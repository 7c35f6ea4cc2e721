"""Which device kinds the rules may use here, and the local pools."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import STANDIN
from tests.support.fake_nvml import GB, FakeDevice, FakeMachine, uuid
from tilewright.config.settings import RuleResources, Settings
from tilewright.devices.inventory import Snapshot
from tilewright.devices.lease_folder import record_failure
from tilewright.errors import ConfigError, DeviceError
from tilewright.runtime.machine import device_kinds, gpus_of_jobs, pools, usable_gpus, usable_slots

BOTH, GPU, CPU = ("gpu", "cpu"), ("gpu",), ("cpu",)


def none() -> Snapshot:
    return Snapshot((), "NVML does not start: is there an NVIDIA driver?")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    monkeypatch.setenv("TILEWRIGHT_LEASE_ROOT", str(tmp_path / "leases"))
    monkeypatch.syspath_prepend(str(STANDIN))
    devices = [FakeDevice(uuid(1)), FakeDevice(uuid(2))]
    return FakeMachine(tmp_path / "nvml.json", devices).install(monkeypatch)


def some(machine: FakeMachine) -> Callable[[], Snapshot]:
    assert len(usable_gpus().devices) == len(machine.devices)
    return usable_gpus


def settings(device: str = "auto", **rules: str) -> Settings:
    resources = {rule: RuleResources.model_validate({"device": d}) for rule, d in rules.items()}
    return Settings.model_construct(device=device, resources=resources)


def test_auto_takes_what_there_is(machine: FakeMachine) -> None:
    assert set(device_kinds(settings(), some(machine), {}).values()) == {BOTH}
    assert set(device_kinds(settings(), none, {}).values()) == {CPU}
    assert set(device_kinds(settings(), None, {}).values()) == {BOTH}  # a cluster's partitions


def test_jobs_of_a_cluster_use_its_gpus_only_with_cupy(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(device_kinds(settings(), gpus_of_jobs, {}).values()) == {BOTH}
    spec = "tilewright.runtime.machine.find_spec"
    monkeypatch.setattr(spec, lambda name: None if name == "pynvml" else name)
    with pytest.raises(ConfigError, match="nvidia-ml-py is not installed: install tilewright"):
        device_kinds(settings("gpu"), gpus_of_jobs, {})
    monkeypatch.setattr(spec, lambda _: None)
    assert set(device_kinds(settings(), gpus_of_jobs, {}).values()) == {CPU}
    with pytest.raises(ConfigError, match="CuPy is not installed: install tilewright"):
        device_kinds(settings("gpu"), gpus_of_jobs, {})


def test_a_rule_wins_over_the_variable_and_that_over_the_config(machine: FakeMachine) -> None:
    chosen = settings("gpu", stitch="cpu", deconvolve="auto")
    kinds = device_kinds(chosen, some(machine), {})
    assert (kinds["stitch"], kinds["deconvolve"], kinds["register"]) == (CPU, BOTH, GPU)
    kinds = device_kinds(chosen, some(machine), {"TILEWRIGHT_DEVICE": "cpu"})
    assert (kinds["stitch"], kinds["deconvolve"], kinds["register"]) == (CPU, BOTH, CPU)


@pytest.mark.parametrize(
    ("environ", "chosen", "rule", "key"),
    [
        ({}, settings("gpu"), "", "device"),
        ({"TILEWRIGHT_DEVICE": "gpu"}, settings(), "deconvolve", "TILEWRIGHT_DEVICE"),
        ({}, settings(deconvolve="gpu"), "deconvolve", "resources.deconvolve.device"),
        ({}, settings(resample="gpu"), "resample", "resources.resample.device"),
    ],
)
def test_a_gpu_that_is_demanded_and_not_there_is_named_with_the_rule_and_the_fix(
    environ: dict[str, str], chosen: Settings, rule: str, key: str
) -> None:
    with pytest.raises(ConfigError, match=rf"; set {re.escape(key)} to auto or cpu") as caught:
        device_kinds(chosen, none, environ)
    assert f"rule {rule}" in str(caught.value)
    assert "NVML does not start" in str(caught.value)


def test_pools_count_what_is_visible_and_healthy(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus = len(os.sched_getaffinity(0))
    assert pools() == {"gpu": 2, "cpu": max(1, cpus - 4)}
    with monkeypatch.context() as three:  # those that share a GPU leave fewer CPUs
        three.setenv("TILEWRIGHT_JOBS_PER_GPU", "3")
        assert pools() == {"gpu": 6, "cpu": max(1, cpus - 12)}
    record_failure(tmp_path / "leases", uuid(1), "job", "fell off the bus")
    assert pools() == {"gpu": 1, "cpu": max(1, cpus - 2)}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid(1))
    assert (usable_slots(), pools()) == (0, {})
    assert re.search(f"CUDA failed on {uuid(1)}: .* in job: fell off", usable_gpus().reason)


def test_a_gpu_without_cupy_is_not_used_and_the_reason_is_said(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(STANDIN)])
    reason = "CuPy is not installed: install tilewright[cuda12] or [cuda13]"
    assert usable_gpus() == Snapshot((), reason)


def test_slots_are_those_of_gpus_that_hold_the_job_and_all_where_none_does(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.devices[1].total_b = 10 * GB
    machine.write()
    needs_mb = (0, 3000, 6000, 20_000, 90_000)
    assert [usable_slots(need_mb) for need_mb in needs_mb] == [2, 2, 2, 1, 2]
    monkeypatch.setenv("TILEWRIGHT_JOBS_PER_GPU", "4")
    assert [usable_slots(need_mb) for need_mb in needs_mb] == [8, 5, 2, 1, 2]


@pytest.mark.parametrize("text", ["many", "0", "9", ""])
def test_a_wrong_number_of_jobs_per_gpu_is_named(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("TILEWRIGHT_JOBS_PER_GPU", text)
    with pytest.raises(SystemExit, match="TILEWRIGHT_JOBS_PER_GPU is"):
        pools()


def test_a_device_that_is_none_of_the_three_or_that_a_rule_does_not_use_is_an_error(
    machine: FakeMachine,
) -> None:
    with pytest.raises(DeviceError, match="'tpu'; set it to cpu, gpu or auto"):
        device_kinds(settings(), none, {"TILEWRIGHT_DEVICE": "tpu"})
    with pytest.raises(ConfigError, match=r"resources\.qc_cycle\.device: rule qc_cycle uses no"):
        device_kinds(settings(qc_cycle="gpu"), some(machine), {})
