import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.kernels.backend import Backend
from tilewright.kernels.tile_positions.distortion import Distortion
from tilewright.kernels.tile_positions.distortion_fit import Blocks, fit_distortion

SHAPES = [(256, 256), (100, 180), (2048, 1024)]


@pytest.mark.parametrize("meeting", [(1.0, 1.0), (0.9, 0.8)])
@pytest.mark.parametrize("shape", SHAPES)
def test_positions_absorb_nothing(shape: tuple[int, int], meeting: tuple[float, float]) -> None:
    field = Distortion(2.0, 0.7, -0.4, shape, meeting)
    middle, half = (np.array(shape) - 1) / 2, np.array(shape) / 2
    line = np.linspace(-1, 1, 2001)
    for axis, m in enumerate(meeting):
        ends = [np.stack(np.broadcast_arrays(end, line), -1) for end in (-m, m)]
        first, last = (
            field(middle + half * (end if axis == 0 else end[:, ::-1])).mean(axis=0) for end in ends
        )
        np.testing.assert_allclose(last, first, atol=1e-2)
    assert Distortion(2.0, 0.0, 0.0, shape).corner_px == pytest.approx(2.0)
    assert Distortion(0.0, 0.0, 0.0, shape).corner_px == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_offsets_are_the_inverse(cpu: Backend, shape: tuple[int, int]) -> None:
    field = Distortion(-3.0, 0.5, 0.8, shape)
    y, x = (np.linspace(0, n - 1, 33) for n in shape)
    offset = np.stack([v.ravel() for v in field.offsets(cpu, y, x)], axis=1)
    place = np.stack(np.meshgrid(y, x, indexing="ij"), -1).reshape(-1, 2)
    np.testing.assert_allclose(offset, -field(place + offset), atol=2e-3)
    assert np.abs(offset).max() < field.reach_px


@settings(max_examples=8)
@given(st.integers(0, 2**31), st.floats(-4, 4), st.floats(-0.5, 0.5), st.floats(-0.5, 0.5))
def test_fit_recovers_exact_displacements(seed: int, radial: float, y: float, x: float) -> None:
    rng = np.random.default_rng(seed)
    field = Distortion(radial, y, x, (512, 512))
    overlap, along = np.repeat(np.arange(24), 8), np.tile(np.linspace(30, 480, 8), 24)
    beside = overlap[:, None] % 2 == 1
    step = rng.normal(0, 3, (24, 2))[overlap] + np.where(beside, [0.0, 460.0], [460.0, 0.0])
    across = np.full_like(along, 25.0)
    place = np.where(beside, np.stack([along, across], 1), np.stack([across, along], 1))
    there = place + step
    for _ in range(6):
        there = place + field(place) + step - field(there)
    moved = there - place
    moved[[17, 90]] += [[5.0, -3.0], [0.0, 6.0]]
    moved += rng.normal(0, 0.01, moved.shape)
    blocks = Blocks(overlap, place, moved, np.full(moved.shape, 1e4))
    found = fit_distortion(blocks, (512, 512))
    assert found is not None
    assert found.overlaps == 24
    np.testing.assert_allclose(found.distortion.terms_px, field.terms_px, atol=0.03)
    assert (np.abs(found.distortion.terms_px - field.terms_px) < 6 * found.terms_sigma_px).all()
    assert found.used or field.corner_px <= 0.3


def test_noise_alone_is_no_distortion() -> None:
    """Of 400 sets of noise, z above 4 in both halves is met by none, above 2 by few."""
    rng = np.random.default_rng(3)
    overlap = np.repeat(np.arange(6), 6)
    beside = (overlap % 2 == np.arange(2)[:, None]).T  # an odd overlap lies across x
    place = rng.uniform(0, 255, (36, 2)) / np.where(beside, 10, 1)
    step = 226.0 * beside
    z = []
    for _ in range(400):
        moved = step + rng.standard_t(4, (36, 2)) * 0.1
        fit = fit_distortion(Blocks(overlap, place, moved, np.full((36, 2), 100.0)), (256, 256))
        assert fit is not None
        z.append(min(fit.held_out_z))
    assert max(z) < 4.0
    assert np.mean(np.array(z) > 2.0) < 0.03


def test_too_few_overlaps_say_nothing() -> None:
    place, moved = np.array([[20.0, 5.0], [200.0, 5.0]]), np.tile([0.0, 226.0], (2, 1))
    for overlap in (np.zeros(2, np.int64), np.arange(2), np.zeros(0, np.int64)):
        n = len(overlap)
        blocks = Blocks(overlap, place[:n], moved[:n], np.ones((n, 2)))
        assert fit_distortion(blocks, (256, 256)) is None
