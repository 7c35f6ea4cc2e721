"""Dark rings that processing draws around bright objects, of any width up to 64 px.

Raw planes say what may be there: light out of focus only falls with the distance from an object.
Where the darkest raw plane is no darker than further out, a plane that is has a ring drawn in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

#: Width of a ring, and how far rings go from an object's edge; the last quarter is its background.
RING_PX, REACH_PX = 2, 64
#: An object is what is brighter than this share of its peak; others near it, and what is around
#: them, do not count.
_OBJECT, _AROUND_PX = 0.2, 12
#: A quarter of a ring counts with so many pixels.
_LEAST_PX = 8
#: A background is at least this share of what the darkest raw plane shows.
_LEAST_FAR = 0.25
Image = NDArray[Any]


def ring_medians(planes: Image, peak: tuple[int, int], shown: Image) -> NDArray[np.float64]:
    """Return medians (4, z, rings) of planes (z, y, x) around the object at ``peak``.

    By its four quarters and the distance from its edge. ``shown`` (y, x) says where bright objects
    are. NaN where a ring has few pixels.
    """
    bright = shown > _OBJECT * shown[peak]
    labels, _ = ndimage.label(bright)
    own = labels == labels[peak]
    away = np.asarray(ndimage.distance_transform_edt(~own))
    others = bright & ~own
    if others.any():
        away[np.asarray(ndimage.distance_transform_edt(~others)) < _AROUND_PX] = np.inf
    ring = np.ceil(np.where(away <= REACH_PX, away, 0) / RING_PX).astype(np.intp)
    y, x = (np.arange(n) - at for n, at in zip(shown.shape, peak, strict=True))
    quarter = 2 * (y[:, None] + x >= 0) + (y[:, None] - x >= 0)
    rings = np.full((4, len(planes), REACH_PX // RING_PX), np.nan)
    for q, _, i in np.ndindex(4, 1, rings.shape[2]):
        at = (ring == i + 1) & (quarter == q)
        if at.sum() >= _LEAST_PX:
            rings[q, :, i] = np.median(planes[:, at], axis=1)
    return rings


def dark_ring(plane: NDArray[np.float64], raw: NDArray[np.float64]) -> float | None:
    """Return the share of its background that the darkest ring around an object lacks, 0 to 1.

    What processing draws goes all around: three of the four quarters must show it, which tissue
    beside an object seldom does; all there are at a border that cuts some off.

    Parameters
    ----------
    plane : ndarray of float64, shape (4, rings)
        Of the plane in focus, zero light at 0, from :func:`ring_medians`.
    raw : ndarray of float64, shape (4, rings)
        Of the darkest raw plane at each ring, zero light at 0.

    Returns
    -------
    float or None
        None where the object has no background.
    """
    far = slice(-plane.shape[1] // 4, None)
    known = np.isfinite(plane) & np.isfinite(raw)
    if known[:, far].sum() < known[:, far].size / 2:
        return None
    here, there = (float(np.median(v[:, far][known[:, far]])) for v in (plane, raw))
    level = max(here, _LEAST_FAR * there, 1.0)
    # What no plane focuses is in every raw plane and may have been taken out.
    expected = np.minimum(raw - max(there - here, 0.0), here)
    lacking = np.where(known, (expected - plane) / level, np.nan)
    return max(float(_all_around(lacking).max()), 0.0)


def _all_around(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what three of four quarters have at least, over neighbouring rings.

    NaN is not known: of two or three quarters all count, and one says nothing.
    """
    mean = np.sort((values[:, 1:] + values[:, :-1]) / 2, axis=0)
    known = np.isfinite(mean).sum(axis=0)
    around: NDArray[np.float64] = np.where(known == 4, mean[1], mean[0])
    return np.where(known > 1, around, 0)


def darkest(rings: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the least of the planes' rings (4, z, rings), without warning of rings of NaN."""
    least: NDArray[np.float64] = np.where(np.isnan(rings), np.inf, rings).min(axis=1)
    least[np.isinf(least)] = np.nan
    return least
