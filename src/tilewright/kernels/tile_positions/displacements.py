"""Displacements of overlapping tiles, measured strip by strip."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.kernels.backend import Floats, Ints
from tilewright.kernels.tile_positions.overlap_strips import StripPlan, Strips
from tilewright.kernels.tile_positions.strip_correlation import StripShift, correlate_strips, ncc_at

#: Widths of the LoG tried; finer structure than 1.5 px the half-resolution strips do not hold.
SIGMAS_PX = (1.5, 2.2, 3.3, 5.0)
#: A wider filter is worth its blur while it raises the score to this part of the best one.
#: Bright sets reach it at 1.5 px (error 0.017 px), 60 electrons at 3.3 px (0.06; 0.10 at 1.5).
_ENOUGH = 0.9
#: Filters wider than 2.2 px and this part of the overlap blur its borders into it: at 5 % of
#: 512 px and 60 electrons 3.3 px errs by 0.25 px across overlaps of 22 px, 2.2 px by 0.18.
_WIDEST = 0.1
_PROBES = 8
#: Squared error of a displacement by the flat-field that strips give of themselves, times their
#: pixels: cells are counted. 2 x 2 tiles of 1024 px err by 0.012 px, 5 x 5 of 128 px by 0.02.
_FLAT_PX2 = 30.0


@dataclass(frozen=True)
class Overlaps:
    """Measured edges, of all directions together.

    Attributes
    ----------
    pairs : Ints
        int64 (m, 2).
    displacement_px : float64 (m, 2)
        ``position(b) - position(a)``, (y, x).
    sigma_px : float64 (m, 2)
        Standard error that correlation claims; right up to a common factor.
    score : float64 (m,)
        NCC of the filtered strips.
    false_match_probability : float64 (m,)
        Probability that strips without a common signal show such a score, 1 where the peak lies
        outside the search window.
    """

    pairs: Ints
    displacement_px: Floats
    sigma_px: Floats
    score: Floats
    false_match_probability: Floats


def choose_sigma(
    plans: Sequence[StripPlan], firsts: Sequence[Strips], seconds: Sequence[Strips]
) -> float:
    """Choose the width of the LoG, px, from the most textured overlaps.

    They are matched once with a filter of 2.2 px; the NCC at that shift then grows with sigma while
    noise matters, and the smallest sigma whose median is 0.9 of the best is taken, but for one too
    wide for the overlaps. Where nothing matches, 2.2 px.

    Parameters
    ----------
    plans : sequence of StripPlan
        The overlaps, a plan for each direction.
    firsts, seconds : sequence of Strips, each (m, y, x)
        Strips of tiles a and b of every plan, hot pixels repaired.

    Examples
    --------
    >>> from scipy import ndimage
    >>> from tilewright.kernels.tile_positions.overlap_strips import plan_strips
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(128, 228)), 2)
    >>> plans = plan_strips(np.array([[0.0, 0.0], [0.0, 100.0]]), (128, 128))
    >>> (_, a), (_, b), (_, width) = plans[0].origin_a, plans[0].origin_b, plans[0].shape
    >>> firsts, seconds = ([scene[None, :, x : x + width]] for x in (a, 100 + b))
    >>> choose_sigma(plans, firsts, seconds)
    1.5
    """
    scores = []
    for plan, a, b in zip(plans, firsts, seconds, strict=True):
        spread = [min(s[i][::4, ::4].std() for s in (a, b)) for i in range(len(plan.pairs))]
        for i in np.argsort(-np.round(spread, 1), kind="stable")[:_PROBES].tolist():
            guess = _correlate(plan, a, b, SIGMAS_PX[1], i)
            if guess.score > 1.5 * guess.second:
                scores.append([ncc_at(a[i], b[i], guess.shift_px, width) for width in SIGMAS_PX])
    if not scores:
        return SIGMAS_PX[1]
    medians = np.round(np.median(scores, axis=0), 3)
    best = SIGMAS_PX[int(np.argmax(medians >= _ENOUGH * medians.max()))]
    shared = min(np.median((plan.shape - np.abs(plan.expected_px)).min(axis=1)) for plan in plans)
    return min(
        best, max(width for width in SIGMAS_PX if width <= max(SIGMAS_PX[1], _WIDEST * shared))
    )


def measure_overlaps(
    plans: Sequence[StripPlan],
    firsts: Sequence[Strips],
    seconds: Sequence[Strips],
    sigma_px: float,
    workers: int = 1,
    progress: Callable[[int], object] = int,
) -> Overlaps:
    """Correlate all strips, with the probability of a false match.

    Parameters
    ----------
    plans : sequence of StripPlan
        The overlaps, a plan for each direction.
    firsts, seconds : sequence of Strips, each (m, y, x)
        Strips of tiles a and b of every plan, hot pixels repaired.
    sigma_px : float
        Width of the LoG.
    workers : int
        Threads that share the strips.
    progress : callable
        Called with 1 for each overlap that is done.

    Examples
    --------
    >>> from scipy import ndimage
    >>> from tilewright.kernels.tile_positions.overlap_strips import plan_strips
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(128, 228)), 2)
    >>> plans = plan_strips(np.array([[0.0, 0.0], [0.0, 100.0]]), (128, 128))
    >>> (_, a), (_, b), (_, width) = plans[0].origin_a, plans[0].origin_b, plans[0].shape
    >>> firsts, seconds = ([scene[None, :, x : x + width]] for x in (a, 100 + b))
    >>> overlaps = measure_overlaps(plans, firsts, seconds, 1.5)
    >>> np.allclose(overlaps.displacement_px, [[0.0, 100.0]], atol=0.1)
    True
    """
    parts = []
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for plan, a, b in zip(plans, firsts, seconds, strict=True):
            shifts = []
            for shift in pool.map(
                partial(_correlate, plan, a, b, sigma_px), range(len(plan.pairs))
            ):
                shifts.append(shift)
                progress(1)
            parts.append(_overlaps(plan, shifts, sigma_px))
    none = Overlaps(np.zeros((0, 2), np.int64), *np.zeros((2, 0, 2)), *np.zeros((2, 0)))
    columns = zip(*(vars(part).values() for part in [none, *parts]), strict=True)
    return Overlaps(*(np.concatenate(column) for column in columns))


def _correlate(plan: StripPlan, a: Strips, b: Strips, sigma_px: float, i: int) -> StripShift:
    return correlate_strips(a[i], b[i], plan.expected_px[i], plan.max_shift_px, sigma_px)


def _overlaps(plan: StripPlan, shifts: Sequence[StripShift], filter_px: float) -> Overlaps:
    """Return the displacements of one direction with their standard errors."""
    shift, score, _, curvature, pixels, chance = map(np.array, zip(*shifts, strict=True))
    # Across a narrow strip its taper bends the correlation too, and shows no specimen.
    across = int(plan.shape[1] < plan.shape[0])
    bend = curvature.copy()
    bend[:, across] = curvature.min(axis=1)
    rho = np.clip(score, 1e-3, 0.999)[:, None]
    # LoG-filtered white noise has one independent value per 2.36 sigma² pixels.
    independent = pixels[:, None] / (2.36 * filter_px**2)
    information = np.maximum(bend, 1e-9) / rho * independent * rho**2 / (1.0 - rho**2)
    flat_variance = _FLAT_PX2 / (len(plan.pairs) * math.prod(plan.shape))
    return Overlaps(
        plan.pairs,
        plan.displacement(shift),
        np.sqrt(1.0 / np.maximum(information, 1e-9) + flat_variance),
        score,
        np.where((curvature > 0).all(axis=1), chance, 1.0),
    )
