"""Binned tiles, and mean counts of the same specimen cells as two overlapping tiles show them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates
from scipy.spatial import cKDTree

from tilewright.kernels.backend import Bools, Floats, Ints, cells


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


def bin_tile(raw: NDArray[Any], factor: int) -> NDArray[np.float32]:
    """Average blocks of ``factor`` x ``factor`` pixels; a rest at the far edges is cut off.

    Parameters
    ----------
    raw : ndarray, shape (y, x)
        Raw counts.
    factor : int
        Side of a block.

    Returns
    -------
    ndarray of float32, shape (y // factor, x // factor)
        Block means.

    Examples
    --------
    >>> bin_tile(np.arange(16, dtype=np.uint16).reshape(4, 4), 2).tolist()
    [[2.5, 4.5], [10.5, 12.5]]
    """
    # Rows first: contiguous adds are four times faster than one mean over both axes.
    total = cells(raw, factor).sum(axis=1, dtype=np.float32).sum(axis=2)
    return np.asarray(total / np.float32(factor * factor))


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
        Tiles binned by ``factor`` (:func:`bin_tile`).
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
    offsets = (position_px[pairs[:, 1]] - position_px[pairs[:, 0]]) / factor
    scale = 2.0 * factor / np.asarray(shape_px, dtype=np.float64)
    parts = [OverlapCells.none()]
    for edge, (pair, offset) in enumerate(zip(pairs, offsets, strict=True)):
        means, centre = _cell_means(images[pair], valid[pair], offset, cell)
        first, second = centre * scale - 1.0, (centre - offset) * scale - 1.0
        parts.append(OverlapCells(np.full(len(centre), edge), means[0], means[1], first, second))
    return OverlapCells.join(parts)


def _cell_means(
    images: NDArray[np.float32], valid: Bools, offset: Floats, cell: int
) -> tuple[Floats, Floats]:
    """Return means (2, m) of the cells of a pair of tiles (2, h, w), and their centres (m, 2).

    The second tile lies ``offset`` (y, x) binned pixels from the first, whose pixels the centres
    are counted in.
    """
    # The grid lies half of the fraction off the pixels of either tile, which blurs both: where one
    # was read at its own pixels, bright cells seemed brighter in it, and the camera offset was
    # 1 to 3 counts too high.
    shift = (offset - np.rint(offset)) / 2
    (y, on_y), (x, on_x) = (
        _shares(float(offset[axis]), float(shift[axis]), cell, size)
        for axis, size in enumerate(images.shape[1:])
    )
    on_x = on_x.transpose(0, 2, 1)
    usable = (on_y @ valid.astype(np.float32) @ on_x > 0.999).all(axis=0)
    means = (on_y @ images @ on_x)[:, usable].astype(np.float64)
    centre = np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1)[usable]
    return means, centre + cell / 2


def _shares(
    offset: float, shift: float, cell: int, size: int
) -> tuple[Floats, NDArray[np.float32]]:
    """Return where cells that lie in both tiles begin, and shares (2, cell, pixel) of pixels."""
    first = cell * np.arange(size // cell) + shift
    lows = np.stack([first, first - offset])
    inside = ((lows >= -1e-6) & (lows + cell <= size + 1e-6)).all(axis=0)
    low, pixel = lows[:, inside, None], np.arange(size)
    shared = np.minimum(low + cell, pixel + 1) - np.maximum(low, pixel)
    return np.asarray(first[inside]), np.asarray(np.clip(shared, 0.0, None) / cell, np.float32)
