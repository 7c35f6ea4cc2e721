"""Where in depth the light of a window is, how far it spreads there, and its signal to noise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Array, Backend
from tilewright.kernels.edf.channel_model import ChannelModel
from tilewright.kernels.edf.focus import BAND_SIGMA_PX
from tilewright.kernels.edf.wiener_filters import NOISE_LEVELS
from tilewright.kernels.noise import NoiseModel
from tilewright.kernels.pooling import mean_2x2, upsample_linear

#: Focus energy and maps have one pixel of this many.
POOL_PX = 4
#: Smoothing of the focus energy in px, and of the wide one that decides where there is little;
#: shares of the wide one and of the noise in the sum.
_ENERGY_PX, _WIDE_PX = 6.0, 24.0
_WIDE_SHARE, _NOISE_SHARE = 0.2, 0.02
#: Share of the spread of the focus weights, beyond a thin sheet's, that is spread of the light.
_SPREAD = 0.65
#: Smoothing of the local N/S, px: 24 loses 0.3 dB on dim sets. Against one N/S for the whole
#: channel it gains 0.3 dB where photons are few. Least local signal, over the channel's, that is
#: distinguished from noise: over a mean of the ratio, that of its logarithm loses 0.2 dB on dim
#: sets with this value, 0.4 dB with 1e-3.
_LEVEL_PX, _LEAST_LEVEL = 12.0, 0.06
_LEVEL_STEP = float(np.log(NOISE_LEVELS[1] / NOISE_LEVELS[0]))
#: Parts of a pixel's share that are counted: 1e-6, and 2**33 pixels of them are exact in float64.
_SHARE_PARTS = 2**20


class Focus(NamedTuple):
    """Focus of a window's light, one pixel of 4 × 4, and the spectra of the usable planes."""

    spectra: list[Array]
    weights: Array
    height: Array
    spread: Array
    level: Array
    sharpest: Array
    variance: Array


class FocusMaps:
    """Where in depth the light of a window is, how far it spreads there, and its S/N.

    ``noise`` is the camera's; ``window`` the (y, x) of all windows, multiples of 8.

    Raises
    ------
    ValueError
        The window is no multiple of 8.
    """

    def __init__(
        self,
        backend: Backend,
        channel: ChannelModel,
        noise: NoiseModel,
        pedestal_counts: float,
        window: tuple[int, int],
    ) -> None:
        if any(n % 8 or n < 16 for n in window):
            raise ValueError(f"the window is {window} px; give multiples of 8, at least 16")
        self.backend, self.noise, self.pedestal = backend, noise, pedestal_counts
        self.channel, self.window = channel, window
        self.planes = [int(z) for z in np.flatnonzero(channel.plane_mask)]
        self._depths = len(channel.plane_mask)
        self._spreads, self._sheet = channel.spreads, channel.sheet_spread
        self._level = channel.mean_energy
        band = _half_band(window)
        # Of white noise of variance 1, as much as the band leaves in it.
        self._band_noise = float(np.mean(np.square(_both_halves(band, window))) / 4)
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
        xp, asarray = self.backend.xp, self.backend.asarray
        spectra, energy, noise = self._energies(stack)
        level = self._noise_level(energy)
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
        return Focus(spectra, weights, height, spread, level, best, variance)

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

    def _noise_level(self, energy: Array) -> Array:
        """Return N/S over the channel's, as a place among the bins; (y, x), one pixel of 4 × 4."""
        # The sum over planes of the energy does not depend on where in depth the light is.
        xp, gaussian = self.backend.xp, self.backend.ndimage.gaussian_filter
        total = gaussian(energy.sum(axis=0), 1.0, mode="wrap", truncate=3.0)
        # Of logarithms: a mean would take the dim surroundings of a nucleus for as bright as it.
        ratio = xp.log(xp.maximum(total, np.float32(_LEAST_LEVEL * self._level)) / self._level)
        ratio = gaussian(ratio, _LEVEL_PX / POOL_PX, mode="wrap", truncate=3.0)
        place = -(ratio + np.float32(np.log(NOISE_LEVELS[0]))) / np.float32(_LEVEL_STEP)
        return xp.clip(place, 0, len(NOISE_LEVELS) - 1)

    def shares(self, focus: Focus) -> Iterator[tuple[Array, tuple[int, Array, Array]]]:
        """Yield shares (y, x) of a pixel and the bins (spread, plane, noise level) they are of."""
        xp = self.backend.xp
        narrow, wide = self._spreads
        more = xp.maximum(focus.spread * focus.spread - np.float32(self._sheet**2), 0)
        local = xp.sqrt(_SPREAD**2 * more + np.float32(narrow**2))
        between = xp.clip((local - np.float32(narrow)) / np.float32(wide - narrow), 0, 1)
        for z, z_share in _neighbours(xp, focus.height, self._depths):
            for n, n_share in _neighbours(xp, focus.level, len(NOISE_LEVELS)):
                for spread, spread_share in ((0, 1 - between), (1, between)):
                    yield spread_share * z_share * n_share, (spread, z, n)

    def bin_usage(self, stack: Any) -> NDArray[np.float64]:
        """Return the share of a window in each bin: (2 spreads, planes, noise levels)."""
        xp = self.backend.xp
        shape = (2, self._depths, len(NOISE_LEVELS))
        usage = np.zeros(shape)
        for share, (spread, z, n) in self.shares(self.measure(stack)):
            at = (z * shape[2] + n).ravel()
            # A GPU adds in any order: whole numbers give the same sum.
            parts = xp.rint(share.ravel() * np.float32(_SHARE_PARTS))
            counts = xp.bincount(at, weights=parts, minlength=shape[1] * shape[2])
            usage[spread] += self.backend.to_numpy(counts).reshape(shape[1:])
        total: NDArray[np.float64] = usage / usage.sum()
        return total


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


def _neighbours(xp: Any, place: Array, count: int) -> list[tuple[Array, Array]]:
    """Return the two grid points around a place in 0 … count - 1, and their shares."""
    lower = xp.clip(xp.floor(place), 0, max(count - 2, 0)).astype(xp.int32)
    share = xp.clip(place - lower, 0, 1).astype(xp.float32)
    return [(lower, 1 - share), (xp.minimum(lower + 1, count - 1), share)]
