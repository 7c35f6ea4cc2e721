"""The direct plane beside Richardson-Lucy with ``psf_mean`` and ``soft_focus``.

``python -m benchmarks.direct_plane --peer-python PATH [--sets S …] [--seed N] [--png FOLDER]``
where PATH is the interpreter of an environment with numpy, scipy and psfmodels, which makes the
stacks: ``edf-truth`` of ``../shared`` for wavy, thick and dim, and ``benchmarks/edf_scenes.py``
for the others. Each run is a process of its own on one thread; CPU seconds and peak memory are
of the estimate, data included, in seconds per megavoxel of the stack. ``setup`` is the CPU
seconds of what is done once per channel. PSNR is taken after an affine fit to the truth, with its
99.9th percentile as peak; ``grain`` is the scatter of the dark parts above 5 px, in counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from benchmarks.edf import _save, psnr
from benchmarks.edf_scenes import DESIGNS, Scene
from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.kernels.deconvolve.blur import Blur
from tilewright.kernels.deconvolve.psf import Optics, gibson_lanni
from tilewright.kernels.deconvolve.richardson_lucy import RichardsonLucy, scene_margin
from tilewright.kernels.edf.direct_filters import (
    BEYOND_UM,
    FINE,
    Channel,
    Filters,
    make_filters,
    mean_variance,
    object_power,
    psf_planes,
    transfer_profiles,
    window_len,
)
from tilewright.kernels.edf.direct_finish import (
    coarser,
    finish,
    floor_of,
    haze_moments,
    haze_share,
    mirrored,
    trust_in,
)
from tilewright.kernels.edf.direct_plane import HALO_PX, POOL_PX, DirectPlane, FocusMaps
from tilewright.kernels.edf.focus import blur, soft_focus
from tilewright.kernels.noise import NoiseModel, photon_transfer

TOOL = Path(__file__).resolve().parents[2] / "shared" / "tools" / "edf-truth"
#: PSNR in dB that the direct plane must reach; on other sets RL's less 0.2.
BARS = {"edf-wavy": 38.5, "edf-thick": 34.6, "edf-dim": 30.0, "haze": 26.7}
ITERATIONS = 35
_SAMPLE_PX = 512
Image = NDArray[np.float32]


def main() -> None:
    """Run the sets and print one line each, then what holds for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--sets", nargs="*", default=[*BARS, *(d for d in DESIGNS if d != "haze")])
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--png", type=Path, help="folder for pictures")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        _one(*options.one)
        return
    print(f"{'set':12}{'soft':>7}{'RL':>7}{'direct':>8}{'bar':>7}{'flux':>7}{'haze':>6}", end="")
    print(f"{'grain RL/direct':>17}{'CPU-s/Mvox RL/direct':>22}{'setup':>7}{'MB':>11}")
    gains = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sets:
            gain = _measure(name, options.seed, options.peer_python, Path(folder), options.png)
            if gain is not None:
                gains.append(gain)
    if gains:
        print(f"above RL by {np.median(gains):.2f} dB in the median, {min(gains):.2f} at least")


