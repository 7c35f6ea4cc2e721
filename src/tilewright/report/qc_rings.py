"""Dark rings around the brightest objects of an in-focus plane, beside the raw stack."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.io.mosaic import Mosaic
from tilewright.kernels.backend import cells
from tilewright.kernels.rings import REACH_PX, dark_ring, darkest, ring_medians
from tilewright.report.places import Place
from tilewright.report.verdict import Item, Subject

#: Objects looked at, the brightest of cells of this side, at least so far from each other.
_OBJECTS, _CELL_PX, _APART_PX = 12, 64, 32
#: An object is so many times as bright as the brightest pixel of the usual cell with light.
_TIMES = 3.0
#: An object's own reach beyond its brightest pixel.
_OWN_PX = 24


def judge_rings(subject: Subject, plane: Mosaic, stack: Mosaic) -> tuple[Item, list[Place]]:
    """Judge the darkest ring of all objects, and say where there are any worth a warning."""
    places = []
    for y, x in _objects(plane):
        near = tuple(
            slice(max(at - REACH_PX - _OWN_PX, 0), at + REACH_PX + _OWN_PX + 1) for at in (y, x)
        )
        image = plane.read(0, *near).astype(np.float64)
        peak = (y - near[0].start, x - near[1].start)
        raw = stack.read(slice(None), *near).astype(np.float64)
        raw -= float(stack.attributes.get("pedestal_counts", 0))
        before = darkest(ring_medians(raw, peak, image))
        share = dark_ring(ring_medians(image[None], peak, image)[:, 0], before)
        if share is not None:
            places.append(Place("dark_rings", float(y), float(x), round(share, 4)))
    places.sort(key=lambda place: -(place.value or 0.0))
    if not places:
        return subject.judge("dark_rings", 0.0, "nothing stands out"), []
    worst = places[0]
    detail = f"around y {worst.y_px:.0f} px, x {worst.x_px:.0f} px" if worst.value else ""
    return subject.judge("dark_rings", worst.value, detail), [p for p in places[:4] if p.value]


def _objects(plane: Mosaic) -> list[tuple[int, int]]:
    """Return the brightest pixels (y, x) of the brightest cells; memory holds a row of chunks."""
    side = _CELL_PX
    rows, columns = (n // side for n in plane.shape[1:])
    top: NDArray[np.float64] = np.zeros((rows, columns))
    step = max(plane.chunk_px // side, 1)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        strip = plane.read(0, slice(first * side, last * side), slice(0, columns * side))
        top[first:last] = cells(strip, side).max(axis=(1, 3))
    lit = top[top > 0]
    if not lit.size:
        return []
    found: list[tuple[int, int]] = []
    for k in np.argsort(-top, axis=None, kind="stable"):
        y, x = (int(i) * side for i in np.unravel_index(k, top.shape))
        if len(found) == _OBJECTS or top.flat[k] < _TIMES * np.median(lit):
            break
        cell = plane.read(0, slice(y, y + side), slice(x, x + side))
        dy, dx = divmod(int(cell.argmax()), cell.shape[1])
        if all(np.hypot(y + dy - b, x + dx - a) > _APART_PX for b, a in found):
            found.append((y + dy, x + dx))
    return found
