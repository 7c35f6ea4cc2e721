"""Whether this machine can hand jobs to Slurm."""

import shutil

from ..runtime.errors import SlurmQueryError
from ..slurm.query import run_command


def has_slurm() -> bool:
    """Return whether there is Slurm on this machine."""
    if not shutil.which("sbatch"):
        return False
    # Slurm's commands alone, which name no cluster; one that is down is another matter
    try:
        run_command(["scontrol", "ping"])
    except SlurmQueryError as error:
        signs = ("DNS SRV lookup failed", "configuration source")
        return not any(sign in error.reason for sign in signs)
    return True
