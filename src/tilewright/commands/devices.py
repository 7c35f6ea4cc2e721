"""``tilewright devices``: this machine's GPUs, their leases and failures."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from json import dumps
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.devices.health import clear, failures
from tilewright.devices.inventory import NOT_INSTALLED, Snapshot, snapshot
from tilewright.devices.lease_folder import lease_root
from tilewright.devices.leases import holders
from tilewright.errors import ConfigError, LeaseError
from tilewright.runtime.text import count, printable

_GB = 1e9
#: Characters of a UUID that are shown.
_SHORT = len("GPU-8932f937")


@dataclass(frozen=True, slots=True)
class DevicesView:
    """The devices, the jobs that use them, and the failures."""

    machine: Snapshot
    leases: list[tuple[str, str]]
    """Devices with the begin of a job and the job."""
    failed: dict[str, str]
    """Devices with when, in which job and how CUDA failed."""
    cupy: bool

    @classmethod
    def now(cls, root: Path) -> DevicesView:
        """Return the state of this machine; ``root`` is the folder of leases and failures."""
        return cls(snapshot(), holders(root), failures(root), find_spec("cupy") is not None)


def show_devices(*, json: bool, clear: str | None) -> None:
    """Print the devices, or let jobs use one again."""
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
    """Remove the failure of a device; return a message.

    Parameters
    ----------
    root : Path
        Folder of leases and failures.
    prefix : str
        Its UUID, or a beginning that no other device with a failure has.

    Raises
    ------
    ConfigError
        It names no such device, or more than one.
    """
    known = failures(root)
    matches = [uuid for uuid in known if uuid == prefix] or [
        uuid for uuid in sorted(known) if prefix and uuid.startswith(prefix)
    ]
    if not matches:
        raise ConfigError(f"CUDA failed on no device '{prefix}'; tilewright devices lists failures")
    if len(matches) > 1:
        names = ", ".join(matches)
        raise ConfigError(f"'{prefix}' is more than one device: {names}; give more characters")
    clear(root, matches[0])
    return f"{matches[0]} may be used again"


def print_view(view: DevicesView, console: Console) -> None:
    """Print devices, leases, failures and problems."""
    machine, number = view.machine, Counter(uuid for uuid, _ in view.leases)
    if not machine.devices:
        console.print("no GPU can be used here")
    else:
        table = _table("GPU", "device", "memory GB", "state")
        for one in machine.devices:
            memory = f"{one.used_b / _GB:.1f}/{one.total_b / _GB:.1f}"
            state = count(number[one.uuid], "job") if number[one.uuid] else "no job"
            state = "[bold red]CUDA failed[/]" if one.uuid in view.failed else state
            name = Text(f"{one.name}\n{one.uuid}")
            table.add_row(f"{one.index}{' └' * bool(one.parent)}", name, memory, state)
        console.print(table)
    if view.leases:
        table = _table("device", "job")
        for uuid, job in view.leases:
            table.add_row(Text(printable(uuid[:_SHORT])), Text(printable(job)))
        console.print("", table)
    for uuid, failure in view.failed.items():
        line = printable(f"{uuid} gets no jobs until the machine restarts: CUDA failed {failure}")
        fix = printable(f"→ tilewright devices --clear {uuid[:_SHORT]}")
        console.print(Text.assemble("\n", (line, "red"), "\n", (fix, "italic")))
    console.print(f"\nCuPy is {'installed' if view.cupy else NOT_INSTALLED}", markup=False)
    if variable := os.environ.get("CUDA_VISIBLE_DEVICES"):
        console.print(Text(f"only those of CUDA_VISIBLE_DEVICES={printable(variable)}"))
    if machine.reason:
        console.print(Text(f"note: {machine.reason}", style="yellow"))


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
