"""Faults that processing draws into an image: seams at tile borders, rings after deconvolution.

On the host, as all that quality measures.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import Bools, Floats


class Seam(NamedTuple):
    """Step at a tile border over its scatter next to the border, and the step itself."""

    score: float
    step: float


#: Widths of the windows whose means are compared across a border.
_WINDOWS_PX = (1, 2, 4, 8, 16, 32, 64)
#: Reach of the first ring around an object: three times the resolution.
_RING_PX = 6


def seam_reach_px(gap_px: int) -> int | None:
    """Return how many pixels :func:`seam_score` needs on either side of a border.

    None where the gap is so wide that the slope cannot be carried across it.

    >>> seam_reach_px(0), seam_reach_px(40), seam_reach_px(200)
    (32, 280, None)
    """
    windows = [k for k in _WINDOWS_PX if k >= gap_px // 2]
    return max(32, 3 * gap_px + 5 * windows[0]) if windows else None


def seam_score(
    strip: NDArray[Any],
    border_px: int,
    *,
    pedestal_counts: float = 0.0,
    axis: int = 1,
    gap_px: int = 0,
) -> Seam:
    """Return how visible a tile border is in a (y, x) strip laid across it.

    The border runs between ``border_px - 1`` and ``border_px`` along ``axis``; at least 32 px
    on either side. At every position of the strip the step is the mean just after less the
    mean just before, with the slope on both sides taken off, as a fraction of the signal over
    the pedestal: a robust mean over segments of 4 lines, each weighted by how steady it is
    next to the border. Of the window widths 1 to 64 px that fit the one with the smallest scatter σ
    next to the border is taken. ``step`` is signed (0.02 = 2 % of the signal); ``score`` is
    √(1 + (step/σ)²): about 1 (95 % below 2.3) without a seam. σ falls with the root of the
    length (0.8 % on 770 lines of dense nuclei): join the borders of one direction along the
    other axis for a score of the whole mosaic. ``gap_px`` leaves out as many pixels on each side of
    the border: half of a feathered band.

    Raises
    ------
    ValueError
        Fewer than 32 px on one side of the border, or no window fits next to ``gap_px``.

    Examples
    --------
    >>> even = np.random.default_rng(0).normal(1000, 10, (64, 200))
    >>> seam = even * np.repeat([1.0, 1.02], 100)
    >>> [seam_score(strip, 100).score > 2.3 for strip in (even, seam)]
    [False, True]
    """
    plane = np.moveaxis(np.asarray(strip, np.float32), axis, 1) - pedestal_counts
    best = (np.inf, float("nan"))
    for size in _window_sizes(plane.shape[1], border_px, gap_px):
        first, steps = _steps(plane, size, gap_px)
        offset = np.abs(np.arange(steps.shape[1]) + first - border_px)
        mean = _coherent(steps, offset >= 2 * (size + gap_px))
        scatter = 1.4826 * float(np.median(np.abs(mean[offset >= 2 * (size + gap_px)])))
        if scatter < best[0]:
            best = (scatter, float(mean[border_px - first]))
    scatter, step = best
    return Seam(float(np.hypot(1.0, step / max(scatter, 1e-9))), step)


def _window_sizes(width: int, border_px: int, gap_px: int) -> list[int]:
    """Return the widths of windows that fit a strip; ValueError where there is none."""
    if not 32 <= border_px <= width - 32:
        raise ValueError(f"seam_score needs 32 px on both sides of border {border_px} of {width}")
    # Positions next to the border must contain none of it: 5 windows and 3 gaps on one side.
    room = min(border_px, width - border_px) - 3 * gap_px
    sizes = [k for k in _WINDOWS_PX if k >= gap_px // 2 and 5 * k <= room]
    if not sizes:
        raise ValueError(f"a gap of {gap_px} px is too wide for a strip of {width} px")
    return sizes


def _steps(plane: NDArray[np.float32], size: int, gap: int) -> tuple[int, Floats]:
    """Return the first position and, from there on, relative steps (segments, positions)."""
    segments = max(plane.shape[0] // 4, 1)
    rows = plane[: segments * 4] if plane.shape[0] >= 4 else plane
    segment_means = rows.reshape(segments, -1, plane.shape[1]).mean(axis=1, dtype=np.float64)
    total = np.pad(np.cumsum(segment_means, axis=1), ((0, 0), (1, 0)))
    mean = (total[:, size:] - total[:, :-size]) / size
    first = 2 * size + gap
    centre = np.arange(first, plane.shape[1] - first + 1)
    far_left, left = mean[:, centre - gap - 2 * size], mean[:, centre - gap - size]
    right, far_right = mean[:, centre + gap], mean[:, centre + gap + size]
    slope = (far_right - right + left - far_left) / (2 * size)
    # Noise takes dim signals to the pedestal; a twentieth of the mean bounds the divisor.
    signal = np.maximum((left + right) / 2, max(0.05 * float(mean.mean()), 1e-6))
    return first, (right - left - slope * (size + 2 * gap)) / signal


def _coherent(steps: Floats, off_border: Bools) -> Floats:
    """Return the step common to all segments, per position; outliers count as 3 sigma."""
    spread = 1.4826 * np.median(np.abs(steps[:, off_border]), axis=1)
    positive = spread > 0
    if not positive.any():
        return np.full(steps.shape[1], np.nan)
    spread = np.maximum(spread[positive], 0.05 * np.median(spread[positive]))[:, None]
    clipped = np.clip(steps[positive] / spread, -3, 3)
    common: Floats = (clipped / spread).sum(axis=0) / (1 / spread**2).sum()
    return common


def ringing_depth(image: NDArray[Any], reference: NDArray[Any]) -> float:
    """Return the depth of the dark ring that deconvolution drew around bright objects.

    ``image`` (y, x) has pedestal 0; ``reference`` is the raw plane, which only says where the
    bright objects are (over half way from its median to its 99.5th percentile) and what their
    surroundings looked like. Over the mean profile against the distance to the objects' edge: how
    far the darkest shell within 6 px outside lies below the shells at 7 to 12 px, as a share of the
    objects' contrast, less the same number of the reference. ``nan`` where nothing is bright, or is
    in one image only.

    >>> y, x = np.indices((65, 65)) - 32
    >>> radius, disc = np.hypot(y, x), 100.0 * (np.hypot(y, x) < 10)
    >>> round(ringing_depth(disc - 20 * (abs(radius - 13) < 1.5), disc), 2)
    0.2
    """
    plane, raw = np.asarray(image, np.float32), np.asarray(reference, np.float32)
    smooth = ndimage.gaussian_filter(raw, 1.0, mode="reflect")
    half, top = (float(v) for v in np.percentile(smooth, [50.0, 99.5]))
    bright = smooth > (half + top) / 2
    if not bright.any():
        return float("nan")
    shells = [ndimage.distance_transform_edt(where).astype(np.int32) for where in (~bright, bright)]
    counts = [_shell_sums(shell, None) for shell in shells]
    depth, depth_raw = (
        _depth(*(_shell_sums(s, v) / n for s, n in zip(shells, counts, strict=True)))
        for v in (plane, raw)
    )
    return float(np.maximum(depth - depth_raw, 0.0))


def _shell_sums(shell: NDArray[np.int32], values: NDArray[np.float32] | None) -> Floats:
    """Return sums over the shells 1 … ring and, last, over ring+1 … 2 ring (or the core)."""
    index = np.clip(shell, 0, 2 * _RING_PX + 1).ravel()
    weights = None if values is None else values.ravel()
    sums = np.bincount(index, weights, 2 * _RING_PX + 2).astype(np.float64)
    return np.append(sums[1 : _RING_PX + 1], sums[_RING_PX + 1 : 2 * _RING_PX + 1].sum())


def _depth(outside: Floats, inside: Floats) -> float:
    """Return the ring's depth from mean profiles; the last entries are far level and core."""
    far, core = float(outside[-1]), float(inside[np.isfinite(inside)][-1])
    contrast = core - far
    if contrast <= 0.05 * abs(core):
        return float("nan")
    return max(far - float(np.nanmin(outside[:-1])), 0.0) / contrast
