"""The device of a job: what ``TILEWRIGHT_DEVICE`` names, or what Slurm allocated."""

import os
from collections.abc import Mapping
from typing import Literal, cast, get_args

from snakemake_scheduler_plugin_tilewright import allocated_gpus
from tilewright.errors import DeviceError

#: Set in a job of the workflow that has an allocation of its own.
ALLOCATED = "TILEWRIGHT_ALLOCATED"
DeviceChoice = Literal["auto", "gpu", "cpu"]


def device_from_environment(
    environ: Mapping[str, str] = os.environ, otherwise: DeviceChoice = "auto"
) -> DeviceChoice:
    """Return what ``TILEWRIGHT_DEVICE`` asks for, or ``otherwise``.

    Raises
    ------
    DeviceError
        The variable is none of ``cpu``, ``gpu`` and ``auto``.

    Examples
    --------
    >>> device_from_environment({"TILEWRIGHT_DEVICE": "gpu"})
    'gpu'
    """
    choice = environ.get("TILEWRIGHT_DEVICE") or otherwise
    if choice not in get_args(DeviceChoice):
        raise DeviceError(f"TILEWRIGHT_DEVICE is '{choice}'; set it to cpu, gpu or auto")
    return cast(DeviceChoice, choice)


def use_allocated_device() -> None:
    """Make this process and its children use the device that Slurm allocated."""
    os.environ["TILEWRIGHT_DEVICE"] = "gpu" if allocated_gpus() else "cpu"
    os.environ[ALLOCATED] = "1"


def by_slurm() -> bool:
    """Return whether Slurm allocated GPUs to this job alone.

    Not where Snakemake itself runs inside an allocation, whose GPUs its jobs share.
    """
    alone = os.environ.get(ALLOCATED) and os.environ.get("SLURM_JOB_ID")
    return bool(alone) and allocated_gpus()
