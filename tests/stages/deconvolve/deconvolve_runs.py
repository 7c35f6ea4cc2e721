"""The deconvolution stage on synthetic tissue."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.signal import fftconvolve

from tests.support.mosaics import OPTICS, VOXEL_UM, write_mosaic
from tilewright.io.results.mosaic import Mosaic, open_mosaic
from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.kernels.deconvolve.psf import Optics, gibson_lanni
from tilewright.stages.deconvolve.stack import deconvolve

CPU = cpu_backend(workers=2)
PEDESTAL = 100.0
OPTIONS: dict[str, Any] = {"optics": OPTICS, "psf_file": None, "iterations": 8}
Counts = NDArray[np.uint16]


def seen(light: NDArray[Any], lateral_px: int) -> NDArray[np.float64]:
    psf = gibson_lanni(Optics(**OPTICS), VOXEL_UM, 2 * len(light) - 1, max_lateral_px=lateral_px)
    return np.maximum(fftconvolve(light, psf.astype(np.float64), mode="same"), 0)


def camera(rng: np.random.Generator, photons: NDArray[Any]) -> Counts:
    """Return counts on the pedestal, gain 1, read noise 2."""
    noisy = rng.poisson(photons) + rng.normal(PEDESTAL, 2, photons.shape)
    return np.rint(noisy).astype(np.uint16)


def tissue(shape: tuple[int, int, int], seed: int = 0) -> tuple[NDArray[Any], Counts]:
    """Return (light, counts) of a stack of blobs."""
    rng = np.random.default_rng(seed)
    light = gaussian_filter((rng.random(shape) < 0.01) * rng.random(shape), (0.4, 1.2, 1.2))
    blurred = seen(light, 33)
    scale = 600 / blurred.max()
    return light * scale, camera(rng, blurred * scale)


def run(folder: Path, counts: NDArray[Any], backend: Backend = CPU, **options: Any) -> Mosaic:
    folder.mkdir(exist_ok=True)
    attributes = {"pedestal_counts": options.pop("pedestal", PEDESTAL)}
    attributes |= {"clipped_low": 3, "clipped_high": 7}
    source = write_mosaic(folder / "in.zarr", counts, **attributes)
    deconvolve(source, folder / "out.zarr", backend=backend, **OPTIONS | options)
    return open_mosaic(folder / "out.zarr")
