"""Parts of a mosaic, the windows, halo included, that they are computed in, and their pixels."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.io.results.mosaic import Mosaic
from tilewright.kernels.backend import Region

#: No tile or region is made smaller, where memory runs out. With the 64 px of halo and 32 px of
#: margin of a deconvolution a tile of this side is computed on 320 px: 7 % of the memory of a tile
#: of 1024 px in 4.4 times the time. Half of that again would free a third and take 2.6 times
#: longer. An in-focus plane computes it on 8 times its pixels, registration reads 1.9 times.
LEAST_PX = 128
#: A patch of this size at exactly the pedestal in every plane is a gap: camera noise does not do
#: that.
_GAP_PX = 5


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
    if max(height, width) <= LEAST_PX:
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


def read_window(
    mosaic: Mosaic,
    planes: Sequence[int],
    pedestal: float,
    start: Sequence[int],
    size: Sequence[int],
    fill_px: int,
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return a window with its gaps filled, and where it has none.

    Parameters
    ----------
    mosaic : Mosaic
        It goes on as its mirror image beyond its borders.
    planes : sequence of int
        Planes that count: what is at exactly ``pedestal`` in all of them is a gap.
    pedestal : float
        Counts without light.
    start, size : sequence of int
        (y, x) of the window's first pixel, and its sides.
    fill_px : int
        How far around the window pixels are read that fill its gaps.

    Returns
    -------
    stack : ndarray, shape (z, y, x)
        Raw counts of all planes.
    coverage : ndarray of bool, shape (y, x)
        Where they were imaged.
    """

    def grow(by_px: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        stack = _read(mosaic, [at - by_px for at in start], [n + 2 * by_px for n in size])
        return stack, ~gap_mask((stack[z] for z in planes), pedestal)

    stack, coverage = grow(0)
    if coverage.all() or not coverage.any():
        return stack, coverage
    del stack
    stack, coverage = grow(fill_px)
    y, x = (slice(fill_px, fill_px + n) for n in size)
    return fill(stack, coverage)[:, y, x], coverage[y, x]


def _read(mosaic: Mosaic, start: Sequence[int], size: Sequence[int]) -> NDArray[Any]:
    """Return a window of a mosaic, which goes on as its mirror image beyond its borders."""
    index = [
        mirrored(at, at + n, length)
        for at, n, length in zip(start, size, mosaic.shape[1:], strict=True)
    ]
    first = [int(i.min()) for i in index]
    y, x = (slice(at, int(i.max()) + 1) for at, i in zip(first, index, strict=True))
    stack = mosaic.read(slice(None), y, x)
    return _rearrange(stack, *(i - at for at, i in zip(first, index, strict=True)))


def _rearrange(stack: NDArray[Any], y: NDArray[np.int64], x: NDArray[np.int64]) -> NDArray[Any]:
    """Return ``stack[:, y][:, :, x]``; the stack itself where it is that."""
    if all(np.array_equal(i, np.arange(n)) for i, n in zip((y, x), stack.shape[1:], strict=True)):
        return stack
    out = np.empty((len(stack), y.size, x.size), stack.dtype)
    for plane, whole in zip(out, stack, strict=True):
        plane[:] = whole[y][:, x]
    return out


def mirrored(start: int, stop: int, size: int) -> NDArray[np.int64]:
    """Return indices of pixels ``start`` to ``stop`` of a line of ``size``, mirrored at its ends.

    >>> mirrored(-2, 6, 4)
    array([1, 0, 0, 1, 2, 3, 3, 2])
    """
    at = np.arange(start, stop) % (2 * size)
    return np.minimum(at, 2 * size - 1 - at).astype(np.int64)


def fill(stack: NDArray[Any], coverage: NDArray[np.bool_]) -> NDArray[Any]:
    """Fill the gaps of a stack (z, y, x), outside its ``coverage`` (y, x), by mirrored pixels.

    Taken as dark they would be a step of light, and ring. Each gets the pixel as far on the other
    side of the covered pixel next to it, or that one where the other is in a gap too. Done in the
    stack itself, which is returned.

    >>> fill(np.array([[[1, 2, 0, 0]]]), np.array([[True, True, False, False]]))
    array([[[1, 2, 1, 1]]])
    """
    if coverage.all() or not coverage.any():
        return stack
    nearest = ndimage.distance_transform_edt(~coverage, return_distances=False, return_indices=True)
    at = np.nonzero(~coverage)
    border = [n[at] for n in nearest]
    across = [
        np.clip(2 * n - i, 0, size - 1)
        for n, i, size in zip(border, at, coverage.shape, strict=True)
    ]
    fits = coverage[across[0], across[1]]
    y, x = (np.where(fits, a, n) for a, n in zip(across, border, strict=True))
    # Only covered pixels are copied, and they are not written to.
    for plane in stack:
        plane[at] = plane[y, x]
    return stack


def gap_mask(counts: Iterable[NDArray[Any]], pedestal: float) -> NDArray[np.bool_]:
    """Return the gaps of planes (y, x), which were not imaged; none if zero light is 0 counts."""
    planes = iter(counts)
    first = next(planes)
    if pedestal == 0:
        dark = not first.any() and not any(plane.any() for plane in planes)
        return np.full(first.shape, dark, np.bool_)
    flat: NDArray[np.bool_] = first == np.float32(pedestal)
    # Without a gap noise leaves no equal pixel after a few planes: 3 ms of 20 x 1400 x 1400, not
    # 49.
    for plane in planes:
        if not flat.any():
            return flat
        flat &= plane == np.float32(pedestal)
    # Grey filters of bytes: with gaps 23 ms, with ndimage's binary ones 54.
    core = ndimage.minimum_filter(flat.view(np.uint8), _GAP_PX, mode="constant", cval=1)
    gaps = ndimage.maximum_filter(core, _GAP_PX, mode="constant", cval=0)
    return np.asarray(gaps).view(np.bool_)
