"""What ``libnvidia-ml.so.1`` answers, from a state file: C calls with ctypes arguments.

Imports nothing of this project, so that any process can load it (see ``sitecustomize``).
"""

from __future__ import annotations

import ctypes
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The variable that names the state file.
STATE = "FAKE_NVML_STATE"
NAME = "libnvidia-ml.so.1"

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED = 0, 1, 2, 3
NOT_FOUND, INSUFFICIENT_SIZE = 6, 7
#: What NVML gives for a number that it cannot tell.
NOT_AVAILABLE = 2**64 - 1

#: A handle is one number: the GPU's place, and that of the instance, or 0 for the GPU itself.
_PER_GPU = 1000


class Library(ctypes.CDLL):
    """``ctypes.CDLL``, but that the name of NVML's library gives the one that answers here."""

    def __new__(cls, name: Any = None, *args: Any, **kwargs: Any) -> Any:
        if name != NAME:
            return super().__new__(cls)
        if not _read()["library"]:
            raise OSError(f"{NAME}: cannot open shared object file: No such file or directory")
        return _Nvml()


class _Nvml:
    """The library's symbols; a driver that lacks one has no such attribute."""

    def __init__(self) -> None:
        self._users = 0

    def __getattr__(self, symbol: str) -> _Symbol:
        if symbol in _CALLS and symbol not in _read()["missing"]:
            return _Symbol(self, symbol)
        raise AttributeError(f"{NAME}: undefined symbol: {symbol}")

    def call(self, symbol: str, *args: Any) -> Any:
        state = _read()
        if symbol == "nvmlErrorString":
            return f"error {args[0]} of the fake library".encode()
        if (error := state["errors"].get(symbol)) is not None:
            return error
        if symbol == "nvmlInitWithFlags":
            self._users += 1
            return SUCCESS
        if not self._users:
            return UNINITIALIZED
        if symbol == "nvmlShutdown":
            self._users -= 1
            return SUCCESS
        return _CALLS[symbol](state, *args)


class _Symbol:
    """A function pointer: callable, and takes the attributes that ctypes users set."""

    def __init__(self, library: _Nvml, symbol: str) -> None:
        self._library, self._symbol = library, symbol

    def __call__(self, *args: Any) -> Any:
        return self._library.call(self._symbol, *args)


def _read() -> dict[str, Any]:
    state: dict[str, Any] = json.loads(Path(os.environ[STATE]).read_text())
    return state


def _driver(state: dict[str, Any], buffer: Any, length: Any) -> int:
    return _text(buffer, length, state["driver"])


def _text(buffer: Any, length: Any, text: str) -> int:
    if len(text) >= length.value:
        return INSUFFICIENT_SIZE
    buffer.value = text.encode()
    return SUCCESS


def _count(state: dict[str, Any], count: Any) -> int:
    count._obj.value = len(state["devices"])
    return SUCCESS


def _error(device: dict[str, Any], symbol: str) -> int | None:
    errors: dict[str, int] = device["errors"]
    return errors.get(symbol, errors.get("*"))


def _point(handle: Any, number: int) -> int:
    """Make a handle, passed by reference, point to an address; nobody follows it."""
    ctypes.c_void_p.from_address(ctypes.addressof(handle._obj)).value = number
    return SUCCESS


def _by_index(state: dict[str, Any], index: Any, handle: Any) -> int:
    if index.value >= len(state["devices"]):
        return INVALID_ARGUMENT
    error = _error(state["devices"][index.value], "nvmlDeviceGetHandleByIndex_v2")
    if error is not None:
        return error
    return _point(handle, (index.value + 1) * _PER_GPU)


def _instance_by_index(device: dict[str, Any], index: Any, handle: Any) -> int:
    """Places between instances may be empty, as they are once an instance was destroyed."""
    instances = device["instances"]
    if index.value >= len(instances) or instances[index.value] is None:
        return NOT_FOUND
    return _point(handle, (device["place"] + 1) * _PER_GPU + index.value + 1)


