"""What the mean of all tiles tells about the flat-field, and how far it can be trusted.

Tissue has no preferred place in a tile, so the corrected mean of many tiles is even. How far
it strays by chance is seen in the scatter among tiles: much for nine tiles of single cells,
little for a hundred that tissue fills. Overlaps see borders; this sees the interior.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tilewright.kernels.flat_basis import degrees, design_grid
from tilewright.kernels.overlap_photometry import Knowledge

Float = NDArray[np.float64]

#: Share of even means of which one degree strays beyond chance.
_FALSE_ALARM = 1e-3


@dataclass(frozen=True)
class TileMean:
    """Mean of the tiles under one flat-field and offset.

    Attributes
    ----------
    knowledge : Knowledge
        What it tells about flat-field and offset; nothing of fewer than two tiles.
    excess : float
        Relative rms of what is uneven in it beyond chance: structure that the flat-field lacks.
    """

    knowledge: Knowledge
    excess: float


def tile_mean(
    images: Float, flat: Float, coefficient: Float, offset_counts: float, order: int
) -> TileMean:
    """Compare the mean of all tiles with an even one.

    Parameters
    ----------
    images : ndarray of float64, shape (n, y, x)
        Counts of each tile in blocks, planes averaged, none saturated.
    flat : ndarray of float64, shape (y, x)
        The flat-field of ``coefficient`` at the blocks.
    coefficient : ndarray of float64, shape (k,)
        Log flat-field about which the mean is linearised.
    offset_counts : float
        Counts without light.
    order : int
        Largest total degree.

    Returns
    -------
    TileMean
        The error of each coefficient is the scatter among tiles, pooled over the coefficients
        of one total degree, which tissue without a preferred direction fills alike.
    """
    columns, n = len(coefficient), len(images)
    nothing = TileMean(Knowledge(np.zeros((columns + 1, columns + 1)), np.zeros(columns + 1)), 0.0)
    if n < 2:
        return nothing
    even = (images - offset_counts).reshape(n, -1) / flat.ravel()
    level = even.mean(axis=1)
    typical = float(level.mean())
    if typical <= 0:
        return nothing
    # A tile ten times as bright as the mean counts twice as much as one of the mean, not ten
    # times; one that is nearly empty, whose shape depends on the offset, hardly at all.
    weight = 1.0 / (np.maximum(level, 0.0) + typical)
    total = float((weight * level).sum())
    mean = weight @ even / total
    design = design_grid((flat.shape[0], flat.shape[1]), order)
    design = (design - design.mean(axis=0)) / design.shape[0]
    uneven = mean @ design
    apart = weight[:, None] * (even - level[:, None] * mean) @ design * (n / total)
    degree = degrees(order).sum(axis=1)
    variance = np.bincount(degree, (apart**2).sum(axis=0))[1:] / (n * (n - 1))
    members = np.bincount(degree)[1:]
    precision = 1.0 / np.maximum((variance / members)[degree - 1], 1e-10)
    # One count more of offset: each tile loses 1 / flat.
    by_offset = (1.0 / flat.ravel()) @ design * (float(weight.sum()) / total)
    rows = np.concatenate([np.eye(columns), by_offset[:, None]], axis=1)
    matrix = rows.T @ (precision[:, None] * rows)
    vector = rows.T @ (precision * uneven) + matrix @ np.append(coefficient, offset_counts)
    chance = variance * stats.f.isf(_FALSE_ALARM, members, members * (n - 1))
    excess = np.maximum(np.bincount(degree, uneven**2)[1:] - chance, 0.0).sum()
    return TileMean(Knowledge(matrix, vector), float(np.sqrt(excess)))
