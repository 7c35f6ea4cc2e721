"""What Slurm gave the job that this process runs, by the variables that it sets."""

import os
from collections.abc import Mapping


def allocated_gpus(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether Slurm gave this job a GPU.

    ``CUDA_VISIBLE_DEVICES`` alone does not count: sbatch hands a job the variables of the shell
    that submitted it. Slurm itself lists the GPUs of a job and of a step.

    >>> allocated_gpus({"CUDA_VISIBLE_DEVICES": "5", "SLURM_JOB_ID": "7"})
    False
    """
    return bool(environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS"))


def allocated_cpus(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the CPUs that Slurm gave this job, None where it does not say."""
    text = environ.get("SLURM_CPUS_PER_TASK") or environ.get("SLURM_CPUS_ON_NODE") or ""
    return int(text) if text.isdigit() else None
