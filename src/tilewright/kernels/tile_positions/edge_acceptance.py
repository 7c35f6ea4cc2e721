"""Which displacements of overlaps are accepted.

Displacements are accepted at a fixed rate of false matches. A false one lies anywhere in the search
window, so agreement is evidence: of a loop of four overlaps that closes, or with the stage model.
The probability of a false match times that of such an agreement is compared with the rate.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tilewright.kernels.backend import Bools, Floats, Ints

#: Probability per overlap of accepting a false displacement.
FALSE_ACCEPTS = 1e-4
#: Overlaps less certain than this close no loop and are never accepted.
_LEAST_CERTAIN = 0.2
#: Part of the overlaps in a loop that closes which hold no common signal, known beforehand.
_ASTRAY = 0.1
#: Loops and the stage are two opportunities to agree by chance.
_OPPORTUNITIES = 2.0
#: Agreement is not counted finer than this, px: half a pixel of the filtered strips is 1 px.
_FINEST_PX = 0.1
#: Accepted overlaps that make a stage model.
_LEAST_FOR_STAGE = 4
#: Farther from the stage's model, in its spreads, nothing is confirmed by it.
_STAGE_REACH = 3.0
#: Without a loop, the rate falls with the distance from the stage's model as a normal density
#: would, down to this part.
_LEAST_RATE = 1e-3


def accept_edges(
    pairs: Ints,
    axis: Ints,
    offset_px: Floats,
    probability: Floats,
    design: Floats,
    prior: Floats,
    max_shift_px: float,
) -> tuple[Bools, Floats]:
    """Accept overlaps whose probability of being false is below ``FALSE_ACCEPTS``.

    Parameters
    ----------
    pairs : ndarray of int, shape (m, 2)
        Tiles a and b.
    axis : ndarray of int, shape (m,)
        1 where b lies to the right of a, 0 where it lies below.
    offset_px : ndarray, shape (m, 2)
        Measured displacement less the stage's.
    probability : ndarray, shape (m,)
        Probability that strips without a common signal correlate so.
    design : ndarray, shape (m, k)
        Differences of the stage model's terms between b and a.
    prior : ndarray, shape (k,)
        Prior spread of the model's coefficients.
    max_shift_px : float
        Half the side of the search window.

    Returns
    -------
    accepted : ndarray of bool, shape (m,)
    posterior : ndarray of float64, shape (m,)
        Probability that the displacement is false, given its agreement with others.
    """
    by_loop = _loop_evidence(pairs, axis, offset_px, probability, max_shift_px)
    posterior = np.minimum(probability, by_loop)
    accepted = _rounded(posterior) <= FALSE_ACCEPTS
    in_loop = _rounded(by_loop) <= FALSE_ACCEPTS
    for _ in range(3):
        if np.count_nonzero(accepted) < _LEAST_FOR_STAGE:
            break
        by_stage, alone = _stage_evidence(
            design, prior, offset_px, accepted, probability, max_shift_px
        )
        posterior = np.where(in_loop, by_loop, np.minimum(probability, by_stage))
        now = in_loop | alone
        if (now == accepted).all():
            break
        accepted = now
    return accepted, np.where(accepted, np.minimum(posterior, 1.0), probability)


def _loop_evidence(
    pairs: Ints, axis: Ints, offset_px: Floats, probability: Floats, max_shift_px: float
) -> Floats:
    """Return the probability (m,) with the agreement of a loop, 1 where there is none."""
    closure = loop_closures(pairs, axis, offset_px, probability <= _LEAST_CERTAIN)
    by_loop = _ASTRAY * probability * _agreement(closure, max_shift_px)
    by_loop[~np.isfinite(closure)] = 1.0
    return by_loop


def _stage_evidence(
    design: Floats,
    prior: Floats,
    offset_px: Floats,
    accepted: Bools,
    probability: Floats,
    max_shift_px: float,
) -> tuple[Floats, Bools]:
    """Return the probability (m,) with the stage's agreement, and which edges need no loop."""
    distance, spread = _from_stage(design, prior, offset_px, accepted)
    by_stage = np.where(
        distance <= _STAGE_REACH * spread, probability * _agreement(distance, max_shift_px), 1.0
    )
    rate = FALSE_ACCEPTS * np.maximum(np.exp(-0.5 * (distance / spread) ** 2), _LEAST_RATE)
    alone = (_rounded(probability) <= _rounded(rate)) | (_rounded(by_stage) <= FALSE_ACCEPTS)
    return by_stage, alone


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
    """Return the probability that a place drawn from the window comes so near."""
    near = np.maximum(distance_px, _FINEST_PX) / max_shift_px
    return np.minimum(_OPPORTUNITIES * near**2, 1.0)


def _rounded(probability: Floats) -> Floats:
    """Round to 2 significant digits, far above the noise of float32."""
    exponent = np.round(np.log10(np.maximum(probability, 1e-30)), 2)
    return np.asarray(10.0**exponent)


class StageFit(NamedTuple):
    """Coefficients (k,), spread of the residuals by their median, share (m,) in its own fit."""

    coefficients: Floats
    spread: float
    leverage: Floats


def stage_fits(design: Floats, prior: Floats, offset: Floats) -> Iterator[StageFit]:
    """Fit the stage model (m, k) to offsets (m, 2) by least absolute residuals, axis by axis.

    Ten rounds of reweighting; ``prior`` (k,) is the spread of each coefficient.
    """
    for values in offset.T:
        weight = np.ones(len(values))
        for _ in range(10):
            normal = (design * weight[:, None]).T @ design + np.diag(1.0 / prior**2)
            inverse = np.linalg.inv(normal)
            coefficients = inverse @ design.T @ (weight * values)
            residual = values - design @ coefficients
            weight = 1.0 / np.maximum(np.abs(residual), 0.1)
        leverage = weight * np.einsum("ij,jk,ik->i", design, inverse, design)
        yield StageFit(coefficients, 1.4826 * float(np.median(np.abs(residual))), leverage)


def _from_stage(
    design: Floats, prior: Floats, offset_px: Floats, accepted: Bools
) -> tuple[Floats, float]:
    """Return each overlap's distance from the stage model without it, and the spread."""
    distance = np.zeros(len(offset_px))
    fits = list(stage_fits(design[accepted], prior, offset_px[accepted]))
    for column, fit in enumerate(fits):
        away = offset_px[:, column] - design @ fit.coefficients
        away[accepted] /= np.maximum(1.0 - fit.leverage, 0.1)
        distance = np.maximum(distance, np.abs(away))
    return distance, max(0.5, *(fit.spread for fit in fits))
