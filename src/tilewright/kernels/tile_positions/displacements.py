"""Displacements of overlapping tiles, measured strip by strip."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Array, Backend, Floats, Ints
from tilewright.kernels.device_memory import OomHint, map_with_oom_split
from tilewright.kernels.tile_positions.correlation_peak import strip_ncc
from tilewright.kernels.tile_positions.overlap_strips import StripPlan
from tilewright.kernels.tile_positions.phase_correlation import (
    StripShifts,
    correlate_filtered,
    correlate_strips,
    filter_strips,
    filtered_shape,
)

T = TypeVar("T")


class Strips(Protocol):
    """Strips (n, y, x) of float32: an array, or what is read and written like one."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    def __getitem__(self, part: Any, /) -> Any: ...
    def __setitem__(self, part: Any, value: Any, /) -> None: ...


#: Makes strips of a shape, their values undefined.
Allocate = Callable[[tuple[int, ...]], Strips]

#: Widths of the LoG tried; finer structure than 1.5 px the half-resolution strips do not hold.
SIGMAS_PX = (1.5, 2.2, 3.3, 5.0)
#: A wider filter is worth its blur while it raises the score to this part of the best one.
#: Bright sets reach it at 1.5 px (error 0.017 px), 60 electrons at 3.3 px (0.06; 0.10 at 1.5).
_ENOUGH = 0.9
#: Filters wider than 2.2 px and this part of the overlap blur its borders into it: at 5 % of
#: 512 px and 60 electrons 3.3 px errs by 0.25 px across overlaps of 22 px, 2.2 px by 0.18.
_WIDEST = 0.1
_PROBES = 8
#: Hot pixels are looked for in 3 to this power of strips at most.
_REPAIR_POWER = 4
#: Smoother than cells, finer than vignetting; no figure.
SMOOTH_PX = 15.0
#: Pairs per batch: a CPU core keeps 8 in its cache, a GPU wants many.
_CPU_BATCH, _GPU_BATCH = 8, 128
OOM_HINT = OomHint("tile_positions", "the strips of one pair of tiles")
#: The climb to the peak may leave the search window by so much.
_BEYOND_PX = 2.0
#: Least NCC of the overlaps that choose the filter's width.
_LEAST_SCORE = 0.05


@dataclass(frozen=True)
class Overlaps:
    """Measured edges, of all directions together."""

    pairs: Ints
    """int64 (m, 2)."""
    displacement_px: Floats
    """float64 (m, 2): ``position(b) - position(a)``, (y, x)."""
    sigma_px: Floats
    """float64 (m, 2): standard error that correlation claims; right up to a common factor."""
    score: Floats
    """float64 (m,): NCC of the filtered strips."""
    false_match_probability: Floats
    """float64 (m,): probability that strips without a common signal show such a score, 1 where the
    peak lies outside the search window.
    """


def in_memory(shape: tuple[int, ...]) -> Strips:
    """Return strips in memory.

    >>> in_memory((2, 8, 8)).shape
    (2, 8, 8)
    """
    return np.empty(shape, np.float32)


def select_strips(strips: Strips, selection: Ints) -> NDArray[np.float32]:
    """Return the strips of these numbers."""
    return np.stack([strips[int(i)] for i in selection])


