"""Mosaic z-stacks on disk: OME-Zarr with axes z, y, x and one full-resolution level."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.zarr_store import (
    OmeZarrVersion,
    StoreWriter,
    create_level,
    create_store,
    describe,
    multiscales,
    open_store,
)


@dataclass(frozen=True)
class Mosaic:
    """A stored mosaic; reading is thread-safe and touches only the chunks asked for.

    Attributes
    ----------
    path : Path
        Folder of the OME-Zarr image.
    shape : tuple[int, int, int]
        (z, y, x) in pixels.
    dtype : np.dtype[Any]
        Pixel type.
    chunk_px : int
        Side of the square chunks; a chunk holds one plane.
    voxel_um : tuple[float, float, float]
        (z, y, x) size of a voxel in µm.
    attributes : dict[str, Any]
        tilewright's own numbers, such as ``pedestal_counts``.
    """

    path: Path
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    chunk_px: int
    voxel_um: tuple[float, float, float]
    attributes: dict[str, Any]
    _array: Any = field(repr=False, compare=False)

    def read(
        self,
        z: int | slice = slice(None),
        y: int | slice = slice(None),
        x: int | slice = slice(None),
    ) -> NDArray[Any]:
        """Return a part of the mosaic; an integer drops its axis, as in NumPy."""
        return np.asarray(self._array[z, y, x])


def open_mosaic(path: str | Path) -> Mosaic:
    """Open a mosaic written by :func:`create_mosaic`.

    Raises
    ------
    ResultFileError
        There is no OME-Zarr image with axes z, y, x at ``path``.
    """
    path = Path(path)
    _, (array, *_), (z_um, y_um, x_um), attributes = open_store(path, "zyx")
    return Mosaic(
        path, array.shape, array.dtype, array.chunks[-1], (z_um, y_um, x_um), attributes, array
    )


@contextlib.contextmanager
def create_mosaic(
    path: str | Path,
    shape: tuple[int, int, int],
    dtype: Any,
    chunk_px: int,
    voxel_um: tuple[float, float, float],
    *,
    ome_zarr_version: OmeZarrVersion = "0.4",
    fill: float = 0,
    attributes: dict[str, Any] | None = None,
) -> Iterator[StoreWriter]:
    """Write a mosaic under a temporary name that becomes ``path`` when the block succeeds.

    ``path`` is the folder of the OME-Zarr image, replaced if it exists; its name without ending is
    that of the image in its metadata. ``shape``, ``dtype``, ``chunk_px`` and ``voxel_um`` are as of
    :class:`Mosaic`. Pixels that are never written are ``fill``; ``attributes`` are the writer's
    first ones.

    Yields
    ------
    StoreWriter
        Its planes are the mosaic's.
    """
    path = Path(path)
    with create_store(path, ome_zarr_version) as group:
        writer = create_level(group, 0, "zyx", shape, np.dtype(dtype), chunk_px, fill)
        writer.attributes |= attributes or {}
        yield writer
        ome = multiscales("zyx", [voxel_um], path.stem, ome_zarr_version)
        describe(group, ome, writer.attributes)
