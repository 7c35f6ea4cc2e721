"""The multi-plane Wiener plane of a z-stack: a local mixture of filters over all planes.

Where an image is in focus, and how far light spreads in depth there, is read off the band-pass
energy of its planes; it says which of the filters of :mod:`.wiener_filters` to take at each pixel.
Beside borders, gaps and whatever is far brighter than tissue, the planes are mixed by their focus
instead; grain that is no more than noise is removed.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage as host_ndimage

from tilewright.kernels.backend import Array, Backend
from tilewright.kernels.edf.channel_model import ChannelModel
from tilewright.kernels.edf.focus import BAND_SIGMA_PX, POOL_PX, Projection
from tilewright.kernels.edf.wiener_filters import Filters
from tilewright.kernels.noise import NoiseModel
from tilewright.kernels.pooling import mean_2x2, upsample_linear

#: Smoothing of the focus energy in px, and of the wide one that decides where there is little;
#: shares of the wide one and of the noise in the sum.
_ENERGY_PX, _WIDE_PX = 6.0, 24.0
_WIDE_SHARE, _NOISE_SHARE = 0.2, 0.02
#: Share of the spread of the focus weights, beyond a thin sheet's, that is spread of the light.
_SPREAD = 0.65
#: Light is never negative: pixels so many standard deviations of their noise, and half a count,
#: below zero show that the filters are not those of the microscope.
_BELOW_SIGMAS = 3.0
#: Beside the mosaic's border, gaps and debris the result is the focus-weighted projection, over so
#: many px: at the border the filters lose 2 to 4 dB.
BORDER_PX = 8.0
#: Pixels around debris that show it, and no tissue: with 12 instead of 4 its light out of focus
#: makes rings of 1.4 times the tissue.
DEBRIS_PX = 4
#: Noise variances taken for grain, smoothing of the power it is compared with, and of the light
#: that is returned. In dark places of the dim set 0, 2 and 4 leave 0.97, 0.41 and 0.31 counts of
#: grain (RL 0.21), and 4 gains 0.5 dB; returning it over 12 px instead of 6 loses 0.2 dB where it
#: is very dim.
_GRAIN, _POWER_PX, _RETURN_PX = 4.0, 2.0, 6.0
#: Pixels around a tile that reach into it: a filter, or three sigma of the wide energy and its
#: band, and of the grain's smoothing after that.
HALO_PX = 88 + 24
#: Rows of the spectrum that are filtered at a time on a CPU.
_ROWS = 8


class Focus(NamedTuple):
    """Focus of a window's light, one pixel of 4 × 4, and the spectra of the usable planes.

    ``weights`` (usable z, y, x), sum 1; ``height`` by them, and ``spread``, in planes; ``sharpest``
    int32, a plane, -1 where none stands out; ``variance`` of a pixel of the mean plane by noise,
    counts².
    """

    spectra: list[Array]
    weights: Array
    height: Array
    spread: Array
    sharpest: Array
    variance: Array


class WienerPlane:
    """Filters and buffers for the windows of a mosaic, all of one size.

    Parameters
    ----------
    backend : Backend
    channel : ChannelModel
        What the filters are of.
    filters : Filters
        Made of it.
    noise : NoiseModel
        The camera's.
    pedestal_counts : float
        Counts without light.
    window : (int, int)
        (y, x) of all windows, multiples of 8. They are taken as circular: what lies within
        :data:`HALO_PX` of their rim is wrong. The grid of the maps starts at their pixel 0, so
        windows that start at multiples of 4 of the mosaic give the same pixels.

    Raises
    ------
    ValueError
        The window is no multiple of 8, or the filters are of other planes.
    """

    def __init__(
        self,
        backend: Backend,
        channel: ChannelModel,
        filters: Filters,
        noise: NoiseModel,
        pedestal_counts: float,
        window: tuple[int, int],
    ) -> None:
        if any(n % 8 or n < 16 for n in window):
            raise ValueError(f"the window is {window} px; give multiples of 8, at least 16")
        self.planes = [int(z) for z in np.flatnonzero(channel.plane_mask)]
        if len(filters.kernels) != len(self.planes):
            raise ValueError("the filters are of other planes than the channel uses")
        self.backend, self.noise, self.pedestal = backend, noise, pedestal_counts
        self.window = window
        self._depths = len(channel.plane_mask)
        self._spreads, self._sheet = channel.spreads, channel.sheet_spread
        band = _half_band(window)
        # Of white noise of variance 1, as much as the band leaves in it.
        self._band_noise = float(np.mean(np.square(_both_halves(band, window))) / 4)
        self._band = backend.asarray(band / 4)
        self._rank = filters.rank
        self._transfer = filters.on_grid(backend, window)
        self._mixing, self._noise_left = map(backend.asarray, (filters.mixing, filters.noise))

    def project(
        self, stack: Any, confidence: NDArray[np.float32] | None = None, shown: Any = None
    ) -> Projection:
        """Estimate the plane of a window.

        Parameters
        ----------
        stack : array, shape (z, y, x)
            Raw counts of all planes, also the damaged ones.
        confidence : ndarray of float32, shape (y, x), optional
            Share of the estimate, the rest is the focus-weighted projection; from
            :func:`confidence_weight`.
        shown : array, shape (z, y, x), optional
            The stack with its debris, of which the focus-weighted projection is, where ``stack``
            is without.

        Raises
        ------
        ValueError
            The stack is not of the window's size.
        """
        xp = self.backend.xp
        focus = self.measure(stack)
        shares: Array = 0
        variance: Array = 0
        for share, bin_ in self._shares(focus):
            shares = shares + share[..., None] * self._mixing[bin_]
            variance = variance + share * self._noise_left[bin_]
        variance *= focus.variance
        image = self._mix(focus.spectra, shares)
        sigma = upsample_linear(xp, xp.sqrt(variance), POOL_PX)
        below = image < -(np.float32(_BELOW_SIGMAS) * sigma + np.float32(0.5))
        if confidence is not None:
            below &= self.backend.asarray(confidence) >= 1
            if shown is None:
                self._mix_focus_weighted(image, stack, focus.weights, confidence)
            else:
                weights = self.measure(shown).weights
                self._mix_focus_weighted(image, shown, weights, confidence)
        below_noise = mean_2x2(mean_2x2(below.astype(xp.float32)))
        return Projection(image, focus.height, focus.sharpest, variance, below_noise)

    def measure(self, stack: Any) -> Focus:
        """Return the focus of a window's stack (z, y, x) of raw counts.

        Raises
        ------
        ValueError
            The stack is not of the window's size.
        """
        if tuple(stack.shape[1:]) != self.window:
            raise ValueError(f"the stack is {stack.shape[1:]} px, but windows are {self.window}")
        xp, asarray = self.backend.xp, self.backend.asarray
        spectra, energy, noise = self._energies(stack)
        energy, wide = self._smooth(energy)
        weights = energy + _WIDE_SHARE * wide + _NOISE_SHARE * noise
        weights /= weights.max(axis=0)
        weights *= weights
        weights /= weights.sum(axis=0)
        index = asarray(np.array(self.planes))[:, None, None]
        height = (weights * index).sum(axis=0)
        spread = xp.sqrt(xp.maximum((weights * xp.square(index - height)).sum(axis=0), 0))
        clear = energy.max(axis=0) > noise.mean(axis=0)
        best = asarray(np.array(self.planes), dtype=np.int32)[energy.argmax(axis=0)]
        best = xp.where(clear, best, -1)
        variance = noise.mean(axis=0) / np.float32(self._band_noise)
        return Focus(spectra, weights, height, spread, best, variance)

    def _energies(self, stack: Any) -> tuple[list[Array], Array, Array]:
        """Return the planes' spectra, their focus energies without noise, and the noise's."""
        backend, xp = self.backend, self.backend.xp
        y, x = self.window
        count = len(self.planes)
        spectra = []
        energy = xp.empty((count, y // POOL_PX, x // POOL_PX), dtype=xp.float32)
        noise = xp.empty_like(energy)
        with backend.fft_threads():
            for i, z in enumerate(self.planes):
                plane = backend.asarray(stack[z]) - np.float32(self.pedestal)
                spectrum = backend.fft.rfft2(plane)
                # The band ends below half the spectrum: a quarter of the pixels hold it all.
                band = self._low_frequencies(spectrum, 2, self._band)
                band *= band
                energy[i] = mean_2x2(band)
                light = xp.maximum(self._low_frequencies(spectrum, POOL_PX, 1 / POOL_PX**2), 0)
                noise[i] = self._band_noise * xp.maximum(self.noise.variance(light), 1e-3)
                spectra.append(spectrum)
        energy -= noise
        return spectra, energy, noise

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

    def _smooth(self, energy: Array) -> tuple[Array, Array]:
        """Return energies (z, y, x) smoothed, and smoothed widely; not below 0."""
        xp, gaussian = self.backend.xp, self.backend.ndimage.gaussian_filter
        near, coarse = _ENERGY_PX / POOL_PX, _WIDE_PX / POOL_PX / 2
        narrow = gaussian(energy, (0, near, near), mode="wrap", truncate=3.0)
        wide = gaussian(mean_2x2(energy), (0, coarse, coarse), mode="wrap", truncate=3.0)
        return xp.maximum(narrow, 0), upsample_linear(xp, xp.maximum(wide, 0), 2)

    def _shares(self, focus: Focus) -> Iterator[tuple[Array, tuple[int, Array]]]:
        """Yield shares (y, x) of a pixel and the bins (spread, plane) that they are of."""
        xp = self.backend.xp
        narrow, wide = self._spreads
        more = xp.maximum(focus.spread * focus.spread - np.float32(self._sheet**2), 0)
        local = xp.sqrt(_SPREAD**2 * more + np.float32(narrow**2))
        between = xp.clip((local - np.float32(narrow)) / np.float32(wide - narrow), 0, 1)
        lower = xp.clip(xp.floor(focus.height), 0, max(self._depths - 2, 0)).astype(xp.int32)
        nearer = xp.clip(focus.height - lower, 0, 1).astype(xp.float32)
        upper = xp.minimum(lower + 1, self._depths - 1)
        for z, z_share in ((lower, 1 - nearer), (upper, nearer)):
            for spread, spread_share in ((0, 1 - between), (1, between)):
                yield spread_share * z_share, (spread, z)

    def _mix(self, spectra: list[Array], shares: Array) -> Array:
        """Return the image (y, x): filtered images, each times its share."""
        backend, xp = self.backend, self.backend.xp
        y, x = self.window
        filtered = xp.empty((self._rank, y, x // 2 + 1), dtype=xp.complex64)
        rows = y if backend.device == "gpu" else _ROWS
        for first in range(0, y // 2 + 1, rows):
            upper = slice(first, min(first + rows, y // 2 + 1))
            self._filter_rows(spectra, filtered, upper, upper)
            # Rows of negative frequency have the filters of the positive ones.
            mirrored = slice(max(upper.start, 1), min(upper.stop, (y + 1) // 2))
            if mirrored.start < mirrored.stop:
                stop = y - mirrored.start + 1
                lower = slice(stop - 1, y - mirrored.stop, -1)
                self._filter_rows(spectra, filtered, mirrored, lower)
        image = xp.zeros((y, x), dtype=xp.float32)
        with backend.fft_threads():
            for m in range(self._rank):
                part = backend.fft.irfft2(filtered[m], s=(y, x))
                part *= upsample_linear(xp, shares[..., m], POOL_PX)
                image += part
        return image

    def _filter_rows(self, spectra: list[Array], filtered: Array, of: slice, at: slice) -> None:
        """Sum planes times filters (rows ``of``) for rows ``at`` of the spectrum."""
        xp = self.backend.xp
        shape = (self._rank, of.stop - of.start, filtered.shape[2])
        term = xp.empty(shape, dtype=xp.float32)
        for part in ("real", "imag"):
            total = xp.zeros(shape, dtype=xp.float32)
            for k in range(len(spectra)):
                values = xp.ascontiguousarray(getattr(spectra[k][at], part))
                xp.multiply(self._transfer[k, :, of], values, out=term)
                total += term
            getattr(filtered, part)[:, at] = total

    def _mix_focus_weighted(
        self, image: Array, stack: Any, weights: Array, confidence: NDArray[np.float32]
    ) -> None:
        """Mix the planes by the focus weights where confidence is below 1, at few pixels."""
        backend = self.backend
        at = np.nonzero(confidence < 1)
        if not at[0].size:
            return
        where = tuple(backend.asarray(i, dtype=np.int64) for i in at)
        cell = tuple(backend.asarray(i // POOL_PX, dtype=np.int64) for i in at)
        in_stack = at if isinstance(stack, np.ndarray) else where
        plane: Array = 0
        for z, weight in zip(self.planes, weights, strict=True):
            light = backend.asarray(stack[z][in_stack]) - np.float32(self.pedestal)
            plane = plane + weight[cell] * light
        share = backend.asarray(confidence[at])
        image[where] = share * image[where] + (1 - share) * plane


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


def confidence_weight(
    from_border_px: NDArray[np.float32],
    coverage: NDArray[np.bool_] | None = None,
    debris: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """Return the share (y, x) of the estimate to take, 0 to 1; the rest is ``focus_weighted``.

    Parameters
    ----------
    from_border_px : ndarray of float32, shape (y, x)
        Distance to the border of the mosaic, 0 at its outermost pixel; negative outside, where
        nothing is written and nothing needs to be mixed.
    coverage, debris : ndarray of bool, shape (y, x), optional
        Pixels that were imaged, and those that debris outshines in any plane.

    Examples
    --------
    >>> confidence_weight(np.array([[0, 3, 20]], np.float32)).tolist()
    [[0.0625, 0.4375, 1.0]]
    """
    distance = np.asarray(from_border_px, np.float32)
    outside = distance < 0
    if coverage is not None and not coverage.all():
        distance = np.minimum(distance, host_ndimage.distance_transform_edt(coverage) - 1)
    if debris is not None and debris.any():
        from_debris = host_ndimage.distance_transform_edt(~debris) - 1 - DEBRIS_PX
        distance = np.minimum(distance, from_debris)
    confidence: NDArray[np.float32] = np.clip((distance + 0.5) / BORDER_PX, 0, 1).astype(np.float32)
    confidence[outside] = 1
    return confidence


def remove_grain(backend: Backend, image: Any, variance: Any) -> Array:
    """Return a plane without grain: (y, x) float32 counts.

    Grain is light that is no more than noise makes: each pixel is shrunk by the noise's share of
    the power around it. The difference, noise below 0 included, goes back smoothed: so dark
    places are smooth, and the sum of light stays.

    Parameters
    ----------
    image : array, shape (y, x)
        Not clipped; sides are multiples of 4.
    variance : array, shape (y // 4, x // 4)
        Of its noise, as :class:`Projection` has it.

    Examples
    --------
    >>> plane = 50 + np.random.default_rng(0).normal(0, 3, (64, 64))
    >>> clear = remove_grain(cpu, plane, np.full((16, 16), 9.0))
    >>> bool(clear.std() < plane.std()), round(float(clear.mean()))
    (True, 50)
    """
    xp, gaussian = backend.xp, backend.ndimage.gaussian_filter
    light = backend.asarray(image)
    positive = xp.maximum(light, 0)
    power = gaussian(positive * positive, _POWER_PX, mode="reflect", truncate=3.0)
    noise = np.float32(_GRAIN) * upsample_linear(xp, backend.asarray(variance), POOL_PX)
    positive *= xp.maximum(1 - noise / xp.maximum(power, np.float32(1e-9)), 0)
    positive += gaussian(light - positive, _RETURN_PX, mode="reflect", truncate=3.0)
    return positive
