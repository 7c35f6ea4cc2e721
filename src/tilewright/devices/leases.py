"""Leases of device memory that all runs of a user on one machine share.

In the lease folder each device has :data:`SLOTS` files ``<uuid>.<slot>``. A job has a lease as long
as it holds the flock of one of them, of all for a whole device; the kernel releases it with the
process, also where that is killed. Leases are taken under the flock of ``lock``. A request must fit
into the memory that is neither leased nor, by NVML, used by others. A job without a lease tries
again; after :data:`PATIENCE_S` it reserves one device by the flock of ``<uuid>.next``, so that a
stream of small jobs does not starve it.
"""

import contextlib
import fcntl
import itertools
import json
import logging
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from snakemake_scheduler_plugin_tilewright import append_json
from tilewright.devices.device_lease import DeviceLease, Request
from tilewright.devices.health import failed_on, quarantined
from tilewright.devices.inventory import Device, Snapshot, snapshot
from tilewright.devices.lease_folder import lease_root, locked, read_records
from tilewright.devices.monitor import monitor
from tilewright.devices.slurm_allocation import by_slurm
from tilewright.errors import LeaseTimeoutError, NoDeviceError

logger = logging.getLogger("tilewright")

MIB = 2**20
#: Free memory of each device: the context of CUDA is outside CuPy's limit.
RESERVE_B = 512 * MIB
#: NVML counts the driver's memory as used: 450 to 600 MiB on idle cards.
DRIVER_B = 1024 * MIB
#: Most jobs on one device; memory is nearly always the tighter limit.
SLOTS = 8
#: Seconds between two tries, times 0.5 to 1.5, so that waiting jobs do not synchronise.
RETRY_S = 0.5
#: Seconds of waiting after which a device is reserved.
PATIENCE_S = 5.0
#: EX_TEMPFAIL: a later try may succeed.
WAIT_EXIT_CODE = 75


@dataclass(frozen=True, slots=True)
class Holder:
    """A job with a lease, as recorded in its slot's file."""

    uuid: str
    job: str
    pid: int
    """The device, and the job with its process."""
    since_s: float
    """Begin of the lease, in seconds since the epoch."""
    granted_b: int
    foreign_b: int
    """Memory of the device that the job may use, and that others than holders used then."""


@contextlib.contextmanager
def lease(request: Request, usage_log: Path | None = None) -> Iterator[DeviceLease]:
    """Use device memory: what Slurm allocated, else a lease; start no CUDA before it.

    ``CUDA_VISIBLE_DEVICES`` and CuPy's memory limit are set within. CUDA reads them once, so a
    process takes one lease in its life. It must not fork within: the child would hold the lease for
    as long as it lives. One JSON line is appended to ``usage_log``.

    Raises
    ------
    LeaseTimeoutError, NoDeviceError, LeaseError
        The wait limit has passed; no device can ever hold it; the lease folder cannot be used.
    """
    query = partial(snapshot, dict(os.environ))  # within the lease the variables are others

    def record(own: DeviceLease, outcome: str) -> None:
        if usage_log is not None:
            append_json(usage_log, own.usage_record(outcome))

    began_s = time.monotonic()
    with contextlib.ExitStack() as locks:
        try:
            own = _allocated(request) if by_slurm() else _wait(request, lease_root(), locks)
        except (LeaseTimeoutError, NoDeviceError) as error:
            waited_s = time.monotonic() - began_s
            record(DeviceLease(request, waited_s=waited_s, reason=str(error)), "not granted")
            raise
        try:
            with _environment(own.environment()), monitor(own, query):
                yield own
        except BaseException as error:
            own.reason = own.reason or f"{type(error).__name__}: {error}"
            record(own, "failed")
            raise
        record(own, "done")


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process within a block."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


def leases(root: Path) -> list[Holder]:
    """Return the current leases."""
    with locked(root):
        return _holders(root)


def whole_above_b(devices: Iterable[Device]) -> int:
    """Return the bytes above which a job takes a whole device: those of the largest, unused."""
    return max(device.total_b for device in devices) - RESERVE_B - DRIVER_B


def leased_b(device: Device, holders: Iterable[Holder]) -> int:
    """Return the bytes of a device that are leased."""
    return sum(holder.granted_b for holder in holders if holder.uuid == device.uuid)


def room_b(device: Device, holders: Iterable[Holder]) -> int:
    """Return the bytes of a device that can still be leased; negative where too much is in use.

    A holder may not have allocated yet, and NVML's sum does not separate its use from that of
    others: the use of others when a lease began is assumed to last, as far as so much is in use.
    """
    of_device = [holder for holder in holders if holder.uuid == device.uuid]
    leased = leased_b(device, of_device)
    foreign = max([0, device.used_b - leased, *(holder.foreign_b for holder in of_device)])
    return device.total_b - RESERVE_B - leased - min(device.used_b, foreign)


def _allocated(request: Request) -> DeviceLease:
    """Return the device that Slurm allocated to this job."""
    gpus, visible = snapshot(), os.environ.get("CUDA_VISIBLE_DEVICES")
    # of several CUDA takes the first; in some containers NVML does not answer
    if len(gpus.devices) != 1:
        name = f"{socket.gethostname()}:{visible}"
        return DeviceLease(request, name, reason=gpus.reason, visible=visible)
    (device,) = gpus.devices
    bytes_ = device.total_b - RESERVE_B
    return DeviceLease(request, device.uuid, bytes_, driver=gpus.driver, visible=visible)


