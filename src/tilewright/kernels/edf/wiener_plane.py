"""The in-focus plane of a z-stack, estimated directly: a local mixture of multi-plane filters.

Where an image is in focus, and how far light spreads in depth there, is read off the band-pass
energy of its planes; it says which of the filters of :mod:`.wiener_filters` to
take at each pixel. :mod:`.wiener_finish` has what comes before and after.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Array, Backend
from tilewright.kernels.edf.focus import BAND_SIGMA_PX
from tilewright.kernels.edf.wiener_filters import (
    NOISE_LEVELS,
    Channel,
    Filters,
)
from tilewright.kernels.noise import NoiseModel

#: Focus energy is kept, and maps are returned, at one pixel of this many.
POOL_PX = 4
#: Smoothing of the focus energy in px, and of the wide one that decides where there is little;
#: shares of the wide one and of the noise in the sum.
_ENERGY_PX, _WIDE_PX = 6.0, 24.0
_WIDE_SHARE, _NOISE_SHARE = 0.2, 0.02
#: Share of the spread of the focus weights, beyond a thin sheet's, that is spread of the light.
_SPREAD = 0.65
#: Smoothing of the local N/S, px: 24 loses 0.3 dB on dim sets. Against one N/S for the whole
#: channel it gains 0.3 dB where photons are few. Least local signal, over the channel's, that is
#: told from noise: with 1e-3 dim sets lose 0.4 dB, with 0.06 0.2.
_LEVEL_PX, _LEAST_LEVEL = 12.0, 0.06
#: Pixels so many standard deviations of their noise below zero are no noise. Between these shares
#: of them, over so many px, the focus-weighted projection takes the estimate's place. With an
#: aperture told 30 % too large a tenth of wavy tissue has more than the lower, with one told 10 %
#: too large nothing has, and there the estimate is 4 dB better than ``focus_weighted``.
_DEEP, _DEEP_PX, _GIVES_WAY = 3.0, 16.0, (0.25, 0.5)
#: Pixels around a tile that reach into it: a filter, or three sigma of the wide energy and its
#: band.
HALO_PX = 88
_LEVEL_STEP = float(np.log(NOISE_LEVELS[1] / NOISE_LEVELS[0]))
#: Rows of the spectrum that are filtered at a time on a CPU.
_ROWS = 8
#: Parts of a pixel's share that are counted: 1e-6, and 2**33 pixels of them are exact in float64.
_SHARE_PARTS = 2**20


class WienerProjection(NamedTuple):
    """A plane out of a stack, on the backend.

    ``image`` (y, x) float32 counts over the pedestal, not clipped at 0. The others have one pixel
    of 4 × 4, float32: ``height`` and ``spread`` of the focus weights, in planes; ``winner`` int32,
    the sharpest plane, -1 where none stands out; ``weights`` (kept z, y, x), sum 1;
    ``variance`` of the image by noise, counts²; ``deep``, the share of pixels of the estimate more
    than three standard deviations of their noise, and half a count, below 0; ``fallback_fraction``,
    the share of the focus-weighted projection that was taken for it.
    """

    image: Array
    height: Array
    spread: Array
    winner: Array
    weights: Array
    variance: Array
    deep: Array
    fallback_fraction: Array


class _Focus(NamedTuple):
    """What a window shows of where its light is; pooled but for the spectra of the planes kept."""

    spectra: list[Array]
    weights: Array
    height: Array
    spread: Array
    level: Array
    winner: Array
    variance: Array


class FocusMaps:
    """Where in depth the light of a window is, how far it spreads there, and its S/N.

    Parameters
    ----------
    channel : Channel
        Optics, planes, power and noise.
    noise : NoiseModel
        The camera's.
    pedestal_counts : float
        Counts without light.
    window : tuple of int
        (y, x) of all windows, multiples of 8.

    Raises
    ------
    ValueError
        The window is no multiple of 8.
    """

    def __init__(
        self,
        backend: Backend,
        channel: Channel,
        noise: NoiseModel,
        pedestal_counts: float,
        window: tuple[int, int],
    ) -> None:
        if any(n % 8 or n < 16 for n in window):
            raise ValueError(f"a window of {window} px; its sides must be multiples of 8 from 16")
        self.backend, self.noise, self.pedestal = backend, noise, pedestal_counts
        self.channel, self.window = channel, window
        self.planes = [int(z) for z in np.flatnonzero(channel.kept)]
        self._depths = len(channel.kept)
        self._spreads, self._sheet = channel.spreads, channel.sheet_spread
        self._level = channel.mean_energy
        band = _half_band(window)
        # Of white noise of variance 1, as much as the band leaves in it.
        self._band_noise = float(np.mean(np.square(_both_halves(band, window))) / 4)
        self._band = backend.asarray(band / 4)

    def of_planes(self, kept: NDArray[np.bool_]) -> FocusMaps:
        """Return the maps of the same windows by other planes (z,)."""
        channel = replace(self.channel, kept=kept)
        return FocusMaps(self.backend, channel, self.noise, self.pedestal, self.window)

    def look(self, stack: Any) -> _Focus:
        """Return what a window's stack (z, y, x) of raw counts shows.

        Raises
        ------
        ValueError
            The stack is not of the window's size.
        """
        if tuple(stack.shape[1:]) != self.window:
            raise ValueError(f"a stack of {stack.shape[1:]} px for windows of {self.window}")
        xp, asarray = self.backend.xp, self.backend.asarray
        spectra, energy, floor = self._transformed(stack)
        level = self._noise_level(energy)
        energy, wide = self._smoothed(energy)
        weights = energy + _WIDE_SHARE * wide + _NOISE_SHARE * floor
        weights /= weights.max(axis=0)
        weights *= weights
        weights /= weights.sum(axis=0)
        index = asarray(np.array(self.planes))[:, None, None]
        height = (weights * index).sum(axis=0)
        spread = xp.sqrt(xp.maximum((weights * xp.square(index - height)).sum(axis=0), 0))
        clear = energy.max(axis=0) > floor.mean(axis=0)
        best = asarray(np.array(self.planes), dtype=np.int32)[energy.argmax(axis=0)]
        best = xp.where(clear, best, -1)
        variance = floor.mean(axis=0) / np.float32(self._band_noise)
        return _Focus(spectra, weights, height, spread, level, best, variance)

    def _transformed(self, stack: Any) -> tuple[list[Array], Array, Array]:
        """Return the planes' spectra, focus energies less the noise's, and the noise's (pooled)."""
        backend, xp = self.backend, self.backend.xp
        y, x = self.window
        count = len(self.planes)
        spectra = []
        energy = xp.empty((count, y // POOL_PX, x // POOL_PX), dtype=xp.float32)
        floor = xp.empty_like(energy)
        with backend.fft_threads():
            for i, z in enumerate(self.planes):
                plane = backend.asarray(stack[z]) - np.float32(self.pedestal)
                spectrum = backend.fft.rfft2(plane)
                # The band ends below half the spectrum: a quarter of the pixels hold it all.
                band = self._smaller(spectrum, 2, self._band)
                band *= band
                energy[i] = halved(band)
                light = xp.maximum(self._smaller(spectrum, POOL_PX, 1 / POOL_PX**2), 0)
                floor[i] = self._band_noise * xp.maximum(self.noise.variance(light), 1e-3)
                spectra.append(spectrum)
        energy -= floor
        return spectra, energy, floor

    def _smaller(self, spectrum: Array, factor: int, gain: Any) -> Array:
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

    def _smoothed(self, energy: Array) -> tuple[Array, Array]:
        """Return energies (z, y, x) smoothed, and smoothed widely; not below 0."""
        xp, gaussian = self.backend.xp, self.backend.ndimage.gaussian_filter
        near, coarse = _ENERGY_PX / POOL_PX, _WIDE_PX / POOL_PX / 2
        narrow = gaussian(energy, (0, near, near), mode="wrap", truncate=3.0)
        wide = gaussian(halved(energy), (0, coarse, coarse), mode="wrap", truncate=3.0)
        return xp.maximum(narrow, 0), finer(xp, xp.maximum(wide, 0), 2)

    def _noise_level(self, energy: Array) -> Array:
        """Return N/S over the channel's, as a place among the bins; (y, x) of the pooled grid.

        The sum over planes of the energy does not depend on where in depth the light is.
        """
        xp, gaussian = self.backend.xp, self.backend.ndimage.gaussian_filter
        total = gaussian(energy.sum(axis=0), 1.0, mode="wrap", truncate=3.0)
        # Of logarithms: a mean would take the dim surroundings of a nucleus for as bright as it.
        ratio = xp.log(xp.maximum(total, np.float32(_LEAST_LEVEL * self._level)) / self._level)
        ratio = gaussian(ratio, _LEVEL_PX / POOL_PX, mode="wrap", truncate=3.0)
        place = -(ratio + np.float32(np.log(NOISE_LEVELS[0]))) / np.float32(_LEVEL_STEP)
        return xp.clip(place, 0, len(NOISE_LEVELS) - 1)

    def shares(self, seen: _Focus) -> Iterator[tuple[Array, tuple[int, Array, Array]]]:
        """Yield shares (y, x) of a pixel and the bins (spread, plane, noise level) they are of."""
        xp = self.backend.xp
        narrow, wide = self._spreads
        more = xp.maximum(seen.spread * seen.spread - np.float32(self._sheet**2), 0)
        local = xp.sqrt(_SPREAD**2 * more + np.float32(narrow**2))
        between = xp.clip((local - np.float32(narrow)) / np.float32(wide - narrow), 0, 1)
        for z, of_z in _neighbours(xp, seen.height, self._depths):
            for n, of_n in _neighbours(xp, seen.level, len(NOISE_LEVELS)):
                for spread, of_spread in ((0, 1 - between), (1, between)):
                    yield of_spread * of_z * of_n, (spread, z, n)

    def bins_used(self, stack: Any) -> NDArray[np.float64]:
        """Return the share of a window in each bin: (2 spreads, planes, noise levels)."""
        xp = self.backend.xp
        shape = (2, self._depths, len(NOISE_LEVELS))
        used = np.zeros(shape)
        for share, (spread, z, n) in self.shares(self.look(stack)):
            at = (z * shape[2] + n).ravel()
            # A GPU adds in any order: whole numbers give the same sum.
            parts = xp.rint(share.ravel() * np.float32(_SHARE_PARTS))
            counts = xp.bincount(at, weights=parts, minlength=shape[1] * shape[2])
            used[spread] += self.backend.to_numpy(counts).reshape(shape[1:])
        total: NDArray[np.float64] = used / used.sum()
        return total


class WienerPlane:
    """Filters and buffers for the windows of a mosaic, all of one size.

    Parameters
    ----------
    maps : FocusMaps
        Says where the light is. Windows are taken as circular: what lies within
        :data:`HALO_PX` of their rim is wrong. The grid of the maps starts at their pixel 0, so
        windows that start at multiples of 4 of the mosaic give the same pixels.
    filters : Filters
        Made of the same channel.

    Raises
    ------
    ValueError
        The filters are of other planes.
    """

    def __init__(self, maps: FocusMaps, filters: Filters) -> None:
        if len(filters.kernels) != len(maps.planes):
            raise ValueError("the filters are of other planes than the channel keeps")
        self.backend, self.maps, self.window = maps.backend, maps, maps.window
        self._rank = filters.rank
        self._transfer = filters.on_grid(maps.backend, maps.window)
        self._mixing = maps.backend.asarray(filters.mixing)
        self._noise = maps.backend.asarray(filters.noise)

    def project(self, stack: Any, trust: NDArray[np.float32] | None = None) -> WienerProjection:
        """Estimate the plane of a window.

        Parameters
        ----------
        stack : array, shape (z, y, x)
            Raw counts of all planes, also those that are not kept.
        trust : ndarray of float32, shape (y, x), optional
            Share of the estimate, the rest is the focus-weighted projection; from
            :func:`tilewright.kernels.edf.wiener_finish.trust_in`. Without it the estimate does not
            give way either.

        Raises
        ------
        ValueError
            The stack is not of the window's size.
        """
        seen = self.maps.look(stack)
        shares: Array = 0
        noise: Array = 0
        for share, (spread, z, n) in self.maps.shares(seen):
            shares = shares + share[..., None] * self._mixing[spread][z, n]
            noise = noise + share * self._noise[spread][z, n]
        noise *= seen.variance
        image = self._mixed(seen.spectra, shares)
        deep, fallback_fraction = self._overcorrected(image, noise, trust)
        if trust is not None:
            if bool(fallback_fraction.any()):
                local = 1 - finer(self.backend.xp, fallback_fraction, POOL_PX)
                trust = np.minimum(trust, self.backend.to_numpy(local))
            self._mix_soft(image, stack, seen.weights, trust)
        return WienerProjection(
            image,
            seen.height,
            seen.spread,
            seen.winner,
            seen.weights,
            noise,
            deep,
            fallback_fraction,
        )

    def _overcorrected(
        self, image: Array, variance: Array, trust: NDArray[np.float32] | None
    ) -> tuple[Array, Array]:
        """Return the share of pixels far below 0, and of the estimate that is not to be taken.

        Light is never negative: where much of an estimate is, by more than noise, its filters
        are not those of the microscope.
        """
        xp, sigma = self.backend.xp, _DEEP_PX / POOL_PX
        limit = np.float32(_DEEP) * finer(xp, xp.sqrt(variance), POOL_PX) + np.float32(0.5)
        below = image < -limit
        if trust is not None:
            below &= self.backend.asarray(trust) >= 1
        deep = halved(halved(below.astype(xp.float32)))
        around = self.backend.ndimage.gaussian_filter(deep, sigma, mode="wrap", truncate=3.0)
        from_share, to_share = _GIVES_WAY
        fallback_fraction = (around - np.float32(from_share)) / np.float32(to_share - from_share)
        return deep, xp.clip(fallback_fraction, 0, 1)

    def _mixed(self, spectra: list[Array], shares: Array) -> Array:
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
                part *= finer(xp, shares[..., m], POOL_PX)
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

    def _mix_soft(
        self, image: Array, stack: Any, weights: Array, trust: NDArray[np.float32]
    ) -> None:
        """Put the planes' mixture with the focus weights where the estimate is not trusted.

        Only those pixels are computed: at the border of a mosaic they are few.
        """
        backend = self.backend
        at = np.nonzero(trust < 1)
        if not at[0].size:
            return
        where = tuple(backend.asarray(i, dtype=np.int64) for i in at)
        pooled = tuple(backend.asarray(i // POOL_PX, dtype=np.int64) for i in at)
        in_stack = at if isinstance(stack, np.ndarray) else where
        soft: Array = 0
        for z, weight in zip(self.maps.planes, weights, strict=True):
            light = backend.asarray(stack[z][in_stack]) - np.float32(self.maps.pedestal)
            soft = soft + weight[pooled] * light
        told = backend.asarray(trust[at])
        image[where] = told * image[where] + (1 - told) * soft


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


def halved(values: Array) -> Array:
    """Return means over 2 × 2 pixels of the last two axes."""
    rows = values[..., ::2, :] + values[..., 1::2, :]
    return np.float32(0.25) * (rows[..., ::2] + rows[..., 1::2])


def finer(xp: Any, values: Array, factor: int) -> Array:
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


def _neighbours(xp: Any, place: Array, count: int) -> list[tuple[Array, Array]]:
    """Return the two grid points around a place in 0 … count - 1, and their shares."""
    lower = xp.clip(xp.floor(place), 0, max(count - 2, 0)).astype(xp.int32)
    share = xp.clip(place - lower, 0, 1).astype(xp.float32)
    return [(lower, 1 - share), (xp.minimum(lower + 1, count - 1), share)]
