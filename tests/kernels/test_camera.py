import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from tilewright.kernels.camera import CameraDefects, find_defects
from tilewright.kernels.illumination.fixed_pattern import empty_tiles

SIDE = 192


def tissue(rng: np.random.Generator, count: int, tissue_share: float) -> list[NDArray[np.uint16]]:
    """Photon images of spots as sharp as optics allow, the rest of the tiles nearly empty."""
    tiles = []
    for k in range(count):
        points = rng.random((SIDE, SIDE)) ** 40
        sharp = ndimage.gaussian_filter(points, 1.0)
        light = 2000 * sharp / sharp.max() if k < tissue_share * count else 20 * sharp
        tiles.append((rng.poisson(light + 10) + 100).astype(np.uint16))
    return tiles


def found_in(rounds: list[list[NDArray[np.uint16]]]) -> CameraDefects:
    defects = find_defects(rounds)
    assert defects is not None
    return defects


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_finds_hot_and_dead_pixels_and_no_others(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    tiles = tissue(rng, 16, share)
    truth = {(0, 0), (0, 77), (191, 191), (50, 60), (50, 61), (120, 3)}
    truth |= {(int(y), int(x)) for y, x in rng.integers(10, 180, (30, 2))}
    for tile in tiles:
        for y, x in truth:
            tile[y, x] += 3000
        tile[99, 100] = 0
    found = found_in([tiles])
    places = {divmod(int(pixel), SIDE) for pixel in found.pixel}
    assert len(places - truth - {(99, 100)}) <= 1
    assert len(truth - places) <= 1  # three close together hide one another
    # Under texture as sharp as this everywhere, a pixel without light is one of many.
    assert share == 1 or (99, 100) in places


def test_repair_takes_good_neighbours_and_leaves_the_rest() -> None:
    rng = np.random.default_rng(0)
    clean = tissue(rng, 12, 0.5)
    tiles = [tile.copy() for tile in clean]
    for tile in tiles:
        tile[[40, 40, 0], [40, 41, 0]] = 60_000
    defects = found_in([tiles])
    assert len(defects) == 3
    repaired = defects.repair(tiles[-1])
    assert repaired.dtype == np.uint16
    change = np.abs(repaired.astype(int) - clean[-1])
    assert np.count_nonzero(change) <= 3
    assert change.max() < 6 * np.sqrt(10)
    assert tiles[-1][40, 40] == 60_000


def test_few_tiles_patterns_and_alike_pixels_say_nothing() -> None:
    tiles = tissue(np.random.default_rng(0), 16, 0.5)
    for tile in tiles:
        tile[40, 40] = 60_000
    assert found_in([tiles[:4]]).pixel.tolist() == [40 * SIDE + 40]
    grid = [tile.copy() for tile in tiles]
    for tile in grid:
        tile[::5, ::5] += 5000
    assert find_defects([tiles[:3]]) is None
    for sample in (grid, [np.full((32, 32), 7, np.uint16)] * 10):
        assert found_in([sample]).pixel.tolist() == []
    nothing = CameraDefects.of([], (SIDE, SIDE))
    assert nothing.repair(tiles[0]) is tiles[0]


def test_other_planes_show_what_texture_hides() -> None:
    rng = np.random.default_rng(5)
    rounds = [tissue(rng, 9, 1.0) for _ in range(3)]
    truth = sorted({int(v) for v in rng.integers(0, SIDE**2, 12)})
    for tiles in rounds:
        for tile in tiles:
            tile.reshape(-1)[truth] += 150
    one, three = (set(found_in(rounds[:n]).pixel.tolist()) for n in (1, 3))
    assert three <= set(truth)
    assert len(three) >= 11 > len(one)


DOWN, RIGHT = np.mgrid[-1:1:32j, -1:1:32j]
FLAT = 1 - 0.3 * (RIGHT**2 + DOWN**2) + 0.05 * RIGHT


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dark_field_of_empty_tiles_with_tissue_in_some_corners(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stray = 60 * np.cos(3 * DOWN)
    stray -= np.polyval(np.polyfit(FLAT.ravel(), stray.ravel(), 1), FLAT)
    images = 700 + rng.uniform(280, 320, (45, 1, 1)) * FLAT + stray
    images += rng.normal(0, 3, images.shape)
    images[:14, :18, :20] += rng.uniform(2000, 6000, (14, 1, 1))
    images[30:] += rng.uniform(3000, 5000, (15, 1, 1)) * FLAT
    found = empty_tiles(images, FLAT)
    assert found.offset_counts == pytest.approx(700, abs=25)
    assert found.error_counts < 5
    assert found.structure_counts.mean() == pytest.approx(0, abs=1e-6)
    assert np.abs(found.structure_counts - stray)[3:-3, 3:-3].max() < 20


def test_tissue_everywhere_an_even_flat_or_a_steep_glow_say_nothing() -> None:
    rng = np.random.default_rng(0)
    texture = rng.uniform(100, 5000, (60, 8, 8)).repeat(4, axis=1).repeat(4, axis=2)
    assert empty_tiles(100 + texture * FLAT, FLAT).error_counts > 50
    assert empty_tiles(100 + texture, np.ones((32, 32))).error_counts == np.inf
    # Steeper than the flat-field, as sparse stains have it: no offset below 0.
    for tiles in (12, 60):
        images = np.repeat(100 + 300 * FLAT[None] ** 2, tiles, axis=0)
        assert empty_tiles(images, FLAT).error_counts == np.inf
