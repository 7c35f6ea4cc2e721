"""What the manual pages of Slurm that this machine has say."""

import gzip
import re
from pathlib import Path

_PROGRAMS = (
    "sbatch",
    "squeue",
    "sinfo",
    "sacct",
    "sacctmgr",
    "scontrol",
    "scancel",
    "sshare",
    "srun",
)
_INPUT = re.compile(r'(?ms)^\.SH "?(?:INPUT )?ENVIRONMENT VARIABLES"?$(.*?)^\.SH')


def input_variables() -> set[str]:
    """Return the variables that change what Slurm's programs do; none without their pages."""
    pages = [p for name in _PROGRAMS for p in Path("/usr/share/man/man1").glob(f"{name}.1.gz")]
    texts = (gzip.decompress(page.read_bytes()).decode().replace("\\", "") for page in pages)
    parts = [part for text in texts for part in _INPUT.findall(text)]
    return set(re.findall(r"(?m)^fB(S[A-Z]{3,7}D?_[A-Z0-9_]+)fR", "".join(parts)))
