"""From the shifts of blocks to an affine map and a smooth displacement field, without outliers.

Both are weighted least squares whose weights fall with the residual as Geman and McClure's,
the scale shrinking from step to step (graduated non-convexity, Yang et al. 2020,
https://doi.org/10.1109/LRA.2020.2965893), so that a wrong block first counts little and then
nothing. All of it is float64 on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from tilewright.kernels.backend import Floats

#: Scales of the Geman-McClure weight in robust standard deviations, from step to step.
_SCALES = (30.0, 12.0, 6.0, 4.0, 4.0)
#: Noise below this factor is taken for the agreement of very few points.
_LEAST_FACTOR = 1e-9
#: Side of the square of blocks whose median starts the field.
_AROUND = 5
#: Weight above which a block counts as accepted: residual below 0.64 scales.
ACCEPTED = 0.5
#: Second differences of the field that are tried, at nodes 100 px apart: from nearly an affine
#: map to every block's own shift.
_BENDS_PX = (0.1, 0.3, 1.0)
#: The field is drawn to the affine map with this standard deviation, which matters only far
#: from any measurement.
_PULL_PX = 20.0
#: Nodes on the longer side of a grid whose equations are solved directly.
_COARSEST = 24
#: Steps of relaxation before and after the correction of a coarser grid.
_STEPS = 4
#: Residual forces that are allowed: fields differ by less than 0.001 px where there is tissue.
_RTOL = 1e-8
#: The same while weights and bending are sought: fields differ by 0.0001 px on tissue, 0.0005 px
#: elsewhere, and take half the time.
_RTOL_SOUGHT = 1e-4
#: Ten to thirty are taken.
_MOST_STEPS = 300


@dataclass(frozen=True)
class FieldFit:
    """A smooth field (2, gy, gx) in px and the final weight (gy, gx) of each block, 0 to 1."""

    field: Floats
    weight: Floats
    sigma_px: float


def _variance_factor(half_squares: Floats, weights: Floats) -> float:
    """Return true over assumed variances, from half the normalised squares."""
    # Weighted by precision, so that a crowd of empty blocks does not set it. The lower quartile, of
    # which half a chi-square with two degrees of freedom has 0.288, is right as long as a fourth
    # of the blocks is; the median would follow the outliers when half of them are.
    return max(_weighted_quantile(half_squares, weights, 0.25) / 0.288, _LEAST_FACTOR)


def _down_weight(residual2: Floats, precision: Floats, scale: float, factor: float) -> Floats:
    """Return Geman-McClure weights of residuals."""
    cut = scale * scale * factor
    return np.asarray((cut / (cut + residual2 * precision / 2.0)) ** 2)


def _weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(cumulated, share * cumulated[-1])])


def fit_affine(points_px: Floats, targets_px: Floats, precision: Floats) -> tuple[Floats, Floats]:
    """Fit an affine map to matched points, outliers left out.

    Parameters
    ----------
    points_px, targets_px : (n, 2) float64
        Positions in the reference and in the moving image.
    precision : (n,) float64
        Inverse variances up to a common factor; 0 for points to ignore.

    Returns
    -------
    affine : (2, 3) float64
        A shift only where fewer than three blocks, or blocks on one line, are known.
    weight : (n,) float64
        Final weight of each point, 0 to 1.

    Examples
    --------
    >>> points = np.random.default_rng(0).uniform(0, 100, (20, 2))
    >>> affine, _ = fit_affine(points, points + [2.0, -1.0], np.ones(20))
    >>> affine[:, 2].round(3).tolist()
    [2.0, -1.0]
    """
    known = precision > 0
    centre = points_px[known].mean(axis=0)
    offsets = targets_px - points_px
    shift = [_weighted_quantile(offsets[known, k], precision[known], 0.5) for k in range(2)]
    spread = np.linalg.svd((points_px[known] - centre), compute_uv=False)
    weight = np.ones(len(precision))
    affine = np.column_stack([np.eye(2), shift])
    if known.sum() < 4 or spread[-1] < 0.1 * spread[0]:
        return affine, weight
    design = np.column_stack([points_px - centre, np.ones(len(points_px))])
    for scale in _SCALES:
        residual = targets_px - points_px @ affine[:, :2].T - affine[:, 2]
        residual2 = (residual**2).sum(axis=1)
        half_squares = residual2[known] * precision[known] / 2.0
        factor = _variance_factor(half_squares, precision[known])
        weight = _down_weight(residual2, precision, scale, factor)
        root = np.sqrt(weight * precision)[:, None]
        solved = np.linalg.lstsq(root * design, root * targets_px, rcond=None)[0].T
        affine = np.column_stack([solved[:, :2], solved[:, 2] - solved[:, :2] @ centre])
    return affine, weight


def bending(rows: int, columns: int) -> scipy.sparse.csr_array:
    """Return the quadratic form of a thin plate's bending energy on a grid of unit spacing."""
    ones = [scipy.sparse.eye_array(n) for n in (rows, columns)]
    first, second = zip(*(_differences(n) for n in (rows, columns)), strict=True)
    terms = [
        scipy.sparse.kron(second[0], ones[1]),
        scipy.sparse.kron(ones[0], second[1]),
        np.sqrt(2.0) * scipy.sparse.kron(first[0], first[1]),
    ]
    return scipy.sparse.csr_array(sum(term.T @ term for term in terms))


