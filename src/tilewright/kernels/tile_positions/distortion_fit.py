"""Lens distortion from overlaps: displacements along each one, a robust fit, a held-out test.

A place of the specimen that tile a shows at ``u_a`` and tile b at ``u_b`` says
``u_a - u_b = position(b) - position(a) + d(u_b) - d(u_a)`` for a field ``d`` that all tiles share.
Each overlap is cut into blocks along its length; its own translation is free, so the tiles'
positions have no part in the fit. All of it is float64 on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri, stdtr

from tilewright.kernels.backend import Array, Backend, Bools, Floats, Ints
from tilewright.kernels.device_memory import map_with_oom_split
from tilewright.kernels.tile_positions.correlation_peak import climb, subpixel
from tilewright.kernels.tile_positions.displacements import (
    OOM_HINT,
    Strips,
    batches,
    halves,
    select_strips,
)
from tilewright.kernels.tile_positions.distortion import Distortion, basis
from tilewright.kernels.tile_positions.false_match import along
from tilewright.kernels.tile_positions.overlap_strips import StripPlan
from tilewright.kernels.tile_positions.phase_correlation import STRIDE, filter_strips

#: Blocks along an overlap, and their least length in pixels of the filtered strips.
_BLOCKS, _LEAST_BLOCK = 8, 14
#: Part of a strip's length that the other strip shares at the usual tolerance of a stage.
_SHARED = 0.94
#: Overlaps of one direction that are measured; more make the field no surer than it need be.
_MOST = 96
#: Pairs of strips per batch.
_BATCH = 8
#: NCC below which a block does not count.
_LEAST_SCORE = 0.3
#: Blocks farther than this from their overlap's displacement show something else, px.
_FARTHEST_PX = 8.0
_ROUNDS = 10
#: Residuals beyond so many robust standard deviations count less and less (Cauchy).
_CAUCHY = 2.5
#: Prior spread of the terms, as a share of half the diagonal: microscopes have less.
_PRIOR_SHARE = 0.02
#: A spread by the median knows as much as the root mean square of this part of the values.
_MEDIAN_SHARE = 0.37
#: Both halves' overlaps must say so by this many standard errors: chance does in 3e-5 of sets.
SURE = 4.0
#: A smaller displacement of the corners is not corrected, px: it is the error of a good position.
LEAST_CORNER_PX = 0.2


@dataclass(frozen=True)
class Blocks:
    """Displacements of n blocks along overlaps."""

    overlap: Ints
    """int64 (n,): overlap of each block."""
    place_px: Floats
    """float64 (n, 2): middle of the block's structure in tile b, (y, x)."""
    displacement_px: Floats
    """float64 (n, 2): pixel in tile a less pixel in tile b of what both show."""
    precision: Floats
    """float64 (n, 2): inverse variance that correlation claims, right up to a common factor."""


@dataclass(frozen=True)
class DistortionFit:
    """A field, and its test on held-out overlaps."""

    distortion: Distortion
    terms_sigma_px: Floats
    """float64 (3,): standard errors of its terms."""
    held_out_z: tuple[float, float]
    """Standard errors by which the field of one half of the overlaps explains the other half."""
    held_out_px: tuple[float, float]
    """Root mean square, per axis, of held-out blocks about their overlap's mean, without and with
    the field of the other half.
    """
    overlaps: int
    blocks: int
    """How many were measured."""
    used: bool
    """Whether tiles are corrected by it."""

    def refined(self, residual: DistortionFit) -> DistortionFit:
        """Return this fit with the field added that strips show after its correction."""
        terms = self.distortion.terms_px + residual.distortion.terms_px
        field = self.distortion.with_terms(terms)
        return replace(self, distortion=field, terms_sigma_px=residual.terms_sigma_px)


