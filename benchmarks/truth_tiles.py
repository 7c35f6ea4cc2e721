"""Tiles with known truth, made by ``../shared/tools/tile-truth``, which needs OpenCV."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from tilewright.io.results.illumination import Illumination

Floats = NDArray[np.float64]
SHARED = Path(__file__).resolve().parents[2] / "shared"
OFFSET_COUNTS = 100.0
SETS = {
    "syn10": ["--n", "10", "--seed", "1"],
    "low light": ["--n", "8", "--seed", "2", "--peak_e", "60", "--empty", "0.4"],
    "5 % overlap": ["--n", "8", "--seed", "3", "--overlap", "0.05"],
}


@dataclass(frozen=True)
class FileTiles:
    """One TIFF file per tile."""

    files: list[Path]
    row: NDArray[np.int64]
    col: NDArray[np.int64]
    nominal_px: Floats
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    @property
    def name(self) -> NDArray[np.str_]:
        """Numbers of the tiles, from 0."""
        return np.arange(len(self.files)).astype(np.str_)

    @property
    def sample(self) -> NDArray[np.str_]:
        """One sample."""
        return np.full(len(self.files), "")

    def read(self, tile: int, z: int) -> NDArray[Any]:
        """Return the only plane."""
        return np.asarray(tifffile.imread(self.files[tile]))


def truth_set(data: Path, name: str, python: str) -> tuple[FileTiles, Floats, Illumination]:
    """Return tiles, true positions and fields of one of ``SETS``, made below ``data`` if absent."""
    target = data / name.replace(" ", "_").replace("%", "percent")
    if not (target / "gt.json").exists():
        tool = SHARED / "tools" / "tile-truth"
        command = [python, str(tool), str(target), "--cycles", "1", *SETS[name]]
        subprocess.run(command, check=True, capture_output=True)
    truth = json.loads((target / "gt.json").read_text())
    cycle, n = truth["cycles"][0], truth["n"]
    tiles = FileTiles(
        sorted((target / "c0").glob("*.tif")),
        np.repeat(np.arange(n), n),
        np.tile(np.arange(n), n),
        np.array(cycle["nominal"]),
        (1, truth["size"], truth["size"]),
        np.dtype(np.uint16),
    )
    flat = np.load(target / "flat.npy")
    dark = np.full_like(flat, OFFSET_COUNTS)
    return tiles, np.array(cycle["true"]), Illumination(flat, dark, OFFSET_COUNTS)
