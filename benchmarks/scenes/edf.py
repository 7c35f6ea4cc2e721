"""Stacks with their true in-focus projection, for designs that ``edf-truth`` does not make.

``python benchmarks/scenes/edf.py OUT.npz DESIGN [SEED]`` with an interpreter that has numpy, scipy
and psfmodels; nothing of tilewright makes them. Light from up to 48 px outside the view leaks in,
and the tissue may reach beyond the stack. Keys of the file: ``img`` (z, y, x uint16), ``gt`` (y, x:
all light, also from
beyond the stack, through the in-focus PSF), ``psf``, ``bg``.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy import ndimage

_BORDER_PX = 48
_PSF_PX = 65


@dataclass(frozen=True)
class Scene:
    """One design; lengths in µm.

    Parameters
    ----------
    planes, size_px : int
        Of the stack.
    pixel, step, aperture, wavelength, immersion, sample : float
        Sampling and optics.
    relief, thickness, density : float
        Amplitude of the wavy sheet; spread of the cells about it; cells per 110 µm².
    photons : float
        99.9th percentile of the stack's light.
    haze : float
        Mean of a smooth light that is the same in all planes, over the mean of the rest.
    haze_scale : float
        Standard deviation of the Gaussian that the haze was smoothed with.
    margin : int
        Planes beyond either end into which the tissue may reach.
    fibres : bool
        Fibres and vessel walls instead of cells.
    veil : float
        Grain everywhere on the sheet, over the brightest cell.
    """

    planes: int = 17
    size_px: int = 512
    pixel: float = 0.377
    step: float = 1.5
    aperture: float = 0.75
    wavelength: float = 0.668
    immersion: float = 1.0
    sample: float = 1.44
    relief: float = 7.0
    thickness: float = 4.0
    density: float = 1.0
    photons: float = 800.0
    haze: float = 0.0
    haze_scale: float = 15.0
    margin: int = 0
    fibres: bool = False
    veil: float = 0.0


DESIGNS = {
    "haze": Scene(size_px=768, haze=1.7),
    "wavy": Scene(),
    "thick": Scene(relief=4.0, thickness=12.0, density=2.0),
    "steep": Scene(relief=10.5, thickness=3.0),
    "flat": Scene(relief=0.5, thickness=2.0),
    "dense": Scene(relief=5.0, thickness=8.0, density=4.0),
    "dim": Scene(photons=80.0),
    "very_dim": Scene(photons=25.0),
    "beyond": Scene(relief=14.0, margin=6),
    "na04": Scene(aperture=0.4, step=3.0, planes=13, relief=12.0, pixel=0.65),
    "na14": Scene(
        planes=21,
        pixel=0.1,
        step=0.25,
        aperture=1.4,
        wavelength=0.6,
        immersion=1.515,
        sample=1.47,
        relief=1.6,
        thickness=1.0,
    ),
    "index": Scene(),
    "fibres": Scene(fibres=True, thickness=6.0),
    "hazy_thick": Scene(relief=4.0, thickness=12.0, density=2.0, haze=0.8),
    "hazy_dim": Scene(photons=120.0, haze=1.7),
    "five": Scene(planes=5, step=3.0, relief=5.0),
}


def make(scene: Scene, seed: int) -> dict[str, Any]:
    """Return the arrays of a scene."""
    rng = np.random.default_rng(seed)
    fine = 3
    size = scene.size_px + 2 * _BORDER_PX
    step = scene.step / fine
    layers = (scene.planes + 2 * scene.margin) * fine
    height = (np.arange(layers) - layers / 2) * step
    volume = np.zeros((layers, size, size), np.float32)
    _draw(scene, rng, volume, height)
    half = layers - 1
    psf = psf_of(scene, (np.arange(2 * layers - 1) - half) * step)
    psf /= psf[half].sum()
    shape = (scipy.fft.next_fast_len(size + 64, real=True),) * 2
    spectra = [scipy.fft.rfft2(layer, shape) for layer in volume]
    transfer = [_transfer(kernel, shape) for kernel in psf]
    light = np.zeros((scene.planes, size, size), np.float32)
    for i in range(scene.planes):
        at = (i + scene.margin) * fine + fine // 2
        total = sum(spectra[j] * transfer[at - j + half] for j in range(layers))
        light[i] = scipy.fft.irfft2(total, shape)[:size, :size]
    flat = scipy.fft.rfft2(volume.sum(axis=0), shape) * transfer[half]
    truth = scipy.fft.irfft2(flat, shape)[:size, :size]
    inner = (slice(_BORDER_PX, -_BORDER_PX),) * 2
    light, truth = np.maximum(light[:, *inner], 0), np.maximum(truth[inner], 0)
    scale = scene.photons / np.percentile(light, 99.9)
    light = light * scale + _haze(scene, rng, float(light.mean() * scale), light.shape[1:])
    noisy = rng.poisson(light + 60) + rng.normal(0, 1.6, light.shape)
    coarse = psf_of(scene, (np.arange(2 * scene.planes - 1) - scene.planes + 1) * scene.step)
    return {
        "img": np.clip(np.rint(noisy), 0, 65535).astype(np.uint16),
        "gt": (truth * scale).astype(np.float32),
        "psf": coarse / coarse.sum(),
        "bg": 60.0,
    }


def _draw(
    scene: Scene, rng: np.random.Generator, volume: NDArray[np.float32], height: NDArray[Any]
) -> None:
    """Add cells, or fibres, about the wavy sheet; sizes scale with the pixel below 0.2 µm."""
    size = volume.shape[1]
    extent = size * scene.pixel
    small = min(scene.pixel / 0.377, 1.0)
    surface = _surface(scene, size, scene.pixel / small)
    texture = ndimage.gaussian_filter(rng.standard_normal((size, size)), 1.1)
    texture = np.clip(1 + 0.5 * texture / texture.std(), 0.05, None).astype(np.float32)
    count = int(scene.density * (extent / small) ** 2 / (400 if scene.fibres else 110))
    for _ in range(count):
        centre = rng.uniform(0, extent / small, 2)
        part, image = (_fibre if scene.fibres else _cell)(rng, centre, scene.pixel / small, size)
        image = image * texture[part] * rng.uniform(0.2, 1)
        at = tuple(np.minimum(centre / scene.pixel * small, size - 1).astype(int))
        middle = surface[at] + rng.uniform(-0.5, 0.5) * scene.thickness
        profile = np.exp(-0.5 * ((height - middle) / (1.0 * small)) ** 2).astype(np.float32)
        # Of objects beyond all layers nothing shows; the others keep their whole light.
        profile *= step_share(height, small) if scene.margin else 1 / max(profile.sum(), 1e-6)
        volume[(slice(None), *part)] += profile[:, None, None] * image.astype(np.float32)
    if scene.veil:
        profile = np.exp(-0.5 * ((height[:, None, None] - surface) / small) ** 2)
        profile *= scene.veil * texture / np.maximum(profile.sum(axis=0), 1e-6)
        volume += profile.astype(np.float32)


def _surface(scene: Scene, size: int, pixel: float) -> NDArray[np.float64]:
    """Return the height (y, x) of the wavy sheet, in µm."""
    yy, xx = np.mgrid[:size, :size] * pixel
    wave = 0.55 * np.sin(2 * np.pi * xx / 310 + 0.4) + 0.45 * np.cos(2 * np.pi * yy / 260)
    surface: NDArray[np.float64] = scene.relief * (wave + 0.004 * (xx - xx.mean()) / 6)
    return surface


def step_share(height: NDArray[Any], small: float) -> np.float32:
    """Return what scales a Gaussian of ``small`` µm on these layers to the sum 1."""
    return np.float32((height[1] - height[0]) / (small * np.sqrt(2 * np.pi)))


def _around(
    centre: NDArray[Any], reach: float, pixel: float, size: int
) -> tuple[tuple[slice, slice], NDArray[Any], NDArray[Any]]:
    at, wide = (centre / pixel).astype(int), int(reach / pixel) + 1
    part = tuple(slice(max(int(c) - wide, 0), min(int(c) + wide, size)) for c in at)
    y, x = (np.arange(p.start, p.stop) * pixel - c for p, c in zip(part, centre, strict=True))
    return (part[0], part[1]), y[:, None], x[None, :]


def _cell(
    rng: np.random.Generator, centre: NDArray[Any], pixel: float, size: int
) -> tuple[tuple[slice, slice], NDArray[Any]]:
    """Return an ellipse of 2.6 to 4.4 µm, four in ten with a bright rim."""
    radius, angle = rng.uniform(2.6, 4.4, 2), rng.uniform(0, np.pi)
    part, y, x = _around(centre, 7.5, pixel, size)
    u, v = np.cos(angle) * y + np.sin(angle) * x, np.cos(angle) * x - np.sin(angle) * y
    rho = np.hypot(u / radius[0], v / radius[1])
    body = 1 / (1 + np.exp((rho - 1) * 8))
    rim = np.exp(-0.5 * ((rho - 1.2) * radius.mean() / 0.35) ** 2) * (rng.random() < 0.4)
    return part, body + rim


def _fibre(
    rng: np.random.Generator, centre: NDArray[Any], pixel: float, size: int
) -> tuple[tuple[slice, slice], NDArray[Any]]:
    """Return a bent fibre of 0.8 µm, or the wall of a vessel across."""
    angle = rng.uniform(0, np.pi)
    part, y, x = _around(centre, 22.0, pixel, size)
    u, v = np.cos(angle) * y + np.sin(angle) * x, np.cos(angle) * x - np.sin(angle) * y
    if rng.random() < 0.2:
        return part, np.exp(-0.5 * ((np.hypot(u, v) - rng.uniform(5, 12)) / 0.8) ** 2)
    bend = v - rng.uniform(-0.02, 0.02) * u**2
    return part, np.exp(-0.5 * (bend / 0.5) ** 2) / (1 + np.exp((np.abs(u) - 16) * 1.5))


def psf_of(scene: Scene, z_um: NDArray[Any], side_px: int = _PSF_PX) -> NDArray[np.float32]:
    """Return the PSF of a scene's optics at these depths: (z, side, side)."""
    import psfmodels

    values = psfmodels.make_psf(
        z_um,
        nx=side_px,
        dxy=scene.pixel,
        NA=scene.aperture,
        wvl=scene.wavelength,
        ni=scene.immersion,
        ni0=scene.immersion,
        ns=scene.sample,
        pz=0.0,
        model="scalar",
        tg=170,
        tg0=170,
        ng=1.515,
        ng0=1.515,
        ti0=150,
    )
    return np.asarray(values, np.float32)


def _transfer(kernel: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    padded = np.zeros(shape, np.float32)
    padded[: kernel.shape[0], : kernel.shape[1]] = kernel
    half = kernel.shape[0] // 2
    return np.asarray(scipy.fft.rfft2(np.roll(padded, (-half, -half), (0, 1))))


def _haze(
    scene: Scene, rng: np.random.Generator, mean: float, shape: tuple[int, ...]
) -> NDArray[Any] | float:
    if scene.haze == 0:
        return 0.0
    field = rng.standard_normal([n + 2 * _BORDER_PX for n in shape])
    field = ndimage.gaussian_filter(field, scene.haze_scale / scene.pixel, mode="wrap")
    field = field[_BORDER_PX:-_BORDER_PX, _BORDER_PX:-_BORDER_PX]
    field = np.clip(1 + 0.6 * field / field.std(), 0.1, None)
    return np.asarray(scene.haze * mean * field / field.mean())


if __name__ == "__main__":
    design = sys.argv[2]
    number = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    np.savez(Path(sys.argv[1]), **make(DESIGNS[design], number))
