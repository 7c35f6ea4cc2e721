"""The device that ``TILEWRIGHT_DEVICE`` names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

#: Set in a job of the workflow that Slurm runs by itself.
GRANTED = "TILEWRIGHT_GRANTED"
DeviceChoice = Literal["auto", "gpu", "cpu"]


class DeviceChoiceError(ValueError):
    """``TILEWRIGHT_DEVICE`` names no device."""


def device_from_environment(
    environ: Mapping[str, str] = os.environ, otherwise: DeviceChoice = "auto"
) -> DeviceChoice:
    """Return what ``TILEWRIGHT_DEVICE`` asks for, or else what it would be without it.

    Raises
    ------
    DeviceChoiceError
        The variable is none of ``cpu``, ``gpu`` and ``auto``.

    Examples
    --------
    >>> device_from_environment({"TILEWRIGHT_DEVICE": "gpu"})
    'gpu'
    """
    match environ.get("TILEWRIGHT_DEVICE") or otherwise:
        case "cpu":
            return "cpu"
        case "gpu":
            return "gpu"
        case "auto":
            return "auto"
        case other:
            raise DeviceChoiceError(f"TILEWRIGHT_DEVICE is '{other}'; set it to cpu, gpu or auto")


def use_granted_device() -> None:
    """Make the device that Slurm granted the one of this process and of what it starts."""
    os.environ["TILEWRIGHT_DEVICE"] = granted_device()
    os.environ[GRANTED] = "1"


def granted_device(environ: Mapping[str, str] = os.environ) -> Literal["cpu", "gpu"]:
    """Return the device that Slurm granted this job.

    ``CUDA_VISIBLE_DEVICES`` alone does not count: sbatch hands a job the variables of the shell
    that submitted it. Slurm itself lists the GPUs of a job and of a step.

    Examples
    --------
    >>> granted_device({"CUDA_VISIBLE_DEVICES": "5", "SLURM_JOB_ID": "7"})
    'cpu'
    """
    names = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
    return "gpu" if any(environ.get(name) for name in names) else "cpu"
