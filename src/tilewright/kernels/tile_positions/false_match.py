"""Probability that strips without a common signal correlate as well as two strips do.

The null sample comes from the strips: rolled along each other by more than the search window they
show different specimen of the same texture, noise and size. The tail of the heights of its peaks is
extrapolated to the probability of a false match. Single objects that lie at like places by accident
are not in the null sample and are handled separately. What a camera adds to every tile needs no
guard: the strips of an overlap show different parts of the camera, and of 80 grids that had camera
patterns and dirt alone (1,360 overlaps) none had a false match.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Bools, Floats

#: Heights above this many standard deviations are the tail.
_TAIL = 2.0
#: Weight, in peaks, of the tail that a Gaussian field would have: mean excess 2 of squared
#: standardised heights. Strips of narrow overlaps show 5 to 20 peaks of their own.
_PRIOR_PEAKS = 10.0
#: Length along a strip, in pixels of filtered strips, within which signal counts as one object.
_OBJECT_PX = 16
#: A long edge fills three pieces: the pairings of three objects less those of one of their size.
_LARGE_OBJECT = 6.0
#: A score must exceed all that rolled strips show by this factor.
_ABOVE_ALL = 1.1


class NullSample(NamedTuple):
    """Correlation of two strips at shifts far from the search window.

    Attributes
    ----------
    variance : float
        Mean squared height, 0 where it is unknown.
    peaks : int
        Number of peaks in the tail.
    excess : float
        Sum of their squared heights above the tail's limit.
    highest : float
        Largest height.
    share : float
        Size of the search window over that of the area of these shifts, infinite where there is no
        such area.
    """

    variance: float
    peaks: int
    excess: float
    highest: float
    share: float


def null_sample(height: Floats, peak: Bools, window: int) -> NullSample:
    """Return the null sample of correlation.

    Parameters
    ----------
    height : ndarray of float64, shape (n,)
        NCC at shifts far from the true one, times the root of the part of the strips that is
        shared: fewer pixels correlate more by chance.
    peak : ndarray of bool, shape (n,)
        Whether each is a local maximum.
    window : int
        Number of shifts in the search window.
    """
    if not height.size:
        return NullSample(0.0, 0, 0.0, 0.0, np.inf)
    variance = float(np.mean(height**2))
    limit = _TAIL**2 * variance
    high = height[peak & (height > 0) & (height**2 > limit)]
    excess = float(np.sum(high**2 - limit))
    return NullSample(variance, len(high), excess, float(height.max()), window / height.size)


def false_match_probability(height: float, null: NullSample, objects: float) -> float:
    """Return the probability that a false match reaches a height in the search window.

    The tail of squared heights of peaks is exponential for a Gaussian field and nearly so for
    sparse specimen. Its mean excess is estimated from the peaks and a prior, and the
    predictive tail (a Pareto law) allows for their number. Two single objects of different
    specimen lie within the window of each other with the probability of its share of all shifts,
    which shifts far from it do not show, and a large object counts as two or three; of more
    objects they show m² pairings. So the share to the power m, and m² - 6 from 3 objects on, is the
    least that is reported.

    >>> null = NullSample(variance=0.01, peaks=10, excess=0.2, highest=0.3, share=0.1)
    >>> [round(false_match_probability(height, null, 6), 7) for height in (0.2, 0.5, 0.7)]
    [1.0, 0.0002377, 3e-07]
    """
    limit = _TAIL**2 * null.variance
    # Repetitive specimen has the same height wherever it is rolled to.
    if (
        null.variance <= 0
        or height <= 0
        or height**2 <= max(limit, (_ABOVE_ALL * null.highest) ** 2)
    ):
        return 1.0
    weight = _PRIOR_PEAKS + null.peaks
    mean = (_PRIOR_PEAKS * 2.0 * null.variance + null.excess) / weight
    above = (height**2 - limit) / mean
    expected = null.share * (null.peaks + 1.0) * (1.0 + above / weight) ** -weight
    accident = min(null.share, 1.0) ** max(objects, objects**2 - _LARGE_OBJECT)
    # Never 0, as the table of edges holds logarithms.
    least = float(np.finfo(np.float64).tiny)
    return float(np.clip(max(-np.expm1(-expected), accident), least, 1.0))


def count_objects(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Return at how many places along two filtered strips (y, x) that overlap they are alike.

    Of the products c of pieces of 16 pixels along the first axis (Σ c)² / Σ c² or, if larger, the
    sum of the pieces' own NCC; the smallest of four phases, so that an object on a border of pieces
    counts once.

    >>> a = np.zeros((64, 8), np.float32)
    >>> a[[10, 40]] = 1
    >>> count_objects(a, a), count_objects(a, np.roll(a, 30, 0))
    (2.0, 1.0)
    """
    profiles = [np.einsum("ij,ij->i", p, q, dtype=np.float64) for p, q in ((a, b), (a, a), (b, b))]
    counts = []
    for phase in range(0, _OBJECT_PX, _OBJECT_PX // 4):
        at = np.maximum(np.arange(-phase, len(a), _OBJECT_PX), 0)
        c, *energies = (np.add.reduceat(profile, at) for profile in profiles)
        carried = max(c.sum(), 0.0) ** 2 / max((c**2).sum(), 1e-30)
        alone = c / np.maximum(np.sqrt(np.prod(energies, axis=0)), 1e-12)
        counts.append(max(carried, alone.sum()))
    return float(min(counts))
