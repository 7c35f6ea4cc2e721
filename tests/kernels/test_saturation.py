"""Saturation is counted where it spoils positive cells, not in the share of all pixels."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.camera import (
    Top,
    away_from_saturation,
    detect_saturation,
    saturated_share,
    top_of,
)
from tilewright.quality.results import METRICS

SIDE = 960
OFFSET = 100.0


class Marker(NamedTuple):
    """Counts (y, x) of a marker that no camera clipped, its cells, and which are positive."""

    counts: NDArray[np.float64]
    cells: NDArray[np.int64]
    positive: NDArray[np.int64]
    background: float

    def loss(self, ceiling: float) -> float:
        """Return the share of their light that the brightest tenth of positive cells lose."""
        means = [
            ndimage.mean(values - self.background, self.cells, self.positive)
            for values in (self.counts, np.minimum(self.counts, ceiling))
        ]
        top = means[0] >= np.quantile(means[0], 0.9)
        return float(1 - means[1][top].sum() / means[0][top].sum())

    def share(self, ceiling: float) -> float:
        """Return the number that judges saturation at a ceiling."""
        return share_of(np.minimum(self.counts, ceiling), float(np.rint(ceiling)))


def share_of(image: NDArray[np.float64], ceiling: float) -> float:
    """Return the number that judges saturation of an image (y, x)."""
    counts = np.rint(image).astype(np.int64)
    away = away_from_saturation(counts, ceiling)
    every, other = (np.bincount(one, minlength=65536) for one in (counts.ravel(), away))
    return saturated_share(every, other, ceiling)


def marker(seed: int, kind: str, share: float, background: float) -> Marker:
    """Draw round cells on a jittered grid; ``share`` of them are positive."""
    rng = np.random.default_rng(seed)
    step, radius = 24, 8.0
    grid = step * (1 + np.argwhere(np.ones((SIDE // step - 1,) * 2)))
    centres = grid + rng.uniform(-3, 3, grid.shape)
    at: NDArray[np.int64] = np.mgrid[:SIDE, :SIDE]
    y, x = at
    count = SIDE // step - 1
    nearest = np.clip(at // step, 1, count)
    cells = np.zeros((SIDE, SIDE), np.int64)
    distance = np.full((SIDE, SIDE), np.inf)
    for move in np.ndindex(2, 2):
        row, column = np.clip(nearest + np.reshape(move, (2, 1, 1)), 1, count)
        number = (row - 1) * count + column - 1
        away = np.hypot(y - centres[number, 0], x - centres[number, 1])
        cells[away < distance] = number[away < distance] + 1
        distance = np.minimum(distance, away)
    cells[distance > radius + 1] = 0
    positive = 1 + np.flatnonzero(rng.random(len(centres)) < share)
    amplitude = np.zeros(len(centres) + 1)
    amplitude[1:] = 0.03 * rng.gamma(2, 0.5, len(centres))
    amplitude[positive] = rng.gamma(4, 0.25, len(positive))
    where = {
        "membrane": np.abs(distance - radius) < 1,
        "cytoplasm": (distance > 4) & (distance <= radius),
        "nucleus": distance <= 5,
    }[kind]
    texture = 1 + 0.3 * ndimage.gaussian_filter(rng.normal(size=cells.shape), 3) * 10
    light = ndimage.gaussian_filter(amplitude[cells] * where * np.maximum(texture, 0.2), 0.9)
    light += 0.25 * ndimage.gaussian_filter(light, 12)
    counts = rng.poisson(700 * light + background) * 2 + OFFSET
    counts = counts + rng.normal(0, 3, counts.shape)
    return Marker(counts, cells, positive, OFFSET + 2 * background)


# Seeds that set no limit: those that did, and six more of real nuclei, were 1 to 16.
@pytest.mark.parametrize("kind", ["membrane", "cytoplasm", "nucleus"])
@pytest.mark.parametrize(("share", "seed"), [(0.01, 31), (0.05, 32), (0.2, 31), (0.5, 32)])
def test_a_marker_warns_before_its_brightest_cells_are_off(
    kind: str, share: float, seed: int
) -> None:
    limit = METRICS["saturated"].threshold
    scene = marker(seed, kind, share, background=(12.0, 100.0)[seed % 2])
    losses, light = [], scene.counts[np.isin(scene.cells, scene.positive)]
    for quantile in (0.9, 0.99, 0.999, 0.9999, 1):
        ceiling = float(np.quantile(light, quantile)) + (quantile == 1)
        losses.append(scene.loss(ceiling))
        verdict = limit.verdict(scene.share(ceiling))
        if losses[-1] > 0.05:
            assert verdict != "pass", (losses[-1], scene.share(ceiling))
        if losses[-1] < 0.01:
            assert verdict == "pass", (losses[-1], scene.share(ceiling))
    assert max(losses) > 0.05
    assert min(losses) < 0.01


# Of rarer markers three pieces of debris are as many bright pixels as the cells.
@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("above", [1.2, 3.0])
def test_padding_and_bright_debris_are_no_cells(share: float, above: float) -> None:
    scene = marker(33, "nucleus", share, 12.0)
    limit = METRICS["saturated"].threshold
    ceiling = float(np.rint(above * scene.counts.max()))
    counts = scene.counts.copy()
    y, x = np.mgrid[-30:31, -30:31]
    for at in ((200, 300), (500, 100), (700, 800)):
        debris = counts[at[0] - 30 : at[0] + 31, at[1] - 30 : at[1] + 31]
        debris += 5 * ceiling * np.exp(-(np.hypot(y, x) ** 2) / 30)
    counts = np.minimum(counts, ceiling)
    assert np.count_nonzero(counts == ceiling) > 200
    assert limit.verdict(share_of(counts, ceiling)) == "pass"
    counts[:600] = 0
    assert limit.verdict(share_of(counts, ceiling)) == "pass"
    assert scene.share(float(np.quantile(scene.counts, 0.995))) > 0.1


def detected(tiles: Iterable[NDArray[Any]]) -> float | None:
    return detect_saturation(top_of(tile) for tile in tiles)


def test_the_camera_saturates_where_pixels_of_many_tiles_pile_up() -> None:
    rng = np.random.default_rng(5)
    light = rng.poisson(rng.exponential(300, (12, 100, 100))).astype(np.uint16)
    assert detected(light) is None
    assert detected(np.minimum(light, 900)) == 900
    # Twelve bits shifted into sixteen: levels are 16 apart.
    assert detected(16 * np.minimum(light, 900)) == 900 * 16
    light[:, 40:42, 50:54] = 4095
    assert detected(light) == 4095
    assert detected(light[:3]) is None
    # One hot pixel of each tile is as bright as nothing else, but the next one is too.
    assert detect_saturation([Top(4095.0, 1, 1)] * 40) is None
    # Tiles that do not reach it tell nothing.
    assert detect_saturation([Top(4095.0, 8, 1), Top(300.0, 40, 0)]) is None
    assert detected(np.minimum(rng.poisson(0.5, (4, 200, 200)), 50).astype(np.uint8)) is None
    assert detected([np.full((50, 50), 7)]) is None
    assert detected([]) is None
