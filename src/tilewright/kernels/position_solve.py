"""Tile positions from measured displacements: robust sparse least squares with a stage prior.

All in float64 on the host: a grid has hundreds of tiles, and rounding would be seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import SuperLU, splu

from tilewright.kernels.edge_support import believe, least_absolute

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Spread that stages show in skew and scale, px per px: 1 degree is 0.017.
_SKEW = 0.02
#: Correlation's own error estimate is too small by this much (4 to 8 on truth sets); four
#: residuals' worth of belief in it, so that few loops do not claim more.
_OVERCONFIDENCE = 5.0
_BELIEF = 4.0
#: Residuals' worth of belief in a stage that uses its whole tolerance.
_STAGE_BELIEF = 2.0
#: Errors of positions on truth sets over those that loops explain: what all overlaps of one
#: direction share (residual shading, distortion) closes every loop.
_SHARED = 1.4
#: Smallest error of an edge: interpolation and residual distortion, px.
_FLOOR_PX = 0.005
_ROUNDS = 12


@dataclass(frozen=True)
class Solution:
    """Positions of n tiles and what m edges say about them.

    Attributes
    ----------
    position_px : ndarray of float64, shape (n, 2)
        (y, x), with the smallest y and the smallest x at 0.
    sigma_px : ndarray of float64, shape (n,)
        Standard error per axis relative to the mean of island 0 (of the whole grid where no
        two tiles are tied).
    island : ndarray of int64, shape (n,)
        Connected component by accepted edges, 0 the largest, ties to the lowest tile.
    accepted : ndarray of bool, shape (m,)
        Edges that were used.
    chance : ndarray of float64, shape (m,)
        Probability that the displacement is false.
    residual_px : ndarray of float64, shape (m,)
        Length of displacement minus difference of positions.
    stage_sigma_px : float
        Spread of the stage about its affine model, per axis.
    """

    position_px: Floats
    sigma_px: Floats
    island: Indices
    accepted: Bools
    chance: Floats
    residual_px: Floats
    stage_sigma_px: float


def islands(count: int, pairs: Indices) -> Indices:
    """Return each tile's connected component, numbered by size, ties to the lowest member.

    >>> islands(5, np.array([[3, 4], [1, 3]]))
    array([1, 0, 2, 0, 0])
    """
    ones = np.ones(len(pairs))
    graph = sparse.coo_matrix((ones, (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, label = connected_components(graph, directed=False)
    names, first, size = np.unique(label, return_index=True, return_counts=True)
    rank = np.empty(len(names), np.int64)
    rank[np.lexsort((first, -size))] = np.arange(len(names))
    return np.asarray(rank[label], np.int64)


def solve_positions(
    nominal_px: Floats,
    row: Indices,
    pairs: Indices,
    displacement_px: Floats,
    edge_sigma_px: Floats,
    chance: Floats,
    max_shift_px: float,
) -> Solution:
    """Place tiles so that believed displacements hold, and the stage's affine model elsewhere.

    The stage model has skew and scale per axis and a backlash between odd and even rows (a
    snake scan arrives from both sides). Iteratively reweighted least squares starts from least
    absolute residuals and ends with Cauchy weights; edges further off than 6 standard errors
    and 1 px are given up.

    Parameters
    ----------
    nominal_px : ndarray, shape (n, 2)
        Stage positions (y, x).
    row : ndarray of int, shape (n,)
        Row of each tile.
    pairs : ndarray of int, shape (m, 2)
        Tiles a and b of each edge.
    displacement_px, edge_sigma_px : ndarray, shape (m, 2)
        ``position(b) - position(a)`` and its relative standard error, (y, x).
    chance : ndarray, shape (m,)
        Probability that strips without a common signal correlate as these do.
    max_shift_px : float
        Stage tolerance, the prior where fewer than three edges tell more.
    """
    count = len(nominal_px)
    nominal = np.asarray(nominal_px, np.float64)
    offset = displacement_px - (nominal[pairs[:, 1]] - nominal[pairs[:, 0]])
    model = np.column_stack([nominal, row % 2]).astype(np.float64)
    model -= model.mean(axis=0)
    belief = np.array([_SKEW, _SKEW, max_shift_px])
    design = model[pairs[:, 1]] - model[pairs[:, 0]]
    step = np.abs(nominal[pairs[:, 1]] - nominal[pairs[:, 0]])
    axis = (step[:, 1] > step[:, 0]).astype(np.int64)
    support = believe(pairs, axis, offset, chance, design, belief, max_shift_px)
    use = support.accepted.copy()
    stage = _stage_spread(model, belief, pairs[use], offset[use], max_shift_px)
    # What is false after all lies anywhere in the window.
    risk = support.false_chance[:, None] * max_shift_px**2 / 3.0
    edge_sigma_px = np.sqrt(edge_sigma_px**2 + risk / _OVERCONFIDENCE**2)
    for _ in range(3):
        problem = _Problem(count, model, belief, stage, pairs[use])
        correction, weight, scale = problem.robust(offset[use], edge_sigma_px[use])
        residual = offset - (correction[pairs[:, 1]] - correction[pairs[:, 0]])
        limit = np.maximum(1.0, 6.0 * scale * edge_sigma_px)
        wrong = use & (np.abs(residual) > limit).any(axis=1)
        if not wrong.any():
            break
        use &= ~wrong
    else:
        problem = _Problem(count, model, belief, stage, pairs[use])
        correction, weight, _ = problem.robust(offset[use], edge_sigma_px[use])
        residual = offset - (correction[pairs[:, 1]] - correction[pairs[:, 0]])
    island = islands(count, pairs[use])
    position = nominal + correction
    return Solution(
        position - position.min(axis=0),
        problem.standard_error(weight, island),
        island,
        use,
        support.false_chance,
        np.hypot(residual[:, 0], residual[:, 1]),
        stage,
    )


def _stage_spread(
    model: Floats, belief: Floats, pairs: Indices, offset: Floats, max_shift_px: float
) -> float:
    """Return the stage's spread per axis about an affine model fitted to the edges."""
    known = max_shift_px / math.sqrt(3.0)  # uniform within the tolerance
    freedom = 2 * (len(pairs) - model.shape[1])
    if freedom <= 0:
        return known
    design = model[pairs[:, 1]] - model[pairs[:, 0]]
    spread = [least_absolute(design, belief, offset[:, axis])[1] for axis in (0, 1)]
    # Two tiles' errors make one edge's.
    seen = math.hypot(*spread) / 2.0
    square = (_STAGE_BELIEF * known**2 + freedom * seen**2) / (_STAGE_BELIEF + freedom)
    return max(0.5, math.sqrt(square))


