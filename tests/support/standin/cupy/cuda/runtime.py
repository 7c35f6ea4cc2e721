"""Counts the devices that the environment lists, and fails as the CUDA runtime does."""

import os

from .._pool import DEVICE_B, POOL

NO_DEVICE = "cudaErrorNoDevice: no CUDA-capable device is detected"


class CUDARuntimeError(RuntimeError):
    """An error of the CUDA runtime; the message begins with its name."""


def getDeviceCount() -> int:
    """Return the number of devices; as CUDA's, it raises rather than return 0."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    devices = [item for item in visible.split(",") if item]
    if not devices:
        raise CUDARuntimeError(NO_DEVICE)
    return len(devices)


def memGetInfo() -> tuple[int, int]:
    """Return the bytes that are free and those that the device has."""
    return DEVICE_B - POOL.total_bytes(), DEVICE_B


def deviceSynchronize() -> None:  # CUDA's own name
    """Return: all is done when a call of NumPy returns."""
