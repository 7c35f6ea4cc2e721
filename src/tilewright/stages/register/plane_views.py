"""Images read in parts, at full resolution or binned, with an overview in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.kernels.register.alignment import Levels, grey_levels
from tilewright.stages import CHUNK_PX

#: Longest side of an overview in memory: 16 MB each in float32.
OVERVIEW_PX = 2048


@dataclass(frozen=True)
class Plane:
    """A (y, x) image that is read in parts, in counts."""

    shape: tuple[int, int]
    read: Callable[[slice, slice], NDArray[Any]]


Source = Plane | Mosaic | NDArray[Any] | str | Path


def as_plane(source: Source) -> Plane:
    """Return ``source`` as a plane: the first one of a mosaic or of the OME-Zarr at a path."""
    if isinstance(source, Plane):
        return source
    if isinstance(source, np.ndarray):
        rows, columns = source.shape
        return Plane((rows, columns), lambda y, x: source[y, x])
    mosaic = source if isinstance(source, Mosaic) else open_mosaic(source)
    return Plane(mosaic.shape[1:], partial(mosaic.read, 0))


def _binned(image: NDArray[Any], factor: int) -> NDArray[np.float32]:
    """Return means of ``factor`` × ``factor`` pixels; what is left over at the ends is dropped."""
    rows, columns = image.shape[0] // factor, image.shape[1] // factor
    image = image[: rows * factor, : columns * factor]
    if factor == 1:
        return image.astype(np.float32)
    lines = image[::factor].astype(np.float32)
    for k in range(1, factor):
        lines += image[k::factor]
    out = lines[:, ::factor].copy()
    for k in range(1, factor):
        out += lines[:, k::factor]
    out /= factor * factor
    return out


class PlaneView:
    """An image and its overview in memory, binned by ``factor``; read at any power of two."""

    def __init__(self, plane: Plane, factor: int, name: str) -> None:
        self._plane = plane
        self.shape = plane.shape
        self.factor = factor
        rows = (self.shape[0] // factor) * factor
        strip = max(factor, (CHUNK_PX // factor) * factor)
        parts = [
            _binned(plane.read(slice(y, min(y + strip, rows)), slice(0, self.shape[1])), factor)
            for y in tqdm(range(0, rows, strip), desc=name, mininterval=5, leave=False)
        ]
        self._overview = np.concatenate(parts)
        self.levels: Levels = grey_levels(self._overview)

    def size(self, factor: int) -> tuple[int, int]:
        """Return rows and columns at a binning."""
        return self.shape[0] // factor, self.shape[1] // factor

    def read(self, factor: int, y: slice, x: slice) -> NDArray[np.float32]:
        """Return a part at a binning, in counts."""
        ratio = factor // self.factor
        if ratio:
            part = self._overview[
                y.start * ratio : y.stop * ratio, x.start * ratio : x.stop * ratio
            ]
            return part if ratio == 1 else _binned(part, ratio)
        rows = slice(y.start * factor, y.stop * factor)
        return _binned(self._plane.read(rows, slice(x.start * factor, x.stop * factor)), factor)


def open_views(reference: Source, moving: Source) -> tuple[PlaneView, PlaneView]:
    """Return views of both images whose overviews have the same binning, 2 or more."""
    fixed, other = as_plane(reference), as_plane(moving)
    longest = max(*fixed.shape, *other.shape)
    factor = 2
    while longest // factor > OVERVIEW_PX:
        factor *= 2
    return PlaneView(fixed, factor, "read reference"), PlaneView(other, factor, "read moving")
