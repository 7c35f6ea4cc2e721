"""Probability that strips without a common signal correlate as well as two strips do.

The null sample comes from the strips: rolled along each other by more than the search window they
show different specimen of the same texture, noise and size. The tail of the heights of its peaks is
extrapolated to the probability of a false match. Single objects that lie at like places by accident
are not in the null sample and are handled separately. What a camera adds to every tile needs no
guard: the strips of an overlap show different parts of the camera, and of 80 grids that had camera
patterns and dirt alone (1,360 overlaps) none had a false match.
"""

import math
from typing import NamedTuple

import numpy as np

from tilewright.kernels.backend import Array, Backend, Floats, Ints
from tilewright.kernels.tile_positions.correlation_peak import MIN_OVERLAP_PX, overlap

#: Heights above this many standard deviations are the tail.
_TAIL = 2.0
#: Weight, in peaks, of the tail that a Gaussian field would have: mean excess 2 of squared
#: standardised heights. Strips of narrow overlaps show 5 to 20 peaks of their own.
_PRIOR_PEAKS = 10.0
#: Length along a strip, in pixels of filtered strips, within which signal counts as one object.
_OBJECT_PX = 16
#: A long edge fills three pieces: the pairings of three objects less those of one of their size.
_LARGE_OBJECT = 6.0
#: Least NCC of a piece of two strips that are alike there, and the least in deviations of noise.
_ALIKE, _ALIKE_DEVIATIONS = 0.5, 4.5
#: Peaks between the pixels and the climb out of the window add up to 1.7 times as many; rounded up.
_CAUTION = 2.0
#: A score must exceed all that rolled strips show by this factor.
_ABOVE_ALL = 1.1
#: Smallest probability reported; smaller ones are beyond the model.
LEAST = 1e-12


class NullSample(NamedTuple):
    """Correlation of n pairs at shifts far from the search window; each float64 (n,).

    ``variance``: mean squared NCC, 0 where it is unknown. ``peaks``: number of peaks in the
    tail; ``excess``: sum of their squared heights above the tail's limit. ``highest``: highest
    NCC. ``share``: size of the search window over that of the area of these shifts, infinite
    where there is no such area.
    """

    variance: Floats
    peaks: Floats
    excess: Floats
    highest: Floats
    share: Floats


class MatchEvidence(NamedTuple):
    """Where the correlation of n pairs at their best shift comes from; each float64 (n,).

    ``objects``: number of places along the strip that carry it. ``part``: part of the strip's
    width that overlaps.
    """

    objects: Floats
    part: Floats


def along(shape: tuple[int, ...]) -> int:
    """Return the longer axis of a strip (y, x), the first of equal ones."""
    return 0 if shape[0] >= shape[1] else 1


def null_sample(
    backend: Backend,
    surface: Array,
    a: Array,
    b: Array,
    expected: Floats,
    reach: float,
    sigma: float,
) -> NullSample:
    """Return the null sample: correlation of strips that are rolled along each other.

    Parameters
    ----------
    surface : array, shape (n, rows, cols)
        Correlation of the strips at every shift, rolled along their longer axis and padded by
        zeros along the other.
    a, b : array, shape (n, y, x)
        Filtered strips.
    expected : ndarray, shape (n, 2)
        Centre of the search window.
    reach : float
        Half its side.
    sigma : float
        Width of the filter; peaks of the true shift reach 4 sigma.
    """
    xp = backend.xp
    long_axis = along(a.shape[1:])
    if long_axis == 1:
        surface, a, b = (xp.swapaxes(v, 1, 2) for v in (surface, a, b))
        expected = expected[:, ::-1]
    count, length, wide = surface.shape
    width = a.shape[2]
    centre = np.rint(expected).astype(np.int64)
    half = math.ceil(reach)
    across = centre[:, 1, None] + np.arange(-half, half + 1)
    usable = np.abs(across) <= width - MIN_OVERLAP_PX
    # Few shared columns correlate by chance more: heights count per root of their number.
    norm = _norms(backend, a, b, np.clip(across, 1 - width, width - 1))
    norm = norm / backend.asarray(np.sqrt(1.0 - np.minimum(np.abs(across) / width, 0.999)))
    pair = backend.asarray(np.arange(count), np.int64)[:, None]
    columns = backend.asarray(across % wide, np.int64)
    ncc = xp.swapaxes(surface, 1, 2)[pair, columns] / norm[:, :, None]
    away = np.abs((np.arange(length) - expected[:, :1] + length / 2) % length - length / 2)
    far = away > reach + 4.0 * sigma
    null = backend.asarray(usable[:, :, None] & far[:, None, :], bool)
    count_null = (usable.sum(axis=1) * far.sum(axis=1)).astype(np.float64)
    window = usable.sum(axis=1) * (away <= reach).sum(axis=1)
    return _peak_statistics(backend, ncc, null, count_null, window)


