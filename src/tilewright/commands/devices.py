"""``tilewright devices``: this machine's GPUs, who holds them, and which get no jobs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from json import dumps
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from snakemake_scheduler_plugin_tilewright.commands.checks import count
from snakemake_scheduler_plugin_tilewright.runtime.run_state import span_text
from tilewright.commands.files import read_experiment
from tilewright.config.checks import check_raw, data_sizes
from tilewright.config.layout import Layout
from tilewright.devices.budget import MIB, RESERVE_B, LeaseClaim
from tilewright.devices.evidence import CONTEXT_B
from tilewright.devices.health import Quarantine, clear, quarantined
from tilewright.devices.inventory import Device, Snapshot, snapshot
from tilewright.devices.lease import leases
from tilewright.devices.lease_queue import lease_root
from tilewright.errors import ConfigError, LeaseError
from tilewright.runtime.machine import NO_CUPY, device_kinds

#: Seconds between two looks of ``--watch``.
EVERY_S = 2.0
_GB = 1e9
_NUMBERS = ("memory GB", "busy", "GB", "process")
#: Characters of a UUID that tell devices apart for people.
_SHORT = len("GPU-8932f937")


@dataclass(frozen=True, slots=True)
class DevicesView:
    """Everything that the table shows.

    Attributes
    ----------
    holders : tuple of LeaseClaim
        Jobs that hold memory of a device, or wait for some.
    quarantined : dict
        By UUID; a device that is hidden or gone may be among them.
    cupy : bool
        Whether CuPy is installed.
    slots : dict
        Jobs that fit, by rule and UUID.
    job_b : dict
        Device memory of such a job, by rule.
    """

    machine: Snapshot
    holders: tuple[LeaseClaim, ...] = ()
    quarantined: Mapping[str, Quarantine] = field(default_factory=dict)
    cupy: bool = False
    slots: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    job_b: Mapping[str, int] = field(default_factory=dict)


def show_devices(*, json: bool, watch: bool, clear: str | None, configfile: Path | None) -> None:
    """Look at the devices and print them, again and again with ``watch``, or clear one."""
    console = Console()

    def show() -> None:
        view = look(root, job_b)
        if json:
            typer.echo(dumps(as_json(view), indent=None if watch else 2))
            return
        if watch:
            console.clear()
        print_view(view, console)

    try:
        root = lease_root()
        job_b = memory_of_jobs(configfile) if configfile else {}
        if clear is not None:
            typer.echo(clear_device(root, clear))
        elif watch:
            repeat(show)
        else:
            show()
    except (ConfigError, LeaseError) as error:
        raise SystemExit(f"tilewright devices: {error}") from None


def look(root: Path, job_b: Mapping[str, int]) -> DevicesView:
    """Return what is known of this machine's GPUs now.

    Parameters
    ----------
    root : Path
        Folder of leases and failures.
    job_b : mapping of str to int
        Device memory of a job, by rule.
    """
    machine, bad = snapshot(os.environ), quarantined(root)
    # of a divided GPU its instances have the slots
    usable = [one for one in machine.devices if one.uuid not in bad and not one.divided]
    return DevicesView(
        machine=machine,
        holders=tuple(leases(root)),
        quarantined=bad,
        cupy=find_spec("cupy") is not None,
        slots={
            rule: {one.uuid: max(0, one.total_b - RESERVE_B) // need_b for one in usable}
            for rule, need_b in job_b.items()
        },
        job_b=job_b,
    )


def as_json(view: DevicesView) -> dict[str, Any]:
    """Return the view as plain values; bytes, seconds, and null for what is not known."""
    machine = asdict(view.machine)
    for device in machine["devices"]:
        used = device.pop("used_by_pid")
        device["processes"] = [{"pid": pid, "used_b": used_b} for pid, used_b in used]
    names = ("uuid", "job", "pid", "since_s", "bytes")
    leases = [(c.uuid, c.request.job, c.pid, c.since_s, _held_b(c)) for c in view.holders]
    return {
        **machine,
        "leases": [dict(zip(names, lease, strict=True)) for lease in leases],
        "quarantined": {uuid: asdict(found) for uuid, found in view.quarantined.items()},
        "slots": {rule: dict(by_uuid) for rule, by_uuid in view.slots.items()},
        "cupy": view.cupy,
    }


def clear_device(root: Path, prefix: str, environ: Mapping[str, str] = os.environ) -> str:
    """End the quarantine of a device; return what was done.

    Parameters
    ----------
    root : Path
        Folder of leases and failures.
    prefix : str
        Its UUID, or a beginning that no other has.

    Raises
    ------
    ConfigError
        It names no device, or more than one.
    """
    machine = snapshot(environ)
    known = {*quarantined(root), *machine.hidden, *(device.uuid for device in machine.devices)}
    found = known & {prefix} or {uuid for uuid in known if prefix and uuid.startswith(prefix)}
    if not found:
        raise ConfigError(f"there is no device '{prefix}' here; tilewright devices lists them")
    if len(found) > 1:
        raise ConfigError(f"'{prefix}' is more than one: {', '.join(sorted(found))}; give more")
    uuid = found.pop()
    if cleared := clear(root, uuid):
        return f"{uuid} may be used again: {count(cleared, 'failure')} cleared"
    return f"{uuid}: no failure counts against it"


def repeat(show: Callable[[], None]) -> None:
    """Show again and again until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            show()
            time.sleep(EVERY_S)


