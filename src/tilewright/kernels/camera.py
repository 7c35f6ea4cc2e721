"""What the camera does to counts: where it clips, and pixels that do not measure.

A hot pixel adds the same counts to every tile. Interpolation and deconvolution would draw a
spot with a dark ring around it, at the same place of every tile. Defects are found on the host: one
image of the size of a tile, and lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Floats, Ints
from tilewright.kernels.noise import mad_sigma

#: Pixels at one and the same largest value, in all images together, that are no chance.
_MIN_PIXELS = 32
#: A tail of bright pixels thins out: its largest value is rarer than the one below. Clipped, it
#: holds all that would lie above; 1 % of saturated pixels are hundreds of times the value below.
_SPIKE = 4
#: Percentiles of a plane that are background, of tissue without the marker or of glass, and their
#: distance in standard deviations of its noise.
_BACKGROUND, _DIMMER, _BETWEEN_SIGMA = 25.0, 10.0, 0.61
#: Standard deviations above the background from which a pixel may be of a positive cell.
_POSITIVE_SIGMA = 6.0
#: Bright pixels have this share of the light of positive ones, each weighted by its light.
_BRIGHT = 0.7
#: What positive cells are like is measured this far from saturation: debris has wide halos.
_NEAR_PX = 16
#: Debris is clipped as a whole; cells that are clipped have as many pixels in the fifth of the
#: range below. No more saturated pixels count than lie there, plus all beyond one in a thousand.
_BELOW_MAXIMUM, _DEBRIS = 0.8, 1e-3
#: Tiles sampled, planes of each, and of how many tiles defects can be found at least.
SAMPLE_TILES = 16
SAMPLE_PLANES = 3
MIN_TILES = 4
#: Scatters of the mean of all tiles about its neighbourhood from which a pixel is compared in
#: every image.
_SIEVE_SCATTER = 4.0
#: From its second lowest to its second highest, eight values of noise span 1.7 sigma.
_RANGE_SIGMA = 1.7
#: More sigma than this in one tile count as so many: of 16 tiles more than six must show a defect,
#: however bright something is at that pixel of a few.
_MOST_SIGMA = 6.0
#: Sum over the tiles, in standard errors. In 45 channels of phantoms 575 of 585 defects of 330 to
#: 4000 counts reach it and no sound pixel does (at most 8.7). Of 360 choices of 4 to 32 real tiles
#: (brain) sound pixels reach 8.6; two that reach 18 and 27 are 50 counts above 3260 in most tiles.
_DEFECT_SIGMA = 9.0
#: More defects than this share of the camera are a pattern and not defects.
_MOST = 0.01


class Top(NamedTuple):
    """The largest value of an image, how many pixels have it, and how many the next lower one."""

    value: float
    pixels: int
    below: int


def top_of(raw: NDArray[Any]) -> Top:
    """Return the top of the histogram of an image of any shape; ``below`` is 0 of a constant one.

    >>> top_of(np.array([7, 9, 9]))
    Top(value=9.0, pixels=2, below=1)
    """
    value = raw.max()
    lower = raw[raw < value]
    below = int(np.count_nonzero(lower == lower.max())) if lower.size else 0
    return Top(float(value), raw.size - lower.size, below)


def equal_neighbours(raw: NDArray[Any], least: int = 0) -> float:
    """Return the share of neighbours along x of exactly the same counts, the largest left out.

    Those below ``least`` are left out too. With noise of ``s`` counts in steps of one it is
    0.28 / s. Raw tiles have 0.00 to 0.04; an 8-bit JPEG of one has 0.8.

    >>> equal_neighbours(np.array([[3, 3, 5, 6, 9]]))
    0.25
    """
    first, second = raw[:, 1:], raw[:, :-1]
    counted = (second >= least) & (second < raw.max())
    equal = np.count_nonzero((first == second) & counted)
    return float(equal) / max(1.0, float(np.count_nonzero(counted)))


def detect_saturation(tops: Iterable[Top]) -> float | None:
    """Return the value at which the histogram of all images piles up, None if it does not.

    Only images that reach the largest value of all count: together they must have 32 pixels of it,
    and far more than of the values below. Of a rare marker each tile has a few. Where that value
    is all that they show they are constant, not saturated.

    >>> detect_saturation([Top(4095.0, 900, 3)]), detect_saturation([Top(812.0, 1, 0)])
    (4095.0, None)
    """
    tops = list(tops)
    largest = max((top.value for top in tops), default=0.0)
    reached = [top for top in tops if top.value == largest]
    pixels, below = sum(top.pixels for top in reached), sum(top.below for top in reached)
    return largest if below and pixels >= max(_MIN_PIXELS, _SPIKE * below + 1) else None


def away_from_saturation(
    raw: NDArray[Any], saturation_counts: float, row_px: int = 1
) -> NDArray[Any]:
    """Return the pixels (n,) of an image (y, x) that are not near a saturated one.

    The image holds every ``row_px``-th row.

    >>> away_from_saturation(np.array([[9] + 20 * [1]]), 9).tolist()
    [1, 1, 1, 1]
    """
    saturated = raw >= saturation_counts
    if not saturated.any():
        return raw.ravel()
    size = 2 * (_NEAR_PX // row_px) + 1, 2 * _NEAR_PX + 1
    return np.asarray(raw[~ndimage.maximum_filter(saturated, size)])


def saturated_share(histogram: Ints, away: Ints, saturation_counts: float) -> float:
    """Return the share of saturated pixels among those that are as bright as positive cells.

    Saturation spoils the brightest cells however few they are: of a marker on 1 % of the cells
    0.01 % of all pixels cost the brightest tenth of them 5 %. How bright positive cells are follows
    from the pixels away from saturation alone: the mean of what rises above the background,
    weighted by its light.

    Parameters
    ----------
    histogram : ndarray of int, shape (m,)
        Pixels of 0, 1, ... m - 1 counts of one plane. Those of 0 are left out: they were padded.
    away : ndarray of int, shape (m,)
        The same of :func:`away_from_saturation`.
    saturation_counts : float
        Counts from which a pixel is saturated.

    Examples
    --------
    >>> histogram = np.zeros(4096, np.int64)
    >>> histogram[[100, 102, 1000, 3500, 4095]] = [7000, 7000, 50, 95, 5]
    >>> saturated_share(histogram, histogram, 4095.0)
    0.05
    """
    pixels = np.array(histogram)
    pixels[0] = 0
    top, total = math.ceil(saturation_counts), int(pixels.sum())
    saturated = int(pixels[top:].sum())
    if not saturated:
        return 0.0
    ranks = np.array([_DIMMER, _BACKGROUND]) / 100 * total
    dimmer, background = np.searchsorted(np.cumsum(pixels), ranks).tolist()
    noise = max((background - dimmer) / _BETWEEN_SIGMA, 1.0)
    light = np.arange(len(pixels), dtype=np.float64) - background
    weight = np.where(light > _POSITIVE_SIGMA * noise, away * light, 0.0)
    if not weight.any():
        return 1.0
    level = float((weight * light).sum() / weight.sum())
    below = int(pixels[:top][light[:top] > _BELOW_MAXIMUM * light[top]].sum())
    cells = min(saturated, below + max(0.0, saturated - _DEBRIS * total))
    bright = int(pixels[:top][light[:top] > _BRIGHT * level].sum()) + cells
    return cells / bright if bright else 0.0


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
    defects = pixel[np.abs(sigma.sum(axis=0)) / len(sigma) ** 0.5 > _DEFECT_SIGMA]
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
    noise = float(mad_sigma(np.diff(rows, axis=1))) / 2**0.5
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