def _peak_statistics(
    backend: Backend, ncc: Array, null: Array, count: Floats, window: Ints
) -> NullSample:
    """Return the statistics of ``ncc`` (n, across, along) in ``null``, of ``count`` shifts."""
    xp = backend.xp
    variance = np.asarray(backend.to_numpy(xp.where(null, ncc * ncc, 0).sum(axis=(1, 2))), float)
    variance = variance / np.maximum(count, 1.0)
    limit = backend.asarray(_TAIL * np.sqrt(variance))[:, None, None]
    high = null & (ncc >= _highest_around(backend, ncc)) & (ncc > limit)
    excess = xp.where(high, ncc * ncc - limit * limit, 0).sum(axis=(1, 2))
    return NullSample(
        variance,
        np.asarray(backend.to_numpy(high.sum(axis=(1, 2))), np.float64),
        np.asarray(backend.to_numpy(excess), np.float64),
        np.asarray(backend.to_numpy(xp.where(null, ncc, 0).max(axis=(1, 2))), np.float64),
        np.where(count > 0, window / np.maximum(count, 1.0), np.inf),
    )


def _norms(backend: Backend, a: Array, b: Array, across: Ints) -> Array:
    """Return the root of the two energies (n, k) that strips share at shifts across them."""
    xp = backend.xp
    width = a.shape[2]
    low, high = np.maximum(0, across), np.minimum(width, width + across)
    pair = backend.asarray(np.arange(len(across)), np.int64)[:, None]
    product = 1.0
    for strips, start, stop in ((a, low, high), (b, low - across, high - across)):
        energy = xp.cumsum(xp.einsum("nij,nij->nj", strips, strips), axis=1)
        energy = xp.concatenate((xp.zeros((len(across), 1), np.float32), energy), axis=1)
        ends = [backend.asarray(edge, np.int64) for edge in (start, stop)]
        product = product * xp.maximum(energy[pair, ends[1]] - energy[pair, ends[0]], 0.0)
    return xp.sqrt(product) + 1e-12


def _highest_around(backend: Backend, ncc: Array) -> Array:
    """Return the maximum of the 3 × 3 neighbours of (n, across, along), rolled along."""
    xp = backend.xp
    high = xp.maximum(xp.maximum(ncc, xp.roll(ncc, 1, 2)), xp.roll(ncc, -1, 2))
    out = high.copy()
    out[:, 1:] = xp.maximum(out[:, 1:], high[:, :-1])
    out[:, :-1] = xp.maximum(out[:, :-1], high[:, 1:])
    return out


