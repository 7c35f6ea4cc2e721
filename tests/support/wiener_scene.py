"""Stacks of a wavy sheet through a Gibson-Lanni microscope, with their true in-focus plane."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from tilewright.kernels.deconvolve.psf import Optics, gibson_lanni
from tilewright.kernels.edf.channel_model import FINE, psf_planes

PLANES, SIZE, STEP_UM, PIXEL_UM = 9, 192, 1.5, 0.377
PEDESTAL = 100.0
OPTICS = Optics(0.75, 668, 1.0, 1.44)
ALL = np.ones(PLANES, bool)
Image = NDArray[np.float32]
Truth = NDArray[np.float64]


@lru_cache(maxsize=1)
def fine_psf() -> Image:
    """Return the PSF at half the step."""
    voxel = (STEP_UM / FINE, PIXEL_UM, PIXEL_UM)
    return gibson_lanni(OPTICS, voxel, psf_planes(PLANES, STEP_UM), max_lateral_px=65)


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
