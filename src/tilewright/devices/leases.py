"""Leases of GPUs that all runs of a user on one machine share.

In the lease folder each device has :data:`SLOTS` files ``<uuid>.<slot>``. A job has a lease as long
as it holds the lock of one of them, or of all for a whole device, which it takes unless
``TILEWRIGHT_JOBS_PER_GPU`` lets small jobs share one.
"""

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from pathlib import Path

from snakemake_scheduler_plugin_tilewright import allocated_gpus
from tilewright.devices.inventory import Device, snapshot
from tilewright.devices.lease_folder import failures, lease_root, lock
from tilewright.errors import DeviceError, LeaseTimeoutError, NoDeviceError

MIB = 2**20
#: Memory of a device that no job uses: the driver takes 450 to 600 MiB on idle cards.
RESERVE_B = 1024 * MIB
#: CUDA's context and the kernels that libraries load, which no pool's limit counts: 520 MiB for the
#: context alone on an H200 with CUDA 13, 692 with cuFFT, cuSOLVER and cuBLAS.
CONTEXT_B = 768 * MIB
#: Most jobs on one device (no figure).
SLOTS = 8
#: Seconds between two tries (no figure).
RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Lease:
    """A device that a job may use.

    Attributes
    ----------
    uuid : str
        The device.
    arrays_b : int
        Most bytes of the job's arrays on it; 0 where that is not known.
    """

    uuid: str
    arrays_b: int


def jobs_per_gpu() -> int:
    """Return how many small jobs may share a GPU, by ``TILEWRIGHT_JOBS_PER_GPU``.

    Raises
    ------
    DeviceError
        It is not a number from 1 to :data:`SLOTS`.
    """
    text = os.environ.get("TILEWRIGHT_JOBS_PER_GPU", "1")
    if text not in map(str, range(1, SLOTS + 1)):
        raise DeviceError(f"TILEWRIGHT_JOBS_PER_GPU is '{text}'; set it to 1 to {SLOTS}")
    return int(text)


def share_b(device: Device, jobs: int = 1) -> int:
    """Return the bytes of arrays that each of some jobs on a device may have, at least 64 MiB."""
    return max((device.total_b - RESERVE_B) // jobs - CONTEXT_B, 64 * MIB)


def jobs_on(device: Device, need_b: int) -> int:
    """Return how many jobs with arrays of so many bytes share a device."""
    jobs = jobs_per_gpu()
    return jobs if need_b <= share_b(device, jobs) else 1


def sufficient(devices: Sequence[Device], need_b: int) -> list[Device]:
    """Return the devices that hold arrays of so many bytes; all where none does."""
    return [device for device in devices if need_b <= share_b(device)] or [*devices]


def wait_for_lease(job: str, need_b: int, limit_s: float, locks: contextlib.ExitStack) -> Lease:
    """Return a lease of a device, waiting until there is one.

    The job must not fork: the child would hold the lease for as long as it lives.

    Parameters
    ----------
    job : str
        Its name in messages.
    need_b : int
        Device memory of its arrays.
    limit_s : float
        Seconds after which waiting ends in an error.
    locks : ExitStack
        Ends the lease when it is closed.

    Raises
    ------
    LeaseTimeoutError, NoDeviceError, LeaseError
        The wait limit has passed; no device gets jobs; the lease folder cannot be used.
    """
    began_s, root, gpus = time.monotonic(), lease_root(), snapshot()
    emptiest_first = sorted(gpus.devices, key=lambda device: device.used_b - device.total_b)
    while True:
        failed = failures(root)
        healthy = [device for device in emptiest_first if device.uuid not in failed]
        if not healthy:
            why = gpus.reason or "CUDA failed on each; see tilewright devices"
            raise NoDeviceError(f"job {job} has no GPU to use: {why}")
        waited_s = time.monotonic() - began_s
        if lease := _acquired(job, need_b, root, sufficient(healthy, need_b), locks):
            return lease
        if waited_s >= limit_s:
            raise LeaseTimeoutError(
                f"job {job} got no GPU within {limit_s:g} s; raise TILEWRIGHT_WAIT_LIMIT_S, or "
                "end other work on the GPUs"
            )
        time.sleep(min(RETRY_S, limit_s - waited_s))


def allocated() -> Lease:
    """Return the device that Slurm allocated to this job, with all of its memory."""
    devices = snapshot().devices
    # of several CUDA takes the first; in some containers NVML does not answer
    if len(devices) != 1:
        return Lease(f"{socket.gethostname()}:{os.environ.get('CUDA_VISIBLE_DEVICES')}", 0)
    return Lease(devices[0].uuid, share_b(devices[0]))


def holders(root: Path) -> list[tuple[str, str]]:
    """Return the device of each current lease, with its begin and its job."""
    found = set()  # a job with all slots of a device has one lease
    for path in root.glob("*.[0-9]"):
        with contextlib.ExitStack() as probe:
            if not lock(path, probe):
                found.add((path.stem, path.read_text(encoding="utf-8", errors="replace")))
    return sorted(found)


def _acquired(
    job: str, need_b: int, root: Path, devices: Sequence[Device], locks: contextlib.ExitStack
) -> Lease | None:
    """Lock one slot of a device, or all for a job that shares with none; jobs spread."""
    for slot, device in product(range(jobs_per_gpu()), devices):
        jobs = jobs_on(device, need_b)
        slots = [slot] if jobs > 1 else range(SLOTS)
        paths = [root / f"{device.uuid}.{number}" for number in slots]
        with contextlib.ExitStack() as held:
            if all(lock(path, held) for path in paths):
                begin = f"{datetime.now():%Y-%m-%d %H:%M}"
                for path in paths:
                    path.write_text(f"{begin} {job}, process {os.getpid()}", encoding="utf-8")
                locks.push(held.pop_all())
                return Lease(device.uuid, share_b(device, jobs))
    return None


#: Set in a job of the workflow that has an allocation of its own.
ALLOCATED = "TILEWRIGHT_ALLOCATED"


def use_allocated_device() -> None:
    """Make this process and its children use the device that Slurm allocated."""
    os.environ["TILEWRIGHT_DEVICE"] = "gpu" if allocated_gpus() else "cpu"
    os.environ[ALLOCATED] = "1"


def by_slurm() -> bool:
    """Return whether Slurm allocated GPUs to this job alone.

    Not where Snakemake itself runs inside an allocation, whose GPUs its jobs share.
    """
    alone = os.environ.get(ALLOCATED) and os.environ.get("SLURM_JOB_ID")
    return bool(alone) and allocated_gpus()
