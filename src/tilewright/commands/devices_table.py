"""``tilewright devices`` in 80 columns."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilewright.commands.checks import count
from tilewright.commands.devices import DevicesView, Holder
from tilewright.commands.plan_table import duration
from tilewright.devices.inventory import Device

_GB = 1e9
_NUMBERS = ("memory GB", "busy", "GB", "process")
#: Characters of a UUID that tell devices apart for people.
_SHORT = len("GPU-8932f937")


def print_view(view: DevicesView, console: Console) -> None:
    """Print devices, who holds them, what is quarantined, slots, libraries, and what is amiss."""
    console.print(_page(view), highlight=False)


def _page(view: DevicesView) -> Group:
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
        line = f"\n{uuid} gets no jobs for {duration(found.left_s)}: {found.reason}"
        fix = f"\n→ tilewright devices --clear {uuid[:_SHORT]}"
        parts.append(Text.assemble((line, "red"), (fix, "italic")))
    parts += ["", *_notes(view)]
    return Group(*parts)


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


def _holders(view: DevicesView) -> Table:
    now_s = time.time()
    table = _table("job", "device", "GB", "since", "process")
    for holder in view.holders:
        since = duration(max(0.0, now_s - holder.since_s))
        where = _name(view, holder)
        table.add_row(Text(holder.job), where, f"{holder.bytes_ / _GB:.1f}", since, str(holder.pid))
    return table


def _name(view: DevicesView, holder: Holder) -> str:
    """Return how the tables call a device: its number, or its UUID where numbers do not tell."""
    for device in view.machine.devices:
        if device.uuid == holder.uuid and device.parent is None:
            return f"GPU {device.index}"
    return holder.uuid[:_SHORT] or "waits"


def _slots(view: DevicesView) -> Table:
    whole = [device for device in view.machine.devices if not device.divided]
    names = [f"GPU {d.index}" if d.parent is None else d.uuid[:_SHORT] for d in whole]
    table = _table("jobs that fit", *names, right=names)
    for rule, by_uuid in view.slots.items():
        table.add_row(rule, *(str(by_uuid.get(device.uuid, 0)) for device in whole))
    return table


def _notes(view: DevicesView) -> Iterator[Text]:
    built = {
        True: "for CUDA",
        False: "not for CUDA",
        None: "its metadata does not tell if for CUDA",
    }
    names = [f"{found.name} {found.version} ({built[found.cuda]})" for found in view.libraries]
    yield Text(f"array libraries: {', '.join(names) or 'none'}")
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
