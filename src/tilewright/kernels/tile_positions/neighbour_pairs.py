"""Pairs of tiles that lie side by side, and where the second of each pair lies of the first."""

import math
from collections.abc import Iterable

import numpy as np

from tilewright.kernels.backend import Floats, Ints
from tilewright.kernels.tile_positions.displacements import SIGMAS_PX
from tilewright.kernels.tile_positions.overlap_strips import plan_strips
from tilewright.kernels.tile_positions.strip_correlation import Image, correlate_strips

#: Part of a side over which a displacement is searched about each expected one: a camera turned by
#: 5 degrees moves a neighbour by 0.09.
_REACH = 0.1
#: Overlaps that are tried where the stated one does not match; with the search they cover all from
#: 0 to 0.55.
OVERLAPS = (0.05, 0.15, 0.3, 0.45)
#: Decimal logarithm of the probability of a false match, with its sign turned, that leaves no
#: doubt: the one overlap with tissue of 38 x 192 px has 1.7, what a blank tile matches up to 0.6.
_BEYOND_DOUBT = 2.0
#: NCC above that of the best rival peak, times certainty, from which a match counts.
CLEAR = 0.05


def edge_strength(tiles: Image) -> Floats:
    """Return the spread (n,) of differences between neighbouring pixels, a mark of structure.

    >>> edge_strength(np.zeros((2, 8, 8), np.float32)).tolist()
    [0.0, 0.0]
    """
    difference = tiles[:, 2:, 2:] - tiles[:, :-2, :-2]
    return np.asarray(np.round(difference.std(axis=(1, 2)), 2), np.float64)


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
    tiles: Image,
    pairs: Ints,
    direction: tuple[int, int],
    places: Iterable[tuple[float, float]] | None = None,
) -> tuple[Floats, Floats]:
    """Return the displacement (m, 2) and score (m,) of pairs as if b lay in a direction of a.

    Parameters
    ----------
    tiles : ndarray of float32, shape (n, y, x)
        One plane of each tile, reduced in size at will.
    pairs : ndarray of int64, shape (m, 2)
        Numbers of tiles a and b.
    direction : (int, int)
        Axis of the image, and sign.
    places : iterable of (float, float), optional
        Overlaps, each with how far across b lies, as fractions of a side; by default those of
        :data:`OVERLAPS`, and not across.
    """
    axis, sign = direction
    shape = (int(tiles.shape[1]), int(tiles.shape[2]))
    reach = _REACH * min(shape)
    best = np.zeros(len(pairs))
    displacement = np.zeros((len(pairs), 2))
    for overlap, slant in places or ((overlap, 0.0) for overlap in OVERLAPS):
        advance = np.full(2, slant * shape[1 - axis])
        advance[axis] = shape[axis] * (1.0 - overlap)
        for plan in plan_strips(np.stack([np.zeros(2), advance]), shape, reach):
            window_a, window_b = plan.windows
            for k, (a, b) in enumerate(pairs[:, ::sign].tolist()):
                found = correlate_strips(
                    tiles[a][window_a], tiles[b][window_b], plan.expected_px[0], reach, SIGMAS_PX[0]
                )
                doubt = -math.log10(found.false_match_probability)
                certainty = min(doubt / _BEYOND_DOUBT, 1.0)
                score = (found.score - found.second) * certainty
                if score > best[k]:
                    best[k] = score
                    displacement[k] = sign * plan.displacement(found.shift_px)
    return displacement, best
