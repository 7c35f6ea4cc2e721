"""Which errors speak against a device, and which devices are not to be used for a while.

Failures are noted in one file of a folder on this node; what they mean is reckoned when asked.
"""

from __future__ import annotations

import fcntl
import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tilewright.errors import LeaseError
from tilewright.runtime.files import write_text_atomic

#: ``hardware``: the device is not to be trusted. ``sticky``: the process can use it no more and
#: must end; a program or a device may be the cause. ``memory``: the job asked for more than there
#: is. ``other``: says nothing about the device.
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
#: What `_checksum` gives with NumPy: whole numbers that wrap, so it is the same everywhere.
_EXPECTED = 2251005875580922
#: How long a failure counts against a device.
TTL_S = 24 * 3600.0
_FILE = "health.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Failures that the file keeps, the newest ones.
_KEPT = 1000


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


def preflight(xp: Any) -> str:
    """Compute a known number with an array library; return what went wrong, or nothing.

    The caller waits for nothing else: the number is fetched from the device. What is returned
    is text for `classify`.

    Parameters
    ----------
    xp : module
        NumPy or one like it, such as CuPy, whose current device is looked at.
    """
    try:
        found = _checksum(xp)
    except (RuntimeError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    if found != _EXPECTED:
        return f"the device computes wrongly: the checksum is {found}, not {_EXPECTED}"
    return ""


def _checksum(xp: Any) -> int:
    """Mix numbers over 4 MB of memory, each with one far away, and add them up."""
    cells = xp.arange(_CELLS, dtype=xp.uint32)
    for _ in range(_ROUNDS):
        cells = cells * xp.uint32(1664525) + xp.uint32(1013904223)
        cells = (cells ^ (cells >> xp.uint32(15))) + xp.roll(cells, 4099)
    return int(cells.sum(dtype=xp.uint64))


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that failed on a device.

    Attributes
    ----------
    fault : str
        Class of the fault, see `tilewright.devices.health`.
    words : str
        What was said of it.
    at_s : float
        Seconds since this machine's boot.
    ttl_s : float
        How long it counts against the device.
    boot : str
        Identity of that boot.
    cleared : bool
        Somebody has cleared the device since: it does not count against it.
    """

    uuid: str
    job: str
    fault: FaultClass
    words: str
    at_s: float
    ttl_s: float
    boot: str
    cleared: bool = False

    @property
    def until_s(self) -> float:
        """When it ends to count, in seconds since boot."""
        return self.at_s + self.ttl_s


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A device that gets no jobs.

    Attributes
    ----------
    left_s : float
        Seconds until it ends by itself.
    """

    reason: str
    left_s: float


def quarantines(failures: Iterable[Failure], now_s: float) -> dict[str, Quarantine]:
    """Return the devices to quarantine.

    One hardware fault is enough. So are sticky errors of two different jobs, but those of a job
    that had them on two devices count nowhere: the job is to blame. Others never count.

    Parameters
    ----------
    failures : iterable of Failure
        All of this boot.
    now_s : float
        Seconds since boot.
    """
    known = list(failures)
    places: dict[str, set[str]] = {}
    for failure in known:
        if failure.fault == "sticky":
            places.setdefault(failure.job, set()).add(failure.uuid)
    hardware: dict[str, Failure] = {}
    sticky: dict[str, dict[str, Failure]] = {}
    for failure in sorted(known, key=lambda failure: failure.until_s):
        if failure.cleared or failure.until_s <= now_s:
            continue
        if failure.fault == "hardware":
            hardware[failure.uuid] = failure
        elif failure.fault == "sticky" and len(places[failure.job]) == 1:
            sticky.setdefault(failure.uuid, {})[failure.job] = failure
    found = {}
    for uuid, of_jobs in sticky.items():
        if len(of_jobs) > 1:
            # with the last but one, only one job is left
            last, end = sorted(of_jobs.values(), key=lambda failure: -failure.until_s)[:2]
            words = f"{len(of_jobs)} jobs failed on it, last {last.job}: {last.words}"
            found[uuid] = Quarantine(words, end.until_s - now_s)
    for uuid, fault in hardware.items():
        left_s = fault.until_s - now_s
        if uuid not in found or left_s >= found[uuid].left_s:
            found[uuid] = Quarantine(f"hardware fault in {fault.job}: {fault.words}", left_s)
    return found


def note_failure(
    root: Path, uuid: str, job: str, fault: FaultClass, words: str, *, ttl_s: float = TTL_S
) -> None:
    """Note that a job failed on a device.

    Parameters
    ----------
    root : Path
        Folder on this node; made if it is not there.
    uuid, job : str
        A job is one of all experiments: a rerun of it has the same name, no other has.
    fault : str
        Class of the fault.
    words : str
        What was said of it.
    ttl_s : float
        How long it counts against the device.
    """
    with _locked(root):
        noted = Failure(uuid, job, fault, words, _now_s(), ttl_s, _boot())
        _write(root, [*_failures(root), noted])


def quarantined(root: Path) -> dict[str, Quarantine]:
    """Return the devices that get no jobs now, by UUID."""
    return quarantines(_failures(root), _now_s())


def failed_on(root: Path, job: str) -> set[str]:
    """Return the devices that a job failed on: its next try goes elsewhere where there is one."""
    now_s = _now_s()
    return {f.uuid for f in _failures(root) if f.job == job and f.until_s > now_s and not f.cleared}


def clear(root: Path, uuid: str) -> int:
    """Let nothing that was noted count against a device; return how many failures that were.

    They still tell whether a job is to blame, so clearing one device condemns no other.
    """
    with _locked(root):
        known = _failures(root)
        counted = [failure for failure in known if failure.uuid == uuid and not failure.cleared]
        if counted:
            _write(root, [replace(f, cleared=f.cleared or f.uuid == uuid) for f in known])
    return len(counted)


def _failures(root: Path) -> list[Failure]:
    """Return what was noted in this boot: a restart resets GPUs."""
    path = root / _FILE
    try:
        noted = [Failure(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise LeaseError(f"{path} cannot be read ({error}); delete it") from None
    boot = _boot()
    return [failure for failure in noted if failure.boot == boot]


def _write(root: Path, failures: list[Failure]) -> None:
    """Replace the file in one step; only one process does so at a time."""
    write_text_atomic(root / _FILE, json.dumps([asdict(f) for f in failures[-_KEPT:]]))


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (root / _FILE).with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise LeaseError(f"failures cannot be noted in {root} ({error}); fix the folder") from None


def _boot() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()


def _now_s() -> float:
    """Return the seconds since boot, which no change of the clock moves."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
