"""A pretended microscope: it writes the files of a cycle."""

import shutil
from pathlib import Path


def cycle_folder(raw: Path, cycle: int) -> Path:
    """Return the folder of one cycle of a phantom."""
    return raw / f"Cyc{cycle}_reg1"


def image_cycle(source: Path, raw: Path, cycle: int) -> None:
    """Write a cycle of a finished phantom into another folder, over what is there, as new files."""
    folders = cycle_folder(source, cycle), cycle_folder(raw, cycle)
    shutil.copytree(*folders, copy_function=shutil.copy, dirs_exist_ok=True)
