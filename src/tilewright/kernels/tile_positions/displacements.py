"""Displacements of overlapping tiles, measured strip by strip."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import Backend, Floats, Ints
from tilewright.kernels.tile_positions.correlation_peak import strip_ncc
from tilewright.kernels.tile_positions.overlap_strips import StripPlan
from tilewright.kernels.tile_positions.phase_correlation import (
    StripShifts,
    correlate_filtered,
    correlate_strips,
    filter_strips,
    filtered_shape,
)


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
#: Width over which the flat-field of strips is smoothed: more than cells, less than vignetting.
#: With 15 px four of 510 overlaps of repeated structure matched by chance, with 40 px edges err
#: 1.3 times as much.
SMOOTH_PX = 20.0
#: Squared error of a displacement by the flat-field that strips give of themselves, times their
#: pixels: cells are counted. 2 x 2 tiles of 1024 px err by 0.012 px, 5 x 5 of 128 px by 0.02.
_FLAT_PX2 = 30.0
#: Percentile of strips that is taken for no light.
_DARKEST = 1.0
#: Pairs per batch: a core keeps so many in its cache.
_BATCH = 8
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


def batches(count: int, size: int = _BATCH) -> list[slice]:
    """Return slices of at most ``size`` that make up ``count``."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def flatten(backend: Backend, strips: Strips) -> None:
    """Take the darkest counts off strips (n, y, x) and divide by a flat-field of their own.

    That is the mean of all strips, each over its own mean: bright tissue in one of them weighs no
    more than bare glass in another. A single strip is left alone: it is its own mean.

    >>> strips = np.tile(np.linspace(1, 2, 200, dtype=np.float32), (9, 8, 1))
    >>> flatten(cpu, strips)
    >>> round(float(strips[0, 0, 150] / strips[0, 0, 50]), 1)
    1.0
    """
    count = strips.shape[0]
    if count < 2:
        return
    low = [np.percentile(strips[part][:, ::4, ::4], _DARKEST) for part in batches(count)]
    dark = np.float32(min(low))
    mean = np.zeros(strips.shape[1:], np.float32)
    for i in range(count):
        light = strips[i] - dark
        mean += light / max(float(light.mean(dtype=np.float64)), 1e-6)
    # Beyond the border as steep as before it, or vignetting would end in a plateau: with that
    # edges of tiles of 128 px were 0.06 px off, for 0.02.
    reach = math.ceil(3 * SMOOTH_PX)
    wide = np.pad(mean, reach, mode="reflect", reflect_type="odd")
    smooth = backend.ndimage.gaussian_filter(backend.asarray(wide), SMOOTH_PX, mode="nearest")
    flat = np.asarray(backend.to_numpy(smooth), np.float32)[reach:-reach, reach:-reach]
    if flat.min() > 0:
        even = flat.mean() / flat
        for part in batches(count):
            strips[part] = (strips[part] - dark) * even


def choose_sigma(
    backend: Backend,
    plans: Sequence[StripPlan],
    firsts: Sequence[Strips],
    seconds: Sequence[Strips],
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
    plans: Sequence[StripPlan],
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
        jobs = []
        for plan, *both in zip(plans, firsts, seconds, strict=True):
            a, b = (_filtered(backend, pool, strips, sigma_px, allocate) for strips in both)
            work = partial(_correlate, replace(backend, workers=1), plan, a, b, sigma_px)
            jobs.append(pool.map(work, batches(len(plan.pairs))))
        for part in chain.from_iterable(jobs):
            results.append(part)
            progress(len(part.score))
    return _overlaps(plans, results, sigma_px)


def _filtered(
    backend: Backend, pool: ThreadPoolExecutor, strips: Strips, sigma_px: float, allocate: Allocate
) -> Strips:
    """Return filtered strips."""
    count, *whole = strips.shape
    small = allocate((count, *filtered_shape((whole[0], whole[1]), sigma_px)))

    def work(part: slice) -> None:
        small[part] = backend.to_numpy(filter_strips(backend, strips[part], sigma_px))

    for _ in pool.map(work, batches(count)):
        pass
    return small


def _correlate(
    backend: Backend, plan: StripPlan, a: Strips, b: Strips, sigma_px: float, part: slice
) -> StripShifts:
    """Return the displacements of a batch of filtered strips."""
    expected, reach = plan.expected_px[part], plan.max_shift_px
    shifts = correlate_filtered(backend, a[part], b[part], expected, reach, sigma_px)
    return shifts._replace(shift_px=plan.displacement(shifts.shift_px))


def _overlaps(plans: Sequence[StripPlan], results: list[StripShifts], filter_px: float) -> Overlaps:
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
    strip_px = [np.full(len(p.pairs), len(p.pairs) * math.prod(p.shape)) for p in plans]
    variance = 1.0 / np.maximum(information, 1e-9) + _FLAT_PX2 / np.concatenate(strip_px)[:, None]
    return Overlaps(
        pairs, displacement, np.sqrt(variance), score, np.where(usable, probability, 1.0)
    )
