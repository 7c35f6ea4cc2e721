"""The in-focus plane: ``multiplane_wiener``, Richardson-Lucy, ``focus_weighted``, variance argmax.

``python -m benchmarks.multiplane_wiener --peer-python PATH [--sets S …] [--seed N]`` where PATH is
the interpreter of an environment with numpy, scipy and psfmodels, which makes the stacks:
``edf-truth`` of ``../shared`` for wavy, thick and dim, and ``benchmarks/scenes/edf.py`` for the
others. Richardson-Lucy is followed by ``sum_projection``; it lacks light from beyond the stack. The
argmax of the smoothed local variance is as CLIJ has it. Each run is a process of its own on one
thread; CPU seconds are of the estimate, in seconds per megavoxel of the stack, ``setup`` those of
what is done once per channel. PSNR is taken after an affine fit to the truth, with its 99.9th
percentile as peak.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.signal import fftconvolve

from benchmarks.scenes.edf import DESIGNS, Scene
from benchmarks.truth_tiles import SHARED
from tilewright.kernels.backend import Backend, cpu_backend, fast_len
from tilewright.kernels.deconvolve.blur import Blur
from tilewright.kernels.deconvolve.psf import Optics, gibson_lanni
from tilewright.kernels.deconvolve.richardson_lucy import RichardsonLucy, scene_margin
from tilewright.kernels.edf.channel_model import (
    FINE,
    ChannelModel,
    mean_variance,
    object_power,
    psf_planes,
    transfer_profiles,
)
from tilewright.kernels.edf.focus import HALO_PX, FocusMeasure, focus_weighted
from tilewright.kernels.edf.wiener_filters import make_filters
from tilewright.kernels.edf.wiener_plane import (
    WienerPlane,
    confidence_weight,
    remove_grain,
)
from tilewright.kernels.noise import photon_transfer
from tilewright.stages.tile_windows import mirrored

TOOL = SHARED / "tools" / "edf-truth"
#: PSNR in dB that the multi-plane Wiener plane must reach; on other sets RL's less 0.2.
BARS = {"edf-wavy": 38.5, "edf-thick": 34.6, "edf-dim": 30.0, "haze": 26.7}
ITERATIONS = 35
_SAMPLE_PX = 512
Image = NDArray[np.float32]


def main() -> None:
    """Run the sets and print one line each, then what holds for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--sets", nargs="*", default=[*BARS])
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        _one(*options.one)
        return
    print(f"{'set':12}{'argmax':>8}{'soft':>7}{'RL':>7}{'wiener':>8}{'bar':>7}", end="")
    print(f"{'flux':>7}{'CPU-s/Mvox RL/wiener':>22}{'setup':>7}")
    gains = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sets:
            gain = _measure(name, options.seed, options.peer_python, Path(folder))
            if gain is not None:
                gains.append(gain)
    if gains:
        print(f"above RL by {np.median(gains):.2f} dB in the median, {min(gains):.2f} at least")


