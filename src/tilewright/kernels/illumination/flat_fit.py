"""The flat-field and the camera offset in one robust fit of overlaps and of the tiles.

Bayesian linear regression: the coefficients of the log flat-field and the camera offset are the
unknowns, and of twenty priors, which say how large coefficients are and how fast they fall with
their degree, the one with the largest evidence is taken (MacKay, "Bayesian interpolation", Neural
Computation 4, 1992). Overlaps see the borders of a tile (:mod:`.overlap_photometry`), the tiles
themselves its interior (:mod:`.tile_uniformity`). Both are linear about a first estimate, so the
fit is repeated (iteratively reweighted least squares).
"""

import operator
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from tilewright.kernels.backend import Floats, Ints
from tilewright.kernels.illumination.flat_basis import degrees, flat_field, log_flat
from tilewright.kernels.illumination.overlap_cells import OverlapCells
from tilewright.kernels.illumination.overlap_photometry import (
    Differences,
    InformationForm,
    differences,
    information_by_fold,
    relative_difference,
)
from tilewright.kernels.illumination.tile_uniformity import tile_information

#: Standard deviation of coefficients of degree 1 and 2, which every flat-field has: a loss of
#: two thirds of the light in the corners is 0.3.
_LOW = 0.3
#: Standard deviation of degree 3, and by what factor it falls with each further degree. With one
#: prior (0.03, 0.6) the error of 20 sets was 1.6 % in the median, with the likeliest 0.3 %; the
#: mean of all, weighted by their evidence, is no better.
_SIZES = (0.003, 0.01, 0.03, 0.1)
_FALLS = (0.3, 0.5, 0.7, 0.9, 1.0)
_ITERATIONS = 12
#: Iterations on overlaps alone, where there are any: about a wrong flat-field dim tiles mislead.
#: After one the brain tiles have an offset of 0 for 335 counts, and a flat-field 16 % off; after
#: five what three give.
_OVERLAPS_FIRST = 3
#: Change of the log flat-field, as rms over the tile, and of the offset, of the last iteration: a
#: thirtieth of the least error, and the digit to which an offset is written and known at best.
_CONVERGED, OFFSET_DIGIT_COUNTS = 1e-4, 0.1
#: Error beyond the statistical one: what a polynomial leaves of a flat-field.
_LEAST_ERROR = 0.003


@dataclass(frozen=True)
class FlatFit:
    """Flat-field and camera offset with their errors.

    Attributes
    ----------
    coefficient : float64 (k,)
        Log flat-field (:mod:`.flat_basis`).
    offset_counts : float
        Camera offset.
    covariance : float64 (k + 1, k + 1)
        Of the coefficients, then the offset.
    differences : Differences
        Overlap cells under this flat-field.
    held_out : float
        Weighted rms relative difference of overlaps held out of the fit; NaN without any.
    """

    coefficient: Floats
    offset_counts: float
    covariance: Floats
    differences: Differences
    held_out: float

    @property
    def offset_error_counts(self) -> float:
        """Standard error of the camera offset."""
        return float(np.sqrt(self.covariance[-1, -1]))

    @property
    def error(self) -> float:
        """Expected relative rms error of the flat-field over the tile."""
        return float(np.sqrt(np.trace(self.covariance[:-1, :-1]) + _LEAST_ERROR**2))

    def flat(self, shape_px: tuple[int, int]) -> NDArray[np.float32]:
        """Return the flat-field of mean 1 at pixel centres, float32 (y, x)."""
        return flat_field(self.coefficient, shape_px)


