"""Bright debris: detected, and its light subtracted from a stack."""

from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.wiener_scene import PEDESTAL, PLANES, SIZE, debris_light, fine_psf, scene
from tilewright.kernels.edf.debris import DebrisModel, debris_counts, subtract_debris
from tilewright.kernels.noise import NoiseModel

NOISE = NoiseModel(1.0, 1.6)
PLACE, MIDDLE = SIZE // 2, PLANES // 2
Y, X = np.mgrid[:SIZE, :SIZE] - PLACE
EVERYWHERE = np.ones((SIZE, SIZE), np.bool_)
Stack = NDArray[np.uint16]


@lru_cache
def tissue(seed: int = 2, veil: bool = False) -> Stack:
    """Return tissue, read only; under a veil so that there is something around debris."""
    light = np.random.default_rng(3).poisson(150, (PLANES, SIZE, SIZE)) if veil else 0
    return np.asarray(scene(seed)[0] + light).astype(np.uint16)


def under(light: NDArray[np.float64], noise: bool = False) -> Stack:
    """Return the tissue with a debris' light; ``noise``: veiled, and the debris is of photons."""
    seen = np.random.default_rng(4).poisson(light) if noise else light
    return np.minimum(tissue(veil=noise) + seen, 65535).astype(np.uint16)


def model_of(stack: Stack) -> DebrisModel:
    counts = debris_counts([stack], NOISE, PEDESTAL)
    return DebrisModel(fine_psf(), list(range(PLANES)), PEDESTAL, counts, 65535.0)


def light_at(stack: Stack, ring: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.asarray(np.median(stack[:, ring].astype(float) - PEDESTAL, axis=1))


def test_tissue_is_left_as_it_is_and_large_objects_show_where_they_are_saturated() -> None:
    stack, debris = subtract_debris(tissue(1), model_of(tissue(1)), EVERYWHERE)
    assert stack is tissue(1)
    assert not debris.any()
    large = np.where(np.hypot(Y, X) < 60, 65535, tissue()).astype(np.uint16)
    stack, debris = subtract_debris(large, model_of(tissue()), EVERYWHERE)
    np.testing.assert_array_equal(stack, large)
    np.testing.assert_array_equal(debris, (large == 65535).any(axis=0))


@pytest.mark.parametrize("plane", [MIDDLE, 0])
@pytest.mark.parametrize("peak", [2e4, 4e5])
def test_what_is_around_debris_is_as_it_was(peak: float, plane: int) -> None:
    plain, stack = tissue(veil=True), under(debris_light(peak, 3.0, plane), noise=True)
    before = stack.copy()
    cleaned, debris = subtract_debris(stack, model_of(plain), EVERYWHERE)
    np.testing.assert_array_equal(stack, before)
    assert cleaned.dtype == np.uint16
    away = np.hypot(Y, X)
    for first in range(12, 60, 8):
        ring = (away >= first) & (away < first + 8)
        there, left, contaminated = (light_at(s, ring) for s in (plain, cleaned, stack))
        assert (np.abs(left / there - 1) < (0.4 if first < 28 else 0.15)).all()
        if first == 12:  # 0.9 and more of what is there was added
            assert np.abs(contaminated / there - 1).max() > 0.9
    assert debris[away < 2].all()
    assert not debris[away > 12].any()


def test_what_was_not_imaged_is_no_debris() -> None:
    stack = under(debris_light(3e4, 3.0, MIDDLE))
    cleaned, debris = subtract_debris(stack, model_of(tissue()), Y > 20)
    assert cleaned is stack
    assert not debris.any()


def test_debris_hardly_change_what_counts_as_one() -> None:
    stacks = under(debris_light(2e5, 3.0, MIDDLE)), tissue(1), tissue(2)
    with_it, without = (debris_counts(s, NOISE, PEDESTAL) for s in (stacks, stacks[1:]))
    assert with_it == pytest.approx(without, rel=0.3)
    assert max(s.max() for s in stacks[1:]) < without


def test_rare_cells_are_no_debris() -> None:
    rng = np.random.default_rng(0)
    counts = rng.poisson(20, (PLANES, 512, 512)) + PEDESTAL
    y, x = np.mgrid[:512, :512]
    for cy, cx in rng.uniform(0, 512, (40, 2)):
        counts[:, np.hypot(y - cy, x - cx) < 8] += 2000
    assert counts.max() < debris_counts([counts], NOISE, PEDESTAL)
