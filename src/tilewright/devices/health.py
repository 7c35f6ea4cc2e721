"""Faults of devices, by the text of errors, and the GPUs that get no jobs after one."""

import contextlib
import re
import time
from datetime import datetime
from pathlib import Path

# Letters of CUDA's names (cudaErrorX and CUDA_ERROR_X alike) and sentences, without the rest.
_DEVICE = (
    "eccuncorrectable", "uncorrectableecc", "nvlinkuncorrectable",
    "cudaerrorcontained", "fallenoffthebus", "gpuislost", "gpurequiresrestart", "illegaladdress",
    "illegalmemoryaccess", "illegalinstruction", "invalidaddressspace", "cudaerrorinvalidpc",
    "misalignedaddress", "hardwarestackerror", "launchfailure", "launchfailed", "launchtimeout",
    "deviceassert", "cudaerrorassert", "cudaerrorunknown", "cudaerrornodevice",
    "cudaerrorinitializationerror", "cudaerrornotinitialized", "execfailed", "executionfailed",
)  # fmt: skip


def is_fault_of_device(text: str) -> bool:
    """Return whether a process cannot use its device any more, by an error's type and message.

    It is defective, or a program of ours; not where memory ran out or others use it (CUDA's "busy
    or unavailable").

    >>> is_fault_of_device("CUDARuntimeError: cudaErrorIllegalAddress: an illegal memory access")
    True
    """
    letters = re.sub("[^a-z]", "", text.lower())
    return any(mark in letters for mark in _DEVICE)


def record_failure(root: Path, uuid: str, job: str, message: str) -> None:
    """Record that CUDA failed on a device, which gets no jobs from then on (OSError)."""
    text = f"{datetime.now():%Y-%m-%d %H:%M} in {job}: {message}"
    (root / f"{uuid}.failed").write_text(text, encoding="utf-8")


def failures(root: Path) -> dict[str, str]:
    """Return the devices that get no jobs, by UUID: when, in which job and how CUDA failed.

    A start of the machine resets its GPUs, so failures before it do not count.
    """
    found = {}
    for path in root.glob("*.failed"):
        with contextlib.suppress(FileNotFoundError):  # `clear` in another process
            if path.stat().st_mtime > time.time() - time.clock_gettime(time.CLOCK_BOOTTIME):
                found[path.stem] = path.read_text(encoding="utf-8", errors="replace")
    return found


def clear(root: Path, uuid: str) -> None:
    """Remove the failure of a device: it gets jobs again."""
    (root / f"{uuid}.failed").unlink(missing_ok=True)
