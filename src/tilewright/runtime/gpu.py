"""A job's GPU: leased, looked at before use, limited, and noted when it fails."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.devices.budget import MIB, Request, leasable, whole_above_b
from tilewright.devices.evidence import CONTEXT_B, Held, watched
from tilewright.devices.health import classify, failed_on, note_failure, preflight, quarantined
from tilewright.devices.inventory import Device, snapshot
from tilewright.devices.lease import lease
from tilewright.devices.lease_queue import lease_root
from tilewright.devices.slurm_grant import by_slurm
from tilewright.errors import DeviceError, LeaseError
from tilewright.kernels.backend import Backend, DeviceUse, gpu_backend
from tilewright.kernels.device_memory import record_peak

logger = logging.getLogger("tilewright")

#: What a job that takes a whole device must have at least.
_LEAST_B = CONTEXT_B + 256 * MIB


class _Module:
    """A module of the GPU's array library, which is leased and imported at its first use."""

    def __init__(self, found: Callable[[], Any]) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found(), name)


@contextlib.contextmanager
def backend_at_first_use(job: str, whole_name: str, gpu_mem_mb: int) -> Iterator[Backend]:
    """Compute on a device that is leased when the first array is made there.

    What a job reads before does not keep others from the device, nor what it writes after
    ``release``. See :func:`leased_backend`, whose errors come with the first use.
    """
    with contextlib.ExitStack() as stack:
        opening, use = threading.Lock(), DeviceUse()
        leased: list[Backend] = []

        def opened() -> Backend:
            with opening:
                if use.ended:
                    raise RuntimeError("the device was given back before its last use")
                if not leased:
                    within = leased_backend(job, whole_name, gpu_mem_mb, use)
                    leased.append(stack.enter_context(within))
            return leased[0]

        def release() -> None:
            if leased and not use.ended:
                record_peak(leased[0])
                use.ended = True
                stack.close()

        use.release = release
        xp = _Module(lambda: opened().xp)
        fft = _Module(lambda: opened().fft)
        ndimage = _Module(lambda: opened().ndimage)
        yield Backend("gpu", xp, fft, ndimage, 1, use)


@contextlib.contextmanager
def leased_backend(
    job: str, whole_name: str, gpu_mem_mb: int, use: DeviceUse | None = None
) -> Iterator[Backend]:
    """Wait for a device with so much memory, and compute on it.

    ``TILEWRIGHT_WAIT_LIMIT_S`` ends the wait; ``TILEWRIGHT_DEVICE_LOG`` names the file of evidence.

    Parameters
    ----------
    job, whole_name : str
        Rule and wildcards; what tells it from jobs of all experiments.
    gpu_mem_mb : int
        What its arrays take; CUDA's context comes on top.
    use : DeviceUse, optional
        Where its use is noted.

    Raises
    ------
    NoDeviceError, LeaseTimeoutError, LeaseError
        No device can be had.
    DeviceError
        The device does not work; it is noted, and another try goes elsewhere.
    """
    # under Slurm others cannot have the device, and a folder of the login node may not be there
    root = None if by_slurm() else lease_root()
    look = partial(snapshot, dict(os.environ))  # within the lease the variables are others
    devices = leasable(look().devices, quarantined(root) if root else {})
    with lease(
        _request(job, gpu_mem_mb * MIB + CONTEXT_B, devices),
        snapshot=look,
        root=root,
        quarantined=lambda: quarantined(root) if root else (),
        avoid=failed_on(root, whole_name) if root else (),
        evidence=_evidence(),
    ) as held:
        if by_slurm():  # under cgroups its numbers are not those that CUDA counts
            logger.info("Slurm granted GPU %s", os.environ.get("SLURM_JOB_GPUS", "not said"))
        logger.info("device %s after %.1f s, %d MiB", held.uuid, held.waited_s, held.bytes_ // MIB)
        with _noted(root, held, whole_name), watched(held, look):
            backend = replace(gpu_backend(), use=use or DeviceUse())
            if problem := preflight(backend.xp):
                raise DeviceError(f"GPU {held.uuid} fails its first computation: {problem}")
            try:
                yield backend
            finally:
                held.peak_b, held.splits = backend.use.peak_b, backend.use.splits
                backend.xp.get_default_memory_pool().free_all_blocks()


def _request(job: str, need_b: int, devices: Sequence[Device]) -> Request:
    """Return what to ask for: so much memory, or a whole device where none has it."""
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
    return Request(min(need_b, _LEAST_B) if whole else need_b, job, whole, limit_s)


def _evidence() -> Path | None:
    """Return the file of evidence; one for each node: nodes that append at once lose lines."""
    named = os.environ.get("TILEWRIGHT_DEVICE_LOG")
    if not named:
        return None
    path = Path(named)
    node = f"-{socket.gethostname()}" if by_slurm() else ""
    return path.with_name(f"{path.stem}{node}{path.suffix}")


@contextlib.contextmanager
def _noted(root: Path | None, held: Held, job: str) -> Iterator[None]:
    """Note a failure that is about the device."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        of_device = isinstance(error, DeviceError) or type(error).__module__.startswith("cupy")
        if root and of_device and (fault := classify(text)) not in ("other", "memory"):
            try:
                note_failure(root, held.uuid, job, fault, text[:300])
            except LeaseError as unnoted:
                logger.error("the failure of device %s is not noted: %s", held.uuid, unnoted)
        raise