def match_evidence(
    backend: Backend, a: Array, b: Array, shift: Ints, sigma: float
) -> MatchEvidence:
    """Find where along filtered strips (n, y, x) their correlation at ``shift`` comes from.

    Parameters
    ----------
    shift : ndarray of int64, shape (n, 2)
        ``a[p + shift]`` lies on ``b[p]``.
    sigma : float
        Width of the filter.
    """
    xp = backend.xp
    count, height, width = a.shape
    axis = along((height, width))
    short = (height, width)[1 - axis]
    profiles = xp.zeros((count, 3, (height, width)[axis]), np.float32)
    for pair, (y, x) in enumerate(shift.tolist()):
        where = overlap((height, width), (y, x))
        if where is None:
            continue
        part_a, part_b = a[pair, where[0], where[1]], b[pair, where[2], where[3]]
        for row, (left, right) in enumerate(((part_a, part_b), (part_a, part_a), (part_b, part_b))):
            product = (left * right).sum(axis=1 - axis)
            profiles[pair, row, : len(product)] = product
    profile = np.asarray(backend.to_numpy(profiles), np.float64)
    part = 1.0 - np.minimum(np.abs(shift[:, 1 - axis]) / short, 1.0)
    # LoG-filtered white noise has one independent value per 2.36 sigma² pixels.
    noise = np.sqrt(2.36 * sigma**2 / np.maximum(_OBJECT_PX * short * part, 1.0))
    alike = np.maximum(_ALIKE, _ALIKE_DEVIATIONS * noise)
    objects = np.array([_objects(rows, limit) for rows, limit in zip(profile, alike, strict=True)])
    return MatchEvidence(objects, part)


def _objects(profiles: Floats, alike: float) -> float:
    """Return at how many places along a strip its sides are alike, by ``profiles`` (3, length)."""
    # Sums across the strip of the product of both sides, and of the square of each. Of pieces of
    # 16 pixels: the number whose own NCC exceeds ``alike`` or, if larger, (Σ c)² / Σ c² of their
    # products; the smallest of four phases, so that an object on a border of pieces counts once.
    counts = []
    for start in range(0, _OBJECT_PX, _OBJECT_PX // 4):
        c, e, f = (_pieces(row, start) for row in profiles)
        square = float((c**2).sum())
        carried = float(max(c.sum(), 0.0)) ** 2 / square if square > 0 else 0.0
        enough = e * f > 0
        alone = np.where(enough, c / np.sqrt(np.where(enough, e * f, 1.0)), 0.0)
        counts.append(max(carried, float(np.count_nonzero(np.round(alone, 3) > alike))))
    return min(counts)


def _pieces(profile: Floats, start: int) -> Floats:
    """Sum a profile over pieces of 16 pixels, the first one of ``start`` or 16 pixels."""
    padded = np.concatenate([np.zeros((_OBJECT_PX - start) % _OBJECT_PX), profile])
    padded = np.concatenate([padded, np.zeros(-len(padded) % _OBJECT_PX)])
    return np.asarray(padded.reshape(-1, _OBJECT_PX).sum(axis=1))


def false_match_probability(score: Floats, null: NullSample, evidence: MatchEvidence) -> Floats:
    """Return the probability (n,) that a false match reaches a score in the search window.

    The tail of squared heights of peaks is exponential for a Gaussian field and nearly so for
    sparse specimen. Its mean excess is estimated from the peaks and a prior, and the
    predictive tail (a Pareto law) allows for their number. Two single
    objects of different specimen lie within the window of each other with the probability of
    its share of all shifts. Rolled strips do not show that, and a large object looks like two
    or three; of more objects they show m² pairings. So the share to the power m, and m² - 6 from
    3 objects on, is the least that is reported.
    """
    limit = _TAIL**2 * null.variance
    weight = _PRIOR_PEAKS + null.peaks
    mean = (_PRIOR_PEAKS * 2.0 * null.variance + null.excess) / weight
    net = score**2 * evidence.part
    above = np.maximum(net - limit, 0.0) / np.maximum(mean, 1e-30)
    expected = _CAUTION * null.share * (null.peaks + 1.0) * (1.0 + above / weight) ** -weight
    probability = -np.expm1(-np.minimum(expected, 50.0))
    # Repetitive specimen has the same height wherever it is rolled to.
    repeated = net <= (_ABOVE_ALL * null.highest) ** 2
    unknown = (null.variance <= 0) | ~np.isfinite(null.share) | (net <= limit) | repeated
    alike = np.maximum(evidence.objects, evidence.objects**2 - _LARGE_OBJECT)
    accident = np.minimum(null.share, 1.0) ** alike
    return np.where(unknown, 1.0, np.clip(np.maximum(probability, accident), LEAST, 1.0))
