"""Projection of synthetic stacks with known truth, and the judging of planes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tests.support.wavy_stack import PEDESTAL, PLANES, SIZE, wavy
from tilewright.kernels.backend import Backend
from tilewright.kernels.deconvolve.psf import Optics, gibson_lanni
from tilewright.kernels.edf import focus
from tilewright.kernels.edf.planes import damaged_planes, focus_ends, sample_planes
from tilewright.kernels.noise import NoiseModel

NOISE = NoiseModel(1.0, 2.0)
ALL = np.ones(PLANES, bool)
SHAPE = (PLANES, SIZE, SIZE)
Stack = NDArray[np.uint16]


def test_focus_weighted_of_nothing_is_the_quiet_mean_and_of_saturation_itself(cpu: Backend) -> None:
    stack = np.random.default_rng(0).normal(PEDESTAL + 50, np.sqrt(54), SHAPE)
    measure = focus.FocusMeasure(cpu, ALL, NOISE, PEDESTAL, (SIZE, SIZE))
    found = focus.focus_weighted(measure, stack)
    assert found.image.mean() == pytest.approx(50, abs=0.2)
    assert found.image.std() < 1.4 * np.sqrt(54 / PLANES)
    assert (found.sharpest < 0).mean() > 0.9
    assert found.height.mean() == pytest.approx(4, abs=0.2)
    stack = np.zeros((5, 64, 64), np.uint16)
    stack[:, ::2] = 65535
    measure = focus.FocusMeasure(cpu, np.ones(5, bool), NOISE, 0.0, (64, 64))
    found = focus.focus_weighted(measure, stack)
    np.testing.assert_allclose(found.image, stack[0].astype(np.float32), rtol=1e-5)


def judged(stack: Stack) -> dict[int, str]:
    """Return what is said of the planes that are left out."""
    half = stack.shape[1] // 2
    samples = [sample_planes(part, PEDESTAL) for part in (stack[:, :half], stack[:, half:])]
    return {v.z: v.reason for v in damaged_planes(samples)}


def times(share: float) -> Callable[[Any], Any]:
    return lambda plane: np.rint(share * (plane - PEDESTAL) + PEDESTAL)


def random() -> np.random.Generator:
    return np.random.default_rng(6)


def exchange(stack: Stack, planes: Sequence[int]) -> Stack:
    stack[list(planes)] = stack[list(planes[::-1])]
    return stack


#: What befell a plane, and what is said of it.
DAMAGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "saturated": (lambda plane: 65535, "blank"),
    "glare": (
        lambda plane: np.where(random().random(plane.shape) < 0.5, 65535, plane),
        "next to it",
    ),
    "dark": (lambda plane: np.rint(random().normal(PEDESTAL, 2, plane.shape)), "black"),
    "noise": (lambda plane: random().permuted(plane), "next to it"),
    "elsewhere": (lambda plane: np.roll(plane, (SIZE // 2, SIZE // 3), (0, 1)), "next to it"),
    "exposure": (times(2), "next to it"),
    "half": (
        lambda plane: np.where(np.arange(SIZE)[:, None] < SIZE // 2, plane, PEDESTAL),
        "next to it",
    ),
    "displaced": (lambda plane: np.roll(plane, 3, axis=1), "next to it"),
    "dimmed": (times(0.7), "next to it"),
}
SUBTLE = ("displaced", "dimmed")


@pytest.mark.parametrize(
    ("z", "damage"),
    [(z, name) for name in DAMAGES for z in ((1, 3, 5) if name in SUBTLE else (0, 1, 4, 8))],
)
def test_a_damaged_plane_is_left_out_and_named(damage: str, z: int) -> None:
    stack = wavy(8 if damage in SUBTLE else 5)[0]
    change, said = DAMAGES[damage]
    stack[z] = change(stack[z].astype(float))
    found = judged(stack)
    assert list(found) == [z]
    assert said in found[z]


@pytest.mark.parametrize("z", [1, 4, 8])
def test_the_second_of_two_copies_is_named(z: int) -> None:
    stack = wavy(5)[0]
    stack[z] = stack[z - 1]
    found = judged(stack)
    assert list(found) == [z]
    assert "copy of plane" in found[z]


@pytest.mark.parametrize("planes", [(2, 4), (2, 6), (4, 7), (2, 8), (0, 5), (0, 1), (3, 4)])
def test_exchanged_planes_are_noticed(planes: list[int]) -> None:
    """Adjacent or not: one at least is named, and no more than are out of place."""
    found = judged(exchange(wavy(8)[0], planes))
    assert 1 <= len(found) <= 2
    assert set(found) & set(planes)


def test_damaged_planes_do_not_hide_one_another_or_drag_neighbours_along() -> None:
    stack = wavy(5)[0]
    stack[3], stack[5] = 65535, np.roll(stack[5], (90, 60), (0, 1))
    assert list(judged(stack)) == [3, 5]
    stack = wavy(5)[0]
    stack[6:] = PEDESTAL
    assert list(judged(stack)) == [6, 7, 8]
    stack = exchange(wavy(8)[0], (2, 6))
    stack[0] = PEDESTAL
    assert list(judged(stack)) == [0, 2, 6]


def tissue(seed: int) -> Stack:
    return wavy(seed)[0]


def debris(z: float) -> Stack:
    """Return tissue under debris far brighter, and alike on either side of its focus."""
    away = np.hypot(*(np.indices((SIZE, SIZE)) - SIZE // 3))
    width_px = np.hypot(2, 3 * (np.arange(5) - z))[:, None, None]
    light = 4e6 / width_px**2 * np.exp(-((away / width_px) ** 2) / 2)
    return np.asarray(np.minimum(wavy(1)[0][2:7] + light, 65535), np.uint16)


def flat(planes: int, focus: float) -> Stack:
    """Return a thin section in focus at a plane or between two, 20x/0.75, steps of 1.5 µm."""
    rng = random()
    y, x = rng.integers(0, SIZE, (2, SIZE * SIZE // 60))
    light = np.zeros((SIZE, SIZE))
    np.add.at(light, (y, x), rng.uniform(500, 3000, len(y)))
    light = ndimage.gaussian_filter(light, 2.0, mode="wrap") * 20
    psf = gibson_lanni(Optics(0.75, 461.0, 1.0, 1.44), (0.75, 0.325, 0.325), 33, max_lateral_px=129)
    at = [round(16 + 2 * (z - focus)) for z in range(planes)]
    edge = SIZE - psf.shape[1]
    blurred = [np.fft.rfft2(np.pad(psf[z], ((0, edge), (0, edge)))) for z in at]
    stack = np.fft.irfft2(np.fft.rfft2(light) * np.array(blurred), light.shape)
    return np.asarray(
        rng.poisson(np.maximum(stack, 0)) + rng.normal(PEDESTAL, 2, stack.shape), np.uint16
    )


GOOD: dict[str, Callable[[], Stack]] = {
    **{f"flat {n}, {off}": partial(flat, n, n // 2 - off) for n in (3, 5, 7) for off in (0, 0.5)},
    **{f"wavy {seed}": partial(tissue, seed) for seed in (1, 2, 3, 4)},
    **{f"debris {z}": partial(debris, z) for z in (1.5, 2.4, 2.7)},
    "nothing": lambda: np.rint(random().normal(PEDESTAL, 3, SHAPE)).astype(np.uint16),
    "all saturated": lambda: np.full(SHAPE, 65535, np.uint16),
    "even drift": lambda: np.stack([np.roll(p, z, axis=0) for z, p in enumerate(wavy(8)[0])]),
}


@pytest.mark.parametrize("name", GOOD)
def test_no_good_plane_is_damaged(name: str) -> None:
    assert judged(GOOD[name]()) == {}


def test_one_glaring_sample_does_not_decide() -> None:
    glaring = times(3)(exchange(wavy(5)[0], (2, 4)).astype(np.float64)).astype(np.uint16)
    stacks = [*(wavy(seed)[0] for seed in (1, 2, 3, 4)), glaring]
    samples = [sample_planes(stack, PEDESTAL) for stack in stacks]
    assert damaged_planes(samples[-1:])
    assert damaged_planes(samples) == []


def test_glass_does_not_hide_what_tissue_tells() -> None:
    rng = np.random.default_rng(0)
    dust = ndimage.gaussian_filter(rng.normal(0, 1, SHAPE), (2, 2, 2))
    glass = [(PEDESTAL + rng.poisson(20 + dust / dust.std())).astype(np.uint16) for _ in range(3)]
    tissue = [wavy(seed)[0] for seed in (1, 2, 3)]
    for stack in tissue:
        stack[4] = np.roll(stack[4], (30, 40), (0, 1))
    samples = [sample_planes(stack, PEDESTAL) for stack in (*glass, *tissue)]
    assert [plane.z for plane in damaged_planes(samples)] == [4]


def test_where_tissue_leaves_the_stack_the_end_plane_is_sharpest() -> None:
    stack = wavy(1)[0]
    within = focus_ends([sample_planes(stack, PEDESTAL)])
    cut = focus_ends([sample_planes(stack[4:], PEDESTAL)])
    assert max(within) < 0.1 < cut[0]
    assert cut[1] < 0.1
