"""What all tiles show at the same pixels: dust on the sensor, and the dark-field of empty tiles.

A spot of dust takes the same share of the light of every tile. Against its own local mean each tile
shows it, where its specimen is even; so tiles are averaged, each weighted by how even it is around
the pixel. Of dust sums over groups of tiles are stored, not tiles: groups must agree, and their
scatter is the error; the camera offset enters only in the end. Empty tiles are compared as block
means. All on the host.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Bools, Floats
from tilewright.kernels.noise import mad_sigma

#: Side of the local mean, and of the square in which a tile is even or not, as parts of the tile's:
#: the widest dust, 60 px of 1024, fills a fifth of the first.
_MEAN, _EVEN = 1 / 8, 1 / 16
#: Groups of tiles: each but one must show half of a spot at least, and their scatter is the error.
_GROUPS = 5
#: Standard errors from which a pixel shows dust, and down to which its neighbours do. With 5 two of
#: 45 clean sets got spots (0.3 and 0.5 % of the pixels), with 7 none; spots of 15 to 35 % on 36
#: tiles have 10 to 22.
_SIGMA, _EDGE_SIGMA = 7.0, 2.0
#: Standard deviation of the blur of the sums, in pixels.
_BLUR_PX = 1.0
#: Images count as empty up to this share of the way from the 5th to the 95th percentile of their
#: medians.
_EMPTY_SHARE = 0.1
#: Fewer empty tiles do not show what they have in common: the 12 tiles of a sparse channel
#: all look empty, and gave an offset below 0.
_MIN_EMPTY = 20
#: Blocks this many robust deviations off what empty images share are tissue and left out: on 54
#: of the brain tiles groups of six then give 723 to 774 counts, and 719 to 1170 with them.
_TISSUE = 3.0


class SensorDust(NamedTuple):
    """Dust of a sensor.

    Attributes
    ----------
    gain : float64 (y, x)
        Sensitivity relative to the smooth flat-field; 1 where there is no dust.
    error : float
        Relative rms error over the tile of what is corrected.
    share : float
        Share of pixels with dust.
    """

    gain: Floats
    error: float
    share: float


def dust_sums(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what tiles (n, y, x) of raw counts say of dust: sums float32 (groups, 6, y, x).

    Each group holds a part of the tiles. The six are weighted sums of the deviation from the local
    mean times that mean, the deviation, the squared mean, the mean and 1, then of the variance.

    >>> dust_sums(np.full((2, 32, 32), 500.0, np.float32)).shape
    (5, 6, 32, 32)
    """
    sums = np.zeros((_GROUPS, 6, *images.shape[1:]), np.float32)
    for k, image in enumerate(images):
        # A hot pixel would raise the local mean all around.
        counts = ndimage.median_filter(image, 3)
        local_mean = np.maximum(_box_mean(counts, _MEAN), 1e-3)
        deviation = counts - local_mean
        uneven = _box_mean((deviation / local_mean) ** 2, _EVEN)
        # Saturated places are even, but show nothing.
        least = float(np.percentile(uneven[::4, ::4], 10))
        if least <= 0:
            continue
        weight = 1 / (local_mean * (uneven + least)) ** 2
        power = weight * local_mean**2
        terms = (
            *(deviation * local_mean, deviation, local_mean**2),
            *(local_mean, np.ones_like(local_mean)),
        )
        sums[k % _GROUPS] += [*(weight * term for term in terms), power**2 * uneven]
    return sums


