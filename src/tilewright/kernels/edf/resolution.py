"""How fine an image is, from two images of the same light whose noise is independent.

Fourier ring correlation: Saxton & Baumeister, J. Microsc. 127:127, 1982; with the threshold 1/7 for
halves of the data Nieuwenhuizen et al., Nat. Methods 10:557, 2013. Where two halves correlate by
1/7, an image of both correlates with the truth by 1/2.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Backend
from tilewright.kernels.edf.focus_maps import FocusMaps
from tilewright.kernels.edf.wiener_filters import make_filters
from tilewright.kernels.edf.wiener_plane import HALO_PX, WienerPlane

#: Correlation of two halves at the finest detail that both together hold.
THRESHOLD = 1 / 7
#: Width of a ring and of the mean over rings, in cycles/px: of 336 px these are 1.3 and 4 rings.
_RING = 1 / 256
_SMOOTHED = 3
#: Pixels so near to saturated ones do not count; further out they do more and more.
_DEBRIS_PX = 24
#: Detail as fine as the pixels hold.
FINEST_PX = 2.0


def ring_sums(
    backend: Backend, first: Any, second: Any, weight: NDArray[np.float32] | None = None
) -> NDArray[np.float64]:
    """Return over rings the cross-power of two images (y, x), and the power of each: (3, rings).

    The sums of several places add up to one correlation, see :func:`resolution_px`. Pixels count
    with their ``weight`` (y, x), if it is given, which should be smooth.
    """
    shape = first.shape
    window = np.outer(*(np.hanning(n + 2)[1:-1] for n in shape))
    if weight is not None:
        window *= weight
    taper = backend.asarray(window / max(float(window.sum()), 1e-9))
    with backend.fft_threads():
        a, b = (
            backend.to_numpy(backend.fft.rfft2((image - (image * taper).sum()) * taper)).astype(
                complex
            )
            for image in (first, second)
        )
    radius = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1]))
    ring = (radius / _RING).astype(np.intp).ravel()
    rings = int(0.5 / _RING)
    values = ((a * b.conj()).real, np.square(np.abs(a)), np.square(np.abs(b)))
    return np.stack([np.bincount(ring, v.ravel(), rings)[:rings] for v in values])


def resolution_px(sums: Iterable[NDArray[np.float64]]) -> float:
    """Return the period in px of the finest detail that both halves show; 73 if none.

    Parameters
    ----------
    sums : iterable of ndarray of float64, shape (3, rings)
        From :func:`ring_sums`, of different places.
    """
    cross, first, second = np.sum(list(sums), axis=0)
    # The windows of the taper and of the mean reach over the lowest rings, where the mean was.
    whole = np.ones(_SMOOTHED)
    smooth = [np.convolve(part, whole, "same") for part in (cross, first, second)]
    correlation = smooth[0] / np.maximum(np.sqrt(smooth[1] * smooth[2]), 1e-30)
    below = np.flatnonzero(~(correlation >= THRESHOLD))  # NaN counts as below
    below = below[below >= _SMOOTHED]
    if not below.size:
        return FINEST_PX
    ring = int(below[0])
    before, after = correlation[ring - 1 : ring + 1]
    place = float(ring)
    if ring > _SMOOTHED:
        place += (before - THRESHOLD) / (before - after) - 1
    return max(round(float(1 / ((place + 0.5) * _RING)), 2), FINEST_PX)


def plane_resolution_px(
    maps: FocusMaps, usage: NDArray[np.float64], samples: Sequence[Any], ceiling: float = np.inf
) -> float | None:
    """Return the period in px of the finest detail on which odd and even planes agree.

    Each half of the planes gives an in-focus plane of its own, whose noise is independent. They
    differ also where the configured optics are not those of the microscope, or a plane is not where
    it should be.

    Parameters
    ----------
    maps : FocusMaps
        Of windows of the samples' size.
    usage : ndarray of float64, shape (2, planes, noise levels)
        From :meth:`tilewright.kernels.edf.focus_maps.FocusMaps.bin_usage`.
    samples : sequence of array, shape (z, y, x)
        Raw counts of different places.
    ceiling : float
        Counts from which on pixels may be saturated. Debris is alike in both halves and finer than
        tissue, so its surroundings do not count.

    Returns
    -------
    float or None
        None with fewer than four planes.

    Examples
    --------
    >>> from tilewright.kernels.edf.channel_model import ChannelModel
    >>> from tilewright.kernels.noise import NoiseModel
    >>> channel = ChannelModel(np.ones((9, 129)), np.ones(3, bool), np.ones(129), 1.0)
    >>> maps = FocusMaps(cpu, channel, NoiseModel(1.0, 2.0), 100.0, (64, 64))
    >>> plane_resolution_px(maps, np.ones((2, 3, 5)), []) is None
    True
    """
    planes = np.flatnonzero(maps.channel.plane_mask)
    if len(planes) < 4:
        return None
    halves = [_wiener_plane(maps, usage, planes[first::2]) for first in range(2)]
    inner = (slice(HALO_PX, -HALO_PX),) * 2
    sums = []
    for sample in samples:
        saturated = np.asarray(np.any(maps.backend.to_numpy(sample)[planes] >= ceiling, axis=0))
        weight = None
        if saturated.any():
            far = ndimage.distance_transform_edt(~saturated)[inner] - _DEBRIS_PX
            weight = np.clip(far / _DEBRIS_PX, 0, 1).astype(np.float32)
        first, second = (half.project(sample).image[inner] for half in halves)
        sums.append(ring_sums(maps.backend, first, second, weight))
    return resolution_px(sums)


def _wiener_plane(
    maps: FocusMaps, usage: NDArray[np.float64], planes: NDArray[np.intp]
) -> WienerPlane:
    """Return the estimate by some of the planes."""
    mask = np.zeros_like(maps.channel.plane_mask)
    mask[planes] = True
    of_planes = maps.of_planes(mask)
    return WienerPlane(of_planes, make_filters(of_planes.channel, usage))
