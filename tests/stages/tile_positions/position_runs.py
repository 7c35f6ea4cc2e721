"""Tile positions on synthetic grids."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.calibrated import place_tiles
from benchmarks.scenes.array_tiles import ArrayTiles
from tests.support.spots import render, spots
from tilewright.stages.tile_positions.locate import TileLocations

Floats = NDArray[np.float64]
SIZE = 128


def shading() -> NDArray[np.float32]:
    y, x = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    flat = np.exp(-0.15 * (x - 0.2) ** 2 - 0.1 * (y + 0.1) ** 2)
    return np.asarray(flat / flat.mean(), np.float32)


def grid(
    seed: int,
    rows: int = 5,
    cols: int = 5,
    *,
    overlap: float = 0.2,
    electrons: float = 4.0,
    blank: tuple[int, ...] = (),
    jitter: float = 2.0,
) -> tuple[ArrayTiles, Floats]:
    """Tiles of a camera with shading, hot pixels and noise on a stage with skew and backlash."""
    rng = np.random.default_rng(seed)
    row, col = (axis.ravel() for axis in np.mgrid[:rows, :cols])
    nominal = np.stack([row, col], axis=1) * (SIZE * (1 - overlap))
    skew = np.array([[1.001, 0.004], [-0.004, 1.001]])
    true = nominal @ skew + rng.normal(0, jitter, nominal.shape)
    true[:, 1] += 2.0 * (row % 2)
    cells = spots(seed, rows * SIZE, cols * SIZE, 1 / 150)
    flat, hot = shading(), rng.integers(0, SIZE, (2, 40))
    stack = np.empty((rows * cols, 1, SIZE, SIZE), np.uint16)
    for tile, place in enumerate(true):
        near = cells[:, (np.abs(cells[:2].T - place - SIZE / 2) < SIZE / 2 + 20).all(axis=1)]
        light = 100.0 + (0.0 if tile in blank else 1.0) * render(near, place, (SIZE, SIZE))
        counts = rng.poisson(light * flat * electrons) / electrons
        counts[hot[0], hot[1]] += 500.0
        stack[tile, 0] = np.clip(counts + 100.0 + rng.normal(0, 3, counts.shape), 0, 65535)
    return ArrayTiles(stack, row, col, nominal), true


def located(tiles: ArrayTiles, **options: Any) -> TileLocations:
    return place_tiles(tiles, workers=2, **options)
