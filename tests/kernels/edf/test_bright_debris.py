"""Specks: found, taken out of a stack, and put back."""

from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.wiener_scene import PEDESTAL, PLANES, SIZE, debris_light, fine_psf, scene
from tilewright.kernels.edf.bright_debris import (
    debris_level,
    subtract_debris,
)
from tilewright.kernels.edf.debris_fit import DebrisModel
from tilewright.kernels.edf.transfer import (
    WIDE_RADII,
    transfer_profiles,
)
from tilewright.kernels.noise import NoiseModel

NOISE = NoiseModel(1.0, 1.6)
PLANE_MASK = np.ones(PLANES, bool)
PLACE, MIDDLE = SIZE // 2, PLANES // 2
Y, X = np.mgrid[:SIZE, :SIZE] - PLACE
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


def model_of(stack: Stack, level: float | None = None) -> DebrisModel:
    level = debris_level([stack], PLANE_MASK, NOISE, PEDESTAL) if level is None else level
    profiles = transfer_profiles(fine_psf(), radii=WIDE_RADII)
    return DebrisModel(profiles, PLANE_MASK, NOISE, PEDESTAL, 65535.0, level)


def light_at(stack: Stack, ring: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.asarray(np.median(stack[:, ring].astype(float) - PEDESTAL, axis=1))


def test_tissue_and_larger_objects_are_left_as_they_are() -> None:
    large = np.where(np.hypot(Y, X) < 60, 60000, tissue()).astype(np.uint16)
    for stack, model in ((tissue(1), model_of(tissue(1))), (large, model_of(tissue()))):
        cleaned = subtract_debris(stack, model)
        assert cleaned.stack is stack
        assert (cleaned.light, cleaned.contaminated) == (None, None)


@pytest.mark.parametrize("plane", [MIDDLE, 0])
@pytest.mark.parametrize("peak", [2e4, 4e5])
def test_what_is_around_debris_is_as_it_was(peak: float, plane: int) -> None:
    plain, stack = tissue(veil=True), under(debris_light(peak, 3.0, plane), noise=True)
    before = stack.copy()
    cleaned = subtract_debris(stack, model_of(plain))
    np.testing.assert_array_equal(stack, before)
    assert cleaned.stack.dtype == np.uint16
    away = np.hypot(Y, X)
    for first in range(12, 60, 8):
        ring = (away >= first) & (away < first + 8)
        there, left, contaminated = (light_at(s, ring) for s in (plain, cleaned.stack, stack))
        assert (np.abs(left / there - 1) < (0.35 if first < 28 else 0.15)).all()
        if first == 12:  # 0.9 and more of what is there was added
            assert np.abs(contaminated / there - 1).max() > 0.9
    assert cleaned.stack[:, away < 4].max() < 2 * plain.max()
    assert cleaned.light is not None
    assert cleaned.light[PLACE, PLACE] == pytest.approx(min(peak, 65535 - PEDESTAL), rel=0.3)
    assert cleaned.contaminated is not None
    assert cleaned.contaminated[PLACE // 4, PLACE // 4]


def test_a_clipped_speck_in_an_end_plane_is_found_there() -> None:
    """Far planes show less than the level, for most of its light lies outside the debris there."""
    cleaned = subtract_debris(under(debris_light(1.2e5, 4.4, 0)), model_of(tissue(), 3e4))
    assert cleaned.light is not None
    assert cleaned.light[PLACE, PLACE] > 5e4
    assert cleaned.stack[0, PLACE, PLACE] < 2 * tissue().max()


def test_what_the_border_cuts_is_debris_at_a_third_of_the_level() -> None:
    stack, model = under(debris_light(3e4, 3.0, MIDDLE)), model_of(tissue(), 6e4)
    for border, cut in ((2, True), (20, False)):
        seen = border > Y
        cleaned = subtract_debris(stack, model, seen)
        assert (cleaned.light is not None) == cut
        np.testing.assert_array_equal(cleaned.stack[:, ~seen], stack[:, ~seen])
    assert subtract_debris(stack, model).light is None


def test_debris_beside_each_other_keep_their_flanks() -> None:
    apart, one = 30, debris_light(1e5, 5.0, MIDDLE)
    both = np.roll(one, -apart // 2, 2) + np.roll(one, apart // 2, 2)
    stack = under(both)
    # So high that they are not one object.
    cleaned = subtract_debris(stack, model_of(tissue(), 2e4))
    assert cleaned.light is not None
    away = np.minimum(np.hypot(Y, X - apart // 2), np.hypot(Y, X + apart // 2))
    flank = (away < 11) & (both[MIDDLE] > 3000)
    raw = stack[MIDDLE].astype(float) - PEDESTAL
    assert (cleaned.light[flank] > 0.7 * raw[flank]).all()


def test_debris_hardly_change_what_counts_as_one() -> None:
    stacks = under(debris_light(2e5, 3.0, MIDDLE)), tissue()
    with_it, without = (debris_level([s], PLANE_MASK, NOISE, PEDESTAL) for s in stacks)
    assert without <= with_it < 2 * without
    assert tissue().max() - PEDESTAL < without
