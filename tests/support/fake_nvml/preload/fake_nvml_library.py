"""Functions of ``pynvml`` that answer from a state file; errors stand there by NVML's symbols.

Imports nothing of this project, so that any process can load it (see ``sitecustomize``).
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
from pynvml import NVMLError

#: The variable that names the state file.
STATE = "FAKE_NVML_STATE"
Device = dict[str, Any]
#: The place of a GPU, and that of an instance of it.
Handle = tuple[int, int | None]


def _call(symbol: str, answer: Callable[..., Any], *args: Any) -> Any:
    """Answer with the state, or what it has of the device whose handle or place is given."""
    state: dict[str, Any] = json.loads(Path(os.environ[STATE]).read_text())
    if not state["library"]:
        raise NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    if symbol in state["missing"]:
        raise NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    asked, error = state, state["errors"].get(symbol)
    if args:
        place, instance = args[0] if isinstance(args[0], tuple) else (args[0], None)
        device = state["devices"][place]
        asked = device | {"place": place} if instance is None else device["instances"][instance]
        error = asked["errors"].get(symbol, asked["errors"].get("*", error))
    if error is not None:
        raise NVMLError(error)
    if symbol == "nvmlInitWithFlags":
        pynvml._nvmlLib_refcount += 1
    elif not pynvml._nvmlLib_refcount:
        raise NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
    elif symbol == "nvmlShutdown":
        pynvml._nvmlLib_refcount -= 1
    return answer(asked, *args[1:])


def _supported(value: Any) -> Any:
    if value is None:
        raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def _instance(gpu: Device, at: int) -> Handle:
    """Places between instances may be empty, as they are once an instance was destroyed."""
    if at >= len(gpu["instances"]) or gpu["instances"][at] is None:
        raise NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return gpu["place"], at


def _memory(device: Device) -> SimpleNamespace:
    uses = living(Path(os.environ[STATE]).with_suffix(".uses"))
    own_b = sum(use["bytes"] for use in uses if use["uuid"] == device["uuid"])
    return SimpleNamespace(total=device["total_b"], used=device["used_b"] + own_b)


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


_ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlInitWithFlags": lambda state: None,
    "nvmlShutdown": lambda state: None,
    "nvmlSystemGetDriverVersion": lambda state: state["driver"],
    "nvmlDeviceGetCount_v2": lambda state: len(state["devices"]),
    "nvmlDeviceGetHandleByIndex_v2": lambda gpu: (gpu["place"], None),
    "nvmlDeviceGetPciInfo_v3": lambda gpu: SimpleNamespace(busId=gpu["pci"]),
    "nvmlDeviceGetUUID": lambda device: device["uuid"],
    "nvmlDeviceGetName": lambda device: device["name"],
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": lambda device: SimpleNamespace(
        gpu=round(100 * _supported(device["utilisation"]))
    ),
    "nvmlDeviceGetMigMode": lambda gpu: [int(_supported(gpu["mig"]))] * 2,
    "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7 if gpu["mig"] else 0,
    "nvmlDeviceGetMigDeviceHandleByIndex": _instance,
}
FUNCTIONS = {
    symbol.removesuffix("WithFlags").partition("_v")[0]: partial(_call, symbol, answer)
    for symbol, answer in _ANSWERS.items()
}
