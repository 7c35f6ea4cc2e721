"""The plan of a mosaic's multi-plane Wiener estimate, and the windows that it is made from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.mosaic import Mosaic
from tilewright.kernels.backend import Backend
from tilewright.kernels.edf.bright_debris import (
    DEBRIS_REACH_PX,
    DebrisSubtraction,
    debris_level,
    has_debris,
    subtract_debris,
)
from tilewright.kernels.edf.channel_model import ChannelModel, mean_variance, object_power
from tilewright.kernels.edf.debris_fit import DebrisModel
from tilewright.kernels.edf.focus_maps import POOL_PX, FocusMaps
from tilewright.kernels.edf.transfer import FINE, WIDE_RADII, psf_planes, transfer_profiles
from tilewright.kernels.edf.wiener_filters import Filters, make_filters
from tilewright.kernels.edf.wiener_finish import fill, haze_moments, haze_share, mirrored
from tilewright.kernels.edf.wiener_plane import HALO_PX, WienerPlane
from tilewright.kernels.noise import NoiseModel
from tilewright.stages.edf.stack_survey import ceiling_of, gap_mask, plane_variance, sample_cells

#: Sample windows, those of most contrast in the survey's sample, and their side.
_SAMPLES, _SAMPLE_PX = 6, 512
#: In smaller windows haze cannot be separated from light.
_LEAST_SAMPLE_PX = 2 * HALO_PX + 64
#: What fills a pixel of a gap lies up to twice as far from a window as the pixel does.
_FILL_PX = 2 * HALO_PX
_INNER = (slice(DEBRIS_REACH_PX, -DEBRIS_REACH_PX),) * 2


@dataclass(frozen=True)
class WienerPlan:
    """What all windows of a mosaic share."""

    channel: ChannelModel
    """Optics, usable planes, power and noise."""
    filters: Filters
    """Made of it."""
    noise: NoiseModel
    """The camera's."""
    pedestal_counts: float
    """Counts without light."""
    haze_share: float
    """Share of the plane's background that no plane focuses."""
    debris: DebrisModel
    """How bright debris is detected and subtracted."""
    record: dict[str, Any]
    """Attributes of the output."""


def wiener_psf_size(mosaic: Mosaic) -> dict[str, int]:
    """Return the size of the PSF, as arguments of ``stages.deconvolve.mosaic_psf``."""
    return {"oversampling": FINE, "planes": psf_planes(mosaic.shape[0], mosaic.voxel_um[0])}


def plan_wiener(
    backend: Backend,
    mosaic: Mosaic,
    plane_mask: NDArray[np.bool_],
    noise: NoiseModel,
    psf: NDArray[np.float32],
    wide: NDArray[np.float64] | None = None,
) -> WienerPlan:
    """Make the filters of a mosaic from a few windows of it.

    Parameters
    ----------
    mosaic : Mosaic
        Raw counts over ``pedestal_counts``.
    plane_mask : ndarray of bool, shape (z,)
        Planes to use, at least two.
    noise : NoiseModel
        The camera's.
    psf : ndarray of float32, shape (z, y, x)
        At half the mosaic's step in z; a measured one with fewer planes repeats its last.
    wide : ndarray of float64, shape (z, 1025), optional
        Its transfer profiles, not cut off, for the light of bright debris.
    """
    pedestal = float(mosaic.attributes.get("pedestal_counts", 0))
    profiles, wide = _profiles(mosaic, psf, wide)
    starts, size = _sample_starts(mosaic, plane_mask, pedestal)
    windows = [read_window(mosaic, plane_mask, pedestal, start, size)[0] for start in starts]
    debris = DebrisModel(
        wide,
        plane_mask,
        noise,
        pedestal,
        ceiling_of(mosaic),
        debris_level(windows, plane_mask, noise, pedestal),
    )
    debris, samples, contaminated = _subtract_debris(windows, debris)
    power = object_power(backend, samples, profiles, plane_mask)
    variance = mean_variance(noise, [sample[plane_mask] for sample in samples], pedestal)
    channel = ChannelModel(profiles, plane_mask, power, variance)
    maps = FocusMaps(backend, channel, noise, pedestal, samples[0].shape[1:])
    usage = np.asarray(sum(maps.bin_usage(sample) for sample in samples))
    filters = make_filters(channel, usage)
    estimate = WienerPlane(maps, filters)
    moments = [
        haze_moments(maps, sample, estimate.project(sample), places)
        for sample, places in zip(samples, contaminated, strict=True)
    ]
    haze = haze_share(moments)
    record = {
        "method": "multiplane_wiener",
        "scale": 1.0,
        "haze_share": haze,
        "noise_gain": noise.gain,
        "read_noise_counts": noise.read_noise_counts,
    }
    return WienerPlan(channel, filters, noise, pedestal, haze, debris, record)


