"""Tiles of a mosaic with the windows, halo included, that they are computed in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """One tile.

    Attributes
    ----------
    y, x : slice
        The tile's own pixels in the mosaic.
    window_y, window_x : slice
        The pixels that it is computed from.
    """

    y: slice
    x: slice
    window_y: slice
    window_x: slice

    @property
    def inner(self) -> tuple[slice, slice]:
        """(y, x) of the tile's own pixels in the window."""
        return (
            slice(self.y.start - self.window_y.start, self.y.stop - self.window_y.start),
            slice(self.x.start - self.window_x.start, self.x.stop - self.window_x.start),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(y, x) size of the window."""
        return (
            self.window_y.stop - self.window_y.start,
            self.window_x.stop - self.window_x.start,
        )


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


def _cuts(length: int, tile_px: int, halo_px: int) -> Iterator[tuple[slice, slice]]:
    step = math.ceil(length / math.ceil(length / tile_px))
    size = min(step + 2 * halo_px, length)
    for start in range(0, length, step):
        first = min(max(start - halo_px, 0), length - size)
        yield slice(start, min(start + step, length)), slice(first, first + size)
