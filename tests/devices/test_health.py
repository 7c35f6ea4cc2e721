"""Which devices are quarantined, and the computation that shows a bad one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.devices import health
from tilewright.devices.health import Failure, classify, note_failure, quarantined, quarantines
from tilewright.errors import LeaseError
from tilewright.kernels.backend import Backend

FAILURES = st.lists(
    st.builds(
        Failure,
        uuid=st.sampled_from("AB"),
        job=st.sampled_from("xyz"),
        fault=st.sampled_from(["hardware", "sticky", "memory", "other"]),
        words=st.just("words"),
        at_s=st.integers(0, 100).map(float),
        ttl_s=st.integers(1, 100).map(float),
        boot=st.just("boot"),
        cleared=st.booleans(),
    ),
    max_size=8,
)


def failed(words: str, at_s: float = 0, ttl_s: float = 100) -> list[Failure]:
    """Return failures, each of a device, a job and a fault: ``A:x`` is sticky, ``A:x:memory``."""
    told = [[*word.split(":"), "sticky"][:3] for word in words.split()]
    return [Failure(u, job, cast(health.FaultClass, fault), f"{fault} words", at_s, ttl_s, "boot")
            for u, job, fault in told]  # fmt: skip


def bad(failures: list[Failure], now_s: float = 50) -> str:
    return "".join(sorted(quarantines(failures, now_s)))


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
    assert bad(failed(failures)) == devices


def test_a_quarantine_ends_with_what_it_rests_on() -> None:
    pair = failed("A:x") + failed("A:y", 20)
    assert quarantines(pair, 40)["A"].left_s == 60
    assert (bad(pair, 99.9), bad(pair, 100)) == ("A", "")
    found = quarantines(pair + failed("A:x:hardware", 50), 60)["A"]
    assert found.left_s == 90
    assert "hardware fault in x" in found.reason
    assert "hardware words" in found.reason
    assert bad(failed("A:x:hardware"), 100) == ""
    assert bad(failed("B:x", ttl_s=10) + failed("A:x A:y")) == ""  # it still blames the job


@given(FAILURES, st.integers(0, 200))
def test_rules_hold_for_any_failures(failures: list[Failure], now_s: int) -> None:
    found = quarantines(failures, now_s)
    assert quarantines(failures[::-1], now_s).keys() == found.keys()
    for uuid, quarantine in found.items():
        live = [f for f in failures if f.uuid == uuid and not f.cleared and f.until_s > now_s]
        jobs = {f.job for f in live if f.fault == "sticky"}
        assert len(jobs) > 1 or any(f.fault == "hardware" for f in live)
        assert quarantine.left_s > 0
        # it holds until then, and no longer
        assert uuid in quarantines(failures, now_s + quarantine.left_s - 0.5)
        assert uuid not in quarantines(failures, now_s + quarantine.left_s)


@given(FAILURES, st.sampled_from("AB"))
def test_clearing_a_device_frees_it_and_condemns_no_other(
    failures: list[Failure], uuid: str
) -> None:
    after = quarantines([replace(f, cleared=f.cleared or f.uuid == uuid) for f in failures], 50)
    assert after == {name: q for name, q in quarantines(failures, 50).items() if name != uuid}


def test_what_is_noted_is_found_and_cleared(tmp_path: Path) -> None:
    root = tmp_path / "made" / "root"
    assert quarantined(root) == {}
    note_failure(root, "A", "x", "hardware", "gone")
    note_failure(root, "B", "x", "sticky", "illegal")
    note_failure(root, "B", "y", "sticky", "illegal")
    note_failure(root, "C", "x", "hardware", "gone", ttl_s=0)
    found = quarantined(root)
    assert set(found) == {"A", "B"}
    assert health.TTL_S - 60 < found["A"].left_s <= health.TTL_S
    assert [health.clear(root, "B"), health.clear(root, "B")] == [2, 0]
    assert set(quarantined(root)) == {"A"}
    note_failure(root, "B", "z", "sticky", "illegal")
    assert set(quarantined(root)) == {"A"}
    assert root.stat().st_mode & 0o777 == 0o700


def test_clearing_keeps_what_blames_a_job(tmp_path: Path) -> None:
    for uuid, job in (("A", "x"), ("B", "x"), ("B", "y")):
        note_failure(tmp_path, uuid, job, "sticky", "illegal")
    assert health.clear(tmp_path, "A") == 1
    assert quarantined(tmp_path) == {}


def test_a_failure_of_another_boot_does_not_count(tmp_path: Path) -> None:
    note_failure(tmp_path, "A", "x", "hardware", "gone")
    path = tmp_path / "health.json"
    noted = json.loads(path.read_text())
    assert noted[0]["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    path.write_text(json.dumps([{**noted[0], "boot": "another"}]))
    assert quarantined(tmp_path) == {}
    note_failure(tmp_path, "B", "x", "hardware", "gone")
    assert set(quarantined(tmp_path)) == {"B"}
    assert len(json.loads(path.read_text())) == 1


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"uuid": "A"}]', "null"])
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "health.json").write_text(text)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: quarantined(tmp_path),
        lambda: health.clear(tmp_path, "A"),
        lambda: note_failure(tmp_path, "A", "x", "hardware", "gone"),
    )
    for call in calls:
        with pytest.raises(LeaseError, match=r"health\.json cannot be read .*; delete it"):
            call()
    assert (tmp_path / "health.json").read_text() == text


def test_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LeaseError, match="failures cannot be noted in"):
        note_failure(tmp_path / "file", "A", "x", "hardware", "gone")


NOTE = """
import sys
from pathlib import Path
from tilewright.devices.health import note_failure
for turn in range(int(sys.argv[3])):
    note_failure(Path(sys.argv[1]), "A", f"{sys.argv[2]}-{turn}", "sticky", "illegal")
