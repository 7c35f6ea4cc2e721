"""Evidence of flat-field and camera offset from two tiles that show the same specimen.

A cell of the specimen's brightness ``s`` reads ``offset + flat * s`` in either tile, so
``(first - offset) / flat_first - (second - offset) / flat_second`` is zero whatever the
specimen is. This difference is linear in the offset and, near a solution, in the log
flat-field; unlike a log-ratio it has no bias where few photons were counted, and dark cells
need no threshold: they measure the offset. All on the host in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.kernels.backend import Bools, Floats, Ints
from tilewright.kernels.illumination.flat_basis import legendre_design, log_flat
from tilewright.kernels.illumination.overlap_cells import OverlapCells
from tilewright.kernels.noise import mad_sigma

_FOLDS = 5
_SIGNAL_BINS = 16
#: Cells whose relative difference scatters more than this do not count in the rms.
_MAX_SCATTER = 0.4
#: Parts of a tile's side; cells of one edge in one of these squares err together.
_PARTS = 4


@dataclass(frozen=True)
class InformationForm:
    """A Gaussian in the coefficients of the log flat-field, then the offset in counts.

    Attributes
    ----------
    matrix : float64 (k + 1, k + 1)
        Precision: the inverse of the covariance.
    vector : float64 (k + 1,)
        Precision times mean.
    """

    matrix: Floats
    vector: Floats

    def __add__(self, other: InformationForm) -> InformationForm:
        """Join independent evidence."""
        return InformationForm(self.matrix + other.matrix, self.vector + other.vector)

    def __sub__(self, other: InformationForm) -> InformationForm:
        """Leave evidence out."""
        return InformationForm(self.matrix - other.matrix, self.vector - other.vector)

    def mean(self) -> Floats:
        """Return the mean."""
        return np.asarray(np.linalg.solve(self.matrix, self.vector))

    @classmethod
    def none(cls, size: int) -> InformationForm:
        """Return no evidence."""
        return cls(np.zeros((size, size)), np.zeros(size))


@dataclass(frozen=True)
class Differences:
    """Differences of all cells at one flat-field and offset; arrays of length m, counts.

    Attributes
    ----------
    cells : OverlapCells
        The cells that are compared.
    signal : Floats
        Brightness of the specimen.
    value : Floats
        First less second tile, both corrected.
    scatter : Floats
        Robust standard deviation of ``value`` among cells of like signal.
    robust : Floats
        Weight of each cell, 1 for an inlier.
    by_offset : Floats
        Change of ``value`` if the offset were one count higher.
    """

    cells: OverlapCells
    signal: Floats
    value: Floats
    scatter: Floats
    robust: Floats
    by_offset: Floats

    @property
    def has_signal(self) -> Bools:
        """Cells whose signal stands out of their scatter."""
        return (self.scatter < _MAX_SCATTER * self.signal) & (self.robust > 0)

    def rms(self, relative: Floats) -> float:
        """Return the rms of relative differences (m,) of cells with signal, neighbours averaged.

        The mean of the cells of one edge in one square of a quarter of the tile's side: noise of
        single cells is no unevenness. Debris and wrong positions have little weight.
        NaN where no cell has signal.
        """
        valid = self.has_signal
        if not valid.any():
            return float("nan")
        weight = (self.robust * (self.signal / self.scatter) ** 2)[valid]
        group = _neighbours(self.cells.take(valid))
        power = np.bincount(group, weight)
        mean = np.bincount(group, weight * relative[valid]) / power
        return float(np.sqrt(np.average(mean**2, weights=power)))


def relative_difference(
    cells: OverlapCells, flat_first: Floats, flat_second: Floats, offset_counts: float
) -> Floats:
    """Return the difference of corrected counts over the specimen's brightness, per cell.

    >>> one = np.ones(1)
    >>> cells = OverlapCells(np.zeros(1, int), 120 * one, 110 * one, one[:, None], one[:, None])
    >>> relative_difference(cells, one, one, 100.0).round(3).tolist()
    [0.667]
    """
    signal, value = _signal_and_difference(cells, flat_first, flat_second, offset_counts)
    return np.asarray(value / np.maximum(signal, 1e-6))


def _signal_and_difference(
    cells: OverlapCells, flat_first: Floats, flat_second: Floats, offset_counts: float
) -> tuple[Floats, Floats]:
    """Return the specimen's brightness, and the first less the second tile, both corrected."""
    first, second = cells.first - offset_counts, cells.second - offset_counts
    signal = (first + second) / (flat_first + flat_second)
    return signal, first / flat_first - second / flat_second


