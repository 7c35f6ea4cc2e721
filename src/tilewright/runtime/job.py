"""The context of a rule script's one call: log, errors, usage, and its device, a GPU by a lease."""

import contextlib
import ctypes
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from threadpoolctl import threadpool_limits

from snakemake_scheduler_plugin_tilewright import cause_line
from tilewright.devices.lease_folder import is_fault_of_device, lease_root, record_failure
from tilewright.devices.leases import MIB, Lease, allocated, by_slurm, wait_for_lease
from tilewright.errors import DeviceError, LeaseError, LeaseTimeoutError
from tilewright.kernels.backend import Backend, cpu_backend, gpu_backend
from tilewright.kernels.device_memory import record_peak

logger = logging.getLogger("tilewright")


@contextlib.contextmanager
def job_context(
    log: Sequence[str],
    threads: int,
    resources: Mapping[str, Any] | None = None,
) -> Iterator[Backend]:
    """Redirect a job's messages to its log and yield its device.

    Parameters
    ----------
    log : sequence of str
        The rule's log files; the first is used.
    threads : int
        CPU threads of the job.
    resources : mapping, optional
        The rule's; with ``gpu`` the job waits for a GPU. Without it the job uses CPUs.

    Yields
    ------
    Backend
        The array namespace to compute with.
    """
    path = Path(log[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    _keep_freed_memory()
    # Kernels have threads of their own and small matrices, for which BLAS's threads wait for each
    # other: with two of them flat-fields take 5 times the CPU time and 3 times as long.
    with (
        threadpool_limits(1),
        path.open("w", buffering=1) as stream,
        contextlib.redirect_stderr(stream),
    ):
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.captureWarnings(True)
        logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
        with _reported_errors(stream), _device(path, threads, resources or {}) as backend:
            logger.info("device %s, %d threads", backend.device, threads)
            start_s = time.process_time()
            yield backend
            _log_usage(start_s)


@contextlib.contextmanager
def _reported_errors(stream: TextIO) -> Iterator[None]:
    """Write errors with their cause to the log, and in one line to the run's standard error."""
    try:
        yield
    except LeaseTimeoutError as error:
        logger.error("%s", error)
        sys.__stderr__.write(f"{error}\n")  # type: ignore[union-attr]
        raise SystemExit(os.EX_TEMPFAIL) from error  # a later try may succeed
    except Exception as error:
        traceback.print_exc(file=stream)
        message = f"{type(error).__name__}: {error}"
        line = cause_line("device" if isinstance(error, DeviceError) else "error", message)
        stream.write(f"{line}\n")
        sys.__stderr__.write(f"{message}\n")  # type: ignore[union-attr]
        raise


def _log_usage(start_s: float) -> None:
    """Log CPU time and peak memory; Snakemake's benchmark misses up to half of the CPU time."""
    work_s = time.process_time() - start_s
    peak_mb = peak_memory_mb()
    peak = "" if peak_mb is None else f"; peak memory {peak_mb} MB"
    logger.info("CPU time %.2f s, and %.2f s to start%s", work_s, start_s, peak)


def peak_memory_mb(pid: int | str = "self") -> int | None:
    """Return the peak memory of a process; None where there is no procfs.

    ``ru_maxrss`` may be that of the parent process: 200 MB of Snakemake.
    """
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text("ascii").splitlines() if status.exists() else []
    peaks = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return peaks[0] // 1024 if peaks else None


def _keep_freed_memory() -> None:
    """Make glibc reuse the memory of freed arrays of up to 8 MB.

    Otherwise each page is returned and faulted in again: registration takes 20 % more CPU time, a
    plane 6 %. Larger arrays are returned to the system, so that the peak is the same.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # macOS has none
        trim_threshold, mmap_threshold = -1, -3
        mallopt(trim_threshold, 256 << 20)
        mallopt(mmap_threshold, 8 << 20)


@contextlib.contextmanager
def _device(log: Path, threads: int, resources: Mapping[str, Any]) -> Iterator[Backend]:
    if not resources.get("gpu"):
        yield cpu_backend(threads)
        return
    job = f"{log.parent.name}/{log.stem}"
    with leased_backend(job, resources["gpu_mem_mb"]) as backend:
        yield backend


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
