"""What neighbouring planes of a z-stack say about each other: displaced, out of order, repeated.

Noise of different planes is independent, so products of two planes show what they share. Light
that goes out of focus changes from plane to plane, a little between neighbours and more over two
steps; planes for which it is the other way round are out of order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tilewright.kernels.backend import Array, Backend, Floats, cells
from tilewright.kernels.focus import noise_share
from tilewright.kernels.noise import NOISE_KERNEL, NoiseModel

#: Band in which planes are compared: coarse enough for planes out of focus.
BAND_PX = (1.5, 6.0)
#: Shifts looked for in y and x.
SEARCH_PX = 8
#: Neighbours are out of order if they are this many times farther (squared) from the planes around
#: them than the other way round. In order 0.25 to 1, swapped 2 to 4.
WRONG_ORDER = 1.3
#: A shift against both neighbours from which on a plane is displaced.
DISPLACED_PX = 1.5
#: How well three shifts among three planes must agree.
_AGREE_PX = 0.75
#: Noise shared with the next plane beyond what other pairs share: 0 for independent planes, 0.5
#: for a copy whose new noise equals the old.
SHARED_NOISE = 0.2
#: Side of the blocks in which the sharpest plane is looked for.
FOCUS_BLOCK_PX = 32
#: Standard errors that count as certain.
_SURE = 6.0


class PlanePairs(NamedTuple):
    """Sums over samples of a stack of n planes; :func:`add_pairs` adds two.

    Attributes
    ----------
    correlation : float64 (2, n, 2 s + 1, 2 s + 1)
        Band-passed plane z against plane z + 1 and z + 2, shifted by up to s px.
    power, noise : float64 (n,)
        Energy of the band, and the part of it that is noise.
    shared, rough : float64 (2, n) and (n,)
        Products of the noise residuals of plane z and z + 1, z + 2; their squares.
    sharpest : float64 (n,)
        Number of blocks whose band has the greatest energy in plane z.
    independent : float
        Number of independent values behind ``power``.
    """

    correlation: Floats
    power: Floats
    noise: Floats
    shared: Floats
    rough: Floats
    sharpest: Floats
    independent: float

    @property
    def ends(self) -> tuple[float, float]:
        """Share of what is in focus anywhere that is sharpest in the first and last plane."""
        total = float(self.sharpest.sum())
        if total <= 0:
            return 0.0, 0.0
        first, last = (float(self.sharpest[z]) / total for z in (0, -1))
        return round(first, 3), round(last, 3)


def compare_planes(
    backend: Backend, stack: Array, noise: NoiseModel, pedestal_counts: float
) -> PlanePairs:
    """Return the sums of one sample (z, y, x); pixels that are not finite count as 0."""
    xp, ndimage = backend.xp, backend.ndimage
    count, height, width = stack.shape
    window = backend.asarray(np.outer(np.hanning(height + 2)[1:-1], np.hanning(width + 2)[1:-1]))
    share = noise_share(*BAND_PX)
    spectra, residuals, energies = [], [], []
    power, noises, light = np.zeros(count), np.zeros(count), 0.0
    block = min(FOCUS_BLOCK_PX, height, width)
    for z in range(count):
        plane = xp.nan_to_num(backend.asarray(stack[z]), nan=0, posinf=0, neginf=0)
        narrow, wide = (
            ndimage.gaussian_filter(plane, sigma, mode="reflect", truncate=3.0) for sigma in BAND_PX
        )
        band = narrow - wide
        variance = float(
            noise.variance(max(float(plane.mean(dtype=np.float64)) - pedestal_counts, 0))
        )
        means = cells(band * band, block).mean(axis=(1, 3), dtype=np.float64)
        energies.append(backend.to_numpy(means).ravel() - share * variance)
        band *= window
        power[z] = float((band * band).sum(dtype=np.float64))
        noises[z] = share * variance * float((window * window).sum(dtype=np.float64))
        with backend.fft_threads():
            spectra.append(backend.fft.rfft2(band))
        residuals.append(ndimage.convolve(plane, backend.asarray(NOISE_KERNEL), mode="reflect"))
        light = light + wide
    slope = sum(xp.abs(ndimage.sobel(light, axis=axis)) for axis in (0, 1))
    flat = slope <= xp.percentile(slope, 30)
    side = 2 * SEARCH_PX + 1
    correlation, shared = np.zeros((2, count, side, side)), np.zeros((2, count))
    for lag in (1, 2):
        for z in range(count - lag):
            correlation[lag - 1, z] = _near_zero(
                backend, spectra[z] * spectra[z + lag].conj(), (height, width)
            )
            product = residuals[z] * residuals[z + lag]
            shared[lag - 1, z] = float((product * flat).sum(dtype=np.float64))
    rough = np.array([float((r * r * flat).sum(dtype=np.float64)) for r in residuals])
    # A Hann window halves the pixels twice over; a Gaussian of s px joins 4 pi s squared.
    independent = 0.26 * height * width / (4 * np.pi * BAND_PX[0] ** 2)
    error = share * np.sqrt(4 * np.pi) * BAND_PX[0] / FOCUS_BLOCK_PX
    sharpest = _sharpest(np.array(energies), error * noises / max(share, 1e-12) / height / width)
    return PlanePairs(correlation, power, noises, shared, rough, sharpest, independent)


def add_pairs(pairs: list[PlanePairs]) -> PlanePairs:
    """Return the sum of samples."""
    return PlanePairs(*(sum(values) for values in zip(*pairs, strict=True)))


def _near_zero(backend: Backend, spectrum: Array, shape: tuple[int, int]) -> Floats:
    """Return the correlation at shifts of up to ``SEARCH_PX``, zero in the middle."""
    with backend.fft_threads():
        whole = backend.fft.irfft2(spectrum, s=shape)
    whole = backend.xp.roll(whole, (SEARCH_PX, SEARCH_PX), (0, 1))
    side = 2 * SEARCH_PX + 1
    near: Floats = np.zeros((side, side))
    part = backend.to_numpy(whole[:side, :side]).astype(np.float64)
    near[: part.shape[0], : part.shape[1]] = part
    return near


def _sharpest(energies: Floats, error: Floats) -> Floats:
    """Return for each plane the number of blocks that are surely sharpest there."""
    best = energies.argmax(axis=0)
    peak = energies.max(axis=0)
    sure = peak - energies.min(axis=0) > 2 * _SURE * error[best]
    return np.bincount(best[sure], minlength=len(energies)).astype(np.float64)


def judge_order(pairs: PlanePairs, found: set[int]) -> dict[int, str]:
    """Return planes that are copies, displaced or out of order, and why; ``found`` are left out.

    Copies first, then displaced planes, the farthest first, then neighbours in wrong order.
    """
    bad = {z: text for z, text in _copies(pairs).items() if z not in found}
    while True:
        good = [z for z in range(len(pairs.power)) if z not in found and z not in bad]
        shifts = {z: _displacement(pairs, good, i) for i, z in enumerate(good)}
        worst = max(good, key=lambda z: (round(shifts[z], 2), -z), default=-1)
        if worst < 0 or shifts[worst] < DISPLACED_PX:
            break
        bad[worst] = f"displaced by {shifts[worst]:.1f} px against its neighbours"
    return bad | _swapped(pairs, good)


def _distance(pairs: PlanePairs, a: int, b: int) -> tuple[float, float]:
    """Return the squared distance of two planes in the band, without noise, and its error."""
    a, b = min(a, b), max(a, b)
    light = pairs.power - pairs.noise
    together = pairs.correlation[b - a - 1, a, SEARCH_PX, SEARCH_PX]
    noise = pairs.noise[a] + pairs.noise[b]
    signal = max(light[a] + light[b] - 2 * together, 0.0)
    # Random error, and 3 % for what the noise model misses.
    error = np.sqrt((noise**2 + 2 * noise * signal) / max(pairs.independent, 1)) + 0.03 * noise
    return signal, float(error)


def _swapped(pairs: PlanePairs, good: list[int]) -> dict[int, str]:
    """Return neighbours that would lie closer to what is around them the other way round."""
    found: list[tuple[float, int, int]] = []
    for a, b in pairwise(good):
        if b - a > 1:
            continue
        here, there = [], []
        for outer, near, far in ((a - 1, a, b), (b + 1, b, a)):
            if outer in good:
                here.append(_distance(pairs, outer, near))
                there.append(_distance(pairs, outer, far))
        # At an end: a plane in focus between two alike on either side of focus is in order.
        inner = b if len(here) == 1 and b + 1 in good else a
        beside = [n for n in (inner - 1, inner + 1) if n in good]
        light = pairs.power - pairs.noise
        if not here or (len(here) == 1 and light[inner] > max(light[n] for n in beside)):
            continue
        (one, two), error = (
            (sum(d for d, _ in part) for part in (here, there)),
            float(np.hypot.reduce([e for _, e in (*here, *there)])),
        )
        if one - WRONG_ORDER * two > _SURE * error:
            found.append((-round(one / max(two, error), 3), a, b))
    bad: dict[int, str] = {}
    for _, a, b in sorted(found):
        if a not in bad and b not in bad:
            bad[a], bad[b] = f"out of order with plane {b + 1}", f"out of order with plane {a + 1}"
    return bad


def _peak(pairs: PlanePairs, a: int, b: int) -> Floats:
    """Return the shift (y, x) in px between planes a and b; the other way round it is negative."""
    window = pairs.correlation[abs(b - a) - 1, min(a, b)]
    top = np.round(window / max(float(window.max()), 1e-12), 6)
    peak = np.unravel_index(int(np.argmax(top)), top.shape)
    shift = np.array(peak, np.float64) - SEARCH_PX
    for axis, at in enumerate(peak):
        line = top[:, peak[1]] if axis == 0 else top[peak[0]]
        if 0 < at < len(line) - 1:
            bend = float(line[at - 1] - 2 * line[at] + line[at + 1])
            shift[axis] += 0.5 * float(line[at - 1] - line[at + 1]) / bend if bend < 0 else 0.0
    return shift if a < b else -shift


def _displacement(pairs: PlanePairs, good: list[int], i: int) -> float:
    """Return how far a plane lies beside the two next to it, px; 0 where they cannot tell.

    Planes that drift by the same step are in place; two planes at an end must agree.
    """
    if len(good) < 4:
        return 0.0
    if 0 < i < len(good) - 1:
        a, z, b = good[i - 1 : i + 2]
        away = ((a, z), (z, b), (a, b))
    else:
        z, b, a = good[:3] if i == 0 else good[:-4:-1]
        away = ((b, z), (b, a), (a, z))
    if max(a, b, z) - min(a, b, z) > 2 or not all(_clear(pairs, *pair) for pair in away):
        return 0.0
    one, two, past = (_peak(pairs, *pair) for pair in away)
    if 0 < i < len(good) - 1:
        agree, shift = np.hypot(*(one + two - past)), np.hypot(*(one - two)) / 2
        return float(shift) if agree < _AGREE_PX and np.hypot(*past) < shift else 0.0
    # one: b to z, two: b to a, past: a to z.
    agree, shift = np.hypot(*(one - two - past)), np.hypot(*(one + two))
    return float(shift) if agree < _AGREE_PX and np.hypot(*two) < shift / 3 else 0.0


def _clear(pairs: PlanePairs, a: int, b: int) -> bool:
    """Return whether the correlation of two planes stands far above its noise."""
    noise = float(np.sqrt(pairs.power[a] * pairs.power[b] / max(pairs.independent, 1)))
    return float(pairs.correlation[abs(b - a) - 1, min(a, b)].max()) > _SURE * noise


def _copies(pairs: PlanePairs) -> dict[int, str]:
    """Return planes whose noise is partly that of the plane before."""
    count = len(pairs.rough)
    likeness = np.zeros((2, count))
    for lag in (1, 2):
        root = np.sqrt(pairs.rough[: count - lag] * pairs.rough[lag:])
        part = pairs.shared[lag - 1, : count - lag]
        likeness[lag - 1, : count - lag] = part / np.maximum(root, 1e-12)
    bad = {}
    for z in range(count - 1):
        others = [likeness[0, n] for n in (z - 1, z + 1) if 0 <= n < count - 1]
        others += [likeness[1, n] for n in (z - 1, z) if 0 <= n < count - 2]
        excess = float(likeness[0, z]) - max(0.0, *map(float, others)) if others else 0.0
        if round(excess, 3) > SHARED_NOISE:
            share = f"{likeness[0, z]:.0%} of its noise is shared"
            bad[z + 1] = f"a noisy copy of plane {z + 1}: {share}"
    return bad
