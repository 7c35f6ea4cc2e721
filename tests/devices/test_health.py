"""Which devices are quarantined, and the computation that shows a bad one."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.support.forked import fork
from tilewright.devices import health
from tilewright.devices.health import (
    TTL_S,
    Failure,
    classify,
    failed_on,
    quarantined,
    quarantines,
    record_failure,
)
from tilewright.errors import LeaseError
from tilewright.kernels.backend import Backend


def failed(words: str, at_s: float = 0) -> list[Failure]:
    """Return failures, each of a device, a job and a fault: ``A:x`` is sticky, ``A:x:memory``."""
    told = [[*word.split(":"), "sticky"][:3] for word in words.split()]
    return [
        Failure(uuid, job, cast(health.FaultClass, fault), f"{fault} words", at_s)
        for uuid, job, fault in told
    ]


@pytest.mark.parametrize(
    ("failures", "devices"),
    [
        ("A:x:hardware", "A"),  # one is enough
        ("A:x A:x", ""),
        ("A:x A:y", "A"),  # two different jobs are enough
        ("A:x B:y", ""),
        ("A:x:memory A:y:memory A:z:memory", ""),  # says nothing about the device
        ("A:x:other A:y:other A:z:other", ""),
        ("A:x A:y:memory", ""),
        ("A:x A:y:other", ""),
        ("A:x A:y B:x:memory", "A"),
        ("A:x A:y B:x:other", "A"),
        ("A:x A:y B:x", ""),  # a job that fails on two devices is to blame
        ("A:x A:y B:x B:y", ""),
        ("A:x A:y B:x A:z", "A"),
        ("A:x B:x:hardware C:x", "B"),  # counts whichever job had it
    ],
)
def test_which_failures_speak_against_a_device(failures: str, devices: str) -> None:
    assert "".join(sorted(quarantines(failed(failures), 50))) == devices


def test_a_quarantine_ends_with_what_it_rests_on() -> None:
    pair = failed("A:x") + failed("A:y", 20)
    assert quarantines(pair, 40)["A"].left_s == TTL_S - 40
    found = quarantines(pair + failed("A:x:hardware", 50), 60)["A"]
    assert found.left_s == TTL_S - 10
    assert found.reason == "hardware fault in x: hardware words"


def test_what_is_noted_is_found_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path
    assert quarantined(root) == {}
    record_failure(root, "A", "x", "hardware", "gone")
    record_failure(root, "B", "y", "sticky", "illegal")
    record_failure(root, "B", "z", "sticky", "illegal")
    assert set(quarantined(root)) == {"A", "B"}
    assert TTL_S - 60 < quarantined(root)["A"].left_s <= TTL_S
    assert (failed_on(root, "y"), failed_on(root, "q")) == ({"B"}, set())
    assert [health.clear(root, "B"), health.clear(root, "B")] == [2, 0]
    assert (set(quarantined(root)), failed_on(root, "y")) == ({"A"}, set())
    # a restart of the machine resets its GPUs, and a day is enough
    for name, later in (("clock_gettime", lambda _: 0.0), ("time", lambda: 2e9 + 2 * TTL_S)):
        with monkeypatch.context() as patch:
            patch.setattr(time, name, later)
            assert quarantined(root) == {}
    assert set(quarantined(root)) == {"A"}


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"uuid": "A"}]', "null"])
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "health.json").write_text(text)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: quarantined(tmp_path),
        lambda: health.clear(tmp_path, "A"),
        lambda: record_failure(tmp_path, "A", "x", "hardware", "gone"),
    )
    for call in calls:
        with pytest.raises(LeaseError, match=r"health\.json cannot be read .*; delete it"):
            call()
    assert (tmp_path / "health.json").read_text() == text


def test_what_cannot_be_noted_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(health, "write_text_atomic", full)
    with pytest.raises(LeaseError, match=r"failures cannot be recorded in .* \(no space\)"):
        record_failure(tmp_path, "A", "x", "hardware", "gone")


def note(root: Path, name: int) -> None:
    for turn in range(40):
        record_failure(root, "A", f"{name}-{turn}", "sticky", "illegal")


def test_processes_do_not_lose_each_others_failures(tmp_path: Path) -> None:
    processes = [fork(note, tmp_path, name) for name in range(4)]
    while any(process.is_alive() for process in processes):
        quarantined(tmp_path)
    assert [process.exitcode for process in processes] == [0] * 4
    noted = json.loads((tmp_path / "health.json").read_text())
    expected = {f"{name}-{turn}" for name in range(4) for turn in range(40)}
    assert {entry["job"] for entry in noted} == expected


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", "hardware"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, MMU Fault", "sticky"),
        ("CUDARuntimeError: cudaErrorECCUncorrectable: uncorrectable ECC error", "hardware"),
        ("NVMLError_GpuIsLost: GPU is lost", "hardware"),
        ("the device computes wrongly: the checksum is 1, not 2", "hardware"),
        ("an illegal memory access was encountered", "sticky"),
        ("cudaErrorLaunchFailure: unspecified launch failure", "sticky"),
        ("CUDA-capable device(s) is/are busy or unavailable", "sticky"),
        ("CUFFT_EXEC_FAILED", "sticky"),
        ("OutOfMemoryError: Out of memory allocating 1,024 bytes", "memory"),
        ("cudaErrorMemoryAllocation", "memory"),
        ("CUFFT_ALLOC_FAILED", "memory"),
        ("cudaErrorLaunchOutOfResources: too many resources requested for launch", "other"),
        ("ValueError: a directory contained no tiles; seccomp", "other"),
        ("", "other"),
        # the worst counts
        ("CUFFT_ALLOC_FAILED\ncudaErrorIllegalAddress\nfallen off the bus", "hardware"),
    ],
)
def test_classes_of_faults(text: str, fault: str) -> None:
    assert classify(text) == fault


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
    assert {health.self_test(np), health.self_test(guarded.xp)} == {""}


@pytest.mark.parametrize(
    ("wrong", "error", "said", "fault"),
    [
        ("arange", None, "the device computes wrongly", "hardware"),
        ("roll", None, "the device computes wrongly", "hardware"),
        ("arange", RuntimeError, "cudaErrorIllegalAddress: an illegal memory access", "sticky"),
        ("arange", RuntimeError, "cudaErrorECCUncorrectable: uncorrectable ECC error", "hardware"),
        ("arange", MemoryError, "Out of memory allocating 4 bytes", "memory"),
    ],
)
def test_one_wrong_bit_is_found_and_a_failure_told_in_words(
    wrong: str, error: type[Exception] | None, said: str, fault: str
) -> None:
    found = health.self_test(device(wrong, error(said) if error else None))
    assert said in found
    assert classify(found) == fault


@pytest.mark.gpu
def test_the_self_test_on_a_gpu(gpu: Any) -> None:
    assert health.self_test(gpu.xp) == ""
