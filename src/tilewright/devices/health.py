"""Faults of devices, by the text of errors, and the quarantine of devices that had some.

Failures are recorded in one file of a folder on this node; quarantines are computed from them.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tilewright.devices.lease_folder import locked, read_records
from tilewright.errors import LeaseError
from tilewright.runtime.files import write_text_atomic

#: ``hardware``: the device is defective. ``sticky``: the process cannot use it any more and must
#: end; a program or a device may be the cause. ``memory``: the job asked for more than there is.
#: ``other``: not related to the device.
FaultClass = Literal["hardware", "sticky", "memory", "other"]

# Letters of CUDA's names (cudaErrorX and CUDA_ERROR_X alike) and sentences, without the rest.
_MARKS: dict[FaultClass, tuple[str, ...]] = {
    "hardware": (
        "eccuncorrectable", "uncorrectableecc", "nvlinkuncorrectable", "cudaerrorcontained",
        "fallenoffthebus", "felloffthebus", "gpuislost", "gpurequiresrestart", "computeswrongly",
    ),
    "sticky": (
        "illegaladdress", "illegalmemoryaccess", "illegalinstruction", "invalidaddressspace",
        "cudaerrorinvalidpc", "misalignedaddress", "hardwarestackerror", "launchfailure",
        "launchfailed", "launchtimeout", "deviceunavailable", "devicesunavailable",
        "busyorunavailable", "deviceassert", "cudaerrorassert", "cudaerrorunknown",
        "cudaerrornodevice", "cudaerrorinitializationerror", "cudaerrornotinitialized",
        "execfailed", "executionfailed",
    ),
    "memory": ("outofmemory", "memoryallocation", "allocfailed"),
}  # fmt: skip
#: Xid numbers that a program alone can cause, by NVIDIA's catalogue.
_XID_OF_PROGRAMS = frozenset({8, 11, 13, 25, 31, 32, 43, 45, 68, 69})
_XID = re.compile(r"\bXid\b(?:\s*\([^)]*\))?\D{0,4}(\d+)?", re.IGNORECASE)

_CELLS = 1 << 20
_ROUNDS = 8
#: `_checksum` of NumPy: integers that wrap around, so it is the same everywhere.
_EXPECTED = 2251005875580922
#: How long a failure counts against a device.
TTL_S = 24 * 3600.0
_FILE = "health.json"
#: Most failures in the file, the newest ones.
_MOST_FAILURES = 1000


def classify(text: str) -> FaultClass:
    """Return the class of an error by its text: its type's name and message, or a kernel's line.

    >>> classify("CUDARuntimeError: cudaErrorIllegalAddress: an illegal memory access")
    'sticky'
    >>> classify("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus")
    'hardware'
    """
    xid = _XID.search(text)
    if xid:
        return "sticky" if int(xid[1] or 0) in _XID_OF_PROGRAMS else "hardware"
    letters = re.sub("[^a-z]", "", text.lower())
    for fault, marks in _MARKS.items():
        if any(mark in letters for mark in marks):
            return fault
    return "hardware" if re.search(r"\bECC\b", text) else "other"


def self_test(xp: Any) -> str:
    """Compute a known number with an array library; return the error as text, empty if none.

    The number is copied from the device (for CuPy the current one), so nothing is pending
    afterwards. `classify` reads the text.
    """
    try:
        checksum = _checksum(xp)
    except (RuntimeError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    if checksum != _EXPECTED:
        return f"the device computes wrongly: the checksum is {checksum}, not {_EXPECTED}"
    return ""


def _checksum(xp: Any) -> int:
    """Mix numbers in 4 MB of memory, each with a distant one, and sum them."""
    cells = xp.arange(_CELLS, dtype=xp.uint32)
    for _ in range(_ROUNDS):
        cells = cells * xp.uint32(1664525) + xp.uint32(1013904223)
        cells = (cells ^ (cells >> xp.uint32(15))) + xp.roll(cells, 4099)
    return int(cells.sum(dtype=xp.uint64))


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that failed on a device; in seconds since the epoch."""

    uuid: str
    job: str
    fault: FaultClass
    message: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A device that gets no jobs."""

    reason: str
    left_s: float
    """Why it gets none, and the seconds until that expires."""


def quarantines(failures: Iterable[Failure], now_s: float) -> dict[str, Quarantine]:
    """Return the devices to quarantine.

    One hardware fault is enough. So are sticky errors of two different jobs, but those of a job
    that had them on two devices count nowhere: the job is the cause. Other faults never count.
    """
    ordered = sorted(failures, key=lambda failure: failure.at_s)
    devices_of = Counter(
        job for job, _ in {(f.job, f.uuid) for f in ordered if f.fault == "sticky"}
    )
    result = {}
    for uuid in {failure.uuid for failure in ordered}:
        of_device = [failure for failure in ordered if failure.uuid == uuid]
        hardware = [failure for failure in of_device if failure.fault == "hardware"]
        by_job = {f.job: f for f in of_device if f.fault == "sticky" and devices_of[f.job] == 1}
        if hardware:
            last = end = hardware[-1]
            reason = f"hardware fault in {last.job}: {last.message}"
        elif len(by_job) > 1:
            # with the last but one, only one job is left
            *_, end, last = sorted(by_job.values(), key=lambda failure: failure.at_s)
            reason = f"{len(by_job)} jobs failed on it, last {last.job}: {last.message}"
        else:
            continue
        result[uuid] = Quarantine(reason, end.at_s + TTL_S - now_s)
    return result


def record_failure(root: Path, uuid: str, job: str, fault: FaultClass, message: str) -> None:
    """Record that a job failed on a device; ``job`` is its ``job_id``: a retry has the same.

    Raises
    ------
    LeaseError
        The file cannot be read or written.
    """
    with locked(root):
        _write(root, [*_failures(root), Failure(uuid, job, fault, message, time.time())])


def quarantined(root: Path) -> dict[str, Quarantine]:
    """Return the devices that get no jobs now, by UUID."""
    return quarantines(_failures(root), time.time())


def failed_on(root: Path, job: str) -> set[str]:
    """Return the devices on which a job failed: a retry takes another if there is one."""
    return {failure.uuid for failure in _failures(root) if failure.job == job}


def clear(root: Path, uuid: str) -> int:
    """Remove the failures of a device; return how many there were."""
    with locked(root):
        failures = _failures(root)
        others = [failure for failure in failures if failure.uuid != uuid]
        if len(others) < len(failures):
            _write(root, others)
    return len(failures) - len(others)


def _failures(root: Path) -> list[Failure]:
    """Return the failures of the last day, since the start of the machine, which resets GPUs."""
    from_s = time.time() - min(TTL_S, time.clock_gettime(time.CLOCK_BOOTTIME))
    return [failure for failure in read_records(root / _FILE, Failure) if from_s < failure.at_s]


def _write(root: Path, failures: list[Failure]) -> None:
    """Replace the file in one step; only one process does so at a time."""
    try:
        write_text_atomic(root / _FILE, json.dumps([asdict(f) for f in failures[-_MOST_FAILURES:]]))
    except OSError as error:
        raise LeaseError(
            f"failures cannot be recorded in {root} ({error}); fix the folder"
        ) from None
