"""The GPUs of this machine that a process may use, by NVML; sizes in bytes.

No CUDA context is made, and no array library is imported.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOT_INSTALLED = "not installed: install tilewright[cuda12] or [cuda13]"
NO_NVML = f"nvidia-ml-py is {NOT_INSTALLED}"
#: Of the driver's kernel module, and of Windows's driver below WSL.
_DRIVER = ("/proc/driver/nvidia/version", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
_NAME = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one MIG instance of a GPU."""

    uuid: str
    """``GPU-…`` or ``MIG-…``, which identifies it; ``index`` is for display."""
    index: int
    """Number by PCI bus; that of the parent for a MIG instance."""
    name: str
    """As NVML calls it."""
    total_b: int
    used_b: int
    """Memory, and what all processes use of it."""
    utilisation: float | None = None
    """Share of the last second in which it computed, 0 to 1; None where NVML does not report it."""
    parent: str | None = None
    """UUID of the GPU that a MIG instance is cut from."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The GPUs of this machine at one moment."""

    devices: tuple[Device, ...]
    """Those that this process may use; of a GPU with MIG on its instances."""
    reason: str = ""
    """Why there are none, or why some are excluded; may be empty."""
    driver: str = ""
    """Version of the driver; empty where it is not known."""
    hidden: tuple[str, ...] = ()
    """UUIDs that ``CUDA_VISIBLE_DEVICES`` hides."""


def visible(
    all_devices: Sequence[Device], cuda_visible_devices: str | None
) -> tuple[tuple[Device, ...], tuple[str, ...], str]:
    """Return the devices that CUDA_VISIBLE_DEVICES shows and hides, and the reason.

    Without the variable (None) all are visible, with an empty one none. Entries are read up to the
    first that names no device, or more than one. A device named twice hides all. A number is that
    of a GPU by PCI bus; a UUID may be abbreviated. A process gets one MIG instance, the first one
    in the list or the first of a GPU in the list, and then no other GPU.

    Returns
    -------
    shown : tuple of Device
        In the order of the variable.
    hidden : tuple of str
        UUIDs of the others.
    reason : str
        Why it is not what the variable seems to say; may be empty.

    Examples
    --------
    >>> gpus = [Device(f"GPU-{name}", k, "H100", 80, 0) for k, name in enumerate("abc")]
    >>> shown, hidden, reason = visible(gpus, "2,GPU-a")
    >>> [device.uuid for device in shown], hidden, reason
    (['GPU-c', 'GPU-a'], ('GPU-b',), '')
    """
    if cuda_visible_devices is None:
        return tuple(all_devices), (), ""
    names, reason = _uuids(all_devices, cuda_visible_devices)
    shown = [d for name in names for d in all_devices if name in (d.uuid, d.parent)]
    instance = next((device for device in shown if device.parent), None)
    if instance is not None:
        if names != [instance.uuid]:
            one = f"{_NAME}: CUDA gives a process one MIG instance and nothing else"
            reason = "; ".join(filter(None, [one, reason]))
        shown = [instance]
    hidden = tuple(device.uuid for device in all_devices if device not in shown)
    return tuple(shown), hidden, reason


def _uuids(devices: Sequence[Device], text: str) -> tuple[list[str], str]:
    """Return the UUIDs of the GPUs and instances that a text names, and what is wrong with it."""
    if not text.strip():
        return [], f"{_NAME} is empty, which hides every GPU"
    names: list[str] = []
    reason = ""
    for entry in text.split(","):
        matches = _matches(devices, entry.strip())
        if len(matches) != 1:
            what = "more than one GPU" if matches else "no GPU here"
            reason = f"{_NAME}: '{entry}' names {what}, so CUDA reads it no further"
            break
        names += matches
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


def has_driver() -> bool:
    """Return whether NVIDIA's driver runs on this machine."""
    return any(Path(path).exists() for path in _DRIVER)


def snapshot(environ: Mapping[str, str] = os.environ) -> Snapshot:
    """Return the GPUs that this process may use, and what they do now.

    Where NVML does not answer there are none, and the reason says so. A device that it cannot
    identify, or whose memory it does not report, is excluded.
    """
    try:
        import pynvml
    except ImportError:
        return Snapshot((), NO_NVML if has_driver() else "there is no NVIDIA driver")
    problems: list[str] = []
    try:
        pynvml.nvmlInit()
        try:
            driver = _ask(pynvml, pynvml.nvmlSystemGetDriverVersion) or ""
            devices = tuple(_devices(pynvml, problems))
        finally:
            _ask(pynvml, pynvml.nvmlShutdown)  # what was read stays true where this fails
    except pynvml.NVMLError as error:
        return Snapshot((), f"NVML does not start ({error}): is there an NVIDIA driver?")
    if not devices:
        return Snapshot((), "; ".join(problems) or "NVML lists no GPU", driver)
    shown, hidden, reason = visible(devices, environ.get(_NAME))
    return Snapshot(shown, "; ".join(filter(None, [*problems, reason])), driver, hidden)


def _ask(nvml: Any, call: Callable[..., Any], *args: Any) -> Any:
    """Return NVML's answer to an optional question, or None."""
    try:
        return call(*args)
    except nvml.NVMLError:
        return None


def _devices(nvml: Any, problems: list[str]) -> Iterator[Device]:
    """Yield every GPU, or its MIG instances, by PCI bus; add problems of excluded ones."""
    handles: list[tuple[str, Any]] = []
    for place in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(place)
            handles.append((nvml.nvmlDeviceGetPciInfo(handle).busId, handle))
        except nvml.NVMLError as error:
            problems.append(f"GPU {place} is left out ({error})")
            # one that is lost keeps its number; CUDA does not count those that a cgroup hides
            if error.value != nvml.NVML_ERROR_NO_PERMISSION:
                handles.append(("", None))
    if all(bus for bus, _ in handles):
        handles.sort(key=lambda pair: pair[0])
    for index, (_, handle) in enumerate(handles):
        if handle is not None:
            try:
                yield from _gpu_or_instances(nvml, handle, index, problems)
            except nvml.NVMLError as error:
                problems.append(f"GPU {index} is left out ({error})")


def _gpu_or_instances(nvml: Any, gpu: Any, index: int, problems: list[str]) -> Iterator[Device]:
    """Yield a GPU, or its instances."""
    try:
        divided = nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError as error:
        # a GPU without the mode, or an old driver without the call, has no instances
        if error.value not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            raise
        divided = False
    if not divided:
        yield _device(nvml, gpu, index)
        return
    uuid, before = nvml.nvmlDeviceGetUUID(gpu), len(problems)
    instances = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
            instances.append(_device(nvml, instance, index, parent=uuid))
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_FOUND:  # an empty place between two
                problems.append(f"instance {place} of GPU {index} is left out ({error})")
    if not instances and len(problems) == before:
        problems.append(f"GPU {index}: MIG is on, and there is no instance")
    yield from instances


def _device(nvml: Any, handle: Any, index: int, parent: str | None = None) -> Device:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    rates = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    return Device(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        index=index,
        name=_ask(nvml, nvml.nvmlDeviceGetName, handle) or "",
        total_b=memory.total,
        used_b=memory.used,
        utilisation=rates and rates.gpu / 100,
        parent=parent,
    )
