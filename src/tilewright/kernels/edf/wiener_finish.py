"""Before and after the multi-plane Wiener filters: borders, gaps, haze and grain.

Haze is light of a stack that no plane focuses. The filters let it through; it is part of the
plane's smooth background, and subtracted as far as the planes agree that the background is not
light in focus anywhere in the stack.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage as host_ndimage

from tilewright.kernels.backend import Array, Backend
from tilewright.kernels.edf.focus_maps import POOL_PX, FocusMaps
from tilewright.kernels.edf.transfer import transfer_between
from tilewright.kernels.edf.wiener_plane import HALO_PX, WienerProjection
from tilewright.kernels.pooling import downsample_mean, mean_2x2, upsample_linear

#: Beside the mosaic's border, gaps and saturation the result is the focus-weighted projection, over
#: so many px: at the border the filters lose 2 to 4 dB.
BORDER_PX = 8.0
_SATURATED_PX = 8
#: Noise variances taken for grain, smoothing of the power it is compared with, and of the light
#: that is returned. In dark places of the dim set 0, 2 and 4 leave 0.97, 0.41 and 0.31 counts of
#: grain (RL 0.21), and 4 gains 0.4 dB; returning it over 12 px instead of 6 loses 0.2 dB where it
#: is very dim.
_GRAIN, _POWER_PX, _RETURN_PX = 4.0, 2.0, 6.0
#: Pixels around a part of a plane that reach into it when it is finished.
FINISH_HALO_PX = 24
#: The background of the plane has one pixel of this many.
BACKGROUND_PX = 8
#: Smoothing of the background, px, from wide to narrow: with 40 and 18 the flux of three haze sets
#: is up to 12 % too high, with 24 and 16 after 40 within 2.5 %. With 12 px cells of dense tissue
#: are taken for haze.
_BACKGROUND_SIGMAS_PX = (40.0, 24.0, 16.0)
#: Rounds of each, the least weight of a pixel, and the width of the step of the weight, in spreads
#: of what lies below: no figures.
_BACKGROUND_ROUNDS, _BACKGROUND_LEAST, _BACKGROUND_STEP = 12, 1e-3, 0.25
#: Planes agree on haze between these shares; see :func:`haze_share`. Fifteen sets with haze showed
#: 0.65 to 1; thirteen without up to 0.28 where the background is 4 % of the light, 0 in dense
#: tissue, where it is 17 %, and 0.52 in dim tissue with holes.
_TISSUE_SHARE, _HAZE_SHARE = 0.25, 0.65
#: How much more the planes are explained with haze than by light alone, from which and up to which
#: share it counts as haze. Haze of 1.2 times the light and more showed 0.17 to 2.2; tissue without,
#: that the planes seem to show alike because its depth is not well known, up to 0.15 (dense, thick,
#: debris), and 0.085 (fibres below debris out of focus, ``benchmarks.bright_debris``). Wide ramps:
#: no more than a part is taken by mistake.
_EXPLAINED = (0.085, 0.165)
#: The light of a place is in so many times fewer planes than all, from which and up to which it is
#: known how deep it lies. Eleven sets with haze showed 3.5 to 6.1. In dim tissue (60 electrons;
#: five and nine planes) it was 1.2 to 2.6: there the planes were explained up to 0.5 better with
#: haze that was none, and all of the tissue's light was taken.
_KNOWN = (2.8, 3.4)


def mirrored(start: int, stop: int, size: int) -> NDArray[np.int64]:
    """Return indices of pixels ``start`` to ``stop`` of a line of ``size``, mirrored at its ends.

    >>> mirrored(-2, 6, 4)
    array([1, 0, 0, 1, 2, 3, 3, 2])
    """
    at = np.arange(start, stop) % (2 * size)
    return np.minimum(at, 2 * size - 1 - at).astype(np.int64)


def fill(stack: NDArray[Any], coverage: NDArray[np.bool_]) -> NDArray[Any]:
    """Fill the gaps of a stack (z, y, x), outside its ``coverage`` (y, x), by mirrored pixels.

    Taken as dark they would be a step of light, and ring. Each gets the pixel as far on the other
    side of the covered pixel next to it, or that one where the other is in a gap too. Done in the
    stack itself, which is returned.

    >>> fill(np.array([[[1, 2, 0, 0]]]), np.array([[True, True, False, False]]))
    array([[[1, 2, 1, 1]]])
    """
    if coverage.all() or not coverage.any():
        return stack
    nearest = host_ndimage.distance_transform_edt(
        ~coverage, return_distances=False, return_indices=True
    )
    at = np.nonzero(~coverage)
    border = [n[at] for n in nearest]
    across = [
        np.clip(2 * n - i, 0, size - 1)
        for n, i, size in zip(border, at, coverage.shape, strict=True)
    ]
    fits = coverage[across[0], across[1]]
    y, x = (np.where(fits, a, n) for a, n in zip(across, border, strict=True))
    # Only covered pixels are copied, and they are not written to.
    for plane in stack:
        plane[at] = plane[y, x]
    return stack


def confidence_weight(
    from_border_px: NDArray[np.float32],
    coverage: NDArray[np.bool_] | None = None,
    saturated: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """Return the share (y, x) of the estimate to take, 0 to 1; the rest is ``focus_weighted``.

    Parameters
    ----------
    from_border_px : ndarray of float32, shape (y, x)
        Distance to the border of the mosaic, 0 at its outermost pixel; negative outside, where
        nothing is written and nothing needs to be mixed.
    coverage, saturated : ndarray of bool, shape (y, x), optional
        Pixels that were imaged, and those at the camera's ceiling in any plane: the filters draw a
        dark ring around a clipped blob.

    Examples
    --------
    >>> confidence_weight(np.array([[0, 3, 20]], np.float32)).tolist()
    [[0.0625, 0.4375, 1.0]]
    """
    distance = np.asarray(from_border_px, np.float32)
    outside = distance < 0
    if coverage is not None and not coverage.all():
        distance = np.minimum(distance, host_ndimage.distance_transform_edt(coverage) - 1)
    if saturated is not None and saturated.any():
        from_clipped = host_ndimage.distance_transform_edt(~saturated) - 1 - _SATURATED_PX
        distance = np.minimum(distance, from_clipped)
    confidence: NDArray[np.float32] = np.clip((distance + 0.5) / BORDER_PX, 0, 1).astype(np.float32)
    confidence[outside] = 1
    return confidence


def estimate_background(backend: Backend, coarse: Any) -> Array:
    """Return the smooth background (y, x) of a plane: what lies between its objects, at least 0.

    It is a mean over 40, 24 and then 16 px, weighted by how little a pixel exceeds the present
    background. It is estimated of a whole mosaic, so that it does not depend on tiles.

    Parameters
    ----------
    coarse : array, shape (y, x)
        The plane, not clipped, as means of 8 × 8 pixels (:func:`.pooling.downsample_mean`).

    Examples
    --------
    >>> plane = np.full((40, 40), 7.0)
    >>> plane[20, 20] = 900
    >>> round(float(estimate_background(cpu, plane)[5, 5]), 2)
    7.0
    """
    xp = backend.xp
    rest = backend.asarray(coarse)
    total = xp.zeros_like(rest)
    for sigma_px in _BACKGROUND_SIGMAS_PX:

        def smooth(values: Array, sigma: float = sigma_px / BACKGROUND_PX) -> Array:
            return backend.ndimage.gaussian_filter(values, sigma, mode="reflect", truncate=3.0)

        background = smooth(rest)
        for _ in range(_BACKGROUND_ROUNDS):
            over = rest - background
            below = xp.minimum(over, 0)
            count = max(float((below < 0).mean()), 1e-6)
            spread = (float(xp.square(below).mean()) / count) ** 0.5
            # From 1 to 0 within a spread about the background; the clip keeps exp finite.
            steep = xp.clip(over / (_BACKGROUND_STEP * spread + 1e-6), -30, 30)
            weight = 1 / (1 + xp.exp(steep)) + np.float32(_BACKGROUND_LEAST)
            background = smooth(weight * rest) / smooth(weight)
        total += background
        rest = rest - background
    return xp.maximum(total, 0)


def finish(
    backend: Backend, image: Any, variance: Any, background: Any = None, share: float = 0.0
) -> Array:
    """Return a plane without haze and grain, not below 0: (y, x) float32 counts.

    Grain is light that is no more than noise makes: each pixel is shrunk by the noise's share of
    the power around it. The difference, noise below 0 included, goes back smoothed: so dark
    places are smooth, and the sum of light stays.

    Parameters
    ----------
    image : array, shape (y, x)
        Not clipped; sides are multiples of 8.
    variance : array, shape (y // 4, x // 4)
        Of its noise, as :class:`WienerProjection` has it.
    background : array, shape (y // 8, x // 8), optional
        From :func:`estimate_background`.
    share : float
        Of the background that is haze. Interpolation repeats rims, so parts of a mosaic need a halo
        of :data:`FINISH_HALO_PX`.

    Examples
    --------
    >>> plane = 50 + np.random.default_rng(0).normal(0, 3, (64, 64))
    >>> clear = finish(cpu, plane, np.full((16, 16), 9.0))
    >>> bool(clear.std() < plane.std()), round(float(clear.mean()))
    (True, 50)
    """
    xp, gaussian = backend.xp, backend.ndimage.gaussian_filter
    light = backend.asarray(image)
    if share > 0 and background is not None:
        light = light - np.float32(share) * upsample_linear(
            xp, backend.asarray(background), BACKGROUND_PX
        )
    positive = xp.maximum(light, 0)
    power = gaussian(positive * positive, _POWER_PX, mode="reflect", truncate=3.0)
    noise = np.float32(_GRAIN) * upsample_linear(xp, backend.asarray(variance), POOL_PX)
    positive *= xp.maximum(1 - noise / xp.maximum(power, np.float32(1e-9)), 0)
    positive += gaussian(light - positive, _RETURN_PX, mode="reflect", truncate=3.0)
    return xp.maximum(positive, 0)


def haze_moments(
    maps: FocusMaps,
    stack: Any,
    plane: WienerProjection,
    contaminated: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """Return the moments of a window by which haze is separated from light; see :func:`haze_share`.

    Parameters
    ----------
    maps : FocusMaps
        Of windows of the stack's size, at least twice :data:`HALO_PX` and 64 px, else ValueError.
    stack : array, shape (z, y, x)
        Raw counts.
    plane : WienerProjection
        The window's plane.
    contaminated : ndarray of bool, shape (y // 4, x // 4), optional
        Places that do not count.

    Returns
    -------
    ndarray of float64, shape (8,)
        Products of the background, the background blurred, and the residual of the planes without
        it in the rest of the estimate; how many times fewer planes than all of them the light is
        in, weighted by the background's energy, and that energy. They add up over windows.

    Examples
    --------
    >>> from tilewright.kernels.edf import channel_model, wiener_filters, wiener_plane
    >>> from tilewright.kernels.noise import NoiseModel
    >>> channel = channel_model.ChannelModel(np.ones((9, 129)), np.ones(3, bool), np.ones(129), 1.0)
    >>> maps = FocusMaps(cpu, channel, NoiseModel(1.0, 2.0), 100.0, (240, 240))
    >>> stack = np.random.default_rng(0).poisson(150, (3, 240, 240))
    >>> filters = wiener_filters.make_filters(channel)
    >>> haze_moments(maps, stack, wiener_plane.WienerPlane(maps, filters).project(stack)).shape
    (8,)
    """
    if min(maps.window) < 2 * HALO_PX + 64:
        raise ValueError(f"windows of {maps.window} px are too small to separate haze from light")
    backend, xp = maps.backend, maps.backend.xp
    coarse = downsample_mean(plane.image)
    background = estimate_background(backend, coarse)
    weights = mean_2x2(plane.weights)
    inner = (slice(-(-HALO_PX // BACKGROUND_PX), -(HALO_PX // BACKGROUND_PX)),) * 2
    spectra = [backend.fft.rfft2(xp.stack([v * w for w in weights])) for v in (coarse, background)]
    mask = xp.ones_like(background[inner])
    if contaminated is not None:
        mask -= mean_2x2(backend.asarray(contaminated))[inner] > 0
    planes = _coarse_planes(maps, stack, spectra)
    return _moments(xp, planes, background, [w[inner] for w in weights], mask, inner)


def _moments(
    xp: Any,
    planes: Iterator[tuple[Array, Array, Array]],
    background: Array,
    weights: list[Array],
    mask: Array,
    inner: tuple[slice, ...],
) -> NDArray[np.float64]:
    """Return the eight sums of :func:`haze_moments` over the ``mask`` of the inner pixels."""
    moments = np.zeros(8)
    total = max(float(mask.sum()), 1.0)

    def centred(values: Array) -> Array:
        return mask * (values[inner] - (mask * values[inner]).sum() / total)

    same = centred(background)
    for light, blurred_background, counts in planes:
        # The background as haze, the same in all planes; as light, blurred by each; the residual.
        blurred = centred(blurred_background)
        residual = centred(counts - light + blurred_background)
        pairs = [(same, same), (same, blurred), (blurred, blurred)]
        pairs += [(same, residual), (blurred, residual), (residual, residual)]
        moments[:6] += [float((u * v).sum(dtype=np.float64)) for u, v in pairs]
    concentration = len(weights) * sum(w * w for w in weights)
    concentration = concentration / xp.maximum(sum(weights) ** 2, 1e-9)
    energy = same * same
    moments[6:] = [float(v.sum(dtype=np.float64)) for v in (energy * concentration, energy)]
    return moments


def _coarse_planes(
    maps: FocusMaps, stack: Any, spectra: list[Array]
) -> Iterator[tuple[Array, Array, Array]]:
    """Yield each usable plane of light and of background (both by ``spectra``), and its counts."""
    backend = maps.backend
    shape = tuple(n // BACKGROUND_PX for n in maps.window)
    depths = np.arange(len(maps.channel.plane_mask))
    transfer = transfer_between(maps.channel.profiles, depths, depths, shape, BACKGROUND_PX)
    for z in maps.planes:
        of_plane = backend.asarray(transfer[z][maps.planes])
        light, background = (
            backend.fft.irfft2((of_plane * part).sum(axis=0), s=shape) for part in spectra
        )
        counts = downsample_mean(backend.asarray(stack[z]) - np.float32(maps.pedestal))
        yield light, background, counts


def haze_share(moments: Sequence[NDArray[np.float64]]) -> float:
    """Return the share, 0 to 1 in steps of 0.01, of the background that is haze.

    Light at a depth is blurred in the planes far from it; haze shows alike in all. What the planes
    show beyond the rest of the estimate is fitted by the background as it is and the background
    blurred. The first counts as haze where it explains what the second does not, and where the
    depth of light is known: light that is spread over planes at which it is not is blurred too
    much.

    >>> haze_share([np.array([1.0, 0.2, 1.0, 0.9, 0.1, 1.0, 4.0, 1.0])]), haze_share([])
    (1.0, 0.0)
    """
    total: NDArray[np.float64] = np.sum([np.zeros(8), *moments], axis=0)
    # Products of the background (s), the background blurred (b), and the residual (r).
    ss, sb, bb, sr, br, rr, concentration, energy = total
    determinant = ss * bb - sb * sb
    if determinant <= 1e-9 * ss * bb:
        return 0.0
    same, blurred = (sr * bb - br * sb) / determinant, (br * ss - sr * sb) / determinant
    residual = max(rr - same * sr - blurred * br, 1e-9 * rr)
    explained = (rr - br * br / bb) / residual - 1
    haze = max(same, 0.0) / max(max(same, 0.0) + max(blurred, 0.0), 1e-9)
    known = concentration / max(energy, 1e-30)
    ramps = ((explained, _EXPLAINED), (haze, (_TISSUE_SHARE, _HAZE_SHARE)), (known, _KNOWN))
    shares = (min(max((v - low) / (high - low), 0.0), 1.0) for v, (low, high) in ramps)
    return round(float(math.prod(shares)), 2)
