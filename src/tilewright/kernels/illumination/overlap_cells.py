"""Mean counts of the same specimen cells as two overlapping tiles show them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates
from scipy.spatial import cKDTree

from tilewright.kernels.backend import Bools, Floats, Ints

#: Pairs measured at once: 32 x 256 x 256 float32 are 8 MB of gathered tiles.
_PAIRS_AT_ONCE = 32


@dataclass(frozen=True)
class OverlapCells:
    """Cells that two tiles show; host arrays of length m.

    Attributes
    ----------
    edge : int64 (m,)
        Index of the tile pair.
    first, second : float64 (m,)
        Mean raw counts of the cell in the first and in the second tile.
    place_first, place_second : float64 (m, 2)
        (y, x) of the cell's centre in each tile; the tile spans -1 to 1.
    """

    edge: Ints
    first: Floats
    second: Floats
    place_first: Floats
    place_second: Floats

    def __len__(self) -> int:
        return len(self.edge)

    def take(self, index: Ints | Bools) -> OverlapCells:
        """Return the cells at ``index`` (integers or a mask)."""
        return OverlapCells(*(getattr(self, field.name)[index] for field in fields(self)))

    def sampled(self, field: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return a field (y, x) over the tile at the cells in the first and the second tile."""
        size = np.asarray(field.shape)[:, None]
        first, second = (
            map_coordinates(field, (place.T + 1.0) * size / 2.0 - 0.5, order=1, mode="nearest")
            for place in (self.place_first, self.place_second)
        )
        return np.asarray(first, np.float64), np.asarray(second, np.float64)

    @classmethod
    def none(cls) -> OverlapCells:
        """Return no cells."""
        none, place = np.zeros(0), np.zeros((0, 2))
        return cls(np.zeros(0, dtype=np.int64), none, none, place, place)

    @classmethod
    def join(cls, parts: list[OverlapCells]) -> OverlapCells:
        """Return all cells of ``parts``, which number their edges alike."""
        return cls(
            *(np.concatenate([getattr(p, f.name) for p in parts], axis=0) for f in fields(cls))
        )


def overlapping_pairs(
    position_px: Floats, shape_px: tuple[int, int], min_overlap_px: float
) -> Ints:
    """Return pairs of tiles that share at least ``min_overlap_px`` along both axes.

    Diagonal neighbours count: their corners tie horizontal and vertical overlaps together.

    Parameters
    ----------
    position_px : ndarray of float64, shape (n, 2)
        (y, x) of each tile's first pixel.
    shape_px : tuple of int
        (y, x) size of a tile.
    min_overlap_px : float
        Narrowest overlap that is of use.

    Returns
    -------
    ndarray of int64, shape (m, 2)
        Pairs (i, j) with i < j, sorted.

    Examples
    --------
    >>> at = np.array([[0.0, 0.0], [0.0, 90.0], [0.0, 180.0]])
    >>> overlapping_pairs(at, (100, 100), 5.0).tolist()
    [[0, 1], [1, 2]]
    """
    size = np.asarray(shape_px, dtype=np.float64)
    if len(position_px) < 2:
        return np.zeros((0, 2), dtype=np.int64)
    near = cKDTree(position_px / size).query_pairs(1.0, p=np.inf, output_type="ndarray")
    pairs = np.sort(near.astype(np.int64).reshape(-1, 2), axis=1)
    shared = size - np.abs(position_px[pairs[:, 1]] - position_px[pairs[:, 0]])
    pairs = pairs[(shared >= min_overlap_px).all(axis=1)]
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def measure_cells(
    images: NDArray[np.float32],
    valid: Bools,
    position_px: Floats,
    pairs: Ints,
    *,
    shape_px: tuple[int, int],
    factor: int,
    cell: int,
) -> OverlapCells:
    """Average cells of a grid in both tiles of each pair.

    The averages take binned pixels by their exact share of a cell, so both numbers are of the same
    specimen area at fractional offsets. Returned are cells that lie wholly in both tiles and hold
    no invalid pixel; ``edge`` indexes ``pairs``.

    Parameters
    ----------
    images : ndarray of float32, shape (n, h, w)
        Tiles binned by ``factor`` (:func:`tilewright.kernels.illumination.binning.bin_tile`).
    valid : ndarray of bool, shape (n, h, w)
        False where a binned pixel holds a saturated one, or padding.
    position_px : ndarray of float64, shape (n, 2)
        (y, x) of each tile's first pixel, in unbinned pixels.
    pairs : ndarray of int64, shape (m, 2)
        Tile pairs.
    shape_px : tuple of int
        (y, x) size of the unbinned tile.
    factor : int
        Binning.
    cell : int
        Side of a cell in binned pixels.

    Examples
    --------
    >>> scene = np.random.default_rng(0).random((25, 45))
    >>> tiles = np.stack([scene[:, :25], scene[:, 20:]])
    >>> at, pairs = np.array([[0.0, 0.0], [0.0, 80.0]]), np.array([[0, 1]])
    >>> cells = measure_cells(tiles, tiles >= 0, at, pairs, shape_px=(100, 100), factor=4, cell=5)
    >>> len(cells), np.allclose(cells.first, cells.second)
    (5, True)
    """
    offset = (position_px[pairs[:, 1]] - position_px[pairs[:, 0]]) / factor
    scale = 2.0 * factor / np.asarray(shape_px, dtype=np.float64)
    parts = [
        _measure_batch(images, valid, pairs, offset, batch, cell, scale)
        for batch in _batches(offset)
    ]
    return OverlapCells.join(parts) if parts else OverlapCells.none()


