"""The heavy kernels on data made on the spot, which ``benchmarks.gpu`` runs on both devices.

A test holds against this module and ``gpu_cases_of_rules`` what stages import of kernels.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import ndimage

from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.kernels.deconvolve.blur import Blur
from tilewright.kernels.deconvolve.psf import Optics, gibson_lanni
from tilewright.kernels.deconvolve.richardson_lucy import RichardsonLucy, scene_margin
from tilewright.kernels.edf.channel_model import (
    FINE,
    ChannelModel,
    object_power,
    psf_planes,
    transfer_profiles,
)
from tilewright.kernels.edf.focus import FocusMeasure, focus_weighted
from tilewright.kernels.edf.wiener_filters import make_filters
from tilewright.kernels.edf.wiener_plane import WienerPlane
from tilewright.kernels.noise import NoiseModel
from tilewright.kernels.register.warp import Transform, displacement, sample
from tilewright.kernels.stitch.blending import fuse, make_correction, tile_span

OPTICS, VOXEL_UM = Optics(0.75, 668, 1.0, 1.44), (1.5, 0.377, 0.377)
NOISE, PEDESTAL = NoiseModel(1.0, 2.0), 100.0


@dataclass(frozen=True)
class Case:
    """A kernel on data of one backend.

    Attributes
    ----------
    name : str
    run : callable
        Does it once and returns an array of the backend.
    bytes_ : float
        What it must at least read and write in device memory: its data and its result.
    ffts : tuple of (int, tuple of int)
        Number and shape of its real FFTs.
    voxels : float
        Of the raw data that one call serves in a cycle with the multi-plane Wiener plane; 0 where
        such a cycle does not need it, or not for its voxels.
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


def cases(backend: Backend, px: int, planes: int) -> Iterator[Case]:
    """Yield all kernels, with their data on the backend."""
    counts = tissue(px, planes)
    stack = backend.asarray(counts)
    yield _richardson_lucy(backend, counts)
    yield _direct(backend, counts)
    measure = FocusMeasure(backend, np.ones(planes, bool), NOISE, PEDESTAL, (px, px))
    yield Case(
        "focus weighted", lambda: focus_weighted(measure, stack).image,
        4.0 * px * px * (planes + 1),
    )  # fmt: skip
    yield _fuse(backend, counts)
    yield _warp(backend, counts[planes // 2])


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


def wiener_of(counts: Any, backend: Backend) -> tuple[ChannelModel, WienerPlane]:
    """Return a channel and its filters for windows of the size of the counts (z, y, x)."""
    planes = counts.shape[0]
    fine = (VOXEL_UM[0] / FINE, *VOXEL_UM[1:])
    psf = gibson_lanni(OPTICS, fine, psf_planes(planes, VOXEL_UM[0]), max_lateral_px=65)
    plane_mask, profiles = np.ones(planes, bool), transfer_profiles(psf)
    # made on the host for both: what is compared is the kernel
    power = object_power(cpu_backend(), [counts], profiles, plane_mask)
    channel = ChannelModel(
        profiles, plane_mask, power, float(NOISE.variance(counts.mean() - PEDESTAL))
    )
    measure = FocusMeasure(backend, plane_mask, NOISE, PEDESTAL, counts.shape[1:])
    return channel, WienerPlane(measure, channel, make_filters(channel))


def _direct(backend: Backend, counts: Any) -> Case:
    planes, px = counts.shape[:2]
    (_, wiener), stack = wiener_of(counts, backend), backend.asarray(counts)
    ffts = ((2 * planes, (px, px)),)
    bytes_ = 4.0 * px * px * (2 * planes + 1)
    return Case(
        "multi-plane Wiener plane",
        lambda: wiener.project(stack).image,
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
