import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tests.support.tissue_pair import make_pair
from tilewright.kernels.backend import Array, Backend, Floats
from tilewright.kernels.register import alignment
from tilewright.kernels.register.alignment import coarse_alignment
from tilewright.kernels.register.block_field import ACCEPTED, fit_field
from tilewright.kernels.register.block_shifts import (
    overlapping_blocks,
    refine_shifts,
    search_shifts,
)

ANGLES = np.linspace(-5, 5, 11)


def a_texture(backend: Backend, image: NDArray[np.uint16]) -> Array:
    counts = image.astype(np.float32)
    return alignment.bandpass_sqrt(backend, backend.asarray(counts), alignment.grey_levels(counts))


@pytest.mark.parametrize(("seed", "angle_deg"), [(0, 0.0), (1, 3.0), (2, -4.0)])
def test_coarse_finds_rotation_and_large_shift(cpu: Backend, seed: int, angle_deg: float) -> None:
    shift = (90.0, -130.0)
    pair = make_pair(seed, size=(380, 400), angle_deg=angle_deg, shift_px=shift, elastic_px=0)
    fixed, moving = (a_texture(cpu, image) for image in (pair.reference, pair.moving))
    found = coarse_alignment(cpu, fixed, moving, ANGLES, 200.0)
    assert found.angle_deg == angle_deg
    assert np.abs(np.subtract(found.shift_px, shift)).max() <= 1.5
    assert found.score > 2 * found.chance
    limited = coarse_alignment(cpu, fixed, moving, ANGLES, 60.0)
    assert np.abs(limited.shift_px).max() <= 60
    other_tissue = a_texture(cpu, make_pair(seed + 5, size=(380, 400)).reference)
    other = coarse_alignment(cpu, fixed, other_tissue, ANGLES[3:8], 300.0)
    assert limited.score < 1.4 * limited.chance
    assert other.score < 1.4 * other.chance


def test_blocks_overlap_by_half_and_empty_ones_measure_nothing(cpu: Backend) -> None:
    image = np.arange(12 * 18, dtype=np.float32).reshape(12, 18)
    cut = overlapping_blocks(cpu, image, 3)
    assert cut.shape == (3 * 5, 6, 6)
    assert np.array_equal(cut[1 * 5 + 2], image[3:9, 6:12])
    nothing = cpu.asarray(np.zeros((3, 64, 64)))
    assert np.isinf(refine_shifts(cpu, nothing, nothing, nothing).variance_px2).all()
    assert np.isinf(search_shifts(cpu, nothing, nothing, (10, 10)).variance_px2).all()


def fitted(shift: Floats, precision: Floats, spacing_px: float) -> tuple[Floats, Floats, Floats]:
    """Return the fit to shifts (2, gy, gx), and where it puts the blocks."""
    points = np.moveaxis(np.indices(precision.shape, np.float64), 0, -1) * spacing_px
    affine, field, weight = fit_field(points, np.moveaxis(shift, 0, -1), precision)
    plane = points @ affine[:, :2].T + affine[:, 2]
    return affine, weight, np.moveaxis(plane, -1, 0) + field


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_field_is_smooth_through_outliers_and_gaps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:30, :40] * 48.0
    truth = np.stack([2 * np.sin(y / 300 + x / 400), 1.5 * np.cos(x / 350) + 0.01 * y])
    shifts = truth + rng.normal(0, 0.1, truth.shape)
    precision = rng.uniform(50, 200, y.shape)
    wrong = rng.random(y.shape) < 0.15
    shifts[:, wrong] += rng.uniform(-15, 15, (2, wrong.sum()))
    precision[10:16, 12:20] = 0
    _, weight, found = fitted(shifts, precision, 48.0)
    error = np.hypot(*(found - truth))
    known = precision > 0
    assert np.median(error[known]) < 0.06
    assert error.max() < 0.8
    assert (weight[known & ~wrong] > ACCEPTED).mean() > 0.97
    assert weight[wrong & (np.hypot(*(shifts - truth)) > 2)].max() < ACCEPTED
    assert not weight[~known].any()


@pytest.mark.parametrize("seed", range(3))
def test_wide_glass_does_not_keep_the_field_from_its_solution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:129, :129] * 64.0
    truth = np.stack([7 * np.sin(x / 1500), 7 * np.cos(y / 1700)])
    shifts = truth + rng.normal(0, 0.004, truth.shape)
    glass = ndimage.gaussian_filter(rng.random(y.shape), 25, mode="wrap")
    glass = glass < np.percentile(glass, 40)
    shifts[:, glass] += rng.uniform(-16, 16, (2, glass.sum()))
    *_, found = fitted(shifts, np.where(glass, 0.0, 60.0), 64.0)
    error = np.hypot(*(found - truth))[~glass]
    # Begun from one constant, it was up to 2 px off.
    assert np.percentile(error, 99) < 0.05
    assert error.max() < 0.5


def test_few_blocks_give_a_shift_and_none_nothing() -> None:
    precision = np.zeros((5, 6))
    _, weight, found = fitted(np.ones((2, 5, 6)), precision, 48.0)
    assert not found.any()
    assert not weight.any()
    precision[2, 1:4] = 1.0
    affine, _, found = fitted(np.full((2, 5, 6), 3.0), precision, 48.0)
    assert np.allclose(affine, [[0, 0, 3], [0, 0, 3]], atol=1e-6)
