"""The GPUs of this machine by NVML, cut to those that a process may use; sizes in bytes.

No CUDA context is made, and no array library is imported.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_NAME = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one MIG instance of a GPU.

    Attributes
    ----------
    uuid : str
        ``GPU-…`` or ``MIG-…``: its identity everywhere; ``index`` is for people.
    index : int
        Number by PCI bus; that of the parent for a MIG instance.
    total_b, used_b : int
        Memory, and what is in use by everybody.
    utilisation : float or None
        Share of the last second in which it computed, 0 to 1; None where NVML does not say.
    used_by_pid : tuple of (int, int)
        Processes that hold memory, as far as NVML shows them, with their bytes.
    parent : str or None
        UUID of the GPU that a MIG instance is cut from.
    divided : bool
        MIG mode is on: the GPU itself is never leased, its instances are.
    """

    uuid: str
    index: int
    name: str
    total_b: int
    used_b: int
    utilisation: float | None = None
    used_by_pid: tuple[tuple[int, int], ...] = ()
    parent: str | None = None
    divided: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The GPUs of this machine at one moment.

    Attributes
    ----------
    devices : tuple of Device
        Those that this process may use, MIG parents too.
    reason : str
        Why there are none, or why some are left out; may be empty.
    driver : str
        Version of the driver; empty where it is not known.
    hidden : tuple of str
        UUIDs that ``CUDA_VISIBLE_DEVICES`` hides.
    """

    devices: tuple[Device, ...]
    reason: str = ""
    driver: str = ""
    hidden: tuple[str, ...] = ()


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


def snapshot(environ: Mapping[str, str] = os.environ) -> Snapshot:
    """Return the GPUs that this process may use, and what they do now.

    Where NVML does not answer there are none, and the reason says so. A device that it cannot
    identify, or whose memory it does not tell, is left out; the others stay.
    """
    try:
        import pynvml
    except ImportError:
        return Snapshot((), "nvidia-ml-py is not installed: pip install nvidia-ml-py")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Snapshot((), f"NVML does not start ({error}): is there an NVIDIA driver?")
    try:
        look = _Look(pynvml)
        found = tuple(look.devices())
        driver = look.ask("the driver's version", pynvml.nvmlSystemGetDriverVersion) or ""
    finally:
        # what was read stays true where the library fails to close
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    if not found:
        return Snapshot((), "; ".join(look.problems) or "NVML lists no GPU", driver)
    kept, hidden, reason = visible(found, environ.get("CUDA_VISIBLE_DEVICES"))
    reasons = [*look.problems, *filter(None, [reason])]
    return Snapshot(kept, "; ".join(reasons), driver, hidden)


class _Look:
    """One look at all devices; ``problems`` holds what NVML did not tell."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.problems: list[str] = []

    def ask(
        self, about: str, call: Callable[..., Any], *args: Any, quiet: Collection[int] = ()
    ) -> Any:
        """Return NVML's answer, or None: the problem is noted but for error codes in ``quiet``."""
        try:
            return call(*args)
        except self._nvml.NVMLError as error:
            if error.value not in quiet:
                self.problems.append(f"{about} is not known ({error})")
            return None

    def devices(self) -> Iterator[Device]:
        """Yield every GPU by PCI bus, each before its MIG instances."""
        for index, handle in enumerate(self._handles()):
            if handle is not None:
                yield from self._gpu(f"GPU {index}", index, handle)

    def _handles(self) -> list[Any]:
        """Return handles by PCI bus; None keeps the number of a GPU that does not answer."""
        nvml = self._nvml
        found: list[tuple[str, Any]] = []
        for place in range(self.ask("the number of GPUs", nvml.nvmlDeviceGetCount) or 0):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(place)
            except nvml.NVMLError as error:
                self.problems.append(f"GPU {place} is left out ({error})")
                # CUDA does not count GPUs that a cgroup keeps from this process
                if error.value != nvml.NVML_ERROR_NO_PERMISSION:
                    found.append(("", None))
                continue
            pci = self.ask(f"GPU {place}: its PCI bus", nvml.nvmlDeviceGetPciInfo, handle)
            found.append((pci.busId if pci else "", handle))
        if all(bus for bus, _ in found):
            found.sort(key=lambda pair: pair[0])
        return [handle for _, handle in found]

    def _gpu(self, label: str, index: int, handle: Any) -> Iterator[Device]:
        nvml = self._nvml
        # an old driver without the call, and a GPU without the mode, have no instances
        undivided = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        known = len(self.problems)
        uuid = self.ask(f"{label} is left out: its UUID", nvml.nvmlDeviceGetUUID, handle)
        mode = self.ask(
            f"{label} is left out: its MIG mode", nvml.nvmlDeviceGetMigMode, handle, quiet=undivided
        )
        if len(self.problems) > known:
            return
        divided = mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
        # the driver tells the memory of all instances together to administrators only
        quiet = (nvml.NVML_ERROR_NO_PERMISSION,) if divided else ()
        device = self._device(label, handle, uuid, index, divided=divided, quiet=quiet)
        if device is not None:
            yield device
        if divided:
            yield from self._instances(label, index, handle, uuid)

    def _instances(self, label: str, index: int, gpu: Any, parent: str) -> Iterator[Device]:
        nvml = self._nvml
        count = self.ask(
            f"{label}: the number of its instances", nvml.nvmlDeviceGetMaxMigDeviceCount, gpu
        )
        for place in range(count or 0):
            about = f"instance {place} of {label}"
            handle = self.ask(
                f"{about} is left out: it",
                nvml.nvmlDeviceGetMigDeviceHandleByIndex,
                gpu,
                place,
                quiet=(nvml.NVML_ERROR_NOT_FOUND,),
            )
            if handle is None:
                continue
            uuid = self.ask(f"{about} is left out: its UUID", nvml.nvmlDeviceGetUUID, handle)
            device = uuid and self._device(about, handle, uuid, index, parent=parent)
            if device:
                yield device

    def _device(
        self,
        label: str,
        handle: Any,
        uuid: str,
        index: int,
        *,
        parent: str | None = None,
        divided: bool = False,
        quiet: Collection[int] = (),
    ) -> Device | None:
        nvml = self._nvml
        memory = self.ask(
            f"{label} is left out: its memory", nvml.nvmlDeviceGetMemoryInfo, handle, quiet=quiet
        )
        if memory is None:
            return None
        rates = self.ask(
            f"{label}: its utilisation",
            nvml.nvmlDeviceGetUtilizationRates,
            handle,
            quiet=(nvml.NVML_ERROR_NOT_SUPPORTED,),
        )
        return Device(
            uuid=uuid,
            index=index,
            name=self.ask(f"{label}: its name", nvml.nvmlDeviceGetName, handle) or "",
            total_b=memory.total,
            used_b=memory.used,
            utilisation=rates and rates.gpu / 100,
            used_by_pid=self._used_by_pid(label, handle),
            parent=parent,
            divided=divided,
        )

    def _used_by_pid(self, label: str, handle: Any) -> tuple[tuple[int, int], ...]:
        """Return bytes by process; one that both computes and draws is listed twice by NVML."""
        most: Counter[int] = Counter()
        for kind, call in (
            ("compute", self._nvml.nvmlDeviceGetComputeRunningProcesses_v3),
            ("graphics", self._nvml.nvmlDeviceGetGraphicsRunningProcesses_v3),
        ):
            held: Counter[int] = Counter()
            for process in self.ask(f"{label}: who uses its memory ({kind})", call, handle) or ():
                if process.usedGpuMemory is None:
                    self.problems.append(f"{label}: memory of process {process.pid} is not known")
                else:
                    held[process.pid] += process.usedGpuMemory
            most |= held
        return tuple(sorted(most.items()))
