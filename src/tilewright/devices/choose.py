"""The device that ``TILEWRIGHT_DEVICE`` names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal


class DeviceChoiceError(ValueError):
    """``TILEWRIGHT_DEVICE`` names no device."""


def device_from_environment(environ: Mapping[str, str] = os.environ) -> Literal["cpu", "gpu"]:
    """Return the device of this process: ``TILEWRIGHT_DEVICE``, or ``cpu`` where it is unset.

    Raises
    ------
    DeviceChoiceError
        The variable is neither ``cpu`` nor ``gpu``.

    Examples
    --------
    >>> device_from_environment({"TILEWRIGHT_DEVICE": "gpu"})
    'gpu'
    """
    match environ.get("TILEWRIGHT_DEVICE", "cpu"):
        case "cpu":
            return "cpu"
        case "gpu":
            return "gpu"
        case other:
            raise DeviceChoiceError(f"TILEWRIGHT_DEVICE is '{other}'; set it to cpu or gpu")
