"""Which displacements of overlaps are accepted.

A displacement is accepted where the probability that it is false is below one limit. A false one
lies anywhere in the search window, so a loop of four overlaps that closes is evidence: the
probability is multiplied by that of such an agreement.
"""

import numpy as np

from tilewright.kernels.backend import Bools, Floats, Ints

#: Overlaps less certain than this close no loop and are never accepted.
_LEAST_CERTAIN = 0.2
#: Part of the overlaps in a loop that closes which hold no common signal, known beforehand.
_ASTRAY = 0.1


def accept_edges(
    pairs: Ints,
    axis: Ints,
    offset_px: Floats,
    probability: Floats,
    max_shift_px: float,
    limit: float,
) -> tuple[Bools, Floats]:
    """Accept overlaps whose probability of being false is at most ``limit``.

    Parameters
    ----------
    pairs : ndarray of int, shape (m, 2)
        Tiles a and b.
    axis : ndarray of int, shape (m,)
        1 where b lies to the right of a, 0 where it lies below.
    offset_px : ndarray, shape (m, 2)
        Measured displacement less the stage's, (y, x).
    probability : ndarray, shape (m,)
        Probability that strips without a common signal correlate so.
    max_shift_px : float
        Half the side of the search window.
    limit : float
        Probability of accepting a false displacement.

    Returns
    -------
    accepted : ndarray of bool, shape (m,)
    posterior : ndarray of float64, shape (m,)
        Probability that the displacement is false, given that a loop of overlaps closes.
    """
    closure = loop_closures(pairs, axis, offset_px, probability <= _LEAST_CERTAIN)
    by_loop = _ASTRAY * probability * _agreement(closure, max_shift_px)
    by_loop[~np.isfinite(closure)] = 1.0
    posterior = np.minimum(probability, by_loop)
    accepted = _rounded(posterior) <= limit
    return accepted, np.where(accepted, posterior, probability)


def loop_closures(pairs: Ints, axis: Ints, offset_px: Floats, usable: Bools) -> Floats:
    """Return by how much the best loop of four usable overlaps fails to close (m,), px.

    The larger of the two axes; infinite where an overlap is in no such loop.
    """
    right: dict[int, int] = {}
    below: dict[int, int] = {}
    for edge in np.flatnonzero(usable).tolist():
        (right if axis[edge] == 1 else below)[int(pairs[edge, 0])] = edge
    closure = np.full(len(pairs), np.inf)
    for tile, across in right.items():
        down = below.get(tile)
        if down is None:
            continue
        other_down = below.get(int(pairs[across, 1]))
        other_across = right.get(int(pairs[down, 1]))
        if other_down is None or other_across is None:
            continue
        if pairs[other_down, 1] != pairs[other_across, 1]:
            continue
        gap = offset_px[across] + offset_px[other_down] - offset_px[down] - offset_px[other_across]
        error = float(np.abs(gap).max())
        for edge in (across, down, other_down, other_across):
            closure[edge] = min(closure[edge], error)
    return closure


def _agreement(distance_px: Floats, max_shift_px: float) -> Floats:
    """Return the probability that a place drawn from the window comes so near, in two loops."""
    return np.minimum(2.0 * (distance_px / max_shift_px) ** 2, 1.0)


def _rounded(probability: Floats) -> Floats:
    """Round to 2 significant digits, far above the noise of float32."""
    exponent = np.round(np.log10(np.maximum(probability, 1e-30)), 2)
    return np.asarray(10.0**exponent)
