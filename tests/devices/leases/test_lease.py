"""A lease: what it sets, what ends it, and when there is none."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.devices.leases.conftest import Own
from tests.devices.leases.lease_jobs import GIB, Jobs, Machine, code, holders, waiters
from tilewright.devices.budget import Request
from tilewright.devices.evidence import CONTEXT_B
from tilewright.devices.lease import WAIT_EXIT_CODE, lease, leases
from tilewright.errors import LeaseError, LeaseTimeoutError, NoDeviceError


def test_the_variables_are_set_within_and_undone_after(
    root: Path, machine: Machine, own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "5")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine.evidence = root / "evidence" / "jobs.jsonl"
    began_s = time.time()
    with own(Request(4 * GIB, "edf"), evidence=machine.evidence) as held:
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
    (line,) = machine.lines()
    assert began_s <= line.pop("time_s") <= time.time()
    assert min(line.pop("waited_s"), line.pop("held_s")) >= 0
    asked = {"job": "edf", "requested_b": 4 * GIB, "whole": False, "granted_b": 4 * GIB}
    used = {"idle_fraction": 1.0, "utilisation": 0.25, "peak_b": 3 * GIB, "splits": 2}
    ended = {"outcome": "done", "reason": "two tiles halved"}
    assert line == {"uuid": "GPU-a", "driver": "fake 1", **asked, **used, **ended}


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_failed_job_gives_back_and_says_why(
    error: type[BaseException], machine: Machine, root: Path, own: Own
) -> None:
    with pytest.raises(error), own(Request(GIB, "edf"), evidence=machine.evidence):
        raise error("no room")
    assert leases(root) == []
    (line,) = machine.lines()
    assert (line["outcome"], line["reason"]) == ("failed", f"{error.__name__}: no room")
    assert (line["idle_fraction"], line["utilisation"], line["peak_b"]) == (None, None, None)


def test_what_never_fits_is_an_error_at_once(machine: Machine, root: Path, own: Own) -> None:
    """Something is left free on a device."""
    said = r"needs 26843545600 B, more than the 26306674688 B"
    with (
        pytest.raises(NoDeviceError, match=said),
        own(Request(25 * GIB, "stitch"), evidence=machine.evidence),
    ):
        pass
    assert leases(root) == []
    assert machine.lines()[0]["outcome"] == "not granted"


def test_the_parent_of_instances_and_the_quarantined_are_not_leased(
    machine: Machine, own: Own
) -> None:
    machine.set(totals_gib={"GPU-a": 80, "MIG-b": 20, "MIG-c": 20}, divided=["GPU-a"])
    bad = ["MIG-b"]
    with own(Request(4 * GIB, "edf"), quarantined=lambda: bad) as held:
        assert held.uuid == "MIG-c"
    bad.append("MIG-c")
    with (
        pytest.raises(NoDeviceError, match="no GPU to use: all are quarantined"),
        own(Request(4 * GIB, "edf"), quarantined=lambda: bad),
    ):
        pass


def test_the_wait_limit_ends_with_its_own_error(root: Path, own: Own, jobs: Jobs) -> None:
    jobs.holder(20, "holder")
    assert code(jobs.start(20, "late", wait_limit_s=0.2)) == WAIT_EXIT_CODE
    with (
        pytest.raises(LeaseTimeoutError, match=r"job later got no device .* within 0.1 s"),
        own(Request(20 * GIB, "later", wait_limit_s=0.1)),
    ):
        pass
    assert waiters(root) == []


def test_an_unusable_root_is_an_error(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_LEASE_ROOT", str(tmp_path / "missing" / "root"))
    with (
        pytest.raises(LeaseError, match="cannot be made"),
        lease(Request(GIB, "edf"), snapshot=machine.snapshot),
    ):
        pass


def test_names_that_no_record_holds_are_an_error(root: Path, own: Own) -> None:
    with pytest.raises(ValueError, match="shorten its name"), own(Request(GIB, "x" * 5000)):
        pass
    assert leases(root) == []
