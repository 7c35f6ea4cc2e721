"""Dark rings that processing draws around bright objects, of any width up to 64 px.

Raw planes say what may be there: light out of focus only falls with the distance from an object.
Where the darkest raw plane is no darker than further out, a plane that is has a ring drawn in it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from skimage.measure import label

from tilewright.io.results.mosaic import Mosaic
from tilewright.kernels.backend import cells
from tilewright.quality.results import ImageLocation, QcContext, QcResult

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
#: Most objects, the brightest of cells of this side, and their least distance from each other.
_OBJECTS, _CELL_PX, _DISTANCE_PX = 12, 64, 32
#: An object is so many times as bright as the brightest pixel of the usual cell with light.
_TIMES = 3.0
#: An object's own reach beyond its brightest pixel.
OWN_PX = 24


def evaluate_rings(
    context: QcContext, plane: Mosaic, stack: Mosaic
) -> tuple[QcResult, list[ImageLocation]]:
    """Evaluate the darkest ring around all objects of an in-focus plane against the raw stack.

    Returns
    -------
    item, locations
        The worst of them, and where the four worst are.
    """
    found: list[tuple[float, int, int]] = []
    for y, x in bright_objects(plane):
        spans, peak = around((y, x))
        image = plane.read(0, *spans).astype(np.float64)
        share = dark_ring(ring_medians(image[None], peak, image)[:, 0], raw(stack, (y, x), image))
        found += [(round(share, 4), y, x)] if share is not None else []
    if not found:
        return context.evaluate("dark_rings", 0.0, "nothing stands out"), []
    found.sort(key=lambda ring: -ring[0])
    share, y, x = found[0]
    detail = f"around y {y:.0f} px, x {x:.0f} px" if share else ""
    locations = [ImageLocation("dark_rings", float(y), float(x), s) for s, y, x in found[:4] if s]
    return context.evaluate("dark_rings", share, detail), locations


def around(at: tuple[int, int]) -> tuple[tuple[slice, slice], tuple[int, int]]:
    """Return the spans (y, x) in which an object and its rings lie, and its place in them."""
    low = [max(c - REACH_PX - OWN_PX, 0) for c in at]
    y, x = (slice(n, c + REACH_PX + OWN_PX + 1) for n, c in zip(low, at, strict=True))
    return (y, x), (at[0] - low[0], at[1] - low[1])


def raw(stack: Mosaic, at: tuple[int, int], shown: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the medians (4, rings) of the darkest raw plane around an object, zero light at 0.

    ``shown`` (y, x) is what :func:`around` spans of the plane that shows the object's edge.
    """
    spans, peak = around(at)
    planes = stack.read(slice(None), *spans).astype(np.float64)
    planes -= float(stack.attributes.get("pedestal_counts", 0))
    darkest: NDArray[np.float64] = np.fmin.reduce(ring_medians(planes, peak, shown), axis=1)
    return darkest


def bright_objects(plane: Mosaic) -> list[tuple[int, int]]:
    """Return the brightest pixels (y, x) of a plane's brightest cells; memory holds few chunks."""
    side = _CELL_PX
    height, width = plane.shape[1:]
    rows, columns = (-(-n // side) for n in (height, width))
    top: NDArray[np.float64] = np.zeros((rows, columns))
    step = max(plane.chunk_px // side, 1)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        strip = plane.read(0, slice(first * side, min(last * side, height)), slice(0, width))
        # Cells at the border are filled up.
        lacking = ((last - first) * side - len(strip), columns * side - width)
        strip = np.pad(strip, [(0, n) for n in lacking], mode="edge")
        top[first:last] = cells(strip, side).max(axis=(1, 3))
    top -= float(plane.attributes.get("pedestal_counts", 0))
    positive = top[top > 0]
    if not positive.size:
        return []
    objects: list[tuple[int, int]] = []
    for k in np.argsort(-top, axis=None, kind="stable"):
        y, x = (int(i) * side for i in np.unravel_index(k, top.shape))
        if len(objects) == _OBJECTS or top.flat[k] < _TIMES * np.median(positive):
            break
        cell = plane.read(0, slice(y, min(y + side, height)), slice(x, min(x + side, width)))
        dy, dx = divmod(int(cell.argmax()), cell.shape[1])
        if all(np.hypot(y + dy - b, x + dx - a) > _DISTANCE_PX for b, a in objects):
            objects.append((y + dy, x + dx))
    return objects


def ring_medians(planes: Image, peak: tuple[int, int], shown: Image) -> NDArray[np.float64]:
    """Return medians (4, z, rings) of planes (z, y, x) around the object at ``peak``.

    By its four quarters and the distance from its edge. ``shown`` (y, x) says where bright objects
    are. NaN where a ring has few pixels.
    """
    bright = shown > _OBJECT * shown[peak]
    labels = label(bright, connectivity=1)
    own = labels == labels[peak]
    distance = np.asarray(ndimage.distance_transform_edt(~own))
    others = bright & ~own
    if others.any():
        distance[np.asarray(ndimage.distance_transform_edt(~others)) < _AROUND_PX] = np.inf
    ring = np.ceil(np.where(distance <= REACH_PX, distance, 0) / RING_PX).astype(np.intp)
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
    next to an object seldom does; at the image's border all that remain.

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
