"""Every heavy kernel on a GPU beside the CPU, and how near each comes to what the device can do.

``python -m benchmarks.gpu [--px 1024] [--planes 20] [--strips 64] [--repeats 5]`` makes its data
on the spot and takes about 5 minutes on one GPU. Copies of 512 MB and FFTs of the kernels' own
size are timed first, in the same run. A kernel's bound is the time in which the device copies the
bytes that the kernel must read and write, and does its FFTs; the last column is that bound over
the time measured. Data start and end in device memory, so that transfers are not in it.

It runs on the stand-in for CuPy as well (``tests/benchmarks/test_gpu.py``), where parity is
meaningful and speed is not.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import ndimage

from tilewright.kernels.backend import Backend, cpu_backend, gpu_backend
from tilewright.kernels.deconvolve.blur import Blur
from tilewright.kernels.deconvolve.psf import Optics, gibson_lanni
from tilewright.kernels.deconvolve.richardson_lucy import RichardsonLucy, scene_margin
from tilewright.kernels.edf.direct_filters import (
    FINE,
    Channel,
    make_filters,
    object_power,
    psf_planes,
    transfer_profiles,
)
from tilewright.kernels.edf.direct_plane import DirectPlane, FocusMaps
from tilewright.kernels.edf.focus import soft_focus
from tilewright.kernels.noise import NoiseModel
from tilewright.kernels.register.warp import Transform, displacement, sample
from tilewright.kernels.stitch.blending import fuse, make_correction, tile_span
from tilewright.kernels.tile_positions.phase_correlation import correlate_strips

OPTICS, VOXEL_UM = Optics(0.75, 668, 1.0, 1.44), (1.5, 0.377, 0.377)
NOISE, PEDESTAL = NoiseModel(1.0, 2.0), 100.0
COPY_B = 512 * 2**20
#: Voxels of a full cycle: 63 tiles of 1440 x 1920 x 20 planes in 4 channels.
FULL_VOXELS = 63 * 1440 * 1920 * 20 * 4


@dataclass(frozen=True)
class Case:
    """A kernel on data of one backend.

    Attributes
    ----------
    name : str
    run : callable
        Does it once and returns an array of the backend.
    bytes_ : float
        What it must at least read and write in device memory.
    ffts : tuple of (int, tuple of int)
        Number and shape of its real FFTs.
    voxels : float
        Of the raw data that one call serves in a cycle with the direct plane; 0 where such a
        cycle does not need it, or not for its voxels.
    tolerance : float
        Largest difference between devices, relative to the largest value.
    """

    name: str
    run: Callable[[], Any]
    bytes_: float
    ffts: tuple[tuple[int, tuple[int, ...]], ...] = ()
    voxels: float = 0.0
    tolerance: float = 1e-3


def tissue(px: int, planes: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return counts (z, y, x) with texture, noise and a focus that moves through the stack."""
    rng = np.random.default_rng(1)
    sharp = ndimage.gaussian_filter(rng.standard_normal((px, px)), 1.5)
    sharp = 400 * np.clip(sharp / sharp.std(), 0, None)
    stack = [ndimage.gaussian_filter(sharp, 0.5 * abs(z - planes / 2)) for z in range(planes)]
    counts = rng.poisson(np.stack(stack)) + rng.normal(PEDESTAL, 2, (planes, px, px))
    return np.asarray(np.clip(np.rint(counts), 0, 65535), np.float32)


