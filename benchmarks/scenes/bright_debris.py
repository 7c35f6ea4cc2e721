"""Stacks with bright debris, beside the same stacks without them.

``python -m benchmarks.scenes.bright_debris OUT.npz DESIGN SEED`` with an interpreter that has
numpy, scipy and psfmodels; nothing of tilewright makes them. Tissue is that of
:mod:`benchmarks.scenes.edf`; four places hold one piece or three within 30 px. Photons of tissue
and debris are drawn apart, so both stacks have the same noise but for the debris' own. Light
spreads with a PSF of 193 px. Keys: ``img``, ``clean`` (z, y, x uint16), ``light`` (z, y, x
float32, of the debris alone), ``bg``, ``places`` (a row each: y, x, place, plane, peak, radius).
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from benchmarks.scenes.edf import Scene, make, psf_of

SCENES = {
    "bright": Scene(size_px=640, veil=0.15),
    "dim": Scene(size_px=640, photons=500.0, density=0.5, veil=0.5),
    "thick": Scene(size_px=640, relief=4.0, thickness=12.0, density=2.0),
    "glass": Scene(size_px=640, density=0.08),
    "fibres": Scene(size_px=640, fibres=True, thickness=6.0, photons=1500.0, veil=0.15),
    "low": Scene(size_px=640, photons=200.0, density=0.0, veil=1.0),
}
PEAKS = (4e3, 8e3, 3e4, 6e4, 1.2e5, 4e5, 2e6)
_PSF_PX = 193
_FINE = 3
_CEILING = 65535


def with_debris(scene: Scene, seed: int) -> dict[str, Any]:
    """Return the arrays of a scene."""
    made = make(scene, seed)
    rng = np.random.default_rng([seed, 1])
    clean = made["img"].astype(np.int64)
    places = _places(scene, rng)
    light = _light(scene, places)
    full = clean + rng.poisson(light)
    return {
        "img": np.minimum(full, _CEILING).astype(np.uint16),
        "clean": np.minimum(clean, _CEILING).astype(np.uint16),
        "light": light,
        "bg": made["bg"],
        "places": places,
    }


def _places(scene: Scene, rng: np.random.Generator) -> NDArray[np.float64]:
    rows = []
    for place in range(4):
        centre = (np.array(divmod(place, 2)) + 0.5) * scene.size_px / 2 + rng.uniform(-30, 30, 2)
        depth = rng.choice([scene.planes // 2, scene.planes // 4, 0, scene.planes - 1])
        peak, radius = rng.choice(PEAKS), rng.uniform(1, 6)
        count = 3 if rng.random() < 0.25 else 1
        for i in range(count):
            angle = 2 * np.pi * (i / 3 + rng.random() / 4)
            apart = 0.0 if count == 1 else rng.uniform(8, 15)
            at = centre + apart * np.array([np.sin(angle), np.cos(angle)])
            rows.append((*at, place, depth, peak * (1 if i == 0 else rng.uniform(0.3, 1)), radius))
    return np.array(rows)


def _light(scene: Scene, places: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the debris' light (z, y, x): discs of 1 µm depth through the PSF."""
    pad = _PSF_PX // 2
    size = scene.size_px + 2 * pad
    shape = (scipy.fft.next_fast_len(size, real=True),) * 2
    yy, xx = np.mgrid[:size, :size] - float(pad)
    steps = np.arange(-_FINE * scene.planes, _FINE * scene.planes + 1) * scene.step / _FINE
    psf = psf_of(scene, steps, _PSF_PX)
    psf /= psf[len(psf) // 2].sum()
    out = np.zeros((scene.planes, scene.size_px, scene.size_px))
    half = _PSF_PX // 2
    for depth in np.unique(places[:, 3]):
        discs = np.zeros((size, size))
        for y, x, _, _, peak, radius in places[places[:, 3] == depth]:
            away = np.hypot(yy - y, xx - x)
            disc = np.clip(radius + 0.5 - away, 0, 1)
            discs += disc * peak / min(1.0, _in_focus_peak(psf[len(psf) // 2], radius))
        spectrum = scipy.fft.rfft2(discs, shape)
        for z in range(scene.planes):
            near = len(psf) // 2 + _FINE * int(z - depth)
            # A third of a plane either way: debris is not infinitely thin.
            kernel = psf[max(near - 1, 0) : near + 2].mean(axis=0)
            padded = np.zeros(shape, np.float32)
            padded[:_PSF_PX, :_PSF_PX] = kernel
            padded = np.roll(padded, (-half, -half), (0, 1))
            plane = scipy.fft.irfft2(spectrum * scipy.fft.rfft2(padded), shape)
            out[z] += plane[pad : pad + scene.size_px, pad : pad + scene.size_px]
    return np.maximum(out, 0).astype(np.float32)


def _in_focus_peak(kernel: NDArray[np.float32], radius: float) -> float:
    """Return what the in-focus plane leaves of the middle of a disc of height 1."""
    at = np.arange(len(kernel)) - len(kernel) // 2
    disc = np.clip(radius + 0.5 - np.hypot(at[:, None], at), 0, 1)
    return float((kernel * disc).sum())


if __name__ == "__main__":
    name = sys.argv[2]
    np.savez(Path(sys.argv[1]), **with_debris(SCENES[name], int(sys.argv[3])))
