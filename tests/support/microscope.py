"""A pretended microscope: it writes the files of a cycle one by one, each in two halves."""

import shutil
import time
from pathlib import Path

import numpy as np
import tifffile
from scipy import ndimage


def cycle_folder(raw: Path, cycle: int) -> Path:
    """Return the folder of one cycle of a phantom."""
    return raw / f"Cyc{cycle}_reg1"


def image_cycle(source: Path, raw: Path, cycle: int, file_s: float = 0.0) -> None:
    """Write a cycle of a finished phantom into another folder, over what is there."""
    folder = cycle_folder(raw, cycle)
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(cycle_folder(source, cycle).iterdir()):
        content = path.read_bytes()
        with (folder / path.name).open("wb") as stream:
            stream.write(content[: len(content) // 2])
            stream.flush()
            time.sleep(file_s / 2)
            stream.write(content[len(content) // 2 :])
        time.sleep(file_s / 2)


def blur_cycle(source: Path, blurred: Path, cycle: int, sigma_px: float) -> None:
    """Write a cycle as it looks out of focus."""
    folder = cycle_folder(blurred, cycle)
    shutil.copytree(cycle_folder(source, cycle), folder)
    for path in folder.glob("*.tif"):
        seen = ndimage.gaussian_filter(tifffile.imread(path).astype(np.float32), sigma_px)
        tifffile.imwrite(path, seen.round().astype(np.uint16))
