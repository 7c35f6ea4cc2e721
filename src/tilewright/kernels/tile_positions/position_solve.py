"""Tile positions from measured displacements: robust sparse least squares with a stage prior.

All in float64 on the host: a grid has hundreds of tiles, and float32 would round visibly.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import SuperLU, splu

from tilewright.kernels.backend import Bools, Floats, Ints
from tilewright.kernels.noise import mad_sigma
from tilewright.kernels.tile_positions.displacements import Overlaps

#: Probability that an accepted displacement is false: of 2,040 overlaps without a common signal
#: none was accepted, of those with little signal one false one and 854 right ones.
FALSE_MATCH_PROBABILITY = 1e-4
#: Spread that stages show in skew and scale, px per px: 1 degree is 0.017.
_SKEW = 0.02
#: Correlation's own error estimate is too small by this much (1.5 to 2.1 on truth sets of 60 to
#: 1500 electrons and 5 to 10 % overlap); a prior of twenty residuals, so that the few loops of a
#: sparse set do not claim more.
_OVERCONFIDENCE = 1.7
_PRIOR_RESIDUALS = 20.0
_ROUNDS = 12
#: Overlaps less certain than this close no loop and are never accepted.
_LEAST_CERTAIN = 0.2


@dataclass(frozen=True)
class Solution:
    """Positions of n tiles and the m edges behind them.

    Attributes
    ----------
    position_px : float64 (n, 2)
        (y, x), with the smallest y and the smallest x at 0.
    sigma_px : float64 (n,)
        Standard error per axis relative to the mean of component 0 (of the whole grid where no two
        tiles are tied).
    component : int64 (n,)
        Connected component by accepted edges, 0 the largest, ties to the lowest tile.
    accepted : bool (m,)
        Edges that were used.
    false_match_probability : float64 (m,)
        Probability that the displacement is false.
    residual_px : float64 (m,)
        Length of displacement minus difference of positions.
    """

    position_px: Floats
    sigma_px: Floats
    component: Ints
    accepted: Bools
    false_match_probability: Floats
    residual_px: Floats


def accept_edges(
    pairs: Ints,
    axis: Ints,
    offset_px: Floats,
    probability: Floats,
    max_shift_px: float,
    limit: float,
) -> tuple[Bools, Floats]:
    """Accept overlaps whose probability of being false is at most ``limit``.

    Parameters
    ----------
    pairs : ndarray of int, shape (m, 2)
        Tiles a and b.
    axis : ndarray of int, shape (m,)
        1 where b lies to the right of a, 0 where it lies below.
    offset_px : ndarray, shape (m, 2)
        Measured displacement less the stage's, (y, x).
    probability : ndarray, shape (m,)
        Probability that strips without a common signal correlate so.
    max_shift_px : float
        Half the side of the search window.
    limit : float
        Probability of accepting a false displacement.

    Returns
    -------
    accepted : ndarray of bool, shape (m,)
    posterior : ndarray of float64, shape (m,)
        Probability that the displacement is false: of accepted ones the smaller of
        ``probability`` and that after the best loop, of the others ``probability``.
    """
    closure = loop_closures(pairs, axis, offset_px, probability <= _LEAST_CERTAIN)
    by_loop = probability * _agreement(closure, max_shift_px)
    by_loop[~np.isfinite(closure)] = 1.0
    posterior = np.minimum(probability, by_loop)
    accepted = _rounded(posterior) <= limit
    return accepted, np.where(accepted, posterior, probability)


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
    """Return the probability that a place drawn from the window comes so near, in two loops."""
    return np.minimum(2.0 * (distance_px / max_shift_px) ** 2, 1.0)


def _rounded(probability: Floats) -> Floats:
    """Round to 2 significant digits, far above the noise of float32."""
    exponent = np.round(np.log10(np.maximum(probability, 1e-30)), 2)
    return np.asarray(10.0**exponent)


def connected_components(count: int, pairs: Ints) -> Ints:
    """Return each tile's connected component, numbered by size, ties to the lowest member.

    >>> connected_components(5, np.array([[3, 4], [1, 3]]))
    array([1, 0, 2, 0, 0])
    """
    ones = np.ones(len(pairs))
    graph = sparse.coo_matrix((ones, (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, label = csgraph.connected_components(graph, directed=False)
    names, first, size = np.unique(label, return_index=True, return_counts=True)
    rank = np.empty(len(names), np.int64)
    rank[np.lexsort((first, -size))] = np.arange(len(names))
    return np.asarray(rank[label], np.int64)


def solve_positions(
    nominal_px: Floats,
    row: Ints,
    overlaps: Overlaps,
    max_shift_px: float,
    false_match_probability: float = FALSE_MATCH_PROBABILITY,
) -> Solution:
    """Place tiles so that accepted displacements hold, and the stage's affine model elsewhere.

    Iteratively reweighted least squares starts from least absolute residuals and ends with Cauchy
    weights; edges further off than 6 standard errors and 1 px are rejected.

    Parameters
    ----------
    nominal_px : ndarray, shape (n, 2)
        Stage positions (y, x).
    row : ndarray of int, shape (n,)
        Row of each tile.
    overlaps : Overlaps
        Measured displacements.
    max_shift_px : float
        Stage tolerance per axis: the prior of the stage's spread (alone up to three accepted edges)
        and of its backlash.
    false_match_probability : float
        Displacements that are false with at most this probability are accepted.

    Returns
    -------
    Solution
        Of tiles that no accepted edge ties, the place by the stage's model.

    Examples
    --------
    >>> nominal, pairs = np.array([[0.0, 0.0], [0.0, 90.0]]), np.array([[0, 1]])
    >>> move, sigma, one = np.array([[1.0, 92.0]]), np.full((1, 2), 0.02), np.ones(1)
    >>> overlaps = Overlaps(pairs, move, sigma, score=one, false_match_probability=1e-9 * one)
    >>> solve_positions(nominal, np.zeros(2), overlaps, 8.0).position_px.round(1).tolist()
    [[0.0, 0.0], [1.0, 92.0]]
    """
    pairs, nominal = overlaps.pairs, np.asarray(nominal_px, np.float64)
    step = nominal[pairs[:, 1]] - nominal[pairs[:, 0]]
    offset = overlaps.displacement_px - step
    model, prior = _stage_model(nominal, row), np.array([_SKEW, _SKEW, max_shift_px])
    design = model[pairs[:, 1]] - model[pairs[:, 0]]
    axis = (np.abs(step[:, 1]) > np.abs(step[:, 0])).astype(np.int64)
    chance, limit = overlaps.false_match_probability, false_match_probability
    accepted, probability = accept_edges(pairs, axis, offset, chance, max_shift_px, limit)
    stage = _stage_spread(design[accepted], prior, offset[accepted], max_shift_px)
    return _solve(nominal, model, prior, stage, overlaps, offset, accepted, probability)


def _stage_model(nominal: Floats, row: Ints) -> Floats:
    """Return columns (n, 3) of skew and scale, and of a backlash between alternate rows."""
    # A snake scan arrives at them from both sides.
    model: Floats = np.column_stack([nominal, row % 2]).astype(np.float64)
    return np.asarray(model - model.mean(axis=0))


def _solve(
    nominal: Floats,
    model: Floats,
    prior: Floats,
    stage: float,
    overlaps: Overlaps,
    offset: Floats,
    accepted: Bools,
    probability: Floats,
) -> Solution:
    """Solve for the positions; edges that contradict the others are rejected, three times."""
    count, pairs, edge_sigma_px = len(nominal), overlaps.pairs, overlaps.sigma_px
    for last in (False, False, False, True):
        problem = _Problem(count, model, prior, stage, pairs[accepted])
        correction, weight, scale = problem.robust(offset[accepted], edge_sigma_px[accepted])
        residual = offset - (correction[pairs[:, 1]] - correction[pairs[:, 0]])
        limit = np.maximum(1.0, 6.0 * scale * edge_sigma_px)
        outliers = accepted & (np.abs(residual) > limit).any(axis=1)
        if last or not outliers.any():
            break
        accepted = accepted & ~outliers
    component = connected_components(count, pairs[accepted])
    position = nominal + correction
    return Solution(
        position - position.min(axis=0),
        problem.standard_error(weight, component),
        component,
        accepted,
        probability,
        np.hypot(residual[:, 0], residual[:, 1]),
    )


def _stage_spread(design: Floats, prior: Floats, offset: Floats, max_shift_px: float) -> float:
    """Return the stage's spread per axis about an affine model fitted to the edges."""
    widest = max_shift_px / math.sqrt(3.0)  # uniform within the tolerance
    freedom = 2 * (len(design) - len(prior))
    if freedom <= 0:
        return widest
    # Two tiles' errors make one edge's.
    spread = math.hypot(*(_spread_about(design, prior, values) for values in offset.T)) / 2.0
    # A stage that uses its whole tolerance is one more residual.
    square = (widest**2 + freedom * spread**2) / (1 + freedom)
    return max(0.5, math.sqrt(square))


