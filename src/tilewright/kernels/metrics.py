"""Numbers that say whether an image is good: focus, agreement.

On the host: every function takes images (y, x) and returns plain floats, so that a report can
write them as JSON. A number that the image cannot give (focus of an empty field) is ``nan``.
"""

from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from tilewright.kernels.backend import fast_len

#: Spatial frequencies in cycles/px: tissue shapes, and the detail that defocus removes first.
LOW_BAND = (0.01, 0.04)
DETAIL_BAND = (0.08, 0.20)
#: Only the corners of the spectrum lie beyond this radius; the optics pass little there.
NOISE_BAND = (0.50, 0.71)
#: Low-band power over the noise floor below which there is no signal to focus on.
SIGNAL_GUARD = 3.0


def focus_score(image: NDArray[Any]) -> float:
    """Return the ratio of fine to coarse power, less noise, of a (y, x) image of 64×64 px or more.

    Power at 0.08–0.2 cycles/px over power at 0.01–0.04, each less the white floor in the
    corners of the spectrum: independent of gain and offset, falling with defocus. A Hann
    window keeps the borders of the field out of the detail band.

    Raises
    ------
    ValueError
        The image is smaller than 64 px on a side.

    Examples
    --------
    >>> from scipy import ndimage
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(128, 128)), 2)
    >>> blurred = ndimage.gaussian_filter(scene, 2)
    >>> focus_score(scene) > 2 * focus_score(blurred)
    True
    """
    plane = np.asarray(image, np.float32)
    if plane.ndim != 2 or min(plane.shape) < 64:
        raise ValueError(f"focus_score needs a (y, x) image of 64 px or more, not {plane.shape}")
    window = np.outer(*(np.hanning(n + 2)[1:-1] for n in plane.shape)).astype(np.float32)
    shape = tuple(fast_len(n) for n in plane.shape)
    power = np.square(np.abs(scipy.fft.rfft2((plane - plane.mean()) * window, s=shape)))
    radius = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1])[None])

    def band(limits: tuple[float, float]) -> float:
        inside = ((radius >= limits[0]) & (radius < limits[1])).astype(np.float32)
        return float((power * inside).sum(dtype=np.float64) / inside.sum(dtype=np.float64))

    floor = max(band(NOISE_BAND), float(np.finfo(np.float32).tiny))
    low = band(LOW_BAND)
    if low < SIGNAL_GUARD * floor:
        return float("nan")
    return max(band(DETAIL_BAND) - floor, 0.0) / (low - floor)


def ncc(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return the normalised cross-correlation of two (y, x) images.

    ``nan`` where an image is constant.

    >>> image = np.random.default_rng(0).random((32, 32))
    >>> round(ncc(image, 3 - 2 * image), 3)
    -1.0
    """
    a, b = np.asarray(first, np.float32), np.asarray(second, np.float32)
    a, b = a - a.mean(dtype=np.float64), b - b.mean(dtype=np.float64)
    product = float((a * b).sum(dtype=np.float64))
    power = float((a * a).sum(dtype=np.float64)) * float((b * b).sum(dtype=np.float64))
    return product / float(np.sqrt(power)) if power > 0 else float("nan")