def find_dust(
    sums: NDArray[np.float32], flat: NDArray[np.float32], offset_counts: float
) -> SensorDust | None:
    """Return the dust of a sensor, with flat-field and camera offset known; None without any.

    Parameters
    ----------
    sums : ndarray of float32, shape (groups, 6, y, x)
        Of :func:`dust_sums`.
    flat : ndarray of float32, shape (y, x)
        The smooth flat-field. Where it bends it differs from its own local mean, as dust does: of
        tiles whose corners have a fifth of the light, 12 % of the pixels counted as dust.
    offset_counts : float
        Camera offset.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> gain = np.ones((128, 128))
    >>> gain[60:68, 60:68] = 0.7
    >>> tiles = rng.poisson(100 + rng.uniform(300, 900, (20, 1, 1)) * gain).astype(np.float32)
    >>> found = find_dust(dust_sums(tiles), np.ones((128, 128), np.float32), 100.0)
    >>> round(float(found.gain[64, 64]), 1), round(found.share, 3)
    (0.7, 0.004)
    """
    blurred = ndimage.gaussian_filter(sums, (0, 0, _BLUR_PX, _BLUR_PX)).astype(np.float64)
    product, plain, square, mean, weight, variance = np.moveaxis(blurred, 1, 0)
    power = np.maximum(square - 2 * offset_counts * mean + offset_counts**2 * weight, 1e-9)
    group_deviation = (product - offset_counts * plain) / power
    smooth = ndimage.gaussian_filter(flat / _box_mean(flat, _MEAN), _BLUR_PX)
    group_deviation = (1.0 + group_deviation) / smooth - 1.0
    # Even places lie next to bright objects, so they are darker than their local mean everywhere.
    group_deviation -= np.median(group_deviation, axis=(1, 2), keepdims=True)
    deviation = (power * group_deviation).sum(axis=0) / power.sum(axis=0)
    deviation -= np.median(deviation)
    error = _standard_error(
        power, group_deviation, deviation, variance * power / np.maximum(square, 1e-9)
    )
    sigma = np.where(deviation < 0, -deviation, 0) / error
    agree = (group_deviation < deviation / 2).sum(axis=0) >= _GROUPS - 1
    sigma[~agree] = 0
    shown = ndimage.binary_propagation(sigma > _SIGMA, mask=sigma > _EDGE_SIGMA)
    if not shown.any():
        return None
    # The local mean holds the dust's own share.
    gain = np.where(shown, deviation, 0.0)
    gain = np.where(shown, gain + _box_mean(gain, _MEAN), 0.0)
    rest = float(np.sqrt(np.mean(np.where(shown, error, 0.0) ** 2)))
    return SensorDust(np.clip(1.0 + gain, 0.05, 1.0), rest, float(shown.mean()))


def _standard_error(
    power: Floats, group_deviation: Floats, deviation: Floats, variance: Floats
) -> Floats:
    """Return the standard error of the deviation from the local mean, by how uneven tiles are.

    Raised to the scatter of the groups, over the tile and around each pixel.
    """
    total = power.sum(axis=0)
    expected = variance / power**2
    lost = _GROUPS / (_GROUPS - 1)
    ratio = (group_deviation - deviation) / np.sqrt(np.maximum(expected, 1e-30))
    raised = float(mad_sigma(ratio)) ** 2 * lost
    scatter = (
        _box_mean((power**2 * (group_deviation - deviation) ** 2).sum(axis=0) / total**2, _EVEN)
        * lost
    )
    model = raised * (power**2 * expected).sum(axis=0) / total**2
    return np.asarray(np.sqrt(np.maximum(np.maximum(scatter, model), 1e-12)))


def _box_mean(image: NDArray[Any], part: float) -> NDArray[Any]:
    """Return the mean of squares of this part of the image's side around each pixel."""
    size = 2 * round(max(image.shape) * part / 2) + 1
    return np.asarray(ndimage.uniform_filter(image, size, mode="nearest"))


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
    empty tiles give 576 counts (groups of them 562 to 599), where overlaps give 335; their
    structure of 100 counts is a fifth of the glow, and a grid in the mosaic if left in.

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
    bare = np.abs(empty - shared) < _TISSUE * float(mad_sigma(empty - shared))
    parts = [
        _line(_mean(empty[k::_GROUPS], bare[k::_GROUPS], shared), flat)[1] for k in range(_GROUPS)
    ]
    middle = _mean(empty, bare, shared)
    glow, offset = _line(middle, flat)
    rest = ndimage.median_filter(middle - offset - glow * flat, size=5, mode="nearest")
    structure = np.asarray(ndimage.gaussian_filter(rest, 1.5, mode="nearest"), np.float64)
    # The median deviation: one group may be far off.
    error = float(mad_sigma(np.array(parts) - offset)) / _GROUPS**0.5
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
