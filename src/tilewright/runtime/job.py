"""The context of a rule script's one call: log, device, errors, usage."""

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
from tilewright.errors import DeviceError, LeaseTimeoutError
from tilewright.kernels.backend import Backend, cpu_backend

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
    from tilewright.runtime.gpu import leased_backend

    job = f"{log.parent.name}/{log.stem}"
    with leased_backend(job, resources["gpu_mem_mb"]) as backend:
        yield backend
