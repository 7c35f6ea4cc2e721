"""Classes of faults, the devices that get no jobs after one, and the computation that finds one."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.devices.health import clear, failures, is_fault_of_device, record_failure
from tilewright.kernels.backend import Backend
from tilewright.runtime.gpu import self_test


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
        ("NVMLError_GpuIsLost: GPU is lost", True),
        ("the device computes wrongly: the checksum is 1, not 2", True),
        ("an illegal memory access was encountered", True),
        ("cudaErrorLaunchFailure: unspecified launch failure", True),
        ("CUFFT_EXEC_FAILED", True),
        ("OutOfMemoryError: Out of memory allocating 1,024 bytes", False),
        ("cudaErrorMemoryAllocation", False),
        ("CUFFT_ALLOC_FAILED", False),
        # in use by others, in exclusive mode
        ("cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable", False),
        ("cudaErrorLaunchOutOfResources: too many resources requested for launch", False),
        ("ValueError: a directory contained no tiles; seccomp", False),
        ("", False),
        # the worst counts
        ("CUFFT_ALLOC_FAILED\ncudaErrorIllegalAddress", True),
    ],
)
def test_classes_of_faults(text: str, fault: bool) -> None:
    assert is_fault_of_device(text) is fault


def device(wrong: str, error: Exception | None) -> SimpleNamespace:
    """Return NumPy on a device where a function computes one bit wrongly, or fails."""

    def computed(*args: Any, **kwargs: Any) -> Any:
        if error:
            raise error
        result = getattr(np, wrong)(*args, **kwargs)
        result[12345] ^= 1 << 7
        return result

    return SimpleNamespace(**{**vars(np), wrong: computed})


def test_the_self_test_of_a_good_device(guarded: Backend) -> None:
    """It is of the device alone."""
    assert {self_test(np), self_test(guarded.xp)} == {""}


@pytest.mark.parametrize(
    ("wrong", "error", "said", "fault"),
    [
        ("arange", None, "the device computes wrongly", True),
        ("roll", None, "the device computes wrongly", True),
        ("arange", RuntimeError, "cudaErrorIllegalAddress: an illegal memory access", True),
        ("arange", MemoryError, "Out of memory allocating 4 bytes", False),
    ],
)
def test_one_wrong_bit_is_found_and_a_failure_told_in_words(
    wrong: str, error: type[Exception] | None, said: str, fault: bool
) -> None:
    found = self_test(device(wrong, error(said) if error else None))
    assert said in found
    assert is_fault_of_device(found) is fault


@pytest.mark.gpu
def test_the_self_test_on_a_gpu(gpu: Any) -> None:
    assert self_test(gpu.xp) == ""
