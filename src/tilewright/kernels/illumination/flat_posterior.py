"""The flat-field and its error from overlaps, the tiles' mean, and how smooth flats are.

Bayesian linear regression whose priors are weighted by the evidence (MacKay, "Bayesian
interpolation", Neural Computation 4, 1992). Twenty priors say how fast the coefficients of the
log flat-field fall with their degree; each is taken alone and with structure in the interior
that overlaps do not see. All are fitted, and weighted by how well they predict the data. Where
the data leave the interior open the priors disagree, and their spread is in the error. The
camera offset is one more unknown of the same regression.

Tissue has no preferred place in a tile, so many tiles are even when corrected
(:mod:`.tile_uniformity`). Overlaps see borders; tiles see the interior.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import compress, product

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from tilewright.kernels.backend import Floats, Ints
from tilewright.kernels.illumination.flat_basis import (
    FINE_ORDER,
    MAX_ORDER,
    degrees,
    flat_field,
    log_flat,
)
from tilewright.kernels.illumination.overlap_cells import OverlapCells
from tilewright.kernels.illumination.overlap_photometry import (
    FOLDS,
    Differences,
    InformationForm,
    differences,
    information_by_fold,
    relative_difference,
)
from tilewright.kernels.illumination.tile_uniformity import (
    TileEvidence,
    residual_structure,
    tile_evidence,
)

#: Standard deviation of coefficients of degree 1 and 2, which every flat-field has: a loss of
#: two thirds of the light in the corners is 0.3.
_LOW = 0.3
#: Standard deviation of degree 3, and by what factor it falls with each further degree.
_SIZES = (0.003, 0.01, 0.03, 0.1)
_FALLS = (0.3, 0.5, 0.7, 0.9, 1.0)
#: Relative rms of structure that ends before the overlaps; 0 is none.
_INTERIORS = (0.0, 0.05, 0.15, 0.5)
#: Prior odds of such structure, as logarithms. 1 : 10 000 where it enters the
#: flat-field: with equal odds the chance of 100 tiles of syn10 was (0.76 % instead of
#: 0.55 %). 10 : 1 where its error is reported: on smooth flats the evidence is over 100 000 : 1
#: against it.
_FLAT_LOG_ODDS = -9.2
_ERROR_LOG_ODDS = 2.3
#: Of fewer tiles none enters, and the error counts it where the evidence is beyond what specimen
#: makes: nuclei in mirrored rows of 12 to 16 tiles had e^8 to e^18 (and 20 % in the middle of each
#: tile drawn), a ring of 15 % in nine tiles e^51.
_LEAST_FOR_FLAT, _LEAST_FOR_ERROR = 25, 9
_SPECIMEN_LOG_ODDS = -20.0
_NEVER = -1e6
_ITERATIONS = 8
#: Standard deviation of an offset that is fixed.
_GIVEN_COUNTS = 1e-3
#: Error of a fixed offset, as a share of it, whose effect is evaluated, and at how many places.
_TOLERATED, _SHAPE = 0.01, (32, 32)
#: Priors with a smaller share change nothing.
_NEGLIGIBLE = 1e-4
#: Relative rms beyond 14 degrees from which more are taken.
_COARSE = 0.005
#: Iterations that take the dark-field for very uneven: about a wrong flat-field dim places mislead,
#: and a fit that follows them weights down the overlaps that contradict.
_WARY = 2


@dataclass(frozen=True)
class Posterior:
    """Mean and covariance of coefficients and offset.

    ``share`` is the weight of each prior in the mean, ``error_share`` in the covariance about it.
    """

    mean: Floats
    covariance: Floats
    share: Floats
    error_share: Floats
    priors: list[_Prior]

    @property
    def fall(self) -> float:
        """By what factor coefficients fall with their degree, on average."""
        return float(self.share @ np.array([prior.fall for prior in self.priors]))

    @property
    def interior(self) -> float:
        """Probability that there is structure which the overlaps do not see."""
        return float(self.error_share @ np.array([prior.has_interior for prior in self.priors]))


@dataclass(frozen=True)
class FlatFit:
    """Flat-field with its error."""

    posterior: Posterior
    """Coefficients of the log flat-field, then the offset."""
    order: int
    """Largest total degree allowed."""
    differences: Differences
    """Overlap cells under this flat-field."""
    held_out: float
    """Weighted rms relative difference of overlaps held out of the fit; NaN without any."""
    unmodelled: float
    """Relative rms of structure that tiles show and the fit cannot follow, with what the two
    highest degrees hold, as much as which may lie beyond.
    """

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
    free: bool = False,
) -> FlatFit:
    """Fit the log flat-field and the camera offset.

    Parameters
    ----------
    cells : OverlapCells
        Raw counts; without any the tiles alone are fitted.
    images : ndarray of float64, shape (n, y, x)
        Tiles without saturated pixels, in blocks, planes averaged; n may be 0. NaN is not compared
        (:mod:`.tissue_regions`).
    offset_counts, offset_error_counts : float
        Prior of the camera offset, as mean and standard deviation.
    free : bool
        Fit the offset too. Else it is fixed, and the rest fitted once more with its error on it
        where that is more than 1 % of it: what this changes is in the error of the flat-field.

    Examples
    --------
    >>> at = np.linspace(-1, 1, 16)
    >>> flat = 1 - 0.1 * (at[:, None] ** 2 + at**2)
    >>> tiles = 100 + np.random.default_rng(0).uniform(500, 1500, (8, 1, 1)) * flat
    >>> fit = fit_flat(OverlapCells.none(), tiles, 100.0, 1.0)
    >>> [round(float(f[0, 0] / f[8, 8]), 1) for f in (flat, fit.flat((16, 16)))]
    [0.8, 0.8]
    """
    offset = offset_counts, max(offset_error_counts, _GIVEN_COUNTS) if free else _GIVEN_COUNTS
    even = np.append(np.zeros(len(degrees(MAX_ORDER))), offset_counts)
    fit = _fit(cells, images, offset, even, MAX_ORDER)
    if fit.unmodelled > _COARSE:
        start = np.zeros(len(degrees(FINE_ORDER)) + 1)
        start[: len(fit.coefficient)], start[-1] = fit.coefficient, fit.offset_counts
        finer = _fit(cells, images, offset, start, FINE_ORDER, begin=_WARY)
        fit = finer if finer.error < fit.error else fit
    if not free and offset_error_counts > _TOLERATED * offset_counts:
        shifted_fit = _fit(
            cells, images, (offset_counts + offset_error_counts, _GIVEN_COUNTS), even, MAX_ORDER
        )
        change = shifted_fit.flat(_SHAPE).astype(np.float64) / fit.flat(_SHAPE) - 1.0
        fit = replace(fit, unmodelled=float(np.hypot(fit.unmodelled, change.std())))
    return fit


def _fit(
    cells: OverlapCells,
    images: Floats,
    offset: tuple[float, float],
    mean: Floats,
    order: int,
    begin: int = 0,
) -> FlatFit:
    highest = max(offset[0] + 2.0 * offset[1], 0.0)
    choices: list[tuple[int, int]] = []
    # Tissue and background of a tile may be two images.
    count = round(np.isfinite(images).mean() * len(images)) if len(images) else 0
    interiors = _INTERIORS if count >= _LEAST_FOR_ERROR else _INTERIORS[:1]
    for iteration in range(begin, _ITERATIONS):
        cell_differences = differences(cells, mean[:-1], mean[-1], robust=iteration > 0)
        parts, fold = information_by_fold(cell_differences, mean[:-1], mean[-1], order)
        tiles = tile_evidence(images, mean, order)
        overlaps = reduce(operator.add, parts)
        priors = _priors(order, *offset, overlaps, interiors)
        # All priors when the flat-field is first known roughly, and in the end.
        if iteration < _WARY:
            few = range(len(interiors) * len(_SIZES))
            choices = [(len(tiles) - 1, k) for k in few]
        elif iteration == _WARY:
            choices = list(product(range(len(tiles)), range(len(priors))))
        elif iteration == _ITERATIONS - 1:
            choices = list(product(sorted({tile for tile, _ in choices}), range(len(priors))))
        posterior = _posterior(overlaps, tiles, priors, choices, count)
        if iteration in (_WARY, _ITERATIONS - 1):
            relevant = np.maximum(posterior.share, posterior.error_share) > _NEGLIGIBLE
            choices = list(compress(choices, relevant))
        mean = posterior.mean.copy()
        mean[-1] = np.clip(mean[-1], 0.0, highest)
    posterior = replace(posterior, mean=mean)
    cell_differences = differences(cells, mean[:-1], mean[-1], robust=True)
    held_out = cell_differences.rms(
        _held_out(cell_differences, parts, fold, tiles, priors, choices, count)
    )
    return FlatFit(posterior, order, cell_differences, held_out, _unmodelled(images, mean, order))


def _unmodelled(images: Floats, mean: Floats, order: int) -> float:
    degree = degrees(order).sum(axis=1)
    tail = float((mean[:-1][degree >= max(order - 1, 5)] ** 2).sum())
    return float(np.hypot(residual_structure(images, mean, order), np.sqrt(tail)))


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
    order: int,
    offset_counts: float,
    offset_error_counts: float,
    overlaps: InformationForm,
    interiors: tuple[float, ...],
) -> list[_Prior]:
    degree = degrees(order).sum(axis=1)
    interior_priors = [_interior_prior(overlaps, size) if size else 0.0 for size in interiors]
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
        for interior, covariance in zip(interiors, interior_priors, strict=True)
    ]


def _interior_prior(overlaps: InformationForm, size: float) -> Floats:
    """Return a covariance of rms ``size`` that overlaps do not see: a g-prior (Zellner 1986)."""
    columns = len(overlaps.vector) - 1
    precision = np.eye(columns) * (columns / size**2) + overlaps.matrix[:-1, :-1]
    return np.asarray(np.linalg.inv(precision), dtype=np.float64)


def _posterior(
    overlaps: InformationForm,
    tiles: list[TileEvidence],
    priors: list[_Prior],
    choices: list[tuple[int, int]],
    count: int,
) -> Posterior:
    """Mix posteriors of (evidence, prior), each weighted by its evidence on ``count`` tiles."""
    logs, means, roots = [], [], []
    for tile, number in choices:
        data, prior = overlaps + tiles[tile].information, priors[number]
        factor = prior.factor()
        centre = np.zeros(len(data.vector))
        centre[-1] = prior.offset_counts
        push = data.vector - data.matrix @ centre
        vector = factor.T @ push
        lower = np.linalg.cholesky(np.eye(len(vector)) + factor.T @ data.matrix @ factor)
        root = solve_triangular(lower, factor.T, lower=True)
        whitened = solve_triangular(lower, vector, lower=True)
        log = float(whitened @ whitened) + float(centre @ (data.vector + push))
        log_determinant = 2.0 * float(np.log(np.diag(lower)).sum())
        logs.append(tiles[tile].log_evidence + 0.5 * (log - log_determinant))
        means.append(centre + root.T @ whitened)
        # A flat-field read from tiles follows the offset; not to the second order.
        follow = root[:, :-1].T @ (root[:, :-1] @ tiles[tile].by_offset)
        offset_error = float(np.sqrt((root[:, -1] ** 2).sum()))
        roots.append(np.vstack([root, np.append(offset_error * follow, 0.0)]))
    priors = [priors[number] for _, number in choices]
    interior = np.array([prior.has_interior for prior in priors])
    in_flat = _FLAT_LOG_ODDS if count >= _LEAST_FOR_FLAT else _NEVER
    share = _shares(np.array(logs) + in_flat * interior)
    in_error = _ERROR_LOG_ODDS if count >= _LEAST_FOR_FLAT else _SPECIMEN_LOG_ODDS
    error_share = _shares(np.array(logs) + in_error * interior)
    mean: Floats = share @ np.array(means)
    covariance: Floats = np.zeros_like(data.matrix, dtype=np.float64)
    for weight, one, root in zip(error_share, means, roots, strict=True):
        if weight > _NEGLIGIBLE:
            between = np.outer(one - mean, one - mean)
            covariance = np.asarray(covariance + weight * (root.T @ root + between))
    return Posterior(mean, covariance, share, error_share, priors)


def _shares(log_weight: Floats) -> Floats:
    # Rounded far above the arithmetic's noise.
    share = np.exp(np.round(log_weight - log_weight.max(), 3))
    return np.asarray(share / share.sum())


def _held_out(
    cell_differences: Differences,
    parts: list[InformationForm],
    fold: Ints,
    tiles: list[TileEvidence],
    priors: list[_Prior],
    choices: list[tuple[int, int]],
    count: int,
) -> Floats:
    """Relative difference of each cell under a fit without its fold of edges."""
    relative = np.zeros(len(fold))
    for k in range(FOLDS):
        inside = np.flatnonzero(fold == k)
        if not len(inside):
            continue
        rest = [part for j, part in enumerate(parts) if j != k]
        mean = _posterior(reduce(operator.add, rest), tiles, priors, choices, count).mean
        cells = cell_differences.cells.take(inside)
        flat = [np.exp(log_flat(mean[:-1], p)) for p in (cells.place_first, cells.place_second)]
        relative[inside] = relative_difference(cells, flat[0], flat[1], mean[-1])
    return relative