def _measure(name: str, seed: int, peer: str, folder: Path, png: Path | None) -> float | None:
    path = folder / f"{name}.npz"
    own = Path(__file__).with_name("edf_scenes.py")
    command = [peer, str(own), str(path), name, str(seed)]
    if name.startswith("edf-"):
        if not TOOL.is_file():
            print(f"{name}: {TOOL} is absent")
            return None
        command = [peer, str(TOOL), str(path), name.removeprefix("edf-")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with np.load(path) as data:
        truth, middle = data["gt"], data["img"][len(data["img"]) // 2]
    images, told = {}, {}
    for method in ("soft", "RL", "direct"):
        out = folder / f"{method}.npy"
        run = [sys.executable, "-m", "benchmarks.direct_plane", "--one", method, name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        answer = subprocess.run(
            [*run, str(path), str(out)], check=True, capture_output=True, text=True, env=environment
        )
        told[method] = json.loads(answer.stdout.splitlines()[-1])
        images[method] = np.load(out)
    path.unlink()
    scores = {method: psnr(image, truth)[0] for method, image in images.items()}
    bar = BARS.get(name, scores["RL"] - 0.2)
    grain = [_grain(images[m], truth) for m in ("RL", "direct")]
    flux = float(images["direct"].mean() / truth.mean())
    print(
        f"{name:12}{scores['soft']:7.2f}{scores['RL']:7.2f}{scores['direct']:8.2f}{bar:7.2f}"
        f"{flux:7.3f}{told['direct']['haze']:6.2f}{grain[0]:11.2f}/{grain[1]:5.2f}"
        f"{told['RL']['cpu']:14.2f} /{told['direct']['cpu']:6.3f}{told['direct']['setup']:7.2f}"
        f"{told['RL']['mb']:6.0f}/{told['direct']['mb']:4.0f}",
        flush=True,
    )
    if png is not None:
        _save(png, name, {"truth": truth, "middle": middle.astype(np.float32), **images})
    return scores["direct"] - scores["RL"]


def _grain(image: Image, truth: Image) -> float:
    dark = ndimage.maximum_filter(truth, 15) < 0.02 * np.percentile(truth, 99.9)
    fine = image - ndimage.gaussian_filter(image, 5.0)
    return float(fine[dark].std()) if dark.any() else float("nan")


def _one(method: str, name: str, path: str, out: str) -> None:
    """Run one method on one stack, and print what it took."""
    with np.load(path) as data:
        stack, psf, pedestal = data["img"], data["psf"], float(data["bg"])
    scene = DESIGNS.get(name.removeprefix("edf-"), Scene())
    backend = cpu_backend(1)
    started = time.process_time()
    setup, haze = 0.0, 0.0
    if method == "soft":
        noise = photon_transfer(backend, stack[len(stack) // 2], pedestal)
        image = soft_focus(backend, stack, noise, pedestal, np.ones(len(stack), bool)).image
    elif method == "RL":
        image = _richardson_lucy(backend, stack, psf, pedestal, scene)
    else:
        image, setup, haze = direct(backend, stack, pedestal, scene, name == "index")
    seconds = (time.process_time() - started - setup) / (stack.size / 1e6)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    np.save(out, image)
    print(json.dumps({"cpu": seconds, "setup": setup, "haze": haze, "mb": peak}))


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
    if scene.margin:
        # And of the planes next to each end of the view, which the circular scene goes on with.
        z, y, x = view
        spare = len(solver._x) - z
        above = min(round(BEYOND_UM / scene.step), spare)
        below = min(above, spare - above)
        light = light + solver._x[z : z + above, :y, :x].sum(axis=0)
        light += solver._x[z + spare - below :, :y, :x].sum(axis=0)
    image: Image = float(kernel.sum()) * blur(backend, light, kernel)
    return image


def direct(
    backend: Backend, stack: NDArray[Any], pedestal: float, scene: Scene, wrong_index: bool
) -> tuple[Image, float, float]:
    """Return the plane, the CPU seconds of what is done once per channel, and the haze's share."""
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
    side = min(_SAMPLE_PX, *(n // 8 * 8 for n in stack.shape[1:]))
    sample = stack[:, :side, :side]
    kept = np.ones(len(stack), bool)
    profiles = transfer_profiles(psf)
    power = object_power(backend, [sample], profiles, kept)
    channel = Channel(profiles, kept, power, mean_variance(noise, [sample], pedestal))
    maps = FocusMaps(backend, channel, noise, pedestal, (side, side))
    filters = make_filters(channel, maps.bins_used(sample))
    found = DirectPlane(maps, filters).project(sample)
    share = haze_share([haze_moments(channel, maps, sample, found)])
    setup = time.process_time() - started
    image, variance = _tiled(backend, stack, channel, filters, noise, pedestal)
    clear = finish(backend, image, variance, floor_of(backend, coarser(image)), share)
    clear = clear[: stack.shape[1], : stack.shape[2]]
    return clear, setup, share


def _tiled(
    backend: Backend,
    stack: NDArray[Any],
    channel: Channel,
    filters: Filters,
    noise: NoiseModel,
    pedestal: float,
    tile_px: int = 1024,
) -> tuple[Image, Image]:
    """Return the plane of a mosaic in tiles of multiples of 8 px, with mirrored borders.

    Both it and its variance are mirrored up to a multiple of 8 px.
    """
    shape = stack.shape[1:]
    tiles = [8 * -(-n // (8 * -(-n // tile_px))) for n in shape]
    window = (window_len(tiles[0] + 2 * HALO_PX), window_len(tiles[1] + 2 * HALO_PX))
    maps = FocusMaps(backend, channel, noise, pedestal, window)
    estimate = DirectPlane(maps, filters)
    whole = [-(-n // 8) * 8 for n in shape]
    out: Image = np.empty(whole, np.float32)
    variance: Image = np.empty([n // POOL_PX for n in whole], np.float32)
    for top in range(0, shape[0], tiles[0]):
        for left in range(0, shape[1], tiles[1]):
            at = [
                np.arange(s - HALO_PX, s - HALO_PX + n)
                for s, n in zip((top, left), window, strict=True)
            ]
            y, x = (mirrored(int(a[0]), int(a[-1]) + 1, n) for a, n in zip(at, shape, strict=True))
            far = [np.minimum(a, n - 1 - a) for a, n in zip(at, shape, strict=True)]
            trust = trust_in(np.minimum.outer(*far).astype(np.float32))
            found = estimate.project(stack[:, y][:, :, x], trust)
            own = out[top : top + tiles[0], left : left + tiles[1]]
            own[...] = found.image[HALO_PX:, HALO_PX:][: own.shape[0], : own.shape[1]]
            small = [n // POOL_PX for n in (HALO_PX, top, left, *own.shape)]
            part = found.variance[small[0] :, small[0] :][: small[3], : small[4]]
            variance[small[1] :, small[2] :][: small[3], : small[4]] = part
    return out, variance


if __name__ == "__main__":
    main()