def _wait(request: Request, root: Path, locks: contextlib.ExitStack) -> DeviceLease:
    """Try until there is a lease; its locks go to ``locks``."""
    began_s, limit_s = time.monotonic(), request.wait_limit_s
    reserved: Device | None = None
    with contextlib.ExitStack() as reservation:
        for turn in itertools.count():
            gpus = snapshot()  # NVML may take seconds to start, so it is asked before the lock
            devices = _candidates(request, gpus, root)
            waited_s = time.monotonic() - began_s
            with locked(root):
                holders = _holders(root)
                own = reserved.uuid if reserved else ""
                free = [d for d in devices if d.uuid == own or not _is_locked(root, d, "next")]
                if holder := _acquire(request, root, free, holders, locks):
                    uuid, bytes_ = holder.uuid, holder.granted_b
                    return DeviceLease(request, uuid, bytes_, waited_s, gpus.driver)
                if waited_s >= PATIENCE_S:
                    reservation.close()
                    reserved = _emptiest(request, free, holders)
                    if reserved:
                        _lock(root, reserved, "next", reservation)
            if limit_s is not None and waited_s >= limit_s:
                raise LeaseTimeoutError(
                    f"job {request.job} got no device with {request.bytes_} B within {limit_s:g} "
                    "s; raise the wait limit, or end other work on the GPUs"
                )
            if not turn:
                what = f"a GPU with {request.bytes_ // MIB} MiB free"
                logger.info("job %s waits for %s; see tilewright devices", request.job, what)
            pause_s = RETRY_S * random.uniform(0.5, 1.5)
            time.sleep(pause_s if limit_s is None else min(pause_s, limit_s - waited_s))
    raise AssertionError  # the count has no end


def _candidates(request: Request, gpus: Snapshot, root: Path) -> list[Device]:
    """Return the devices that can hold a request; those on which it failed only if all did."""
    bad = quarantined(root)
    devices = [device for device in gpus.devices if device.uuid not in bad]
    if not devices:
        reason = gpus.reason or ("all are quarantined" if bad else "none is visible")
        raise NoDeviceError(
            f"job {request.job} has no GPU to use: {reason}; see tilewright devices"
        )
    most_b = max(device.total_b for device in devices) - RESERVE_B
    if request.bytes_ > most_b:
        raise NoDeviceError(
            f"job {request.job} needs {request.bytes_} B, more than the {most_b} B of the largest "
            "GPU; make its tiles smaller or let it use the CPU"
        )
    able = [device for device in devices if device.total_b - RESERVE_B >= request.bytes_]
    avoid = failed_on(root, request.job_id)
    return [device for device in able if device.uuid not in avoid] or able


def _acquire(
    request: Request,
    root: Path,
    devices: Iterable[Device],
    holders: Sequence[Holder],
    locks: contextlib.ExitStack,
) -> Holder | None:
    """Lock slots of the device with the fewest leases of those with room, then the emptiest."""
    count = Counter(holder.uuid for holder in holders)
    for device in sorted(devices, key=lambda d: (count[d.uuid], -room_b(d, holders), d.uuid)):
        room = room_b(device, holders)
        slots = [slot for slot in range(SLOTS) if not _is_locked(root, device, slot)]
        slots = slots if request.whole else slots[:1]
        if room >= request.bytes_ and len(slots) == (SLOTS if request.whole else 1):
            streams = [_lock(root, device, slot, locks) for slot in slots]
            bytes_ = room if request.whole else request.bytes_
            foreign_b = device.total_b - RESERVE_B - leased_b(device, holders) - room
            holder = Holder(device.uuid, request.job, os.getpid(), time.time(), bytes_, foreign_b)
            os.write(streams[0], json.dumps(asdict(holder)).encode())
            return holder
    return None


def _emptiest(
    request: Request, devices: Iterable[Device], holders: Sequence[Holder]
) -> Device | None:
    """Return the device to reserve for a request; None where others use too much of all.

    The room of a reserved one only grows; another is reserved only where it has more.
    """
    able = [d for d in devices if room_b(d, holders) + leased_b(d, holders) >= request.bytes_]
    return max(able, key=lambda device: room_b(device, holders), default=None)


def _holders(root: Path) -> list[Holder]:
    """Return the leases; that of a whole device is in the first slot's file."""
    paths = [path for path in sorted(root.glob("*.[0-9]")) if _has_lock(path)]
    return [one for path in paths if path.stat().st_size for one in read_records(path, Holder)]


def _path(root: Path, device: Device, slot: int | str) -> Path:
    return root / f"{device.uuid.replace('/', '_')}.{slot}"  # older drivers: MIG-GPU-…/1/0


def _is_locked(root: Path, device: Device, slot: int | str) -> bool:
    return _has_lock(_path(root, device, slot))


def _has_lock(path: Path) -> bool:
    try:
        stream = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(stream)
    return False


def _lock(root: Path, device: Device, slot: int | str, locks: contextlib.ExitStack) -> int:
    """Lock a free slot until ``locks`` is closed or this process ends."""
    # descriptors of Python close on exec: a program that this job starts does not inherit them
    stream = os.open(_path(root, device, slot), os.O_RDWR | os.O_CREAT, 0o600)
    locks.callback(os.close, stream)
    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.ftruncate(stream, 0)
    return stream
