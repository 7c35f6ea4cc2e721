"""The camera's offset and dark-field from tiles without tissue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Float = NDArray[np.float64]

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


@dataclass(frozen=True)
class EmptyTiles:
    """What tiles without tissue show of the camera.

    Attributes
    ----------
    offset_counts, error_counts : float
        Camera offset and its standard error; the error is infinite where too few tiles are
        empty.
    structure_counts : ndarray of float64, shape (y, x)
        What is left of empty tiles beside offset and glow: stray light and dark current that
        do not follow the flat-field. Zero on average.
    glow_counts : float
        Light of empty tiles: what an error of the flat-field is multiplied by.
    """

    offset_counts: float
    error_counts: float
    structure_counts: Float
    glow_counts: float = 0.0


def empty_tiles(images: Float, flat: Float) -> EmptyTiles:
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
    """
    level = np.median(images, axis=(1, 2))
    low, high = np.percentile(level, [5.0, 95.0])
    order = np.argsort(level, kind="stable")
    empty = images[order[level[order] <= low + _EMPTY_SHARE * (high - low)]]
    nothing = EmptyTiles(0.0, float("inf"), np.zeros_like(flat))
    if len(empty) < _MIN_EMPTY or float(flat.std()) < 1e-3:
        return nothing
    shared = np.median(empty, axis=0)
    apart = np.abs(empty - shared)
    bare = apart < _TISSUE * 1.4826 * float(np.median(apart))
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
        return nothing
    return EmptyTiles(offset, error, structure, glow)


def _mean(images: Float, bare: NDArray[np.bool_], shared: Float) -> Float:
    """Return the mean (y, x) of the ``bare`` blocks, ``shared`` where there is none."""
    count = bare.sum(axis=0)
    total = np.where(bare, images, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), shared)


def _line(image: Float, flat: Float) -> tuple[float, float]:
    """Return slope and intercept of an image over the flat-field."""
    slope, intercept = np.polyfit(flat.ravel(), image.ravel(), 1)
    return float(slope), float(intercept)
