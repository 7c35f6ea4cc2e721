"""Multi-channel images as OME-Zarr pyramids with axes c, y, x."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from tilewright.errors import ResultFileError
from tilewright.io.results.zarr_store import (
    OmeZarrVersion,
    StoreWriter,
    create_level,
    create_store,
    describe,
    link_chunks,
    multiscales,
    open_store,
)

#: A pyramid ends with the first level that fits into a square of this size.
SMALLEST_LEVEL_PX = 512
_COLOURS = ("0000FF", "00FF00", "FF0000", "00FFFF", "FF00FF", "FFFF00", "FFFFFF", "FF8000")


@dataclass(frozen=True)
class Image:
    """A stored multi-channel pyramid; reading is thread-safe.

    Attributes
    ----------
    path : Path
        Folder of the OME-Zarr image.
    levels : tuple[Any, ...]
        Arrays (c, y, x), full resolution first, each half the one before.
    channel_names, colours : tuple[str, ...]
        Name and display colour (RRGGBB) of each channel.
    pixel_um : tuple[float, float]
        (y, x) size of a full-resolution pixel in µm.
    """

    path: Path
    levels: tuple[Any, ...] = field(repr=False)
    channel_names: tuple[str, ...]
    colours: tuple[str, ...]
    pixel_um: tuple[float, float]


def open_image(path: str | Path) -> Image:
    """Open an image written by :func:`create_image`.

    Raises
    ------
    ResultFileError
        There is no OME-Zarr image with axes c, y, x and channel names at ``path``.
    """
    path = Path(path)
    ome, levels, (_, y_um, x_um), _ = open_store(path, "cyx")
    if "omero" not in ome:
        raise ResultFileError(f"{path} has no named channels")
    channels = ome["omero"]["channels"]
    names = tuple(channel["label"] for channel in channels)
    colours = tuple(channel["color"] for channel in channels)
    return Image(path, levels, names, colours, (y_um, x_um))


@contextlib.contextmanager
def create_image(
    path: str | Path,
    shape: tuple[int, int],
    dtype: Any,
    chunk_px: int,
    pixel_um: tuple[float, float],
    channel_names: Sequence[str],
    *,
    name: str,
    ome_zarr_version: OmeZarrVersion = "0.4",
    workers: int = 1,
) -> Iterator[StoreWriter]:
    """Write a multi-channel image; its pyramid is made when the block succeeds.

    The image has a temporary name until it is complete.

    Parameters
    ----------
    path, dtype, chunk_px, name, ome_zarr_version
        As of :func:`tilewright.io.results.mosaic.create_mosaic`.
    shape : tuple of int
        (y, x) in pixels of each channel.
    pixel_um, channel_names
        As of :class:`Image`.
    workers : int
        Threads that make the pyramid.

    Yields
    ------
    StoreWriter
        Its planes are the channels.
    """
    path = Path(path)
    with create_store(path, ome_zarr_version) as group:
        full = (len(channel_names), *shape)
        writer = create_level(group, 0, "cyx", full, np.dtype(dtype), chunk_px)
        yield writer
        levels = _build_pyramid(group, writer, workers)
        _describe(group, levels, pixel_um, channel_names, name)


def join_images(
    parts: Sequence[str | Path], path: str | Path, names: Sequence[str] | None = None
) -> list[tuple[str, ...]]:
    """Write one image with the channels of several, sharing the files of all their levels.

    Parameters
    ----------
    parts : sequence of Path
        Images of :func:`create_image` of one size.
    path : Path
        Folder of the OME-Zarr image, written atomically. Its chunks are hard links, which take no
        space, or copies where the file system has none.
    names : sequence of str, optional
        Of all channels, in order; by default those in the parts.

    Returns
    -------
    list of tuple of str
        Names of the channels of each part.

    Raises
    ------
    ResultFileError
        A part cannot be read, or is of another size or form than the first.
    """
    path, images = Path(path), [open_image(part) for part in parts]
    forms = [[(a.shape[1:], a.chunks, a.dtype, a.metadata.zarr_format) for a in image.levels]
             for image in images]  # fmt: skip
    for image, form in zip(images, forms, strict=True):
        if form != forms[0]:
            raise ResultFileError(
                f"{image.path} differs from {images[0].path} in size or type; make both again"
            )
    names = list(names or (name for image in images for name in image.channel_names))
    version: OmeZarrVersion = "0.4" if forms[0][0][-1] == 2 else "0.5"
    with create_store(path, version) as group:
        levels = []
        for k, first in enumerate(images[0].levels):
            shape = (len(names), *first.shape[1:])
            levels.append(create_level(group, k, "cyx", shape, first.dtype, first.chunks[-1]))
            channels = [(image.levels[k], c) for image in images for c in range(len(image.colours))]
            for c, (source, channel) in enumerate(channels):
                link_chunks((source, channel), (levels[k].array, c))
        name = path.name.removesuffix(".zarr").removesuffix(".ome")
        _describe(group, levels, images[0].pixel_um, names, name)
    rest = iter(names)
    return [tuple(itertools.islice(rest, len(image.colours))) for image in images]


def _describe(
    group: zarr.Group,
    levels: Sequence[StoreWriter],
    pixel_um: tuple[float, float],
    channel_names: Sequence[str],
    name: str,
) -> None:
    """Store an image's metadata, when its levels are written."""
    version: OmeZarrVersion = "0.4" if group.metadata.zarr_format == 2 else "0.5"
    scales = [(1.0, pixel_um[0] * 2**k, pixel_um[1] * 2**k) for k in range(len(levels))]
    omero = _display(levels[-1].array, channel_names)
    ome = multiscales("cyx", scales, name, version, omero)
    describe(group, ome, levels[0].attributes)


