"""The GPU of a job: its lease, and the record of its failure."""

import contextlib
import logging
import os
from collections.abc import Iterator

from tilewright.devices.health import is_fault_of_device, record_failure
from tilewright.devices.lease_folder import lease_root
from tilewright.devices.leases import MIB, Lease, allocated, wait_for_lease
from tilewright.devices.slurm_allocation import by_slurm
from tilewright.errors import DeviceError, LeaseError
from tilewright.kernels.backend import Backend, gpu_backend
from tilewright.kernels.device_memory import record_peak

logger = logging.getLogger("tilewright")


@contextlib.contextmanager
def leased_backend(job: str, gpu_mem_mb: int) -> Iterator[Backend]:
    """Wait for a device, or take what Slurm allocated, and yield its backend.

    ``CUDA_VISIBLE_DEVICES`` and CuPy's memory limit are set from then on; CUDA reads them once, so
    a process takes one lease in its life. ``TILEWRIGHT_WAIT_LIMIT_S`` ends the wait.

    Parameters
    ----------
    job : str
        Rule and wildcards.
    gpu_mem_mb : int
        Memory of its arrays, without CUDA's context.

    Raises
    ------
    NoDeviceError, LeaseTimeoutError, LeaseError
        No device can be had.
    DeviceError
        The device does not work; the failure is recorded, and a retry takes another device.
    """
    with contextlib.ExitStack() as locks:
        lease = _take_device(job, gpu_mem_mb, locks)
        try:
            backend = gpu_backend()
            try:
                yield backend
            finally:
                record_peak(backend)
                peak_mib, halved = (backend.use.peak_b or 0) // MIB, backend.use.splits
                logger.info("GPU memory: at most %d MiB; work halved %d times", peak_mib, halved)
                backend.xp.get_default_memory_pool().free_all_blocks()
        except BaseException as error:
            if isinstance(error, DeviceError) or type(error).__module__.startswith("cupy"):
                _record_failure(job, lease.uuid, f"{type(error).__name__}: {error}")
            raise


def _take_device(job: str, need_mib: int, locks: contextlib.ExitStack) -> Lease:
    """Wait for a device, and make CUDA and CuPy use it alone."""
    if by_slurm():  # under cgroups its numbers are not those that CUDA counts
        logger.info("Slurm allocated GPU %s", os.environ.get("SLURM_JOB_GPUS", "unknown"))
        lease = allocated()
    else:
        logger.info("waits for a GPU; see tilewright devices")
        lease = wait_for_lease(job, need_mib * MIB, _wait_limit_s(), locks)
        os.environ["CUDA_VISIBLE_DEVICES"] = lease.uuid
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if lease.arrays_b:
        os.environ["CUPY_GPU_MEMORY_LIMIT"] = str(lease.arrays_b)
    have_mib = lease.arrays_b // MIB
    logger.info("GPU %s, arrays of %s MiB", lease.uuid, have_mib or "not known")
    if 0 < have_mib < need_mib:
        logger.warning(
            "arrays of %d MiB are more than it holds: work is halved where it does not fit",
            need_mib,
        )
    return lease


def _wait_limit_s() -> float:
    text = os.environ.get("TILEWRIGHT_WAIT_LIMIT_S") or "inf"
    try:
        return float(text)
    except ValueError:
        raise DeviceError(f"TILEWRIGHT_WAIT_LIMIT_S is '{text}'; set it to seconds") from None


def _record_failure(job: str, uuid: str, reason: str) -> None:
    """Record an error of CUDA, by its text, so that the device gets no more jobs."""
    if is_fault_of_device(reason) and not by_slurm():
        try:
            record_failure(lease_root(), uuid, job, reason[:300])
        except (LeaseError, OSError) as problem:
            logger.error("the failure of device %s is not recorded: %s", uuid, problem)
