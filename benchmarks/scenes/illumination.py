"""Tiles of a random specimen through a known flat-field, in memory."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from benchmarks.scenes.array_tiles import ArrayTiles
from tilewright.io.results.positions import Positions

OFFSET_COUNTS = 100.0
GAIN = 4.0


def _even(flat: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(flat / flat.mean())


def vignette(size: int, strength: float = 0.5) -> NDArray[np.float64]:
    """Return a flat-field of mean 1, off centre and tilted."""
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    return _even(np.exp(-strength * ((x - 0.15) ** 2 + 0.8 * (y + 0.1) ** 2)) * (1 + 0.05 * x))


def ring(size: int) -> NDArray[np.float64]:
    """Return a flat-field of mean 1 with a bright ring half way to the border."""
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    return _even(1 + 0.6 * np.exp(-0.5 * ((np.hypot(y, x) - 0.5) / 0.12) ** 2))


def stripes(size: int) -> NDArray[np.float64]:
    """Return a flat-field of mean 1 with three slanted stripes."""
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    return _even(1 + 0.16 * np.sin(3 * np.pi * (x + 0.3 * y)))


def shadow(size: int) -> NDArray[np.float64]:
    """Return a flat-field of mean 1 whose left half is darker, with a soft edge."""
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    return _even(vignette(size, 0.3) * (1 - 0.4 / (1 + np.exp((x - 0.1 * y) / 0.12))))


def relative_rmse(flat: NDArray[Any], truth: NDArray[Any]) -> float:
    """Return the root of the mean square of relative errors of a flat-field."""
    return float(np.sqrt(np.mean((flat / truth - 1) ** 2)))


def make_tiles(
    flat: NDArray[np.float64],
    seed: int,
    *,
    grid: tuple[int, int] = (6, 6),
    overlap: float = 0.15,
    electrons: float = 800.0,
    planes: int = 1,
    empty: float = 0.3,
    haze: float = 15.0,
    lumps: float = 0.0,
    dark: NDArray[np.float64] | float = 0.0,
    clip_counts: float = 65535.0,
    core: float | None = None,
) -> tuple[ArrayTiles, Positions]:
    """Sample tiles at fractional positions.

    ``core`` is the diameter of a round specimen in the middle, over all tiles' extent; ``empty``
    is the share without tissue, ``lumps`` the log-scatter of the tissue's brightness over half a
    tile, ``dark`` what the camera adds to its offset in counts, ``clip_counts`` where the camera
    saturates.
    """
    rng = np.random.default_rng(seed)
    size = flat.shape[0]
    step = size * (1 - overlap)
    row, col = (index.ravel() for index in np.indices(grid))
    place = np.stack([row, col], axis=1) * step + rng.uniform(0, 3, (row.size, 2))
    extent = tuple(int(np.ceil(place[:, axis].max())) + size + 4 for axis in (0, 1))
    texture = np.exp(ndimage.gaussian_filter(rng.standard_normal(extent), 2.5) * 6)
    tissue = ndimage.gaussian_filter(rng.standard_normal(extent), 25)
    inside = tissue > np.quantile(tissue, empty)
    if core is not None:
        y, x = np.indices(extent)
        inside = (
            np.hypot(*(2 * at / side - 1 for at, side in zip((y, x), extent, strict=True))) < core
        )
    specimen = texture * inside * electrons
    specimen = ndimage.gaussian_filter(specimen / texture.mean() / 2, 1.0)
    if lumps:
        coarse = rng.standard_normal(tuple(side // 8 + 2 for side in extent))
        wide = ndimage.gaussian_filter(coarse, size / 32)
        wide = ndimage.zoom(wide / wide.std(), 8, order=1)[: extent[0], : extent[1]]
        specimen *= np.exp(lumps * wide)
    stack = np.empty((row.size, planes, size, size), dtype=np.uint16)
    for k, (y, x) in enumerate(place):
        y0, x0 = int(y), int(x)
        window = specimen[y0 : y0 + size + 1, x0 : x0 + size + 1]
        light = ndimage.shift(window, (y0 - y, x0 - x), order=3)[:size, :size]
        for z in range(planes):
            mean = np.clip(light, 0, None) * (1 - 0.2 * z) + haze
            noisy = rng.poisson(mean * flat) + rng.normal(0, 2, flat.shape)
            counts = noisy * GAIN + OFFSET_COUNTS + dark
            stack[k, z] = np.clip(counts, 0, min(clip_counts, 65535.0))
    sure = np.full(row.size, 0.05)
    islands = np.zeros(row.size, dtype=np.int64)
    tiles = ArrayTiles(stack, row.astype(np.int64), col.astype(np.int64), place)
    return tiles, Positions(tiles.name, row, col, place[:, 0], place[:, 1], sure, islands)


def make_cores(
    flat: NDArray[np.float64], seed: int, grid: tuple[int, int], count: int = 40
) -> tuple[ArrayTiles, Positions]:
    """Return the tiles of round cores of a tissue microarray, each an island."""
    diameter = np.random.default_rng(seed).uniform(0.85, 1.0, count)
    cores = [
        make_tiles(flat, 1000 * seed + k, grid=grid, empty=0.0, core=diameter[k])
        for k in range(count)
    ]
    stack, place = (
        np.concatenate([getattr(tiles, name) for tiles, _ in cores])
        for name in ("stack", "nominal_px")
    )
    number = np.arange(len(stack))
    island = np.repeat(np.arange(count), len(stack) // count)
    place[:, 0] += 4 * flat.shape[0] * island
    tiles = ArrayTiles(stack, number, 0 * number, place)
    sure = np.full(len(stack), 0.05)
    return tiles, Positions(tiles.name, number, 0 * number, place[:, 0], place[:, 1], sure, island)
