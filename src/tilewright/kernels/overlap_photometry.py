"""Flat-field from the same specimen seen in two tiles.

Two tiles that show the same cell measure the ratio of the flat-field at two places of the
camera, whatever the specimen is. The log flat-field is a Legendre polynomial fitted to all
log-ratios by iteratively reweighted least squares. Overlaps lie at the tiles' borders, so
a weak pull towards the mean of all tiles holds the interior. Order
and pull are chosen by edges held out of the fit. All on the host in float64: a design of a
few ten thousand rows and at most 44 columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.polynomial.legendre import legvander
from numpy.typing import NDArray

from tilewright.kernels.overlap_cells import OverlapCells

Float = NDArray[np.float64]

MAX_ORDER = 8
FOLDS = 5
#: Strengths of the pull to the tile mean, relative to the overlaps' information per coefficient.
#: Held-out overlaps cannot see the interior: on the brain tiles 0.003 scored as well as 0.1, and
#: drew a ridge that no tile shows. On hard10 0.1 is 1.9 %, 0.003 2.7 % and none 3.8 %.
PULLS = (0.1, 0.03, 0.01, 0.003)
#: Strongest pull, then lowest order, whose held-out rms is within 5 % of the best. On syn10 that
#: is order 2 (0.60 %), on hard10 order 6 (1.9 %); the noise of the rms itself is below 0.1 %.
TOLERANCE = 0.05
_REFERENCE_ORDER = 5
_ITERATIONS = 6
_SIGNAL_BINS = 16
#: Cells whose log-ratio scatters more than this are mostly noise; a whole bin of signal is
#: left out, since leaving out single cells by their noise would bias the ratio.
_MAX_SCATTER = 0.4
_RIDGE = 1e-6
#: Larger log-ratios count as this much in the quality number (debris, a wrong position).
_CLIP = 0.3


@dataclass(frozen=True)
class LogRatios:
    """Log-ratios of usable cells with their weights; host arrays of length m."""

    cells: OverlapCells
    value: Float
    weight: Float


@dataclass(frozen=True)
class LegendreFit:
    """Log flat-field as a Legendre polynomial.

    Attributes
    ----------
    order : int
        Largest total degree.
    coefficient : ndarray of float64, shape (columns of the order,)
        As ordered by :func:`legendre_design`.
    pull : float
        Strength of the pull to the tile mean.
    held_out : ndarray of float64, shape (m,)
        Residual of each log-ratio under a fit without its edge's fold.
    """

    order: int
    coefficient: Float
    pull: float
    held_out: Float

    def flat(self, shape_px: tuple[int, int]) -> NDArray[np.float32]:
        """Return the flat-field of mean 1 at pixel centres, float32 (y, x)."""
        grid = np.zeros((self.order + 1, self.order + 1))
        for value, (i, j) in zip(self.coefficient, _degrees(self.order), strict=True):
            grid[i, j] = value
        y, x = ((np.arange(size) + 0.5) / size * 2.0 - 1.0 for size in shape_px)
        log_flat = legvander(y, self.order) @ grid @ legvander(x, self.order).T
        flat = np.exp(log_flat - log_flat.max())
        return np.asarray(flat / flat.mean(), dtype=np.float32)

    def log_flat(self, place: Float) -> Float:
        """Return the log flat-field, up to a constant, at ``place`` (m, 2)."""
        return legendre_design(place, self.order) @ self.coefficient


def _degrees(order: int) -> list[tuple[int, int]]:
    return [(i, total - i) for total in range(1, order + 1) for i in range(total + 1)]


def legendre_design(place: Float, order: int) -> Float:
    """Return Legendre products of total degree 1 to ``order`` at ``place`` (m, 2) in -1 to 1.

    Sorted by total degree, so the columns of a lower order come first; the constant is left
    out, as a flat-field has mean 1.
    """
    y, x = legvander(place[:, 0], order), legvander(place[:, 1], order)
    return np.stack([y[:, i] * x[:, j] for i, j in _degrees(order)], axis=1)


def log_ratios(cells: OverlapCells, offset_counts: float) -> LogRatios:
    """Return log-ratios of the cells with signal, weighted by their scatter at that signal.

    Parameters
    ----------
    cells : OverlapCells
        Raw counts.
    offset_counts : float
        Counts without light.

    Returns
    -------
    LogRatios
        May be empty. Weights are 1/scatter², scatter being a robust standard deviation among
        cells of like signal after a fit of order 5.
    """
    signal = 0.5 * (cells.first + cells.second) - offset_counts
    cells, signal = cells.take(signal > 0), signal[signal > 0]
    floor = 0.05 * signal
    value = np.log(
        np.maximum(cells.first - offset_counts, floor)
        / np.maximum(cells.second - offset_counts, floor)
    )
    if len(value) < 4 * _SIGNAL_BINS:
        return LogRatios(cells.take(np.zeros(len(value), dtype=bool)), value[:0], value[:0])
    rank = np.argsort(np.argsort(signal, kind="stable"), kind="stable")
    group = rank * _SIGNAL_BINS // len(rank)
    design = _difference(cells, min(_REFERENCE_ORDER, MAX_ORDER))
    residual, robust = value - np.median(value), np.ones_like(value)
    for iteration in range(_ITERATIONS):
        scatter = np.array(
            [np.median(np.abs(residual[group == k])) / 0.6745 for k in range(_SIGNAL_BINS)]
        )
        scatter = np.maximum(scatter, 1e-3)[group]
        # Not before the first fit, when the scatter is the vignetting itself.
        weight = ((scatter < _MAX_SCATTER) | (iteration == 0)) / scatter**2
        robust = weight / (1.0 + (0.5 * residual / scatter) ** 2) ** 2
        if not robust.any():
            break
        residual = value - design @ _solve(*_normal(design, value, robust), None, None, 0.0)
    keep = robust > 0
    return LogRatios(cells.take(keep), value[keep], robust[keep])


def rms(ratios: LogRatios, residual: Float) -> float:
    """Return the weighted root mean square of ``residual``, single values clipped at 0.3."""
    square = np.minimum(np.abs(residual), _CLIP) ** 2
    return float(np.sqrt(np.average(square, weights=ratios.weight)))


def estimate_offset(cells: OverlapCells, fit: LegendreFit) -> tuple[float, float]:
    """Return the camera offset that makes ratios independent of signal, and its standard error.

    ``(first - o) / f1 = (second - o) / f2`` is linear in ``o``: dark cells at places of unlike
    flat-field measure it. A regression on the darker half of the cells, robust against outliers.
    """
    gain = [np.exp(fit.log_flat(place)) for place in (cells.place_first, cells.place_second)]
    dark = cells.first + cells.second <= np.median(cells.first + cells.second)
    x = (gain[1] - gain[0])[dark]
    y = (cells.first * gain[1] - cells.second * gain[0])[dark]
    weight = np.ones_like(x)
    slope = 0.0
    for _ in range(2 * _ITERATIONS):
        power = max(float((weight * x * x).sum()), 1e-12)
        slope = float((weight * x * y).sum()) / power
        residual = y - slope * x
        scatter = max(float(np.median(np.abs(residual))) / 0.6745, 1e-9)
        weight = 1.0 / (1.0 + (0.5 * residual / scatter) ** 2) ** 2
    return slope, scatter / power**0.5


def fit_overlaps(
    ratios: LogRatios, tile_mean: Float, *, order: int | None, seed: int
) -> LegendreFit:
    """Fit the log flat-field; choose order and pull by held-out edges.

    Parameters
    ----------
    ratios : LogRatios
        At least one cell in each of two edges.
    tile_mean : ndarray of float64, shape (h, w)
        Log of the mean of all tiles without the offset, finite.
    order : int or None
        Fixed order 1 to 8, or None to choose.
    seed : int
        Seed of the split of edges into folds.

    Returns
    -------
    LegendreFit
        Stiffest model (strongest pull, then lowest order) within 5 % of the best held-out rms.

    Raises
    ------
    ValueError
        ``order`` is not 1 to 8.
    """
    if order is not None and not 1 <= order <= MAX_ORDER:
        raise ValueError(f"illumination order is {order}; give 1 to {MAX_ORDER}, or null to choose")
    orders = range(1, MAX_ORDER + 1) if order is None else [order]
    design = _difference(ratios.cells, orders[-1])
    prior = _tile_mean_normal(tile_mean, orders[-1])
    fold = _folds(ratios.cells.edge, seed)
    parts = [
        _normal(design[fold == k], ratios.value[fold == k], ratios.weight[fold == k])
        for k in range(FOLDS)
    ]
    held_out = {}
    for k in orders:
        for pull in PULLS:
            held_out[k, pull] = _held_out(design, ratios.value, fold, parts, prior, k, pull)
    score = {key: round(rms(ratios, residual), 7) for key, residual in held_out.items()}
    good = (1.0 + TOLERANCE) * min(score.values())
    chosen = min((key for key in score if score[key] <= good), key=lambda key: (-key[1], key[0]))
    matrix, vector = _total(parts)
    coefficient = _solve(*_lead(matrix, vector, chosen[0]), *_lead(*prior, chosen[0]), chosen[1])
    return LegendreFit(chosen[0], coefficient, chosen[1], held_out[chosen])


def _difference(cells: OverlapCells, order: int) -> Float:
    return legendre_design(cells.place_first, order) - legendre_design(cells.place_second, order)


def _folds(edge: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    names, index = np.unique(edge, return_inverse=True)
    return (np.random.default_rng(seed).permutation(len(names)) % FOLDS)[index]


def _normal(design: Float, value: Float, weight: Float) -> tuple[Float, Float]:
    root = np.sqrt(weight)
    scaled = design * root[:, None]
    # One array times its own transpose: BLAS then computes half of the symmetric product.
    return scaled.T @ scaled, scaled.T @ (root * value)


def _total(parts: list[tuple[Float, Float]]) -> tuple[Float, Float]:
    return np.sum([part[0] for part in parts], axis=0), np.sum([part[1] for part in parts], axis=0)


def _tile_mean_normal(tile_mean: Float, order: int) -> tuple[Float, Float]:
    h, w = tile_mean.shape
    y, x = np.meshgrid(*((np.arange(s) + 0.5) / s * 2.0 - 1.0 for s in (h, w)), indexing="ij")
    design = legendre_design(np.stack([y.ravel(), x.ravel()], axis=1), order)
    value = tile_mean.ravel() - tile_mean.mean()
    design = design - design.mean(axis=0)
    return _normal(design, value, np.full(value.size, 1.0 / value.size))


def _lead(matrix: Float, vector: Float, order: int) -> tuple[Float, Float]:
    columns = len(_degrees(order))
    return matrix[:columns, :columns], vector[:columns]


def _solve(
    matrix: Float, vector: Float, prior: Float | None, prior_vector: Float | None, pull: float
) -> Float:
    """Solve in units of the mean overlap information, so that pull and ridge are relative."""
    scale = max(float(np.trace(matrix)) / len(vector), 1e-12)
    left, right = matrix / scale + _RIDGE * np.eye(len(vector)), vector / scale
    if prior is not None and prior_vector is not None:
        left, right = left + pull * prior, right + pull * prior_vector
    return np.asarray(np.linalg.solve(left, right), dtype=np.float64)


def _held_out(
    design: Float,
    value: Float,
    fold: NDArray[np.int64],
    parts: list[tuple[Float, Float]],
    prior: tuple[Float, Float],
    order: int,
    pull: float,
) -> Float:
    residual = np.empty_like(value)
    for k in range(FOLDS):
        matrix, vector = _total([part for j, part in enumerate(parts) if j != k])
        solution = _solve(*_lead(matrix, vector, order), *_lead(*prior, order), pull)
        inside = fold == k
        residual[inside] = value[inside] - design[inside, : len(solution)] @ solution
    return residual
