"""Deconvolution beside scikit-image, on z-stacks with truth.

``python -m benchmarks.deconvolution --peer-python PATH`` needs ``../shared``; PATH is the
interpreter of an environment with numpy, scipy, psfmodels and scikit-image, which makes the
stacks and runs the peer. Each run is a process of its own: CPU seconds and peak memory are
of the deconvolution alone, data included. PSNR and SSIM (mean of planes) are taken after an
affine fit to the truth, with its 99.9th percentile as range.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from skimage.metrics import structural_similarity

from benchmarks.truth_tiles import SHARED
from tilewright.io.results.mosaic import create_mosaic, open_mosaic
from tilewright.kernels.backend import cpu_backend
from tilewright.kernels.deconvolve.blur import Blur
from tilewright.kernels.deconvolve.richardson_lucy import (
    RichardsonLucy,
    model_background,
    scene_margin,
)
from tilewright.kernels.noise import photon_transfer
from tilewright.stages.deconvolve.stack import deconvolve as deconvolve_mosaic

#: Of each set, the fixed count that reaches the accuracy bars.
ITERATIONS = {"codex17": 32, "wf32": 33}
PEER = """
import sys, time, numpy as np
from skimage.restoration import richardson_lucy
d = np.load(sys.argv[1])
image = np.maximum(d["img"].astype(np.float32) - np.float32(d["bg"]), 0)
scale = image.max()
t, c = time.perf_counter(), time.process_time()
out = richardson_lucy(image / scale, d["psf"], num_iter=30, clip=False, filter_epsilon=1e-6)
peak = open("/proc/self/status").read().split("VmHWM:")[1].split()[0]
print(time.perf_counter() - t, time.process_time() - c, int(peak) / 1024)
np.save(sys.argv[2], out.astype(np.float32))
"""


def score(image: NDArray[Any], truth: NDArray[Any]) -> tuple[float, float]:
    """Return PSNR (dB) and SSIM of an image after an affine fit to the truth."""
    x, t = image.ravel().astype(np.float64), truth.ravel().astype(np.float64)
    slope = float(np.mean((x - x.mean()) * (t - t.mean())) / x.var())
    fit = (slope * (image - x.mean()) + t.mean()).astype(np.float32)
    peak = float(np.percentile(t, 99.9))
    error = float(np.mean((fit - truth) ** 2, dtype=np.float64))
    planes = [
        structural_similarity(a, b, data_range=peak)
        for a, b in zip(fit.astype(np.float64), truth.astype(np.float64), strict=True)
    ]
    return 10 * float(np.log10(peak**2 / error)), float(np.mean(planes))


def load(path: str) -> tuple[NDArray[np.float32], NDArray[np.float32], float, float]:
    """Return counts, PSF, background and z step of a stack."""
    with np.load(path) as data:
        return data["img"].astype(np.float32), data["psf"], float(data["bg"]), float(data["vox"][0])


def ours(path: str, out: str, count: str) -> None:
    """Deconvolve a stack untiled with the stack's PSF."""
    counts, psf, pedestal, step = load(path)
    backend = cpu_backend(2)
    margin = scene_margin(len(counts), step)
    start, cpu = time.perf_counter(), time.process_time()
    background = model_background(photon_transfer(backend, counts[len(counts) // 2], pedestal))
    counts -= np.float32(pedestal - background)
    z, y, x = counts.shape
    solver = RichardsonLucy(Blur(backend, psf, (z, y, x), margin))
    solver.load(np.maximum(counts, 0), background)
    for _ in range(int(count)):
        solver.iterate()
    report(start, cpu, int(count))
    np.save(out, solver.estimate)


def tiled(path: str, out: str) -> None:
    """Deconvolve a stack through the stage in tiles of 512 px, PSF from a file."""
    counts, psf, background, step = load(path)
    with tempfile.TemporaryDirectory() as folder:
        voxel_um, source = (step, 0.377, 0.377), Path(folder) / "in.zarr"
        told = {"pedestal_counts": background}
        with create_mosaic(
            source, counts.shape, np.uint16, 512, voxel_um, attributes=told
        ) as writer:
            writer.write(0, 0, 0, counts.astype(np.uint16))
        tifffile.imwrite(Path(folder) / "psf.tif", psf)
        del counts
        start, cpu = time.perf_counter(), time.process_time()
        deconvolve_mosaic(
            source,
            Path(folder) / "out.zarr",
            backend=cpu_backend(2),
            optics={},
            psf_file=Path(folder) / "psf.tif",
            iterations=ITERATIONS["codex17"],
            tile_px=512,
            halo_px=64,
        )
        report(start, cpu, ITERATIONS["codex17"])
        np.save(out, open_mosaic(Path(folder) / "out.zarr").read())


def report(start: float, cpu: float, iterations: int) -> None:
    """Print what this process took, its peak memory with it, as JSON."""
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    # ru_maxrss would begin at the parent's
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    print(json.dumps({"wall": wall, "cpu": used, "mb": int(peak) / 1024, "iterations": iterations}))


def child(*arguments: str) -> dict[str, float]:
    """Run one part of this file in a process of its own and return what it printed."""
    command = [sys.executable, "-m", "benchmarks.deconvolution", "--child", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def peer(python: str, stack: str, out: str) -> dict[str, float]:
    """Run scikit-image's 30 iterations in its own interpreter."""
    command = [python, "-c", PEER, stack, out]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(("wall", "cpu", "mb"), map(float, done.stdout.split()), strict=True))


def line(label: str, told: dict[str, float], image: NDArray[Any], truth: NDArray[Any]) -> None:
    """Print one line of the table."""
    psnr, ssim = score(image, truth)
    print(
        f"{label:<34} {told.get('iterations', 30):>4.0f} {told['wall']:8.1f} {told['cpu']:8.1f} "
        f"{told['mb']:7.0f} {psnr:7.2f} {ssim:6.3f}",
        flush=True,
    )


def compare(name: str, work: Path, peer_python: str | None) -> None:
    """Print the table of one set."""
    stack = work / f"{name}.npz"
    if not stack.exists():
        make = [peer_python or sys.executable, str(SHARED / "tools/zstack-truth"), str(stack), name]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    with np.load(stack) as data:
        truth, raw = data["truth"], data["img"].astype(np.float32)
    print(f"\n{name} {raw.shape}{'':<18} its   wall s    CPU-s      MB  PSNR dB   SSIM")
    line("raw", {"wall": 0, "cpu": 0, "mb": 0, "iterations": 0}, raw, truth)
    out = work / "out.npy"
    own = child("ours", str(stack), str(out), str(ITERATIONS[name]))
    line(f"tilewright, {ITERATIONS[name]} iterations", own, np.load(out), truth)
    if name == "codex17":
        told = child("tiled", str(stack), str(out))
        line("tilewright, stage, 512 px tiles", told, np.load(out), truth)
    if peer_python:
        told = peer(peer_python, str(stack), str(out))
        line("scikit-image", told, np.load(out), truth)
        cpu, wall = (own[key] / told[key] for key in ("cpu", "wall"))
        print(f"against scikit-image: CPU-s {cpu:.2f}, wall {wall:.2f} (bar 0.30)")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="interpreter with psfmodels and scikit-image")
    parser.add_argument("--work", type=Path, help="folder to keep the stacks in")
    parser.add_argument("--sets", nargs="+", default=[*ITERATIONS], choices=[*ITERATIONS])
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        part, *rest = arguments.child
        parts: dict[str, Callable[..., None]] = {"ours": ours, "tiled": tiled}
        parts[part](*rest)
        return
    if not SHARED.is_dir():
        print(f"{SHARED} is absent: the stacks and the tool that makes them are not here")
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.sets:
            compare(name, arguments.work or Path(folder), arguments.peer_python)


if __name__ == "__main__":
    main()
