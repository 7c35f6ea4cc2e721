"""Parts of a mosaic, and the windows, halo included, that they are computed in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # sizes alone are read where jobs are planned, without NumPy
    from tilewright.kernels.backend import Region

#: Side of a chunk of the images and mosaics that are stored, and of a tile that is deconvolved at
#: once: of 20 planes in float32 one takes 84 MB.
CHUNK_PX = TILE_PX = 1024
#: Margin of a tile that is deconvolved: with 32 px seams of 0.3 % show, with 64 px none.
HALO_PX = 64
#: No tile is made smaller than this, or than twice its halo. With the 64 px of halo and 32 px of
#: margin of a deconvolution a tile of 128 px is computed on 320 px: 7 % of the memory of a tile of
#: 1024 px in 4.4 times the time. Half of that again would free a third and take 2.6 times longer.
LEAST_PX = 64
#: A region of this side or less is not halved: with 24 px of halo 1.9 times its pixels are read.
_LEAST_REGION_PX = 128


@dataclass(frozen=True)
class Window:
    """One tile."""

    y: slice
    x: slice
    """The tile's own pixels in the mosaic."""
    window_y: slice
    window_x: slice
    """The pixels that it is computed from."""

    @property
    def inner(self) -> tuple[slice, slice]:
        """(y, x) of the tile's own pixels in the window."""
        return within((self.y, self.x), (self.window_y, self.window_x))

    @property
    def shape(self) -> tuple[int, int]:
        """(y, x) size of the window."""
        return (self.window_y.stop - self.window_y.start, self.window_x.stop - self.window_x.start)


def within(part: Region, whole: Region) -> Region:
    """Return a part of a region relative to its first pixel."""
    (y, x), (top, left) = part, (whole[0].start, whole[1].start)
    return slice(y.start - top, y.stop - top), slice(x.start - left, x.stop - left)


def spans(size: int, side: int) -> list[slice]:
    """Cut an axis into spans of ``side``; the last one may be shorter."""
    return [slice(start, min(start + side, size)) for start in range(0, size, side)]


def regions(shape: tuple[int, int], side: int) -> list[Region]:
    """Cut (y, x) into squares of ``side``, row by row; the last ones may be smaller."""
    return [(y, x) for y in spans(shape[0], side) for x in spans(shape[1], side)]


def with_halo(region: Region, halo_px: int, shape: tuple[int, int]) -> Window:
    """Return the window of a region: with a halo that is cut at the borders of (y, x)."""
    y, x = (
        slice(max(span.start - halo_px, 0), min(span.stop + halo_px, size))
        for span, size in zip(region, shape, strict=True)
    )
    return Window(*region, y, x)


def tile_windows(shape: tuple[int, int], tile_px: int, halo_px: int) -> list[Window]:
    """Cut (y, x) into equal tiles of at most ``tile_px`` whose windows all have one size.

    The grid follows from the arguments alone. A window that would leave the mosaic is moved
    inwards.

    >>> [(w.y, w.window_y) for w in tile_windows((100, 10), 64, 8)]
    [(slice(0, 50, None), slice(0, 66, None)), (slice(50, 100, None), slice(34, 100, None))]
    """
    return [
        Window(y, x, window_y, window_x)
        for y, window_y in _cuts(shape[0], tile_px, halo_px)
        for x, window_x in _cuts(shape[1], tile_px, halo_px)
    ]


def smaller_tile(shape: tuple[int, int], tile_px: int, halo_px: int) -> int | None:
    """Return half of ``tile_px``, halved on until windows are smaller; None below the floor.

    >>> smaller_tile((2000, 3000), 1024, 64), smaller_tile((200, 200), 1024, 32)
    (512, 128)
    >>> smaller_tile((2000, 3000), 255, 64) is None
    True
    """
    floor = max(LEAST_PX, 2 * halo_px)
    least = math.prod(tile_windows(shape, tile_px, halo_px)[0].shape)
    while tile_px // 2 >= floor:
        tile_px //= 2
        if math.prod(tile_windows(shape, tile_px, halo_px)[0].shape) < least:
            return tile_px
    return None


def halves(region: Region) -> list[Region]:
    """Cut a region across its longer side; empty if that is at most 128 px.

    >>> halves((slice(0, 200), slice(0, 300)))
    [(slice(0, 200, None), slice(0, 150, None)), (slice(0, 200, None), slice(150, 300, None))]
    """
    y, x = region
    height, width = y.stop - y.start, x.stop - x.start
    if max(height, width) <= _LEAST_REGION_PX:
        return []
    if height > width:
        middle = y.start + height // 2
        return [(slice(y.start, middle), x), (slice(middle, y.stop), x)]
    middle = x.start + width // 2
    return [(y, slice(x.start, middle)), (y, slice(middle, x.stop))]


def _cuts(length: int, tile_px: int, halo_px: int) -> Iterator[tuple[slice, slice]]:
    step = math.ceil(length / math.ceil(length / tile_px))
    size = min(step + 2 * halo_px, length)
    for start in range(0, length, step):
        first = min(max(start - halo_px, 0), length - size)
        yield slice(start, min(start + step, length)), slice(first, first + size)
