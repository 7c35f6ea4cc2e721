"""Dark rings around the brightest objects of a processed image, beside the raw stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.mosaic import Mosaic
from tilewright.kernels.backend import cells
from tilewright.kernels.rings import REACH_PX, dark_ring, darkest, ring_medians
from tilewright.report.quality.places import Place
from tilewright.report.verdict import Item, Subject

#: Objects looked at, the brightest of cells of this side, at least so far from each other.
_OBJECTS, _CELL_PX, _APART_PX = 12, 64, 32
#: An object is so many times as bright as the brightest pixel of the usual cell with light.
_TIMES = 3.0
#: An object's own reach beyond its brightest pixel.
OWN_PX = 24


def judge_rings(subject: Subject, plane: Mosaic, stack: Mosaic) -> tuple[Item, list[Place]]:
    """Judge the darkest ring of all objects of a plane beside what the raw stack shows."""
    places = []
    for at in bright_objects(plane, 0):
        spans, peak = around(at)
        image = plane.read(0, *spans).astype(np.float64)
        share = dark_ring(ring_medians(image[None], peak, image)[:, 0], raw(stack, at, image))
        places.append(Place("dark_rings", float(at[0]), float(at[1]), share))
    return worst(subject, places)


def worst(subject: Subject, places: Sequence[Place]) -> tuple[Item, list[Place]]:
    """Judge the darkest ring of all objects, and say where the worst are."""
    known = [replace(p, value=round(p.value, 4)) for p in places if p.value is not None]
    known.sort(key=lambda place: -(place.value or 0.0))
    if not known:
        return subject.judge("dark_rings", 0.0, "nothing stands out"), []
    first = known[0]
    detail = f"around y {first.y_px:.0f} px, x {first.x_px:.0f} px" if first.value else ""
    return subject.judge("dark_rings", first.value, detail), [p for p in known[:4] if p.value]


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
    return darkest(ring_medians(planes, peak, shown))


def bright_objects(plane: Mosaic, z: int) -> list[tuple[int, int]]:
    """Return the brightest pixels (y, x) of a plane's brightest cells; memory holds few chunks."""
    side = _CELL_PX
    height, width = plane.shape[1:]
    rows, columns = (-(-n // side) for n in (height, width))
    top: NDArray[np.float64] = np.zeros((rows, columns))
    step = max(plane.chunk_px // side, 1)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        strip = plane.read(z, slice(first * side, min(last * side, height)), slice(0, width))
        # Cells at the border are filled up.
        lacking = ((last - first) * side - len(strip), columns * side - width)
        strip = np.pad(strip, [(0, n) for n in lacking], mode="edge")
        top[first:last] = cells(strip, side).max(axis=(1, 3))
    top -= float(plane.attributes.get("pedestal_counts", 0))
    lit = top[top > 0]
    if not lit.size:
        return []
    found: list[tuple[int, int]] = []
    for k in np.argsort(-top, axis=None, kind="stable"):
        y, x = (int(i) * side for i in np.unravel_index(k, top.shape))
        if len(found) == _OBJECTS or top.flat[k] < _TIMES * np.median(lit):
            break
        cell = plane.read(z, slice(y, min(y + side, height)), slice(x, min(x + side, width)))
        dy, dx = divmod(int(cell.argmax()), cell.shape[1])
        if all(np.hypot(y + dy - b, x + dx - a) > _APART_PX for b, a in found):
            found.append((y + dy, x + dx))
    return found
