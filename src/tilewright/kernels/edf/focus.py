"""Extended depth of field: where each plane of a z-stack is in focus, and one plane of it all.

The energy of a band-pass says how much detail a plane shows at a pixel (after Forster et al.,
Microsc. Res. Tech. 65, 2004, without the wavelets). Every method starts from it: on a raw stack
each pixel is a soft mixture of the planes with the most detail, or what the filters of
:mod:`.wiener_plane` make of all planes; after a deconvolution, where picking planes is wrong, it is
the sum over z blurred with the in-focus PSF.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Array, Backend, Bools
from tilewright.kernels.noise import NoiseModel

#: Band-pass of the focus energy: difference of Gaussians of this sigma and twice it, in px.
BAND_SIGMA_PX = 1.2
#: Smoothing of the focus energy in px (4 loses 0.02 dB on thick tissue and 0.05 dB on dim one), and
#: of the wide one that decides where there is little: without it what rounding leaves would.
_ENERGY_PX, _WIDE_PX = 6.0, 24.0
#: Weights of planes are the energy, and this many times that of noise, to this power: with a
#: quarter of the noise dim stacks lose 0.5 dB; power 2 costs 0.7 dB on bright ones.
_SOFT_NOISE, _POWER = 2.0, 4
#: Maps of focus have one pixel of this many.
POOL_PX = 4
#: Pixels around a tile that reach into it: a filter or a PSF has 64 px, and
#: :func:`.wiener_plane.remove_grain` smooths over 24 after that. So far from debris its light is
#: subtracted, too.
HALO_PX = 112
#: Beside the mosaic's border, gaps and debris planes are mixed by their focus, over so many px: at
#: the border filters lose 2 to 4 dB. Of those around debris half show it, and no tissue: with 12
#: px instead of these 4 its light out of focus makes rings of 1.4 times the tissue.
BORDER_PX = 8


class Projection(NamedTuple):
    """One plane out of a stack, on the backend.

    ``image`` (y, x) float32 counts. The others have the first pixel of 4 × 4: ``height`` float32,
    mean of the planes by their focus weights; ``sharpest`` int32, the plane of the greatest focus
    energy, -1 where none stands out. Of :class:`.wiener_plane.WienerPlane` alone ``variance``
    float32, of the image by noise, counts², and ``below_noise`` float32, the share of pixels that
    are more than three standard deviations of it, and half a count, below 0.
    """

    image: Array
    height: Array
    sharpest: Array
    variance: Array | None = None
    below_noise: Array | None = None


class Focus(NamedTuple):
    """Focus of a window's usable planes, one pixel of 4 × 4.

    ``spectra`` of the light of each plane; float32 (usable z, y, x): ``energy`` of the band-pass,
    smoothed, without that of ``noise``; ``wide``, smoothed widely. ``sharpest`` int32 (y, x), as in
    :class:`Projection`.
    """

    spectra: list[Array]
    energy: Array
    wide: Array
    noise: Array
    sharpest: Array

    def weights(self, wide_share: float, noise_share: float, power: int) -> Array:
        """Return weights (usable z, y, x) of sum 1: a power of energies and a share of noise."""
        weights = self.energy + wide_share * self.wide + noise_share * self.noise
        # Divided by the greatest first: the fourth power of a saturated plane would overflow.
        weights /= weights.max(axis=0)
        weights **= power
        weights /= weights.sum(axis=0)
        return weights


class FocusMeasure:
    """Measures the focus of windows of a mosaic, all of one size.

    Parameters
    ----------
    backend : Backend
    plane_mask : ndarray of bool, shape (z,)
        Planes to use.
    noise : NoiseModel
        The camera's; the same for all windows.
    pedestal_counts : float
        Counts without light.
    window : (int, int)
        (y, x) of all windows, multiples of 8. They are taken as circular: what lies within
        :data:`HALO_PX` of their rim is wrong. The grid of the maps starts at their pixel 0, so
        windows that start at multiples of 4 of the mosaic give the same pixels.

    Raises
    ------
    ValueError
        The window is no multiple of 8, or no plane is usable.
    """

    def __init__(
        self,
        backend: Backend,
        plane_mask: Bools,
        noise: NoiseModel,
        pedestal_counts: float,
        window: tuple[int, int],
    ) -> None:
        if any(n % 8 for n in window):
            raise ValueError(f"the window is {window} px; give multiples of 8")
        self.planes = [int(z) for z in np.flatnonzero(plane_mask)]
        if not self.planes:
            raise ValueError("no plane of the stack is usable: there is nothing to project")
        self.backend, self.noise, self.pedestal = backend, noise, np.float32(pedestal_counts)
        self.window, self.index = window, backend.asarray(np.array(self.planes))[:, None, None]
        band = _half_band(window)
        #: Of white noise of variance 1, as much as the band leaves in it.
        self.band_noise = float(np.mean(np.square(_both_halves(band, window))) / 4)
        self._band = backend.asarray(band / 4)

    def measure(self, stack: Any) -> Focus:
        """Return the focus of a window's stack (z, y, x) of raw counts.

        Raises
        ------
        ValueError
            The stack is not of the window's size.
        """
        if tuple(stack.shape[1:]) != self.window:
            raise ValueError(f"the stack is {stack.shape[1:]} px, but windows are {self.window}")
        backend, xp = self.backend, self.backend.xp
        shape = (len(self.planes), *(n // POOL_PX for n in self.window))
        energy, noise = (xp.empty(shape, dtype=xp.float32) for _ in range(2))
        spectra = []
        for i, z in enumerate(self.planes):
            spectrum = backend.fft.rfft2(self.light(stack, z))
            # The band ends below half the spectrum: a quarter of the pixels hold it all.
            band = self._low_frequencies(spectrum, 2, self._band)
            band *= band
            energy[i] = mean_2x2(band)
            light = xp.maximum(self._low_frequencies(spectrum, POOL_PX, 1 / POOL_PX**2), 0)
            noise[i] = self.band_noise * xp.maximum(self.noise.variance(light), 1e-3)
            spectra.append(spectrum)
        energy -= noise
        near, coarse = _ENERGY_PX / POOL_PX, _WIDE_PX / POOL_PX / 2
        gaussian = partial(backend.ndimage.gaussian_filter, mode="wrap", truncate=3.0)
        wide = xp.maximum(gaussian(mean_2x2(energy), (0, coarse, coarse)), 0)
        energy = xp.maximum(gaussian(energy, (0, near, near)), 0)
        best = backend.asarray(np.array(self.planes), dtype=np.int32)[energy.argmax(axis=0)]
        clear = energy.max(axis=0) > noise.mean(axis=0)
        wide = upsample_linear(xp, wide, 2)
        return Focus(spectra, energy, wide, noise, xp.where(clear, best, -1))

    def height(self, weights: Array) -> Array:
        """Return the mean (y, x) of the planes by their weights (usable z, y, x)."""
        return (weights * self.index).sum(axis=0)

    def light(self, stack: Any, z: int) -> Array:
        """Return a plane (y, x) of a stack without its pedestal, on the device."""
        return self.backend.asarray(stack[z]) - self.pedestal

    def _low_frequencies(self, spectrum: Array, factor: int, gain: Any) -> Array:
        """Return the low frequencies of a plane, times ``gain``, as an image of fewer pixels."""
        y, x = (n // factor for n in self.window)
        xp = self.backend.xp
        rows = (spectrum[: y - y // 2], spectrum[self.window[0] - y // 2 :])
        low = xp.concatenate([part[:, : x // 2 + 1] for part in rows])
        low *= gain
        # Its highest frequencies are no real image's, and cuFFT reads another half of them.
        if y % 2 == 0:
            low[y // 2] = 0
        if x % 2 == 0:
            low[:, x // 2] = 0
        return self.backend.fft.irfft2(low, s=(y, x))


def focus_weighted(measure: FocusMeasure, stack: Any) -> Projection:
    """Mix the planes of a raw stack (z, y, x) by how much detail each shows at a pixel.

    Where nothing is in focus the planes have equal weights: their mean, the least noisy answer.

    Examples
    --------
    >>> stack = np.full((3, 40, 40), 100.0)
    >>> stack[1] += np.random.default_rng(0).poisson(50, (40, 40))
    >>> measure = FocusMeasure(cpu, np.ones(3, bool), NoiseModel(0.0, 1.0), 100.0, (40, 40))
    >>> int(focus_weighted(measure, stack).sharpest[5, 5])
    1
    """
    focus, xp = measure.measure(stack), measure.backend.xp
    weights = focus.weights(0.0, _SOFT_NOISE, _POWER)
    image = sum(
        upsample_linear(xp, weight, POOL_PX) * measure.light(stack, z)
        for z, weight in zip(measure.planes, weights, strict=True)
    )
    return Projection(image, measure.height(weights), focus.sharpest)


def sum_projection(measure: FocusMeasure, stack: Any, kernel: NDArray[Any]) -> Projection:
    """Sum a deconvolved stack (z, y, x) over z and blur it with the in-focus PSF.

    With the central plane of the PSF that the stack was deconvolved with, whose sum is the share of
    the light that falls into it, that is the raw plane that the microscope would have taken, were
    everything in focus: raw counts over the pedestal, nothing taken from the image.

    Parameters
    ----------
    measure : FocusMeasure
    stack : array, shape (z, y, x)
        Deconvolved light.
    kernel : ndarray, shape (y, x)
        Central plane of the PSF, with odd sides of at most twice :data:`HALO_PX`.

    Raises
    ------
    ValueError
        The kernel has an even side.

    Examples
    --------
    >>> measure = FocusMeasure(cpu, np.ones(3, bool), NoiseModel(0.0, 1.0), 0.0, (16, 16))
    >>> plane = sum_projection(measure, np.ones((3, 16, 16)), np.full((3, 3), 0.5 / 9))
    >>> round(float(plane.image[8, 8]), 4)
    1.5
    """
    if any(n % 2 == 0 for n in kernel.shape):
        raise ValueError(f"the in-focus PSF of {kernel.shape} px needs odd sides")
    focus, backend = measure.measure(stack), measure.backend
    # On a grid of the window's size, its centre at pixel 0; a wider one wraps around.
    wrapped: NDArray[np.float32] = np.zeros(measure.window, np.float32)
    y, x = (
        (np.arange(n) - n // 2) % size for n, size in zip(kernel.shape, measure.window, strict=True)
    )
    np.add.at(wrapped, (y[:, None], x), kernel)
    spectrum = sum(focus.spectra) * backend.fft.rfft2(backend.asarray(wrapped))
    image = backend.fft.irfft2(spectrum, s=measure.window)
    weights = focus.weights(0.0, _SOFT_NOISE, _POWER)
    return Projection(image, measure.height(weights), focus.sharpest)


def _half_band(window: tuple[int, int]) -> NDArray[np.float64]:
    """Return the band-pass of the focus energy at the frequencies of an image half as large."""
    y, x = (n // 2 for n in window)
    square = np.square(np.fft.fftfreq(y)[:, None] / 2) + np.square(np.fft.rfftfreq(x) / 2)
    narrow = np.exp(-2 * np.pi**2 * BAND_SIGMA_PX**2 * square)
    return np.asarray(narrow - narrow**4)


def _both_halves(band: NDArray[np.float64], window: tuple[int, int]) -> NDArray[np.float64]:
    """Return the band over all frequencies of the half-sized image, negative x included."""
    x = window[1] // 2
    return np.concatenate([band, band[:, 1 : (x + 1) // 2][:, ::-1]], axis=1)


def mean_2x2(values: Array) -> Array:
    """Return means over 2 × 2 pixels of the last two axes."""
    rows = values[..., ::2, :] + values[..., 1::2, :]
    return np.float32(0.25) * (rows[..., ::2] + rows[..., 1::2])


def upsample_linear(xp: Any, values: Array, factor: int) -> Array:
    """Interpolate the last two axes linearly onto ``factor`` times as many pixels; rims repeat."""
    for axis in (-1, -2):
        last = values.shape[axis] - 1
        before = np.maximum(np.arange(-1, last), 0)
        after = np.minimum(np.arange(1, last + 2), last)
        sides = [xp.take(values, xp.asarray(at), axis=axis) for at in (before, after)]
        shape = [*values.shape]
        shape[axis] *= factor
        out = xp.empty(shape, dtype=values.dtype)
        for step in range(factor):
            offset = (step + 0.5) / factor - 0.5
            share = np.float32(abs(offset))
            index: list[Any] = [slice(None)] * values.ndim
            index[axis] = slice(step, None, factor)
            out[tuple(index)] = (1 - share) * values + share * sides[int(offset > 0)]
        values = out
    return values