def halve(pixels: NDArray[Any]) -> NDArray[Any]:
    """Return the means of 2x2 pixels, integers rounded half up; an odd edge is repeated."""
    padding = [(0, n % 2) for n in pixels.shape]
    if any(after for _, after in padding):
        pixels = np.pad(pixels, padding, mode="edge")
    integer = pixels.dtype.kind in "ui"
    wide = np.uint32 if integer else pixels.dtype
    rows = pixels[0::2].astype(wide) + pixels[1::2]
    total = rows[:, 0::2] + rows[:, 1::2]
    half: NDArray[Any] = (total + 2) >> 2 if integer else total * 0.25
    return half.astype(pixels.dtype)


def _build_pyramid(group: zarr.Group, full: StoreWriter, workers: int) -> list[StoreWriter]:
    """Add levels of half the size, chunk by chunk, until one fits ``SMALLEST_LEVEL_PX``."""
    levels = [full]
    while max(levels[-1].shape[1:]) > SMALLEST_LEVEL_PX:
        channels, *plane = levels[-1].shape
        shape = (channels, *(-(-n // 2) for n in plane))
        half = create_level(group, len(levels), "cyx", shape, full.dtype, full.chunk_px)
        _halve_level(levels[-1], half, workers)
        levels.append(half)
    return levels


def _halve_level(source: StoreWriter, target: StoreWriter, workers: int) -> None:
    side = target.chunk_px
    channels, height, width = target.shape

    def make(place: tuple[int, int, int]) -> None:
        c, y, x = place
        area = source.array[c, 2 * y : 2 * (y + side), 2 * x : 2 * (x + side)]
        target.write(c, y, x, halve(area))

    starts = (range(channels), range(0, height, side), range(0, width, side))
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(make, itertools.product(*starts)):
            pass


def _display(smallest: Any, channel_names: Sequence[str]) -> dict[str, Any]:
    """Return omero metadata: names, colours, and windows from the smallest level."""
    channels = []
    for k, label in enumerate(channel_names):
        plane = smallest[k]
        start, end = np.percentile(plane, (1, 99.8))
        top = np.iinfo(plane.dtype).max if plane.dtype.kind in "ui" else plane.max()
        window = {"min": 0, "max": top, "start": np.floor(start), "end": np.ceil(end)}
        channels.append(
            {
                "label": label,
                "color": _COLOURS[k % len(_COLOURS)],
                "active": k < 4,
                "window": {key: int(value) for key, value in window.items()},
            }
        )
    return {"channels": channels, "rdefs": {"model": "color"}}