def _profiles(
    mosaic: Mosaic, psf: NDArray[np.float32], wide: NDArray[np.float64] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the transfer profiles of a PSF, and the wide ones where none are given."""
    missing = max(wiener_psf_size(mosaic)["planes"] - len(psf), 0) // 2
    # Every plane of a widefield PSF has the same light, however far from focus: none would be more
    # wrong than the blur of the last.
    beyond = ((missing, missing), (0, 0))
    profiles = np.pad(transfer_profiles(psf), beyond, mode="edge")
    if wide is None:
        wide = np.pad(transfer_profiles(psf, radii=WIDE_RADII), beyond, mode="edge")
    return profiles, wide


def _subtract_debris(
    windows: Sequence[NDArray[Any]], model: DebrisModel
) -> tuple[DebrisModel, list[NDArray[Any]], list[NDArray[np.bool_]]]:
    """Subtract the debris of samples; return the final model, samples, and places of debris."""
    # Twice: the brightest debris hides weaker debris next to it.
    samples, contaminated = _without_debris(windows, model)
    level = debris_level(samples, model.plane_mask, model.noise, model.pedestal_counts, sharp=True)
    model = replace(model, level_counts=level)
    samples, more = _without_debris(samples, model)
    return model, samples, [a | b for a, b in zip(contaminated, more, strict=True)]


def _without_debris(
    samples: Sequence[NDArray[Any]], model: DebrisModel
) -> tuple[list[NDArray[Any]], list[NDArray[np.bool_]]]:
    """Return samples without their debris, and the places that it contaminated."""
    results = [subtract_debris(sample, model) for sample in samples]
    none = np.zeros([n // POOL_PX for n in samples[0].shape[1:]], np.bool_)
    contaminated = [none if r.contaminated is None else r.contaminated for r in results]
    return [result.stack for result in results], contaminated


def _sample_starts(
    mosaic: Mosaic, plane_mask: NDArray[np.bool_], pedestal: float
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return where the sample windows start, in the mosaic's order, and their size."""
    middle = int(np.flatnonzero(plane_mask)[int(plane_mask.sum()) // 2])
    size = [max(min(_SAMPLE_PX, n // 8 * 8), _LEAST_SAMPLE_PX) for n in mosaic.shape[1:]]
    starts = [
        tuple((part.start + part.stop - n) // 2 for part, n in zip((c.y, c.x), size, strict=True))
        for c in sample_cells(mosaic)
    ]
    plane = slice(middle, middle + 1)
    contrast = [plane_variance(_read(mosaic, start, size, plane), pedestal) for start in starts]
    best = np.sort(np.argsort(-np.array(contrast), kind="stable")[:_SAMPLES])
    return [starts[i] for i in best], size


def _read(
    mosaic: Mosaic, start: Sequence[int], size: Sequence[int], z: slice = slice(None)
) -> NDArray[Any]:
    """Return a window of a mosaic, which goes on as its mirror image beyond its borders."""
    index = [
        mirrored(at, at + n, length)
        for at, n, length in zip(start, size, mosaic.shape[1:], strict=True)
    ]
    first = [int(i.min()) for i in index]
    y, x = (slice(at, int(i.max()) + 1) for at, i in zip(first, index, strict=True))
    stack = mosaic.read(z, y, x)
    return _rearrange(stack, *(i - at for at, i in zip(first, index, strict=True)))


def _rearrange(stack: NDArray[Any], y: NDArray[np.int64], x: NDArray[np.int64]) -> NDArray[Any]:
    """Return ``stack[:, y][:, :, x]``; the stack itself where it is that."""
    if all(np.array_equal(i, np.arange(n)) for i, n in zip((y, x), stack.shape[1:], strict=True)):
        return stack
    out = np.empty((len(stack), y.size, x.size), stack.dtype)
    for plane, whole in zip(out, stack, strict=True):
        plane[:] = whole[y][:, x]
    return out


def read_without_debris(
    mosaic: Mosaic, model: DebrisModel, start: Sequence[int], size: Sequence[int]
) -> tuple[DebrisSubtraction, NDArray[np.bool_]]:
    """Return a window without its bright debris, otherwise as :func:`read_window` does.

    Where there is some, the surroundings of the window are part of the fit, so that all windows
    that hold an object subtract the same light; and what continues the mosaic mirrors it without.
    """
    plane_mask, pedestal = model.plane_mask, model.pedestal_counts
    stack, coverage = read_window(mosaic, plane_mask, pedestal, start, size)
    if not has_debris(stack, model, coverage & _inside(mosaic, start, size)):
        return DebrisSubtraction(stack), coverage
    del stack
    near = [at - DEBRIS_REACH_PX for at in start]
    wide = [n + 2 * DEBRIS_REACH_PX for n in size]
    stack, wide_coverage = read_window(mosaic, plane_mask, pedestal, near, wide)
    coverage = wide_coverage[_INNER]
    inside = wide_coverage & _inside(mosaic, near, wide)
    result = subtract_debris(stack, model, inside, in_place=True)
    if result.light is None or result.contaminated is None:
        return DebrisSubtraction(stack[:, *_INNER]), coverage
    y, x = (
        mirrored(first, first + n, length) - first
        for first, n, length in zip(near, wide, mosaic.shape[1:], strict=True)
    )
    stack = fill(_rearrange(result.stack, y, x), wide_coverage)
    in_cells = (slice(DEBRIS_REACH_PX // POOL_PX, -DEBRIS_REACH_PX // POOL_PX),) * 2
    contaminated = result.contaminated[in_cells]
    return DebrisSubtraction(stack[:, *_INNER], result.light[_INNER], contaminated), coverage


def _inside(mosaic: Mosaic, start: Sequence[int], size: Sequence[int]) -> NDArray[np.bool_]:
    """Return which pixels (y, x) of a window are the mosaic's own, and none that mirror it."""
    at = [np.arange(first, first + n) for first, n in zip(start, size, strict=True)]
    y, x = ((i >= 0) & (i < n) for i, n in zip(at, mosaic.shape[1:], strict=True))
    return np.asarray(np.logical_and.outer(y, x))


def read_window(
    mosaic: Mosaic,
    plane_mask: NDArray[np.bool_],
    pedestal: float,
    start: Sequence[int],
    size: Sequence[int],
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return a window with its gaps filled, and where it has none.

    Parameters
    ----------
    mosaic : Mosaic
        It goes on as its mirror image beyond its borders.
    plane_mask : ndarray of bool, shape (z,)
        Planes that count.
    pedestal : float
        Counts without light.
    start, size : sequence of int
        (y, x) of the window's first pixel, and its sides.

    Returns
    -------
    stack : ndarray, shape (z, y, x)
        Raw counts of all planes.
    coverage : ndarray of bool, shape (y, x)
        Where they were imaged.
    """

    def grow(by_px: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        stack = _read(mosaic, [at - by_px for at in start], [n + 2 * by_px for n in size])
        return stack, ~gap_mask((stack[z] for z in np.flatnonzero(plane_mask)), pedestal)

    stack, coverage = grow(0)
    if coverage.all() or not coverage.any():
        return stack, coverage
    del stack
    stack, coverage = grow(_FILL_PX)
    inner = (slice(_FILL_PX, -_FILL_PX),) * 2
    return fill(stack, coverage)[:, *inner], coverage[inner]
