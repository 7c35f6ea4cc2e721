"""One channel of a stitched image, read by region and never as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tifffile
import zarr
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.io.formats.common import raw_file_errors
from tilewright.io.inputs.tiles import Tiles

#: Side of the windows that are checked before any work starts.
_WINDOW_PX = 1024


@dataclass(frozen=True)
class OpenPlane:
    """A plane whose file is open.

    Attributes
    ----------
    piece_px : tuple[int, int]
        (y, x) of what is decoded at once; (1, 1) where nothing is compressed.
    read : Callable[[slice, slice], NDArray[Any]]
        Rows and columns, within the plane, to their pixels (y, x).
    """

    piece_px: tuple[int, int]
    read: Callable[[slice, slice], NDArray[Any]]


@contextlib.contextmanager
def opened(image: Tiles) -> Iterator[OpenPlane]:
    """Open the file of a stitched image, which is the one tile of its manifest.

    Raises
    ------
    RawDataError
        The file has changed since the workflow started, or is damaged.
    """
    path, number, size_bytes = image.pages[0][0]
    name = f"{path}, page {number},"
    with raw_file_errors(name):
        tiff = tifffile.TiffFile(path)
    with tiff:
        with raw_file_errors(name):
            size = path.stat().st_size
            page = tiff.pages[number]
            piece, array = _array(page)
        if size != size_bytes or array.shape != image.shape[1:] or page.dtype != image.dtype:
            raise RawDataError(
                f"{name} has changed since the workflow started "
                f"({size} bytes, {array.shape} {page.dtype}); copy it again and start the "
                "workflow again"
            )

        def read(y: slice, x: slice) -> NDArray[Any]:
            with raw_file_errors(name):
                return np.ascontiguousarray(array[y, x], dtype=image.dtype)

        yield OpenPlane(piece, read)


def _array(page: Any) -> tuple[tuple[int, int], Any]:
    """Return the piece decoded at once, and the plane as an array that is read by region."""
    if page.is_memmappable:
        return (1, 1), page.asarray(out="memmap")
    height, width = page.chunks
    return (height, width), zarr.open_array(page.aszarr(), mode="r")


@dataclass(frozen=True)
class PlaneWindows(Tiles):
    """Windows that cover the plane of a stitched image, read as its tiles."""

    image: Tiles = field(kw_only=True)

    def read(self, tile: int, z: int) -> NDArray[Any]:
        """Return the pixels (y, x) of a window."""
        y, x = self.nominal_px[tile].astype(int)
        with opened(self.image) as plane:
            return plane.read(slice(y, y + self.shape[1]), slice(x, x + self.shape[2]))


def windows_of(image: Tiles) -> PlaneWindows:
    """Return the windows of a stitched image."""
    sizes = image.shape[1:]
    side = [min(_WINDOW_PX, n) for n in sizes]
    starts = [sorted({*range(0, n - s + 1, s), n - s}) for n, s in zip(sizes, side, strict=True)]
    places = list(np.ndindex(len(starts[0]), len(starts[1])))
    row, col = np.array(places, np.int64).T
    return PlaneWindows(
        name=np.array([f"{y} {x}" for y, x in places]),
        sample=np.full(len(places), ""),
        row=row,
        col=col,
        nominal_px=np.array([(starts[0][y], starts[1][x]) for y, x in places], np.float64),
        shape=(1, side[0], side[1]),
        dtype=image.dtype,
        pages=image.pages * len(places),
        image=image,
    )
