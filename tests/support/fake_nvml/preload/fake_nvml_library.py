"""Answers of ``pynvml`` for the GPUs of a state file; imports nothing of this project."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

#: The variable that names the state file.
STATE = "FAKE_NVML_STATE"
#: How often NVML was started and not shut down again.
started = 0


def _start(machine: dict[str, Any]) -> None:
    global started
    if not machine["library"]:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    started += 1


def _shut_down(_: dict[str, Any]) -> None:
    global started
    started -= 1


def _mig_mode(_: dict[str, Any], device: dict[str, Any]) -> list[int]:
    if device["mig"] is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return [int(device["mig"])]


def _instance(_: dict[str, Any], device: dict[str, Any], index: int) -> dict[str, Any]:
    """Places between instances may be empty, as they are once an instance was destroyed."""
    instances: dict[int, dict[str, Any] | None] = dict(enumerate(device["instances"]))
    if (found := instances.get(index)) is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return found


#: A handle is what the state file says of the device.
_ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlInit": _start,
    "nvmlShutdown": _shut_down,
    "nvmlDeviceGetCount": lambda machine: len(machine["devices"]),
    "nvmlDeviceGetHandleByIndex": lambda machine, index: machine["devices"][index],
    "nvmlDeviceGetUUID": lambda _, device: device["uuid"],
    "nvmlDeviceGetName": lambda _, device: device["name"],
    "nvmlDeviceGetPciInfo": lambda _, device: SimpleNamespace(busId=device["pci"]),
    "nvmlDeviceGetMemoryInfo": lambda _, device: SimpleNamespace(
        total=device["total_b"], used=device["used_b"]
    ),
    "nvmlDeviceGetMigMode": _mig_mode,
    "nvmlDeviceGetMaxMigDeviceCount": lambda _, device: 7 if device["mig"] else 0,
    "nvmlDeviceGetMigDeviceHandleByIndex": _instance,
}


def install(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Put the answers in place of the functions of ``pynvml``."""
    global started
    started = 0
    for name in _ANSWERS:
        replace(pynvml, name, _function(name))


def _function(name: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        machine = json.loads(Path(os.environ[STATE]).read_text())
        device = args[0] if args else {}
        errors = (machine["devices"][device] if isinstance(device, int) else device).get("errors")
        code = {**(errors or {}), **machine["errors"]}
        if name in code or "*" in code:
            raise pynvml.NVMLError(code.get(name, code.get("*")))
        return _ANSWERS[name](machine, *args)

    return call
