"""Displacement of overlapping strips: half-whitened phase correlation, chosen by true NCC.

A Laplacian of Gaussian (LoG) suppresses background and noise, as in ASHLAR (Muhlich et al.,
Bioinformatics 2022). Whitening the cross-spectrum fully (Kuglin & Hines 1975) lets noise
decide; dividing by the square root of its modulus keeps the peak sharp and the noise down.
The normalised cross-correlation (NCC) of the pixels that really overlap chooses between
peaks, and Newton's method on the band-limited correlation gives the fraction of a pixel.
"""

import math
from typing import NamedTuple

import numpy as np

from tilewright.kernels.backend import Array, Backend, Floats, Ints, fast_len
from tilewright.kernels.tile_positions.correlation_peak import MIN_OVERLAP_PX, climb, subpixel
from tilewright.kernels.tile_positions.false_match import (
    along,
    false_match_probability,
    match_evidence,
    null_sample,
)
from tilewright.kernels.tile_positions.overlap_strips import StripPlan

#: Correlation works on every second pixel of the filtered strips.
STRIDE = 2
#: Correlation peaks whose NCC is computed.
_PEAKS = 5


class StripShifts(NamedTuple):
    """Shifts of n pairs of strips by correlation."""

    shift_px: Floats
    """float64 (n, 2): (y, x) such that ``a[p + shift] == b[p]``."""
    score: Floats
    """float64 (n,): NCC of the filtered strips at the best shift; 0 where it is unknown."""
    second: Floats
    """float64 (n,): NCC of the best rival peak."""
    curvature: Floats
    """float64 (n, 2): minus the second derivative (y, x) of the normalised correlation at its peak,
    px⁻².
    """
    pixels: Floats
    """float64 (n,): number of pixels that overlap at the shift."""
    false_match_probability: Floats
    """float64 (n,): probability that strips without a common signal reach the score anywhere in the
    search window; see :mod:`tilewright.kernels.tile_positions.false_match`.
    """


def correlate_strips(
    backend: Backend, a: Array, b: Array, expected_px: Floats, max_shift_px: float, sigma_px: float
) -> StripShifts:
    """Filter n pairs of strips (n, y, x), host or device, in float32, and correlate them.

    See :func:`filter_strips` and :func:`correlate_filtered`.
    """
    with backend.fft_threads():
        small = [filter_strips(backend, strips, sigma_px) for strips in (a, b)]
    return correlate_filtered(backend, small[0], small[1], expected_px, max_shift_px, sigma_px)


def correlate_filtered(
    backend: Backend,
    a: Array,
    b: Array,
    expected_px: Floats,
    max_shift_px: float,
    sigma_px: float,
) -> StripShifts:
    """Measure the displacement of n pairs of strips that :func:`filter_strips` filtered.

    Parameters
    ----------
    a, b : array, shape (n, y, x)
        Filtered strips.
    expected_px : ndarray, shape (n, 2)
        Shift (y, x) that the stage promises, with ``a[p + shift] == b[p]``, in pixels of tiles.
    max_shift_px : float
        Largest deviation from ``expected_px`` searched, per axis.
    sigma_px : float
        Width of the Laplacian of Gaussian.
    """
    a, b = backend.asarray(a), backend.asarray(b)
    expected = np.asarray(expected_px, np.float64) / STRIDE
    reach = max_shift_px / STRIDE
    with backend.fft_threads():
        whitened, plain = _surfaces(backend, a, b, reach, expected)
        starts = _highest_peaks(backend, whitened, a.shape[1:], expected, reach)
        best = climb(backend, a, b, starts, max(8.0, 3.0 * sigma_px) / STRIDE)
        fine = subpixel(backend, a, b, best.shift)
    score = np.maximum(best.score, fine.score)
    sigma = sigma_px / STRIDE
    null = null_sample(backend, plain, a, b, expected, reach, sigma)
    evidence = match_evidence(backend, a, b, best.shift, sigma)
    return StripShifts(
        STRIDE * (best.shift + fine.delta_px),
        score,
        best.second,
        fine.curvature / STRIDE**2,
        best.pixels * STRIDE**2,
        false_match_probability(best.score, null, evidence),
    )


