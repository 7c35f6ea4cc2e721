"""Projection of synthetic stacks with known truth, and the judging of planes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tests.support.wavy_stack import PEDESTAL, PLANES, SIZE, psnr, wavy
from tilewright.kernels.backend import Backend
from tilewright.kernels.edf import focus
from tilewright.kernels.edf.plane_order import (
    add_pairs,
    compare_planes,
    judge_exchanges,
)
from tilewright.kernels.edf.planes import PlaneVerdict, judge_planes, sample_planes
from tilewright.kernels.noise import NoiseModel

NOISE = NoiseModel(1.0, 2.0)


ALL = np.ones(PLANES, bool)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_soft_focus_finds_the_sheet_and_its_height(cpu: Backend, seed: int) -> None:
    stack, truth, height = wavy(seed)
    found = focus.soft_focus(cpu, stack, NOISE, PEDESTAL, ALL)
    best_plane = max(psnr(plane, truth) for plane in stack.astype(np.float32))
    assert psnr(found.image, truth) > max(psnr(stack.max(0), truth), best_plane) + 4
    assert psnr(found.image, truth) > 30
    tissue = truth > 100
    assert np.median(np.abs(found.height - height)[tissue]) < 0.4
    # Raw counts over the pedestal, not rescaled.
    assert found.image[tissue].mean() == pytest.approx(truth[tissue].mean(), rel=0.06)
    winners = found.winner[tissue]
    assert (winners >= 0).mean() > 0.9
    assert np.median(np.abs(winners - height[tissue])[winners >= 0]) < 0.6


def test_soft_focus_of_nothing_is_the_quiet_mean(cpu: Backend) -> None:
    rng = np.random.default_rng(0)
    stack = rng.normal(PEDESTAL + 50, np.sqrt(54), (PLANES, SIZE, SIZE))
    found = focus.soft_focus(cpu, stack, NOISE, PEDESTAL, ALL)
    assert found.image.mean() == pytest.approx(50, abs=0.2)
    assert found.image.std() < 1.4 * np.sqrt(54 / PLANES)
    assert (found.winner < 0).mean() > 0.9
    assert found.height.mean() == pytest.approx(4, abs=0.2)


def test_soft_focus_survives_saturated_stacks(cpu: Backend) -> None:
    stack = np.zeros((5, 64, 64), np.uint16)
    stack[:, ::2] = 65535
    found = focus.soft_focus(cpu, stack, NOISE, 0.0, np.ones(5, bool))
    np.testing.assert_allclose(found.image, stack[0].astype(np.float32), rtol=1e-5)


def test_planes_left_out_have_no_part(cpu: Backend) -> None:
    stack, _, _ = wavy(4)
    kept = ALL.copy()
    kept[[0, 5]] = False
    spoiled = stack.copy()
    spoiled[[0, 5]] = 60000
    for kernel_stack in (stack, spoiled):
        soft = focus.soft_focus(cpu, kernel_stack, NOISE, PEDESTAL, kept)
        assert not np.isin(soft.winner, [0, 5]).any()
        if kernel_stack is stack:
            first = soft
    np.testing.assert_array_equal(first.image, soft.image)
    with pytest.raises(ValueError, match="no plane"):
        focus.soft_focus(cpu, stack, NOISE, PEDESTAL, ~ALL)


@pytest.mark.parametrize("seed", [1, 2])
def test_psf_mean_gives_the_raw_counts_of_a_plane_in_focus(cpu: Backend, seed: int) -> None:
    """A sheet deconvolved perfectly: its light, over the share of the central plane."""
    height = wavy(seed)[2]
    rng = np.random.default_rng(seed)
    sheet = rng.gamma(0.5, 200.0, (SIZE, SIZE))
    share = 1 / (2 * PLANES - 1)
    light = np.zeros((PLANES, SIZE, SIZE), np.float32)
    np.put_along_axis(light, np.rint(height).astype(int)[None], (sheet / share)[None], axis=0)
    at = np.arange(-4, 5)
    kernel = np.exp(-0.5 * (at[:, None] ** 2 + at**2) / 0.8**2)
    found = focus.psf_mean(cpu, light, kernel, share, 1.0)
    expected = ndimage.convolve(sheet, kernel / kernel.sum(), mode="reflect")
    np.testing.assert_allclose(found.image, expected, rtol=1e-4, atol=0.02)
    # Beside a step of a whole plane the smoothed energy mixes both; away from it, it is exact.
    rounded = np.rint(height)
    away = np.abs(rounded - ndimage.uniform_filter1d(rounded, 41, axis=0)) < 1e-6
    assert (found.winner == rounded)[away].mean() > 0.99


def test_blur_needs_a_centre_and_light(cpu: Backend) -> None:
    with pytest.raises(ValueError, match="odd sides"):
        focus.blur(cpu, np.zeros((8, 8)), np.ones((3, 4)))
    with pytest.raises(ValueError, match="odd sides"):
        focus.blur(cpu, np.zeros((8, 8)), np.zeros((3, 3)))


def test_blur_reaches_past_small_images(cpu: Backend) -> None:
    image = np.arange(20, dtype=np.float32).reshape(4, 5)
    kernel = np.random.default_rng(0).random((7, 7))
    expected = ndimage.convolve(image.astype(float), kernel / kernel.sum(), mode="reflect")
    np.testing.assert_allclose(focus.blur(cpu, image, kernel), expected, rtol=1e-5)


def judged(backend: Backend, stack: NDArray[np.float32] | NDArray[np.uint16]) -> list[PlaneVerdict]:
    ceiling = 65535.0 if stack.dtype == np.uint16 else np.inf
    half = stack.shape[1] // 2
    chunks = (stack[:, :half], stack[:, half:])
    samples = [sample_planes(backend, chunk, ceiling) for chunk in chunks]
    pairs = add_pairs([compare_planes(backend, chunk, NOISE, PEDESTAL) for chunk in chunks])
    return judge_planes(samples, PEDESTAL, pairs)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_no_good_plane_is_damaged(cpu: Backend, seed: int) -> None:
    stack, _, _ = wavy(seed)
    assert judged(cpu, stack) == []


@pytest.mark.parametrize("z", [1.5, 2.4, 2.7])
def test_a_saturated_speck_says_nothing_of_the_order(cpu: Backend, z: float) -> None:
    """It is far brighter than all tissue, and alike on either side of its focus."""
    stack = wavy(1)[0][2:7]
    away = np.hypot(*(np.indices((SIZE, SIZE)) - SIZE // 3))
    for k, plane in enumerate(stack):
        width_px = np.hypot(2, 3 * (k - z))
        speck = 4e6 / width_px**2 * np.exp(-((away / width_px) ** 2) / 2)
        plane[:] = np.minimum(plane + speck, 65535)
    assert judged(cpu, stack) == []


@pytest.mark.parametrize("z", [0, 1, 4, 8])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("saturated", "blank|saturated"),
        ("glare", "saturated"),
        ("blank", "blank"),
        ("dark", "blank"),
        ("copy", "copy of plane"),
        ("noise", "blank|unlike"),
        ("shifted", "unlike"),
        ("exposure", "times as bright"),
        ("lamp", "times as bright"),
        ("half", "times as bright|unlike"),
    ],
)
def test_a_damaged_plane_is_left_out_and_named(
    cpu: Backend, damage: str, reason: str, z: int
) -> None:
    stack, _, _ = wavy(5)
    rng = np.random.default_rng(6)
    light = stack[z].astype(float) - PEDESTAL
    planes = {
        "saturated": np.full((SIZE, SIZE), 65535.0),
        "glare": np.where(rng.random((SIZE, SIZE)) < 0.5, 65535, stack[z]),
        "blank": np.full((SIZE, SIZE), 103.0),
        "dark": np.rint(rng.normal(PEDESTAL, 2, (SIZE, SIZE))),
        "copy": stack[max(z - 1, 0)].astype(float),
        "noise": rng.permuted(rng.permuted(stack[z], axis=0), axis=1),
        "shifted": np.roll(stack[z], (SIZE // 2, SIZE // 3), (0, 1)),
        "exposure": light * 2 + PEDESTAL,
        "lamp": light * 0.4 + PEDESTAL,
        "half": np.where(np.arange(SIZE)[:, None] < SIZE // 2, stack[z], PEDESTAL),
    }
    if damage == "copy" and z == 0:
        stack[1] = stack[0]
        z = 1
    else:
        stack[z] = planes[damage].astype(np.uint16)
    verdicts = judged(cpu, stack)
    assert [v.z for v in verdicts] == [z]
    assert any(word in verdicts[0].reason for word in reason.split("|"))


def test_two_damaged_planes_do_not_drag_their_neighbours_along(cpu: Backend) -> None:
    stack, _, _ = wavy(5)
    stack[3] = 65535
    stack[5] = np.roll(stack[5], (90, 60), (0, 1))
    assert [v.z for v in judged(cpu, stack)] == [3, 5]


def test_an_empty_or_wholly_saturated_stack_loses_nothing(cpu: Backend) -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(PEDESTAL, 3, (PLANES, SIZE, SIZE))
    assert judged(cpu, np.rint(noise).astype(np.uint16)) == []
    assert judged(cpu, np.full((PLANES, SIZE, SIZE), 65535, np.uint16)) == []


@pytest.mark.parametrize("z", [1, 3, 5])
@pytest.mark.parametrize("damage", ["displaced", "swapped", "dimmed"])
def test_a_subtly_damaged_plane_is_named(cpu: Backend, damage: str, z: int) -> None:
    stack, _, _ = wavy(8)
    wanted, reason = [z], {"dimmed": "0.7"}.get(damage, damage)
    if damage == "displaced":
        stack[z] = np.roll(stack[z], 3, axis=1)
    elif damage == "swapped":
        stack[[z, z + 1]] = stack[[z + 1, z]]
        wanted, reason = [z, z + 1], "out of order"
    else:
        stack[z] = np.rint(0.7 * (stack[z] - PEDESTAL) + PEDESTAL).astype(np.uint16)
    verdicts = judged(cpu, stack)
    assert [v.z for v in verdicts] == wanted
    assert all(reason in v.reason for v in verdicts)


@pytest.mark.parametrize(
    "planes", [(1, 5), (2, 4), (2, 6), (3, 7), (3, 5), (4, 7), (5, 6), (0, 5), (2, 8), (0, 1)]
)
def test_of_two_exchanged_planes_just_these_are_named(cpu: Backend, planes: list[int]) -> None:
    """Adjacent or not: one of them alone may seem foreign, or a neighbour in wrong order."""
    stack, _, _ = wavy(8)
    stack[list(planes)] = stack[list(planes[::-1])]
    verdicts = judged(cpu, stack)
    assert [v.z for v in verdicts] == list(planes)
    assert all("out of order" in v.reason for v in verdicts)


def test_one_glaring_sample_does_not_decide_the_order(cpu: Backend) -> None:
    stacks = [wavy(seed)[0] for seed in (1, 2, 3, 4)]
    glaring = wavy(5)[0]
    glaring[[2, 4]] = glaring[[4, 2]]
    stacks.append((PEDESTAL + 3 * (glaring.astype(np.float64) - PEDESTAL)).astype(np.uint16))
    pairs = [compare_planes(cpu, stack, NOISE, PEDESTAL) for stack in stacks]
    assert judge_exchanges(pairs[-1], set()).keys() == {2, 4}
    assert judge_exchanges(add_pairs(pairs), set()) == {}


def test_glass_does_not_hide_what_tissue_tells(cpu: Backend) -> None:
    rng = np.random.default_rng(0)
    shape = (PLANES, SIZE, SIZE)
    dust = ndimage.gaussian_filter(rng.normal(0, 1, shape), (2, 2, 2))
    glass = [(PEDESTAL + rng.poisson(20 + dust / dust.std())).astype(np.uint16) for _ in range(5)]
    tissue = [wavy(seed)[0] for seed in (1, 2, 3)]
    pairs = [compare_planes(cpu, stack, NOISE, PEDESTAL) for stack in (*glass, *tissue)]
    # All of the tissue counts, which has 10,000 times the energy.
    total = add_pairs(pairs)
    np.testing.assert_allclose(total.power, sum(pair.power for pair in pairs))


def test_a_blank_plane_does_not_hide_that_two_are_exchanged(cpu: Backend) -> None:
    stack, _, _ = wavy(8)
    stack[[2, 6]] = stack[[6, 2]]
    stack[0] = PEDESTAL
    verdicts = judged(cpu, stack)
    assert [v.z for v in verdicts] == [0, 2, 6]


def test_a_stage_that_drifts_evenly_displaces_no_plane(cpu: Backend) -> None:
    stack, _, _ = wavy(8)
    for z in range(PLANES):
        stack[z] = np.roll(stack[z], z, axis=0)
    assert judged(cpu, stack) == []


def test_tissue_that_leaves_the_stack_is_seen_at_that_end(cpu: Backend) -> None:
    stack, _, _ = wavy(8)
    ends = [compare_planes(cpu, part, NOISE, PEDESTAL).ends for part in (stack, stack[:4])]
    assert max(ends[0]) < 0.1
    assert ends[1][1] > 0.3 > ends[1][0]


def test_glass_is_sharpest_in_no_plane(cpu: Backend) -> None:
    rng = np.random.default_rng(0)
    light = rng.poisson(40, (PLANES, SIZE, SIZE)) * NOISE.gain
    stack = PEDESTAL + light + rng.normal(0, NOISE.read_noise_counts, light.shape)
    pairs = compare_planes(cpu, np.rint(stack).astype(np.uint16), NOISE, PEDESTAL)
    assert pairs.sharpest.sum() == 0


def _same_on(device: Backend, cpu: Backend) -> None:
    """Pixels within a count; decisions per pixel are compared where they are not close calls."""
    stack, _, _ = wavy(1)
    kernel = np.outer(*2 * (np.hanning(11),)).astype(np.float32)
    here, there = (
        (
            focus.soft_focus(b, stack, NOISE, PEDESTAL, ALL),
            focus.psf_mean(b, stack, kernel, 0.06, 10.0),
        )
        for b in (cpu, device)
    )
    for one, other in zip(here, there, strict=True):
        image = device.to_numpy(other.image)
        assert image.dtype == np.float32
        np.testing.assert_allclose(one.image, image, atol=1, rtol=0)
        np.testing.assert_allclose(one.height, device.to_numpy(other.height), atol=0.01)
        assert (one.winner == device.to_numpy(other.winner)).mean() > 0.999
    samples = [sample_planes(b, stack, 65535.0) for b in (cpu, device)]
    np.testing.assert_allclose(samples[0].coarse, samples[1].coarse, rtol=1e-6)


def test_focus_touches_arrays_through_the_backend_only(cpu: Backend, guarded: Backend) -> None:
    _same_on(guarded, cpu)


@pytest.mark.gpu
def test_focus_on_the_gpu(cpu: Backend, gpu: Backend) -> None:
    _same_on(gpu, cpu)
