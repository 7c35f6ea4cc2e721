"""Planes of a z-stack that are displaced or out of order, from pairs of neighbours.

Noise of different planes is independent, so products of two planes show what they share. Light
that goes out of focus changes from plane to plane, a little between neighbours and more over two
steps; planes for which it is the other way round are out of order.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np

from tilewright.kernels.backend import Array, Backend, Floats, cells
from tilewright.kernels.edf.focus import noise_share
from tilewright.kernels.noise import NoiseModel

#: Band in which planes are compared: coarse enough for planes out of focus.
BAND_PX = (1.5, 6.0)
#: Shifts looked for in y and x.
SEARCH_PX = 8
#: Two planes are out of order if they are this many times farther (squared) from the planes around
#: them than in each other's place. In order 0.25 to 1, exchanged 2 to 4.
WRONG_ORDER = 1.3
#: A shift against both neighbours from which on a plane is displaced.
DISPLACED_PX = 1.5
#: How well three shifts among three planes must agree.
_AGREE_PX = 0.75
#: Side of the blocks in which the sharpest plane is looked for.
FOCUS_BLOCK_PX = 32
#: What is so many times as bright as all but 2 % of a sample is debris, which reaches so far.
_DEBRIS_TIMES, _DEBRIS_PERCENTILE, _DEBRIS_PX = 10.0, 98.0, 24
#: So many times the energy of the median sample count of each.
_MOST_ENERGY = 4.0
#: Standard errors that count as certain.
_SURE = 6.0


class PlanePairs(NamedTuple):
    """Sums over samples of a stack of n planes; :func:`add_pairs` adds samples."""

    correlation: Floats
    """float64 (2, n, 2 s + 1, 2 s + 1): band-passed plane z against plane z + 1 and z + 2, shifted
    by up to s px.
    """
    together: Floats
    """float64 (n, n): products of the band-passed planes, unshifted."""
    power: Floats
    noise: Floats
    """float64 (n,): energy of the band, and the part of it that is noise."""
    sharpest: Floats
    """float64 (n,): number of blocks whose band has the greatest energy in plane z."""
    independent: float
    """Number of independent values behind ``power``."""

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
    """Return the sums of one sample (z, y, x); pixels that are not finite count as 0.

    >>> stack = np.random.default_rng(0).normal(100, 5, (3, 64, 64))
    >>> compare_planes(cpu, stack, NoiseModel(0.0, 5.0), 100.0).correlation.shape
    (2, 3, 17, 17)
    """
    xp, ndimage = backend.xp, backend.ndimage
    count, height, width = stack.shape
    window = backend.asarray(np.outer(np.hanning(height + 2)[1:-1], np.hanning(width + 2)[1:-1]))
    window *= _far_from_debris(backend, stack, pedestal_counts)
    share = noise_share(*BAND_PX)
    bands, spectra, energies = [], [], []
    together, grain = np.zeros((count, count)), np.zeros(count)
    block = min(FOCUS_BLOCK_PX, height, width)
    for z in range(count):
        plane = xp.nan_to_num(backend.asarray(stack[z]), nan=0, posinf=0, neginf=0)
        narrow, wide = (
            ndimage.gaussian_filter(plane, sigma, mode="reflect", truncate=3.0) for sigma in BAND_PX
        )
        band = narrow - wide
        mean = float(plane.mean(dtype=np.float64))
        grain[z] = share * float(noise.variance(max(mean - pedestal_counts, 0)))
        means = cells(band * band, block).mean(axis=(1, 3), dtype=np.float64)
        energies.append(backend.to_numpy(means).ravel() - grain[z])
        band *= window
        bands.append(band)
        for n, other in enumerate(bands):
            together[n, z] = together[z, n] = float((other * band).sum(dtype=np.float64))
        with backend.fft_threads():
            spectra.append(backend.fft.rfft2(band))
    side = 2 * SEARCH_PX + 1
    correlation = np.zeros((2, count, side, side))
    for lag in (1, 2):
        for z in range(count - lag):
            correlation[lag - 1, z] = _near_zero(
                backend, spectra[z] * spectra[z + lag].conj(), (height, width)
            )
    # A Hann window halves the pixels twice over; a Gaussian of s px joins 4 pi s squared.
    independent = 0.26 * height * width / (4 * np.pi * BAND_PX[0] ** 2)
    error = grain * np.sqrt(4 * np.pi) * BAND_PX[0] / FOCUS_BLOCK_PX
    sharpest = _sharpest(np.array(energies), error)
    noises = grain * float((window * window).sum(dtype=np.float64))
    power = np.diag(together).copy()
    return PlanePairs(correlation, together, power, noises, sharpest, independent)


def _far_from_debris(backend: Backend, stack: Array, pedestal_counts: float) -> Array:
    """Return where (y, x) no plane of a stack (z, y, x) shows bright debris nearby."""
    # Clipped debris has hundreds of times the energy of tissue, and as much of it on either side
    # of focus: a single piece made 32 of 36 good stacks of five planes lose planes, now 2.
    xp = backend.xp
    peak, usual = xp.zeros(stack.shape[1:], np.float32), []
    for pixels in stack:
        plane = xp.nan_to_num(backend.asarray(pixels), nan=0, posinf=0, neginf=0)
        peak = xp.maximum(peak, plane)
        usual.append(float(xp.percentile(plane, _DEBRIS_PERCENTILE)))
    # Of the darker quarter of the planes: a blank one shows no tissue.
    lower = float(np.percentile(usual, 25))
    level = pedestal_counts + _DEBRIS_TIMES * (lower - pedestal_counts)
    return backend.ndimage.maximum_filter(peak, size=2 * _DEBRIS_PX + 1) <= level


def add_pairs(pairs: list[PlanePairs]) -> PlanePairs:
    """Return the sum of samples, none with more energy than ``_MOST_ENERGY`` times the usual.

    The halo of debris at a sample's border has hundreds of times the energy of tissue.

    >>> stack = np.random.default_rng(0).normal(100, 5, (3, 64, 64))
    >>> pairs = compare_planes(cpu, stack, NoiseModel(0.0, 1.0), 100.0)
    >>> add_pairs([pairs, pairs]).independent / pairs.independent
    2.0
    """
    noise = np.array([pair.noise.sum() for pair in pairs])
    energies = np.array([pair.power.sum() for pair in pairs]) - noise
    # Without glass, of which the median is not that of tissue.
    signal = energies > noise
    most = _MOST_ENERGY * float(np.median(energies[signal])) if signal.any() else np.inf
    shares = np.minimum(most / np.maximum(energies, 1e-12), 1.0)
    return PlanePairs(
        *(
            sum(pair[k] * share for pair, share in zip(pairs, shares, strict=True))
            for k in range(4)
        ),
        *(sum(pair[k] for pair in pairs) for k in (4, 5)),
    )


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


def displaced_planes(pairs: PlanePairs, damaged: set[int]) -> dict[int, str]:
    """Return planes that are displaced, the farthest first, and why; ``damaged`` are left out."""
    bad: dict[int, str] = {}
    while True:
        good = [z for z in range(len(pairs.power)) if z not in damaged and z not in bad]
        shifts = {z: _displacement(pairs, good, i) for i, z in enumerate(good)}
        worst = max(good, key=lambda z: (round(shifts[z], 2), -z), default=-1)
        if worst < 0 or shifts[worst] < DISPLACED_PX:
            break
        bad[worst] = f"displaced by {shifts[worst]:.1f} px against its neighbours"
    return bad


def _distance(pairs: PlanePairs, a: int, b: int) -> tuple[float, float]:
    """Return the squared distance of two planes in the band, without noise, and its error."""
    light = pairs.power - pairs.noise
    noise = pairs.noise[a] + pairs.noise[b]
    signal = max(float(light[a] + light[b] - 2 * pairs.together[a, b]), 0.0)
    # Random error, and 3 % for what the noise model misses.
    error = np.sqrt((noise**2 + 2 * noise * signal) / max(pairs.independent, 1)) + 0.03 * noise
    return signal, float(error)


def exchanged_planes(pairs: PlanePairs, damaged: set[int]) -> dict[int, str]:
    """Return pairs of planes that would lie closer to what is around them the other way round.

    ``damaged`` are left out. Of all exchanges the one that shortens the way through the stack most
    is taken first: a pair far apart also makes neighbours of one of the two seem out of order.
    """
    bad: dict[int, str] = {}
    while True:
        good = [z for z in range(len(pairs.power)) if z not in damaged and z not in bad]
        best = _best_exchange(pairs, good)
        if best is None:
            return bad
        a, b = best
        bad[a], bad[b] = f"out of order with plane {b + 1}", f"out of order with plane {a + 1}"


def _best_exchange(pairs: PlanePairs, good: list[int]) -> tuple[int, int] | None:
    """Return the two planes whose exchange shortens the way through the stack most."""
    # Where focus lies mid-stack, both ends look alike and few planes can be closed to a ring in
    # several places: of exchanges half as good as the best that one counts which leaves the least
    # light of the band in the ends.
    spots = list(combinations(range(len(good)), 2))
    gains = {spot: round(_gain(pairs, good, *spot), 6) for spot in spots}
    light = pairs.power - pairs.noise
    most = max(gains.values(), default=0.0)
    if most <= 0:
        return None

    def worth(spot: tuple[int, int]) -> tuple[float, int, float]:
        order = list(good)
        order[spot[0]], order[spot[1]] = good[spot[1]], good[spot[0]]
        ends = round(float(light[order[0]] + light[order[-1]]) / float(light.sum()), 6)
        return ends, len({0, len(good) - 1} & set(spot)), -gains[spot]

    i, j = min((spot for spot in spots if gains[spot] >= most / 2), key=worth)
    return good[i], good[j]


def _gain(pairs: PlanePairs, good: list[int], i: int, j: int) -> float:
    """Return how much closer two planes lie to their neighbours if exchanged; 0: not certain."""
    light = pairs.power - pairs.noise
    around = [{n for n in (k - 1, k + 1) if 0 <= n < len(good)} for k in (i, j)]
    total, error = np.zeros(2), 0.0
    for here, there, neighbours, end in (
        (i, j, around[0] - around[1] - {j}, i == 0),
        (j, i, around[1] - around[0] - {i}, j == len(good) - 1),
    ):
        parts = [[_distance(pairs, good[k], good[n]) for n in neighbours] for k in (here, there)]
        site = np.array([sum(d for d, _ in part) for part in parts])
        # At an end: a plane in focus between two alike on either side of focus is in order.
        brightest = max(light[good[n]] for n in around[there == j])
        if (neighbours and site[1] >= site[0]) or (end and light[good[there]] > brightest):
            return 0.0
        if not neighbours and not _fits_end(pairs, good, here, there):
            return 0.0
        total += site
        error = float(np.hypot.reduce([error, *(e for part in parts for _, e in part)]))
    if total[0] - WRONG_ORDER * total[1] <= _SURE * error:
        return 0.0
    return float((total[0] - total[1]) / max(light.sum(), 1e-12))


def _fits_end(pairs: PlanePairs, good: list[int], end: int, moved: int) -> bool:
    """Return whether a plane one or two from an end is nearer to it than to its other side."""
    # Else a foreign plane would change places with the end, where it has one neighbour only.
    step = 1 if moved > end else -1
    inward = end if moved == end + step else end + step
    outward = moved + step
    if not 0 <= outward < len(good):
        return False
    light = np.maximum(pairs.power - pairs.noise, 1e-12)
    z, other = good[moved], np.array([good[inward], good[outward]])
    # As correlations: a dim plane far from focus is near to anything.
    near, far = 1 - pairs.together[z, other] / np.sqrt(light[z] * light[other])
    return bool(near * WRONG_ORDER < far)


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
    """Return how far a plane is displaced against the two next to it, px; 0: unknown."""
    # Planes that drift by the same step are in place; two planes at an end must agree.
    if len(good) < 4:
        return 0.0
    if 0 < i < len(good) - 1:
        a, z, b = good[i - 1 : i + 2]
        away = ((a, z), (z, b), (a, b))
    elif good[i] in (0, len(pairs.power) - 1):
        z, b, a = good[:3] if i == 0 else good[:-4:-1]
        away = ((b, z), (b, a), (a, z))
    else:
        return 0.0
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
