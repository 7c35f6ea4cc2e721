"""The flat-field and its error from overlaps, the tiles' mean, and how smooth flats are.

Bayesian linear regression whose priors are weighted by the evidence (MacKay, "Bayesian
interpolation", Neural Computation 4, 1992). Twenty priors say how fast the coefficients of the
log flat-field fall with their degree; each is taken alone and with structure in the interior
that overlaps do not see. All are fitted, and weighted by how well they predict the data. Where
the data leave the interior open the priors disagree, and their spread is in the error. The
camera offset is one more unknown of the same regression.

Tissue has no preferred place in a tile, so the corrected mean of many tiles is even. How far
it strays by chance is seen in the scatter among tiles: much for nine tiles of single cells,
little for a hundred that tissue fills. Overlaps see borders; the mean sees the interior.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import compress

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.linalg import solve_triangular

from tilewright.kernels.backend import Floats, Ints
from tilewright.kernels.flat_basis import MAX_ORDER, degrees, design_grid, flat_field, log_flat
from tilewright.kernels.overlap_cells import OverlapCells
from tilewright.kernels.overlap_photometry import (
    FOLDS,
    Differences,
    Knowledge,
    differences,
    knowledge_by_fold,
    relative_difference,
)

#: Standard deviation of coefficients of degree 1 and 2, which every flat-field has: a loss of
#: two thirds of the light in the corners is 0.3.
_LOW = 0.3
#: Standard deviation of degree 3, and by what factor it falls with each further degree.
_SIZES = (0.003, 0.01, 0.03, 0.1)
_FALLS = (0.3, 0.5, 0.7, 0.9, 1.0)
#: Relative rms of structure that ends before the overlaps; 0 is none.
_INTERIORS = (0.0, 0.05, 0.15, 0.5)
#: Odds of such structure before the tiles are seen, as logarithms. 1 : 10 000 where it is drawn
#: into the flat-field: with equal odds the chance of 100 tiles of syn10 was (0.76 % instead of
#: 0.55 %). 10 : 1 where the error is told: on smooth flats the evidence is over 100 000 : 1
#: against it, and with equal odds two of three rings in nine tiles are not told.
_DRAWN_LOG_ODDS = -9.2
_FEARED_LOG_ODDS = 2.3
#: The mean of fewer tiles is specimen, of which structure is not drawn, and not told. Dust and
#: six tiles of the phantom had 6 to 9 % of error drawn for odds of a million, 0.9 % without.
_LEAST_TO_DRAW, _LEAST_TO_FEAR = 16, 9
_NEVER = -1e6
_ITERATIONS = 8
#: Standard deviation of an offset that is given.
_GIVEN_COUNTS = 1e-3
#: Priors with a smaller share change nothing.
_NEGLIGIBLE = 1e-4
#: Share of even means of which one degree strays beyond chance.
_FALSE_ALARM = 1e-3


@dataclass(frozen=True)
class Posterior:
    """Mean and covariance of coefficients and offset.

    ``share`` is the weight of each prior in the mean, ``feared`` in the covariance about it.
    """

    mean: Floats
    covariance: Floats
    share: Floats
    feared: Floats
    priors: list[_Prior]

    @property
    def fall(self) -> float:
        """By what factor coefficients fall with their degree, on average."""
        return float(self.share @ np.array([prior.fall for prior in self.priors]))

    @property
    def interior(self) -> float:
        """Probability that there is structure which the overlaps do not see."""
        return float(self.feared @ np.array([prior.has_interior for prior in self.priors]))


@dataclass(frozen=True)
class FlatFit:
    """Flat-field with its error.

    Attributes
    ----------
    posterior : Posterior
        Coefficients of the log flat-field, then the offset.
    order : int
        Largest total degree allowed.
    found : Differences
        Overlap cells under this flat-field.
    held_out : float
        Weighted rms relative difference of overlaps held out of the fit.
    unmodelled : float
        Relative rms of structure that the fit leaves in the tiles' mean, or cannot follow: beyond
        the largest degree it is taken to be as much as in the last four.
    """

    posterior: Posterior
    order: int
    found: Differences
    held_out: float
    unmodelled: float

    @property
    def coefficient(self) -> Floats:
        """Coefficients of the log flat-field."""
        return self.posterior.mean[:-1]

    @property
    def offset_counts(self) -> float:
        """Camera offset."""
        return float(self.posterior.mean[-1])

    @property
    def offset_error_counts(self) -> float:
        """Standard error of the camera offset."""
        return float(np.sqrt(self.posterior.covariance[-1, -1]))

    @property
    def error(self) -> float:
        """Expected relative rms error of the flat-field over the tile."""
        covariance = float(np.trace(self.posterior.covariance[:-1, :-1]))
        return float(np.sqrt(covariance + self.unmodelled**2))

    def flat(self, shape_px: tuple[int, int]) -> NDArray[np.float32]:
        """Return the flat-field of mean 1 at pixel centres, float32 (y, x)."""
        return flat_field(self.coefficient, shape_px)


def fit_flat(
    cells: OverlapCells,
    images: Floats,
    offset_counts: float,
    offset_error_counts: float,
    *,
    order: int | None,
    seed: int,
) -> FlatFit:
    """Fit the log flat-field and the camera offset.

    Parameters
    ----------
    cells : OverlapCells
        Raw counts, at least one cell.
    images : ndarray of float64, shape (n, y, x)
        Tiles without saturated pixels, in blocks, planes averaged; n may be 0.
    offset_counts, offset_error_counts : float
        What is known of the camera offset, as mean and standard deviation; 0 fixes it.
    order : int or None
        Largest total degree, 1 to 14; None is 14.
    seed : int
        Seed of the split of edges into held-out folds.

    Returns
    -------
    FlatFit

    Raises
    ------
    ValueError
        ``order`` is not 1 to 14.
    """
    order = MAX_ORDER if order is None else order
    if not 1 <= order <= MAX_ORDER:
        raise ValueError(f"illumination order is {order}; give 1 to {MAX_ORDER}, or null to choose")
    offset_error = max(offset_error_counts, _GIVEN_COUNTS)
    mean = np.append(np.zeros(len(degrees(order))), offset_counts)
    highest = max(offset_counts + 2.0 * offset_error_counts, 0.0)
    kept = np.ones(0, dtype=np.bool_)
    for iteration in range(_ITERATIONS):
        found = differences(cells, mean[:-1], mean[-1], robust=iteration > 0)
        parts, fold = knowledge_by_fold(found, mean[:-1], mean[-1], order, seed)
        tiles, _ = _tile_mean(images, mean, order)
        overlaps = reduce(operator.add, parts)
        priors = _priors(order, offset_counts, offset_error, overlaps)
        # All priors when the flat-field is first known roughly, and in the end.
        if 1 < iteration < _ITERATIONS - 1:
            priors = list(compress(priors, kept))
        elif iteration == 0:
            priors = priors[: len(_INTERIORS) * len(_SIZES)]
        posterior = _posterior(overlaps + tiles, priors, len(images))
        if iteration in (1, _ITERATIONS - 1):
            kept = np.maximum(posterior.share, posterior.feared) > _NEGLIGIBLE
        mean = posterior.mean.copy()
        mean[-1] = np.clip(mean[-1], 0.0, highest)
    posterior = replace(posterior, mean=mean)
    found = differences(cells, mean[:-1], mean[-1], robust=True)
    likely = list(compress(priors, kept))
    held_out = found.rms(_held_out(found, parts, fold, tiles, likely, len(images)))
    return FlatFit(posterior, order, found, held_out, _unmodelled(images, mean, order))


def _unmodelled(images: Floats, mean: Floats, order: int) -> float:
    degree = degrees(order).sum(axis=1)
    tail = float((mean[:-1][degree >= max(order - 3, 5)] ** 2).sum())
    _, excess = _tile_mean(images, mean, order)
    return float(np.hypot(excess, np.sqrt(tail)))


@dataclass(frozen=True)
class _Prior:
    """A Gaussian about an even flat-field: variances of smooth coefficients, and an interior."""

    variance: Floats
    interior: Floats | float
    offset_counts: float
    offset_error_counts: float
    fall: float
    has_interior: bool

    def factor(self) -> Floats:
        """Return the lower triangle whose product with its transpose is the covariance."""
        columns = len(self.variance)
        factor = np.zeros((columns + 1, columns + 1))
        if isinstance(self.interior, float):
            factor[:-1, :-1] = np.diag(np.sqrt(self.variance))
        else:
            factor[:-1, :-1] = np.linalg.cholesky(np.diag(self.variance) + self.interior)
        factor[-1, -1] = self.offset_error_counts
        return factor


def _priors(
    order: int, offset_counts: float, offset_error_counts: float, overlaps: Knowledge
) -> list[_Prior]:
    degree = degrees(order).sum(axis=1)
    unseen = [_unseen(overlaps, size) if size else 0.0 for size in _INTERIORS]
    return [
        _Prior(
            np.where(degree <= 2, _LOW, size * fall ** (degree - 3.0)) ** 2 + 1e-12,
            covariance,
            offset_counts,
            offset_error_counts,
            fall,
            interior > 0,
        )
        for fall in _FALLS
        for size in _SIZES
        for interior, covariance in zip(_INTERIORS, unseen, strict=True)
    ]


def _unseen(overlaps: Knowledge, size: float) -> Floats:
    """Covariance of structure of rms ``size`` of which the overlaps see no more than their noise.

    A g-prior (Zellner 1986): it knows where the overlaps lie and how noisy they are, not what
    they show.
    """
    columns = len(overlaps.vector) - 1
    precision = np.eye(columns) * (columns / size**2) + overlaps.matrix[:-1, :-1]
    return np.asarray(np.linalg.inv(precision), dtype=np.float64)


def _posterior(data: Knowledge, priors: list[_Prior], count: int) -> Posterior:
    """Mix the posteriors of all priors, each weighted by its evidence on ``count`` tiles."""
    logs, means, roots = [], [], []
    for prior in priors:
        factor = prior.factor()
        centre = np.zeros(len(data.vector))
        centre[-1] = prior.offset_counts
        vector = factor.T @ (data.vector - data.matrix @ centre)
        lower = np.linalg.cholesky(np.eye(len(vector)) + factor.T @ data.matrix @ factor)
        root = solve_triangular(lower, factor.T, lower=True)
        whitened = solve_triangular(lower, vector, lower=True)
        log_determinant = 2.0 * float(np.log(np.diag(lower)).sum())
        logs.append(0.5 * (float(whitened @ whitened) - log_determinant))
        means.append(centre + root.T @ whitened)
        roots.append(root)
    interior = np.array([prior.has_interior for prior in priors])
    drawn = _DRAWN_LOG_ODDS if count >= _LEAST_TO_DRAW else _NEVER
    share = _shares(np.array(logs) + drawn * interior)
    told = _FEARED_LOG_ODDS if count >= _LEAST_TO_FEAR else _NEVER
    feared = _shares(np.array(logs) + told * interior)
    mean: Floats = share @ np.array(means)
    covariance: Floats = np.zeros_like(data.matrix, dtype=np.float64)
    for weight, one, root in zip(feared, means, roots, strict=True):
        if weight > _NEGLIGIBLE:
            apart = np.outer(one - mean, one - mean)
            covariance = np.asarray(covariance + weight * (root.T @ root + apart))
    return Posterior(mean, covariance, share, feared, priors)


def _shares(log_weight: Floats) -> Floats:
    # Rounded far above the arithmetic's noise.
    share = np.exp(np.round(log_weight - log_weight.max(), 3))
    return np.asarray(share / share.sum())


def _held_out(
    found: Differences,
    parts: list[Knowledge],
    fold: Ints,
    tiles: Knowledge,
    priors: list[_Prior],
    count: int,
) -> Floats:
    """Relative difference of each cell under a fit without its fold of edges."""
    relative = np.zeros(len(fold))
    for k in range(FOLDS):
        inside = np.flatnonzero(fold == k)
        if not len(inside):
            continue
        rest = [part for j, part in enumerate(parts) if j != k]
        mean = _posterior(reduce(operator.add, rest) + tiles, priors, count).mean
        cells = found.cells.take(inside)
        flat = [np.exp(log_flat(mean[:-1], p)) for p in (cells.place_first, cells.place_second)]
        relative[inside] = relative_difference(cells, flat[0], flat[1], mean[-1])
    return relative


def _tile_mean(images: Floats, mean: Floats, order: int) -> tuple[Knowledge, float]:
    """Compare the mean of all tiles with an even one.

    Parameters
    ----------
    images : ndarray of float64, shape (n, y, x)
        Counts of each tile in blocks, planes averaged, none saturated.
    mean : ndarray of float64, shape (k + 1,)
        Log flat-field about which the tiles' mean is linearised, then the counts without light.
    order : int
        Largest total degree.

    Returns
    -------
    knowledge : Knowledge
        What it tells about flat-field and offset; nothing of fewer than two tiles. The error of
        each coefficient is the scatter among tiles, pooled over the coefficients of one total
        degree, which tissue without a preferred direction fills alike.
    excess : float
        Relative rms of what is uneven in it beyond chance: structure that the flat-field lacks.
    """
    shape, columns, n = (images.shape[1], images.shape[2]), len(mean) - 1, len(images)
    nothing = Knowledge(np.zeros((columns + 1, columns + 1)), np.zeros(columns + 1)), 0.0
    if n < 2:
        return nothing
    # Tiles of pure noise may lead anywhere, but not to a division by zero.
    flat = np.maximum(flat_field(mean[:-1], shape).astype(np.float64), 1e-6).ravel()
    even = (images - float(mean[-1])).reshape(n, -1) / flat
    level = even.mean(axis=1)
    typical = float(level.mean())
    if typical <= 0:
        return nothing
    # A tile ten times as bright as the mean counts twice as much as one of the mean, not ten
    # times; one that is nearly empty, whose shape depends on the offset, hardly at all.
    weight = 1.0 / (np.maximum(level, 0.0) + typical)
    total = float((weight * level).sum())
    average = weight @ even / total
    design = design_grid(shape, order)
    design = (design - design.mean(axis=0)) / design.shape[0]
    uneven = average @ design
    apart = weight[:, None] * (even - level[:, None] * average) @ design * (n / total)
    degree = degrees(order).sum(axis=1)
    variance = np.bincount(degree, (apart**2).sum(axis=0))[1:] / (n * (n - 1))
    members = np.bincount(degree)[1:]
    precision = 1.0 / np.maximum((variance / members)[degree - 1], 1e-10)
    # One count more of offset: each tile loses 1 / flat.
    by_offset = (1.0 / flat) @ design * (float(weight.sum()) / total)
    rows = np.concatenate([np.eye(columns), by_offset[:, None]], axis=1)
    matrix = rows.T @ (precision[:, None] * rows)
    vector = rows.T @ (precision * uneven) + matrix @ mean
    chance = variance * special.fdtri(members, members * (n - 1), 1 - _FALSE_ALARM)
    excess = np.maximum(np.bincount(degree, uneven**2)[1:] - chance, 0.0).sum()
    return Knowledge(matrix, vector), float(np.sqrt(excess))
