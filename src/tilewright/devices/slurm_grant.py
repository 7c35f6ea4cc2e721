"""Which device a job computes on: what ``TILEWRIGHT_DEVICE`` names, or what Slurm granted."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Literal, cast, get_args

from snakemake_scheduler_plugin_tilewright.runtime.granted import granted_gpus
from tilewright.devices.budget import RESERVE_B, Request, leasable
from tilewright.devices.evidence import Held
from tilewright.devices.inventory import Snapshot
from tilewright.errors import DeviceError

#: Set in a job of the workflow that Slurm runs by itself.
GRANTED = "TILEWRIGHT_GRANTED"
DeviceChoice = Literal["auto", "gpu", "cpu"]


def device_from_environment(
    environ: Mapping[str, str] = os.environ, otherwise: DeviceChoice = "auto"
) -> DeviceChoice:
    """Return what ``TILEWRIGHT_DEVICE`` asks for, or else what it would be without it.

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


def use_granted_device() -> None:
    """Make the device that Slurm granted the one of this process and of what it starts."""
    os.environ["TILEWRIGHT_DEVICE"] = "gpu" if granted_gpus() else "cpu"
    os.environ[GRANTED] = "1"


def by_slurm() -> bool:
    """Return whether Slurm granted GPUs to this job of the workflow alone.

    Not where Snakemake itself runs inside an allocation, whose GPUs its jobs share.
    """
    alone = os.environ.get(GRANTED) and os.environ.get("SLURM_JOB_ID")
    return bool(alone) and granted_gpus()


def granted_lease(request: Request, seen: Snapshot) -> Held | None:
    """Return the one device that Slurm granted; None where the device must be leased.

    That is outside Slurm, with shards, and where an allocation holds several devices, among
    which jobs that run side by side must choose.

    Parameters
    ----------
    seen : Snapshot
        The devices that ``CUDA_VISIBLE_DEVICES`` shows; Slurm has set it.
    """
    if not by_slurm():
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not seen.devices and visible:
        # NVML does not answer, as in some containers: Slurm knows what it granted
        where = f"{socket.gethostname()}:{visible}"
        return Held(where, 0, reason=seen.reason, visible=visible)
    devices = leasable(seen.devices)
    # Slurm counts shards, but fences no memory; its plugin sets this for jobs that have some
    if os.environ.get("SLURM_SHARDS_ON_NODE") or len(devices) != 1:
        return None
    bytes_ = devices[0].total_b - RESERVE_B
    if request.bytes_ > bytes_:
        return None
    return Held(devices[0].uuid, bytes_, driver=seen.driver, visible=visible)
