"""The camera offset from tiles without tissue."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

#: Images count as empty up to this share of the way from the darkest to the brightest.
_EMPTY_SHARE = 0.1
#: Groups of empty images whose scatter says how well the offset is known.
_GROUPS = 5


def empty_tile_offset(images: Float, flat: Float) -> tuple[float, float]:
    """Return the camera offset that makes empty tiles even, and its standard error.

    An empty tile shows ``offset + glow * flat``: the offset is the intercept of its counts
    over the flat-field. Overlaps compare two borders, where flat-fields are alike; an empty
    tile compares its middle with its corners. On the 63 brain tiles of the development data
    empty tiles give 721 to 729 counts whichever are taken, where overlaps gave 306.

    Parameters
    ----------
    images : ndarray of float64, shape (n, y, x)
        Raw counts, averaged over blocks so that noise is small.
    flat : ndarray of float64, shape (y, x)
        Flat-field at the same blocks.

    Returns
    -------
    offset_counts, error_counts : float
        From the pixelwise median of the empty images, which leaves out the tissue that some
        of them have in a corner; its standard error is the scatter of five groups of them,
        and infinite where there are fewer than ten or the flat-field is even.
    """
    level = np.median(images, axis=(1, 2))
    low, high = np.percentile(level, [5.0, 95.0])
    order = np.argsort(level, kind="stable")
    empty = images[order[level[order] <= low + _EMPTY_SHARE * (high - low)]]
    if len(empty) < 2 * _GROUPS or float(flat.std()) < 1e-3:
        return 0.0, float("inf")
    parts = [_intercept(empty[k::_GROUPS], flat) for k in range(_GROUPS)]
    return _intercept(empty, flat), float(np.std(parts, ddof=1)) / _GROUPS**0.5


def _intercept(images: Float, flat: Float) -> float:
    """Return the counts at flat-field 0 of the line through the pixelwise median."""
    _, intercept = np.polyfit(flat.ravel(), np.median(images, axis=0).ravel(), 1)
    return float(intercept)
