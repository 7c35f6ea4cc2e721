"""The noise of images: of raw tiles the camera's, of mosaics what interpolation left of it."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Backend, Floats

#: Unit-gain noise estimator of Immerkær (CVIU 64, 1996): blind to planes and to straight edges.
NOISE_KERNEL = np.outer([1.0, -2.0, 1.0], [1.0, -2.0, 1.0]).astype(np.float32) / 6


def mad_sigma(deviations: Any, axis: int | None = None) -> Any:
    """Return the standard deviation of Gaussian deviations, robustly: their median size, scaled.

    >>> round(float(mad_sigma(np.random.default_rng(0).normal(0, 3, 10_001))), 1)
    3.0
    """
    # The median size of a standard normal deviate is 1 / 1.4826.
    return 1.4826 * np.median(np.abs(deviations), axis=axis)


class NoiseModel(NamedTuple):
    """Variance of a pixel: ``read_noise_counts² + gain × (mean - pedestal)``."""

    gain: float
    read_noise_counts: float

    def variance(self, signal_counts: Any) -> Any:
        """Return the variance (counts²) of pixels of mean ``signal_counts`` over the pedestal."""
        return self.read_noise_counts**2 + self.gain * signal_counts


def photon_transfer(backend: Backend, image: Any, pedestal_counts: float) -> NoiseModel:
    """Return the camera's noise from one raw (y, x) image (photon transfer, Janesick 2007).

    Variance against mean over 16 intensity bins, from Immerkær's residual at the flattest
    30 % of each bin's pixels, fitted by a line; bins lifted by texture lose their weight.
    ``gain`` is in counts per photo-electron. A constant image has no noise.

    >>> photons = np.random.default_rng(0).poisson(np.linspace(20, 500, 256), (256, 256))
    >>> round(photon_transfer(cpu, 100.0 + 2 * photons, 100.0).gain)
    2
    """
    ndimage = backend.ndimage
    plane = backend.asarray(image)
    smooth = ndimage.gaussian_filter(plane, 2.0, mode="reflect")
    slope = sum(backend.xp.abs(ndimage.sobel(smooth, axis=axis)) for axis in (0, 1))
    rough = ndimage.convolve(plane, backend.asarray(NOISE_KERNEL), mode="reflect")
    # Constant patches (outside tiles, saturated) have no noise, nor a mean next to them: the
    # smoothing reaches 8 px.
    constant = ndimage.maximum_filter(plane, 5) == ndimage.minimum_filter(plane, 5)
    near = ndimage.maximum_filter(constant.astype(np.float32), 17)
    mean, flat, residual, near = (
        backend.to_numpy(v).ravel().astype(np.float64) for v in (smooth, slope, rough, near)
    )
    valid = np.flatnonzero(near == 0)
    if valid.size < 64:
        return NoiseModel(0.0, 0.0)
    order = valid[np.argsort(mean[valid], kind="stable")]
    points = []
    for part in np.array_split(order, 16):
        flattest = part[np.argsort(flat[part], kind="stable")[: max(int(0.3 * part.size), 1)]]
        points.append((mean[flattest].mean(), mad_sigma(residual[flattest]) ** 2))
    level, variance = np.array(points).T
    return _noise_line(level - pedestal_counts, variance)


def _noise_line(signal: Floats, variance: Floats) -> NoiseModel:
    """Fit variance = read² + gain × signal; points above the line count less (texture)."""
    # Of the median variance 0.1 is a floor; an excess of 30 % over the line halves a weight, and a
    # range of signal below 3 standard deviations shows no gain: no figures.
    scale = max(float(np.median(variance)), 1e-12)
    if np.ptp(signal) < 3 * np.sqrt(scale):
        return NoiseModel(0.0, float(np.sqrt(scale)))
    weight = 1 / np.maximum(variance, 0.1 * scale)
    design = np.stack([np.ones_like(signal), signal], axis=1)
    line: NDArray[np.floating[Any]] = np.zeros(2)
    for _ in range(10):
        line = np.linalg.lstsq(design * weight[:, None], variance * weight, rcond=None)[0]
        expected = np.maximum(design @ line, 0.1 * scale)
        excess = np.maximum(variance / expected - 1, 0) / 0.3
        weight = 1 / (expected * (1 + excess**2))
    read_variance, gain = np.maximum(line, 0.0)
    return NoiseModel(float(gain), float(np.sqrt(read_variance)))
