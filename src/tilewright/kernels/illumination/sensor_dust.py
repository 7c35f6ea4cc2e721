"""Dust on the sensor, from what all tiles show at the same pixels.

A spot of dust takes the same share of the light of every tile. Beside its own local mean each tile
shows it, where its specimen is even; so tiles are averaged, each weighted by how even it is around
the pixel. Sums over groups of tiles are kept, never tiles: groups must agree, and their scatter is
the error. The camera offset enters only in the end. All on the host.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Floats
from tilewright.kernels.noise import MEDIAN_CHI2

#: Side of the local mean, and of the square in which a tile is even or not, as parts of the tile's:
#: the widest dust, 60 px of 1024, fills a fifth of the first.
_MEAN, _EVEN = 1 / 8, 1 / 16
#: Groups of tiles. Each but one must show half of a spot at least.
_GROUPS = 5
#: Tiles, each by its weight, that must show a pixel: where one even tile decided, 36 tiles of
#: textured tissue got spots of their own; with 8 the spots of 36 tiles of nuclei were cut in two.
_LEAST_TILES = 4.0
#: Standard errors from which a pixel shows dust, and down to which its neighbours do. With 5 two of
#: 45 clean sets got spots (0.3 and 0.5 % of the pixels), with 7 none; spots of 15 to 35 % on 36
#: tiles have 10 to 22.
_SIGMA, _EDGE_SIGMA = 7.0, 2.0
#: Least share of the light that a spot takes: half of the weakest dust that was imaged.
_LEAST = 0.05
#: Standard deviation of the blur of the sums, in pixels.
_BLUR_PX = 1.0
#: Steps in which the dust's own share of the local mean is given back.
_STEPS = 6


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
    """Return what tiles (n, y, x) of raw counts say of dust: sums float32 (groups, 7, y, x).

    Each group holds a part of the tiles. The seven are weighted sums of the deviation from the
    local mean times that mean, the deviation, the squared mean, the mean and 1, then of the
    variance and of the squared weights.

    >>> dust_sums(np.full((2, 32, 32), 500.0, np.float32)).shape
    (5, 7, 32, 32)
    """
    sums = np.zeros((_GROUPS, 7, *images.shape[1:]), np.float32)
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
        sums[k % _GROUPS] += [*(weight * term for term in terms), power**2 * uneven, power**2]
    return sums


def find_dust(sums: NDArray[np.float32], offset_counts: float) -> SensorDust | None:
    """Return the dust of a sensor, with the camera's offset known; None without any.

    Parameters
    ----------
    sums : ndarray of float32, shape (groups, 7, y, x)
        Of :func:`dust_sums`.
    offset_counts : float
        Camera offset.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> gain = np.ones((128, 128))
    >>> gain[60:68, 60:68] = 0.7
    >>> tiles = rng.poisson(100 + rng.uniform(300, 900, (20, 1, 1)) * gain).astype(np.float32)
    >>> found = find_dust(dust_sums(tiles), 100.0)
    >>> round(float(found.gain[64, 64]), 1), round(found.share, 3)
    (0.7, 0.004)
    """
    blurred = ndimage.gaussian_filter(sums, (0, 0, _BLUR_PX, _BLUR_PX)).astype(np.float64)
    by_level, plain, square, level, weight, variance, squares = np.moveaxis(blurred, 1, 0)
    power = np.maximum(square - 2 * offset_counts * level + offset_counts**2 * weight, 1e-9)
    parts = (by_level - offset_counts * plain) / power
    # Even places lie beside bright objects, so they are darker than their local mean everywhere.
    parts -= np.median(parts, axis=(1, 2), keepdims=True)
    deviation = (power * parts).sum(axis=0) / power.sum(axis=0)
    deviation -= np.median(deviation)
    tiles = square.sum(axis=0) ** 2 / np.maximum(squares.sum(axis=0), 1e-30)
    error = _standard_error(power, parts, deviation, variance * power / np.maximum(square, 1e-9))
    sigma = np.where(deviation < 0, -deviation, 0) / error
    agree = (parts < deviation / 2).sum(axis=0) >= _GROUPS - 1
    sigma[~agree | (tiles < _LEAST_TILES)] = 0
    deep = (deviation < -_LEAST) & (sigma > _SIGMA)
    shown = ndimage.binary_propagation(deep, mask=sigma > _EDGE_SIGMA)
    if not shown.any():
        return None
    gain = deviation
    for _ in range(_STEPS):
        gain = np.where(shown, deviation + _box_mean(np.where(shown, gain, 0.0), _MEAN), 0.0)
    rest = float(np.sqrt(np.mean(np.where(shown, error, 0.0) ** 2)))
    return SensorDust(np.clip(1.0 + gain, 0.05, 1.0), rest, float(shown.mean()))


def _standard_error(power: Floats, parts: Floats, deviation: Floats, variance: Floats) -> Floats:
    """Return the standard error of the deviation from the local mean, by how uneven tiles are.

    Raised to the scatter of the groups, over the tile and around each pixel.
    """
    total = power.sum(axis=0)
    expected = variance / power**2
    lost = _GROUPS / (_GROUPS - 1)
    ratio = (parts - deviation) ** 2 / np.maximum(expected, 1e-30)
    raised = float(np.median(ratio)) / MEDIAN_CHI2 * lost
    scatter = _box_mean((power**2 * (parts - deviation) ** 2).sum(axis=0) / total**2, _EVEN) * lost
    model = raised * (power**2 * expected).sum(axis=0) / total**2
    return np.asarray(np.sqrt(np.maximum(np.maximum(scatter, model), 1e-12)))


def _box_mean(image: NDArray[Any], part: float) -> NDArray[Any]:
    """Return the mean of squares of this part of the image's side around each pixel."""
    size = 2 * round(max(image.shape) * part / 2) + 1
    return np.asarray(ndimage.uniform_filter(image, size, mode="nearest"))
