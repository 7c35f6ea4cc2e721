"""Counts the devices that the environment lists, and fails as the CUDA runtime does.

``STANDIN_BROKEN_NODES`` may name a file of node names, separated by blanks or newlines:
on these nodes (``SLURMD_NODENAME``) CUDA does not initialise. A UUID among them is a device with
broken memory.
"""

import os
from pathlib import Path

from .._pool import DEVICE_B, POOL

NO_DEVICE = "cudaErrorNoDevice: no CUDA-capable device is detected"


class CUDARuntimeError(RuntimeError):
    """An error of the CUDA runtime; the message begins with its name."""


def getDeviceCount() -> int:
    """Return the number of devices; as CUDA's, it raises rather than return 0."""
    listing = Path(os.environ.get("STANDIN_BROKEN_NODES", ""))
    broken = listing.read_text().split() if listing.is_file() else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if os.environ.get("SLURMD_NODENAME") in broken:
        raise CUDARuntimeError("cudaErrorInitializationError: initialization error")
    if visible in broken:
        raise CUDARuntimeError("cudaErrorECCUncorrectable: uncorrectable ECC error encountered")
    devices = [item for item in visible.split(",") if item]
    if not devices:
        raise CUDARuntimeError(NO_DEVICE)
    return len(devices)


def memGetInfo() -> tuple[int, int]:
    """Return the bytes that are free and those that the device has."""
    return DEVICE_B - POOL.total_bytes(), DEVICE_B


def deviceSynchronize() -> None:  # CUDA's own name
    """Return: all is done when a call of NumPy returns."""
