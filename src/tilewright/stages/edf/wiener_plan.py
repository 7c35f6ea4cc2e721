"""The plan of a mosaic's multi-plane Wiener estimate, and the windows that it is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.results.mosaic import Mosaic
from tilewright.kernels.backend import Backend
from tilewright.kernels.edf.resolution import plane_resolution_px
from tilewright.kernels.edf.specks import (
    SPECK_REACH_PX,
    Cleaned,
    SpeckModel,
    has_specks,
    speck_level,
    without_specks,
)
from tilewright.kernels.edf.wiener_filters import (
    FINE,
    WIDE_RADII,
    Channel,
    Filters,
    make_filters,
    mean_variance,
    object_power,
    psf_planes,
    transfer_profiles,
)
from tilewright.kernels.edf.wiener_finish import fill, haze_moments, haze_share, mirrored
from tilewright.kernels.edf.wiener_plane import HALO_PX, POOL_PX, FocusMaps, WienerPlane
from tilewright.kernels.noise import NoiseModel
from tilewright.stages.edf.stack_survey import ceiling_of, sample_cells, texture, unseen

#: Sample windows, the liveliest of those that the survey looks at, and their side.
_SAMPLES, _SAMPLE_PX = 6, 512
#: Smaller windows cannot tell haze from light.
_LEAST_SAMPLE_PX = 2 * HALO_PX + 64
#: What fills a pixel that was not seen lies up to twice as far from a window as the pixel does.
_FILL_PX = 2 * HALO_PX
_INNER = (slice(SPECK_REACH_PX, -SPECK_REACH_PX),) * 2


@dataclass(frozen=True)
class WienerPlan:
    """What all windows of a mosaic share.

    Attributes
    ----------
    channel : Channel
        Optics, planes kept, power and noise.
    filters : Filters
        Made of it.
    noise : NoiseModel
        The camera's.
    pedestal_counts : float
        Counts without light.
    haze_share : float
        Share of the plane's floor that no plane focuses.
    resolution_px : float or None
        Of the sample windows, see :func:`tilewright.kernels.edf.resolution.plane_resolution_px`.
    """

    channel: Channel
    filters: Filters
    noise: NoiseModel
    pedestal_counts: float
    haze_share: float
    resolution_px: float | None
    specks: SpeckModel

    @property
    def record(self) -> dict[str, Any]:
        """What the output says of it."""
        return {
            "method": "multiplane_wiener",
            "scale": 1.0,
            "haze_share": self.haze_share,
            "resolution_px": self.resolution_px,
            "noise_gain": self.noise.gain,
            "read_noise_counts": self.noise.read_noise_counts,
        }


def wiener_psf_size(mosaic: Mosaic) -> dict[str, int]:
    """Return what ``stages.deconvolve.mosaic_psf`` must know of this PSF."""
    return {"finer": FINE, "planes": psf_planes(mosaic.shape[0], mosaic.voxel_um[0])}


def plan_wiener(
    backend: Backend,
    mosaic: Mosaic,
    kept: NDArray[np.bool_],
    noise: NoiseModel,
    psf: NDArray[np.float32],
    wide: NDArray[np.float64] | None = None,
) -> WienerPlan:
    """Make the filters of a mosaic from a few windows of it.

    Parameters
    ----------
    mosaic : Mosaic
        Raw counts over ``pedestal_counts``.
    kept : ndarray of bool, shape (z,)
        Planes to use, at least two.
    noise : NoiseModel
        The camera's.
    psf : ndarray of float32, shape (z, y, x)
        At half the mosaic's step in z; a measured one that ends early goes on as it ends.
    wide : ndarray of float64, shape (z, 1025), optional
        Its transfer profiles, not cut off, for the light of specks.
    """
    pedestal = float(mosaic.attributes.get("pedestal_counts", 0))
    lacking = max(wiener_psf_size(mosaic)["planes"] - len(psf), 0) // 2
    # Every plane of a widefield PSF has the same light, however far from focus: none would be more
    # wrong than the blur of the last.
    beyond = ((lacking, lacking), (0, 0))
    profiles = np.pad(transfer_profiles(psf), beyond, mode="edge")
    if wide is None:
        wide = np.pad(transfer_profiles(psf, radii=WIDE_RADII), beyond, mode="edge")
    starts, size = _sample_starts(mosaic, kept, pedestal)
    found = [look(mosaic, kept, pedestal, start, size)[0] for start in starts]
    specks = SpeckModel(
        wide,
        kept,
        noise,
        pedestal,
        ceiling_of(mosaic),
        speck_level(found, kept, noise, pedestal),
    )
    # Twice: the brightest specks hide what is a speck beside them, and what is not.
    samples, spoilt = _without_specks(found, specks)
    level = speck_level(samples, kept, noise, pedestal, sharp=True)
    specks = replace(specks, level_counts=level)
    samples, more = _without_specks(samples, specks)
    spoilt = [a | b for a, b in zip(spoilt, more, strict=True)]
    power = object_power(backend, samples, profiles, kept)
    variance = mean_variance(noise, [sample[kept] for sample in samples], pedestal)
    channel = Channel(profiles, kept, power, variance)
    maps = FocusMaps(backend, channel, noise, pedestal, samples[0].shape[1:])
    used = sum(maps.bins_used(sample) for sample in samples)
    filters = make_filters(channel, np.asarray(used))
    estimate = WienerPlane(maps, filters)
    moments = [
        haze_moments(channel, maps, sample, estimate.project(sample), places)
        for sample, places in zip(samples, spoilt, strict=True)
    ]
    resolution = plane_resolution_px(maps, np.asarray(used), samples, ceiling_of(mosaic))
    return WienerPlan(channel, filters, noise, pedestal, haze_share(moments), resolution, specks)


def _without_specks(
    samples: Sequence[NDArray[Any]], specks: SpeckModel
) -> tuple[list[NDArray[Any]], list[NDArray[np.bool_]]]:
    """Return samples without their specks, and the places (y // 4, x // 4) that they spoilt."""
    cleaned = [without_specks(sample, specks) for sample in samples]
    none = np.zeros([n // POOL_PX for n in samples[0].shape[1:]], np.bool_)
    spoilt = [none if clean.spoilt is None else clean.spoilt for clean in cleaned]
    return [clean.stack for clean in cleaned], spoilt


def _sample_starts(
    mosaic: Mosaic, kept: NDArray[np.bool_], pedestal: float
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return where the liveliest sample windows start, in the mosaic's order, and their size."""
    middle = int(np.flatnonzero(kept)[int(kept.sum()) // 2])
    size = [max(min(_SAMPLE_PX, n // 8 * 8), _LEAST_SAMPLE_PX) for n in mosaic.shape[1:]]
    starts = [
        tuple((part.start + part.stop - n) // 2 for part, n in zip((c.y, c.x), size, strict=True))
        for c in sample_cells(mosaic)
    ]
    plane = slice(middle, middle + 1)
    lively = [texture(_read(mosaic, start, size, plane), pedestal) for start in starts]
    best = np.sort(np.argsort(-np.array(lively), kind="stable")[:_SAMPLES])
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
    return _rearranged(stack, *(i - at for at, i in zip(first, index, strict=True)))


def _rearranged(stack: NDArray[Any], y: NDArray[np.int64], x: NDArray[np.int64]) -> NDArray[Any]:
    """Return ``stack[:, y][:, :, x]``; the stack itself where it is that."""
    if all(np.array_equal(i, np.arange(n)) for i, n in zip((y, x), stack.shape[1:], strict=True)):
        return stack
    out = np.empty((len(stack), y.size, x.size), stack.dtype)
    for plane, whole in zip(out, stack, strict=True):
        plane[:] = whole[y][:, x]
    return out


def look_clean(
    mosaic: Mosaic, specks: SpeckModel, start: Sequence[int], size: Sequence[int]
) -> tuple[Cleaned, NDArray[np.bool_]]:
    """Return a window without its specks, otherwise as :func:`look` does.

    Where there are some, what is around the window tells of them too, so that all windows that hold
    a speck find the same light; and what continues the mosaic mirrors it without them.
    """
    kept, pedestal = specks.kept, specks.pedestal_counts
    stack, seen = look(mosaic, kept, pedestal, start, size)
    if not has_specks(stack, specks, seen & _inside(mosaic, start, size)):
        return Cleaned(stack), seen
    del stack
    near = [at - SPECK_REACH_PX for at in start]
    wide = [n + 2 * SPECK_REACH_PX for n in size]
    stack, there = look(mosaic, kept, pedestal, near, wide)
    seen = there[_INNER]
    clean = without_specks(stack, specks, there & _inside(mosaic, near, wide), in_place=True)
    if clean.light is None or clean.spoilt is None:
        return Cleaned(stack[:, *_INNER]), seen
    y, x = (
        mirrored(first, first + n, length) - first
        for first, n, length in zip(near, wide, mosaic.shape[1:], strict=True)
    )
    stack = fill(_rearranged(clean.stack, y, x), there)
    pooled = (slice(SPECK_REACH_PX // POOL_PX, -SPECK_REACH_PX // POOL_PX),) * 2
    return Cleaned(stack[:, *_INNER], clean.light[_INNER], clean.spoilt[pooled]), seen


def _inside(mosaic: Mosaic, start: Sequence[int], size: Sequence[int]) -> NDArray[np.bool_]:
    """Return which pixels (y, x) of a window are the mosaic's own, and none that mirror it."""
    at = [np.arange(first, first + n) for first, n in zip(start, size, strict=True)]
    y, x = ((i >= 0) & (i < n) for i, n in zip(at, mosaic.shape[1:], strict=True))
    return np.asarray(np.logical_and.outer(y, x))


def look(
    mosaic: Mosaic,
    kept: NDArray[np.bool_],
    pedestal: float,
    start: Sequence[int],
    size: Sequence[int],
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return a window with its gaps filled, and where it has none.

    Parameters
    ----------
    mosaic : Mosaic
        It goes on as its mirror image beyond its borders.
    kept : ndarray of bool, shape (z,)
        Planes that count.
    pedestal : float
        Counts without light.
    start, size : sequence of int
        (y, x) of the window's first pixel, and its sides.

    Returns
    -------
    stack : ndarray, shape (z, y, x)
        Raw counts of all planes.
    seen : ndarray of bool, shape (y, x)
        Where they were imaged.
    """

    def grown(by_px: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        stack = _read(mosaic, [at - by_px for at in start], [n + 2 * by_px for n in size])
        return stack, ~unseen((stack[z] for z in np.flatnonzero(kept)), pedestal)

    stack, seen = grown(0)
    if seen.all() or not seen.any():
        return stack, seen
    del stack
    stack, seen = grown(_FILL_PX)
    inner = (slice(_FILL_PX, -_FILL_PX),) * 2
    return fill(stack, seen)[:, *inner], seen[inner]