def _spread_about(design: Floats, prior: Floats, offset: Floats) -> float:
    """Return the spread of offsets (m,) about the stage model with least absolute residuals."""
    weight = np.ones(len(offset))
    for _ in range(10):
        normal = (design * weight[:, None]).T @ design + np.diag(1.0 / prior**2)
        residual = offset - design @ np.linalg.solve(normal, design.T @ (weight * offset))
        weight = 1.0 / np.maximum(np.abs(residual), 0.1)
    return float(mad_sigma(residual))


class _Problem:
    """Unknowns per axis: corrections of n tiles, then the stage model's coefficients."""

    def __init__(self, count: int, model: Floats, prior: Floats, stage: float, pairs: Ints) -> None:
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
        stage_rows = sparse.csr_matrix(
            sparse.hstack([sparse.identity(count), sparse.csr_matrix(-model)]) * (1.0 / stage)
        )
        ridge = sparse.hstack([sparse.csr_matrix((len(prior), count)), sparse.diags(1.0 / prior)])
        fixed = sparse.csr_matrix(sparse.vstack([stage_rows, ridge]))
        self.prior = (fixed.T @ fixed).tocsc()
        parts = len(np.unique(connected_components(count, pairs))) if edges else count
        self.loops = edges - (count - parts)

    def factor(self, weight: Floats) -> SuperLU:
        normal = self.prior + self.edges.T @ sparse.diags(weight) @ self.edges
        return splu(normal.tocsc())

    def fit(self, weight: Floats, offset: Floats) -> Floats:
        """Return corrections (n, 2), without the coefficients."""
        columns = [
            self.factor(weight[:, axis]).solve(self.edges.T @ (weight[:, axis] * offset[:, axis]))
            for axis in (0, 1)
        ]
        return np.stack(columns, axis=1)[: self.count]

    def robust(self, offset: Floats, sigma: Floats) -> tuple[Floats, Floats, float]:
        """Return corrections (n, 2), final weights (m, 2) in px⁻² and the scale of sigma."""
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
        spread = float(mad_sigma(residual)) / np.sqrt(max(share, 0.1))
        freedom = 2.0 * max(self.loops, 0)
        square = freedom * spread**2 + _PRIOR_RESIDUALS * _OVERCONFIDENCE**2
        return float(np.sqrt(square / (freedom + _PRIOR_RESIDUALS)))

    def standard_error(self, weight: Floats, component: Ints) -> Floats:
        """Return the standard error (n,) relative to component 0, the axes' root mean square."""
        reference = np.zeros(self.prior.shape[0])
        among = (
            component == 0 if np.count_nonzero(component == 0) > 1 else np.ones(self.count, bool)
        )
        reference[: self.count][among] = 1.0 / np.count_nonzero(among)
        variance = np.zeros(self.count)
        for axis in (0, 1):
            factor = self.factor(weight[:, axis])
            mean = factor.solve(reference)
            variance += float(reference @ mean) - 2.0 * mean[: self.count]
            for start in range(0, self.count, 256):
                stop = min(start + 256, self.count)
                unit = np.zeros((self.prior.shape[0], stop - start))
                unit[np.arange(start, stop), np.arange(stop - start)] = 1.0
                inverse = factor.solve(unit)
                variance[start:stop] += inverse[np.arange(start, stop), np.arange(stop - start)]
        return np.sqrt(np.maximum(variance / 2.0, 0.0))
