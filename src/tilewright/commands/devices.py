"""``tilewright devices``: this machine's GPUs, their leases and failures."""

import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import typer

from tilewright.devices.inventory import NOT_INSTALLED, snapshot
from tilewright.devices.lease_folder import clear, failures, lease_root
from tilewright.devices.leases import holders
from tilewright.errors import ConfigError, LeaseError
from tilewright.runtime.text import count, printable

_GB = 1e9


def show_devices(clear: str | None) -> None:
    """Print the devices, or let jobs use one again."""
    try:
        root = lease_root()
        lines = describe_devices(root) if clear is None else [clear_device(root, clear)]
    except (ConfigError, LeaseError) as error:
        raise SystemExit(f"tilewright devices: {error}") from None
    for line in lines:
        typer.echo(printable(line))


def describe_devices(root: Path) -> list[str]:
    """Return a line for each device, job on one, failure, and what else is to be known.

    ``root`` is the folder of leases and failures.
    """
    machine, leases, failed = snapshot(), holders(root), failures(root)
    number = Counter(uuid for uuid, _ in leases)
    lines = [] if machine.devices else ["no GPU can be used here"]
    for one in machine.devices:
        state = count(number[one.uuid], "job") if number[one.uuid] else "no job"
        state = "CUDA failed" if one.uuid in failed else state
        memory = f"{one.used_b / _GB:.1f}/{one.total_b / _GB:.1f} GB"
        part = "part of " if one.parent else ""
        lines.append(f"{part}GPU {one.index}: {one.uuid}, {one.name}, {memory}, {state}")
    lines += [f"job on {uuid} since {job}" for uuid, job in leases]
    lines += [
        f"{uuid} gets no jobs until the machine restarts, or: tilewright devices --clear {uuid}; "
        f"CUDA failed {failure}"
        for uuid, failure in failed.items()
    ]
    lines.append(f"CuPy is {'installed' if find_spec('cupy') else NOT_INSTALLED}")
    if variable := os.environ.get("CUDA_VISIBLE_DEVICES"):
        lines.append(f"only those of CUDA_VISIBLE_DEVICES={variable}")
    return lines + [f"note: {machine.reason}"] * bool(machine.reason)


def clear_device(root: Path, uuid: str) -> str:
    """Remove the failure of a device; return a message.

    Parameters
    ----------
    root : Path
        Folder of leases and failures.
    uuid : str
        Of the device.

    Raises
    ------
    ConfigError
        CUDA failed on no such device.
    """
    if uuid not in failures(root):
        raise ConfigError(f"CUDA failed on no device '{uuid}'; tilewright devices lists failures")
    clear(root, uuid)
    return f"{uuid} may be used again"
