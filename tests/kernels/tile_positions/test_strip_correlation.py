"""Shifts of overlapping strips, and the probability of a false match."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tests.support.spots import Floats, Strips, render, spots
from tilewright.kernels.tile_positions.displacements import Overlaps, measure_overlaps
from tilewright.kernels.tile_positions.overlap_strips import neighbours, plan_strips
from tilewright.kernels.tile_positions.position_solve import (
    FALSE_MATCH_PROBABILITY,
    accept_edges,
    loop_closures,
)
from tilewright.kernels.tile_positions.strip_correlation import (
    correlate_strips,
    filter_strip,
    subpixel,
)

STRIP, SHAPE = (180, 48), (256, 30)
PLACES = [(40, 14), (97, 10), (200, 18)]


def test_noise_does_not_pull_the_fraction() -> None:
    """A gradient step with noisy gradients would shrink every fraction towards 0."""
    shrink = []
    for seed in range(8):
        cells = spots(seed, *STRIP)
        rng = np.random.default_rng(seed)
        noise = 250.0 * rng.standard_normal((2, 1, *STRIP)).astype(np.float32)
        small = [
            filter_strip(render(cells, np.full(2, at), STRIP) + added[0], 1.5)
            for at, added in zip((0.0, 0.4), noise, strict=True)
        ]
        found = subpixel(small[0], small[1])
        assert found is not None
        delta, _, _ = found
        shrink.append(2.0 * delta / 0.4)
    assert abs(np.mean(shrink) - 1.0) < 0.1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bright_object_cut_by_the_border_does_not_decide(seed: int) -> None:
    """Its reflection in the padding makes a ridge that the other strip has not."""
    true = np.array([3.3, 7.7])
    bright = np.array([[80.0, 110.0], [7.7 - 1.0, 7.7 - 2.0], [2e4, 2e4], [2.5, 3.5]])
    cells = np.concatenate([spots(seed, *STRIP), bright], axis=1)
    a, b = (render(cells, origin, STRIP) for origin in (np.zeros(2), true))
    assert np.abs(correlate_strips(a, b, np.zeros(2), 14.0, 1.5).shift_px - true).max() < 0.1


def texture(seed: int, count: int, width: float) -> Strips:
    """Return Gaussian textures of a width, standard deviation 1."""
    rough = np.random.default_rng(seed).standard_normal((count, *SHAPE))
    smooth = ndimage.gaussian_filter(rough, (0, width, width), mode="wrap")
    return np.asarray(smooth / smooth.std(axis=(1, 2), keepdims=True), np.float32)


def cell(strips: Strips, places: list[tuple[int, int]]) -> Strips:
    """Add the same round cell to every strip at the places."""
    y, x = np.indices(SHAPE)
    cells = [np.exp(-0.5 * ((y - py) ** 2 + (x - px) ** 2) / 9.0) for py, px in places]
    return np.asarray(strips + 40.0 * sum(cells), np.float32)


def chance_of(first: Strips, second: Strips) -> Floats:
    found = [
        correlate_strips(a, b, np.zeros(2), 8.0, 1.5) for a, b in zip(first, second, strict=True)
    ]
    return np.array([one.false_match_probability for one in found])


@pytest.mark.parametrize("width", [0.01, 2.0, 4.0])
def test_chance_is_a_probability_on_textures_of_any_width(width: float) -> None:
    found = chance_of(texture(1, 400, width), texture(2, 400, width))
    for level in (0.3, 0.1, 0.03):
        assert np.mean(found <= level) < 1.5 * level
    assert np.mean(found <= 0.3) > 0.01, "it is not always 1"
    assert found.min() > FALSE_MATCH_PROBABILITY


def test_a_weak_common_texture_is_beyond_chance() -> None:
    common = texture(3, 20, 2.0)
    a, b = (common + texture(s, 20, 0.01) for s in (4, 5))
    assert chance_of(a, b).max() < 0.1 * FALSE_MATCH_PROBABILITY


def test_a_single_common_object_is_an_accident_several_are_not() -> None:
    noise = [texture(seed, 6, 0.01) for seed in (6, 7)]
    one, three = (chance_of(cell(noise[0], at), cell(noise[1], at)) for at in ([(90, 14)], PLACES))
    assert one.min() > 100 * FALSE_MATCH_PROBABILITY
    assert three.max() < 0.05 * one.min()


def test_specimen_that_repeats_itself_tells_nothing() -> None:
    y, x = np.indices(SHAPE)
    wave = 20.0 * np.sin(2 * np.pi * y / 11.0) * np.sin(2 * np.pi * x / 11.0)
    a, b = (np.asarray(wave + texture(seed, 4, 0.01), np.float32) for seed in (8, 9))
    assert chance_of(a, b).min() == 1.0


def test_a_shift_outside_the_window_is_not_believed() -> None:
    rng = np.random.default_rng(5)
    specimen = ndimage.gaussian_filter(rng.standard_normal((300, 600)), 2.0).astype(np.float32)
    nominal = np.array([[0.0, 0.0], [0.0, 220.0]])
    plan = plan_strips(nominal, (256, 256), 8.0)[0]

    def strip(tile: Strips, origin: Any) -> list[Strips]:
        return [tile[origin[0] :, origin[1] :][: plan.shape[0], : plan.shape[1]][None]]

    def found(step: int) -> Overlaps:
        a = strip(specimen[20:276, :256], plan.origin_a)
        b = strip(specimen[20 + step : 276 + step, 220:476], plan.origin_b)
        return measure_overlaps([plan], a, b, 1.5)

    inside = found(6)
    assert inside.false_match_probability[0] < FALSE_MATCH_PROBABILITY
    np.testing.assert_allclose(inside.displacement_px, [[6.0, 220.0]], atol=0.05)
    assert found(14).false_match_probability[0] > 100 * FALSE_MATCH_PROBABILITY


def on_grid(rows: int, cols: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pairs and axes of a grid."""
    nominal = np.stack([v.ravel() for v in np.mgrid[:rows, :cols]], axis=1) * 230.0
    return neighbours(nominal, (256, 256))


