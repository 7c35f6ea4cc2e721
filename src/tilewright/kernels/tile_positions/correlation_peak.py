"""From whole-pixel candidates to the subpixel peak of a normalised cross-correlation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Array, Backend, Bools, Floats, Ints, fast_len

Shift = tuple[int, int]

#: Pixels that two strips must share along each axis; what their NCC means follows from its
#: false-match probability. With 5 the true shift of a 6 % overlap of 256 px tiles was often not
#: searched.
MIN_OVERLAP_PX = 3
#: Scores are compared after rounding to so many digits, so that both devices choose alike.
SCORE_DIGITS = 4
#: Mean square of a filtered strip, counts², below which it holds rounding errors only.
FLAT = 1e-12
_CLIMB_STEPS = 6
_NEWTON_STEPS = 3
_TAPER_PX = 6
_CROSS = ((-1, 0), (0, -1), (0, 1), (1, 0))


@dataclass(frozen=True)
class ClimbResult:
    """Best whole-pixel shift of n pairs: (n, 2) shift, and score, rival's score and pixels (n,)."""

    shift: Ints
    score: Floats
    second: Floats
    pixels: Floats


@dataclass(frozen=True)
class Subpixel:
    """Newton's result for n pairs: (n, 2) step and curvature, (n,) score and validity."""

    delta_px: Floats
    curvature: Floats
    score: Floats
    valid: Bools


def overlap(shape: tuple[int, int], shift: Shift) -> tuple[slice, slice, slice, slice] | None:
    """Return slices (a's y, a's x, b's y, b's x) that overlap at ``a[p + shift] == b[p]``.

    >>> overlap((20, 30), (2, -5))
    (slice(2, 20, None), slice(0, 25, None), slice(0, 18, None), slice(5, 30, None))
    >>> overlap((20, 30), (19, 0)) is None
    True
    """
    spans = []
    for size, step in zip(shape, shift, strict=True):
        low, high = max(0, step), min(size, size + step)
        if high - low < MIN_OVERLAP_PX:
            return None
        spans.append((slice(low, high), slice(low - step, high - step)))
    (a_y, b_y), (a_x, b_x) = spans
    return a_y, a_x, b_y, b_x


def strip_ncc(backend: Backend, a: Array, b: Array, requests: list[tuple[int, Shift]]) -> Floats:
    """Return the NCC of (pair, shift) items; 0 where the overlap is too small or flat.

    The strips (n, y, x) are LoG-filtered, so their mean is 0 and is not subtracted.
    """
    xp = backend.xp
    shape = (a.shape[1], a.shape[2])
    sums = []
    items = []
    for item, (pair, shift) in enumerate(requests):
        where = overlap(shape, shift)
        if where is None:
            continue
        part_a, part_b = a[pair, where[0], where[1]], b[pair, where[2], where[3]]
        items.append(item)
        sums.append(xp.einsum("ij,ij->", part_a, part_b))
        sums.append(xp.einsum("ij,ij->", part_a, part_a))
        sums.append(xp.einsum("ij,ij->", part_b, part_b))
    out = np.zeros(len(requests))
    if sums:
        host = np.asarray(backend.to_numpy(xp.stack(sums)), np.float64).reshape(-1, 3)
        energy = np.sqrt(host[:, 1] * host[:, 2])
        flat = energy <= FLAT * a.shape[1] * a.shape[2]
        out[items] = np.where(flat, 0.0, host[:, 0] / np.where(flat, 1.0, energy))
    return np.round(out, SCORE_DIGITS)


def climb(backend: Backend, a: Array, b: Array, starts: Ints, separation_px: float) -> ClimbResult:
    """Score candidate shifts, climb from the best and from its best rival, keep the better.

    Parameters
    ----------
    a, b : array, shape (n, y, x)
        LoG-filtered strips.
    starts : ndarray of int64, shape (n, k, 2)
        Candidate shifts.
    separation_px : float
        Candidates nearer than this to the best are the same peak, not a rival.
    """
    count = len(starts)
    known: list[dict[Shift, float]] = [{} for _ in range(count)]
    _score_new(backend, a, b, known, [[(int(y), int(x)) for y, x in row] for row in starts])
    tops = [_top_two(scores, separation_px) for scores in known]
    for _ in range(_CLIMB_STEPS):
        requested = [[(y + dy, x + dx) for y, x in top for dy, dx in _CROSS] for top in tops]
        if not _score_new(backend, a, b, known, requested):
            break
        tops = [_top_two(scores, separation_px) for scores in known]
    shift = np.array([top[0] for top in tops], np.int64).reshape(count, 2)
    best = np.array([known[i][top[0]] for i, top in enumerate(tops)])
    second = np.array([known[i][top[1]] if len(top) > 1 else 0.0 for i, top in enumerate(tops)])
    size = np.maximum(np.array(a.shape[1:]) - np.abs(shift), 0).prod(axis=1)
    return ClimbResult(
        shift, np.maximum(best, 0.0), np.maximum(second, 0.0), size.astype(np.float64)
    )


def _score_new(
    backend: Backend,
    a: Array,
    b: Array,
    known: list[dict[Shift, float]],
    requested: list[list[Shift]],
) -> bool:
    """Add the NCC of the shifts not known yet; return whether there were any."""
    requests = [
        (pair, shift)
        for pair, shifts in enumerate(requested)
        for shift in dict.fromkeys(shifts)
        if shift not in known[pair]
    ]
    for (pair, shift), score in zip(requests, strip_ncc(backend, a, b, requests), strict=True):
        known[pair][shift] = float(score)
    return bool(requests)


