"""The GPUs of this machine as the driver's library NVML tells of them; makes no CUDA context."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from tilewright.devices.records import Device, Snapshot
from tilewright.devices.visible import visible


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
        for kind in ("Compute", "Graphics"):
            held: Counter[int] = Counter()
            for process in self._running(label, kind, handle):
                if process.usedGpuMemory is None:
                    self.problems.append(f"{label}: memory of process {process.pid} is not known")
                else:
                    held[process.pid] += process.usedGpuMemory
            most |= held
        return tuple(sorted(most.items()))

    def _running(self, label: str, kind: str, handle: Any) -> list[Any]:
        nvml = self._nvml
        call = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")
        try:
            found: list[Any] = call(handle)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                # an old driver
                call = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_v2")
            found = self.ask(f"{label}: who uses its memory ({kind.lower()})", call, handle) or []
        return found
