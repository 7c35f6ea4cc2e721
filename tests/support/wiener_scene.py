"""Stacks of a wavy sheet through a Gibson-Lanni microscope, with their true in-focus plane."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from tests.support.wavy_stack import psnr
from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.kernels.deconvolve.psf import Optics, gibson_lanni
from tilewright.kernels.edf import channel_model, transfer, wiener_filters
from tilewright.kernels.edf.channel_model import ChannelModel
from tilewright.kernels.edf.focus_maps import FocusMaps
from tilewright.kernels.edf.transfer import FINE
from tilewright.kernels.edf.wiener_finish import (
    confidence_weight,
    fill,
    haze_moments,
    haze_share,
    mirrored,
)
from tilewright.kernels.edf.wiener_plane import HALO_PX, WienerPlane, WienerProjection
from tilewright.kernels.noise import NoiseModel

PLANES, SIZE, STEP_UM, PIXEL_UM = 9, 192, 1.5, 0.377
PEDESTAL = 100.0
NOISE = NoiseModel(1.0, 2.0)
OPTICS = Optics(0.75, 668, 1.0, 1.44)
ALL = np.ones(PLANES, bool)
Image = NDArray[np.float32]
Truth = NDArray[np.float64]


@lru_cache(maxsize=1)
def fine_psf() -> Image:
    """Return the PSF at half the step."""
    voxel = (STEP_UM / FINE, PIXEL_UM, PIXEL_UM)
    return gibson_lanni(OPTICS, voxel, transfer.psf_planes(PLANES, STEP_UM), max_lateral_px=65)


def _transfer(plane: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """Return the spectrum of a plane of the PSF, its middle at the first pixel."""
    padded = np.zeros(shape)
    padded[: plane.shape[0], : plane.shape[1]] = plane
    half = plane.shape[0] // 2
    return np.asarray(fft.rfft2(np.roll(padded, (-half, -half), (0, 1))))


@lru_cache(maxsize=16)
def _scene(seed: int, photons: float, haze: float, empty: bool) -> tuple[Image, Truth]:
    rng = np.random.default_rng(seed)
    border = 40
    size = SIZE + 2 * border
    sheet = np.zeros((size, size))
    texture = ndimage.gaussian_filter(rng.standard_normal((size, size)), 1.2)
    y, x = np.mgrid[:size, :size]
    for cy, cx in rng.uniform(0, size, (size * size // 700, 2)):
        radius = rng.uniform(5, 10)
        outside = np.hypot(y - cy, x - cx) - radius
        sheet += rng.uniform(0.2, 1) / (1 + np.exp(np.minimum(2 * outside, 40)))
    sheet *= np.clip(1 + 0.6 * texture / texture.std(), 0, None)
    if empty:
        sheet[:, size // 2 :] = 0
    # Between planes 1 and 7, in layers of half a step.
    layer = np.rint(FINE * (4 + 2.7 * np.sin(2 * np.pi * y / 230 + seed))).astype(int)
    psf = fine_psf() / fine_psf()[len(fine_psf()) // 2].sum()
    middle = len(psf) // 2
    shape = (fft.next_fast_len(size + psf.shape[1] - 1, real=True),) * 2
    inner = (slice(border, border + SIZE),) * 2
    layers = {z: fft.rfft2(sheet * (layer == z), shape) for z in np.unique(layer)}
    kernels = [_transfer(plane, shape) for plane in psf]

    def seen(k: int) -> NDArray[Any]:
        total = sum(part * kernels[middle + FINE * k - z] for z, part in layers.items())
        return np.asarray(fft.irfft2(total, shape)[inner])

    light = np.stack([seen(k) for k in range(PLANES)])
    truth = fft.irfft2(sum(layers.values()) * kernels[middle], shape)[inner]
    scale = photons / np.percentile(light, 99.9)
    smooth = ndimage.gaussian_filter(rng.standard_normal((SIZE, SIZE)), 40, mode="wrap")
    light += haze * light.mean() * (1 + 0.4 * smooth / smooth.std())
    noisy = rng.poisson(np.maximum(light, 0) * scale) + rng.normal(PEDESTAL, 2, light.shape)
    return np.clip(np.rint(noisy), 0, 65535).astype(np.float32), np.asarray(truth * scale)


def scene(
    seed: int, photons: float = 800.0, haze: float = 0.0, *, empty: bool = False
) -> tuple[Image, Truth]:
    """Return counts (z, y, x) and the true plane (y, x); ``empty``: nothing in the right half."""
    counts, truth = _scene(seed, photons, haze, empty)
    return counts.copy(), truth


@dataclass(frozen=True)
class Prepared:
    """What a mosaic's windows share, and the plane of a mosaic that is one window, or more."""

    backend: Backend
    channel: ChannelModel
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
        sides, places, far = [], [], []
        for part, size in zip((rows, slice(0, counts.shape[2])), counts.shape[1:], strict=True):
            start, side = part.start - HALO_PX, -(-(part.stop - part.start + 2 * HALO_PX) // 8) * 8
            at = np.arange(start, start + side)
            sides.append(side)
            places.append(mirrored(start, start + side, size))
            far.append(np.minimum(at, size - 1 - at))
        y, x = places
        window, there = counts[:, y][:, :, x], seen[y][:, x]
        border = np.minimum.outer(*far).astype(np.float32)
        trust = confidence_weight(border, there, clipped[y][:, x])
        found = self.wiener_plane(sides).project(fill(window, there), trust)
        image: Image = self.backend.to_numpy(found.image)
        return image[HALO_PX:, HALO_PX:][: rows.stop - rows.start, : counts.shape[2]]

    def wiener_plane(self, sides: list[int]) -> WienerPlane:
        maps = FocusMaps(self.backend, self.channel, NOISE, PEDESTAL, (sides[0], sides[1]))
        return WienerPlane(maps, self.filters)

    def whole(self, counts: Image) -> tuple[FocusMaps, WienerProjection]:
        """Return a mosaic taken as one circular window."""
        wiener = self.wiener_plane(list(counts.shape[1:]))
        return wiener.maps, wiener.project(counts)

    def haze_share(self, counts: Image) -> float:
        """Return the share that a window tells which has the mosaic within its halo."""
        window = np.pad(counts, ((0, 0), *[(HALO_PX, HALO_PX)] * 2), mode="symmetric")
        maps, found = self.whole(window)
        return haze_share([haze_moments(maps, window, found)])


def prepare(backend: Backend, counts: Image, plane_mask: NDArray[np.bool_] = ALL) -> Prepared:
    """Return the filters of a mosaic that is its own sample."""
    profiles = transfer.transfer_profiles(fine_psf())
    power = channel_model.object_power(backend, [counts], profiles, plane_mask)
    variance = channel_model.mean_variance(NOISE, [counts[plane_mask]], PEDESTAL)
    channel = ChannelModel(profiles, plane_mask, power, variance)
    maps = FocusMaps(backend, channel, NOISE, PEDESTAL, (counts.shape[1], counts.shape[2]))
    return Prepared(backend, channel, wiener_filters.make_filters(channel, maps.bin_usage(counts)))


class Sample(NamedTuple):
    counts: Image
    truth: Truth
    prepared: Prepared
    plane: Image
    """Not clipped."""

    @property
    def psnr(self) -> float:
        return psnr(np.maximum(self.plane, 0), self.truth)


@lru_cache(maxsize=8)
def sample(seed: int, haze: float = 0.0) -> Sample:
    """Return a stack and its plane on the CPU: read only."""
    counts, truth = scene(seed, haze=haze)
    prepared = prepare(cpu_backend(workers=2), counts)
    plane = prepared.plane(counts)
    for array in (counts, truth, plane):
        array.flags.writeable = False
    return Sample(counts, truth, prepared, plane)


def debris_light(
    peak: float, radius: float, plane: int, at: tuple[int, int] = (SIZE // 2, SIZE // 2)
) -> NDArray[np.float64]:
    """Return a disc's light in every plane, through the scene's own PSF."""
    away = np.hypot(*(np.mgrid[:SIZE, :SIZE] - np.array(at)[:, None, None]))
    shape, psf = (2 * SIZE, 2 * SIZE), fine_psf()
    middle = len(psf) // 2
    disc = fft.rfft2(peak * np.clip(radius + 0.5 - away, 0, 1), shape)
    planes = psf[middle - FINE * plane :: FINE][:PLANES] / psf[middle].sum()
    seen = [fft.irfft2(disc * _transfer(p, shape), s=shape)[:SIZE, :SIZE] for p in planes]
    return np.asarray(np.maximum(seen, 0))
