"""Whether two tiles show the same where they overlap, at the positions at which they are fused.

Textures are compared by normalised cross-correlation. On the host.
"""

from dataclasses import dataclass

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import fast_len
from tilewright.kernels.noise import NOISE_KERNEL, mad_sigma

Image = NDArray[np.float32]
#: Band of the textures, in px: noise of single pixels and shading are left out.
_FINE_PX, _COARSE_PX = 1.2, 6.0
#: Largest shift looked for, along either axis.
REACH_PX = 8


@dataclass(frozen=True)
class StripAgreement:
    """How two strips (y, x) of one place agree.

    Attributes
    ----------
    ncc : float
        Correlation of the textures at the best shift within ``REACH_PX``.
    expected : float
        What noise would leave of it if both showed the same; 0 where there is only noise.
    power : float
        Variance of the weaker texture, in root counts squared.
    shift_px : tuple[float, float]
        (y, x) by which the second strip is displaced against the first.
    """

    ncc: float
    expected: float
    power: float
    shift_px: tuple[float, float]


def compare_strips(first: Image, second: Image) -> StripAgreement:
    """Compare two strips of the same shape (y, x), in counts of light above zero.

    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(80, 80)), 2)
    >>> light = 100 + 100 * scene.astype(np.float32)
    >>> strips = [light[y : y + 64, x : x + 64] for y, x in ((4, 4), (2, 3))]
    >>> [round(shift) for shift in compare_strips(*strips).shift_px]
    [2, 1]
    """
    textures, signals = zip(*(texture(image) for image in (first, second)), strict=True)
    expected = float(np.sqrt(max(signals[0], 0.0) * max(signals[1], 0.0)))
    power = min(float((texture * texture).mean(dtype=np.float64)) for texture in textures)
    ncc, shift = _best_shift(textures[0], textures[1])
    return StripAgreement(ncc, expected, power, shift)


def texture(image: Image) -> tuple[Image, float]:
    """Return the band-passed root of an image (y, x), and the share of its variance above noise.

    >>> nuclei = ndimage.gaussian_filter(np.random.default_rng(0).random((64, 64)), 3)
    >>> band, share = texture(1e6 * nuclei)
    >>> band.shape, share > 0.9
    ((64, 64), True)
    """
    root = np.sqrt(np.maximum(np.asarray(image, np.float32), 0.0))
    # Immerkaer's kernel of unit norm; the lower half belongs to places without structure.
    sigma = float(mad_sigma(ndimage.convolve(root, NOISE_KERNEL, mode="nearest")))
    fine = ndimage.gaussian_filter(root, _FINE_PX, mode="nearest")
    band = fine - ndimage.gaussian_filter(fine, _COARSE_PX, mode="nearest")
    band = band - band.mean()
    variance = float((band * band).mean(dtype=np.float64))
    passed = 1 / (4 * np.pi * _FINE_PX**2)  # share of white noise that the band holds
    return band, 1 - passed * sigma**2 / max(variance, 1e-12)


def _best_shift(first: Image, second: Image) -> tuple[float, tuple[float, float]]:
    """Return the largest NCC within the reach, and its shift to a tenth of a pixel."""
    sizes = tuple(int(n) for n in first.shape)
    shape = tuple(fast_len(n + REACH_PX) for n in sizes)
    spectra = [scipy.fft.rfft2(v, s=shape) for v in (first, second)]
    cross = scipy.fft.irfft2(np.conj(spectra[0]) * spectra[1], s=shape)
    reach = [min(REACH_PX, (n - 1) // 2) for n in sizes]
    near = cross[np.ix_(*(np.arange(-r, r + 1) % n for r, n in zip(reach, shape, strict=True)))]
    power = float((first * first).sum(dtype=np.float64) * (second * second).sum(dtype=np.float64))
    # The shifted strips overlap in part only.
    common = [1 - np.abs(np.arange(-r, r + 1)) / n for r, n in zip(reach, sizes, strict=True)]
    scores = np.round(near / np.outer(*common) / max(np.sqrt(power), 1e-12), 5)
    y, x = np.unravel_index(int(scores.argmax()), scores.shape)
    shift = []
    for axis, at in enumerate((int(y), int(x))):
        line = scores[:, x] if axis == 0 else scores[y, :]
        step = 0.0
        if 0 < at < len(line) - 1:
            bend = line[at - 1] + line[at + 1] - 2 * line[at]
            step = float(0.5 * (line[at - 1] - line[at + 1]) / bend) if bend < 0 else 0.0
        shift.append(at - reach[axis] + step)
    return float(scores[y, x]), (shift[0], shift[1])
