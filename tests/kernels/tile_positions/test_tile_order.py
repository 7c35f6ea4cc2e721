from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tilewright.kernels.tile_positions.tile_order import (
    LAYOUTS,
    factor_pairs,
    grid_places,
    tile_places,
)

GRIDS = st.tuples(st.integers(1, 12), st.integers(1, 12))
FIRST = {"right": 0, "left": -1, "down": 0, "up": -1}


def test_there_are_sixteen_layouts_and_on_a_real_grid_no_two_agree() -> None:
    assert len(LAYOUTS) == 16
    assert len({tuple(tile_places(layout, 3, 4)) for layout in LAYOUTS}) == 16


@given(st.sampled_from(LAYOUTS), GRIDS)
def test_every_place_is_visited_once(layout: str, grid: tuple[int, int]) -> None:
    rows, cols = grid
    places = tile_places(layout, rows, cols)
    assert sorted(places) == [(row, col) for row in range(rows) for col in range(cols)]


@given(st.sampled_from(LAYOUTS), GRIDS)
def test_the_first_run_goes_where_the_name_says(layout: str, grid: tuple[int, int]) -> None:
    rows, cols = grid
    _, run, advance = layout.split("_")
    places = tile_places(layout, rows, cols)
    along_rows = run in ("right", "left")
    corner = {
        True: (range(rows)[FIRST[advance]], range(cols)[FIRST[run]]),
        False: (range(rows)[FIRST[run]], range(cols)[FIRST[advance]]),
    }[along_rows]
    assert places[0] == corner
    step = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}[run]
    for before, after in pairwise(places[: cols if along_rows else rows]):
        assert (after[0] - before[0], after[1] - before[1]) == step


@given(st.sampled_from([name for name in LAYOUTS if name.startswith("snake")]), GRIDS)
def test_a_snake_moves_one_tile_at_a_time(layout: str, grid: tuple[int, int]) -> None:
    for (row_a, col_a), (row_b, col_b) in pairwise(tile_places(layout, *grid)):
        assert abs(row_a - row_b) + abs(col_a - col_b) == 1


@given(st.sampled_from([name for name in LAYOUTS if name.startswith("raster")]), GRIDS)
def test_a_raster_repeats_its_first_run(layout: str, grid: tuple[int, int]) -> None:
    places = tile_places(layout, *grid)
    minor = 1 if layout.split("_")[1] in ("right", "left") else 0
    length = grid[minor]
    first = [place[minor] for place in places[:length]]
    assert [place[minor] for place in places] == first * grid[1 - minor]


@given(st.integers(1, 400))
def test_factor_pairs_are_all_there_squarest_first(count: int) -> None:
    pairs = factor_pairs(count)
    assert all(rows * cols == count for rows, cols in pairs)
    assert len(set(pairs)) == len(pairs) == sum(count % n == 0 for n in range(1, count + 1))
    assert [max(pair) for pair in pairs] == sorted(max(pair) for pair in pairs)


@given(
    st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1),
    st.floats(0.5, 0.98),
    st.randoms(use_true_random=False),
)
def test_jittered_positions_give_back_their_grid(
    places: set[tuple[int, int]], step: float, random: object
) -> None:
    # Lines without tiles cannot be counted unless a step is known: close the ranks.
    rows = sorted({row for row, _ in places})
    cols = sorted({col for _, col in places})
    closed = [(rows.index(row), cols.index(col)) for row, col in places]
    height, width = 400, 600
    jitter = random.uniform  # type: ignore[attr-defined]
    positions = [
        (1e4 + row * step * height + jitter(-9, 9), -2e4 + col * step * width + jitter(-9, 9))
        for row, col in closed
    ]
    assert grid_places(positions, (height, width)) == closed


def test_an_empty_row_stays_empty() -> None:
    rows = [0.0, 90.0, 180.0, 360.0, 450.0]
    assert [row for row, _ in grid_places([(y, 0.0) for y in rows], (100, 100))] == [0, 1, 2, 4, 5]
