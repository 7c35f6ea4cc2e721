"""The device that Slurm granted: nobody else has it, so there is nothing to lease."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from tilewright.devices.budget import RESERVE_B, Request, leasable
from tilewright.devices.choose import GRANTED
from tilewright.devices.held import Held
from tilewright.devices.records import Snapshot


def shared_by_slurm(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether Slurm granted shards: it counts them, but fences no memory.

    The shard plugin of Slurm sets ``SLURM_SHARDS_ON_NODE`` for jobs, steps and tasks that have
    shards, together with the variables of a GPU.
    """
    return bool(environ.get("SLURM_SHARDS_ON_NODE"))


def by_slurm(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether Slurm granted GPUs to this job of the workflow alone.

    Not where Snakemake itself runs inside an allocation, whose GPUs its jobs share.
    """
    if not environ.get(GRANTED):
        return False
    names = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
    return bool(environ.get("SLURM_JOB_ID")) and any(environ.get(name) for name in names)


def granted_lease(
    request: Request,
    seen: Snapshot,
    environ: Mapping[str, str] = os.environ,
    reserve_b: int = RESERVE_B,
) -> Held | None:
    """Return the one device that Slurm granted; None where the device must be leased.

    That is outside Slurm, with shards, and where an allocation holds several devices, among
    which jobs that run side by side must choose.

    Parameters
    ----------
    request : Request
    seen : Snapshot
        The devices that ``CUDA_VISIBLE_DEVICES`` shows; Slurm has set it.
    environ : mapping
    reserve_b : int
    """
    if not by_slurm(environ):
        return None
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if not seen.devices and visible:
        # NVML does not answer, as in some containers: Slurm knows what it granted
        where = f"{socket.gethostname()}:{visible}"
        return Held(where, 0, reason=seen.reason, visible=visible)
    devices = leasable(seen.devices)
    if shared_by_slurm(environ) or len(devices) != 1:
        return None
    bytes_ = devices[0].total_b - reserve_b
    if request.bytes_ > bytes_:
        return None
    return Held(devices[0].uuid, bytes_, driver=seen.driver, visible=visible)
