"""The GPU of a job: its lease, a self-test before use, and the records of its use and failure."""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from snakemake_scheduler_plugin_tilewright import append_json
from tilewright.devices.health import classify, record_failure
from tilewright.devices.lease_folder import lease_root
from tilewright.devices.leases import MIB, allocated, wait_for_lease
from tilewright.devices.slurm_allocation import by_slurm
from tilewright.errors import DeviceError, LeaseError
from tilewright.kernels.backend import Backend, gpu_backend
from tilewright.kernels.device_memory import record_peak

logger = logging.getLogger("tilewright")

#: The number of `self_test` by NumPy: integers that wrap around, so it is the same everywhere.
_EXPECTED = 2251005875580922


@dataclass
class UsageRecord:
    """Use of a device by a job, as recorded at its end. Memory is that of the job's arrays."""

    job: str
    """Rule and wildcards."""
    requested_b: int
    """Device memory that the job asked for."""
    uuid: str = ""
    """The device; empty where the job got none."""
    granted_b: int = 0
    """Device memory that it could use; 0 where that is not known."""
    waited_s: float = 0.0
    held_s: float = 0.0
    """Seconds that it waited for the device, and had it."""
    peak_b: int | None = None
    splits: int = 0
    """Most memory used, and how often work was halved."""
    outcome: str = "not granted"
    """Then ``failed`` or ``done``."""
    reason: str = ""
    """Why it failed."""


@contextlib.contextmanager
def leased_backend(job: str, gpu_mem_mb: int) -> Iterator[Backend]:
    """Wait for a device, or take what Slurm allocated, and yield its backend.

    ``CUDA_VISIBLE_DEVICES`` and CuPy's memory limit are set from then on; CUDA reads them once, so
    a process takes one lease in its life. ``TILEWRIGHT_WAIT_LIMIT_S`` ends the wait;
    ``TILEWRIGHT_DEVICE_LOG`` names the log of use.

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
    use, began_s = UsageRecord(job, gpu_mem_mb * MIB), time.monotonic()
    with contextlib.ExitStack() as locks:
        try:
            _take_device(use, locks)
            use.waited_s, use.outcome = time.monotonic() - began_s, "failed"
            backend = gpu_backend()
            if problem := self_test(backend.xp):
                raise DeviceError(f"GPU {use.uuid} fails its first computation: {problem}")
            try:
                yield backend
            finally:
                record_peak(backend)
                use.peak_b, use.splits = backend.use.peak_b, backend.use.splits
                backend.xp.get_default_memory_pool().free_all_blocks()
            use.outcome = "done"
        except BaseException as error:
            use.reason = f"{type(error).__name__}: {error}"
            if isinstance(error, DeviceError) or type(error).__module__.startswith("cupy"):
                _record_failure(use)
            raise
        finally:
            _record_use(use, time.monotonic() - began_s)


def _take_device(use: UsageRecord, locks: contextlib.ExitStack) -> None:
    """Wait for a device, and make CUDA and CuPy use it alone."""
    if by_slurm():  # under cgroups its numbers are not those that CUDA counts
        logger.info("Slurm allocated GPU %s", os.environ.get("SLURM_JOB_GPUS", "unknown"))
        lease = allocated()
    else:
        logger.info("waits for a GPU; see tilewright devices")
        lease = wait_for_lease(use.job, use.requested_b, _wait_limit_s(), locks)
        os.environ["CUDA_VISIBLE_DEVICES"] = lease.uuid
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    use.uuid, use.granted_b = lease.uuid, lease.arrays_b
    if lease.arrays_b:
        os.environ["CUPY_GPU_MEMORY_LIMIT"] = str(lease.arrays_b)
    have_mib, need_mib = lease.arrays_b // MIB, use.requested_b // MIB
    logger.info("GPU %s, arrays of %s MiB", lease.uuid, have_mib or "not known")
    if 0 < have_mib < need_mib:
        logger.warning(
            "arrays of %d MiB are more than it holds: work is halved where it does not fit",
            need_mib,
        )


def _wait_limit_s() -> float:
    text = os.environ.get("TILEWRIGHT_WAIT_LIMIT_S") or "inf"
    try:
        return float(text)
    except ValueError:
        raise DeviceError(f"TILEWRIGHT_WAIT_LIMIT_S is '{text}'; set it to seconds") from None


def self_test(xp: Any) -> str:
    """Compute a known number with an array library; return the error as text, empty if none.

    Numbers in 4 MB of memory are mixed, each with a distant one, and their sum is copied from the
    device (for CuPy the current one), so nothing is pending afterwards. `classify` reads the text.
    """
    try:
        cells = xp.arange(1 << 20, dtype=xp.uint32)
        for _ in range(8):
            cells = cells * xp.uint32(1664525) + xp.uint32(1013904223)
            cells = (cells ^ (cells >> xp.uint32(15))) + xp.roll(cells, 4099)
        checksum = int(cells.sum(dtype=xp.uint64))
    except (RuntimeError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    wrong = f"the device computes wrongly: the checksum is {checksum}, not {_EXPECTED}"
    return "" if checksum == _EXPECTED else wrong


def _record_failure(use: UsageRecord) -> None:
    """Record an error of CUDA, by its text, so that the device gets no more jobs."""
    if use.uuid and classify(use.reason) == "device" and not by_slurm():
        try:
            record_failure(lease_root(), use.uuid, use.job, use.reason[:300])
        except (LeaseError, OSError) as problem:
            logger.error("the failure of device %s is not recorded: %s", use.uuid, problem)


def _record_use(use: UsageRecord, spent_s: float) -> None:
    """Append a line to the log of use; one for each node: nodes that append at once lose lines."""
    if use.outcome == "not granted":
        use.waited_s = spent_s
    use.held_s = spent_s - use.waited_s
    if log := os.environ.get("TILEWRIGHT_DEVICE_LOG"):
        path, node = Path(log), f"-{socket.gethostname()}" if by_slurm() else ""
        line = {"time_s": time.time() - use.held_s, **asdict(use)}
        append_json(path.with_name(f"{path.stem}{node}{path.suffix}"), line)
