"""Which GPUs ``CUDA_VISIBLE_DEVICES`` leaves to a process, read as CUDA reads it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.devices.records import Device

_NAME = "CUDA_VISIBLE_DEVICES"


def visible(
    all_devices: Sequence[Device], cuda_visible_devices: str | None
) -> tuple[tuple[Device, ...], tuple[str, ...], str]:
    """Return the devices that a variable's text keeps, what it hides, and why.

    Without the variable all are kept; an empty text keeps none. Entries are read up to the first
    that names no device, or more than one. A device named twice hides all. A number is that of a
    GPU by PCI bus; a UUID may be cut short. A process gets one MIG instance, the first named one
    or the first of a divided GPU that was named, and then no other GPU.

    Parameters
    ----------
    all_devices : sequence of Device
        All of the machine, instances and the GPUs they are cut from.
    cuda_visible_devices : str or None
        None where the variable is unset.

    Returns
    -------
    kept : tuple of Device
        In the order of the text; a MIG instance follows its GPU.
    hidden : tuple of str
        UUIDs of the others.
    reason : str
        Why it is not what the text seems to say; may be empty.
    """
    if cuda_visible_devices is None:
        return tuple(all_devices), (), ""
    names, reason = _named(all_devices, cuda_visible_devices)
    kept = [device for name in names for device in _meant(all_devices, name)]
    instance = next((device for device in kept if device.parent), None)
    if instance is not None:
        if names != [instance.uuid]:
            one = f"{_NAME}: CUDA gives a process one MIG instance and nothing else"
            reason = "; ".join(filter(None, [one, reason]))
        kept = [d for d in kept if d.uuid in (instance.parent, instance.uuid)]
    kept = list(dict.fromkeys(kept))
    hidden = tuple(device.uuid for device in all_devices if device not in kept)
    return tuple(kept), hidden, reason


def _named(devices: Sequence[Device], text: str) -> tuple[list[str], str]:
    """Return the UUIDs of the GPUs and instances that a text names, and what is wrong with it."""
    if not text.strip():
        return [], f"{_NAME} is empty, which hides every GPU"
    names: list[str] = []
    reason = ""
    for entry in text.split(","):
        found = _matches(devices, entry.strip())
        if len(found) != 1:
            what = "more than one GPU" if found else "no GPU here"
            reason = f"{_NAME}: '{entry}' names {what}, so CUDA reads it no further"
            break
        names += found
    if len(set(names)) < len(names):
        return [], f"{_NAME} names a GPU twice, so CUDA gives none"
    return names, reason


def _matches(devices: Sequence[Device], entry: str) -> set[str]:
    if entry.isdigit():
        # as text: int() refuses very long numbers
        number = entry.lstrip("0") or "0"
        return {_gpu(device) for device in devices if str(device.index) == number}
    names: set[str] = set()
    if entry.startswith("GPU-"):
        names = {_gpu(device) for device in devices}
    elif entry.startswith("MIG-"):
        names = {device.uuid for device in devices if device.parent}
    return names & {entry} or {name for name in names if name.startswith(entry)}


def _gpu(device: Device) -> str:
    return device.parent or device.uuid


def _meant(devices: Sequence[Device], name: str) -> list[Device]:
    """Return a GPU or instance of a UUID: with its GPU, or with its instances."""
    own = [device for device in devices if device.uuid == name]
    if own and own[0].parent:
        return [device for device in devices if device.uuid in (name, own[0].parent)]
    return own + [device for device in devices if device.parent == name]
