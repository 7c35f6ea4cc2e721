"""The map from stage to image, on tiles whose true map is known."""

import itertools

import numpy as np
import pytest

from tests.support.stage_scenes import (
    JITTER_PX,
    OVERLAP,
    TILE_PX,
    Floats,
    cut_tiles,
    grid_px,
    image_places,
    sparse_tiles,
    turn,
)
from tilewright.kernels.tile_positions.overlap_strips import neighbours_along
from tilewright.kernels.tile_positions.stage_map import StageMap, fit_stage_map
from tilewright.kernels.tile_positions.tile_order import tile_places

ROWS, COLS = 3, 4
#: Neighbours of the grid.
PAIRS = ROWS * (COLS - 1) + (ROWS - 1) * COLS
UPRIGHT, SWAPPED = np.eye(2), np.eye(2)[::-1]
ORIENTATIONS = {
    f"{'swapped' if base is SWAPPED else 'upright'} {y:+} {x:+}": np.diag([y, x]) @ base
    for base, y, x in itertools.product((UPRIGHT, SWAPPED), (1.0, -1.0), (1.0, -1.0))
}
#: Jitter of 1.5 px over 17 pairs of 170 px leaves 0.3 %.
TOLERANCE = 0.012


def fitted(
    matrix: Floats, nominal_px: Floats | None = None, blank: tuple[int, ...] = ()
) -> StageMap:
    """Return the map of a stage that moves the image by a matrix."""
    nominal = grid_px(ROWS, COLS) if nominal_px is None else nominal_px
    found = fit_stage_map(cut_tiles(image_places(nominal, matrix), blank), nominal)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "rows", "cols", "pairs"),
    [
        *((name, ROWS, COLS, PAIRS) for name in ORIENTATIONS),
        *((name, 2, 2, 4) for name in ("upright +1.0 -1.0", "swapped +1.0 +1.0")),
    ],
)
def test_axes_may_be_swapped_and_mirrored(name: str, rows: int, cols: int, pairs: int) -> None:
    found = fitted(ORIENTATIONS[name], grid_px(rows, cols))
    np.testing.assert_allclose(found.matrix, ORIENTATIONS[name], atol=TOLERANCE)
    assert (found.matched, found.compared, found.contradicting) == (pairs, pairs, ())


@pytest.mark.parametrize(
    ("degrees", "name"),
    [
        *((degrees, "upright +1.0 +1.0") for degrees in (-5.0, 2.5)),
        *((degrees, "swapped -1.0 +1.0") for degrees in (-2.5, 5.0)),
    ],
)
def test_the_camera_may_be_turned(degrees: float, name: str) -> None:
    matrix = ORIENTATIONS[name] @ turn(degrees)
    found = fitted(matrix)
    np.testing.assert_allclose(found.matrix, matrix, atol=TOLERANCE)
    assert found.matched >= 0.9 * PAIRS
    assert found.contradicting == ()
    wrong = np.sin(np.deg2rad(abs(degrees))) * TILE_PX * (1 - OVERLAP)
    if name.startswith("upright"):
        assert found.largest_error_px == pytest.approx(wrong, abs=JITTER_PX)


@pytest.mark.parametrize(("true", "share"), [(0.06, 0.5), (0.2, 0.9), (0.35, 0.9)])
@pytest.mark.parametrize("name", ["upright +1.0 +1.0", "swapped +1.0 -1.0"])
def test_the_scale_may_be_another(true: float, share: float, name: str) -> None:
    """Of positions that state an overlap of 10 %; one of 6 % has the least width compared."""
    matrix = ORIENTATIONS[name] * ((1 - true) / 0.9)
    found = fitted(matrix, grid_px(ROWS, COLS, overlap=0.10))
    np.testing.assert_allclose(found.matrix, matrix, atol=TOLERANCE)
    assert found.matched >= share * PAIRS


@pytest.mark.parametrize("backlash", [0.0, 0.5], ids=["jitter", "jitter and backlash by row"])
@pytest.mark.parametrize("seed", range(4))
def test_a_stage_that_misses_its_places_by_3_percent_is_no_turned_camera(
    seed: int, backlash: float
) -> None:
    """What is off at random is within the scatter of the matches; a turn of 2.5 degrees is not."""
    nominal, miss_px = grid_px(ROWS, COLS), 0.03 * TILE_PX
    rng = np.random.default_rng(seed)
    true = nominal + rng.uniform(-miss_px, miss_px, nominal.shape)
    true[:, 1] += backlash * miss_px * (np.repeat(np.arange(ROWS), COLS) % 2)
    found = fit_stage_map(cut_tiles(true, seed=seed), nominal)
    assert found is not None
    assert found.largest_error_px < 5 * found.error_px
    turned = fit_stage_map(cut_tiles(nominal @ turn(2.5).T, seed=seed), nominal)
    assert turned is not None
    assert turned.largest_error_px > 50 * turned.error_px


