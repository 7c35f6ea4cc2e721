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
from tilewright.kernels.edf.channel_model import CLEAR_SIGMAS, ChannelModel
from tilewright.kernels.edf.focus import (
    BORDER_PX,
    POOL_PX,
    FocusMeasure,
    Projection,
    mean_2x2,
    upsample_linear,
)
from tilewright.kernels.edf.wiener_filters import FINE_RADII, Filters

#: Focus weights: shares of the wide energy and of noise, which leaves them equal where no plane has
#: detail, and their power. With a tenth of the noise dim stacks lose 0.05 dB.
_WIDE_SHARE, _NOISE_SHARE, _POWER = 0.2, 0.02, 2
#: Noise variances taken for grain, smoothing of the power it is compared with, and of the light
#: that is returned. In dark places of the dim set 0, 2 and 4 leave 0.97, 0.41 and 0.31 counts of
#: grain (RL 0.21), and 4 gains 0.5 dB; returning it over 12 px instead of 6 loses 0.2 dB where it
#: is very dim.
_GRAIN, _POWER_PX, _RETURN_PX = 4.0, 2.0, 6.0
#: Filters are round: so many pairs of frequencies of like radius have the filter of their mean
#: radius, but for the lowest pairs, which have one each; and how many frequencies are filtered at
#: a time.
_LOWEST, _ALIKE, _AT_A_TIME = 4096, 8, 32768


class _Ring(NamedTuple):
    """Frequencies of a spectrum, and their filters.

    ``at`` (frequencies,) int32, in the flat spectrum; as many of them for each of ``lower`` int32,
    the radii of the filters at or below theirs, and ``share`` float32 (…, 1, 1), of the next radii.
    """

    at: Array
    lower: Array
    share: Array


