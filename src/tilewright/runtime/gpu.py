"""A job's GPU: leased, tested before use, limited, and noted when it fails."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from tilewright.devices.device_lease import CONTEXT_B, DeviceLease, Request
from tilewright.devices.health import classify, note_failure, quarantined, self_test
from tilewright.devices.inventory import snapshot
from tilewright.devices.lease_folder import lease_root
from tilewright.devices.leases import MIB, lease, whole_above_b
from tilewright.devices.slurm_allocation import by_slurm
from tilewright.errors import DeviceError, LeaseError
from tilewright.kernels.backend import Backend, gpu_backend
from tilewright.kernels.device_memory import record_peak

logger = logging.getLogger("tilewright")

#: What a job that takes a whole device must have at least.
_LEAST_B = CONTEXT_B + 256 * MIB


@contextlib.contextmanager
def leased_backend(job: str, whole_name: str, gpu_mem_mb: int) -> Iterator[Backend]:
    """Wait for a device with so much memory, and compute on it.

    ``TILEWRIGHT_WAIT_LIMIT_S`` ends the wait; ``TILEWRIGHT_DEVICE_LOG`` names the file of evidence.

    Parameters
    ----------
    job, whole_name : str
        Rule and wildcards; what tells it from jobs of all experiments.
    gpu_mem_mb : int
        What its arrays take; CUDA's context comes on top.

    Raises
    ------
    NoDeviceError, LeaseTimeoutError, LeaseError
        No device can be had.
    DeviceError
        The device does not work; it is noted, and another try goes elsewhere.
    """
    request = _request(job, whole_name, gpu_mem_mb * MIB + CONTEXT_B)
    with lease(request, _evidence()) as held:
        if by_slurm():  # under cgroups its numbers are not those that CUDA counts
            logger.info("Slurm granted GPU %s", os.environ.get("SLURM_JOB_GPUS", "not said"))
        logger.info("device %s after %.1f s, %d MiB", held.uuid, held.waited_s, held.bytes_ // MIB)
        with _failure_noted(held):
            backend = gpu_backend()
            if problem := self_test(backend.xp):
                raise DeviceError(f"GPU {held.uuid} fails its first computation: {problem}")
            try:
                yield backend
            finally:
                record_peak(backend)
                held.peak_b, held.splits = backend.use.peak_b, backend.use.splits
                backend.xp.get_default_memory_pool().free_all_blocks()


def _request(job: str, whole_name: str, need_b: int) -> Request:
    """Return what to ask for: so much memory, or a whole device where none has it."""
    # under Slurm others cannot have the device, and a folder of the login node may not be there
    bad = {} if by_slurm() else quarantined(lease_root())
    devices = [device for device in snapshot().devices if device.uuid not in bad]
    most_b = whole_above_b(devices) if devices else need_b
    whole = need_b > most_b
    if whole:
        logger.warning(
            "%d MiB asked for and %d MiB on the largest GPU: work is halved where it does not fit",
            need_b // MIB,
            most_b // MIB,
        )
    text = os.environ.get("TILEWRIGHT_WAIT_LIMIT_S")
    try:
        limit_s = float(text) if text else None
    except ValueError:
        raise DeviceError(f"TILEWRIGHT_WAIT_LIMIT_S is '{text}'; set it to seconds") from None
    return Request(min(need_b, _LEAST_B) if whole else need_b, job, whole, limit_s, whole_name)


def _evidence() -> Path | None:
    """Return the file of evidence; one for each node: nodes that append at once lose lines."""
    named = os.environ.get("TILEWRIGHT_DEVICE_LOG")
    if not named:
        return None
    path = Path(named)
    node = f"-{socket.gethostname()}" if by_slurm() else ""
    return path.with_name(f"{path.stem}{node}{path.suffix}")


@contextlib.contextmanager
def _failure_noted(held: DeviceLease) -> Iterator[None]:
    """Note a failure that is about the device."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        of_device = isinstance(error, DeviceError) or type(error).__module__.startswith("cupy")
        fault = classify(text)
        if of_device and fault in ("hardware", "sticky") and not by_slurm():
            try:
                note_failure(lease_root(), held.uuid, held.request.whole_name, fault, text[:300])
            except LeaseError as unnoted:
                logger.error("the failure of device %s is not noted: %s", held.uuid, unnoted)
        raise
