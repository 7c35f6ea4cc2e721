from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from tests.support.wavy_stack import psnr
from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.kernels.deconvolve import blur as blur_module
from tilewright.kernels.deconvolve.blur import Blur
from tilewright.kernels.deconvolve.psf import Optics, gibson_lanni
from tilewright.kernels.deconvolve.richardson_lucy import RichardsonLucy, scene_margin

VOXEL = (1.5, 0.377, 0.377)
PSF = gibson_lanni(Optics(0.75, 668, 1.0, 1.44), VOXEL, 17, max_lateral_px=33)
VIEW = (9, 72, 80)
MARGIN = scene_margin(VIEW[0], VOXEL[0])
Floats = NDArray[np.float32]


@cache
def scene(seed: int, photons: float) -> tuple[Floats, Floats, Floats]:
    """Return (truth, blurred, counts): blobs also outside the view, background 60, gain 1."""
    rng = np.random.default_rng(seed)
    inner = tuple(slice(m, m + n) for n, m in zip(VIEW, (8, 16, 16), strict=True))
    big = tuple(part.start + part.stop for part in inner)
    points = rng.random(big) < 0.002
    grid = np.indices((5, 7, 7)) - np.array([2, 3, 3]).reshape(3, 1, 1, 1)
    blob = np.exp(-(grid[0] ** 2 / 0.6 + (grid[1] ** 2 + grid[2] ** 2) / 3))
    light = np.maximum(fftconvolve(points * rng.random(big), blob, mode="same"), 0)
    blurred = np.maximum(fftconvolve(light, PSF.astype(np.float64), mode="same"), 0)
    scale = photons / blurred[inner].max()
    counts = rng.poisson(blurred[inner] * scale + 60).astype(np.float32)
    found = (light[inner] * scale).astype(np.float32), blurred[inner] * scale, counts
    for array in found:
        array.flags.writeable = False
    return found


def forward(blur: Blur, scene: Any) -> Any:
    """Return H ``scene``, as an iteration predicts the view."""
    blur.spread(slice(None), scene)
    blur.convolve_columns(adjoint=False)
    return blur.gather(slice(0, blur.view[0]), *blur.view[1:])


@settings(max_examples=25)
@given(
    view=st.tuples(st.integers(1, 6), st.integers(4, 24), st.integers(4, 24)),
    psf=st.tuples(*[st.sampled_from([1, 3, 7, 13])] * 3),
    margin=st.tuples(*[st.integers(0, 6)] * 3),
    seed=st.integers(0, 1000),
)
def test_adjoint_is_the_adjoint(
    view: tuple[int, int, int], psf: tuple[int, int, int], margin: tuple[int, int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    blur = Blur(cpu_backend(), rng.random(psf), view, margin)
    x = rng.random(blur.scene, dtype=np.float32)
    y = rng.random(view, dtype=np.float32)
    left = float(np.vdot(forward(blur, x).astype(np.float64), y))
    assert float(np.vdot(x.astype(np.float64), blur.adjoint(y))) == pytest.approx(left, rel=2e-6)


def test_blocks_and_threads_do_not_change_the_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, counts = scene(0, 500)
    wanted, _ = run(cpu_backend(1), counts, 4)
    monkeypatch.setattr(blur_module, "_BLOCK_B", 24_000)
    np.testing.assert_allclose(run(cpu_backend(3), counts, 4)[0], wanted, rtol=1e-4, atol=1e-3)


def run(
    backend: Backend,
    counts: Floats,
    iterations: int,
    background: float = 60.0,
    margin: tuple[int, int, int] = MARGIN,
) -> tuple[Floats, list[float]]:
    """Return the light of a stack that is one tile, and the divergence after each iteration."""
    planes, height, width = counts.shape
    solver = RichardsonLucy(Blur(backend, PSF, (planes, height, width), margin))
    solver.load(backend.asarray(counts), background)
    curve = []
    for _ in range(iterations):
        solver.iterate()
        curve.append(divergence(solver, counts, background))
    return backend.to_numpy(solver.estimate), curve


def divergence(solver: RichardsonLucy, counts: Floats, background: float) -> float:
    """Return the I-divergence per voxel of counts from what the estimate makes of them."""
    backend = solver.blur.backend
    model = backend.to_numpy(forward(solver.blur, solver._x)) + background
    ratio = np.log(np.maximum(counts / model, 1e-30))
    return float(np.mean(counts * ratio - counts + model, dtype=np.float64))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_few_iterations_recover_the_light_and_its_flux(cpu: Backend, seed: int) -> None:
    truth, _, counts = scene(seed, 800)
    image, divergence = run(cpu, counts, 21)
    assert psnr(image, truth) > psnr(counts, truth) + 3.5
    assert np.isfinite(image).all()
    assert image.min() >= 0
    # Light from beyond the stack is pulled in: 10 to 25 % between the end planes.
    assert 0.95 < image[2:-2].sum() / truth[2:-2].sum() < 1.3
    # Of the first, 0.628 after 61 iterations without acceleration.
    assert divergence[-1] < 0.52


@pytest.mark.parametrize("background", [0.5, 60.0])
def test_acceleration_stays_stable(cpu: Backend, background: float) -> None:
    _, blurred, _ = scene(0, 3000)
    counts = np.random.default_rng(0).poisson(blurred + background).astype(np.float32)
    _, curve = run(cpu, counts, 100, background)
    assert all(np.diff(curve)[:20] < 0)
    assert max(curve[20:]) <= curve[20]
    assert curve[-1] < 0.75 * curve[30]


def test_weighted_edges_keep_light_from_outside_out(cpu: Backend) -> None:
    truth, _, counts = scene(3, 800)
    open_edges, circular = (run(cpu, counts, 20, margin=m)[0] for m in (MARGIN, (0, 0, 0)))
    assert psnr(open_edges, truth) > psnr(circular, truth) + 1
