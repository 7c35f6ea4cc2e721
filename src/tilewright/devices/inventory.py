"""The GPUs of this machine that a process may use, by NVML; sizes in bytes.

No CUDA context is made, and no array library is imported.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
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
    """One GPU, or one MIG instance of a GPU.

    Attributes
    ----------
    uuid : str
        ``GPU-…`` or ``MIG-…``, which identifies it; ``index`` is for display.
    index : int
        Number by PCI bus; that of the parent for a MIG instance.
    name : str
        As NVML calls it.
    total_b, used_b : int
        Memory, and what all processes use of it.
    parent : str | None
        UUID of the GPU that a MIG instance is cut from.
    """

    uuid: str
    index: int
    name: str
    total_b: int
    used_b: int
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The GPUs of this machine at one moment.

    Attributes
    ----------
    devices : tuple[Device, ...]
        Those that this process may use; of a GPU with MIG on its instances.
    reason : str
        Why there are none, or why some are excluded; may be empty.
    """

    devices: tuple[Device, ...]
    reason: str = ""


def visible(
    all_devices: Sequence[Device], cuda_visible_devices: str | None
) -> tuple[tuple[Device, ...], str]:
    """Return the devices that CUDA_VISIBLE_DEVICES names, and what is wrong with it.

    Without the variable (None) all are visible, with an empty one none. A number is that of a GPU
    by PCI bus, with all its MIG instances; a UUID may be abbreviated. Each job sets the variable
    to the one device of its lease, so CUDA's own rules for several are not needed.

    Examples
    --------
    >>> gpus = [Device(f"GPU-{name}", k, "H100", 80, 0) for k, name in enumerate("abc")]
    >>> shown, reason = visible(gpus, "2,GPU-a")
    >>> [device.uuid for device in shown], reason
    (['GPU-a', 'GPU-c'], '')
    """
    if cuda_visible_devices is None:
        return tuple(all_devices), ""
    entries = [entry.strip() for entry in cuda_visible_devices.split(",")]
    wrong = [e for e in entries if not any(_names(e, device) for device in all_devices)]
    reasons = (f"{_NAME}: '{entry}' names no GPU here" for entry in wrong)
    shown = (device for device in all_devices if any(_names(e, device) for e in entries))
    return tuple(shown), "; ".join(reasons)


def _names(entry: str, device: Device) -> bool:
    """Return whether an entry of the variable names a device, or the GPU that it is a part of."""
    if entry.startswith(("GPU-", "MIG-")):
        return any((uuid or "").startswith(entry) for uuid in (device.uuid, device.parent))
    return entry == str(device.index)


def has_driver() -> bool:
    """Return whether NVIDIA's driver runs on this machine."""
    return any(Path(path).exists() for path in _DRIVER)


def snapshot(environ: Mapping[str, str] = os.environ) -> Snapshot:
    """Return the GPUs that this process may use, and the memory in use on them.

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
            devices = tuple(_devices(pynvml, problems))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Snapshot((), f"NVML does not start ({error}): is there an NVIDIA driver?")
    shown, reason = visible(devices, environ.get(_NAME))
    if not devices:
        reason = "" if problems else "NVML lists no GPU"
    return Snapshot(shown, "; ".join(filter(None, [*problems, reason])))


def _devices(nvml: Any, problems: list[str]) -> Iterator[Device]:
    """Yield every GPU, or its MIG instances, by PCI bus; add problems of excluded ones."""
    gpus: list[tuple[str, Any]] = []
    for place in range(nvml.nvmlDeviceGetCount()):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(place)
            gpus.append((nvml.nvmlDeviceGetPciInfo(gpu).busId, gpu))
        except nvml.NVMLError as error:
            problems.append(f"GPU {place} is left out ({error})")
            # one that is lost keeps its number; CUDA does not count those that a cgroup hides
            if error.value != nvml.NVML_ERROR_NO_PERMISSION:
                gpus.append(("", None))
    if all(bus for bus, _ in gpus):
        gpus.sort(key=lambda pair: pair[0])
    for index, (_, gpu) in enumerate(gpus):
        try:
            if gpu is not None and _has_mig(nvml, gpu):
                yield from _instances(nvml, gpu, index, problems)
            elif gpu is not None:
                yield _device(nvml, gpu, index)
        except nvml.NVMLError as error:
            problems.append(f"GPU {index} is left out ({error})")


def _has_mig(nvml: Any, gpu: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError:  # a GPU without the mode, or an old driver without the call
        return False


def _instances(nvml: Any, gpu: Any, index: int, problems: list[str]) -> Iterator[Device]:
    """Yield the MIG instances of a GPU."""
    uuid, found = nvml.nvmlDeviceGetUUID(gpu), False
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
            yield _device(nvml, instance, index, parent=uuid)
            found = True
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_FOUND:  # an empty place between two
                problems.append(f"instance {place} of GPU {index} is left out ({error})")
    if not found:
        problems.append(f"GPU {index}: MIG is on, and there is no instance to use")


def _device(nvml: Any, handle: Any, index: int, parent: str | None = None) -> Device:
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Device(uuid, index, name, memory.total, memory.used, parent)
