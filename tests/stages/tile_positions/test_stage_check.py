"""Tables of tiles whose positions overlaps confirm, or contradict."""

import re
from typing import Any

import numpy as np
import pytest

from benchmarks.scenes.array_tiles import ArrayTiles
from tests.support.stage_scenes import (
    OVERLAP,
    TILE_PX,
    Floats,
    cut_tiles,
    grid_px,
    image_places,
    turn,
)
from tilewright.kernels.tile_positions.tile_order import tile_places
from tilewright.stages.tile_positions.stage_check import reduce_tile, reduction, stage_problem

ROWS, COLS = 3, 4
STEP_PX = round(TILE_PX * (1 - OVERLAP))


def taken(places_px: Floats, blank: tuple[int, ...] = ()) -> Any:
    """Return tiles at places of the image, which the table says to lie row by row."""
    images = cut_tiles(places_px, blank)
    row, col = np.indices((ROWS, COLS)).reshape(2, -1)
    stack = np.stack([np.zeros_like(images), images, np.zeros_like(images)], axis=1)
    return ArrayTiles(np.clip(stack, 0, 65535).astype(np.uint16), row, col, grid_px(ROWS, COLS))


def problem(matrix: Floats, **options: Any) -> str:
    """Return what is said of a table of a stage that moves the image by a matrix."""
    return stage_problem(taken(image_places(grid_px(ROWS, COLS), matrix)), **options)


def test_positions_that_overlaps_confirm_are_no_problem() -> None:
    assert problem(np.eye(2)) == ""
    blank = taken(grid_px(ROWS, COLS), blank=tuple(range(ROWS * COLS)))
    assert stage_problem(blank) == "", "nothing contradicts them"


def test_neighbours_are_told_with_both_numbers() -> None:
    told = problem(1.0737 * np.eye(2))
    numbers = re.search(
        r"neighbours at \((\d+), (\d+)\) px \(y, x\) instead of \((\d+), (\d+)", told
    )
    assert numbers is not None, told
    moved, stated = np.array([int(n) for n in numbers.groups()]).reshape(2, 2)
    assert sorted(stated) == [0, STEP_PX]
    np.testing.assert_allclose(moved, stated * 1.0737, atol=3)


def test_what_the_search_reaches_is_no_problem() -> None:
    """A camera turned by 4 degrees puts neighbours off by 6 % of a tile."""
    matrix = turn(4.0)
    assert re.search(r"turned by [34]\.", problem(matrix))
    assert problem(matrix, max_shift_px=0.08 * TILE_PX) == ""


def test_a_wrong_order_is_told_with_two_of_its_tiles() -> None:
    places = np.array(tile_places("snake_right_down", ROWS, COLS)) * float(STEP_PX)
    told = stage_problem(taken(places))
    assert re.match(r"[3-9] of 17 overlaps show tiles elsewhere than the tiles table", told), told
    assert re.search(r"such as (5 next to 4|6 next to 5|7 next to 6); correct y and", told)


def test_two_exchanged_tiles_of_many_are_left_to_quality() -> None:
    """Of a few overlaps that contradict the map, `unlike_overlaps` tells after stitching."""
    places = grid_px(ROWS, COLS)
    places[[0, ROWS * COLS - 1]] = places[[ROWS * COLS - 1, 0]]
    assert stage_problem(taken(places)) == ""


def test_tiles_are_reduced_to_about_400_px() -> None:
    image = np.arange(24.0 * 1300).reshape(24, 1300)
    assert [reduction(width) for width in (150, 599, 1300, 2048)] == [1, 1, 3, 5]
    small = reduce_tile(image)
    assert small.shape == (8, 433)
    assert small[0, 0] == pytest.approx(image[:3, :3].mean())
