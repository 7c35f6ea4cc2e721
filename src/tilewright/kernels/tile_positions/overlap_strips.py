"""Which tiles overlap, which strips of them to compare, and strips without what the camera adds."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import ndimage

from tilewright.kernels.backend import Floats, Ints, Region

#: Narrower overlaps are not compared: a LoG of 1.5 px alone is 12 px wide.
MIN_OVERLAP_PX = 12
#: Part of a side from which tiles are neighbours: nearer ones are one position imaged twice.
NEAREST = 0.05
#: Part of the shorter side by which stages miss their places, and its least size: over so much a
#: tile is searched for by default.
SEARCHED, LEAST_SEARCHED_PX = 0.03, 8.0
#: Part of a tile beyond which a wider strip adds time and no accuracy.
_WIDEST = 0.25
#: Width over which the flat-field of strips is smoothed: more than cells, less than vignetting.
#: With 15 px four of 510 overlaps of repeated structure matched by chance, with 40 px edges err
#: 1.3 times as much.
SMOOTH_PX = 20.0
#: Percentile of strips that is taken for no light.
_DARKEST = 1.0
#: Correlation of the lines of two empty strips, times the root of their length, that shows a
#: camera's offsets: 25 with columns of 3 counts (read noise 3) in 640 px; without any at most 6.7
#: in strips of tissue, 10.2 once where each tile has a few different cells.
_ALIKE = 10.0


class Strips(Protocol):
    """Strips (n, y, x) of float32: an array, or what is read and written like one."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    def __getitem__(self, part: Any, /) -> Any: ...
    def __setitem__(self, part: Any, value: Any, /) -> None: ...


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


def searched_px(tile_shape: tuple[int, int]) -> float:
    """Return how far from its position a tile (y, x) is searched for by default.

    >>> searched_px((2048, 2048)), searched_px((200, 200))
    (61.44, 8.0)
    """
    return max(LEAST_SEARCHED_PX, SEARCHED * min(tile_shape))


def neighbours_along(nominal_px: Floats, axis: int, least_px: float = 0.0) -> Ints:
    """Return pairs (m, 2) of tiles of which b is the nearest to a in the direction of an axis.

    Moved sideways by less than 0.75 of the way, as diagonal neighbours are by all of it and those
    of a brick-like stage by half of it; at least ``least_px`` along the axis, and no further than
    1.4 times what a quarter of the pairs are: the limits of a grid, chosen without figures. Sorted.
    Unlike :func:`neighbours` it takes positions whose scale is not known.

    >>> neighbours_along(np.array([[0.0, 0.0], [0.0, 9.0], [8.0, 1.0]]), 1).tolist()
    [[0, 1]]
    """
    pairs, lengths = list[tuple[int, int]](), list[float]()
    for a, place in enumerate(nominal_px):
        step = nominal_px - place
        along, across = step[:, axis], np.abs(step[:, 1 - axis])
        near = (along > least_px) & (across < 0.75 * along)
        distance = np.where(near, np.hypot(along, across), np.inf)
        b = int(np.argmin(distance))
        if near[b]:
            pairs.append((a, b))
            lengths.append(float(distance[b]))
    if not pairs:
        return np.zeros((0, 2), np.int64)
    near = np.array(lengths) <= 1.4 * np.quantile(lengths, 0.25)
    return np.array(pairs, np.int64)[near]


