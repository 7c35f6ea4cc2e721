"""The stitching stage on tiles of known content."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scenes.array_tiles import ArrayTiles
from tilewright.io.results.illumination import Illumination
from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.io.results.positions import Positions
from tilewright.kernels.backend import cpu_backend
from tilewright.stages.stitch.fuse import stitch

SIZE = (60, 70)
STEP = (50, 58)
VOXEL_UM = (1.5, 0.5, 0.25)


def make_tiles(rows: int = 4, cols: int = 3, planes: int = 2, seed: int = 0) -> ArrayTiles:
    rng = np.random.default_rng(seed)
    row, col = (grid.ravel() for grid in np.mgrid[:rows, :cols])
    places = np.stack([row * STEP[0], col * STEP[1]], 1) + rng.uniform(-3, 3, (rows * cols, 2))
    stack = rng.integers(100, 4000, (rows * cols, planes, *SIZE)).astype(np.uint16)
    return ArrayTiles(stack, row, col, places - places.min(0))


def positions_of(tiles: ArrayTiles, order: Any = slice(None)) -> Positions:
    y, x = tiles.nominal_px[order].T
    sigma, island = np.zeros(len(y)), np.zeros(len(y), np.int64)
    names = tiles.name[order]
    return Positions(names, tiles.row[order], tiles.col[order], y, x, sigma, island)


def illumination() -> Illumination:
    y, x = np.mgrid[-1 : 1 : SIZE[0] * 1j, -1 : 1 : SIZE[1] * 1j]
    flat = np.exp(-0.3 * y**2 - 0.4 * x**2)
    dark = np.full(SIZE, 100.0, np.float32)
    return Illumination((flat / flat.mean()).astype(np.float32), dark, 100.0)


def run(tiles: Any, output: Path, positions: Any = None, **changes: Any) -> Mosaic:
    options: dict[str, Any] = {"backend": cpu_backend(2), "voxel_um": VOXEL_UM, "chunk_px": 64}
    options |= changes
    light = options.pop("illumination", None) or illumination()
    stitch(tiles, positions or positions_of(tiles), light, output, **options)
    return open_mosaic(output)
