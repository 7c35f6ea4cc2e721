"""What ``libnvidia-ml.so.1`` answers, from a state file: C calls with ctypes arguments.

Imports nothing of this project, so that any process can load it (see ``sitecustomize``).
"""

import contextlib
import ctypes
import fcntl
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

#: The variable that names the state file.
STATE = "FAKE_NVML_STATE"
NAME = "libnvidia-ml.so.1"

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED = 0, 1, 2, 3
NOT_FOUND, INSUFFICIENT_SIZE = 6, 7

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

    def __getattr__(self, symbol: str) -> Any:
        if symbol in _CALLS and symbol not in _read()["missing"]:
            return partial(self.call, symbol)
        raise AttributeError(f"{NAME}: undefined symbol: {symbol}")

    def call(self, symbol: str, *args: Any) -> int:
        state = _read()
        if (error := state["errors"].get(symbol)) is not None:
            return int(error)
        if symbol == "nvmlInitWithFlags":
            self._users += 1
        elif not self._users:
            return UNINITIALIZED
        elif symbol == "nvmlShutdown":
            self._users -= 1
        return _CALLS[symbol](state, *args)


def _read() -> dict[str, Any]:
    state: dict[str, Any] = json.loads(Path(os.environ[STATE]).read_text())
    return state


def _give(pointer: Any, **values: Any) -> int:
    """Write into what was passed by reference."""
    for name, value in values.items():
        setattr(pointer._obj, name, value)
    return SUCCESS


def _text(buffer: Any, length: Any, text: str) -> int:
    if len(text) >= length.value:
        return INSUFFICIENT_SIZE
    buffer.value = text.encode()
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
    return _point(handle, (index.value + 1) * _PER_GPU) if error is None else error


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
        device = state["devices"][place]
        device = device["instances"][instance - 1] if instance else device
        error = _error(device, symbol)
        more = {"place": place, "uses": Path(os.environ[STATE]).with_suffix(".uses")}
        return answer(device | more, *args) if error is None else error

    return call


def _memory(device: dict[str, Any], memory: Any) -> int:
    total_b, used_b = device["total_b"], device["used_b"]
    used_b += sum(use["bytes"] for use in living(device["uses"]) if use["uuid"] == device["uuid"])
    return _give(memory, total=total_b, used=used_b, free=total_b - used_b)


def living(folder: str | Path) -> list[dict[str, Any]]:
    """Return what living processes use: each holds the lock of its file in a folder."""
    found = []
    for path in Path(folder).glob("*"):
        with contextlib.suppress(FileNotFoundError), path.open() as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if text := stream.read():
                    found.append(json.loads(text))
    return found


def _utilisation(device: dict[str, Any], rates: Any) -> int:
    share = device["utilisation"]
    return NOT_SUPPORTED if share is None else _give(rates, gpu=round(100 * share))


def _mig_mode(device: dict[str, Any], current: Any, pending: Any) -> int:
    on = device["mig"]
    return NOT_SUPPORTED if on is None else _give(current, value=int(on))


_OF_A_DEVICE: dict[str, Callable[..., int]] = {
    "nvmlDeviceGetUUID": lambda device, to, length: _text(to, length, device["uuid"]),
    "nvmlDeviceGetName": lambda device, to, length: _text(to, length, device["name"]),
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": _utilisation,
    "nvmlDeviceGetPciInfo_v3": lambda device, info: _give(info, busId=device["pci"].encode()),
    "nvmlDeviceGetMigMode": _mig_mode,
    "nvmlDeviceGetMaxMigDeviceCount": lambda device, to: _give(to, value=7 if device["mig"] else 0),
    "nvmlDeviceGetMigDeviceHandleByIndex": _instance_by_index,
}
_CALLS: dict[str, Callable[..., int]] = {
    "nvmlInitWithFlags": lambda *_: SUCCESS,
    "nvmlShutdown": lambda *_: SUCCESS,
    "nvmlSystemGetDriverVersion": lambda state, to, length: _text(to, length, state["driver"]),
    "nvmlDeviceGetCount_v2": lambda state, count: _give(count, value=len(state["devices"])),
    "nvmlDeviceGetHandleByIndex_v2": _by_index,
    **{symbol: _of_device(symbol, answer) for symbol, answer in _OF_A_DEVICE.items()},
}