def cases(backend: Backend, px: int, planes: int, strips: int) -> Iterator[Case]:
    """Yield all kernels, with their data on the backend."""
    counts = tissue(px, planes)
    stack = backend.asarray(counts)
    yield _richardson_lucy(backend, counts)
    yield _direct(backend, counts)
    kept = np.ones(planes, bool)
    yield Case(
        "soft focus", lambda: soft_focus(backend, stack, NOISE, PEDESTAL, kept).image,
        4.0 * px * px * (planes + 1),
    )  # fmt: skip
    yield _fuse(backend, counts)
    yield _warp(backend, counts[planes // 2])
    yield _strips(backend, strips)


def _richardson_lucy(backend: Backend, counts: Any) -> Case:
    planes = counts.shape[0]
    psf = gibson_lanni(OPTICS, VOXEL_UM, 2 * planes - 1, max_lateral_px=65)
    blur = Blur(backend, psf, counts.shape, scene_margin(planes, VOXEL_UM[0]))
    solver = RichardsonLucy(blur)
    solver.load(backend.asarray(counts - np.float32(PEDESTAL)), 4.0)

    def run() -> Any:
        solver.iterate()
        return solver.estimate

    # estimate, its predecessor, weights, data and prediction, each once; OTF twice
    scene_b = 4.0 * np.prod(blur.scene)
    return Case(
        "Richardson-Lucy, one iteration", run, 7 * scene_b, ((4, blur.scene),),
    )  # fmt: skip


def _direct(backend: Backend, counts: Any) -> Case:
    planes, px = counts.shape[:2]
    fine = (VOXEL_UM[0] / FINE, *VOXEL_UM[1:])
    psf = gibson_lanni(OPTICS, fine, psf_planes(planes, VOXEL_UM[0]), max_lateral_px=65)
    kept, profiles = np.ones(planes, bool), transfer_profiles(psf)
    # made on the host for both: what is compared is the kernel
    power = object_power(cpu_backend(), [counts], profiles, kept)
    channel = Channel(profiles, kept, power, float(NOISE.variance(counts.mean() - PEDESTAL)))
    maps = FocusMaps(backend, channel, NOISE, PEDESTAL, (px, px))
    direct, stack = DirectPlane(maps, make_filters(channel)), backend.asarray(counts)
    ffts = ((2 * planes, (px, px)),)
    bytes_ = 4.0 * px * px * (2 * planes + 1)
    return Case(
        "direct plane",
        lambda: direct.project(stack).image,
        bytes_,
        ffts,
        voxels=float(counts.size),
    )


def _fuse(backend: Backend, counts: Any) -> Case:
    tiles = [plane.astype(np.uint16) for plane in counts[:4]]
    px, step = counts.shape[1], int(0.9 * counts.shape[1])
    places = [(0.3, 0.6), (0.1, step + 0.4), (step + 0.7, 0.2), (step + 0.5, step + 0.9)]
    spans = [(tile_span(y, px), tile_span(x, px)) for y, x in places]
    shape = (max(y.stop for y, _ in spans), max(x.stop for _, x in spans))
    flat = np.ones((px, px), np.float32)
    correction = make_correction(backend, flat, np.full((px, px), PEDESTAL, np.float32), PEDESTAL)
    feather = 0.1 * px
    # it moves its tiles to the device itself: 2 bytes a pixel, as the mosaic
    return Case(
        "fuse 4 tiles",
        lambda: fuse(backend, tiles, spans, correction, (0, 0), shape, feather_px=feather)[0],
        2.0 * (4 * px * px + shape[0] * shape[1]), voxels=4.0 * px * px,
    )  # fmt: skip


def _warp(backend: Backend, plane: Any) -> Case:
    px, angle = plane.shape[0], np.deg2rad(0.5)
    affine = np.array([[np.cos(angle), -np.sin(angle), 3.3], [np.sin(angle), np.cos(angle), -2.7]])
    blocks = px // 96 + 1
    field = np.random.default_rng(2).uniform(-2, 2, (2, blocks, blocks)).astype(np.float32)
    transform = Transform(
        affine, field, np.array([48.0, 48.0]), 96.0, np.ones((blocks, blocks), np.float32)
    )
    image, at = backend.asarray(plane), np.arange(px, dtype=np.float64)

    def run() -> Any:
        shift = displacement(backend, transform, at, at)
        return sample(backend, image, (0, 0), (px, px), shift, (0, 0))[0]

    return Case("warp", run, 2 * 4.0 * px * px, tolerance=1e-2)


def _strips(backend: Backend, strips: int) -> Case:
    rng = np.random.default_rng(3)
    wide = ndimage.gaussian_filter(rng.standard_normal((strips, 1024, 136)), (0, 1.5, 1.5))
    wide = 100 + 500 * np.clip(wide / wide.std(), 0, None)
    a, b = (backend.asarray(wide[:, 4 : 4 + 1000, x : x + 128]) for x in (0, 5))
    expected = np.zeros((strips, 2))
    ffts = ((3 * strips, (1024, 256)),)
    return Case(
        f"phase correlation of {strips} strips",
        lambda: backend.asarray(correlate_strips(backend, a, b, expected, 12.0, 1.0).shift_px),
        2 * 4.0 * a.size, ffts,
    )  # fmt: skip


def wait(backend: Backend) -> None:
    """Wait until the device has done all that it was asked for."""
    if backend.device == "gpu":
        backend.xp.cuda.runtime.deviceSynchronize()


def seconds(backend: Backend, run: Callable[[], Any], repeats: int) -> float:
    """Return the median time of a call, after one that is not counted."""
    run()
    wait(backend)
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        wait(backend)
        found.append(time.perf_counter() - began)
    return float(np.median(found))


class Limits:
    """What a device can do: bytes copied a second, and the time of FFTs."""

    def __init__(self, backend: Backend, copy_b: int, repeats: int) -> None:
        self.backend, self.repeats = backend, repeats
        xp = backend.xp
        source, target = (xp.ones(copy_b // 4, xp.float32) for _ in range(2))

        def copy() -> None:
            target[...] = source

        self.bytes_per_s = 2 * copy_b / seconds(backend, copy, repeats)

    def fft_s(self, shape: tuple[int, ...]) -> float:
        """Return the seconds of one real FFT."""
        values = self.backend.xp.ones(shape, self.backend.xp.float32)
        axes = tuple(range(len(shape)))
        with self.backend.fft_threads():
            return seconds(
                self.backend, lambda: self.backend.fft.rfftn(values, axes=axes), self.repeats
            )

    def bound_s(self, case: Case) -> float:
        """Return the least time of a case."""
        return case.bytes_ / self.bytes_per_s + sum(n * self.fft_s(shape) for n, shape in case.ffts)


def main() -> int:
    """Run all cases, print the table, and return 1 where devices disagree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--px", type=int, default=1024)
    parser.add_argument("--planes", type=int, default=20)
    parser.add_argument("--strips", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--copy-b", type=int, default=COPY_B)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    gpu, cpu = gpu_backend(), cpu_backend(cores)
    limits = Limits(gpu, options.copy_b, options.repeats)
    print(f"the device copies {limits.bytes_per_s / 1e9:.0f} GB/s; CPU: {cores} cores")
    print(f"{'kernel':34}{'GPU ms':>9}{'CPU ms':>9}{'ratio':>7}{'differ':>9}{'of bound':>10}")
    cycle_s, wrong = 0.0, 0
    data = (options.px, options.planes, options.strips)
    for one, other in zip(cases(gpu, *data), cases(cpu, *data), strict=True):
        first, second = (np.asarray(b.to_numpy(c.run()), np.float64)
                         for b, c in ((gpu, one), (cpu, other)))  # fmt: skip
        differ = float(np.abs(first - second).max() / max(np.abs(second).max(), 1e-12))
        on_gpu, on_cpu = (seconds(b, c.run, options.repeats) for b, c in ((gpu, one), (cpu, other)))
        wrong += differ > one.tolerance
        if one.voxels:
            cycle_s += on_gpu * FULL_VOXELS / one.voxels
        print(f"{one.name:34}{1e3 * on_gpu:9.2f}{1e3 * on_cpu:9.1f}{on_cpu / on_gpu:7.1f}"
              f"{differ:9.1e}{limits.bound_s(one) / on_gpu:10.2f}")  # fmt: skip
    print(f"kernels of a full cycle with the direct plane: {cycle_s:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
