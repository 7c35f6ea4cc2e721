"""Fiji's tile configurations that the workflow writes, as arrays."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.io.formats.fiji import parse_tile_configuration


def read_tile_configuration(path: Path) -> tuple[list[str], NDArray[np.float64]]:
    """Return the image of each tile, and their positions (y, x) in px."""
    names, y_px, x_px = zip(*parse_tile_configuration(path.read_text("utf-8")), strict=True)
    return list(names), np.stack([y_px, x_px], axis=1)
