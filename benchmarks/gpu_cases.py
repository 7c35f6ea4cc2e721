"""Every kernel that a rule runs on a GPU, with data made on the spot."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
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
from tilewright.kernels.edf.focus import FocusMeasure, focus_weighted, sum_projection
from tilewright.kernels.edf.wiener_filters import make_filters
from tilewright.kernels.edf.wiener_plane import WienerPlane, remove_grain
from tilewright.kernels.noise import NoiseModel, photon_transfer
from tilewright.kernels.register.alignment import bandpass_sqrt, coarse_alignment, grey_levels
from tilewright.kernels.register.background import subtract
from tilewright.kernels.register.block_shifts import (
    hann,
    overlapping_blocks,
    refine_shifts,
    search_shifts,
)
from tilewright.kernels.register.warp import Transform, displacement, sample, warp
from tilewright.kernels.stitch.blending import fuse, make_correction, tile_span

OPTICS, VOXEL_UM = Optics(0.75, 668, 1.0, 1.44), (1.5, 0.377, 0.377)
NOISE, PEDESTAL = NoiseModel(1.0, 2.0), 100.0


class Case(NamedTuple):
    """A kernel on data of one backend.

    Attributes
    ----------
    name : str
    run : callable
        Does it once and returns an array of the backend.
    tolerance : float
        Largest difference between devices, relative to the largest value.
    """

    name: str
    run: Callable[[], Any]
    tolerance: float = 1e-3


def tissue(px: int, planes: int) -> NDArray[np.float32]:
    """Return counts (z, y, x) with texture, noise and a focus that moves through the stack."""
    rng = np.random.default_rng(1)
    sharp = ndimage.gaussian_filter(rng.standard_normal((px, px)), 1.5)
    sharp = 400 * np.clip(sharp / sharp.std(), 0, None)
    stack = [ndimage.gaussian_filter(sharp, 0.5 * abs(z - planes / 2)) for z in range(planes)]
    counts = rng.poisson(np.stack(stack)) + rng.normal(PEDESTAL, 2, (planes, px, px))
    return np.asarray(np.clip(np.rint(counts), 0, 65535), np.float32)


def cases(backend: Backend, px: int, planes: int) -> Iterator[Case]:
    """Yield all kernels in the order of the workflow, with their data on the backend."""
    counts = tissue(px, planes)
    yield _fuse(backend, counts)
    yield _deconvolution(backend, counts)
    yield from _in_focus_plane(backend, counts)
    yield from _registration(backend, counts[planes // 2])


def _fuse(backend: Backend, counts: Any) -> Case:
    tiles = [plane.astype(np.uint16) for plane in counts[:4]]
    px, step = counts.shape[1], int(0.9 * counts.shape[1])
    places = [(0.3, 0.6), (0.1, step + 0.4), (step + 0.7, 0.2), (step + 0.5, step + 0.9)]
    spans = [(tile_span(y, px), tile_span(x, px)) for y, x in places]
    shape = (max(y.stop for y, _ in spans), max(x.stop for _, x in spans))
    flat = np.ones((px, px), np.float32)
    correction = make_correction(backend, flat, np.full((px, px), PEDESTAL, np.float32), PEDESTAL)

    def run() -> Any:
        return fuse(backend, tiles, spans, correction, (0, 0), shape, feather_px=0.1 * px)[0]

    return Case("fuse 4 tiles", run)


def _deconvolution(backend: Backend, counts: Any) -> Case:
    planes = len(counts)
    psf = gibson_lanni(OPTICS, VOXEL_UM, 2 * planes - 1, max_lateral_px=65)
    margin = scene_margin(planes, VOXEL_UM[0])
    solver = RichardsonLucy(Blur(backend, psf, counts.shape, margin))
    solver.load(backend.asarray(counts - np.float32(PEDESTAL)), 4.0)

    def iterate() -> Any:
        solver.iterate()
        return solver.estimate

    return Case("Richardson-Lucy, one iteration", iterate)


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


def _in_focus_plane(backend: Backend, counts: Any) -> Iterator[Case]:
    stack, (channel, wiener) = backend.asarray(counts), wiener_of(counts, backend)
    measure, plane = wiener.focus, wiener.project(counts)
    kernel = np.outer(np.hanning(9), np.hanning(9))[1:-1, 1:-1]

    def transfer() -> Any:
        model = photon_transfer(backend, counts[0], PEDESTAL)
        return np.array([model.gain, model.variance(100.0)])

    def power() -> Any:
        return object_power(backend, [counts], channel.profiles, channel.plane_mask)

    yield Case("photon transfer", transfer)
    yield Case("power of the light", power)
    yield Case("focus of a window", lambda: measure.measure(counts).energy)
    yield Case("focus weighted", lambda: focus_weighted(measure, stack).image)
    yield Case("mean blurred by the PSF", lambda: sum_projection(measure, stack, kernel).image)
    yield Case("multi-plane Wiener plane", lambda: wiener.project(stack).image)
    yield Case("remove grain", lambda: remove_grain(backend, plane.image, plane.variance))


def _registration(backend: Backend, plane: Any) -> Iterator[Case]:
    levels, image = grey_levels(plane), backend.asarray(plane)
    filtered = bandpass_sqrt(backend, image, levels)
    turned = backend.asarray(np.roll(backend.to_numpy(filtered), (3, -5), (0, 1)))

    def align() -> Any:
        angles = np.array([-0.5, 0.0, 0.5])
        found = coarse_alignment(backend, filtered, turned, angles, 20.0)
        return np.array([found.angle_deg, *found.shift_px, found.score, found.chance])

    side = plane.shape[0] // 32 * 32
    first, second = (overlapping_blocks(backend, v[:side, :side], 32) for v in (filtered, turned))
    window, ones = hann(backend, 64), backend.xp.ones(first.shape, np.float32)

    def search() -> Any:
        return search_shifts(backend, first * window, second * window, (12, 12)).shift_px

    def refine() -> Any:
        return refine_shifts(backend, first, first * np.float32(0.9), ones).score

    yield Case("band-pass", lambda: bandpass_sqrt(backend, image, levels))
    yield Case("coarse alignment", align)
    yield Case("shifts of blocks", search)
    yield Case("shifts of blocks refined", refine)
    yield from _resampling(backend, plane)
    yield Case("subtract background", lambda: subtract(backend, image, image, 0.7321))


def _resampling(backend: Backend, plane: Any) -> Iterator[Case]:
    px, angle = plane.shape[0], np.deg2rad(0.5)
    affine = np.array([[np.cos(angle), -np.sin(angle), 3.3], [np.sin(angle), np.cos(angle), -2.7]])
    blocks = px // 96 + 1
    field = np.random.default_rng(2).uniform(-2, 2, (2, blocks, blocks)).astype(np.float32)
    transform = Transform(
        affine, field, np.array([48.0, 48.0]), 96.0, np.ones((blocks, blocks), np.float32)
    )
    image, at = backend.asarray(plane), np.arange(px, dtype=np.float64)

    def resample() -> Any:
        shift = displacement(backend, transform, at, at)
        return sample(backend, image, (0, 0), (px, px), shift, (0, 0))[0]

    def to_counts() -> Any:
        whole = (slice(0, px), slice(0, px))
        return warp(backend, plane, (0, 0), plane.shape, Transform.identity(), whole)

    yield Case("warp", resample, tolerance=1e-2)
    yield Case("warp to counts", to_counts)