"""


def note(root: Path, name: int, turns: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", NOTE, str(root), f"{name}", f"{turns}"])


def test_processes_do_not_lose_each_others_failures(tmp_path: Path) -> None:
    processes = [note(tmp_path, name, 40) for name in range(4)]
    while any(process.poll() is None for process in processes):
        quarantined(tmp_path)
    assert [process.returncode for process in processes] == [0] * 4
    noted = json.loads((tmp_path / "health.json").read_text())
    expected = {f"{name}-{turn}" for name in range(4) for turn in range(40)}
    assert {entry["job"] for entry in noted} == expected


def test_a_killed_process_leaves_a_whole_file_and_no_lock(tmp_path: Path) -> None:
    for name in range(3):
        process = note(tmp_path, name, 10**6)
        while f'"{name}-5"' not in _text(tmp_path):
            assert process.poll() is None
        process.kill()
        process.wait()
        assert quarantined(tmp_path)
    note_failure(tmp_path, "B", "x", "hardware", "gone")
    assert "B" in quarantined(tmp_path)


def test_the_file_does_not_grow_without_end(tmp_path: Path) -> None:
    note_failure(tmp_path, "A", "first", "sticky", "illegal")
    path = tmp_path / "health.json"
    path.write_text(json.dumps(json.loads(path.read_text()) * 1500))
    note_failure(tmp_path, "A", "last", "sticky", "illegal")
    noted = json.loads(path.read_text())
    assert (len(noted), noted[-1]["job"]) == (1000, "last")


def _text(root: Path) -> str:
    path = root / "health.json"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", "hardware"),
        ("NVRM: Xid (PCI:0000:3b:00): 48, Double Bit ECC Error", "hardware"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, MMU Fault", "sticky"),
        ("Xid 94: contained memory error", "hardware"),
        ("an Xid was reported", "hardware"),
        ("the GPU fell off the bus", "hardware"),
        ("CUDARuntimeError: cudaErrorECCUncorrectable: uncorrectable ECC error", "hardware"),
        ("CUDA_ERROR_ECC_UNCORRECTABLE", "hardware"),
        ("volatile ECC errors", "hardware"),
        ("NVMLError_GpuIsLost: GPU is lost", "hardware"),
        ("the device computes wrongly: the checksum is 1, not 2", "hardware"),
        ("an illegal memory access was encountered", "sticky"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", "sticky"),
        ("cudaErrorLaunchFailure: unspecified launch failure", "sticky"),
        ("CUDA_ERROR_LAUNCH_FAILED", "sticky"),
        ("cudaErrorMisalignedAddress: misaligned address", "sticky"),
        ("cudaErrorHardwareStackError: hardware stack error", "sticky"),
        ("cudaErrorDevicesUnavailable", "sticky"),
        ("CUDA-capable device(s) is/are busy or unavailable", "sticky"),
        ("CUDA_ERROR_DEVICE_UNAVAILABLE", "sticky"),
        ("cudaErrorNoDevice: no CUDA-capable device is detected", "sticky"),
        ("cudaErrorInitializationError: initialization error", "sticky"),
        ("cudaErrorUnknown: unknown error", "sticky"),
        ("CUFFT_EXEC_FAILED", "sticky"),
        ("OutOfMemoryError: Out of memory allocating 1,024 bytes", "memory"),
        ("cudaErrorMemoryAllocation", "memory"),
        ("CUFFT_ALLOC_FAILED", "memory"),
        ("cudaErrorLaunchOutOfResources: too many resources requested for launch", "other"),
        ("cudaErrorInvalidValue: invalid argument", "other"),
        ("ValueError: a directory contained no tiles; seccomp", "other"),
        ("", "other"),
        ("CUFFT_ALLOC_FAILED\ncudaErrorIllegalAddress\n", "sticky"),  # the worst counts
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


def test_the_preflight_computation_of_a_good_device(guarded: Backend) -> None:
    """It is of the device alone."""
    assert {health.preflight(np), health.preflight(guarded.xp)} == {""}


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
    found = health.preflight(device(wrong, error(said) if error else None))
    assert said in found
    assert classify(found) == fault


@pytest.mark.gpu
def test_the_preflight_computation_on_a_gpu(gpu: Any) -> None:
    assert health.preflight(gpu.xp) == ""
