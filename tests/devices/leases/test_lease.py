"""A lease: what it sets, what ends it, and when there is none."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.devices.leases.lease_jobs import GIB, Machine, holders, until, waiters
from tilewright.devices.budget import Request
from tilewright.devices.evidence import CONTEXT_B
from tilewright.devices.lease import (
    WAIT_EXIT_CODE,
    LeaseTimeoutError,
    NoDeviceError,
    lease,
    leases,
)
from tilewright.devices.lease_queue import LeaseRootError


def test_the_variables_are_set_within_and_undone_after(
    machine: Machine, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "5")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    request = Request(4 * GIB, "edf")
    evidence = root / "evidence" / "jobs.jsonl"
    with lease(request, snapshot=machine.snapshot, root=root, evidence=evidence) as held:
        assert held.environment().items() <= os.environ.items()
        assert held.environment() == {
            "CUDA_VISIBLE_DEVICES": "GPU-a",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "TILEWRIGHT_DEVICE": "gpu",
            "CUPY_GPU_MEMORY_LIMIT": str(4 * GIB - CONTEXT_B),
        }
        assert holders(root) == ["edf"]
        held.busy(0.0)
        held.utilisation = 0.25
        held.peak_b, held.splits, held.reason = 3 * GIB, 2, "two tiles halved"
    assert os.environ["CUPY_GPU_MEMORY_LIMIT"] == "5"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert leases(root) == []
    line = json.loads(evidence.read_text())
    assert line.pop("waited_s") < 1
    assert line.pop("held_s") < 1
    assert abs(line.pop("time_s") - time.time()) < 5
    assert line == {
        "job": "edf",
        "uuid": "GPU-a",
        "driver": "fake 1",
        "requested_b": 4 * GIB,
        "whole": False,
        "granted_b": 4 * GIB,
        "idle_fraction": 1.0,
        "utilisation": 0.25,
        "peak_b": 3 * GIB,
        "splits": 2,
        "outcome": "done",
        "reason": "two tiles halved",
    }


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_failed_job_gives_back_and_says_why(
    error: type[BaseException], machine: Machine, root: Path
) -> None:
    evidence = root / "jobs.jsonl"
    request = Request(GIB, "edf")
    with (
        pytest.raises(error),
        lease(request, snapshot=machine.snapshot, root=root, evidence=evidence),
    ):
        raise error("no room")
    assert leases(root) == []
    line = json.loads(evidence.read_text())
    assert (line["outcome"], line["reason"]) == ("failed", f"{error.__name__}: no room")
    assert (line["idle_fraction"], line["utilisation"], line["peak_b"]) == (None, None, None)


def test_what_never_fits_is_an_error_at_once(machine: Machine, root: Path) -> None:
    evidence = root / "jobs.jsonl"
    request = Request(25 * GIB, "stitch")
    with (
        pytest.raises(NoDeviceError, match=r"needs 26843545600 B, more than the 26306674688 B"),
        lease(request, snapshot=machine.snapshot, root=root, evidence=evidence),
    ):
        pass
    assert leases(root) == []
    assert json.loads(evidence.read_text())["outcome"] == "not granted"


def test_the_parent_of_instances_and_the_quarantined_are_not_leased(
    machine: Machine, root: Path
) -> None:
    machine.set(totals_gib={"GPU-a": 80, "MIG-b": 20, "MIG-c": 20}, divided=["GPU-a"])
    request = Request(4 * GIB, "edf")
    with lease(
        request, snapshot=machine.snapshot, root=root, quarantined=lambda: {"MIG-b"}
    ) as held:
        assert held.uuid == "MIG-c"
    with (
        pytest.raises(NoDeviceError, match="no GPU to use: all are quarantined"),
        lease(
            request, snapshot=machine.snapshot, root=root, quarantined=lambda: ("MIG-b", "MIG-c")
        ),
    ):
        pass


def test_the_wait_limit_ends_with_its_own_error(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    begin(20, hold_s=60, name="holder")
    until(lambda: holders(root))
    assert begin(20, wait_limit_s=0.2, name="late").wait(50) == WAIT_EXIT_CODE
    request = Request(20 * GIB, "later", wait_limit_s=0.1)
    with (
        pytest.raises(LeaseTimeoutError, match=r"job later got no device .* within 0.1 s"),
        lease(request, snapshot=machine.snapshot, root=root),
    ):
        pass
    assert waiters(root) == []


def test_an_unusable_root_is_an_error(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_LEASE_ROOT", str(tmp_path / "missing" / "root"))
    with (
        pytest.raises(LeaseRootError, match="cannot be made"),
        lease(Request(GIB, "edf"), snapshot=machine.snapshot),
    ):
        pass


def test_names_that_no_record_holds_are_an_error(machine: Machine, root: Path) -> None:
    request = Request(GIB, "x" * 5000)
    with (
        pytest.raises(ValueError, match="shorten its name"),
        lease(request, snapshot=machine.snapshot, root=root),
    ):
        pass
    assert leases(root) == []


def test_something_is_left_free_on_a_device_unless_told_otherwise(
    machine: Machine, root: Path
) -> None:
    with (
        pytest.raises(NoDeviceError, match="more than the"),
        lease(Request(25 * GIB, "edf"), snapshot=machine.snapshot, root=root),
    ):
        pass
