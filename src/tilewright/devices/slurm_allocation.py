"""What Slurm allocated to a job of the workflow."""

import os

from snakemake_scheduler_plugin_tilewright import allocated_gpus

#: Set in a job of the workflow that has an allocation of its own.
ALLOCATED = "TILEWRIGHT_ALLOCATED"


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