def batches(count: int, size: int = _CPU_BATCH) -> list[slice]:
    """Return slices of at most ``size`` that make up ``count``."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def repair_pixels(backend: Backend, strips: Strips) -> int:
    """Replace in place the hot and dead pixels that strips (n, y, x) of one camera area share.

    They stay with the camera and would correlate by themselves. Remedians of base 3 (Rousseeuw
    & Bassett, JASA 1990) of three sets of strips find them in 0.01 s, where the median of 100
    strips takes 0.6 s: single pixels that stand 6 robust deviations out of their four
    neighbours in all three sets. Their neighbours replace them in every strip. Subtracting
    the median instead would leave its noise and leftover specimen in empty strips, with false
    peaks of 0.2 to 0.9 instead of below 0.1. Of fewer than 9 strips each one must show the
    pixel; a single strip is left alone.

    Returns
    -------
    int
        Number of pixels replaced.

    Examples
    --------
    >>> strips = np.random.default_rng(0).normal(100, 2, (12, 20, 30)).astype(np.float32)
    >>> strips[:, 5, 7] += 80
    >>> repair_pixels(cpu, strips)
    1
    """
    count, height, width = strips.shape
    if count < 2:
        return 0
    y, x = _hot_pixels(backend, strips)
    if not len(y):
        return 0
    above, left = np.abs(y - 1), np.abs(x - 1)
    below, right = height - 1 - np.abs(height - 2 - y), width - 1 - np.abs(width - 2 - x)
    places = ((above, x), (below, x), (y, left), (y, right))
    for part in batches(count):
        some = strips[part]
        around = [backend.asarray(some[:, row, col]) for row, col in places]
        some[:, y, x] = backend.to_numpy(_middle_two(backend, *around))
        strips[part] = some
    return len(y)


def _hot_pixels(backend: Backend, strips: Strips) -> tuple[Ints, Ints]:
    """Return rows and columns of the pixels that stand out of all strips of one camera area."""
    xp, count = backend.xp, strips.shape[0]
    most = min(int(np.log(count + 0.5) / np.log(3.0)), _REPAIR_POWER)
    power = 3**most if count >= 9 else count
    selection = np.linspace(0, count - 1, power).round().astype(np.int64)
    level = [backend.asarray(strips[int(i)]) for i in selection]
    while count >= 9 and len(level) > 3:
        third = len(level) // 3
        level = [
            xp.maximum(xp.minimum(a, b), xp.minimum(xp.maximum(a, b), c))
            for a, b, c in zip(
                level[:third], level[third : 2 * third], level[2 * third :], strict=True
            )
        ]
    signs = 0
    for middle in level:
        around = [xp.roll(middle, step, axis) for axis in (0, 1) for step in (-1, 1)]
        stands = middle - _middle_two(backend, *around)
        limit = 6.0 * 1.4826 * xp.median(xp.abs(stands))
        signs = signs + xp.sign(stands) * (xp.abs(stands) > limit)
    y, x = np.nonzero(np.abs(np.asarray(backend.to_numpy(signs))) > len(level) - 0.5)
    return y, x


def _middle_two(backend: Backend, a: Array, b: Array, c: Array, d: Array) -> Array:
    """Return the mean of the two middle ones of four arrays: one hot neighbour is ignored."""
    xp = backend.xp
    low = xp.minimum(xp.minimum(a, b), xp.minimum(c, d))
    high = xp.maximum(xp.maximum(a, b), xp.maximum(c, d))
    return 0.5 * (a + b + c + d - low - high)


def flatten(backend: Backend, strips: Strips) -> None:
    """Divide strips (n, y, x) in place by their smoothed mean, a flat-field for want of one.

    Fewer than 9 strips are left alone: their mean would be specimen.

    >>> strips = np.tile(np.linspace(1, 2, 200, dtype=np.float32), (9, 8, 1))
    >>> flatten(cpu, strips)
    >>> round(float(strips[0, 0, 150] / strips[0, 0, 50]), 2)
    1.0
    """
    count = strips.shape[0]
    if count < 9:
        return
    mean = np.zeros(strips.shape[1:], np.float32)
    for i in range(count):
        mean += strips[i]
    mean /= np.float32(count)
    gain = backend.ndimage.gaussian_filter(backend.asarray(mean), SMOOTH_PX, mode="nearest")
    gain = np.asarray(backend.to_numpy(gain), np.float32)
    if gain.min() > 0:
        even = gain.mean() / gain
        for part in batches(count):
            strips[part] = strips[part] * even


def choose_sigma(
    backend: Backend, plans: list[StripPlan], firsts: Sequence[Strips], seconds: Sequence[Strips]
) -> float:
    """Choose the width of the LoG, px, from the most textured overlaps.

    They are matched once with a wide filter; the NCC at that shift then grows with sigma while
    noise matters, and the smallest sigma whose median is 0.9 of the best is taken, but for one too
    wide for the overlaps. Where nothing matches, 2.2 px.

    >>> from tilewright.kernels.tile_positions.overlap_strips import plan_strips
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(128, 228)), 2)
    >>> plans = plan_strips(np.array([[0.0, 0.0], [0.0, 100.0]]), (128, 128))
    >>> (_, a), (_, b), (_, width) = plans[0].origin_a, plans[0].origin_b, plans[0].shape
    >>> firsts, seconds = ([scene[None, :, x : x + width]] for x in (a, 100 + b))
    >>> choose_sigma(cpu, plans, firsts, seconds)
    1.5
    """
    scores: dict[float, list[float]] = {}
    for plan, a, b in zip(plans, firsts, seconds, strict=True):
        spread = np.minimum(*(_spread(strips) for strips in (a, b)))
        selection = np.sort(np.argsort(-np.round(spread, 1), kind="stable")[:_PROBES])
        part = [backend.asarray(select_strips(strips, selection)) for strips in (a, b)]
        guess = correlate_strips(
            backend, part[0], part[1], plan.expected_px[selection], plan.max_shift_px, 2.2
        )
        matched = np.flatnonzero(guess.score > np.maximum(1.5 * guess.second, _LEAST_SCORE))
        shift = np.rint(guess.shift_px / 2.0).astype(np.int64)
        requests = [(int(i), (int(shift[i, 0]), int(shift[i, 1]))) for i in matched]
        if requests:
            with backend.fft_threads():
                for width in SIGMAS_PX:
                    small = [filter_strips(backend, strips, width) for strips in part]
                    scores.setdefault(width, []).extend(
                        strip_ncc(backend, small[0], small[1], requests)
                    )
    if not scores:
        return SIGMAS_PX[1]
    medians = np.array([np.median(scores[width]) for width in SIGMAS_PX])
    best = int(np.argmax(np.round(medians, 3) >= _ENOUGH * medians.max()))
    shared = min(np.median((plan.shape - np.abs(plan.expected_px)).min(axis=1)) for plan in plans)
    widest = np.searchsorted(SIGMAS_PX, max(SIGMAS_PX[1], _WIDEST * shared), side="right") - 1
    return SIGMAS_PX[min(best, int(widest))]


def _spread(strips: Strips) -> Floats:
    """Return the standard deviation (n,) of strips."""
    parts = [strips[part][:, ::4, ::4].std(axis=(1, 2)) for part in batches(strips.shape[0])]
    return np.concatenate(parts)


def measure_overlaps(
    backend: Backend,
    plans: list[StripPlan],
    firsts: Sequence[Strips],
    seconds: Sequence[Strips],
    sigma_px: float,
    progress: Callable[[int], object] = int,
    allocate: Allocate = in_memory,
) -> Overlaps:
    """Correlate all strips in batches, with the probability of a false match.

    Parameters
    ----------
    backend : Backend
        Its ``workers`` CPU threads share the batches.
    firsts, seconds : sequence of Strips, each (m, y, x)
        Strips of tiles a and b of every plan, hot pixels repaired.
    progress : callable
        Called with the number of edges of each batch that is done.
    allocate : callable
        Makes the place of filtered strips, a fourth of the others.

    Examples
    --------
    >>> from tilewright.kernels.tile_positions.overlap_strips import plan_strips
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(128, 228)), 2)
    >>> plans = plan_strips(np.array([[0.0, 0.0], [0.0, 100.0]]), (128, 128))
    >>> (_, a), (_, b), (_, width) = plans[0].origin_a, plans[0].origin_b, plans[0].shape
    >>> firsts, seconds = ([scene[None, :, x : x + width]] for x in (a, 100 + b))
    >>> overlaps = measure_overlaps(cpu, plans, firsts, seconds, 1.5)
    >>> np.allclose(overlaps.displacement_px, [[0.0, 100.0]], atol=0.1)
    True
    """
    results: list[StripShifts] = []
    with ThreadPoolExecutor(max(1, backend.workers)) as pool:
        correlator = _Correlator(backend, pool, sigma_px, allocate)
        jobs = []
        for plan, first, second in zip(plans, firsts, seconds, strict=True):
            a, b = correlator.filter(first), correlator.filter(second)
            jobs.append(correlator.correlate(plan, a, b))
        for parts in chain.from_iterable(jobs):
            results.extend(parts)
            progress(sum(len(part.score) for part in parts))
    return _overlaps(plans, results, sigma_px)


class _Correlator:
    """Filters and correlates strips batch by batch in the threads of a pool."""

    def __init__(
        self, backend: Backend, pool: ThreadPoolExecutor, sigma_px: float, allocate: Allocate
    ) -> None:
        self._backend, self._pool = replace(backend, workers=1), pool
        self._sigma_px, self._allocate = sigma_px, allocate
        self._size = _CPU_BATCH if backend.device == "cpu" else _GPU_BATCH

    def _in_batches(self, work: Callable[[slice], T], count: int) -> Iterator[list[T]]:
        return self._pool.map(
            lambda part: map_with_oom_split(self._backend, work, part, halves, OOM_HINT),
            batches(count, self._size),
        )

    def filter(self, strips: Strips) -> Strips:
        """Return filtered strips."""
        count, *whole = strips.shape
        small = self._allocate((count, *filtered_shape((whole[0], whole[1]), self._sigma_px)))

        def work(part: slice) -> None:
            pixels = filter_strips(self._backend, strips[part], self._sigma_px)
            small[part] = self._backend.to_numpy(pixels)

        for _ in self._in_batches(work, count):
            pass
        return small

    def correlate(self, plan: StripPlan, a: Strips, b: Strips) -> Iterator[list[StripShifts]]:
        """Start to correlate filtered strips; yields the shifts of each batch."""

        def work(part: slice) -> StripShifts:
            expected, reach, sigma_px = plan.expected_px[part], plan.max_shift_px, self._sigma_px
            shifts = correlate_filtered(self._backend, a[part], b[part], expected, reach, sigma_px)
            return shifts._replace(shift_px=plan.displacement(shifts.shift_px))

        return self._in_batches(work, a.shape[0])


def halves(part: slice) -> list[slice]:
    """Return the halves of a batch; none of a single pair."""
    cut = part.start + (part.stop - part.start) // 2
    return [slice(part.start, cut), slice(cut, part.stop)] if cut > part.start else []


def _overlaps(plans: list[StripPlan], results: list[StripShifts], filter_px: float) -> Overlaps:
    """Join the batches; a shift outside the window is a false match."""
    pairs = np.concatenate([np.zeros((0, 2), np.int64), *(plan.pairs for plan in plans)])
    if not results:
        return Overlaps(pairs, np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0), np.zeros(0))
    displacement, score, _, curvature, pixels, probability = (
        np.concatenate(parts) for parts in zip(*results, strict=True)
    )
    nominal = np.concatenate([plan.displacement(plan.expected_px) for plan in plans])
    reach = np.concatenate([np.full(len(plan.pairs), plan.max_shift_px) for plan in plans])
    inside = np.abs(displacement - nominal).max(axis=1) <= reach + _BEYOND_PX
    usable = inside & (curvature > 0).all(axis=1)
    # Across a narrow strip its taper bends the correlation too, and shows no specimen.
    across = np.concatenate([np.full(len(p.pairs), p.shape[1] < p.shape[0], int) for p in plans])
    bend, each = curvature.copy(), np.arange(len(across))
    bend[each, across] = curvature.min(axis=1)
    rho = np.clip(score, 1e-3, 0.999)[:, None]
    # LoG-filtered white noise has one independent value per 2.36 sigma² pixels.
    independent = pixels[:, None] / (2.36 * filter_px**2)
    information = np.maximum(bend, 1e-9) / rho * independent * rho**2 / (1.0 - rho**2)
    variance = 1.0 / np.maximum(information, 1e-9)
    return Overlaps(
        pairs, displacement, np.sqrt(variance), score, np.where(usable, probability, 1.0)
    )
