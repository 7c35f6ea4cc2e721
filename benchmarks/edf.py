"""Extended depth of field against the true in-focus projection.

``python -m benchmarks.edf [--peer-python PATH] [--iterations N] [--png FOLDER]`` where PATH is
the interpreter of a virtual environment with psfmodels, which makes the stacks. The peers (the
maximum over z, and the argmax of the smoothed local variance as CLIJ has it) are computed here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from tests.kernels.deconvolve.deconvolution import deconvolve
from tilewright.io.results.mosaic import create_mosaic, open_mosaic
from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.kernels.deconvolve.richardson_lucy import scene_margin
from tilewright.kernels.edf.focus import psf_mean, soft_focus
from tilewright.kernels.noise import photon_transfer
from tilewright.stages.deconvolve.stack import deconvolve as deconvolve_mosaic
from tilewright.stages.edf.plane import edf_plane

TOOL = Path(__file__).resolve().parents[2] / "shared" / "tools" / "edf-truth"
WORKERS = 2
#: PSNR in dB that psf_mean and soft_focus must reach.
BARS = {"wavy": (34.8, 32.7), "thick": (32.3, 26.9), "dim": (27.0, 24.5)}
Z_STEP_UM = 1.5
VOXEL_UM = (Z_STEP_UM, 0.377, 0.377)
OPTICS = {
    "numerical_aperture": 0.75,
    "emission_nm": 668.0,
    "immersion_refractive_index": 1.0,
    "sample_refractive_index": 1.44,
}
Image = NDArray[np.float32]


def main() -> None:
    """Run the three sets and print one line per method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--iterations", type=int, default=35)
    parser.add_argument("--png", type=Path, help="folder for pictures")
    options = parser.parse_args()
    if not TOOL.is_file():
        print(f"{TOOL} is absent: there is nothing to measure against")
        return
    if options.peer_python == sys.executable and find_spec("psfmodels") is None:
        print("psfmodels is not installed: give --peer-python, the interpreter of a venv with it")
        return
    backend = cpu_backend(WORKERS)
    print(f"{'set':6}{'method':36}{'PSNR dB':>8}{'bar':>6}{'slope':>7}{'s':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name, bars in BARS.items():
            path = Path(folder) / f"{name}.npz"
            command = [options.peer_python, str(TOOL), str(path), name]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            with np.load(path) as data:
                _measure(backend, name, dict(data), bars, options.iterations, options.png)
            path.unlink()


def _measure(
    backend: Backend,
    name: str,
    data: dict[str, NDArray[Any]],
    bars: tuple[float, float],
    iterations: int,
    png: Path | None,
) -> None:
    stack, truth, psf = data["img"], data["gt"], data["psf"]
    kept = np.ones(len(stack), bool)
    kernel = psf[len(psf) // 2]

    def soft() -> Image:
        noise = photon_transfer(backend, stack[len(stack) // 2], 0.0)
        image: Image = soft_focus(backend, stack, noise, 0.0, kept).image
        return image

    def mean() -> Image:
        light = deconvolve(
            backend,
            stack,
            psf,
            background=float(data["bg"]),
            iterations=iterations,
            margin=scene_margin(len(stack), Z_STEP_UM),
        ).image
        share = float(kernel.sum())
        image: Image = psf_mean(backend, light, kernel, share, 1.0).image
        return image

    def stages(through: bool) -> Callable[[], Image]:
        return lambda: staged(backend, stack, float(data["bg"]), through)

    methods: list[tuple[str, Callable[[], Image], float | None]] = [
        ("max projection", lambda: stack.max(axis=0).astype(np.float32), None),
        ("variance, blur, argmax (as CLIJ)", lambda: variance_argmax(stack), None),
        ("soft_focus (raw)", soft, bars[1]),
        (f"deconvolution ({iterations}), psf_mean", mean, bars[0]),
        ("stage project, raw stack", stages(False), None),
        ("stages deconvolve, project", stages(True), None),
    ]
    pictures = {"truth": truth, "middle": stack[len(stack) // 2].astype(np.float32)}
    for label, run, bar in methods:
        started = time.perf_counter()
        image = run()
        seconds = time.perf_counter() - started
        decibel, slope = psnr(image, truth)
        wanted = f"{bar:6.1f}" if bar else f"{'':6}"
        print(f"{name:6}{label:36}{decibel:8.2f}{wanted}{slope:7.2f}{seconds:7.1f}", flush=True)
        pictures[label] = image
    if png is not None:
        _save(png, name, pictures)


def staged(backend: Backend, stack: NDArray[Any], pedestal: float, through: bool) -> Image:
    """Return the plane that the workflow's stages make, with or without deconvolution."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "in.zarr"
        told = {"pedestal_counts": pedestal}
        with create_mosaic(
            source, stack.shape, stack.dtype, 512, VOXEL_UM, "in", attributes=told
        ) as writer:
            writer.write(0, 0, 0, stack)
        if through:
            deconvolve_mosaic(
                source,
                folder / "light.zarr",
                backend=backend,
                optics=OPTICS,
                gain_counts_per_photon=None,
                psf_file=None,
                iterations=None,
                tile_px=1024,
                halo_px=64,
            )
            source = folder / "light.zarr"
        output = folder / "edf.zarr"
        edf_plane(
            source,
            output,
            folder / "height.tif",
            backend=backend,
            method="psf_mean" if through else "soft_focus",
            optics=OPTICS,
        )
        image: Image = open_mosaic(output).read(0).astype(np.float32)
        return image


def variance_argmax(stack: NDArray[Any]) -> Image:
    """Take each pixel from the plane of the greatest local variance, smoothed by 5 px."""
    planes = stack.astype(np.float32)
    score = [
        ndimage.gaussian_filter(
            ndimage.uniform_filter(p * p, 5) - ndimage.uniform_filter(p, 5) ** 2, 5.0
        )
        for p in planes
    ]
    best = np.argmax(score, axis=0)[None]
    image: Image = np.take_along_axis(planes, best, axis=0)[0]
    return image


def psnr(image: Image, truth: Image) -> tuple[float, float]:
    """Return the PSNR after an affine fit (peak: the truth's 99.9th percentile), and its slope."""
    slope, offset = np.polyfit(image.ravel().astype(np.float64), truth.ravel(), 1)
    error = slope * image.astype(np.float64) + offset - truth
    peak = float(np.percentile(truth, 99.9))
    return float(10 * np.log10(peak**2 / np.mean(error**2))), float(slope)


def _save(folder: Path, name: str, pictures: dict[str, Image]) -> None:
    """Write one strip of the same 384 px of every image, each on its own 0.5–99.8 % range."""
    folder.mkdir(parents=True, exist_ok=True)
    strip = []
    for image in pictures.values():
        low, high = np.percentile(image, [0.5, 99.8])
        part = np.clip((image[192:576, 192:576] - low) / (high - low), 0, 1)
        strip.append(np.pad((255 * part).astype(np.uint8), 2, constant_values=255))
    rows = [np.concatenate(strip[i : i + 4], axis=1) for i in range(0, len(strip), 4)]
    width = max(row.shape[1] for row in rows)
    sheet = np.concatenate([np.pad(r, ((0, 0), (0, width - r.shape[1]))) for r in rows])
    (folder / f"{name}.png").write_bytes(imagecodecs.png_encode(sheet))
    print(f"       {folder / name}.png: {', '.join(pictures)}")


if __name__ == "__main__":
    main()
