"""Which tiles overlap, and which rectangles of them to compare."""

import math
from dataclasses import dataclass

import numpy as np

from tilewright.kernels.backend import Floats, Ints, Region

#: Narrower overlaps are not compared: a LoG of 1.5 px alone is 12 px wide.
MIN_OVERLAP_PX = 12
#: Part of a tile beyond which a wider strip adds time and no accuracy.
_WIDEST = 0.25


@dataclass(frozen=True)
class StripPlan:
    """Strips of all overlaps in one direction; equal in size, so that they batch.

    Attributes
    ----------
    pairs : int64 (m, 2)
        Tiles a and b of each overlap.
    shape : tuple[int, int]
        (y, x) of every strip.
    origin_a, origin_b : tuple[int, int]
        First pixel (y, x) of the strip in tile a and in tile b.
    expected_px : float64 (m, 2)
        Shift (y, x) between the strips, ``a[p + shift] == b[p]``, if the stage were exact.
    max_shift_px : float
        Largest deviation from ``expected_px`` worth a search.
    """

    pairs: Ints
    shape: tuple[int, int]
    origin_a: tuple[int, int]
    origin_b: tuple[int, int]
    expected_px: Floats
    max_shift_px: float

    @property
    def windows(self) -> tuple[Region, Region]:
        """The window of the strip in tile a and in tile b."""
        (a_y, a_x), (b_y, b_x), (height, width) = self.origin_a, self.origin_b, self.shape
        return (
            (slice(a_y, a_y + height), slice(a_x, a_x + width)),
            (slice(b_y, b_y + height), slice(b_x, b_x + width)),
        )

    def displacement(self, shift_px: Floats) -> Floats:
        """Return ``position(b) - position(a)`` that strip shifts (m, 2) mean."""
        return shift_px + np.subtract(self.origin_a, self.origin_b)


def neighbours(
    nominal_px: Floats, tile_shape: tuple[int, int], least_px: float = MIN_OVERLAP_PX
) -> tuple[Ints, Ints]:
    """Return pairs (m, 2) of tiles that overlap side by side, and the axis (m,) of each.

    Tile b lies below (axis 0) or to the right (axis 1) of tile a, moved sideways by less than
    half a tile. Only nearest neighbours: with overlaps above one half the next but one
    overlaps too, and adds nothing. Pairs are sorted by (axis, a, b). Below 0, ``least_px`` includes
    tiles that are so far apart.

    Examples
    --------
    >>> pairs, axis = neighbours(np.array([[0.0, 0.0], [0.0, 80.0], [80.0, 0.0]]), (100, 100))
    >>> pairs.tolist(), axis.tolist()
    ([[0, 2], [0, 1]], [0, 1])
    """
    from scipy.spatial import cKDTree  # jobs that fuse tiles with a given width do not need it

    nominal = np.asarray(nominal_px, np.float64).reshape(-1, 2)
    size = np.asarray(tile_shape, np.float64)
    reach = 1.0 + max(0.0, -least_px / min(tile_shape))
    near = cKDTree(nominal / size).query_pairs(reach, p=np.inf, output_type="ndarray")
    pairs = np.asarray(near, np.int64).reshape(-1, 2)
    step = nominal[pairs[:, 1]] - nominal[pairs[:, 0]]
    axis = (np.abs(step[:, 1] / size[1]) > np.abs(step[:, 0] / size[0])).astype(np.int64)
    each = np.arange(len(pairs))
    along, across = step[each, axis], step[each, 1 - axis]
    pairs[along < 0] = pairs[along < 0][:, ::-1]
    length = np.abs(along)
    # These limits of a grid, also 1.4 below, are chosen: no figures.
    valid = (size[axis] - length >= least_px) & (length >= 0.05 * size[axis])
    # Diagonal neighbours move as far across as along; a brick-like stage half as far.
    valid &= np.abs(across) < np.minimum(0.5 * size[1 - axis], 0.75 * length)
    for number in (0, 1):
        here = valid & (axis == number)
        if here.any():
            valid &= ~here | (length <= 1.4 * np.quantile(length[here], 0.25))
    pairs, axis = pairs[valid], axis[valid]
    order = np.lexsort((pairs[:, 1], pairs[:, 0], axis))
    return pairs[order], axis[order]


def plan_strips(
    nominal_px: Floats, tile_shape: tuple[int, int], max_shift_px: float | None = None
) -> list[StripPlan]:
    """Plan the strips of every overlap, one plan per direction that has any.

    Parameters
    ----------
    nominal_px : ndarray, shape (n, 2)
        Stage positions (y, x).
    tile_shape : tuple of int
        (y, x) of every tile.
    max_shift_px : float, optional
        Stage tolerance per axis; by default 3 % of the shorter side of a tile, at least 8 px
        and at most half the overlap.

    Raises
    ------
    ValueError
        A position is not finite.

    Examples
    --------
    >>> plan = plan_strips(np.array([[0.0, 0.0], [0.0, 80.0]]), (100, 100))[0]
    >>> plan.shape, plan.origin_a, plan.expected_px.tolist()
    ((100, 24), (0, 76), [[0.0, 4.0]])
    """
    nominal = np.asarray(nominal_px, np.float64).reshape(-1, 2)
    if not np.isfinite(nominal).all():
        raise ValueError("a nominal tile position is not finite; fix the stage positions")
    if len(nominal) < 2:
        return []
    pairs, axes = neighbours(nominal, tile_shape)
    return [
        _plan(nominal, tile_shape, max_shift_px, axis, pairs[axes == axis])
        for axis in (1, 0)
        if (axes == axis).any()
    ]


def _plan(
    nominal: Floats, tile_shape: tuple[int, int], max_shift_px: float | None, axis: int, pairs: Ints
) -> StripPlan:
    size = tile_shape[axis]
    step = nominal[pairs[:, 1]] - nominal[pairs[:, 0]]
    shared = size - step[:, axis]
    if max_shift_px is None:
        max_shift_px = max(8.0, min(0.03 * min(tile_shape), 0.5 * float(np.median(shared))))
    # Half the tolerance beyond the overlap: a stage step that fell short shows more of it.
    least_width = math.ceil(float(shared.max()) + 0.5 * max_shift_px)
    width = min(least_width, size, max(math.ceil(_WIDEST * size), 4 * MIN_OVERLAP_PX))
    inset = max(0, math.floor((float(np.median(shared)) - width) / 2.0))
    shape, first, second = list(tile_shape), [0, 0], [0, 0]
    shape[axis], first[axis], second[axis] = width, size - width - inset, inset
    return StripPlan(
        pairs=pairs,
        shape=(shape[0], shape[1]),
        origin_a=(first[0], first[1]),
        origin_b=(second[0], second[1]),
        expected_px=step - np.subtract(first, second),
        max_shift_px=float(max_shift_px),
    )
