"""Which waiting request gets which device: pure functions of what is known at one moment.

A request is granted where ``leased + foreign + reserve + request <= total``. Requests are served
in the order of their tickets; one that does not fit yet may be passed by :data:`PASSES` younger
ones that do. From then on the device that is nearest to it is kept free of younger ones. What it
still lacks there then falls with each release and never grows by a grant, so it cannot starve.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.devices.inventory import Device

MIB = 2**20
#: Left free on each device: the context of CUDA lies outside CuPy's limit.
RESERVE_B = 512 * MIB
#: NVML counts what the driver keeps as used: 450 to 600 MiB on cards that nobody uses.
DRIVER_B = 1024 * MIB
#: Younger requests that may be served before an older one. With 8, jobs of a quarter of a device
#: fill it twice more while a whole-device request waits.
PASSES = 8


@dataclass(frozen=True, slots=True)
class Request:
    """What a job asks for.

    Attributes
    ----------
    bytes_ : int
        Device memory; the least that will do for a whole device.
    job : str
        Its name, for people.
    whole : bool
        Nobody else's lease beside it; all that is free is granted.
    wait_limit_s : float or None
        Seconds after which waiting ends in an error.
    """

    bytes_: int
    job: str
    whole: bool = False
    wait_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """A request in the queue, or, once it has a device, a lease.

    Attributes
    ----------
    ticket : int
        Place in the queue.
    pid : int
        For people, and to tell own use of a device from foreign use; never for liveness.
    allowed : tuple of str
        UUIDs of the devices that its process may use.
    since_s : float
        When it entered the queue, in seconds since the epoch; for people.
    passed : int
        Younger requests that were served before it.
    uuid : str
        The device; empty while it waits.
    granted_b, foreign_b : int
        Bytes of the lease, and the foreign use of the device when it was granted.
    granted_s : float
        When it was granted, in seconds since the epoch; for people.
    evidence : str
        File for the line of one that is killed; empty without.
    """

    ticket: int
    pid: int
    request: Request
    allowed: tuple[str, ...]
    since_s: float = 0.0
    passed: int = 0
    uuid: str = ""
    granted_b: int = 0
    foreign_b: int = 0
    granted_s: float = 0.0
    evidence: str = ""


def leased_b(device: Device, held: Iterable[LeaseClaim]) -> int:
    """Return the bytes of a device that are leased."""
    return sum(claim.granted_b for claim in held if claim.uuid == device.uuid)


def foreign_b(device: Device, held: Iterable[LeaseClaim]) -> int:
    """Return the bytes of a device that others than the holders of leases use.

    What a holder uses beyond its lease counts as foreign too. Where NVML shows no processes, as
    in containers, a holder may not have allocated yet: then the foreign use that was seen when
    its lease was granted is believed to last, as far as the device shows so much use.
    """
    own = [claim for claim in held if claim.uuid == device.uuid]
    if device.used_by_pid:
        ours = 0
        for pid in {claim.pid for claim in own}:
            used = sum(bytes_ for shown, bytes_ in device.used_by_pid if shown == pid)
            ours += min(used, sum(claim.granted_b for claim in own if claim.pid == pid))
        return max(0, device.used_b - ours)
    beyond = device.used_b - leased_b(device, own)
    return min(device.used_b, max([0, beyond, *(claim.foreign_b for claim in own)]))


def room_b(device: Device, held: Collection[LeaseClaim]) -> int:
    """Return the bytes of a device that can still be granted; below 0 where it is overfull."""
    return device.total_b - RESERVE_B - leased_b(device, held) - foreign_b(device, held)


def lacking_b(device: Device, held: Collection[LeaseClaim], request: Request) -> int:
    """Return the bytes that must become free on a device before a request fits; 0: it fits.

    Beside the lease of a whole device there is none, whatever else became free there.
    """
    alone = request.whole or any(c.request.whole for c in held if c.uuid == device.uuid)
    leased = leased_b(device, held) if alone else 0
    room = room_b(device, held) + leased
    return leased + max(0, max(1, request.bytes_) - room)


def leasable(devices: Iterable[Device], quarantined: Collection[str] = ()) -> list[Device]:
    """Return the devices that may be leased: neither quarantined nor the parent of instances."""
    return [d for d in devices if not d.divided and d.uuid not in quarantined]


def whole_above_b(devices: Iterable[Device]) -> int:
    """Return the bytes above which a job takes a whole device: what the largest has unused."""
    return max(device.total_b for device in devices) - RESERVE_B - DRIVER_B


def choose(
    devices: Iterable[Device],
    held: Collection[LeaseClaim],
    request: Request,
) -> str | None:
    """Return the UUID of the device for a request, of those that may be leased; None: none fits.

    A device without leases before any other: two jobs on one take as long as one after the other.
    Then that with the fewest leased bytes, then the least utilisation (unknown counts as busy),
    then the first UUID.
    """
    fitting = [d for d in devices if not lacking_b(d, held, request)]
    fitting = [d for d in fitting if not leased_b(d, held)] or fitting
    return min(
        (
            (leased_b(d, held), 1.0 if d.utilisation is None else d.utilisation, d.uuid)
            for d in fitting
        ),
        default=(0, 0.0, None),
    )[2]


def grants(
    devices: Sequence[Device],
    claims: Iterable[LeaseClaim],
    quarantined: Collection[str] = (),
) -> list[LeaseClaim]:
    """Return the claims that change: those that get a device now, and those that they passed.

    Parameters
    ----------
    claims : iterable of LeaseClaim
        All that live, waiting or holding.
    """
    every = sorted(claims, key=lambda claim: claim.ticket)
    known = {claim.ticket: claim for claim in every}
    held = [claim for claim in every if claim.uuid]
    usable = {device.uuid: device for device in leasable(devices, quarantined)}
    changed: dict[int, LeaseClaim] = {}
    waiting: list[LeaseClaim] = []
    keepers: set[int] = set()
    for claim in every:
        if claim.uuid:
            continue
        open_to = [d for d in usable.values() if d.uuid in claim.allowed]
        uuid = choose(open_to, held, claim.request)
        if uuid is None:
            waiting.append(claim)
        else:
            device, bytes_ = usable[uuid], claim.request.bytes_
            if claim.request.whole:
                bytes_ = room_b(device, held)
            foreign = foreign_b(device, held)
            held.append(replace(claim, uuid=uuid, granted_b=bytes_, foreign_b=foreign))
            changed[claim.ticket] = held[-1]
            # a younger one was served before those that could use its device
            waiting = [replace(c, passed=c.passed + (uuid in c.allowed)) for c in waiting]
        for older in waiting:
            # what is kept for one stays kept for those after it
            if older.passed >= PASSES and older.ticket not in keepers:
                keepers.add(older.ticket)
                usable.pop(_nearest(usable, held, older) or "", None)
    changed |= {claim.ticket: claim for claim in waiting}
    return [claim for claim in changed.values() if claim != known[claim.ticket]]


def _nearest(
    usable: Mapping[str, Device], held: Collection[LeaseClaim], claim: LeaseClaim
) -> str | None:
    """Return the device that lacks least for a claim, of those that hold it without leases.

    Where foreign use is in the way, keeping others out would not help it.
    """
    lacks = [
        (lacking_b(d, held, claim.request), d.uuid)
        for d in usable.values()
        if d.uuid in claim.allowed and room_b(d, held) + leased_b(d, held) >= claim.request.bytes_
    ]
    return min(lacks)[1] if lacks else None
