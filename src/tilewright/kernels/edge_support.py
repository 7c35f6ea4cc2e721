"""Which measured displacements to believe, at a stated rate of false accepts.

A displacement that chance gave lies anywhere in the search window, so agreement with what is
known besides is evidence: a loop of four overlaps that closes, or the stage's own model. The
probability of chance times that of such an agreement is compared with the rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Probability per overlap of accepting a displacement that chance gave.
FALSE_ACCEPTS = 1e-4
#: Overlaps less certain than this close no loop and are never believed.
_LEAST_CERTAIN = 0.2
#: Part of the overlaps in a loop that closes which hold no common signal, known beforehand.
_ASTRAY = 0.1
#: Loops and the stage are two opportunities to agree by chance.
_OPPORTUNITIES = 2.0
#: Agreement is not counted finer than this, px: half a pixel of the filtered strips is 1 px.
_FINEST_PX = 0.1
#: Believed overlaps that make a stage model.
_LEAST_FOR_STAGE = 4
#: Farther from the stage's model, in its spreads, nothing is confirmed by it.
_STAGE_REACH = 3.0
#: Without a loop, the rate falls with the distance from the stage's model as a normal density
#: would, down to this part.
_LEAST_RATE = 1e-3


@dataclass(frozen=True)
class Support:
    """What m overlaps are worth.

    Attributes
    ----------
    false_chance : ndarray of float64, shape (m,)
        Probability that the displacement is chance's, given its agreement with others.
    accepted : ndarray of bool, shape (m,)
    """

    false_chance: Floats
    accepted: Bools


def believe(
    pairs: Indices,
    axis: Indices,
    offset_px: Floats,
    chance: Floats,
    design: Floats,
    belief: Floats,
    max_shift_px: float,
) -> Support:
    """Accept overlaps whose probability of being false is below ``FALSE_ACCEPTS``.

    Parameters
    ----------
    pairs : ndarray of int, shape (m, 2)
        Tiles a and b.
    axis : ndarray of int, shape (m,)
        1 where b lies to the right of a, 0 where it lies below.
    offset_px : ndarray, shape (m, 2)
        Measured displacement less the stage's.
    chance : ndarray, shape (m,)
        Probability that strips without a common signal correlate so.
    design : ndarray, shape (m, k)
        Differences of the stage model's terms between b and a.
    belief : ndarray, shape (k,)
        Spread of the model's coefficients, known beforehand.
    max_shift_px : float
        Half the side of the search window.
    """
    closure = loop_closures(pairs, axis, offset_px, chance <= _LEAST_CERTAIN)
    looped = _ASTRAY * chance * _agreement(closure, max_shift_px)
    looped[~np.isfinite(closure)] = 1.0
    accepted = _rounded(np.minimum(chance, looped)) <= FALSE_ACCEPTS
    false = np.minimum(chance, looped)
    in_loop = _rounded(looped) <= FALSE_ACCEPTS
    for _ in range(3):
        if np.count_nonzero(accepted) < _LEAST_FOR_STAGE:
            break
        distance, spread = _from_stage(design, belief, offset_px, accepted)
        staged = np.where(
            distance <= _STAGE_REACH * spread, chance * _agreement(distance, max_shift_px), 1.0
        )
        rate = FALSE_ACCEPTS * np.maximum(np.exp(-0.5 * (distance / spread) ** 2), _LEAST_RATE)
        alone = (_rounded(chance) <= _rounded(rate)) | (_rounded(staged) <= FALSE_ACCEPTS)
        false = np.where(in_loop, looped, np.minimum(chance, staged))
        now = in_loop | alone
        if (now == accepted).all():
            break
        accepted = now
    return Support(np.where(accepted, np.minimum(false, 1.0), chance), accepted)


def loop_closures(pairs: Indices, axis: Indices, offset_px: Floats, usable: Bools) -> Floats:
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
        left = offset_px[across] + offset_px[other_down] - offset_px[down] - offset_px[other_across]
        error = float(np.abs(left).max())
        for edge in (across, down, other_down, other_across):
            closure[edge] = min(closure[edge], error)
    return closure


def _agreement(distance_px: Floats, max_shift_px: float) -> Floats:
    """Return the probability that a place drawn from the window comes so near."""
    near = np.maximum(distance_px, _FINEST_PX) / max_shift_px
    return np.minimum(_OPPORTUNITIES * near**2, 1.0)


def _rounded(probability: Floats) -> Floats:
    """Round to 2 significant digits, far above the noise of float32."""
    exponent = np.round(np.log10(np.maximum(probability, 1e-30)), 2)
    return np.asarray(10.0**exponent)


def least_absolute(design: Floats, belief: Floats, values: Floats) -> tuple[Floats, float, Floats]:
    """Fit coefficients by least absolute residuals, by ten rounds of reweighting.

    Parameters
    ----------
    design : ndarray, shape (m, k)
    belief : ndarray, shape (k,)
        How large each coefficient may be.
    values : ndarray, shape (m,)

    Returns
    -------
    coefficients : ndarray, shape (k,)
    spread : float
        Standard deviation of the residuals by their median.
    leverage : ndarray, shape (m,)
        Share of each value in its own fit.
    """
    weight = np.ones(len(values))
    for _ in range(10):
        normal = (design * weight[:, None]).T @ design + np.diag(1.0 / belief**2)
        inverse = np.linalg.inv(normal)
        fitted = inverse @ design.T @ (weight * values)
        left = values - design @ fitted
        weight = 1.0 / np.maximum(np.abs(left), 0.1)
    leverage = weight * np.einsum("ij,jk,ik->i", design, inverse, design)
    return fitted, 1.4826 * float(np.median(np.abs(left))), leverage


def _from_stage(
    design: Floats, belief: Floats, offset_px: Floats, accepted: Bools
) -> tuple[Floats, float]:
    """Return each overlap's distance from the stage model without it, and the model's spread.

    An accepted overlap's own pull is taken out by its leverage.
    """
    distance = np.zeros(len(offset_px))
    spreads = []
    for column in (0, 1):
        values = offset_px[accepted, column]
        fitted, spread, leverage = least_absolute(design[accepted], belief, values)
        spreads.append(spread)
        away = offset_px[:, column] - design @ fitted
        away[accepted] /= np.maximum(1.0 - leverage, 0.1)
        distance = np.maximum(distance, np.abs(away))
    return distance, max(0.5, *spreads)
