"""Camera pixels that do not measure light: found in many tiles, replaced by their neighbours.

A hot pixel adds the same counts to every tile. Interpolation and deconvolution would draw a
spot with a moat around it, at the same place of every tile. All on the host: one image of the
size of a tile, and lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

#: Tiles looked at; of fewer than eight the specimen might do the same in half.
SAMPLE_TILES = 16
MIN_TILES = 8
#: A defect lies this many ranges beyond its neighbours, the highest and lowest of the eight
#: left aside: 6 sigma of noise on average, and more where there is texture.
_RANGES = 3.0
#: Scatters of the mean of all tiles about its neighbourhood, and ranges beyond it, from which
#: a pixel is looked at in every tile.
_SIEVE_SCATTER = 4.0
_SIEVE_RANGES = 1.0
#: More defects than this share of the camera are a pattern and not defects.
_MOST = 0.01
_AROUND = tuple((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0))


@dataclass(frozen=True)
class CameraDefects:
    """Defective pixels of one camera.

    Attributes
    ----------
    pixel : ndarray of int64, shape (m,)
        Flat indices into a tile (y, x).
    neighbours : ndarray of int64, shape (m, 8)
        Flat indices of good neighbours, repeated where there are fewer than eight.
    """

    pixel: NDArray[np.int64]
    neighbours: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of defective pixels."""
        return len(self.pixel)

    def repair(self, tile: NDArray[Any]) -> NDArray[Any]:
        """Return a tile (y, x) with defects replaced by the median of good neighbours."""
        if not len(self):
            return tile
        repaired = tile.copy()
        flat = repaired.reshape(-1)
        value = np.median(flat[self.neighbours], axis=1)
        flat[self.pixel] = value if tile.dtype.kind == "f" else np.rint(value)
        return repaired


def find_defects(tiles: Sequence[NDArray[Any]]) -> CameraDefects:
    """Find the pixels that stand out of their neighbourhood in at least half of the tiles.

    Parameters
    ----------
    tiles : sequence of ndarray, shape (y, x)
        Raw counts of different places of the specimen.

    Returns
    -------
    CameraDefects
        None of fewer than eight tiles, and none where over 1 % of all pixels stand out.
    """
    shape = tiles[0].shape if tiles else (0, 0)
    nothing = np.empty(0, np.int64)
    if len(tiles) < MIN_TILES or min(shape) < 3:
        return _with_neighbours(nothing, shape)
    mean = np.zeros(shape, np.float32)
    for tile in tiles:
        mean += tile
    mean /= len(tiles)
    apart = np.abs(mean - ndimage.uniform_filter(mean, 3, mode="mirror"))
    # The ranges of all pixels would take ten times as long as this first sieve.
    pixel = np.nonzero(apart.ravel() > _SIEVE_SCATTER * float(np.median(apart[::4, ::4])))[0]
    low, high = _range(mean.reshape(-1)[_indices(pixel, shape)].T)
    pixel = pixel[_excess(mean.reshape(-1)[pixel], low, high) > _SIEVE_RANGES]
    around = _indices(pixel, shape)
    votes = np.zeros(len(pixel), np.int64)
    for tile in tiles:
        counts = np.asarray(tile).reshape(-1)
        low, high = _range(counts[around].T.astype(np.float32))
        votes += _excess(counts[pixel].astype(np.float32), low, high) > _RANGES
    found = pixel[2 * votes >= len(tiles)]
    return _with_neighbours(found if len(found) <= _MOST * mean.size else nothing, shape)


def _range(around: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the second lowest and second highest of eight neighbours: pairs are defects too."""
    ordered = np.partition(around, (1, 6), axis=0)
    return ordered[1], ordered[6]


def _excess(
    value: NDArray[np.float32], low: NDArray[np.float32], high: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return by how many ranges of its neighbours a value lies beyond them."""
    beyond = np.maximum(value - high, low - value)
    excess: NDArray[np.float32] = beyond / np.maximum(high - low, 1.0)
    return excess


def _indices(pixel: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return flat indices (m, 8) of the neighbours; reflected at the border."""
    places = []
    for step in _AROUND:
        moved = [c + s for c, s in zip(np.unravel_index(pixel, shape), step, strict=True)]
        inside = [
            np.where(c < 0, 1, np.where(c >= n, n - 2, c))
            for c, n in zip(moved, shape, strict=True)
        ]
        places.append(np.ravel_multi_index(tuple(inside), shape))
    return np.stack(places, axis=1).astype(np.int64)


def _with_neighbours(pixel: NDArray[np.int64], shape: tuple[int, ...]) -> CameraDefects:
    """Add the good neighbours; a pixel that has none is left as it is."""
    if not len(pixel):
        return CameraDefects(pixel, np.empty((0, 8), np.int64))
    around = _indices(pixel, shape)
    good = ~np.isin(around, pixel)
    kept = good.any(axis=1)
    # Good neighbours first, then the same again: a plain median needs eight.
    order = np.argsort(~good, axis=1, kind="stable")
    turn = np.arange(8)[None] % np.maximum(good.sum(axis=1), 1)[:, None]
    chosen = np.take_along_axis(around, np.take_along_axis(order, turn, axis=1), axis=1)
    return CameraDefects(pixel[kept], chosen[kept])