@pytest.mark.parametrize("degrees", [0.0, 2.5, 90.0, 180.0])
def test_a_single_row_tells_the_other_axis_too(degrees: float) -> None:
    """It shows no mirrored axis: what it tells is a rotation."""
    matrix = turn(degrees)
    found = fitted(matrix, grid_px(1, 5))
    np.testing.assert_allclose(found.matrix, matrix, atol=0.02)
    assert (found.matched, found.compared) == (4, 4)
    assert found.step_px.shape == (1, 2)


def test_where_overlaps_show_nothing_there_is_no_map() -> None:
    nominal = grid_px(ROWS, COLS)
    places = image_places(nominal, UPRIGHT)
    every = tuple(range(len(nominal)))
    assert fit_stage_map(cut_tiles(places, blank=every), nominal) is None
    same = np.full((len(nominal), TILE_PX, TILE_PX), 100.0, np.float32)
    assert fit_stage_map(same, nominal) is None
    assert fit_stage_map(cut_tiles(places[:1]), nominal[:1]) is None


@pytest.mark.parametrize(
    ("rows", "cols", "overlap", "grain_px"),
    [(3, 4, 0.15, 2.0), (2, 2, 0.15, 6.0), (1, 4, 0.15, 6.0), (1, 2, 0.15, 2.0), (3, 3, 0.0, 6.0)],
)
def test_tiles_of_different_tissue_show_no_map(
    rows: int, cols: int, overlap: float, grain_px: float
) -> None:
    """Where each matches some part of another as well as by chance: half of such grids had one."""
    nominal = grid_px(rows, cols, overlap)
    found = []
    for seed in range(2):
        tiles = [cut_tiles(np.zeros((1, 2)), seed=10 * seed + k, grain_px=grain_px)
                 for k in range(len(nominal))]  # fmt: skip
        found.append(fit_stage_map(np.concatenate(tiles), nominal))
    assert found == [None] * len(found)


def test_a_wrong_order_is_contradicted_by_the_pairs_that_it_puts_wrong() -> None:
    """Positions are those of a raster, and the stage went there and back."""
    true = np.array(tile_places("snake_right_down", ROWS, COLS)) * (TILE_PX * (1 - OVERLAP))
    found = fit_stage_map(cut_tiles(image_places(true, UPRIGHT)), grid_px(ROWS, COLS))
    assert found is not None
    np.testing.assert_allclose(found.matrix, UPRIGHT, atol=2 * TOLERANCE)
    assert sorted(found.contradicting) == [(4, 5), (5, 6), (6, 7)]
    assert (found.matched, found.compared) == (6, PAIRS)


def test_chance_contradicts_nothing() -> None:
    """Of sparse tissue a quarter of the overlaps are blank, and tiles alike somewhere else."""
    nominal = grid_px(5, 5, overlap=0.1)
    for seed in range(2):
        found = fit_stage_map(sparse_tiles(image_places(nominal, UPRIGHT), seed), nominal)
        assert found is not None
        np.testing.assert_allclose(found.matrix, UPRIGHT, atol=2 * TOLERANCE)
        assert found.matched < found.compared
        assert len(found.contradicting) <= 1


def test_neighbours_are_the_nearest_within_45_degrees() -> None:
    grid = grid_px(ROWS, COLS)
    pairs = [neighbours_along(grid, axis).tolist() for axis in (0, 1)]
    assert pairs[0] == [[k, k + COLS] for k in range(COLS * (ROWS - 1))]
    assert pairs[1] == [[k, k + 1] for k in range(ROWS * COLS) if k % COLS < COLS - 1]
    gap = np.array([[0.0, 0.0], [0.0, 10.0], [0.0, 20.0], [0.0, 35.0], [0.0, 48.0]])
    assert neighbours_along(gap, 1).tolist() == [[0, 1], [1, 2], [3, 4]]
    assert neighbours_along(gap, 0).shape == (0, 2)
    diagonal = np.array([[0.0, 0.0], [10.0, 10.0]])
    assert [len(neighbours_along(diagonal, axis)) for axis in (0, 1)] == [0, 0]
