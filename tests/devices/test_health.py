"""Classes of faults, and the devices that get no jobs after one."""

import os
import time
from pathlib import Path

import pytest

from tilewright.devices.lease_folder import clear, failures, is_fault_of_device, record_failure


def test_a_device_gets_no_jobs_from_a_failure_on_until_it_is_cleared(tmp_path: Path) -> None:
    assert failures(tmp_path) == {}
    record_failure(tmp_path, "A", "edf/x", "illegal")
    record_failure(tmp_path, "B", "edf/y", "gone")
    record_failure(tmp_path, "A", "edf/z", "again")
    found = failures(tmp_path)
    assert set(found) == {"A", "B"}
    assert time.strftime("%Y-%m-%d") in found["A"]
    assert found["A"].endswith(" in edf/z: again")
    for _ in range(2):
        clear(tmp_path, "A")
        assert set(failures(tmp_path)) == {"B"}


def test_a_failure_before_the_machine_started_does_not_count(tmp_path: Path) -> None:
    record_failure(tmp_path, "A", "edf/x", "illegal")
    record_failure(tmp_path, "B", "edf/x", "illegal")
    started_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for name, after_s in (("A", -60), ("B", 60)):
        os.utime(tmp_path / f"{name}.failed", (started_s + after_s,) * 2)
    assert set(failures(tmp_path)) == {"B"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("CUDARuntimeError: cudaErrorECCUncorrectable: uncorrectable ECC error", True),
        ("cudaErrorLaunchFailure: unspecified launch failure", True),
        ("OutOfMemoryError: Out of memory allocating 1,024 bytes", False),
        ("CUFFT_ALLOC_FAILED", False),
        # in use by others, in exclusive mode
        ("cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable", False),
        ("ValueError: a directory contained no tiles; seccomp", False),
        # the worst counts
        ("CUFFT_ALLOC_FAILED\ncudaErrorIllegalAddress", True),
    ],
)
def test_classes_of_faults(text: str, fault: bool) -> None:
    assert is_fault_of_device(text) is fault
