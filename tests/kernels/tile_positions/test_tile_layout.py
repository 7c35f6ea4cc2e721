"""The order of tiles in grids that are full, have gaps, or end in a shorter run."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.stage_scenes import OVERLAP, TILE_PX, cut_tiles
from tilewright.kernels.backend import Backend
from tilewright.kernels.tile_positions.tile_layout import (
    GridScore,
    estimate_overlap,
    is_clear,
    rank_grids,
    rank_layouts,
)
from tilewright.kernels.tile_positions.tile_order import tile_places

Numbers = NDArray[np.int64]


def places_of(layout: str, rows: int, cols: int, numbers: Numbers) -> Numbers:
    """Return (row, col) of the tiles that a scan took, from the first of each."""
    places = np.array(tile_places(layout, rows, cols))[numbers]
    return np.asarray(places - places.min(axis=0))


def scanned(layout: str, rows: int, cols: int, numbers: Numbers) -> NDArray[np.float32]:
    """Return the tiles of some numbers of a scan, in its order."""
    places = places_of(layout, rows, cols, numbers).astype(np.float64)
    return cut_tiles(places * (TILE_PX * (1 - OVERLAP)))


def assert_places(found: GridScore, layout: str, rows: int, cols: int, numbers: Numbers) -> None:
    """Check the places of tiles, whatever the grid around them is called."""
    at = np.stack([found.layout.row, found.layout.col], axis=1)
    np.testing.assert_array_equal(
        at - at.min(axis=0), places_of(layout, rows, cols, numbers), err_msg=found.layout.name
    )


RAGGED = [
    ("snake_right_down", 3, 4),
    ("raster_left_up", 3, 4),
    ("snake_down_right", 4, 3),
    ("raster_up_left", 4, 3),
]


@pytest.mark.parametrize(("layout", "rows", "cols"), RAGGED)
def test_the_last_run_may_be_shorter(cpu: Backend, layout: str, rows: int, cols: int) -> None:
    """Ten tiles of runs of four: no full grid but of two or five runs holds them."""
    numbers = np.arange(10)
    tiles = scanned(layout, rows, cols, numbers)
    best = rank_grids(cpu, tiles, OVERLAP, ragged=True)[0]
    assert (best.rows, best.cols, best.layout.name) == (rows, cols, layout)
    assert_places(best, layout, rows, cols, numbers)
    assert best.layout.overlaps == 3 + 3 + 1 + 4 + 2
    assert best.layout.score > 0.5
    assert is_clear(rank_layouts(cpu, tiles, rows, cols, OVERLAP))
    full = rank_grids(cpu, tiles, OVERLAP)
    assert sorted((grid.rows, grid.cols) for grid in full) == [(1, 10), (2, 5), (5, 2), (10, 1)]


def test_a_full_grid_is_found_though_the_last_run_may_be_shorter(cpu: Backend) -> None:
    tiles = scanned("snake_left_down", 3, 4, np.arange(12))
    for ragged in (False, True):
        best = rank_grids(cpu, tiles, OVERLAP, ragged=ragged)[0]
        assert (best.rows, best.cols, best.layout.name) == (3, 4, "snake_left_down")
        assert best.layout.overlaps == 17


@pytest.mark.parametrize("gaps", [(5,), (2, 7), (0, 4, 9)])
def test_tiles_may_be_missing(cpu: Backend, gaps: tuple[int, ...]) -> None:
    layout, rows, cols = "snake_right_down", 3, 4
    numbers = np.setdiff1d(np.arange(rows * cols), gaps)
    tiles = scanned(layout, rows, cols, numbers)
    best = rank_grids(cpu, tiles, OVERLAP, numbers)[0]
    assert (best.rows, best.cols) == (rows, cols)
    assert_places(best, layout, rows, cols, numbers)
    ranking = rank_layouts(cpu, tiles, rows, cols, OVERLAP, numbers)
    assert ranking[0].name == layout
    assert is_clear(ranking)
    places = {tuple(place) for place in places_of(layout, rows, cols, numbers).tolist()}
    beside = sum(((y, x + 1) in places) + ((y + 1, x) in places) for y, x in places)
    assert ranking[0].overlaps == beside


def test_missing_tiles_and_a_shorter_last_run(cpu: Backend) -> None:
    layout, rows, cols = "snake_right_down", 4, 4
    numbers = np.setdiff1d(np.arange(14), (6,))
    best = rank_grids(cpu, scanned(layout, rows, cols, numbers), OVERLAP, numbers, ragged=True)[0]
    assert_places(best, layout, rows, cols, numbers)


def test_a_grid_that_does_not_hold_the_numbers_is_refused(cpu: Backend) -> None:
    tiles = scanned("snake_right_down", 2, 2, np.arange(3))
    with pytest.raises(ValueError, match="do not hold 3 tiles"):
        rank_layouts(cpu, tiles, 2, 2, OVERLAP, np.array([0, 1, 4]))
    with pytest.raises(ValueError, match="at least one"):
        rank_grids(cpu, tiles[:0], OVERLAP)


@pytest.mark.parametrize(("true", "near"), [(0.06, (0.05, 0.1)), (0.15, (0.15,)), (0.3, (0.3,))])
def test_the_overlap_is_the_nearest_of_those_tried(
    cpu: Backend, true: float, near: tuple[float, ...]
) -> None:
    places = np.array(tile_places("snake_right_down", 3, 4)) * (TILE_PX * (1 - true))
    assert estimate_overlap(cpu, cut_tiles(places)) in near
    assert estimate_overlap(cpu, cut_tiles(places[:1])) == 0.1
