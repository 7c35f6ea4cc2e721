"""Specks: found, taken out of a stack, and put back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.direct_scene import PEDESTAL, PLANES, SIZE, fine_psf, scene, speck_light
from tilewright.kernels.edf.direct_filters import WIDE_RADII, transfer_profiles
from tilewright.kernels.edf.specks import SpeckModel, speck_level, without_specks
from tilewright.kernels.noise import NoiseModel

NOISE = NoiseModel(1.0, 1.6)
KEPT = np.ones(PLANES, bool)
PLACE = SIZE // 2


def model_of(stack: NDArray[np.uint16]) -> SpeckModel:
    level = speck_level([stack], KEPT, NOISE, PEDESTAL)
    profiles = transfer_profiles(fine_psf(), radii=WIDE_RADII)
    return SpeckModel(profiles, KEPT, NOISE, PEDESTAL, 65535.0, level)


def test_tissue_is_left_as_it_is() -> None:
    stack = scene(1)[0].astype(np.uint16)
    cleaned = without_specks(stack, model_of(stack))
    assert cleaned.stack is stack
    assert cleaned.light is None
    assert cleaned.spoilt is None


@pytest.mark.parametrize("plane", [PLANES // 2, 0])
@pytest.mark.parametrize("peak", [2e4, 4e5])
def test_what_is_around_a_speck_is_as_it_was(peak: float, plane: int) -> None:
    rng = np.random.default_rng(3)
    # A veil, so that there is something around the speck.
    tissue = (scene(2)[0] + rng.poisson(150, (PLANES, SIZE, SIZE))).astype(np.uint16)
    light = rng.poisson(speck_light(peak, 3.0, plane))
    stack = np.minimum(tissue + light, 65535).astype(np.uint16)
    before = stack.copy()
    model = model_of(tissue)
    cleaned = without_specks(stack, model)
    np.testing.assert_array_equal(stack, before)
    assert cleaned.stack.dtype == np.uint16
    y, x = np.mgrid[:SIZE, :SIZE] - PLACE
    away = np.hypot(y, x)
    for first in range(12, 60, 8):
        ring = (away >= first) & (away < first + 8)
        there = np.median(tissue[:, ring] - PEDESTAL, axis=1)
        left = np.median(cleaned.stack[:, ring].astype(float) - PEDESTAL, axis=1)
        spoilt = np.median(stack[:, ring].astype(float) - PEDESTAL, axis=1)
        assert (np.abs(left / there - 1) < (0.35 if first < 28 else 0.15)).all()
        if first == 12:  # 0.9 and more of what is there was added
            assert np.abs(spoilt / there - 1).max() > 0.9
    assert cleaned.stack[:, away < 4].max() < 2 * tissue.max()
    assert cleaned.light is not None
    assert cleaned.light[PLACE, PLACE] == pytest.approx(min(peak, 65535 - PEDESTAL), rel=0.3)
    assert cleaned.spoilt is not None
    assert cleaned.spoilt[PLACE // 4, PLACE // 4]


def test_a_clipped_speck_in_an_end_plane_is_found_there() -> None:
    """Far planes show less than the level, for most of its light lies outside the speck there."""
    tissue = scene(2)[0].astype(np.uint16)
    stack = np.minimum(tissue + speck_light(1.2e5, 4.4, 0), 65535).astype(np.uint16)
    model = replace(model_of(tissue), level_counts=3e4)
    cleaned = without_specks(stack, model)
    assert cleaned.light is not None
    assert cleaned.light[PLACE, PLACE] > 5e4
    assert cleaned.stack[0, PLACE, PLACE] < 2 * tissue.max()


def test_what_the_border_cuts_is_a_speck_at_a_third_of_the_level() -> None:
    tissue = scene(2)[0].astype(np.uint16)
    y = np.arange(SIZE)[:, None]
    stack = np.minimum(tissue + speck_light(3e4, 3.0, 4), 65535).astype(np.uint16)
    model = replace(model_of(tissue), level_counts=6e4)
    for border, cut in ((PLACE + 2, True), (PLACE + 20, False)):
        seen = np.broadcast_to(y < border, (SIZE, SIZE))
        cleaned = without_specks(stack, model, seen)
        assert (cleaned.light is not None) == cut
        np.testing.assert_array_equal(cleaned.stack[:, ~seen], stack[:, ~seen])
    assert without_specks(stack, model).light is None


@pytest.mark.parametrize("beyond", [2, 5])
def test_a_speck_beyond_the_border_leaves_what_is_inside(beyond: int) -> None:
    rng = np.random.default_rng(3)
    tissue = (scene(2)[0] + rng.poisson(150, (PLANES, SIZE, SIZE))).astype(np.uint16)
    light = rng.poisson(speck_light(4e5, 3.0, PLANES // 2))
    stack = np.minimum(tissue + light, 65535).astype(np.uint16)
    border = PLACE - beyond
    # What continues a window is its mirror image.
    stack = np.pad(stack[:, :border], ((0, 0), (0, SIZE - border), (0, 0)), mode="symmetric")
    y, x = np.mgrid[:SIZE, :SIZE]
    seen, away = y < border, np.hypot(y - PLACE, x - PLACE)
    cleaned = without_specks(stack, model_of(tissue), seen)
    for first in range(16, 56, 8):
        ring = (away >= first) & (away < first + 8) & seen
        there, left = (
            np.median(v[:, ring].astype(float) - PEDESTAL, axis=1) for v in (tissue, cleaned.stack)
        )
        assert (np.abs(left / there - 1) < (0.35 if first < 28 else 0.2)).all()


def test_specks_beside_each_other_keep_their_flanks() -> None:
    tissue = scene(2)[0].astype(np.uint16)
    apart = 30
    one = speck_light(1e5, 5.0, PLANES // 2)
    both = np.roll(one, -apart // 2, 2) + np.roll(one, apart // 2, 2)
    stack = np.minimum(tissue + both, 65535).astype(np.uint16)
    # So high that they are not one object.
    model = replace(model_of(tissue), level_counts=2e4)
    cleaned = without_specks(stack, model)
    assert cleaned.light is not None
    y, x = np.mgrid[:SIZE, :SIZE] - PLACE
    away = np.minimum(np.hypot(y, x - apart // 2), np.hypot(y, x + apart // 2))
    flank = (away < 11) & (both[PLANES // 2] > 3000)
    raw = stack[PLANES // 2].astype(float) - PEDESTAL
    assert (cleaned.light[flank] > 0.7 * raw[flank]).all()


def test_specks_hardly_change_what_counts_as_one() -> None:
    tissue = scene(2)[0].astype(np.uint16)
    stack = np.minimum(tissue + speck_light(2e5, 3.0, 4), 65535).astype(np.uint16)
    with_it, without = (speck_level([s], KEPT, NOISE, PEDESTAL) for s in (stack, tissue))
    assert without <= with_it < 2 * without
    assert tissue.max() - PEDESTAL < without


def test_larger_objects_are_tissue() -> None:
    tissue = scene(2)[0].astype(np.uint16)
    y, x = np.mgrid[:SIZE, :SIZE] - PLACE
    large = np.hypot(y, x) < 60
    stack = np.where(large, 60000, tissue).astype(np.uint16)
    assert without_specks(stack, model_of(tissue)).stack is stack