def _measure_batch(
    images: NDArray[np.float32],
    valid: Bools,
    pairs: Ints,
    offset: Floats,
    batch: Ints,
    cell: int,
    scale: Floats,
) -> OverlapCells:
    """Return the cells of some pairs, whose tiles lie ``offset`` (m, 2) binned pixels apart."""
    # The grid lies half of the fraction off the pixels of either tile, which blurs both: where one
    # was read at its own pixels, bright cells seemed brighter in it, and the camera offset was
    # 1 to 3 counts too high.
    _, h, w = images.shape
    shift = (offset - np.rint(offset)) / 2
    y = _shares(offset[batch, 0], shift[batch, 0], h // cell, cell, h)
    x = _shares(offset[batch, 1], shift[batch, 1], w // cell, cell, w)
    usable, means = _cell_means(images, valid, pairs[batch], y, x)
    edge, iy, ix = np.nonzero(usable)
    centre = (np.stack([iy + y[1], ix + x[1]], axis=1) + 0.5) * cell + shift[batch[edge]]
    return OverlapCells(
        batch[edge],
        means[0][edge, iy, ix],
        means[1][edge, iy, ix],
        centre * scale - 1.0,
        (centre - offset[batch[edge]]) * scale - 1.0,
    )


#: Shares of pixels in cells of either tile, the index of the first cell, and which pairs fit.
_Shares = tuple[list[NDArray[np.float32]], int, Bools]


def _cell_means(
    images: NDArray[np.float32], valid: Bools, pairs: Ints, y: _Shares, x: _Shares
) -> tuple[Bools, list[Floats]]:
    """Return which cells of a batch of pairs are usable, and their means in either tile."""
    usable = y[2][:, :, None] & x[2][:, None, :]
    means = []
    for side in (0, 1):
        tile, on_y, on_x = pairs[:, side], y[0][side], x[0][side].transpose(0, 2, 1)
        means.append((on_y @ images[tile] @ on_x).astype(np.float64))
        usable &= on_y @ valid[tile].astype(np.float32) @ on_x > 0.999
    return usable, means


def _batches(offset: Floats) -> list[Ints]:
    """Pairs in batches of like direction, so that a batch shares one narrow window of cells."""
    direction = np.argmax(np.abs(offset), axis=1) if len(offset) else np.zeros(0)
    sign = offset[np.arange(len(offset)), direction.astype(np.int64)] > 0
    order = np.lexsort((np.arange(len(offset)), sign, direction)).astype(np.int64)
    key = 2 * direction[order] + sign[order]
    groups = np.split(order, np.nonzero(np.diff(key))[0] + 1)
    return [
        group[start : start + _PAIRS_AT_ONCE]
        for group in groups
        for start in range(0, len(group), _PAIRS_AT_ONCE)
    ]


def _shares(
    offset: Floats, shift: Floats, count: int, cell: int, size: int
) -> tuple[list[NDArray[np.float32]], int, Bools]:
    """Return shares (pair, cell, pixel) of either tile's pixels, the first cell, and who fits."""
    first = cell * np.arange(count)[None, :] + shift[:, None]
    lows = first, first - offset[:, None]
    inside = np.all([(low >= -1e-6) & (low + cell <= size + 1e-6) for low in lows], axis=0)
    some = np.nonzero(inside.any(axis=0))[0]
    start, stop = (int(some[0]), int(some[-1]) + 1) if len(some) else (0, 1)
    pixel = np.arange(size)
    shares = []
    for low in (low[:, start:stop, None] for low in lows):
        shared = np.minimum(low + cell, pixel + 1) - np.maximum(low, pixel)
        shares.append((np.clip(shared, 0.0, None) / cell).astype(np.float32))
    return shares, start, inside[:, start:stop]
