"""Counts the devices that the environment lists, and fails as the CUDA runtime does.

``STANDIN_BROKEN_NODES`` may name a file of node names, separated by blanks or newlines:
on these nodes (``SLURMD_NODENAME``) CUDA does not initialise. A UUID among them is a device with
broken memory.
"""

from __future__ import annotations

import os
from pathlib import Path

from .._pool import DEVICE_B, get_default_memory_pool

NO_DEVICE = "cudaErrorNoDevice: no CUDA-capable device is detected"
BROKEN = "cudaErrorInitializationError: initialization error"
ECC = "cudaErrorECCUncorrectable: uncorrectable ECC error encountered"


class CUDARuntimeError(RuntimeError):
    """An error of the CUDA runtime; the message begins with its name."""


def _is_broken(name: str | None) -> bool:
    listing = os.environ.get("STANDIN_BROKEN_NODES")
    if not listing or not name or not Path(listing).exists():
        return False
    return name in Path(listing).read_text().split()


def getDeviceCount() -> int:
    """Return the number of devices; as CUDA's, it raises rather than return 0."""
    if _is_broken(os.environ.get("SLURMD_NODENAME")):
        raise CUDARuntimeError(BROKEN)
    if _is_broken(os.environ.get("CUDA_VISIBLE_DEVICES")):
        raise CUDARuntimeError(ECC)
    devices = [item for item in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if item]
    if not devices:
        raise CUDARuntimeError(NO_DEVICE)
    return len(devices)


def memGetInfo() -> tuple[int, int]:
    """Return the bytes that are free and those that the device has."""
    return DEVICE_B - get_default_memory_pool().total_bytes(), DEVICE_B


def deviceSynchronize() -> None:  # CUDA's own name
    """Return: all is done when a call of NumPy returns."""