def _top_two(scores: dict[Shift, float], separation_px: float) -> list[Shift]:
    """Return the best shift and the best one far from it; ties to the smaller (y, x)."""
    ranked = sorted(scores, key=lambda shift: (-scores[shift], shift))
    best = ranked[0]
    for other in ranked[1:]:
        if max(abs(other[0] - best[0]), abs(other[1] - best[1])) > separation_px:
            return [best, other]
    return [best]


def subpixel(backend: Backend, a: Array, b: Array, shift: Ints) -> Subpixel:
    """Find the peak of the band-limited correlation around whole-pixel shifts by Newton's method.

    Derivatives come from the cross-spectrum and are exact, where finite differences of
    LoG-filtered pixels err by 40 % at the frequencies that carry the signal. Noise is
    independent between the strips, so neither gradient nor curvature is biased by it. Both
    overlaps are tapered; a second pass moves b's taper by the fraction found, so that both
    see the same specimen (without it, strips 40 px wide err by 0.05 px).

    Parameters
    ----------
    a, b : array, shape (n, y, x)
        LoG-filtered strips.
    shift : ndarray of int64, shape (n, 2)
        Where to start, ``a[p + shift] == b[p]``.
    """
    xp = backend.xp
    _, height, width = a.shape
    where = [overlap((height, width), (y, x)) for y, x in shift.tolist()]
    padded = (fast_len(height), fast_len(width))
    delta = np.zeros((len(where), 2))
    placed_a = _windowed(backend, a, [w and w[:2] for w in where], delta, padded)
    energy_a = xp.einsum("nij,nij->n", placed_a, placed_a)
    spectrum_a = backend.fft.rfft2(placed_a)
    for _ in range(2):
        placed_b = _windowed(backend, b, [w and w[2:] for w in where], delta, padded)
        energy = xp.sqrt(energy_a * xp.einsum("nij,nij->n", placed_b, placed_b))
        cross = spectrum_a * xp.conj(backend.fft.rfft2(placed_b))
        host_energy = np.asarray(backend.to_numpy(energy), np.float64)
        result = _newton(backend, cross, padded, host_energy, delta)
        delta = result.delta_px
    return result


def _windowed(
    backend: Backend,
    strips: Array,
    where: list[tuple[slice, slice] | None],
    delta: Floats,
    padded: tuple[int, int],
) -> Array:
    """Return tapered parts of strips, the taper moved by -delta, in the corner of zeros."""
    windowed = backend.xp.zeros((len(where), *padded), np.float32)
    for pair, slices in enumerate(where):
        if slices is not None:
            part = strips[pair, slices[0], slices[1]]
            size = part.shape
            rise = backend.asarray(_taper(size[0], delta[pair, 0]))[:, None]
            windowed[pair, : size[0], : size[1]] = (
                part * rise * backend.asarray(_taper(size[1], delta[pair, 1]))
            )
    return windowed


def _taper(size: int, delta: float) -> NDArray[np.float32]:
    """Return a window that rises over at most 6 px, or a fourth of ``size``, and falls alike."""
    ramp = max(1, min(_TAPER_PX, size // 4))
    place = np.arange(size) + 0.5 + delta
    phase = np.clip(np.minimum(place, size - place) / ramp, 0.0, 1.0)
    return np.asarray(np.sin(0.5 * np.pi * phase), np.float32)


def _newton(
    backend: Backend, cross: Array, shape: tuple[int, int], energy: Floats, start: Floats
) -> Subpixel:
    """Maximise the correlation whose spectrum is ``cross`` from ``start``, deciding in float64."""
    xp = backend.xp
    rows, cols = shape
    ky = 2.0 * np.pi * np.fft.fftfreq(rows)
    kx = 2.0 * np.pi * np.fft.rfftfreq(cols)
    weight = np.full(kx.size, 2.0)
    weight[0] = 1.0
    if cols % 2 == 0:
        weight[-1] = 1.0
    powers_y = np.stack([ky**m for m in range(3)])
    powers_x = np.stack([weight * kx**m for m in range(3)], axis=1)
    delta = start
    valid = energy > FLAT * rows * cols
    scale = np.where(valid, energy, 1.0) * rows * cols
    for step in range(_NEWTON_STEPS + 1):
        left = powers_y * np.exp(1j * delta[:, 0, None, None] * ky)
        right = powers_x * np.exp(1j * delta[:, 1, None, None] * kx[:, None])
        product = xp.matmul(
            xp.matmul(backend.asarray(left, np.complex64), cross),
            backend.asarray(right, np.complex64),
        )
        moment = np.asarray(backend.to_numpy(product), np.complex128) / scale[:, None, None]
        gradient = -np.stack([moment[:, 1, 0].imag, moment[:, 0, 1].imag], axis=1)
        c_yy, c_xx, c_yx = (moment[:, i, j].real for i, j in ((2, 0), (0, 2), (1, 1)))
        determinant = c_yy * c_xx - c_yx**2
        valid &= (c_yy > 0) & (c_xx > 0) & (determinant > 1e-6 * c_yy * c_xx)
        if step == _NEWTON_STEPS:
            break
        safe = np.where(valid, determinant, 1.0)
        move = np.stack(
            [
                (c_xx * gradient[:, 0] - c_yx * gradient[:, 1]) / safe,
                (c_yy * gradient[:, 1] - c_yx * gradient[:, 0]) / safe,
            ],
            axis=1,
        )
        delta = np.where(valid[:, None], delta + np.clip(move, -0.5, 0.5), 0.0)
    valid &= np.abs(delta).max(axis=1, initial=0.0) <= 1.0
    delta = np.where(valid[:, None], delta, 0.0)
    curvature = np.where(valid[:, None], np.stack([c_yy, c_xx], axis=1), 0.0)
    return Subpixel(delta, curvature, np.where(valid, moment[:, 0, 0].real, 0.0), valid)
