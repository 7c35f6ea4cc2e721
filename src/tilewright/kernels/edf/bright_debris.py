"""Bright debris in a z-stack: detected, its light in every plane subtracted, and put back.

Debris and the brightest cells are so much brighter than their surroundings that what a PSF gets
wrong by a hundredth, and what the camera clips, is more than all the light around them: filters
over all planes then draw black rings and haloes. As with saturated stars in astronomy, the light of
each object is fitted (:mod:`.debris_fit`) and subtracted before the filters. What is left counts
the less the more of the object's light there was, and the fitted tissue counts instead.

All of it is done on the host, on windows of one pixel of 4 × 4 around each object.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.backend import cells
from tilewright.kernels.edf.debris_fit import (
    REACH,
    DebrisModel,
    Image,
    data_weight,
    fit_light,
    local_background,
    pool,
    upsample,
    window_taper,
)
from tilewright.kernels.edf.focus_maps import POOL_PX
from tilewright.kernels.noise import NoiseModel

#: Debris is so many times as bright as what the darker quarter of the planes show of all but 2 %
#: of the tissue (19 sets came to 4 to 11 times, fibres to 15), so many times as bright as all but a
#: thousandth of what is sharp, and stands so far above noise. The planes' darker quarter is changed
#: by less than 2 by debris 60 px apart; all planes, with their cones of light, by 10 and more.
_TIMES, _DARKER, _PERCENTILE = 10.0, 25.0, 98.0
_TIMES_SHARP, _SHARP, _SIGMAS = 3.0, 99.9, 20.0
#: Every so many pixels in y and x are enough for that.
_EVERY = 3
#: Pixels around a window whose debris reaches into it.
DEBRIS_REACH_PX = REACH * POOL_PX
#: Light of debris that is put back by half, over the local signal.
_HALF_SIGNAL = 0.5
#: A place is contaminated where some plane counts less than this, and so many cells around. With 0
#: instead of 8 haze is measured next to large clipped debris where there is none.
_CONTAMINATED, _CONTAMINATED_REACH = 0.8, 8
#: An object that ends so near to a gap is debris from this share of the level on: a bright cell
#: that the border cuts is mirrored there, and the filters draw a dark crescent.
_BORDER_PX, _BORDER_LEVEL = 4, 1 / 3
#: Debris at the border may lie beyond it, up to so many cells; else what it shows inside is fitted
#: to light at the border itself, and a dark ring of 0.37 of the background is drawn.
_BEYOND = 6
#: Larger objects are tissue.
_MOST_PX = 96


class DebrisSubtraction(NamedTuple):
    """A window without its bright debris.

    ``stack`` (z, y, x) in the type it had; ``light`` (y, x) float32 counts, what the debris adds to
    the in-focus plane; ``contaminated`` (y // 4, x // 4) bool, where in some plane debris outshines
    the rest. Both are None where there is no debris.
    """

    stack: NDArray[Any]
    light: Image | None = None
    contaminated: NDArray[np.bool_] | None = None


def debris_level(
    samples: Sequence[NDArray[Any]],
    plane_mask: NDArray[np.bool_],
    noise: NoiseModel,
    pedestal_counts: float,
    *,
    sharp: bool = False,
) -> float:
    """Return the counts over the pedestal above which an object is debris.

    ``samples`` are stacks (z, y, x) of different places; the median of their levels counts. Where
    debris has been subtracted from them (``sharp``) their brightest structures count too.

    >>> tissue = np.full((3, 30, 30), 150)
    >>> debris_level([tissue], np.ones(3, bool), NoiseModel(1.0, 2.0), 100.0)
    500.0
    """
    planes = np.flatnonzero(plane_mask)
    levels: list[tuple[float, float, float]] = []
    for sample in samples:
        part = sample[planes, ::_EVERY, ::_EVERY] - np.float32(pedestal_counts)
        tissue = float(np.percentile(np.percentile(part, _DARKER, axis=0), _PERCENTILE))
        bright = float(np.percentile(part.max(axis=0), _SHARP)) if sharp else 0.0
        levels.append((_TIMES * tissue, _TIMES_SHARP * bright, tissue))
    level, sharpest, tissue = np.median(levels, axis=0)
    dark = _SIGMAS * float(noise.variance(max(tissue, 0.0))) ** 0.5
    return float(max(level, sharpest, dark))


def has_debris(stack: NDArray[Any], model: DebrisModel, coverage: NDArray[np.bool_]) -> bool:
    """Return whether a window's stack (z, y, x) holds debris within its ``coverage`` (y, x).

    >>> model = DebrisModel(
    ...     np.ones((9, 1025)), np.ones(3, bool), NoiseModel(1.0, 2.0), 100.0, 65535.0, 500.0
    ... )
    >>> stack = np.full((3, 64, 64), 120)
    >>> stack[1, 30:34, 30:34] = 9000
    >>> has_debris(stack, model, np.ones((64, 64), bool))
    True
    """
    return bool(_find_debris(stack, model, ~coverage))


def subtract_debris(
    stack: NDArray[Any],
    model: DebrisModel,
    coverage: NDArray[np.bool_] | None = None,
    *,
    in_place: bool = False,
) -> DebrisSubtraction:
    """Subtract the light of bright debris from a window's stack (z, y, x) of raw counts.

    Parameters
    ----------
    stack : ndarray, shape (z, y, x)
        On the host; y and x multiples of 4. Changed only ``in_place``.
    coverage : ndarray of bool, shape (y, x), optional
        Pixels outside have no part in the fit and keep their counts; debris that they mirror is
        not fitted.

    Examples
    --------
    >>> model = DebrisModel(
    ...     np.ones((9, 1025)), np.ones(3, bool), NoiseModel(1.0, 2.0), 100.0, 65535.0, 500.0
    ... )
    >>> stack = np.full((3, 64, 64), 120)
    >>> stack[:, 30:34, 30:34] = 9000
    >>> int(stack.max()), bool(subtract_debris(stack, model).stack.max() < 1000)
    (9000, True)
    """
    gaps = np.zeros(stack.shape[1:], np.bool_) if coverage is None else ~coverage
    objects = _find_debris(stack, model, gaps)
    if not objects:
        return DebrisSubtraction(stack)
    out = stack if in_place else stack.copy()
    light = np.zeros(stack.shape[1:], np.float32)
    contaminated = np.zeros([n // POOL_PX for n in stack.shape[1:]], np.bool_)
    pending = np.zeros(stack.shape[1:], np.int32)
    for debris in objects:
        pending[debris.y, debris.x] += debris.core
    for debris in objects:
        pending[debris.y, debris.x] -= debris.core
        _subtract(out, light, contaminated, pending > 0, gaps, debris, model)
    return DebrisSubtraction(out, light, contaminated)


class _Debris(NamedTuple):
    """An object's box in pixels, its sharpest plane (of the usable ones), and its pixels there."""

    y: slice
    x: slice
    plane: int
    core: NDArray[np.bool_]


def _find_debris(stack: NDArray[Any], model: DebrisModel, gaps: NDArray[np.bool_]) -> list[_Debris]:
    """Return the debris of a stack, the brightest first."""
    planes = np.flatnonzero(model.plane_mask)
    top = stack[planes[0]]
    for z in planes[1:]:
        top = np.maximum(top, stack[z])
    border = gaps
    if gaps.any():
        border = np.asarray(ndimage.maximum_filter(gaps, 2 * _BORDER_PX + 1))
        top = np.where(gaps, 0, top)
    level, border_level = (
        min(model.pedestal_counts + share * model.level_counts, model.ceiling_counts)
        for share in (1.0, _BORDER_LEVEL)
    )
    objects = []
    for least in (level, border_level) if border.any() else (level,):
        for y, x in _boxes(top >= least):
            # At the lower level, only objects at the border that are no debris at the other.
            here = top[y, x]
            at_border = bool((here[border[y, x]] >= border_level).any())
            if least < level and (not at_border or (here >= level).any()):
                continue
            part = stack[planes, y, x]
            plane = _sharpest(part)
            core = (part[plane] >= least) & (top[y, x] > 0)
            sides = [np.ptp(i) + 1 if i.size else 0 for i in np.nonzero(core)]
            if 0 < max(sides) <= _MOST_PX:
                objects.append((float(part.sum(dtype=np.float64)), _Debris(y, x, plane, core)))
    return [debris for _, debris in sorted(objects, key=lambda item: -item[0])]


def _boxes(bright: NDArray[np.bool_]) -> list[tuple[slice, slice]]:
    """Return the boxes, in whole cells of 4 × 4 px, of what is bright."""
    if not bright.any():
        return []
    bright_cells = np.asarray(cells(bright, POOL_PX).any(axis=(1, 3)))
    labels, _ = ndimage.label(ndimage.binary_dilation(bright_cells), np.ones((3, 3)))
    return [
        (slice(y.start * POOL_PX, y.stop * POOL_PX), slice(x.start * POOL_PX, x.stop * POOL_PX))
        for y, x in ndimage.find_objects(labels)
    ]


def _sharpest(part: NDArray[Any]) -> int:
    """Return in which plane (z, y, x) an object has the steepest flanks."""
    # Its peak may be clipped in several, and be higher where spherical light meets on its axis.
    light = part.astype(np.float32)
    steep = [np.square(np.diff(light, axis=axis)).sum(axis=(1, 2)) for axis in (1, 2)]
    return int((steep[0] + steep[1]).argmax())


class _Fit(NamedTuple):
    """Light of debris and tissue on cells (usable z, y, x), weight of the data, valid pixels."""

    debris: Image
    tissue: Image
    weight: Image
    valid: NDArray[np.bool_]


def _subtract(
    stack: NDArray[Any],
    light: Image,
    contaminated: NDArray[np.bool_],
    pending: NDArray[np.bool_],
    gaps: NDArray[np.bool_],
    debris: _Debris,
    model: DebrisModel,
) -> None:
    """Subtract debris, but not ``pending`` (y, x) or gaps; add what goes back to ``light``."""
    planes = np.flatnonzero(model.plane_mask)
    y, x = (
        slice(max(part.start - DEBRIS_REACH_PX, 0), min(part.stop + DEBRIS_REACH_PX, n))
        for part, n in zip((debris.y, debris.x), stack.shape[1:], strict=True)
    )
    counts = stack[planes, y, x]
    excluded = pending[y, x]
    if excluded.any():
        excluded = np.asarray(ndimage.binary_dilation(excluded, iterations=2 * POOL_PX))
    excluded = excluded | gaps[y, x]
    core = np.zeros(excluded.shape, np.bool_)
    top, left = debris.y.start - y.start, debris.x.start - x.start
    core[top : top + len(debris.core), left : left + debris.core.shape[1]] = debris.core
    fit = _fit(counts, core, excluded, gaps[y, x], debris.plane, model)
    in_cells = tuple(slice(part.start // POOL_PX, part.stop // POOL_PX) for part in (y, x))
    outshone = np.asarray((fit.weight < _CONTAMINATED).any(axis=0))
    contaminated[in_cells] |= ndimage.binary_dilation(outshone, iterations=_CONTAMINATED_REACH)
    for i, z in enumerate(planes):
        pixels = counts[i].astype(np.float32) - np.float32(model.pedestal_counts)
        tissue, light_of_debris = upsample(fit.tissue[i]), upsample(fit.debris[i])
        rest = tissue + upsample(fit.weight[i]) * fit.valid[i] * (pixels - light_of_debris - tissue)
        if i == debris.plane:
            back = np.square(light_of_debris)
            back /= back + np.square(np.float32(_HALF_SIGNAL) * np.maximum(tissue, 1))
            back[~fit.valid[i]] = 1
            back[excluded] = 0
            light[y, x] += back * (pixels - rest)
        rest = _as_counts(rest + np.float32(model.pedestal_counts), stack.dtype)
        stack[z, y, x] = np.where(excluded, counts[i], rest)


def _fit(
    counts: NDArray[Any],
    core: NDArray[np.bool_],
    excluded: NDArray[np.bool_],
    gaps: NDArray[np.bool_],
    plane: int,
    model: DebrisModel,
) -> _Fit:
    """Fit one piece of debris on its window."""
    unsaturated = counts < model.ceiling_counts
    valid = unsaturated & ~excluded
    signal = pool(counts) - np.float32(model.pedestal_counts)
    valid_cells, unsaturated_cells = (
        pool(v.astype(np.float32)) > 0.999 for v in (valid, unsaturated)
    )
    support = ndimage.binary_dilation(pool(core.astype(np.float32)) > 0)
    beyond = pool(gaps.astype(np.float32)) > 0.999
    beyond &= ndimage.binary_dilation(support, iterations=_BEYOND)
    support |= beyond
    background = local_background(signal, valid_cells, support)
    debris, tissue = fit_light(signal, valid_cells, support, beyond, background, plane, model)
    debris *= window_taper(support)
    # Beside gaps the data count as elsewhere.
    return _Fit(debris, tissue, data_weight(debris, tissue, unsaturated_cells, model.noise), valid)


def _as_counts(values: Image, dtype: Any) -> NDArray[Any]:
    if np.issubdtype(dtype, np.integer):
        values = np.clip(np.rint(values), 0, np.iinfo(dtype).max)
    return values.astype(dtype)
