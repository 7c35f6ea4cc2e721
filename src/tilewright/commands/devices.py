"""``tilewright devices``: this machine's GPUs, who holds them, and which get no jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilewright.commands.checks import count
from tilewright.devices.health import Quarantine, clear, quarantined
from tilewright.devices.inventory import Device, Library, Snapshot, installed_libraries, snapshot

#: Seconds between two looks of ``--watch``.
EVERY_S = 2.0


class DevicesError(ValueError):
    """A device or a folder that was named cannot be used."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that holds memory of a device, or waits for some.

    Attributes
    ----------
    uuid : str
        The device; empty while it waits.
    bytes_ : int
    job : str
    pid : int
        For people: processes come and go.
    since_s : float
        Seconds since the epoch.
    """

    uuid: str
    bytes_: int
    job: str
    pid: int
    since_s: float


@dataclass(frozen=True, slots=True)
class DevicesView:
    """Everything that the table shows.

    Attributes
    ----------
    machine : Snapshot
    holders : tuple of Holder
    quarantined : dict
        By UUID; a device that is hidden or gone may be among them.
    libraries : tuple of Library
    slots : dict
        Jobs that fit, by rule and UUID.
    """

    machine: Snapshot
    holders: tuple[Holder, ...] = ()
    quarantined: Mapping[str, Quarantine] = field(default_factory=dict)
    libraries: tuple[Library, ...] = ()
    slots: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def look(
    root: Path,
    *,
    holders: Iterable[Holder] = (),
    job_b: Mapping[str, int] | None = None,
    reserve_b: int = 0,
    environ: Mapping[str, str] = os.environ,
) -> DevicesView:
    """Return what is known of this machine's GPUs now.

    Parameters
    ----------
    root : Path
        Folder of leases and failures.
    holders : iterable of Holder
    job_b : mapping of str to int, optional
        Device memory of a job, by rule.
    reserve_b : int
        Memory of each device that no job gets.
    environ : mapping
    """
    machine, bad = snapshot(environ), quarantined(root)
    usable = [device for device in machine.devices if device.uuid not in bad]
    return DevicesView(
        machine=machine,
        holders=tuple(holders),
        quarantined=bad,
        libraries=installed_libraries(),
        slots=slots(usable, job_b or {}, reserve_b=reserve_b),
    )


def slots(
    devices: Iterable[Device], job_b: Mapping[str, int], *, reserve_b: int = 0
) -> dict[str, dict[str, int]]:
    """Return how many jobs of each rule fit at once into each device that nobody else uses.

    A divided GPU is left out: its instances have the slots.

    Parameters
    ----------
    devices : iterable of Device
    job_b : mapping of str to int
        Device memory of a job, by rule.
    reserve_b : int
        Memory of each device that no job gets.
    """
    whole = [device for device in devices if not device.divided]
    return {
        rule: {device.uuid: max(0, device.total_b - reserve_b) // need_b for device in whole}
        for rule, need_b in job_b.items()
    }


def as_json(view: DevicesView) -> dict[str, Any]:
    """Return the view as plain values; bytes, seconds, and null for what is not known."""
    machine = asdict(view.machine)
    for device in machine["devices"]:
        used = device.pop("used_by_pid")
        device["processes"] = [{"pid": pid, "used_b": used_b} for pid, used_b in used]
    leases = [asdict(holder) for holder in view.holders]
    for lease in leases:
        lease["bytes"] = lease.pop("bytes_")
    return {
        **machine,
        "leases": leases,
        "quarantined": {uuid: asdict(found) for uuid, found in view.quarantined.items()},
        "slots": {rule: dict(by_uuid) for rule, by_uuid in view.slots.items()},
        "libraries": [asdict(library) for library in view.libraries],
    }


def clear_device(root: Path, prefix: str, environ: Mapping[str, str] = os.environ) -> str:
    """End the quarantine of a device; return what was done.

    Parameters
    ----------
    root : Path
        Folder of leases and failures.
    prefix : str
        Its UUID, or a beginning that no other has.
    environ : mapping

    Raises
    ------
    DevicesError
        It names no device, or more than one.
    """
    machine = snapshot(environ)
    known = {*quarantined(root), *machine.hidden, *(device.uuid for device in machine.devices)}
    found = known & {prefix} or {uuid for uuid in known if prefix and uuid.startswith(prefix)}
    if not found:
        raise DevicesError(f"there is no device '{prefix}' here; tilewright devices lists them")
    if len(found) > 1:
        raise DevicesError(f"'{prefix}' is more than one: {', '.join(sorted(found))}; give more")
    uuid = found.pop()
    cleared = clear(root, uuid)
    if not cleared:
        return f"{uuid}: no failure counts against it"
    return f"{uuid} may be used again: {count(cleared, 'failure')} cleared"


def repeat(show: Callable[[], None], every_s: float = EVERY_S) -> None:
    """Show again and again until Ctrl-C."""
    try:
        while True:
            show()
            time.sleep(every_s)
    except KeyboardInterrupt:
        return
