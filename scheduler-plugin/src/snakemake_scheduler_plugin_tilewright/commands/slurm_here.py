"""Whether this machine can hand jobs to Slurm."""

import os
import shutil
from pathlib import Path

from ..errors import SlurmQueryError
from ..slurm.query import run_command


def slurm_wanted(site: Path | None = None) -> bool:
    """Return whether there is Slurm on this machine, or a site file says that there should be."""
    if site or os.environ.get("TILEWRIGHT_SITE"):
        return True
    if not shutil.which("sbatch"):
        return False
    # Slurm's commands alone, which name no cluster; one that is down is another matter
    try:
        run_command(["scontrol", "ping"])
    except SlurmQueryError as error:
        signs = ("DNS SRV lookup failed", "configuration source")
        return not any(sign in error.reason for sign in signs)
    return True