def filter_strips(backend: Backend, strips: Array, sigma_px: float) -> Array:
    """Filter strips (n, y, x) by the LoG and keep every second pixel along each axis.

    The strips are padded by reflection for 4 sigma, beyond which the LoG is below what float32
    resolves. Frequencies above a quarter per pixel are cut, so that the small strips hold the
    filtered ones exactly at a fourth of the cost; a LoG of 1.5 px keeps little above. A border
    of 1.5 sigma is left out: where bright specimen meets the border, its reflection makes
    ridges that can hold most of the energy of a dim strip.

    Returns
    -------
    array of float32, shape (n, about y / 2 - 1.5 sigma, about x / 2 - 1.5 sigma)
    """
    xp = backend.xp
    strips = backend.asarray(strips)
    # Without its mean a bright flat strip leaves no rounding errors to correlate.
    strips = strips - xp.mean(strips, axis=(1, 2), keepdims=True)
    height, width = strips.shape[1:]
    pad = STRIDE * math.ceil(4.0 * sigma_px / STRIDE)
    rows, cols = (2 * fast_len(math.ceil((n + 2 * pad) / (2 * STRIDE))) for n in (height, width))
    margins = [(pad, STRIDE * n - size - pad) for n, size in ((rows, height), (cols, width))]
    extended = xp.pad(strips, [(0, 0), *margins], mode="symmetric")
    ky = (2.0 * np.pi / STRIDE) * np.fft.fftfreq(rows)
    kx = (2.0 * np.pi / STRIDE) * np.fft.rfftfreq(cols)
    squared = ky[:, None] ** 2 + kx**2
    response = squared * np.exp(-0.5 * sigma_px**2 * squared) / STRIDE**2
    response[rows // 2], response[:, cols // 2] = 0.0, 0.0
    partial = backend.fft.rfft(extended, axis=2)[:, :, : cols // 2 + 1]
    full = backend.fft.fft(partial, axis=1)
    low = xp.concatenate((full[:, : rows // 2], full[:, full.shape[1] - rows // 2 :]), axis=1)
    spectrum = low * backend.asarray(response)
    small = backend.fft.irfft2(spectrum, s=(rows, cols))
    start = pad // STRIDE + _edge(sigma_px)
    tall, wide = filtered_shape((height, width), sigma_px)
    return small[:, start : start + tall, start : start + wide]


def filtered_shape(shape: tuple[int, int], sigma_px: float) -> tuple[int, int]:
    """Return what :func:`filter_strips` makes of a shape (y, x)."""
    y, x = (-(-n // STRIDE) - 2 * _edge(sigma_px) for n in shape)
    return y, x


def _edge(sigma_px: float) -> int:
    return math.ceil(1.5 * sigma_px / STRIDE)


def _surfaces(
    backend: Backend, a: Array, b: Array, reach: float, expected: Floats
) -> tuple[Array, Array]:
    """Correlate filtered strips (n, y, x), half-whitened and plain, at every shift."""
    # Rolled along the longer axis; along the shorter one padded by zeros, so that within the search
    # window a narrow overlap is not folded onto itself.
    xp = backend.xp
    size = (a.shape[1], a.shape[2])
    farthest = np.abs(np.rint(expected)).max(axis=0, initial=0.0) + math.ceil(reach) + 1
    padded = [n + min(n, int(far)) for n, far in zip(size, farthest, strict=True)]
    padded[along(size)] = size[along(size)]
    shape = tuple(2 * fast_len((n + 1) // 2) for n in padded)
    cross = backend.fft.rfft2(a, s=shape) * xp.conj(backend.fft.rfft2(b, s=shape))
    modulus = xp.abs(cross)
    floor = 1e-6 * xp.max(modulus, axis=(1, 2), keepdims=True) + 1e-30
    whitened = backend.fft.irfft2(cross / xp.sqrt(modulus + floor), s=shape)
    return whitened, backend.fft.irfft2(cross, s=shape)


def _highest_peaks(
    backend: Backend, surface: Array, strip: tuple[int, int], expected: Floats, max_shift: float
) -> Ints:
    """Return the :data:`_PEAKS` highest maxima near the expected shifts, (n, peaks, 2)."""
    # Only shifts at which the strips share enough pixels count. Ties fall to the first in row-major
    # order; a pair with fewer maxima repeats the expected shift.
    count, rows, cols = surface.shape
    centre = np.rint(expected).astype(np.int64)
    reach = [min(math.ceil(max_shift), n // 2 - 2) for n in (rows, cols)]
    spans = [np.arange(-r - 1, r + 2) for r in reach]
    at = [centre[:, axis, None] + spans[axis] for axis in (0, 1)]
    at_y = backend.asarray(at[0] % rows, np.int64)[:, :, None]
    at_x = backend.asarray(at[1] % cols, np.int64)[:, None, :]
    pair = backend.asarray(np.arange(count), np.int64)[:, None, None]
    window = np.asarray(backend.to_numpy(surface[pair, at_y, at_x]), np.float64)

    inner = window[:, 1:-1, 1:-1]
    tall, wide = inner.shape[1:]
    shared = [np.abs(at[axis][:, 1:-1]) <= strip[axis] - MIN_OVERLAP_PX for axis in (0, 1)]
    is_peak = (inner > 0) & shared[0][:, :, None] & shared[1][:, None, :]
    for dy, dx in ((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x):
        other = window[:, 1 + dy : 1 + dy + tall, 1 + dx : 1 + dx + wide]
        is_peak &= (inner > other) if (dy, dx) < (0, 0) else (inner >= other)
    top = np.maximum(inner.max(axis=(1, 2), keepdims=True), 1e-30)
    ranked = np.where(is_peak, np.round(inner / top, 5), -1.0).reshape(count, -1)
    out = np.repeat(centre[:, None, :], _PEAKS, axis=1)
    order = np.argsort(-ranked, axis=1, kind="stable")[:, :_PEAKS]
    for k in range(order.shape[1]):
        is_found = np.take_along_axis(ranked, order[:, k, None], 1)[:, 0] > 0
        place = centre - reach + np.stack(np.divmod(order[:, k], wide), axis=1)
        out[is_found, k] = place[is_found]
    return out


def correlate_tiles(
    backend: Backend, tiles: Array, pairs: Ints, plan: StripPlan, sigma_px: float
) -> StripShifts:
    """Correlate pairs (m, 2) of tiles (n, y, x), each as if it were the one pair of a plan.

    >>> from tilewright.kernels.tile_positions.overlap_strips import plan_strips
    >>> plan = plan_strips(np.array([[0.0, 0.0], [0.0, 96.0]]), (128, 128))[0]
    >>> tiles = np.random.default_rng(0).normal(size=(3, 128, 128))
    >>> correlate_tiles(cpu, tiles, np.array([[0, 1], [2, 0]]), plan, 1.5).score.shape
    (2,)
    """
    height, width = plan.shape
    a, b = (
        tiles[backend.asarray(numbers, np.int64)][:, y : y + height, x : x + width]
        for numbers, (y, x) in zip(pairs.T, (plan.origin_a, plan.origin_b), strict=True)
    )
    expected = np.repeat(plan.expected_px, len(pairs), axis=0)
    return correlate_strips(backend, a, b, expected, plan.max_shift_px, sigma_px)