def _rings(backend: Backend, shape: tuple[int, int]) -> Iterator[_Ring]:
    """Yield all frequencies of the spectra of windows of a shape (y, x), even numbers."""
    y, x = shape
    radius = np.hypot(np.fft.fftfreq(y)[:, None], np.fft.rfftfreq(x)) / FINE_RADII[1]
    number = np.arange(radius.size, dtype=np.int32).reshape(radius.shape)
    # Rows of negative frequency have the filters of the positive ones, to the last bit.
    alone = number[[0, y // 2]].reshape(-1, 1)
    pairs = np.stack([number[1 : y // 2].ravel(), number[: y // 2 : -1].ravel()], axis=1)
    pairs = pairs[np.argsort(radius.ravel()[pairs[:, 0]], kind="stable")]
    lowest = _LOWEST + (len(pairs) - _LOWEST) % _ALIKE
    for groups in (alone, pairs[:lowest], pairs[lowest:].reshape(-1, 2 * _ALIKE)):
        together = _AT_A_TIME // groups.shape[1]
        for at in (groups[k : k + together] for k in range(0, len(groups), together)):
            mean = radius.ravel()[at].mean(axis=1)
            lower = np.minimum(mean, len(FINE_RADII) - 2).astype(np.int32)
            share = backend.asarray((mean - lower)[:, None, None])
            yield _Ring(backend.asarray(at.ravel(), None), backend.asarray(lower, None), share)


class WienerPlane:
    """Filters and buffers for the windows of a mosaic.

    Parameters
    ----------
    measure : FocusMeasure
        Of the channel's usable planes.
    channel : ChannelModel
        What the filters are of.
    filters : Filters
        Made of it.

    Raises
    ------
    ValueError
        The filters are of other planes.
    """

    def __init__(self, measure: FocusMeasure, channel: ChannelModel, filters: Filters) -> None:
        if filters.transfer.shape[2] != len(measure.planes):
            raise ValueError("the filters are of other planes than the channel uses")
        self.focus, self.backend, self.window = measure, measure.backend, measure.window
        self._depths = len(channel.plane_mask)
        self._spreads, self._sheet = channel.spreads, channel.sheet_spread
        self._transfer = self.backend.asarray(filters.transfer)
        self._rings = [*_rings(self.backend, self.window)]
        self._mixing, self._noise_left = map(self.backend.asarray, (filters.mixing, filters.noise))

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
        near = None
        if shown is not None:  # before the other: both would hold the spectra of all planes
            near = self.focus.measure(shown).weights(_WIDE_SHARE, _NOISE_SHARE, _POWER)
        focus = self.focus.measure(stack)
        weights = focus.weights(_WIDE_SHARE, _NOISE_SHARE, _POWER)
        height = self.focus.height(weights)
        shares: Array = 0
        variance: Array = 0
        for share, bin_ in self._shares(weights, height):
            shares = shares + share[..., None] * self._mixing[bin_]
            variance = variance + share * self._noise_left[bin_]
        variance *= focus.noise.mean(axis=0) / np.float32(self.focus.band_noise)
        image = self._mix(focus.spectra, shares)
        sigma = upsample_linear(xp, xp.sqrt(variance), POOL_PX)
        # Light is never negative: pixels clearly, and half a count, below zero show that the
        # filters are not those of the microscope.
        below = image < -(np.float32(CLEAR_SIGMAS) * sigma + np.float32(0.5))
        if confidence is not None:
            below &= self.backend.asarray(confidence) >= 1
            if near is None:
                self._mix_focus_weighted(image, stack, weights, confidence)
            else:
                self._mix_focus_weighted(image, shown, near, confidence)
        below_noise = mean_2x2(mean_2x2(below.astype(xp.float32)))
        return Projection(image, height, focus.sharpest, variance, below_noise)

    def _shares(self, weights: Array, height: Array) -> Iterator[tuple[Array, tuple[int, Array]]]:
        """Yield shares (y, x) of a pixel and the bins (spread, plane) that they are of."""
        xp = self.backend.xp
        narrow, wide = self._spreads
        variance = (weights * xp.square(self.focus.index - height)).sum(axis=0)
        # What focus weights spread more than those of a thin sheet is spread of the light.
        more = xp.maximum(variance - np.float32(self._sheet**2), 0)
        local = xp.sqrt(more + np.float32(narrow**2))
        between = xp.clip((local - np.float32(narrow)) / np.float32(wide - narrow), 0, 1)
        lower = xp.clip(xp.floor(height), 0, max(self._depths - 2, 0)).astype(xp.int32)
        nearer = xp.clip(height - lower, 0, 1).astype(xp.float32)
        upper = xp.minimum(lower + 1, self._depths - 1)
        for z, z_share in ((lower, 1 - nearer), (upper, nearer)):
            for spread, spread_share in ((0, 1 - between), (1, between)):
                yield spread_share * z_share, (spread, z)

    def _mix(self, spectra: list[Array], shares: Array) -> Array:
        """Return the image (y, x): filtered images, each times its share; overwrites spectra."""
        backend, xp = self.backend, self.backend.xp
        image = xp.zeros(self.window, dtype=xp.float32)
        for m, spectrum in enumerate(self._filtered(spectra)):
            part = backend.fft.irfft2(spectrum, s=self.window)
            part *= upsample_linear(xp, shares[..., m], POOL_PX)
            image += part
        return image

    def _filtered(self, spectra: list[Array]) -> list[Array]:
        """Return the spectra of filtered images, in the memory of those of the planes."""
        xp = self.backend.xp
        planes, rank = len(spectra), self._transfer.shape[1]
        out = [*spectra, *(xp.empty_like(spectra[0]) for _ in range(rank - planes))]
        flat = [spectrum.ravel() for spectrum in out]
        for ring in self._rings:
            transfer = self._transfer[ring.lower] * (1 - ring.share)
            transfer += self._transfer[ring.lower + 1] * ring.share
            values = xp.stack([spectrum[ring.at] for spectrum in flat[:planes]])
            values = values.view(xp.float32).reshape(planes, len(transfer), -1).swapaxes(0, 1)
            values = transfer @ values
            for m in range(rank):
                flat[m][ring.at] = values[:, m].reshape(-1).view(xp.complex64)
        return out[:rank]

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
        for z, weight in zip(self.focus.planes, weights, strict=True):
            light = backend.asarray(stack[z][in_stack]) - self.focus.pedestal
            plane = plane + weight[cell] * light
        share = backend.asarray(confidence[at])
        image[where] = share * image[where] + (1 - share) * plane


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
        from_debris = host_ndimage.distance_transform_edt(~debris) - 1 - BORDER_PX / 2
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