def supported(probability: Floats, offset: Floats) -> NDArray[np.bool_]:
    pairs, axis = on_grid(4, 5)
    return accept_edges(pairs, axis, offset, probability, 8.0, FALSE_MATCH_PROBABILITY)[0]


def test_loops_confirm_weak_overlaps() -> None:
    pairs, axis = on_grid(4, 5)
    rng = np.random.default_rng(0)
    place = rng.uniform(-2, 2, (20, 2))
    offset = place[pairs[:, 1]] - place[pairs[:, 0]]
    weak = np.full(len(pairs), 0.09)
    assert supported(weak, offset).all()
    assert supported(weak, offset + rng.uniform(-8, 8, offset.shape)).mean() < 0.1
    closure = loop_closures(pairs, axis, offset, weak < 0.2)
    assert closure.max() < 1e-9


def test_chance_seldom_closes_loops() -> None:
    rng = np.random.default_rng(1)
    count = len(on_grid(4, 5)[0])
    share = [
        supported(rng.uniform(0, 1, count), rng.uniform(-8, 8, (count, 2))).mean()
        for _ in range(300)
    ]
    assert np.mean(share) <= 0.3e-2


def test_one_row_has_no_loops_and_its_overlaps_count_alone() -> None:
    pairs, axis = on_grid(1, 4)
    probability = np.array([3e-5, 1e-3, 1e-9])
    accepted, posterior = accept_edges(pairs, axis, np.zeros((3, 2)), probability, 8.0, 1e-4)
    assert accepted.tolist() == [True, False, True]
    np.testing.assert_array_equal(posterior, probability)
    assert accept_edges(pairs, axis, np.zeros((3, 2)), probability, 8.0, 1e-2)[0].all()