def measure_blocks(
    backend: Backend,
    plans: Sequence[StripPlan],
    firsts: Sequence[Strips],
    seconds: Sequence[Strips],
    displacement_px: Floats,
    accepted: Bools,
    sigma_px: float,
) -> Blocks:
    """Measure displacements along accepted overlaps, of at most 96 of each direction.

    Parameters
    ----------
    firsts, seconds : sequence of Strips, each (m, y, x)
        Strips of tiles a and b of every plan.
    displacement_px : ndarray, shape (m, 2)
        ``position(b) - position(a)`` as measured on whole overlaps, of all plans together.
    sigma_px : float
        Width of the Laplacian of Gaussian.

    Examples
    --------
    >>> from tilewright.kernels.tile_positions.overlap_strips import plan_strips
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(128, 228)), 2)
    >>> plans = plan_strips(np.array([[0.0, 0.0], [0.0, 100.0]]), (128, 128))
    >>> (_, a), (_, b), (_, width) = plans[0].origin_a, plans[0].origin_b, plans[0].shape
    >>> firsts, seconds = ([scene[None, :, x : x + width]] for x in (a, 100 + b))
    >>> moves, used = np.array([[0.0, 100.0]]), np.array([True])
    >>> blocks = measure_blocks(cpu, plans, firsts, seconds, moves, used, 1.5)
    >>> len(blocks.overlap), np.allclose(blocks.displacement_px, moves, atol=0.1)
    (4, True)
    """
    results: list[Blocks] = []
    start = 0
    single = replace(backend, workers=1)
    with ThreadPoolExecutor(max(1, backend.workers)) as pool:
        for plan, a, b in zip(plans, firsts, seconds, strict=True):
            here = np.flatnonzero(accepted[start : start + len(plan.pairs)])
            if len(here) > _MOST:
                here = here[np.linspace(0, len(here) - 1, _MOST).round().astype(np.int64)]
            moves = displacement_px[start + here]
            measure = _Measure(single, plan, a, b, here, moves, start, sigma_px)
            for parts in pool.map(measure.batch, batches(len(here), _BATCH)):
                results.extend(parts)
            start += len(plan.pairs)
    if not results:
        return Blocks(np.zeros(0, np.int64), *(np.zeros((0, 2)) for _ in range(3)))
    columns = zip(*(vars(part).values() for part in results), strict=True)
    return Blocks(*(np.concatenate(column) for column in columns))


