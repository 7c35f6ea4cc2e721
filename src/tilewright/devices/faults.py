"""What an error of CUDA says about the device, and a computation that shows a bad one."""

from __future__ import annotations

import re
from typing import Any, Literal

#: ``hardware``: the device is not to be trusted. ``sticky``: the process can use it no more and
#: must end; a program or a device may be the cause. ``memory``: the job asked for more than there
#: is. ``other``: says nothing about the device.
FaultClass = Literal["hardware", "sticky", "memory", "other"]

# Letters of CUDA's names (cudaErrorX and CUDA_ERROR_X alike) and sentences, without the rest.
_HARDWARE = (
    "eccuncorrectable",
    "uncorrectableecc",
    "nvlinkuncorrectable",
    "cudaerrorcontained",
    "fallenoffthebus",
    "felloffthebus",
    "gpuislost",
    "gpurequiresrestart",
    "computeswrongly",
)
_STICKY = (
    "illegaladdress",
    "illegalmemoryaccess",
    "illegalinstruction",
    "invalidaddressspace",
    "cudaerrorinvalidpc",
    "misalignedaddress",
    "hardwarestackerror",
    "launchfailure",
    "launchfailed",
    "launchtimeout",
    "deviceunavailable",
    "devicesunavailable",
    "busyorunavailable",
    "deviceassert",
    "cudaerrorassert",
    "cudaerrorunknown",
    "cudaerrornodevice",
    "cudaerrorinitializationerror",
    "cudaerrornotinitialized",
    "execfailed",
    "executionfailed",
)
_MEMORY = ("outofmemory", "memoryallocation", "allocfailed")
#: Xid numbers that a program alone can cause, by NVIDIA's catalogue.
_XID_OF_PROGRAMS = frozenset({8, 11, 13, 25, 31, 32, 43, 45, 68, 69})
_XID = re.compile(r"\bXid\b(?:\s*\([^)]*\))?\D{0,4}(\d+)?", re.IGNORECASE)

_CELLS = 1 << 20
_ROUNDS = 8
#: What `_checksum` gives with NumPy: whole numbers that wrap, so it is the same everywhere.
_EXPECTED = 2251005875580922


def classify(text: str) -> FaultClass:
    """Return the class of an error by its text: its type's name and message, or a kernel's line.

    Examples
    --------
    >>> classify("CUDARuntimeError: cudaErrorIllegalAddress: an illegal memory access")
    'sticky'
    >>> classify("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus")
    'hardware'
    """
    xid = _XID.search(text)
    if xid:
        return "sticky" if int(xid[1] or 0) in _XID_OF_PROGRAMS else "hardware"
    letters = re.sub("[^a-z]", "", text.lower())
    classes: tuple[tuple[FaultClass, tuple[str, ...]], ...] = (
        ("hardware", _HARDWARE),
        ("sticky", _STICKY),
        ("memory", _MEMORY),
    )
    for fault, marks in classes:
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
