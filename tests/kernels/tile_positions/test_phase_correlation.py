from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.spots import Floats, Strips, render, spots
from tilewright.kernels.backend import Backend
from tilewright.kernels.tile_positions.correlation_peak import MIN_OVERLAP_PX, overlap, subpixel
from tilewright.kernels.tile_positions.phase_correlation import (
    StripShifts,
    correlate_strips,
    filter_strips,
)


def strip_pairs(seed: int, noise: float, count: int = 6) -> tuple[Strips, Strips, Floats]:
    rng = np.random.default_rng(seed)
    shape = (180, 48)
    true = rng.uniform(-9, 9, (count, 2))
    cells = [spots(seed * 100 + i, 180, 48) for i in range(count)]
    a, b = (
        np.stack([render(c, t, shape) for c, t in zip(cells, origins, strict=True)])
        + noise * rng.standard_normal((count, *shape)).astype(np.float32)
        for origins in (np.zeros_like(true), true)
    )
    return a, b, true


def measured(backend: Backend, a: Strips, b: Strips, sigma: float = 1.5) -> StripShifts:
    return correlate_strips(backend, a, b, np.zeros((len(a), 2)), 14.0, sigma)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_shift_is_found_to_a_fraction(cpu: Backend, seed: int) -> None:
    for noise, sigma, limit in ((20.0, 1.5, 0.01), (300.0, 2.2, 0.12)):
        a, b, true = strip_pairs(seed, noise)
        found = measured(cpu, a, b, sigma)
        assert np.sqrt(np.mean((found.shift_px - true) ** 2)) < limit
        assert (found.score > 1.5 * found.second).all()
        assert (found.curvature > 0).all()


def test_expected_shift_moves_the_window(cpu: Backend) -> None:
    cells = spots(7, 200, 60)
    a = render(cells, np.zeros(2), (180, 48))[None]
    b = render(cells, np.array([3.3, 21.6]), (180, 48))[None]
    found = correlate_strips(cpu, a, b, np.array([[0.0, 20.0]]), 6.0, 1.5)
    np.testing.assert_allclose(found.shift_px, [[3.3, 21.6]], atol=0.03)
    astray = correlate_strips(cpu, a, b, np.zeros((1, 2)), 6.0, 1.5)
    assert astray.score[0] < 0.5


def test_noise_does_not_pull_the_fraction(cpu: Backend) -> None:
    """A gradient step with noisy gradients would shrink every fraction towards 0."""
    shrink = []
    for seed in range(8):
        cells = spots(seed, 180, 48)
        rng = np.random.default_rng(seed)
        noise = 250.0 * rng.standard_normal((2, 1, 180, 48)).astype(np.float32)
        small = [
            filter_strips(cpu, render(cells, np.full(2, at), (180, 48))[None] + added, 1.5)
            for at, added in zip((0.0, 0.4), noise, strict=True)
        ]
        found = subpixel(cpu, small[0], small[1], np.zeros((1, 2), np.int64))
        shrink.append(2.0 * found.delta_px[0] / 0.4)
    assert abs(np.mean(shrink) - 1.0) < 0.1


def test_flat_strips_and_noise_alone_are_no_match(cpu: Backend) -> None:
    for value in (0.0, 1000.0):
        flat = np.full((3, 90, 30), value, np.float32)
        found = measured(cpu, flat, flat)
        assert np.isfinite(found.shift_px).all()
        assert (found.score < 0.01).all() or (found.curvature == 0).all()
    a, b = np.random.default_rng(0).normal(100, 10, (2, 12, 180, 48)).astype(np.float32)
    assert measured(cpu, a, b).score.max() < 0.22


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bright_object_cut_by_the_border_does_not_decide(cpu: Backend, seed: int) -> None:
    """Its reflection in the padding makes a ridge that the other strip has not."""
    true = np.array([3.3, 7.7])
    bright = np.array([[80.0, 110.0], [7.7 - 1.0, 7.7 - 2.0], [2e4, 2e4], [2.5, 3.5]])
    cells = np.concatenate([spots(seed, 180, 48), bright], axis=1)
    a, b = (render(cells, origin, (180, 48))[None] for origin in (np.zeros(2), true))
    assert np.abs(measured(cpu, a, b).shift_px - true).max() < 0.1


@given(
    st.tuples(st.integers(5, 40), st.integers(5, 40)),
    st.tuples(st.integers(-50, 50), st.integers(-50, 50)),
)
def test_overlap_is_where_both_strips_are(shape: tuple[int, int], shift: tuple[int, int]) -> None:
    where = overlap(shape, shift)
    shared = [size - abs(step) for size, step in zip(shape, shift, strict=True)]
    assert (where is None) == (min(shared) < MIN_OVERLAP_PX)
    if where is not None:
        index = np.indices(shape)
        first, second = index[:, where[0], where[1]], index[:, where[2], where[3]]
        assert first.shape == (2, *shared)
        assert (first - second == np.array(shift)[:, None, None]).all()