@dataclass(frozen=True)
class _Measure:
    """Blocks of the selected overlaps of one plan."""

    backend: Backend
    plan: StripPlan
    firsts: Strips
    seconds: Strips
    selection: Ints
    displacement_px: Floats
    number: int
    sigma_px: float

    def batch(self, part: slice) -> list[Blocks]:
        """Return the blocks of some of the selected overlaps."""
        return map_with_oom_split(self.backend, self._blocks, part, halves, OOM_HINT)

    def _blocks(self, part: slice) -> Blocks:
        backend, sigma_px = self.backend, self.sigma_px
        pairs = self.selection[part]
        both = (select_strips(strips, pairs) for strips in (self.firsts, self.seconds))
        a, b = (filter_strips(backend, strips, sigma_px) for strips in both)
        shift = (self.displacement_px[part] - self.plan.displacement(np.zeros(2))) / STRIDE
        whole = np.rint(shift).astype(np.int64)
        axis = along((a.shape[1], a.shape[2]))
        if axis == 1:
            a, b = a.transpose(0, 2, 1), b.transpose(0, 2, 1)
        # From here on axis 1 runs along the overlap and axis 2 across it.
        ahead, across = whole[:, axis], whole[:, 1 - axis]
        size = max(int(_SHARED * a.shape[1]) // _BLOCKS, _LEAST_BLOCK)
        at = [(i, y) for i, move in enumerate(ahead) for y in _tops(a.shape[1], int(move), size)]
        if not at:
            return Blocks(np.zeros(0, np.int64), *(np.zeros((0, 2)) for _ in range(3)))
        pair, top = np.array(at, np.int64).T
        cut_a = backend.xp.stack([a[i, y + ahead[i] : y + ahead[i] + size] for i, y in at])
        cut_b = backend.xp.stack([b[i, y : y + size] for i, y in at])
        starts = np.zeros((len(at), 1, 2), np.int64)
        starts[:, 0, 1] = across[pair]
        middle = self._middles(cut_b, across[pair])
        middle[:, 0] += top
        with backend.fft_threads():
            best = climb(backend, cut_a, cut_b, starts, max(8.0, 3.0 * sigma_px) / STRIDE)
            fine = subpixel(backend, cut_a, cut_b, best.shift)
        shifts = best.shift + fine.delta_px
        shifts[:, 0] += ahead[pair]
        score = np.maximum(best.score, fine.score)
        rho = np.clip(score, 1e-3, 0.999)
        precision = fine.curvature * (best.pixels * rho / (1.0 - rho**2))[:, None]
        if axis == 1:
            shifts, middle, precision = shifts[:, ::-1], middle[:, ::-1], precision[:, ::-1]
        edge = math.ceil(1.5 * sigma_px / STRIDE)
        displacement = self.plan.displacement(STRIDE * shifts)
        off = np.abs(displacement - self.displacement_px[part][pair]).max(axis=1)
        good = (precision > 0).all(axis=1) & (score >= _LEAST_SCORE) & (off <= _FARTHEST_PX)
        return Blocks(
            self.number + pairs[pair[good]],
            (np.array(self.plan.origin_b) + STRIDE * (middle + edge))[good],
            displacement[good],
            precision[good],
        )

    def _middles(self, blocks: Array, across: Ints) -> Floats:
        """Return the middle (n, 2) of the structure in blocks, of what tile a shows too."""
        width = blocks.shape[2]
        column = np.arange(width)[None, :] + across[:, None]
        inside = self.backend.asarray((column >= 0) & (column < width))
        energy = blocks * blocks * inside[:, None, :]
        middles = []
        for sums in (energy.sum(axis=2), energy.sum(axis=1)):
            host = np.asarray(self.backend.to_numpy(sums), np.float64) + 1e-30
            middles.append(host @ np.arange(host.shape[1]) / host.sum(axis=1))
        return np.stack(middles, axis=1)


def _tops(length: int, ahead: int, size: int) -> list[int]:
    """Return where blocks of ``size`` begin in strip b, spread over what strip a has too.

    >>> _tops(120, -6, 14), _tops(120, 3, 14), _tops(20, 9, 14)
    ([6, 20, 34, 48, 63, 77, 91, 106], [0, 14, 29, 44, 58, 73, 88, 103], [])
    """
    low, high = max(0, -ahead), min(length, length - ahead)
    count = min(max(high - low, 0) // size, _BLOCKS)
    return [low + (high - low - size) * k // max(count - 1, 1) for k in range(count)]


def meeting_lines(plans: Sequence[StripPlan], shape: tuple[int, int]) -> tuple[float, float]:
    """Return along which lines (y, x) tiles of ``shape`` meet; see :class:`Distortion`.

    The lines of a direction without overlaps are those of the other one.

    >>> from tilewright.kernels.tile_positions.overlap_strips import plan_strips
    >>> plans = plan_strips(np.array([[0.0, 0.0], [0.0, 80.0]]), (100, 100))
    >>> meeting_lines(plans, (100, 100))
    (0.8, 0.8)
    """
    lines: dict[int, float] = {}
    for plan in plans:
        steps = np.abs(np.median(plan.displacement(plan.expected_px), axis=0)) / shape
        axis = int(np.argmax(steps))
        lines[axis] = min(float(steps[axis]), 1.0)
    either = next(iter(lines.values()), 1.0)
    return lines.get(0, either), lines.get(1, either)


def fit_distortion(
    blocks: Blocks, shape: tuple[int, int], meeting: tuple[float, float] = (1.0, 1.0)
) -> DistortionFit | None:
    """Fit the field to blocks, and to either half of the overlaps to try it on the other.

    Every second overlap of a direction is in the other half. Weights fall with the residual as
    Cauchy's. The test is of the score: what the blocks of one half, less their overlap's mean, have
    in common with the other half's field, over its standard error, which counts overlaps whose
    blocks err together. Without distortion it exceeds 4 in one of 30,000 sets. None where fewer
    than two overlaps have two blocks.

    Parameters
    ----------
    shape : tuple of int
        (y, x) of a tile.
    meeting : tuple of float
        Of :class:`Distortion`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> moves = [0.0, 90.0] + rng.normal(0, 0.1, (40, 2))
    >>> blocks = Blocks(np.arange(40) // 8, rng.uniform(0, 100, (40, 2)), moves, np.ones((40, 2)))
    >>> bool(fit_distortion(blocks, (100, 100)).used)
    False
    """
    numbers, which, count = np.unique(blocks.overlap, return_inverse=True, return_counts=True)
    if np.count_nonzero(count >= 2) < 2:
        return None
    rows = _Rows.of(blocks, which, shape, meeting)
    half = _alternating(count)[which].repeat(2)
    prior = _PRIOR_SHARE * float(np.hypot(*shape)) / 2.0
    terms, covariance, scale, robust = rows.fit(np.ones(len(half), bool), prior)
    rows = replace(rows, precision=rows.precision * robust / scale**2)
    # Overlaps whose blocks err together make the test and the errors less sure.
    together = rows.overdispersion(terms)
    freedom = _MEDIAN_SHARE * max(len(half) - 2 * len(numbers) - 3, 1)
    z, before, after = _held_out_test(rows, half, prior, together, freedom)
    field = Distortion(0.0, 0.0, 0.0, shape, meeting).with_terms(terms)
    return DistortionFit(
        field,
        np.sqrt(np.diag(covariance) * together),
        z,
        (before, after),
        len(numbers),
        len(which),
        min(z) > SURE and after < before and field.corner_px >= LEAST_CORNER_PX,
    )


def _alternating(count: Ints) -> Ints:
    """Return the half, 0 or 1, of each overlap: those of one block come last."""
    half = np.empty(len(count), np.int64)
    half[np.argsort(count < 2, kind="stable")] = np.arange(len(count)) % 2
    return half


def _held_out_test(
    rows: _Rows, half: Ints, prior_px: float, together: float, freedom: float
) -> tuple[tuple[float, float], float, float]:
    """Return both halves' scores, and the rms of held-out blocks without and with the field."""
    z, before, after = [], 0.0, 0.0
    for number in (0, 1):
        other, *_ = rows.fit(half != number, prior_px)
        test, squares = rows.held_out(half == number, other)
        z.append(_normal(test / math.sqrt(together), freedom))
        before, after = before + squares[0], after + squares[1]
    per_px = float(rows.precision.sum())
    return (z[0], z[1]), math.sqrt(before / per_px), math.sqrt(after / per_px)


def _normal(t: float, freedom: float) -> float:
    """Return the standard errors of a normal distribution that are exceeded as often as ``t``.

    >>> round(_normal(6.2, 11.0), 2), round(_normal(-1.0, 1e6), 2)
    (3.99, -1.0)
    """
    tail = float(stdtr(freedom, -t))
    return -float(ndtri(min(max(tail, 1e-300), 1.0 - 1e-16)))


@dataclass(frozen=True)
class _Rows:
    """One row per block and axis: residual, terms (n, 3), precision, and group (overlap, axis)."""

    value: Floats
    terms: Floats
    precision: Floats
    group: Ints

    @classmethod
    def of(
        cls, blocks: Blocks, which: Ints, shape: tuple[int, int], meeting: tuple[float, float]
    ) -> _Rows:
        places = (blocks.place_px, blocks.place_px + blocks.displacement_px)
        terms = [basis(place, shape, meeting) for place in places]
        group = (2 * which[:, None] + np.arange(2)).ravel()
        value = blocks.displacement_px.ravel()
        return cls(value, (terms[0] - terms[1]).reshape(-1, 3), blocks.precision.ravel(), group)

    def centred(self, weight: Floats) -> tuple[Floats, Floats]:
        """Return residuals and terms less their group's weighted mean."""
        total = np.maximum(np.bincount(self.group, weight), 1e-300)
        columns = []
        for column in (self.value, *self.terms.T):
            mean = np.bincount(self.group, weight * column) / total
            columns.append(column - mean[self.group])
        return columns[0], np.stack(columns[1:], axis=1)

    def fit(self, rows: Bools, prior_px: float) -> tuple[Floats, Floats, float, Floats]:
        """Return terms (3,), their covariance, the scale of the errors and the weights (n,)."""
        robust = rows.astype(np.float64)
        terms, scale = np.zeros(3), 0.0
        count = int(np.count_nonzero(rows))
        freedom = max(count - len(np.unique(self.group[rows])), 1)
        for _ in range(_ROUNDS):
            weight = self.precision * robust
            value, design = self.centred(weight)
            residual = (value - design @ terms) * np.sqrt(self.precision)
            spread = 1.4826 * float(np.median(np.abs(residual[rows])))
            scale = max(spread * math.sqrt(count / freedom), 1e-9)
            robust = rows * 1.0 / (1.0 + (residual / (_CAUCHY * scale)) ** 2)
            weight = self.precision * robust / scale**2
            value, design = self.centred(weight)
            normal = (design * weight[:, None]).T @ design + np.eye(3) / prior_px**2
            covariance = np.asarray(np.linalg.inv(normal), np.float64)
            terms = np.asarray(covariance @ (design.T @ (weight * value)), np.float64)
        return terms, covariance, scale, robust

    def held_out(self, rows: Bools, terms: Floats) -> tuple[float, tuple[float, float]]:
        """Return the score in standard errors, and squared residuals without and with the field."""
        weight = self.precision * rows
        value, design = self.centred(weight)
        field = design @ terms
        squares = float(weight @ value**2), float(weight @ (value - field) ** 2)
        return float(weight @ (field * value)) / math.sqrt(
            float(weight @ field**2) + 1e-300
        ), squares

    def overdispersion(self, terms: Floats) -> float:
        """Return by how much overlaps err more than their blocks alone would, at least 1."""
        value, design = self.centred(self.precision)
        field = design @ terms
        overlap = self.group // 2
        scores = np.bincount(overlap, self.precision * field * (value - field))
        expected = float(self.precision @ field**2)
        return max(1.0, float(scores @ scores) / (expected + 1e-300))
