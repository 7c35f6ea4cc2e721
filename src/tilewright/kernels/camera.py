"""What the camera does to the light: its offset, and where it clips.

Offset and dark-field are found in tiles without tissue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Bools, Floats, Ints

#: Images count as empty up to this share of the way from the darkest to the brightest.
_EMPTY_SHARE = 0.1
#: Fewer empty tiles do not show what they have in common: the 12 tiles of a sparse channel
#: all look empty, and gave an offset below 0.
_MIN_EMPTY = 20
#: Groups of empty images whose scatter says how well the offset is known.
_GROUPS = 5
#: Blocks this many robust deviations off what empty images share are tissue and left out: on 54
#: of the brain tiles groups of six then give 723 to 774 counts, and 719 to 1170 with them.
_TISSUE = 3.0
#: Pixels at one and the same largest value, in all images together, that are no chance.
_MIN_PIXELS = 32
#: A tail of bright pixels thins out: its largest value is rarer than the one below. Clipped, it
#: holds all that would lie above; 1 % of saturated pixels are hundreds of times the value below.
_SPIKE = 4
#: Percentiles of a plane that are background, of tissue without the marker or of glass, and how far
#: apart they are in standard deviations of its noise.
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


@dataclass(frozen=True)
class EmptyTiles:
    """Camera offset and dark-field by tiles without tissue.

    Attributes
    ----------
    offset_counts, error_counts : float
        Camera offset and its standard error; the error is infinite where too few tiles are empty.
    structure_counts : float64 (y, x)
        Remainder of empty tiles over offset and glow: stray light and dark current that do not
        follow the flat-field. Zero on average.
    glow_counts : float
        Light of empty tiles: what an error of the flat-field is multiplied by.
    """

    offset_counts: float
    error_counts: float
    structure_counts: Floats
    glow_counts: float = 0.0


def empty_tiles(images: Floats, flat: Floats) -> EmptyTiles:
    """Read the camera's dark-field from tiles without tissue.

    An empty tile shows ``offset + glow * flat``: the offset is the intercept of its counts
    over the flat-field. Overlaps compare two borders, where flat-fields are alike; an empty
    tile compares its middle with its corners. On the 63 brain tiles of the development data
    empty tiles give 721 to 729 counts whichever are taken, where overlaps gave 306; their
    structure of 120 counts is a third of the glow, and a grid in the mosaic if left in.

    Parameters
    ----------
    images : ndarray of float64, shape (n, y, x)
        Raw counts of each tile, averaged over its planes and over blocks.
    flat : ndarray of float64, shape (y, x)
        Flat-field at the same blocks.

    Returns
    -------
    EmptyTiles
        From the pixelwise mean of the empty images without the blocks that tissue reaches
        into; the error is the scatter of five groups of them, and infinite where there are
        fewer than twenty, the flat-field is even, or the dark-field would be below 0.

    Examples
    --------
    >>> flat = np.linspace(0.8, 1.2, 64).reshape(8, 8)
    >>> light = np.repeat([10.0, 1000.0], [30, 10])[:, None, None]
    >>> round(empty_tiles(100 + light * flat, flat).offset_counts, 3)
    100.0
    """
    empty = _darkest(images)
    unknown = EmptyTiles(0.0, float("inf"), np.zeros_like(flat))
    if len(empty) < _MIN_EMPTY or float(flat.std()) < 1e-3:
        return unknown
    shared = np.median(empty, axis=0)
    deviation = np.abs(empty - shared)
    bare = deviation < _TISSUE * 1.4826 * float(np.median(deviation))
    parts = [
        _line(_mean(empty[k::_GROUPS], bare[k::_GROUPS], shared), flat)[1] for k in range(_GROUPS)
    ]
    middle = _mean(empty, bare, shared)
    glow, offset = _line(middle, flat)
    rest = ndimage.median_filter(middle - offset - glow * flat, size=5, mode="nearest")
    structure = np.asarray(ndimage.gaussian_filter(rest, 1.5, mode="nearest"), np.float64)
    # The median deviation: one group may be far off.
    error = 1.4826 * float(np.median(np.abs(np.array(parts) - offset))) / _GROUPS**0.5
    structure -= float(structure.mean())
    if offset + float(structure.min()) <= 0:
        return unknown
    return EmptyTiles(offset, error, structure, glow)


def _darkest(images: Floats) -> Floats:
    """Return the images that count as empty, the darkest first."""
    level = np.median(images, axis=(1, 2))
    low, high = np.percentile(level, [5.0, 95.0])
    order = np.argsort(level, kind="stable")
    return np.asarray(images[order[level[order] <= low + _EMPTY_SHARE * (high - low)]])


def _mean(images: Floats, bare: Bools, shared: Floats) -> Floats:
    """Return the mean (y, x) of the ``bare`` blocks, ``shared`` where there is none."""
    count = bare.sum(axis=0)
    total = np.where(bare, images, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), shared)


def _line(image: Floats, flat: Floats) -> tuple[float, float]:
    """Return slope and intercept of an image over the flat-field."""
    slope, intercept = np.polyfit(flat.ravel(), image.ravel(), 1)
    return float(slope), float(intercept)


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

    Rows of the image are ``row_px`` px apart.

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