class _Problem:
    """Unknowns per axis: corrections of n tiles, then the stage model's coefficients."""

    def __init__(
        self, count: int, model: Floats, belief: Floats, stage: float, pairs: Indices
    ) -> None:
        self.count = count
        edges = len(pairs)
        index = np.arange(edges)
        self.edges = sparse.csr_matrix(
            (
                np.repeat([-1.0, 1.0], edges),
                (np.tile(index, 2), np.concatenate([pairs[:, 0], pairs[:, 1]])),
            ),
            shape=(edges, count + model.shape[1]),
        )
        prior = sparse.csr_matrix(
            sparse.hstack([sparse.identity(count), sparse.csr_matrix(-model)]) * (1.0 / stage)
        )
        ridge = sparse.hstack([sparse.csr_matrix((len(belief), count)), sparse.diags(1.0 / belief)])
        fixed = sparse.csr_matrix(sparse.vstack([prior, ridge]))
        self.prior = (fixed.T @ fixed).tocsc()
        parts = len(np.unique(islands(count, pairs))) if edges else count
        self.loops = edges - (count - parts)

    def factor(self, weight: Floats) -> SuperLU:
        normal = self.prior + self.edges.T @ sparse.diags(weight) @ self.edges
        return splu(normal.tocsc())

    def fit(self, weight: Floats, offset: Floats) -> Floats:
        """Return corrections (n, 2) and keep the coefficients out of sight."""
        columns = [
            self.factor(weight[:, axis]).solve(self.edges.T @ (weight[:, axis] * offset[:, axis]))
            for axis in (0, 1)
        ]
        return np.stack(columns, axis=1)[: self.count]

    def robust(self, offset: Floats, sigma: Floats) -> tuple[Floats, Floats, float]:
        """Return corrections (n, 2), final weights (m, 2) in px⁻² and the scale of sigma."""
        sigma = np.maximum(sigma, _FLOOR_PX)
        base = 1.0 / (sigma * _OVERCONFIDENCE) ** 2
        weight, scale = base, _OVERCONFIDENCE
        if len(offset) == 0:
            return self.fit(weight, offset), weight, scale
        for step in range(_ROUNDS):
            correction = self.fit(weight, offset)
            residual = (offset - self.edges[:, : self.count] @ correction) / sigma
            if step < _ROUNDS // 2:
                weight = base / np.maximum(np.abs(residual) / _OVERCONFIDENCE, 0.3)
                continue
            scale = self._scale(residual)
            weight = 1.0 / ((sigma * scale) ** 2 * (1.0 + (residual / (3.0 * scale)) ** 2))
        return self.fit(weight, offset), weight, scale

    def _scale(self, residual: Floats) -> float:
        """Return by how much sigma must grow to explain the residuals that loops leave."""
        share = max(self.loops, 0) / len(residual)
        seen = 1.4826 * float(np.median(np.abs(residual))) / np.sqrt(max(share, 0.1))
        freedom = 2.0 * max(self.loops, 0)
        square = freedom * seen**2 + _BELIEF * _OVERCONFIDENCE**2
        return float(np.sqrt(square / (freedom + _BELIEF)))

    def standard_error(self, weight: Floats, island: Indices) -> Floats:
        """Return the standard error (n,) relative to island 0, the two axes' root mean square."""
        reference = np.zeros(self.prior.shape[0])
        among = island == 0 if np.count_nonzero(island == 0) > 1 else np.ones(self.count, bool)
        reference[: self.count][among] = 1.0 / np.count_nonzero(among)
        variance = np.zeros(self.count)
        for axis in (0, 1):
            factor = self.factor(weight[:, axis] / _SHARED**2)
            mean = factor.solve(reference)
            variance += float(reference @ mean) - 2.0 * mean[: self.count]
            for start in range(0, self.count, 256):
                stop = min(start + 256, self.count)
                unit = np.zeros((self.prior.shape[0], stop - start))
                unit[np.arange(start, stop), np.arange(stop - start)] = 1.0
                inverse = factor.solve(unit)
                variance[start:stop] += inverse[np.arange(start, stop), np.arange(stop - start)]
        return np.sqrt(np.maximum(variance / 2.0, 0.0))