def print_view(view: DevicesView, console: Console) -> None:
    """Print devices, who holds them, what is quarantined, slots, and what is amiss."""
    parts: list[RenderableType] = []
    machine = view.machine
    if machine.devices:
        parts += [f"driver {machine.driver or 'not known'}", _devices(view)]
    else:
        parts.append("no GPU can be used here")
    if view.holders:
        parts += ["", _holders(view)]
    if view.slots and machine.devices:
        parts += ["", _slots(view)]
    for uuid, found in view.quarantined.items():
        line = f"\n{uuid} gets no jobs for {span_text(found.left_s)}: {found.reason}"
        fix = f"\n→ tilewright devices --clear {uuid[:_SHORT]}"
        parts.append(Text.assemble((line, "red"), (fix, "italic")))
    console.print(Group(*parts, "", *_notes(view)), highlight=False)


def _devices(view: DevicesView) -> Table:
    table = _table("GPU", "device", "memory GB", "busy", "state")
    for device in view.machine.devices:
        busy = "" if device.utilisation is None else f"{device.utilisation:.0%}"
        memory = f"{device.used_b / _GB:.1f}/{device.total_b / _GB:.1f}"
        number = str(device.index) if device.parent is None else f"{device.index} └"
        name = f"{device.name}\n{device.uuid}"
        table.add_row(number, Text(name), memory, busy, _state(view, device))
    return table


def _state(view: DevicesView, device: Device) -> Text:
    leases = sum(holder.uuid == device.uuid for holder in view.holders)
    if device.uuid in view.quarantined:
        return Text("quarantined", style="bold red")
    if device.divided:
        return Text("divided", style="dim")
    return Text(count(leases, "lease") if leases else "no lease")


def _held_b(claim: LeaseClaim) -> int:
    return claim.granted_b if claim.uuid else claim.request.bytes_


def _holders(view: DevicesView) -> Table:
    now_s = time.time()
    names = {device.uuid: _name(device) for device in view.machine.devices}
    table = _table("job", "device", "GB", "since", "process")
    for claim in view.holders:
        since = span_text(max(0.0, now_s - claim.since_s))
        where = names.get(claim.uuid, claim.uuid[:_SHORT] or "waits")
        held = f"{_held_b(claim) / _GB:.1f}"
        table.add_row(Text(claim.request.job), where, held, since, str(claim.pid))
    return table


def _name(device: Device) -> str:
    """Return how the tables call a device: its number, or its UUID where numbers do not tell."""
    return f"GPU {device.index}" if device.parent is None else device.uuid[:_SHORT]


def _slots(view: DevicesView) -> Table:
    whole = [device for device in view.machine.devices if not device.divided]
    names = [_name(device) for device in whole]
    table = _table("slots for jobs", *names, right=names)
    for rule, by_uuid in view.slots.items():
        size = f"{rule} of {view.job_b[rule] / MIB:.0f} MB"
        table.add_row(size, *(str(by_uuid.get(device.uuid, 0)) for device in whole))
    return table


def _notes(view: DevicesView) -> Iterator[Text]:
    yield Text(f"CuPy is {'installed' if view.cupy else NO_CUPY}")
    if view.machine.hidden:
        hidden = ", ".join(uuid[:_SHORT] for uuid in view.machine.hidden)
        yield Text(f"hidden by CUDA_VISIBLE_DEVICES: {hidden}")
    if view.machine.reason:
        yield Text(f"note: {view.machine.reason}", style="yellow")


def _table(*columns: str, right: Collection[str] = _NUMBERS) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def memory_of_jobs(configfile: Path) -> dict[str, int]:
    """Return the bytes of a device that the largest job of each rule asks for, by rule.

    Raises
    ------
    ConfigError
        The configuration is wrong, or its raw files are.
    """
    experiment = read_experiment(configfile)
    layout = Layout(experiment.settings.results)
    check_raw(experiment, layout)
    kinds = device_kinds(experiment.settings, None, {})
    sizes = data_sizes(experiment, layout, kinds)
    return {
        rule: sizes.shape(rule, {}, gpu=True).gpu_mem_mb * MIB + CONTEXT_B
        for rule, able in kinds.items()
        if "gpu" in able
    }