def differences(
    cells: OverlapCells, coefficient: Floats, offset_counts: float, *, robust: bool
) -> Differences:
    """Compare all cells under a flat-field and an offset.

    Parameters
    ----------
    cells : OverlapCells
        Raw counts.
    coefficient : ndarray of float64, shape (k,)
        Log flat-field (:mod:`tilewright.kernels.illumination.flat_basis`).
    offset_counts : float
        Counts without light.
    robust : bool
        Weight outliers down; False before the flat-field is roughly known.
    """
    flat_first = np.exp(log_flat(coefficient, cells.place_first))
    flat_second = np.exp(log_flat(coefficient, cells.place_second))
    signal, value = _signal_and_difference(cells, flat_first, flat_second, offset_counts)
    spread = scatter_by_signal(signal, value)
    weight = 1.0 / (1.0 + (0.5 * value / spread) ** 2) ** 2 if robust else np.ones_like(value)
    return Differences(cells, signal, value, spread, weight, 1.0 / flat_second - 1.0 / flat_first)


def scatter_by_signal(signal: Floats, value: Floats) -> Floats:
    """Return the robust standard deviation of ``value`` (m,) among those of like ``signal`` (m,).

    >>> noise = np.random.default_rng(0).normal(0, np.repeat([1.0, 9.0], 5000))
    >>> scatter_by_signal(np.arange(10_000.0), noise)[[0, 9_999]].round(-1)
    array([ 0., 10.])
    """
    if not signal.size:
        return np.ones_like(signal)
    limit = np.quantile(signal, np.arange(1, _SIGNAL_BINS) / _SIGNAL_BINS)
    group = np.searchsorted(limit, signal)
    spread = np.zeros(_SIGNAL_BINS)
    for k in np.unique(group):
        spread[k] = mad_sigma(value[group == k])
    return np.asarray(np.maximum(np.maximum(spread[group], 1e-3 * np.abs(signal)), 1e-3))


def information_by_fold(
    cell_differences: Differences, coefficient: Floats, offset_counts: float
) -> tuple[list[InformationForm], Ints]:
    """Return the evidence of each fold of edges, and the fold of each cell.

    Cells of an edge share errors (position, bleaching, the same specimen in several planes), so
    variances are raised by how far means of neighbouring cells scatter beyond single cells.
    """
    names, index = np.unique(cell_differences.cells.edge, return_inverse=True)
    fold = (np.random.default_rng(0).permutation(len(names)) % _FOLDS)[index]
    factor = _common_error(cell_differences)
    parts = []
    for k in range(_FOLDS):
        inside = np.flatnonzero(fold == k)
        cells = cell_differences.cells.take(inside)
        design = legendre_design(cells.place_first)
        design -= legendre_design(cells.place_second)
        root = np.sqrt(cell_differences.robust[inside]) / cell_differences.scatter[inside]
        design *= (cell_differences.signal[inside] * root)[:, None]
        rows = np.concatenate(
            [design, (-cell_differences.by_offset[inside] * root)[:, None]], axis=1
        )
        mean = np.append(coefficient, offset_counts)
        matrix = rows.T @ rows
        vector = rows.T @ (cell_differences.value[inside] * root) + matrix @ mean
        parts.append(InformationForm(matrix / factor, vector / factor))
    return parts, fold


def _common_error(cell_differences: Differences) -> float:
    """Variance of means of neighbouring cells over what independent cells would have, from 1."""
    if not len(cell_differences.cells):
        return 1.0
    group = _neighbours(cell_differences.cells)
    weight = cell_differences.robust / cell_differences.scatter**2
    score = np.bincount(group, weight * cell_differences.signal * cell_differences.value)
    power = np.bincount(group, weight * cell_differences.signal**2)
    return max(1.0, float(mad_sigma(score / np.sqrt(np.maximum(power, 1e-12)))) ** 2)


def _neighbours(cells: OverlapCells) -> Ints:
    """Return one number for all cells of an edge in one square of the first tile."""
    square = np.clip(np.floor((cells.place_first + 1.0) * (_PARTS / 2)), 0, _PARTS - 1)
    key = (cells.edge * _PARTS + square[:, 0].astype(np.int64)) * _PARTS
    _, group = np.unique(key + square[:, 1].astype(np.int64), return_inverse=True)
    return np.asarray(group, dtype=np.int64)
