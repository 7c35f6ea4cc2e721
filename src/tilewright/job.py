"""What every rule script does around its one call: log, device, progress."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tilewright.devices.choose import device_from_environment
from tilewright.kernels.backend import Backend, make_backend

logger = logging.getLogger("tilewright")


@contextlib.contextmanager
def running(log: Sequence[str], threads: int, *, cpu_only: bool = False) -> Iterator[Backend]:
    """Send what the job says to its log and give it its device.

    Parameters
    ----------
    log : sequence of str
        The rule's log files; the first is used.
    threads : int
        CPU threads of the job.
    cpu_only : bool
        The job never uses a GPU, whatever ``TILEWRIGHT_DEVICE`` says.

    Yields
    ------
    Backend
        The array namespace to compute with.
    """
    path = Path(log[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", buffering=1) as stream, contextlib.redirect_stderr(stream):
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.captureWarnings(True)
        logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
        try:
            backend = make_backend("cpu" if cpu_only else device_from_environment(), threads)
            logger.info("device %s, %d threads", backend.device, threads)
            yield backend
        except Exception as error:
            traceback.print_exc(file=stream)
            sys.__stderr__.write(f"{type(error).__name__}: {error}\n")  # type: ignore[union-attr]
            raise


def software_versions() -> dict[str, str]:
    """Return the versions of what computes the pixels; packages that are absent are left out."""
    found = {"Python": sys.version.split()[0]}
    for package in ("tilewright", "numpy", "scipy", "zarr", "tifffile", "snakemake"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
