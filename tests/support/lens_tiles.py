"""Tiles of synthetic tissue seen through a lens of known distortion."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tests.support.array_tiles import ArrayTiles
from tilewright.io.results.illumination import Illumination

Floats = NDArray[np.float64]

SIZE = 256
OFFSET = 100.0


def brown_px(corner_px: float) -> Floats:
    """Return where each pixel of a tile really looks, less where it says (2, y, x)."""
    q = (np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2) / (SIZE / np.sqrt(2))
    return np.asarray(corner_px * (q**2).sum(axis=0) * q)


def scale_of(corner_px: float, meeting: float = 1.0) -> float:
    """Return the scale that positions absorb: lines where tiles meet keep their mean distance."""
    return 1.0 + corner_px * math.sqrt(2) / SIZE * (meeting**2 / 2 + 1 / 6)


def tissue(rng: np.random.Generator, shape: tuple[int, int], empty: float) -> Floats:
    """Return light (y, x) of round nuclei with texture, and none on a smooth share of it."""
    seeds = np.zeros(shape)
    count = round(shape[0] * shape[1] / 350)
    seeds[rng.integers(0, shape[0], count), rng.integers(0, shape[1], count)] = 1.0
    blobs = np.minimum(ndimage.gaussian_filter(seeds, 4.0) * 90.0, 1.2)
    grain = ndimage.gaussian_filter(rng.standard_normal(shape), 1.8)
    light = blobs * np.clip(1.0 + 0.3 * grain / grain.std(), 0.2, None)
    where = ndimage.gaussian_filter(rng.standard_normal(shape), 80.0, mode="reflect")
    edge = (where - np.quantile(where, empty)) / where.std() / 0.05
    return np.asarray(light / (1.0 + np.exp(-np.clip(edge, -30, 30))) if empty else light)


def lens_tiles(
    seed: int, rows: int, cols: int, corner_px: float, empty: float = 0.0
) -> tuple[ArrayTiles, Floats, Floats]:
    """Return tiles, their true positions (n, 2), and the light of the specimen.

    The same seed shows the same specimen from the same positions through every lens.
    """
    rng = np.random.default_rng([seed, 313])
    row, col = (axis.ravel() for axis in np.mgrid[:rows, :cols])
    nominal = np.stack([row, col], axis=1) * (SIZE * 0.88)
    skew = np.array([[1.0005, 0.003], [-0.003, 1.0005]])
    true = nominal @ skew + rng.normal(0, 1.5, nominal.shape) + 12.0
    true[:, 1] += 1.5 * (row % 2)
    true -= true.min(axis=0) - 12.0
    high, wide = np.ceil(true.max(axis=0)).astype(int) + SIZE + 12
    light = 600.0 * tissue(rng, (int(high), int(wide)), empty) + 20.0
    spline = ndimage.spline_filter(light, order=3)
    looks = np.mgrid[:SIZE, :SIZE] + brown_px(corner_px)
    stack = np.empty((len(true), 1, SIZE, SIZE), np.uint16)
    for tile, at in enumerate(true):
        seen = ndimage.map_coordinates(spline, looks + at[:, None, None], prefilter=False)
        counts = rng.poisson(np.maximum(seen, 0.0)) + rng.normal(OFFSET, 2.0, seen.shape)
        stack[tile, 0] = np.clip(np.rint(counts), 0, 65535)
    return ArrayTiles(stack, row, col, nominal), true, light


def even_light() -> Illumination:
    """Return the illumination of these tiles."""
    return Illumination.from_fields(np.ones((SIZE, SIZE)), OFFSET)
