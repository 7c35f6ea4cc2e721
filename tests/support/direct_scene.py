"""Stacks of a wavy sheet through a Gibson-Lanni microscope, with their true in-focus plane."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from tilewright.kernels.backend import Backend
from tilewright.kernels.deconvolve.psf import Optics, gibson_lanni
from tilewright.kernels.edf.direct_filters import (
    FINE,
    Channel,
    make_filters,
    mean_variance,
    object_power,
    psf_planes,
    transfer_profiles,
)
from tilewright.kernels.edf.direct_finish import fill, mirrored, trust_in
from tilewright.kernels.edf.direct_plane import HALO_PX, Direct, DirectPlane, FocusMaps
from tilewright.kernels.noise import NoiseModel

PLANES, SIZE, STEP_UM, PIXEL_UM = 9, 192, 1.5, 0.377
PEDESTAL = 100.0
NOISE = NoiseModel(1.0, 2.0)
OPTICS = Optics(0.75, 668, 1.0, 1.44)
ALL = np.ones(PLANES, bool)
Image = NDArray[np.float32]


@lru_cache(maxsize=1)
def fine_psf() -> Image:
    """Return the PSF at half the step."""
    voxel = (STEP_UM / FINE, PIXEL_UM, PIXEL_UM)
    return gibson_lanni(OPTICS, voxel, psf_planes(PLANES, STEP_UM), max_lateral_px=65)


@lru_cache(maxsize=16)
def _scene(
    seed: int, photons: float, haze: float, empty: bool
) -> tuple[Image, NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    border = 40
    size = SIZE + 2 * border
    sheet = np.zeros((size, size))
    texture = ndimage.gaussian_filter(rng.standard_normal((size, size)), 1.2)
    texture = np.clip(1 + 0.6 * texture / texture.std(), 0, None)
    y, x = np.mgrid[:size, :size]
    for cy, cx in rng.uniform(0, size, (size * size // 700, 2)):
        radius = rng.uniform(5, 10)
        outside = np.hypot(y - cy, x - cx) - radius
        sheet += rng.uniform(0.2, 1) / (1 + np.exp(np.minimum(2 * outside, 40)))
    sheet *= texture
    if empty:
        sheet[:, size // 2 :] = 0
    # Between planes 1 and 7, in layers of half a step.
    layer = np.rint(FINE * (4 + 2.7 * np.sin(2 * np.pi * y / 230 + seed))).astype(int)
    psf = fine_psf() / fine_psf()[len(fine_psf()) // 2].sum()
    middle, half = len(psf) // 2, psf.shape[1] // 2
    shape = (fft.next_fast_len(size + 2 * half, real=True),) * 2

    def transfer(plane: Image) -> NDArray[Any]:
        padded = np.zeros(shape)
        padded[: plane.shape[0], : plane.shape[1]] = plane
        return np.asarray(fft.rfft2(np.roll(padded, (-half, -half), (0, 1))))

    inner = (slice(border, border + SIZE),) * 2
    layers = {z: fft.rfft2(sheet * (layer == z), shape) for z in np.unique(layer)}
    kernels = [transfer(plane) for plane in psf]
    light = np.zeros((PLANES, SIZE, SIZE))
    for k in range(PLANES):
        total = sum(part * kernels[middle + FINE * k - z] for z, part in layers.items())
        light[k] = fft.irfft2(total, shape)[inner]
    truth = fft.irfft2(sum(layers.values()) * kernels[middle], shape)[inner]
    scale = photons / np.percentile(light, 99.9)
    smooth = ndimage.gaussian_filter(rng.standard_normal((SIZE, SIZE)), 40, mode="wrap")
    smooth = haze * light.mean() * (1 + 0.4 * smooth / smooth.std())
    noisy = rng.poisson(np.maximum(light + smooth, 0) * scale) + rng.normal(
        PEDESTAL, 2, light.shape
    )
    counts = np.clip(np.rint(noisy), 0, 65535).astype(np.float32)
    return counts, np.asarray(truth * scale)


def scene(
    seed: int, photons: float = 800.0, haze: float = 0.0, *, empty: bool = False
) -> tuple[Image, NDArray[np.float64]]:
    """Return counts (z, y, x) and the true plane (y, x); ``empty``: nothing in the right half."""
    counts, truth = _scene(seed, photons, haze, empty)
    return counts.copy(), truth


@dataclass(frozen=True)
class Prepared:
    """What a mosaic's windows share, and the plane of a mosaic that is one window, or more."""

    backend: Backend
    channel: Channel
    filters: Any

    def plane(
        self,
        counts: Image,
        rows: slice | None = None,
        seen: NDArray[np.bool_] | None = None,
        saturated: NDArray[np.bool_] | None = None,
    ) -> Image:
        """Return the plane (rows, x) of a mosaic, not clipped, through one window with a halo."""
        rows = rows or slice(0, counts.shape[1])
        seen = np.ones(counts.shape[1:], bool) if seen is None else seen
        clipped = np.zeros(counts.shape[1:], bool) if saturated is None else saturated
        spans = [(rows.start, rows.stop), (0, counts.shape[2])]
        sides = [-(-(stop - start + 2 * HALO_PX) // 8) * 8 for start, stop in spans]
        starts = [start - HALO_PX for start, _ in spans]
        y, x = (
            mirrored(s, s + n, size)
            for s, n, size in zip(starts, sides, counts.shape[1:], strict=True)
        )
        far = [
            np.minimum(at := np.arange(s, s + n), size - 1 - at)
            for s, n, size in zip(starts, sides, counts.shape[1:], strict=True)
        ]
        border = np.minimum.outer(*far).astype(np.float32)
        window, there = counts[:, y][:, :, x], seen[y][:, x]
        trust = trust_in(border, there, clipped[y][:, x])
        found = self.direct(sides).project(fill(window, there), trust)
        image: Image = self.backend.to_numpy(found.image)
        return image[HALO_PX:, HALO_PX:][: rows.stop - rows.start, : counts.shape[2]]

    def direct(self, sides: list[int]) -> DirectPlane:
        maps = FocusMaps(self.backend, self.channel, NOISE, PEDESTAL, (sides[0], sides[1]))
        return DirectPlane(maps, self.filters)

    def whole(self, counts: Image) -> tuple[FocusMaps, Direct]:
        """Return a mosaic taken as one circular window."""
        direct = self.direct(list(counts.shape[1:]))
        return direct.maps, direct.project(counts)


def prepare(backend: Backend, counts: Image, kept: NDArray[np.bool_] = ALL) -> Prepared:
    """Return the filters of a mosaic that is its own sample."""
    profiles = transfer_profiles(fine_psf())
    channel = Channel(
        profiles,
        kept,
        object_power(backend, [counts], profiles, kept),
        mean_variance(NOISE, [counts[kept]], PEDESTAL),
    )
    maps = FocusMaps(backend, channel, NOISE, PEDESTAL, (counts.shape[1], counts.shape[2]))
    return Prepared(backend, channel, make_filters(channel, maps.bins_used(counts)))


def speck_light(
    peak: float, radius: float, plane: int, at: tuple[int, int] = (SIZE // 2, SIZE // 2)
) -> NDArray[np.float64]:
    """Return a disc's light in every plane, through the scene's own PSF."""
    y, x = np.mgrid[:SIZE, :SIZE] - np.array(at)[:, None, None]
    disc = peak * np.clip(radius + 0.5 - np.hypot(y, x), 0, 1)
    psf = fine_psf()
    middle = len(psf) // 2
    out = []
    for z in range(PLANES):
        kernel = psf[middle + FINE * (z - plane)] / psf[middle].sum()
        padded = np.zeros((2 * SIZE, 2 * SIZE))
        half = kernel.shape[0] // 2
        padded[: kernel.shape[0], : kernel.shape[1]] = kernel
        padded = np.roll(padded, (-half, -half), (0, 1))
        spectrum = fft.rfft2(disc, padded.shape) * fft.rfft2(padded)
        out.append(fft.irfft2(spectrum, s=padded.shape)[:SIZE, :SIZE])
    return np.maximum(np.array(out), 0)
