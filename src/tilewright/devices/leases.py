"""Leases of device memory that all runs of a user on one machine share.

In the lease folder each device has :data:`SLOTS` files ``<uuid>.<slot>``. A job holds a device as
long as it holds the flock of one of them, of all for a whole device; the kernel ends it with the
process, also where that is killed. All is looked at and taken under the flock of ``lock``. What a
job asks for must fit beside what is leased and what NVML says that others use. Who gets nothing
tries again; after :data:`PATIENCE_S` it keeps one device free of new leases by the flock of
``<uuid>.next``, so that a stream of small jobs does not starve it.
"""

from __future__ import annotations

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
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

from tilewright.devices.device_lease import DeviceLease, Request
from tilewright.devices.health import failed_on, quarantined
from tilewright.devices.inventory import Device, Snapshot, snapshot
from tilewright.devices.lease_folder import lease_root, locked
from tilewright.devices.monitor import monitor
from tilewright.devices.slurm_allocation import by_slurm
from tilewright.errors import LeaseTimeoutError, NoDeviceError
from tilewright.runtime.json_lines import append_json

logger = logging.getLogger("tilewright")

MIB = 2**20
#: Left free on each device: the context of CUDA lies outside CuPy's limit.
RESERVE_B = 512 * MIB
#: NVML counts what the driver keeps as used: 450 to 600 MiB on cards that nobody uses.
DRIVER_B = 1024 * MIB
#: Jobs on one device at most; memory nearly always says stop before.
SLOTS = 8
#: Seconds between two tries, times 0.5 to 1.5: those who wait do not stay in step.
RETRY_S = 0.5
#: Seconds of waiting after which a device is kept free of new leases.
PATIENCE_S = 5.0
#: EX_TEMPFAIL: trying again later may do.
WAIT_EXIT_CODE = 75


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that holds a device, as it wrote it into its slot's file.

    Attributes
    ----------
    since_s : float
        When it got the device, in seconds since the epoch.
    foreign_b : int
        What others than holders used of the device then.
    """

    uuid: str
    job: str
    pid: int
    since_s: float
    granted_b: int
    foreign_b: int


@contextlib.contextmanager
def lease(request: Request, evidence: Path | None = None) -> Iterator[DeviceLease]:
    """Hold device memory: what Slurm allocated, else a lease; start no CUDA before it.

    ``CUDA_VISIBLE_DEVICES`` and CuPy's memory limit are set within. CUDA reads them once, so a
    process takes one lease in its life. It must not fork within: a forked child would keep the
    lease for as long as it lives.

    Parameters
    ----------
    evidence : Path, optional
        File to which one JSON line is appended.

    Raises
    ------
    LeaseTimeoutError, NoDeviceError, LeaseError
        The wait limit has passed; no device can ever hold it; the lease folder cannot be used.
    """
    look = partial(snapshot, dict(os.environ))  # within the lease the variables are others

    def note(held: DeviceLease, outcome: str) -> None:
        if evidence is not None:
            append_json(evidence, held.evidence(outcome))

    began_s = time.monotonic()
    with contextlib.ExitStack() as locks:
        try:
            held = _allocated(request) if by_slurm() else _wait(request, lease_root(), locks)
        except (LeaseTimeoutError, NoDeviceError) as error:
            waited_s = time.monotonic() - began_s
            note(DeviceLease(request, waited_s=waited_s, reason=str(error)), "not granted")
            raise
        try:
            with _variables_set(held.environment()), monitor(held, look):
                yield held
        except BaseException as error:
            held.reason = held.reason or f"{type(error).__name__}: {error}"
            note(held, "failed")
            raise
        note(held, "done")


@contextlib.contextmanager
def _variables_set(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process for a while."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


def leases(root: Path) -> list[Holder]:
    """Return who holds a device now."""
    with locked(root):
        return _holders(root)


def whole_above_b(devices: Iterable[Device]) -> int:
    """Return the bytes above which a job takes a whole device: what the largest has unused."""
    return max(device.total_b for device in devices) - RESERVE_B - DRIVER_B


def leased_b(device: Device, holders: Iterable[Holder]) -> int:
    """Return the bytes of a device that are leased."""
    return sum(holder.granted_b for holder in holders if holder.uuid == device.uuid)


def room_b(device: Device, holders: Iterable[Holder]) -> int:
    """Return the bytes of a device that can still be leased; below 0 where it is overfull.

    A holder may not have allocated yet, and NVML's sum does not tell its use from that of others:
    what others used when a lease began is believed to last, as far as so much is in use.
    """
    own = [holder for holder in holders if holder.uuid == device.uuid]
    leased = leased_b(device, own)
    foreign = max([0, device.used_b - leased, *(holder.foreign_b for holder in own)])
    return device.total_b - RESERVE_B - leased - min(device.used_b, foreign)


def _allocated(request: Request) -> DeviceLease:
    """Return the device that Slurm allocated to this job."""
    seen, visible = snapshot(), os.environ.get("CUDA_VISIBLE_DEVICES")
    # of several CUDA takes the first; in some containers NVML does not answer
    if len(seen.devices) != 1:
        where = f"{socket.gethostname()}:{visible}"
        return DeviceLease(request, where, reason=seen.reason, visible=visible)
    (device,) = seen.devices
    bytes_ = device.total_b - RESERVE_B
    return DeviceLease(request, device.uuid, bytes_, driver=seen.driver, visible=visible)


def _wait(request: Request, root: Path, locks: contextlib.ExitStack) -> DeviceLease:
    """Try until a device is held; its lock goes to ``locks``."""
    began_s, limit_s = time.monotonic(), request.wait_limit_s
    kept: Device | None = None
    with contextlib.ExitStack() as keeping:
        for turn in itertools.count():
            seen = snapshot()  # NVML may take seconds to start, so it is asked before the lock
            devices = _able(request, seen, root)
            waited_s = time.monotonic() - began_s
            with locked(root):
                holders = _holders(root)
                own = kept.uuid if kept else ""
                free = [d for d in devices if d.uuid == own or not _is_held(root, d, "next")]
                if holder := _take(request, root, free, holders, locks):
                    uuid, bytes_ = holder.uuid, holder.granted_b
                    return DeviceLease(request, uuid, bytes_, waited_s, seen.driver)
                if waited_s >= PATIENCE_S:
                    keeping.close()
                    kept = _emptiest(request, free, holders)
                    if kept:
                        _hold(root, kept, "next", keeping)
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


def _able(request: Request, seen: Snapshot, root: Path) -> list[Device]:
    """Return the devices that can hold a request, those that failed it only if there is no other.

    Raises
    ------
    NoDeviceError
        There is none, so it would wait for ever.
    """
    bad = quarantined(root)
    devices = [device for device in seen.devices if device.uuid not in bad]
    if not devices:
        reason = seen.reason or ("all are quarantined" if bad else "none is visible")
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
    avoid = failed_on(root, request.whole_name)
    return [device for device in able if device.uuid not in avoid] or able


def _take(
    request: Request,
    root: Path,
    devices: Iterable[Device],
    holders: Sequence[Holder],
    locks: contextlib.ExitStack,
) -> Holder | None:
    """Hold the device with the fewest leases of those with room, and of these the emptiest."""
    count = Counter(holder.uuid for holder in holders)
    for device in sorted(devices, key=lambda d: (count[d.uuid], -room_b(d, holders), d.uuid)):
        room = room_b(device, holders)
        slots = [slot for slot in range(SLOTS) if not _is_held(root, device, slot)]
        slots = slots if request.whole else slots[:1]
        if room >= request.bytes_ and len(slots) == (SLOTS if request.whole else 1):
            streams = [_hold(root, device, slot, locks) for slot in slots]
            bytes_ = room if request.whole else request.bytes_
            foreign_b = device.total_b - RESERVE_B - leased_b(device, holders) - room
            holder = Holder(device.uuid, request.job, os.getpid(), time.time(), bytes_, foreign_b)
            os.write(streams[0], json.dumps(asdict(holder)).encode())
            return holder
    return None


def _emptiest(
    request: Request, devices: Iterable[Device], holders: Sequence[Holder]
) -> Device | None:
    """Return the device to keep for a request; None where the use of others is in the way.

    Kept, its room only grows; another is taken for it only where that has more.
    """
    able = [d for d in devices if room_b(d, holders) + leased_b(d, holders) >= request.bytes_]
    return max(able, key=lambda device: room_b(device, holders), default=None)


def _holders(root: Path) -> list[Holder]:
    """Return who holds devices; of a whole one the first slot's file tells."""
    texts = [path.read_text() for path in sorted(root.glob("*.[0-9]")) if _is_locked(path)]
    known = [field.name for field in fields(Holder)]  # another version's may say more
    return [Holder(**{key: json.loads(text)[key] for key in known}) for text in texts if text]


def _path(root: Path, device: Device, slot: int | str) -> Path:
    return root / f"{device.uuid.replace('/', '_')}.{slot}"  # older drivers: MIG-GPU-…/1/0


def _is_held(root: Path, device: Device, slot: int | str) -> bool:
    return _is_locked(_path(root, device, slot))


def _is_locked(path: Path) -> bool:
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


def _hold(root: Path, device: Device, slot: int | str, locks: contextlib.ExitStack) -> int:
    """Hold a slot that nobody holds, until ``locks`` is closed or this process ends."""
    # descriptors of Python close on exec: a program that this job starts does not keep them
    stream = os.open(_path(root, device, slot), os.O_RDWR | os.O_CREAT, 0o600)
    locks.callback(os.close, stream)
    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.ftruncate(stream, 0)
    return stream