def neighbours(
    nominal_px: Floats, tile_shape: tuple[int, int], least_px: float = MIN_OVERLAP_PX
) -> tuple[Ints, Ints]:
    """Return pairs (m, 2) of tiles that overlap side by side, and the axis (m,) of each.

    Tile b lies below (axis 0) or to the right (axis 1) of tile a, moved sideways by less than
    half a tile, and shares at least ``least_px`` with it. Only nearest neighbours
    (:func:`neighbours_along`): with overlaps above one half the next but one overlaps too, and adds
    nothing. Pairs are sorted by (axis, a, b). Diagonal neighbours, which share a corner, are among
    :func:`~tilewright.kernels.illumination.overlap_cells.overlapping_pairs`.

    Examples
    --------
    >>> pairs, axis = neighbours(np.array([[0.0, 0.0], [0.0, 80.0], [80.0, 0.0]]), (100, 100))
    >>> pairs.tolist(), axis.tolist()
    ([[0, 2], [0, 1]], [0, 1])
    """
    nominal = np.asarray(nominal_px, np.float64).reshape(-1, 2)
    found = []
    for axis, size in enumerate(tile_shape):
        pairs = neighbours_along(nominal, axis, NEAREST * size)
        step = np.abs(nominal[pairs[:, 1]] - nominal[pairs[:, 0]])
        sideways = step[:, 1 - axis] < 0.5 * tile_shape[1 - axis]
        found.append(pairs[(size - step[:, axis] >= least_px) & sideways])
    return np.concatenate(found), np.repeat([0, 1], [len(pairs) for pairs in found])


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
        Stage tolerance per axis; by default 3 % of the shorter side of a tile, at most half the
        overlap, and at least 8 px.

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
        half = 0.5 * float(np.median(shared))
        max_shift_px = max(LEAST_SEARCHED_PX, min(searched_px(tile_shape), half))
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


def flatten(strips: Strips) -> None:
    """Take the darkest counts off strips (n, y, x) and divide by a flat-field of their own.

    That is the mean of all strips, each over its own mean: bright tissue in one of them weighs no
    more than bare glass in another. A single strip is left alone: it is its own mean.

    >>> strips = np.tile(np.linspace(1, 2, 200, dtype=np.float32), (9, 8, 1))
    >>> flatten(strips)
    >>> round(float(strips[0, 0, 150] / strips[0, 0, 50]), 1)
    1.0
    """
    count = strips.shape[0]
    if count < 2:
        return
    low = [np.percentile(strips[i][::4, ::4], _DARKEST) for i in range(count)]
    dark = np.float32(min(low))
    mean = np.zeros(strips.shape[1:], np.float32)
    for i in range(count):
        light = strips[i] - dark
        mean += light / max(float(light.mean(dtype=np.float64)), 1e-6)
    # Beyond the border as steep as before it, or vignetting would end in a plateau: with that
    # edges of tiles of 128 px were 0.06 px off, for 0.02.
    reach = math.ceil(3 * SMOOTH_PX)
    wide = np.pad(mean, reach, mode="reflect", reflect_type="odd")
    flat = ndimage.gaussian_filter(wide, SMOOTH_PX, mode="nearest")[reach:-reach, reach:-reach]
    if flat.min() > 0:
        even = flat.mean() / flat
        for i in range(count):
            strips[i] = (strips[i] - dark) * even


def remove_lines(strips: Strips) -> bool:
    """Subtract in place the offsets of columns, or rows, that cross strips (n, y, x) of one area.

    They stay with the camera and draw a match to where its pixels lie on each other. The two
    emptiest strips, of different tiles, tell them, if they are alike.

    >>> strips = np.random.default_rng(0).normal(100, 2, (4, 20, 300)).astype(np.float32)
    >>> remove_lines(strips)
    False
    >>> strips += np.random.default_rng(1).normal(0, 3, 300).astype(np.float32)
    >>> remove_lines(strips)
    True
    """
    across = int(strips.shape[1] >= strips.shape[2])
    if strips.shape[0] < 2:
        return False
    lines = np.array([strips[i].mean(axis=across) for i in range(strips.shape[0])], np.float64)
    lines -= ndimage.gaussian_filter1d(lines, SMOOTH_PX, mode="nearest")
    a, b = lines[np.argsort(np.round(lines.std(axis=1), 3), kind="stable")[:2]]
    if not (a @ b) * math.sqrt(len(a)) > _ALIKE * math.sqrt((a @ a) * (b @ b)):
        return False
    offset = np.expand_dims(0.5 * (a + b), across).astype(np.float32)
    for i in range(strips.shape[0]):
        strips[i] = strips[i] - offset
    return True
