"""Answers of ``pynvml`` for the GPUs of a state file; imports nothing of this project."""

import contextlib
import fcntl
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


def _start(machine: dict[str, Any]) -> None:
    global started
    if not machine["library"]:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    started += 1


def _shut_down(_: dict[str, Any]) -> None:
    global started
    started -= 1


def _memory(_: dict[str, Any], device: dict[str, Any]) -> SimpleNamespace:
    uses = living(Path(os.environ[STATE]).with_suffix(".uses"))
    used_b = sum(use["bytes"] for use in uses if use["uuid"] == device["uuid"])
    return SimpleNamespace(total=device["total_b"], used=device["used_b"] + used_b)


def _supported(value: Any, answer: Any) -> Any:
    if value is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return answer


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
    "nvmlSystemGetDriverVersion": lambda machine: machine["driver"],
    "nvmlDeviceGetCount": lambda machine: len(machine["devices"]),
    "nvmlDeviceGetHandleByIndex": lambda machine, index: machine["devices"][index],
    "nvmlDeviceGetUUID": lambda _, device: device["uuid"],
    "nvmlDeviceGetName": lambda _, device: device["name"],
    "nvmlDeviceGetPciInfo": lambda _, device: SimpleNamespace(busId=device["pci"]),
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": lambda _, device: _supported(
        device["utilisation"], SimpleNamespace(gpu=round(100 * (device["utilisation"] or 0)))
    ),
    "nvmlDeviceGetMigMode": lambda _, device: _supported(device["mig"], [int(device["mig"] or 0)]),
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
