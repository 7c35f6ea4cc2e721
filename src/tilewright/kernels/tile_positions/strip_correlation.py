"""Displacement of two overlapping strips, and the probability that it is a false match.

A Laplacian of Gaussian (LoG) suppresses background and noise, as in ASHLAR (Muhlich et al.,
Bioinformatics 2022). The normalised cross-correlation (NCC) of the pixels that overlap has its
highest peak at the displacement; Newton's method on the band-limited correlation gives the
fraction of a pixel. Correlation far from the search window says how high peaks are by chance; see
:mod:`tilewright.kernels.tile_positions.false_match`.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Floats, fast_len
from tilewright.kernels.tile_positions.false_match import (
    NullSample,
    count_objects,
    false_match_probability,
    null_sample,
)

Image = NDArray[np.float32]
Shift = tuple[int, int]

#: Correlation works on every second pixel of the filtered strips.
STRIDE = 2
#: Pixels that two strips must share along each axis; what their NCC means follows from its
#: false-match probability. With 5 the true shift of a 6 % overlap of 256 px tiles was often not
#: searched.
MIN_FILTERED_PX = 3
#: Mean square of a filtered strip, counts², below which it holds rounding errors only.
_FLAT = 1e-12
_NEWTON_STEPS = 3
_TAPER_PX = 6


class StripShift(NamedTuple):
    """Shift between two strips by correlation; pixels are those of tiles.

    Attributes
    ----------
    shift_px : float64 (2,)
        (y, x) such that ``a[p + shift] == b[p]``.
    score : float
        NCC of the filtered strips at that shift; 0 where it is unknown.
    second : float
        NCC of the best rival peak.
    curvature : float64 (2,)
        Minus the second derivative (y, x) of the normalised correlation at its peak, px⁻²; 0 where
        it is unknown.
    pixels : float
        Number of pixels that overlap at the shift.
    false_match_probability : float
        Probability that strips without a common signal reach the score anywhere in the search
        window.
    """

    shift_px: Floats
    score: float
    second: float
    curvature: Floats
    pixels: float
    false_match_probability: float


class _Peak(NamedTuple):
    """A peak of the correlation: whole shift (y, x), NCC, height, and NCC of the best rival."""

    shift: Shift
    score: float
    height: float
    second: float


def correlate_strips(
    a: Image, b: Image, expected_px: Floats, max_shift_px: float, sigma_px: float
) -> StripShift:
    """Measure the displacement of two strips (y, x) of the same shape.

    Parameters
    ----------
    a, b : ndarray of float32, shape (y, x)
        Counts.
    expected_px : ndarray of float64, shape (2,)
        Shift (y, x) that the stage promises, with ``a[p + shift] == b[p]``.
    max_shift_px : float
        Largest deviation from ``expected_px`` searched, per axis.
    sigma_px : float
        Width of the Laplacian of Gaussian.

    Examples
    --------
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(128, 60)), 2)
    >>> a, b = scene[:120, :48], scene[3:123, 5:53]
    >>> correlate_strips(a, b, np.zeros(2), 12.0, 1.5).shift_px.round(1).tolist()
    [3.0, 5.0]
    """
    a, b = (filter_strip(strip, sigma_px) for strip in (a, b))
    expected = np.asarray(expected_px, np.float64) / STRIDE
    # The longer axis first: the strips are rolled along it.
    turn = -1 if a.shape[1] > a.shape[0] else 1
    if turn < 0:
        a, b, expected = a.T, b.T, expected[::-1]
    sigma = sigma_px / STRIDE
    peak, null = _best_peak(a, b, expected, max_shift_px / STRIDE, sigma)
    if peak is None:
        return StripShift(STRIDE * expected[::turn], 0.0, 0.0, np.zeros(2), 0.0, 1.0)
    a, b = shared(a, b, peak.shift)
    chance = false_match_probability(peak.height, null, count_objects(a, b))
    found = subpixel(a, b) if chance < 1 else None
    delta, curvature, score = found or (np.zeros(2), np.zeros(2), 0.0)
    return StripShift(
        STRIDE * (np.array(peak.shift) + delta)[::turn],
        max(peak.score, score),
        peak.second,
        curvature[::turn] / STRIDE**2,
        float(a.size * STRIDE**2),
        chance,
    )


def filter_strip(strip: Image, sigma_px: float) -> Image:
    """Filter a strip (y, x) by the LoG and keep every second pixel along each axis.

    The strip is padded by reflection for 4 sigma, beyond which the LoG is below what float32
    resolves. Frequencies above a quarter per pixel are cut, so that the small strip holds the
    filtered one exactly at a fourth of the cost; a LoG of 1.5 px keeps little above. A border
    of 1.5 sigma is left out: where bright specimen meets the border, its reflection makes
    ridges that can hold most of the energy of a dim strip.

    Returns
    -------
    ndarray of float32, shape (about y / 2 - 1.5 sigma, about x / 2 - 1.5 sigma)
    """
    # Without its mean a bright flat strip leaves no rounding errors to correlate.
    strip = np.asarray(strip, np.float32)
    strip = strip - strip.mean(dtype=np.float64).astype(np.float32)
    pad = STRIDE * math.ceil(4.0 * sigma_px / STRIDE)
    rows, cols = (2 * fast_len(math.ceil((n + 2 * pad) / (2 * STRIDE))) for n in strip.shape)
    margins = [
        (pad, STRIDE * n - size - pad) for n, size in zip((rows, cols), strip.shape, strict=True)
    ]
    extended = np.pad(strip, margins, mode="symmetric")
    full = scipy.fft.fft(scipy.fft.rfft(extended, axis=1)[:, : cols // 2 + 1], axis=0)
    low = np.concatenate((full[: rows // 2], full[len(full) - rows // 2 :]))
    small = scipy.fft.irfft2(low * _response(rows, cols, sigma_px), s=(rows, cols))
    edge = math.ceil(1.5 * sigma_px / STRIDE)
    start = pad // STRIDE + edge
    tall, wide = (-(-n // STRIDE) - 2 * edge for n in strip.shape)
    return np.asarray(small[start : start + tall, start : start + wide])


@lru_cache(maxsize=8)
def _response(rows: int, cols: int, sigma_px: float) -> Image:
    """Return the LoG's response at the frequencies of every second pixel; read-only."""
    ky = (2.0 * np.pi / STRIDE) * np.fft.fftfreq(rows)
    kx = (2.0 * np.pi / STRIDE) * np.fft.rfftfreq(cols)
    squared = ky[:, None] ** 2 + kx**2
    response = squared * np.exp(-0.5 * sigma_px**2 * squared) / STRIDE**2
    response[rows // 2], response[:, cols // 2] = 0.0, 0.0
    small = response.astype(np.float32)
    small.flags.writeable = False
    return small


def ncc_at(a: Image, b: Image, shift_px: Floats, sigma_px: float) -> float:
    """Return the NCC of two strips, filtered, at the nearest whole shift of filtered pixels."""
    y, x = np.rint(shift_px / STRIDE).astype(int).tolist()
    return _ncc(*shared(filter_strip(a, sigma_px), filter_strip(b, sigma_px), (y, x)))


def shared(a: NDArray[Any], b: NDArray[Any], shift: Shift) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the parts of two images (y, x) of one shape that overlap at ``a[p + shift] == b[p]``.

    >>> [part.shape for part in shared(np.zeros((20, 30)), np.zeros((20, 30)), (2, -5))]
    [(18, 25), (18, 25)]
    """
    (height, width), (y, x) = a.shape, shift
    return (
        a[max(0, y) : max(0, height + y), max(0, x) : max(0, width + x)],
        b[max(0, -y) : max(0, height - y), max(0, -x) : max(0, width - x)],
    )


def _ncc(a: Image, b: Image) -> float:
    """Return the NCC of images whose mean is 0; 0 of images that hold rounding errors only."""
    energy = math.sqrt(float(np.vdot(a, a)) * float(np.vdot(b, b)))
    return float(np.vdot(a, b)) / energy if energy > _FLAT * a.size else 0.0


def _best_peak(
    a: Image, b: Image, expected: Floats, reach: float, sigma: float
) -> tuple[_Peak | None, NullSample]:
    """Return the highest peak in the search window, and how high peaks are by chance."""
    ends = a.shape[0] // 2, math.ceil(reach) + 1
    along, across = (
        round(float(centre)) + np.arange(-end, end + 1)
        for centre, end in zip(expected, ends, strict=True)
    )
    ncc, part = _correlation(a, b, along, across)
    height = ncc * np.sqrt(part)
    peak = height >= ndimage.maximum_filter(height, 3, mode="nearest")
    usable = part > 0
    usable[:, [0, -1]] = False  # of these one neighbour is not known
    away = np.abs(along - expected[0])[:, None]
    near, far = usable & (away <= reach), usable & (away > reach + 4.0 * sigma)
    null = null_sample(height[far], peak[far], int(near.sum()))
    found = np.argwhere(near & peak & (height > 0))
    if not len(found):
        return None, null
    # Of chance peaks those of few pixels are the highest.
    y, x = best = found[np.argmax((ncc * part)[tuple(found.T)])]
    rivals = found[np.abs(found - best).max(axis=1) > max(4.0, 3.0 * sigma)]
    second = float(ncc[tuple(rivals.T)].max(initial=0.0))
    shift = int(along[y]), int(across[x])
    return _Peak(shift, float(ncc[y, x]), float(height[y, x]), second), null


def _correlation(
    a: Image, b: Image, along: NDArray[np.int64], across: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Return the NCC (rows, columns) at shifts, and the part of the strips that is shared there.

    It is 0 where that is too narrow.
    """
    shifts = along, across
    shape = tuple(
        fast_len(n + min(n, int(np.abs(s).max()))) for n, s in zip(a.shape, shifts, strict=True)
    )
    spectra = [scipy.fft.rfft2(strip, s=shape) for strip in (a, b)]
    surface = scipy.fft.irfft2(spectra[0] * spectra[1].conj(), s=shape)
    product = surface[np.ix_(along % shape[0], across % shape[1])]
    energy = np.sqrt(_energy(a, along, across) * _energy(b, -along, -across))
    known = energy > _FLAT * a.size
    sides = ((n, n - np.abs(s)) for n, s in zip(a.shape, shifts, strict=True))
    part = np.outer(*(np.where(side >= MIN_FILTERED_PX, side / n, 0.0) for n, side in sides))
    return np.where(known, product / np.where(known, energy, 1.0), 0.0), part


def _energy(image: Image, along: NDArray[np.int64], across: NDArray[np.int64]) -> Floats:
    """Return the sum of squares (rows, columns) of what an image shares at shifts."""
    total = np.pad(np.cumsum(np.cumsum(np.square(image, dtype=np.float64), 0), 1), ((1, 0), (1, 0)))
    (y0, x0), (y1, x1) = (
        [np.clip(s + n * end, 0, n) for s, n in zip((along, across), image.shape, strict=True)]
        for end in (0, 1)
    )
    inside = total[np.ix_(y1, x1)] - total[np.ix_(y0, x1)] - total[np.ix_(y1, x0)]
    return np.asarray(np.maximum(inside + total[np.ix_(y0, x0)], 0.0))


def subpixel(a: Image, b: Image) -> tuple[Floats, Floats, float] | None:
    """Find the peak of the band-limited correlation of two images near shift 0 by Newton's method.

    Derivatives come from the cross-spectrum and are exact, where finite differences of
    LoG-filtered pixels err by 40 % at the frequencies that carry the signal. Noise is
    independent between the strips, so neither gradient nor curvature is biased by it. Both
    images are tapered; b's taper follows the fraction found, so that both see the same specimen
    (without it, strips 40 px wide err by 0.05 px).

    Parameters
    ----------
    a, b : ndarray of float32, shape (y, x)
        LoG-filtered strips where they overlap.

    Returns
    -------
    delta : ndarray of float64, shape (2,)
        Shift (y, x) in pixels, ``a[p + delta] == b[p]``.
    curvature : ndarray of float64, shape (2,)
        Minus the second derivative of the normalised correlation, px⁻².
    score : float
        The normalised correlation. None is returned where there is no peak within a pixel.
    """
    shape = fast_len(a.shape[0]), fast_len(a.shape[1])
    frequency = 2.0 * np.pi * np.fft.fftfreq(shape[0]), 2.0 * np.pi * np.fft.rfftfreq(shape[1])
    # Frequencies of the half spectrum count twice, but for the first and an even size's last.
    twice = np.full(frequency[1].size, 2.0)
    twice[[0, -1] if shape[1] % 2 == 0 else 0] = 1.0
    powers = [k ** np.arange(3)[:, None] for k in frequency]
    a, delta = a * _taper(a.shape, np.zeros(2)), np.zeros(2)
    spectrum, energy_a = scipy.fft.rfft2(a, s=shape), float(np.vdot(a, a))
    for _ in range(_NEWTON_STEPS):
        tapered = b * _taper(b.shape, delta)
        energy = math.sqrt(energy_a * float(np.vdot(tapered, tapered)))
        if energy <= _FLAT * a.size:
            return None
        cross = spectrum * scipy.fft.rfft2(tapered, s=shape).conj()
        left, right = (
            (power * np.exp(1j * d * k)).astype(np.complex64)
            for power, k, d in zip(powers, frequency, delta, strict=True)
        )
        moment = (left @ cross @ (twice * right).T).astype(np.complex128)
        moment /= energy * math.prod(shape)
        gradient = -np.array([moment[1, 0].imag, moment[0, 1].imag])
        bend = np.array([[moment[2, 0], moment[1, 1]], [moment[1, 1], moment[0, 2]]]).real
        curvature = np.diag(bend)
        if (curvature <= 0).any() or np.linalg.det(bend) <= 1e-6 * curvature.prod():
            return None
        delta = delta + np.clip(np.linalg.solve(bend, gradient), -0.5, 0.5)
    return (delta, curvature, float(moment[0, 0].real)) if np.abs(delta).max() <= 1.0 else None


def _taper(shape: tuple[int, ...], delta: Floats) -> Image:
    """Return a window that rises over at most 6 px, or a fourth of a side, and falls alike."""
    rises = []
    for size, move in zip(shape, delta, strict=True):
        place = np.arange(size) + 0.5 + move
        phase = np.minimum(place, size - place) / max(1, min(_TAPER_PX, size // 4))
        rises.append(np.sin(0.5 * np.pi * np.clip(phase, 0.0, 1.0)))
    return np.asarray(np.outer(*rises), np.float32)