def _measure(name: str, seed: int, peer: str, folder: Path) -> float | None:
    path = folder / f"{name}.npz"
    own = Path(__file__).parent / "scenes/edf.py"
    command = [peer, str(own), str(path), name, str(seed)]
    if name.startswith("edf-"):
        if not TOOL.is_file():
            print(f"{name}: {TOOL} is absent")
            return None
        command = [peer, str(TOOL), str(path), name.removeprefix("edf-")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with np.load(path) as data:
        truth = data["gt"]
    images, told = {}, {}
    for method in ("argmax", "soft", "RL", "wiener"):
        out = folder / f"{method}.npy"
        run = [sys.executable, "-m", "benchmarks.multiplane_wiener", "--one", method, name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        answer = subprocess.run(
            [*run, str(path), str(out)], check=True, capture_output=True, text=True, env=environment
        )
        told[method] = json.loads(answer.stdout.splitlines()[-1])
        images[method] = np.load(out)
    path.unlink()
    scores = {method: psnr(image, truth)[0] for method, image in images.items()}
    bar = BARS.get(name, scores["RL"] - 0.2)
    flux = float(images["wiener"].mean() / truth.mean())
    print(
        f"{name:12}{scores['argmax']:8.2f}{scores['soft']:7.2f}{scores['RL']:7.2f}"
        f"{scores['wiener']:8.2f}{bar:7.2f}{flux:7.3f}"
        f"{told['RL']['cpu']:14.2f} /{told['wiener']['cpu']:6.3f}{told['wiener']['setup']:7.2f}",
        flush=True,
    )
    return scores["wiener"] - scores["RL"]


def _one(method: str, name: str, path: str, out: str) -> None:
    """Run one method on one stack, and print what it took."""
    with np.load(path) as data:
        stack, psf, pedestal = data["img"], data["psf"], float(data["bg"])
    scene = DESIGNS.get(name.removeprefix("edf-"), Scene())
    backend = cpu_backend(1)
    started = time.process_time()
    setup = 0.0
    if method == "argmax":
        image = variance_argmax(stack)
    elif method == "soft":
        noise = photon_transfer(backend, stack[len(stack) // 2], pedestal)
        windows = _Windows(stack)
        mask = np.ones(len(stack), bool)
        measure = FocusMeasure(backend, mask, noise, pedestal, windows.size)
        image = windows.own(focus_weighted(measure, windows.stack).image)
    elif method == "RL":
        image = _richardson_lucy(backend, stack, psf, pedestal, scene)
    else:
        image, setup = wiener(backend, stack, pedestal, scene, name == "index")
    seconds = (time.process_time() - started - setup) / (stack.size / 1e6)
    np.save(out, image)
    print(json.dumps({"cpu": seconds, "setup": setup}))


def _richardson_lucy(
    backend: Backend, stack: NDArray[Any], psf: Image, pedestal: float, scene: Scene
) -> Image:
    view = (stack.shape[0], stack.shape[1], stack.shape[2])
    solver = RichardsonLucy(Blur(backend, psf, view, scene_margin(view[0], scene.step)))
    solver.load(stack.astype(np.float32), pedestal)
    for _ in range(ITERATIONS):
        solver.iterate()
    kernel = psf[len(psf) // 2]
    light = solver.estimate.sum(axis=0)
    wide = np.pad(light, kernel.shape[0] // 2, mode="symmetric")
    image: Image = fftconvolve(wide, kernel, mode="valid")
    return image


class _Windows:
    """A stack (z, y, x) with mirrored borders, multiples of 8 px wide."""

    def __init__(self, stack: NDArray[Any]) -> None:
        self.shape = stack.shape[1:]
        y, x = (8 * fast_len(-(-(n + 2 * HALO_PX) // 8)) for n in self.shape)
        self.size = (y, x)
        sides = zip(self.size, self.shape, strict=True)
        rows, columns = (mirrored(-HALO_PX, w - HALO_PX, n) for w, n in sides)
        self.stack = stack[:, rows][:, :, columns]

    def own(self, image: Image) -> Image:
        """Return the pixels of the stack itself."""
        return image[tuple(slice(HALO_PX, HALO_PX + n) for n in self.shape)]


def wiener(
    backend: Backend, stack: NDArray[Any], pedestal: float, scene: Scene, wrong_index: bool
) -> tuple[Image, float]:
    """Return the plane, and the CPU seconds of what is done once per channel."""
    started = time.process_time()
    optics = Optics(
        scene.aperture,
        1000 * scene.wavelength,
        scene.immersion + (0.05 if wrong_index else 0.0),
        scene.sample,
    )
    voxel = (scene.step / FINE, scene.pixel, scene.pixel)
    # As wide as the PSF that made the stack, and that RL is given.
    psf = gibson_lanni(optics, voxel, psf_planes(len(stack), scene.step), max_lateral_px=65)
    noise = photon_transfer(backend, stack[len(stack) // 2], pedestal)
    side = min(_SAMPLE_PX, *stack.shape[1:])
    sample = stack[:, :side, :side]
    plane_mask = np.ones(len(stack), bool)
    profiles = transfer_profiles(psf)
    power = object_power(backend, [sample], profiles, plane_mask)
    channel = ChannelModel(profiles, plane_mask, power, mean_variance(noise, [sample], pedestal))
    filters = make_filters(channel)
    setup = time.process_time() - started
    windows = _Windows(stack)
    at = [np.arange(w) - HALO_PX for w in windows.size]
    far = [np.minimum(a, n - 1 - a) for a, n in zip(at, windows.shape, strict=True)]
    confidence = confidence_weight(np.minimum.outer(*far).astype(np.float32))
    measure = FocusMeasure(backend, plane_mask, noise, pedestal, windows.size)
    found = WienerPlane(measure, channel, filters).project(windows.stack, confidence)
    return windows.own(remove_grain(backend, found.image, found.variance)), setup


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


if __name__ == "__main__":
    main()
