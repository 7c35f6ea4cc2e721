"""Pixels of the camera that do not measure.

A hot pixel adds the same counts to every tile. Interpolation and deconvolution would draw a
spot with a dark ring around it, at the same place of every tile. Defects are found on the host: one
image of the size of a tile, and lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Floats, Ints

#: Tiles sampled, planes of each, and in how many tiles a defect stands out at least.
SAMPLE_TILES = 16
SAMPLE_PLANES = 3
MIN_TILES = 4
#: A quarter of the tiles must show it: on the others it may lie under texture.
_MIN_SHARE = 0.25
#: Scatters of the mean of all tiles about its neighbourhood from which a pixel is compared in
#: every image.
_SIEVE_SCATTER = 4.0
#: From its second lowest to its second highest, eight values of noise span 1.7 sigma.
_RANGE_SIGMA = 1.7
#: A tile shows a defect from this many sigma on; more than ``_MOST_SIGMA`` count as so many: of 16
#: tiles six must show it, however bright something is at that pixel of a few.
_TILE_SIGMA = 3.0
_MOST_SIGMA = 6.0
#: Sum over the tiles, in standard errors. In 45 channels of phantoms 575 of 585 defects of 330 to
#: 4000 counts reach it and no sound pixel does (at most 8.7). Of 360 choices of 4 to 32 real tiles
#: (brain) sound pixels reach 8.6; two that reach 18 and 27 are 50 counts above 3260 in most tiles.
_DEFECT_SIGMA = 9.0
#: More defects than this share of the camera are a pattern and not defects.
_MOST = 0.01


@dataclass(frozen=True)
class CameraDefects:
    """Defective pixels of one camera.

    Attributes
    ----------
    pixel : int64 (m,)
        Flat indices into a tile (y, x).
    neighbours : int64 (m, 8)
        Flat indices of good neighbours, repeated where there are fewer than eight.
    """

    pixel: Ints
    neighbours: Ints

    def __len__(self) -> int:
        """Return the number of defective pixels."""
        return len(self.pixel)

    def repair(self, tile: NDArray[Any]) -> NDArray[Any]:
        """Return a tile (y, x) with defects replaced by the median of good neighbours."""
        if not len(self):
            return tile
        repaired = tile.copy()
        flat = repaired.reshape(-1)
        value = np.median(flat[self.neighbours], axis=1)
        flat[self.pixel] = value if tile.dtype.kind == "f" else np.rint(value)
        return repaired

    def within(self, shape: tuple[int, int], window: tuple[slice, slice]) -> CameraDefects:
        """Return those of a tile of ``shape`` (y, x) in a window of it, as pixels of the window.

        >>> tile = np.arange(20.0).reshape(4, 5)
        >>> one = CameraDefects.of([7], (4, 5)).within((4, 5), (slice(1, 4), slice(0, 4)))
        >>> one.pixel, int(one.repair(tile[1:4, :4])[0, 2])
        (array([2]), 11)
        """
        y, x = np.unravel_index(self.pixel, shape)
        rows, columns = window
        inside = (y >= rows.start) & (y < rows.stop) & (x >= columns.start) & (x < columns.stop)
        size = rows.stop - rows.start, columns.stop - columns.start
        pixel = (y[inside] - rows.start) * size[1] + x[inside] - columns.start
        return CameraDefects.of(pixel, size)

    @classmethod
    def of(cls, pixel: Any, shape: tuple[int, int]) -> CameraDefects:
        """Return the defects at flat indices (m,) into a tile of ``shape`` (y, x).

        A pixel that has no good neighbour is left out.
        """
        pixel = np.asarray(pixel, np.int64)
        if not len(pixel):
            return cls(pixel, np.empty((0, 8), np.int64))
        around = _indices(pixel, shape)
        good = ~np.isin(around, pixel)
        has_good = good.any(axis=1)
        # Good neighbours first, then the same again: a plain median needs eight.
        order = np.argsort(~good, axis=1, kind="stable")
        turn = np.arange(8)[None] % np.maximum(good.sum(axis=1), 1)[:, None]
        neighbours = np.take_along_axis(around, np.take_along_axis(order, turn, axis=1), axis=1)
        return cls(pixel[has_good], neighbours[has_good])


def find_defects(rounds: Sequence[Sequence[NDArray[Any]]]) -> CameraDefects | None:
    """Find the pixels that lie off their neighbours in tile after tile.

    A defect adds the same counts everywhere. So tiles are averaged, each weighted by how even it
    is around the pixel: what texture hides in most tiles, a few dark ones show.

    Parameters
    ----------
    rounds : sequence of sequences of ndarray, shape (y, x)
        Raw counts of different places of the specimen, one image of each place per round; a
        further round has other planes of the same places, in the same order: tissue moves out of
        focus from plane to plane, defects stay.

    Returns
    -------
    CameraDefects or None
        None of fewer than four tiles: the specimen might look the same in all. No pixel where over
        1 % of all stand out.

    Examples
    --------
    >>> tiles = np.random.default_rng(0).normal(100, 2, (8, 20, 20))
    >>> tiles[:, 5, 7] += 60
    >>> find_defects([list(tiles)]).pixel
    array([107])
    """
    if not rounds or len(rounds[0]) < MIN_TILES:
        return None
    y, x = shape = rounds[0][0].shape
    pixel = _suspects(rounds[0]) if min(shape) >= 3 else np.empty(0, np.int64)
    if not len(pixel):
        return CameraDefects.of(pixel, (y, x))
    around = _indices(pixel, shape)
    total, weight = np.zeros((2, len(rounds[0]), len(pixel)))
    for tiles in rounds:
        for k, tile in enumerate(tiles):
            sigma, share = _deviations(tile, pixel, around)
            total[k] += sigma * np.sqrt(share)
            weight[k] += share
    sigma = np.clip(total / np.sqrt(weight), -_MOST_SIGMA, _MOST_SIGMA)
    showing = np.count_nonzero(np.abs(sigma) > _TILE_SIGMA, axis=0)
    sure = np.abs(sigma.sum(axis=0)) / len(sigma) ** 0.5 > _DEFECT_SIGMA
    defects = pixel[sure & (showing >= max(_MIN_SHARE * len(sigma), MIN_TILES))]
    few = len(defects) <= _MOST * y * x
    return CameraDefects.of(defects if few else defects[:0], (y, x))


def _suspects(tiles: Sequence[NDArray[Any]]) -> Ints:
    """Return the pixels at which the mean of all tiles lies off its neighbourhood."""
    mean = np.zeros(tiles[0].shape, np.float32)
    for tile in tiles:
        mean += tile
    mean /= len(tiles)
    deviation = np.abs(mean - ndimage.uniform_filter(mean, 3, mode="mirror"))
    scatter = float(np.median(deviation[::4, ::4]))
    return np.nonzero(deviation.ravel() > _SIEVE_SCATTER * scatter)[0]


def _deviations(tile: NDArray[Any], pixel: Ints, around: Ints) -> tuple[Floats, Floats]:
    """Return how many sigma pixels lie off the median of their neighbours, and 1 / sigma ** 2."""
    counts = np.asarray(tile).reshape(-1)
    near = np.sort(counts[around].astype(np.float64), axis=1)
    rows = tile[::4].astype(np.float32)
    noise = 1.4826 * float(np.median(np.abs(np.diff(rows, axis=1)))) / 2**0.5
    # The second of each end: pairs are defects too.
    sigma = np.maximum((near[:, 6] - near[:, 1]) / _RANGE_SIGMA, max(noise / 2, 0.5))
    beyond = (counts[pixel] - (near[:, 3] + near[:, 4]) / 2) / sigma
    return np.clip(beyond, -_MOST_SIGMA, _MOST_SIGMA), 1 / sigma**2


def _indices(pixel: Ints, shape: tuple[int, ...]) -> Ints:
    """Return flat indices (m, 8) of the neighbours; reflected at the border."""
    y, x = np.unravel_index(pixel, shape)
    last_y, last_x = (n - 1 for n in shape)
    places = [
        (last_y - abs(last_y - abs(y + dy))) * shape[1] + last_x - abs(last_x - abs(x + dx))
        for dy, dx in np.argwhere(np.arange(9).reshape(3, 3) != 4) - 1
    ]
    return np.stack(places, axis=1).astype(np.int64)
