"""Pairs of tiles that lie side by side, and where the second of each pair lies of the first."""

from collections.abc import Iterable

import numpy as np

from tilewright.kernels.backend import Array, Backend, Floats, Ints
from tilewright.kernels.tile_positions.overlap_strips import plan_strips
from tilewright.kernels.tile_positions.phase_correlation import correlate_tiles

_SIGMA_PX = 1.5
#: Part of a side over which a displacement is searched about each expected one: a camera turned by
#: 5 degrees moves a neighbour by 0.09.
_REACH = 0.1
#: Overlaps that are tried where the stated one does not match; with the search they cover all from
#: 0 to 0.55.
OVERLAPS = (0.05, 0.15, 0.3, 0.45)
_STRAIGHT = tuple((overlap, 0.0) for overlap in OVERLAPS)
#: Decimal logarithm of the probability of a false match, with its sign turned, that leaves no
#: doubt: the one overlap with tissue of 38 x 192 px has 1.7, what a blank tile matches up to 0.6.
_BEYOND_DOUBT = 2.0
#: NCC above that of the best rival peak, times certainty, from which a match counts.
CLEAR = 0.05


def edge_strength(backend: Backend, tiles: Array) -> Floats:
    """Return the spread (n,) of differences between neighbouring pixels, a mark of structure.

    >>> edge_strength(cpu, np.zeros((2, 8, 8), np.float32)).tolist()
    [0.0, 0.0]
    """
    difference = tiles[:, 2:, 2:] - tiles[:, :-2, :-2]
    spread = np.asarray(backend.to_numpy(backend.xp.std(difference, axis=(1, 2))), np.float64)
    return np.round(spread, 2)


def neighbours_along(nominal: Floats, axis: int, least_px: float = 0.0) -> Ints:
    """Return pairs (m, 2) of tiles of which b is the nearest to a in the direction of an axis.

    Within 45 degrees of it, at least ``least_px`` apart, and no further than 1.4 times what a
    quarter of the pairs are.

    >>> neighbours_along(np.array([[0.0, 0.0], [0.0, 9.0], [8.0, 1.0]]), 1).tolist()
    [[0, 1]]
    """
    step = nominal[None, :, :] - nominal[:, None, :]
    along, across = step[..., axis], np.abs(step[..., 1 - axis])
    distance = np.where((along > least_px) & (across < along), np.hypot(along, across), np.inf)
    nearest = np.asarray(np.argmin(distance, axis=1), np.int64)
    length = distance[np.arange(len(nominal)), nearest]
    known = np.isfinite(length)
    if not known.any():
        return np.zeros((0, 2), np.int64)
    near = known & (length <= 1.4 * np.quantile(length[known], 0.25))
    return np.stack([np.flatnonzero(near), nearest[near]], axis=1)


def measure_pairs(
    backend: Backend,
    tiles: Array,
    pairs: Ints,
    direction: tuple[int, int],
    places: Iterable[tuple[float, float]] = _STRAIGHT,
) -> tuple[Floats, Floats]:
    """Return the displacement (m, 2) and score (m,) of pairs as if b lay in a direction of a.

    Parameters
    ----------
    tiles : array, shape (n, y, x)
        One plane of each tile, reduced in size at will, float32.
    pairs : ndarray of int64, shape (m, 2)
        Numbers of tiles a and b.
    direction : (int, int)
        Axis of the image, and sign.
    places : iterable of (float, float)
        Overlaps, each with how far across b lies, as fractions of a side.
    """
    axis, sign = direction
    shape = (int(tiles.shape[1]), int(tiles.shape[2]))
    reach = _REACH * min(shape)
    best = np.zeros(len(pairs))
    displacement = np.zeros((len(pairs), 2))
    for overlap, slant in places:
        advance = np.full(2, slant * shape[1 - axis])
        advance[axis] = shape[axis] * (1.0 - overlap)
        for plan in plan_strips(np.stack([np.zeros(2), advance]), shape, reach):
            shifts = correlate_tiles(backend, tiles, pairs[:, ::sign], plan, _SIGMA_PX)
            score = (shifts.score - shifts.second) * _certainty(shifts.false_match_probability)
            # The largest value of a window without a peak lies at its border.
            off = np.abs(shifts.shift_px - plan.expected_px).max(axis=1)
            better = (score > best) & (off < reach - 1)
            best[better] = score[better]
            displacement[better] = sign * plan.displacement(shifts.shift_px)[better]
    return displacement, best


def _certainty(false_match_probability: Floats) -> Floats:
    """Return 1 for matches that are beyond doubt, 0 for those that chance makes."""
    probability = np.maximum(false_match_probability, 10.0**-_BEYOND_DOUBT)
    return np.asarray(np.maximum(-np.log10(probability), 0.0) / _BEYOND_DOUBT)
