"""The GPU of a job: its lease, a self-test before use, and the record of its failure."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from tilewright.devices.device_lease import CONTEXT_B, DeviceLease, Request
from tilewright.devices.health import classify, quarantined, record_failure, self_test
from tilewright.devices.inventory import snapshot
from tilewright.devices.lease_folder import lease_root
from tilewright.devices.leases import MIB, lease, whole_above_b
from tilewright.devices.slurm_allocation import by_slurm
from tilewright.errors import DeviceError, LeaseError
from tilewright.kernels.backend import Backend, gpu_backend
from tilewright.kernels.device_memory import record_peak

logger = logging.getLogger("tilewright")

#: Least memory of a job that takes a whole device.
_LEAST_B = CONTEXT_B + 256 * MIB


@contextlib.contextmanager
def leased_backend(job: str, job_id: str, gpu_mem_mb: int) -> Iterator[Backend]:
    """Wait for a device with enough memory, and yield its backend.

    ``TILEWRIGHT_WAIT_LIMIT_S`` ends the wait; ``TILEWRIGHT_DEVICE_LOG`` names the log of use.

    Parameters
    ----------
    job, job_id : str
        Rule and wildcards; what is unique among the jobs of all experiments.
    gpu_mem_mb : int
        Memory of its arrays, without CUDA's context.

    Raises
    ------
    NoDeviceError, LeaseTimeoutError, LeaseError
        No device can be had.
    DeviceError
        The device does not work; the failure is recorded, and a retry takes another device.
    """
    request = _request(job, job_id, gpu_mem_mb * MIB + CONTEXT_B)
    with lease(request, _usage_log()) as own:
        if by_slurm():  # under cgroups its numbers are not those that CUDA counts
            logger.info("Slurm allocated GPU %s", os.environ.get("SLURM_JOB_GPUS", "unknown"))
        logger.info("device %s after %.1f s, %d MiB", own.uuid, own.waited_s, own.bytes_ // MIB)
        with _recorded_failure(own):
            backend = gpu_backend()
            if problem := self_test(backend.xp):
                raise DeviceError(f"GPU {own.uuid} fails its first computation: {problem}")
            try:
                yield backend
            finally:
                record_peak(backend)
                own.peak_b, own.splits = backend.use.peak_b, backend.use.splits
                backend.xp.get_default_memory_pool().free_all_blocks()


def _request(job: str, job_id: str, need_b: int) -> Request:
    """Return the request: so much memory, or a whole device where none has it."""
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
    return Request(min(need_b, _LEAST_B) if whole else need_b, job, whole, limit_s, job_id)


def _usage_log() -> Path | None:
    """Return the log of use; one for each node: nodes that append at once lose lines."""
    log = os.environ.get("TILEWRIGHT_DEVICE_LOG")
    if not log:
        return None
    path = Path(log)
    node = f"-{socket.gethostname()}" if by_slurm() else ""
    return path.with_name(f"{path.stem}{node}{path.suffix}")


@contextlib.contextmanager
def _recorded_failure(own: DeviceLease) -> Iterator[None]:
    """Record a failure of the device."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        of_device = isinstance(error, DeviceError) or type(error).__module__.startswith("cupy")
        fault = classify(text)
        if of_device and fault in ("hardware", "sticky") and not by_slurm():
            try:
                record_failure(lease_root(), own.uuid, own.request.job_id, fault, text[:300])
            except LeaseError as problem:
                logger.error("the failure of device %s is not recorded: %s", own.uuid, problem)
        raise
