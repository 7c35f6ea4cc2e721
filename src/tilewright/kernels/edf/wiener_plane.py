"""The multi-plane Wiener plane of a z-stack: a local mixture of filters over all planes.

Where an image is in focus, and how far light spreads in depth there, is read off the band-pass
energy of its planes (:mod:`.focus_maps`); it says which of the filters of :mod:`.wiener_filters` to
take at each pixel. :mod:`.wiener_finish` has what comes before and after.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Array
from tilewright.kernels.edf.focus_maps import POOL_PX, FocusMaps
from tilewright.kernels.edf.wiener_filters import Filters
from tilewright.kernels.pooling import mean_2x2, upsample_linear

#: Pixels so many standard deviations of their noise below zero are no noise. Between these shares
#: of them, over so many px, the focus-weighted projection takes the estimate's place. With an
#: aperture 30 % too large a tenth of wavy tissue has more than the lower, with one 10 % too large
#: nothing has, and there the estimate is 4 dB better than ``focus_weighted``.
_DEEP, _DEEP_PX, _FALLBACK = 3.0, 16.0, (0.25, 0.5)
#: Pixels around a tile that reach into it: a filter, or three sigma of the wide energy and its
#: band.
HALO_PX = 88
#: Rows of the spectrum that are filtered at a time on a CPU.
_ROWS = 8


class WienerProjection(NamedTuple):
    """A plane out of a stack, on the backend.

    ``image`` (y, x) float32 counts over the pedestal, not clipped at 0. The others have one pixel
    of 4 × 4, float32: ``height`` by the focus weights, in planes; ``sharpest`` int32, a plane, -1
    where none stands out; ``weights`` (usable z, y, x), sum 1;
    ``variance`` of the image by noise, counts²; ``deep``, the share of pixels of the estimate more
    than three standard deviations of their noise, and half a count, below 0; ``fallback_fraction``,
    the share of the focus-weighted projection in its place.
    """

    image: Array
    height: Array
    sharpest: Array
    weights: Array
    variance: Array
    deep: Array
    fallback_fraction: Array


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
            raise ValueError("the filters are of other planes than the channel uses")
        self.backend, self.maps, self.window = maps.backend, maps, maps.window
        self._rank = filters.rank
        self._transfer = filters.on_grid(maps.backend, maps.window)
        self._mixing = maps.backend.asarray(filters.mixing)
        self._noise = maps.backend.asarray(filters.noise)

    def project(
        self, stack: Any, confidence: NDArray[np.float32] | None = None
    ) -> WienerProjection:
        """Estimate the plane of a window.

        Parameters
        ----------
        stack : array, shape (z, y, x)
            Raw counts of all planes, also the damaged ones.
        confidence : ndarray of float32, shape (y, x), optional
            Share of the estimate, the rest is the focus-weighted projection; from
            :func:`tilewright.kernels.edf.wiener_finish.confidence_weight`. Without it there is no
            fallback either.

        Raises
        ------
        ValueError
            The stack is not of the window's size.
        """
        focus = self.maps.measure(stack)
        shares: Array = 0
        noise: Array = 0
        for share, (spread, z, n) in self.maps.shares(focus):
            shares = shares + share[..., None] * self._mixing[spread][z, n]
            noise = noise + share * self._noise[spread][z, n]
        noise *= focus.variance
        image = self._mix(focus.spectra, shares)
        deep, fallback_fraction = self._fallback(image, noise, confidence)
        if confidence is not None:
            if bool(fallback_fraction.any()):
                local = 1 - upsample_linear(self.backend.xp, fallback_fraction, POOL_PX)
                confidence = np.minimum(confidence, self.backend.to_numpy(local))
            self._mix_focus_weighted(image, stack, focus.weights, confidence)
        return WienerProjection(
            image, focus.height, focus.sharpest, focus.weights, noise, deep, fallback_fraction
        )

    def _fallback(
        self, image: Array, variance: Array, confidence: NDArray[np.float32] | None
    ) -> tuple[Array, Array]:
        """Return the share of pixels far below 0, and the fallback's share of the plane."""
        # Light is never negative: where much of an estimate is, by more than noise, its filters are
        # not those of the microscope.
        xp, sigma = self.backend.xp, _DEEP_PX / POOL_PX
        limit = np.float32(_DEEP) * upsample_linear(xp, xp.sqrt(variance), POOL_PX) + np.float32(
            0.5
        )
        below = image < -limit
        if confidence is not None:
            below &= self.backend.asarray(confidence) >= 1
        deep = mean_2x2(mean_2x2(below.astype(xp.float32)))
        around = self.backend.ndimage.gaussian_filter(deep, sigma, mode="wrap", truncate=3.0)
        from_share, to_share = _FALLBACK
        fallback_fraction = (around - np.float32(from_share)) / np.float32(to_share - from_share)
        return deep, xp.clip(fallback_fraction, 0, 1)

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
        for z, weight in zip(self.maps.planes, weights, strict=True):
            light = backend.asarray(stack[z][in_stack]) - np.float32(self.maps.pedestal)
            plane = plane + weight[cell] * light
        share = backend.asarray(confidence[at])
        image[where] = share * image[where] + (1 - share) * plane
