"""Answers of Slurm's programs, recorded on real clusters of three releases."""

import json
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "slurm" / "recorded"
#: The same situation on three releases of Slurm (`record_slurm.py`).
RELEASES: Mapping[str, Mapping[str, str]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*"))
}
