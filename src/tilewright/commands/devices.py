"""``tilewright devices``: this machine's GPUs, their leases and quarantines."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from json import dumps
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from snakemake_scheduler_plugin_tilewright import span_text
from tilewright.devices.health import Quarantine, clear, quarantined
from tilewright.devices.inventory import NOT_INSTALLED, Snapshot, snapshot
from tilewright.devices.lease_folder import lease_root
from tilewright.devices.leases import Holder, leases
from tilewright.errors import ConfigError, LeaseError
from tilewright.runtime.text import count, printable

_GB = 1e9
#: Characters of a UUID that are shown.
_SHORT = len("GPU-8932f937")


@dataclass(frozen=True, slots=True)
class DevicesView:
    """The devices, their leases, and their quarantines."""

    machine: Snapshot
    leases: list[Holder]
    quarantined: dict[str, Quarantine]
    cupy: bool

    @classmethod
    def now(cls, root: Path) -> DevicesView:
        """Return the state of this machine; ``root`` is the folder of leases and failures."""
        return cls(snapshot(), leases(root), quarantined(root), find_spec("cupy") is not None)


def show_devices(*, json: bool, clear: str | None) -> None:
    """Print the devices, or end the quarantine of one."""
    try:
        root = lease_root()
        if clear is not None:
            typer.echo(clear_device(root, clear))
            return
        view = DevicesView.now(root)
    except (ConfigError, LeaseError) as error:
        raise SystemExit(f"tilewright devices: {error}") from None
    if json:
        content = asdict(view)
        typer.echo(dumps(content.pop("machine") | content, indent=2))
    else:
        print_view(view, Console())


def clear_device(root: Path, prefix: str) -> str:
    """End the quarantine of a device; return a message.

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
    machine = snapshot(os.environ)
    known = {*quarantined(root), *machine.hidden, *(device.uuid for device in machine.devices)}
    matches = known & {prefix} or {uuid for uuid in known if prefix and uuid.startswith(prefix)}
    if not matches:
        raise ConfigError(f"there is no device '{prefix}' here; tilewright devices lists them")
    if len(matches) > 1:
        names = ", ".join(sorted(matches))
        raise ConfigError(f"'{prefix}' is more than one device: {names}; give more characters")
    uuid = matches.pop()
    if cleared := clear(root, uuid):
        return f"{uuid} may be used again: {count(cleared, 'failure')} cleared"
    return f"{uuid}: no failure counts against it"


def print_view(view: DevicesView, console: Console) -> None:
    """Print devices, leases, quarantines and problems."""
    machine, number = view.machine, Counter(holder.uuid for holder in view.leases)
    if not machine.devices:
        console.print("no GPU can be used here")
    else:
        console.print(f"driver {machine.driver or 'not known'}", highlight=False)
        table = _table("GPU", "device", "memory GB", "busy", "state")
        for one in machine.devices:
            busy = "" if one.utilisation is None else f"{one.utilisation:.0%}"
            memory = f"{one.used_b / _GB:.1f}/{one.total_b / _GB:.1f}"
            state = count(number[one.uuid], "lease") if number[one.uuid] else "no lease"
            state = "[bold red]quarantined[/]" if one.uuid in view.quarantined else state
            name = Text(f"{one.name}\n{one.uuid}")
            table.add_row(f"{one.index}{' └' * bool(one.parent)}", name, memory, busy, state)
        console.print(table)
    if view.leases:
        table = _table("job", "device", "GB", "since", "process")
        for holder in view.leases:
            since = span_text(max(0.0, time.time() - holder.since_s))
            size = f"{holder.granted_b / _GB:.1f}"
            table.add_row(
                Text(printable(holder.job)),
                Text(printable(holder.uuid[:_SHORT])),
                size,
                since,
                str(holder.pid),
            )
        console.print("", table)
    for uuid, quarantine in view.quarantined.items():
        span = span_text(quarantine.left_s)
        line = printable(f"{uuid} gets no jobs for {span}: {quarantine.reason}")
        fix = printable(f"→ tilewright devices --clear {uuid[:_SHORT]}")
        console.print(Text.assemble("\n", (line, "red"), "\n", (fix, "italic")))
    console.print(f"\nCuPy is {'installed' if view.cupy else NOT_INSTALLED}", markup=False)
    if machine.hidden:
        hidden = ", ".join(uuid[:_SHORT] for uuid in machine.hidden)
        console.print(f"hidden by CUDA_VISIBLE_DEVICES: {hidden}", highlight=False)
    if machine.reason:
        console.print(Text(f"note: {machine.reason}", style="yellow"))


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