def fit_flat(
    cells: OverlapCells, images: Floats, offset_counts: float, offset_error_counts: float
) -> FlatFit:
    """Fit the log flat-field and the camera offset.

    Parameters
    ----------
    cells : OverlapCells
        Raw counts; without any the tiles alone are fitted.
    images : ndarray of float64, shape (n, y, x)
        Tiles without saturated pixels, in blocks, planes averaged; n may be 0. NaN is not compared
        (:func:`.tile_uniformity.tissue_and_background`).
    offset_counts, offset_error_counts : float
        Prior of the camera offset, as mean and standard deviation.

    Examples
    --------
    >>> at = np.linspace(-1, 1, 16)
    >>> flat = 1 - 0.1 * (at[:, None] ** 2 + at**2)
    >>> tiles = 100 + np.random.default_rng(0).uniform(500, 1500, (8, 1, 1)) * flat
    >>> fit = fit_flat(OverlapCells.none(), tiles, 100.0, 1.0)
    >>> [round(float(f[0, 0] / f[8, 8]), 1) for f in (flat, fit.flat((16, 16)))]
    [0.8, 0.8]
    """
    offset = offset_counts, offset_error_counts
    mean = np.append(np.zeros(len(degrees())), offset_counts)
    posterior = InformationForm.none(len(mean))
    for iteration in range(_ITERATIONS):
        compared = differences(cells, mean[:-1], mean[-1], robust=iteration > 0)
        parts, fold = information_by_fold(compared, mean[:-1], mean[-1])
        data = reduce(operator.add, parts)
        if iteration >= _OVERLAPS_FIRST or not len(cells):
            data += tile_information(images, mean, tells_offset=not len(cells))
        posterior, before = _with_likeliest_prior(data, offset), mean
        mean = _possible_mean(posterior, offset)
        moved, counts = np.linalg.norm((mean - before)[:-1]), abs(mean[-1] - before[-1])
        if iteration > _OVERLAPS_FIRST and moved < _CONVERGED and counts < OFFSET_DIGIT_COUNTS:
            break
    compared = differences(cells, mean[:-1], mean[-1], robust=True)
    held_out = compared.rms(_held_out(compared, parts, fold, posterior, offset))
    covariance: Floats = np.asarray(np.linalg.inv(posterior.matrix), np.float64)
    return FlatFit(mean[:-1], float(mean[-1]), covariance, compared, held_out)


def _with_likeliest_prior(data: InformationForm, offset: tuple[float, float]) -> InformationForm:
    """Add the prior under which the data are likeliest."""
    degree = degrees().sum(axis=1)
    best, chosen = -np.inf, data
    for size, fall in product(_SIZES, _FALLS):
        deviation = np.where(degree <= 2, _LOW, size * fall ** (degree - 3.0))
        precision = 1.0 / (np.append(deviation, offset[1]) ** 2 + 1e-12)
        pull = np.append(np.zeros(len(degree)), offset[0] * precision[-1])
        posterior = data + InformationForm(np.diag(precision), pull)
        lower = np.linalg.cholesky(posterior.matrix)
        whitened = solve_triangular(lower, posterior.vector, lower=True)
        log = 0.5 * float(whitened @ whitened + np.log(precision).sum())
        log -= float(np.log(np.diag(lower)).sum())
        if log > best:
            best, chosen = log, posterior
    return chosen


def _possible_mean(posterior: InformationForm, offset: tuple[float, float]) -> Floats:
    """Return the mean, its offset from 0 to two standard deviations above the prior's."""
    mean = posterior.mean()
    mean[-1] = np.clip(mean[-1], 0.0, max(offset[0] + 2.0 * offset[1], 0.0))
    return mean


def _held_out(
    compared: Differences,
    parts: list[InformationForm],
    fold: Ints,
    posterior: InformationForm,
    offset: tuple[float, float],
) -> Floats:
    """Relative difference of each cell under a fit without its fold of edges."""
    relative = np.zeros(len(fold))
    for k, part in enumerate(parts):
        inside = np.flatnonzero(fold == k)
        mean = _possible_mean(posterior - part, offset)
        cells = compared.cells.take(inside)
        flat = [np.exp(log_flat(mean[:-1], p)) for p in (cells.place_first, cells.place_second)]
        relative[inside] = relative_difference(cells, flat[0], flat[1], mean[-1])
    return relative


def leave_one_out_mean(values: Floats, errors: Floats) -> list[tuple[float, float]]:
    """Return the mean of all other measurements for each one, with its standard error.

    Random effects: how far values differ beyond their errors is estimated by moments (DerSimonian &
    Laird, Controlled Clinical Trials 7, 1986).

    Parameters
    ----------
    values, errors : ndarray of float64, shape (n,)
        Measurements and their standard errors; infinite for what was not measured.

    Returns
    -------
    list of (float, float)
        The error is infinite where no other was measured.

    Examples
    --------
    >>> combined = leave_one_out_mean(np.array([116.0, 120.0, 0.0]), np.array([1.2, 0.3, np.inf]))
    >>> [[round(value), round(error)] for value, error in combined]
    [[120, 4], [116, 4], [118, 3]]
    """
    weight = 1.0 / errors**2
    total = max(float(weight.sum()), 1e-12)
    excess = weight @ (values - weight @ values / total) ** 2 - (np.count_nonzero(weight) - 1)
    between = max(0.0, float(excess) / max(total - float((weight**2).sum()) / total, 1e-12))
    weight = 1.0 / (errors**2 + between)
    found = []
    for k in range(len(values)):
        rest = np.delete(weight, k)
        precision = float(rest.sum())
        value = float(rest @ np.delete(values, k)) / max(precision, 1e-12)
        found.append((value, float(np.sqrt(1.0 / precision + between)) if precision else np.inf))
    return found