def _of_device(symbol: str, answer: Callable[..., int]) -> Callable[..., int]:
    """Return a call whose first argument is the handle of a device."""

    def call(state: dict[str, Any], handle: Any, *args: Any) -> int:
        number = ctypes.cast(handle, ctypes.c_void_p).value or 0
        place, instance = number // _PER_GPU - 1, number % _PER_GPU
        if not 0 <= place < len(state["devices"]):
            return INVALID_ARGUMENT
        device = state["devices"][place] | {"place": place, "real_pids": state["real_pids"]}
        if instance:
            device = device["instances"][instance - 1] | {"real_pids": state["real_pids"]}
        error = _error(device, symbol)
        return answer(device, *args) if error is None else error

    return call


def _processes(device: dict[str, Any], kind: str) -> list[tuple[int, int | None]]:
    """Return the processes of a kind; with ``real_pids`` the driver forgets the dead."""
    return [(pid, used_b) for pid, used_b in device[kind] if not device["real_pids"] or _lives(pid)]


def _lives(pid: int) -> bool:
    """Return whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _memory(device: dict[str, Any], memory: Any) -> int:
    held: Counter[int] = Counter()
    for kind in ("compute", "graphics"):
        held |= Counter({pid: used_b or 0 for pid, used_b in _processes(device, kind)})
    used_b = device["used_b"] + held.total()
    memory._obj.total, memory._obj.used = device["total_b"], used_b
    memory._obj.free = device["total_b"] - used_b
    return SUCCESS


def _running(kind: str) -> Callable[..., int]:
    def answer(device: dict[str, Any], count: Any, array: Any) -> int:
        found = _processes(device, kind)
        room, count._obj.value = count._obj.value, len(found)
        if room < len(found):
            return INSUFFICIENT_SIZE
        for place, (pid, used_b) in enumerate(found):
            array[place].pid = pid
            array[place].usedGpuMemory = NOT_AVAILABLE if used_b is None else used_b
        return SUCCESS

    return answer


def _utilisation(device: dict[str, Any], rates: Any) -> int:
    if device["utilisation"] is None:
        return NOT_SUPPORTED
    rates._obj.gpu = round(100 * device["utilisation"])
    return SUCCESS


def _pci(device: dict[str, Any], info: Any) -> int:
    info._obj.busId = device["pci"].encode()
    return SUCCESS


def _mig_mode(device: dict[str, Any], current: Any, pending: Any) -> int:
    if device["mig"] is None:
        return NOT_SUPPORTED
    current._obj.value = pending._obj.value = int(device["mig"])
    return SUCCESS


def _most_instances(device: dict[str, Any], count: Any) -> int:
    count._obj.value = 7 if device["mig"] else 0
    return SUCCESS


_OF_A_DEVICE: dict[str, Callable[..., int]] = {
    "nvmlDeviceGetUUID": lambda device, to, length: _text(to, length, device["uuid"]),
    "nvmlDeviceGetName": lambda device, to, length: _text(to, length, device["name"]),
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": _utilisation,
    "nvmlDeviceGetPciInfo_v3": _pci,
    "nvmlDeviceGetMigMode": _mig_mode,
    "nvmlDeviceGetMaxMigDeviceCount": _most_instances,
    "nvmlDeviceGetMigDeviceHandleByIndex": _instance_by_index,
    **{
        f"nvmlDeviceGet{kind.title()}RunningProcesses_v3": _running(kind)
        for kind in ("compute", "graphics")
    },
}
_CALLS: dict[str, Callable[..., Any]] = {
    "nvmlInitWithFlags": int,
    "nvmlShutdown": int,
    "nvmlErrorString": bytes,
    "nvmlSystemGetDriverVersion": _driver,
    "nvmlDeviceGetCount_v2": _count,
    "nvmlDeviceGetHandleByIndex_v2": _by_index,
    **{symbol: _of_device(symbol, answer) for symbol, answer in _OF_A_DEVICE.items()},
}