def _differences(n: int) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array]:
    """Return the operators of first and second differences of n values."""
    first = scipy.sparse.diags_array([-1.0, 1.0], offsets=[0, 1], shape=(max(n - 1, 0), n))
    second = scipy.sparse.diags_array([1.0, -2.0, 1.0], offsets=[0, 1, 2], shape=(max(n - 2, 0), n))
    return scipy.sparse.csr_array(first), scipy.sparse.csr_array(second)


def fit_field(shift_px: Floats, precision: Floats, spacing_px: float) -> FieldFit:
    """Fit a smooth field to the shifts of a grid of blocks.

    How much the field may bend is stiffest by prediction of held-out blocks: the black fields of
    a chessboard from the white ones, and the reverse. Its fields are 2 x 2 blocks, because
    neighbouring blocks share pixels and hence noise.

    Parameters
    ----------
    shift_px : (2, gy, gx) float64
        Measured displacement (y, x).
    precision : (gy, gx) float64
        Inverse variances of a component up to a common factor; 0 where nothing was measured.
    spacing_px : float
        Distance of neighbouring blocks.

    Examples
    --------
    >>> shift = np.random.default_rng(0).normal(1.5, 0.1, (2, 8, 8))
    >>> round(float(fit_field(shift, np.ones((8, 8)), 100.0).field.mean()), 1)
    1.5
    """
    _, rows, columns = shift_px.shape
    p = precision.reshape(-1)
    if not p.any():
        return FieldFit(np.zeros_like(shift_px), np.zeros_like(precision), np.inf)
    grid = _Grid(rows, columns)
    values = shift_px.reshape(2, -1)
    bends = [bend * (spacing_px / 100.0) ** 2 for bend in _BENDS_PX]
    start = _neighbours_medians(shift_px, precision).reshape(2, -1)
    factor = _neighbour_noise(values.reshape(shift_px.shape), precision)
    field, weight = _robust(grid, values, p / factor, bends[-1], start, _SCALES)
    inverse_variance = weight * p / factor
    fields = [np.arange(n) // 2 for n in (rows, columns)]
    board = (np.add.outer(*fields) % 2).reshape(-1).astype(bool)
    errors = []
    for bend in bends:
        predicted = np.where(board, grid.solve(values, inverse_variance * ~board, bend, start), 0.0)
        predicted += np.where(board, 0.0, grid.solve(values, inverse_variance * board, bend, start))
        errors.append(
            round(float((inverse_variance * ((predicted - values) ** 2).sum(axis=0)).sum()), 6)
        )
    # The stiffest that predicts within 15 % of the best: noise shared by neighbours favours
    # fields that bend too much (median error of the 3000 px pair 0.024 px, against 0.040).
    stiffest = next(b for b, e in zip(bends, errors, strict=True) if e <= 1.15 * min(errors))
    field, weight = _robust(grid, values, p / factor, stiffest, field, _SCALES[-2:])
    field = grid.solve(values, weight * p / factor, stiffest, field, _RTOL)
    sigma = np.sqrt(factor / np.median(p[p > 0]))
    final = np.where(p > 0, weight, 0.0).reshape(rows, columns)
    return FieldFit(field.reshape(shift_px.shape), final, float(sigma))


def _neighbours_medians(shift_px: Floats, precision: Floats) -> Floats:
    """Return the median of the blocks around each, (2, gy, gx), weighted by precision."""
    # The field is sought from there: from one constant, islands of tissue that are displaced
    # otherwise than most counted as outliers, 3 to 15 % of the nuclei of a slide 0.5 to 20 px off,
    # and half of them in a microarray whose cores moved by 12 px.
    reach = _AROUND // 2
    weights = _windows(np.pad(precision, reach))
    medians = []
    for values in shift_px:
        around = _windows(np.pad(values, reach))
        order = np.argsort(around, axis=-1, kind="stable")
        cumulated = np.cumsum(np.take_along_axis(weights, order, -1), axis=-1)
        middle = (cumulated < 0.5 * cumulated[..., -1:]).sum(axis=-1, keepdims=True)
        at = np.take_along_axis(order, middle, -1)
        medians.append(np.take_along_axis(around, at, -1)[..., 0])
    return np.stack(medians)


def _windows(padded: Floats) -> Floats:
    windows = np.lib.stride_tricks.sliding_window_view(padded, (_AROUND, _AROUND))
    return windows.reshape(*windows.shape[:2], -1)


def _neighbour_noise(shift_px: Floats, precision: Floats) -> float:
    """Return the variance factor from second differences between neighbouring blocks."""
    # A field that may bend follows every block, and leaves no residual.
    triples, weights = [], []
    for axis in range(2):
        size = precision.shape[axis]
        parts = [np.arange(k, max(size - 2 + k, k)) for k in range(3)]
        before, middle, after = (np.take(shift_px, part, axis + 1) for part in parts)
        p = [np.take(precision, part, axis) for part in parts]
        known = (p[0] > 0) & (p[1] > 0) & (p[2] > 0)
        a, b, c = (1 / np.where(known, q, 1.0) for q in p)
        variance = a + 4 * b + c
        squared = ((before - 2 * middle + after) ** 2).sum(axis=0)
        triples.append((squared / (2 * variance))[known])
        weights.append((1 / variance)[known])
    values = np.concatenate(triples)
    return _variance_factor(values, np.concatenate(weights)) if values.size else 1.0


def _robust(
    grid: _Grid,
    values: Floats,
    precision: Floats,
    bend_px: float,
    field: Floats,
    scales: tuple[float, ...],
) -> tuple[Floats, Floats]:
    """Return field and weights after one weighted solution per scale; precisions are true."""
    weight = np.ones_like(precision)
    for scale in scales:
        residual2 = ((values - field) ** 2).sum(axis=0)
        weight = _down_weight(residual2, precision, scale, 1.0)
        field = grid.solve(values, weight * precision, bend_px, field)
    return field, weight


@dataclass(frozen=True)
class _Grid:
    """A grid of nodes, and with it those of twice, four times, ... the spacing."""

    rows: int
    columns: int

    @cached_property
    def energy(self) -> scipy.sparse.csr_array:
        """Bending energy of a field on unit spacing."""
        return bending(self.rows, self.columns)

    @cached_property
    def coarse(self) -> _Grid:
        """The grid of twice the spacing."""
        return _Grid(-(-self.rows // 2), -(-self.columns // 2))

    def solve(
        self,
        values: Floats,
        inverse_variance: Floats,
        bend_px: float,
        start: Floats,
        rtol: float = _RTOL_SOUGHT,
    ) -> Floats:
        """Return the field (2, n) of least weighted squared residuals plus bending energy.

        Conjugate gradients, preconditioned by a multigrid V-cycle. A direct factorisation takes
        1 GB on the 417 x 417 nodes of a 20 000 px image. One grid alone is not enough: on glass
        between pieces of tissue nothing is measured, and long waves would take over 1,000 steps.
        """
        pull = scipy.sparse.diags_array(inverse_variance + 1 / _PULL_PX**2)
        matrix = scipy.sparse.csr_array(self.energy / bend_px**2 + pull)
        level = _Level.of(self, matrix)
        count = self.rows * self.columns
        operator = scipy.sparse.linalg.LinearOperator((count, count), level.relax)
        fields = []
        for v, s in zip(values, start, strict=True):
            field, unsolved = scipy.sparse.linalg.cg(
                matrix, inverse_variance * v, s, rtol=rtol, maxiter=_MOST_STEPS, M=operator
            )
            if unsolved:
                raise RuntimeError(
                    f"the field of {self.rows} x {self.columns} blocks did not converge in "
                    f"{_MOST_STEPS} steps; give a larger registration.block_px"
                )
            fields.append(field)
        return np.stack(fields)

    @cached_property
    def spreading(self) -> scipy.sparse.csr_array:
        """Linear interpolation from the coarser grid to this one."""
        return scipy.sparse.csr_array(scipy.sparse.kron(_halves(self.rows), _halves(self.columns)))


def _halves(n: int) -> scipy.sparse.csr_array:
    """Return linear interpolation from half as many values, which lie between those of pairs."""
    coarse = -(-n // 2)
    at = np.arange(n) / 2 - 0.25
    first = np.floor(at).astype(int)
    columns = np.clip(first + np.arange(2)[:, None], 0, coarse - 1)
    rows = np.broadcast_to(np.arange(n), columns.shape)
    weights = np.stack([1 - at + first, at - first])
    places = (rows.reshape(-1), columns.reshape(-1))
    return scipy.sparse.csr_array((weights.reshape(-1), places), shape=(n, coarse))


@dataclass(frozen=True)
class _Level:
    """The equations of a field on one grid, and on the coarser ones below it."""

    matrix: scipy.sparse.csr_array
    inverse: Floats
    largest: float
    spread: scipy.sparse.csr_array
    below: _Level | scipy.sparse.linalg.SuperLU

    @classmethod
    def of(cls, grid: _Grid, matrix: scipy.sparse.csr_array) -> _Level:
        inverse = 1 / matrix.diagonal()
        largest = float((inverse * abs(matrix).sum(axis=1)).max())
        spread, coarse = grid.spreading, grid.coarse
        smaller = scipy.sparse.csr_array(spread.T @ matrix @ spread)
        direct = max(coarse.rows, coarse.columns) <= _COARSEST
        below = scipy.sparse.linalg.splu(smaller.tocsc()) if direct else cls.of(coarse, smaller)
        return cls(matrix, inverse, largest, spread, below)

    def relax(self, force: Floats) -> Floats:
        """Return about the field that a force gives: relax, correct on the coarser grid, relax."""
        field = self._smooth(force)
        rest = self.spread.T @ (force - self.matrix @ field)
        below = self.below
        correction = below.relax(rest) if isinstance(below, _Level) else below.solve(rest)
        field = field + self.spread @ correction
        return np.asarray(field + self._smooth(force - self.matrix @ field))

    def _smooth(self, force: Floats) -> Floats:
        """Take Chebyshev steps (Adams et al. 2003, https://doi.org/10.1016/S0021-9991(03)00194-3)."""
        middle, half = 0.55 * self.largest, 0.45 * self.largest
        ratio = half / middle
        step: Floats = self.inverse * force / middle
        field = step.copy()
        for _ in range(_STEPS - 1):
            force = force - self.matrix @ step
            following = 1 / (2 * middle / half - ratio)
            step = following * ratio * step + 2 * following / half * self.inverse * force
            ratio = following
            field += step
        return field
