from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from tilewright.kernels.tile_positions.tile_order import (
    LAYOUTS,
    grid_places,
    tile_places,
)

GRIDS = st.tuples(st.integers(1, 12), st.integers(1, 12))
STEPS = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}


def test_there_are_sixteen_layouts_and_on_a_real_grid_no_two_agree() -> None:
    assert len(LAYOUTS) == 16
    assert len({tuple(tile_places(layout, 3, 4)) for layout in LAYOUTS}) == 16


@given(st.sampled_from(LAYOUTS), GRIDS)
def test_a_layout_goes_where_its_name_says(layout: str, grid: tuple[int, int]) -> None:
    kind, run, advance = layout.split("_")
    places = tile_places(layout, *grid)
    assert sorted(places) == list(product(*map(range, grid)))
    # It begins in the corner from which both words lead away.
    starts = [size - 1 if {"left", "up"} & {run, advance} & words else 0
              for size, words in zip(grid, ({"up"}, {"left"}), strict=True)]  # fmt: skip
    assert places[0] == tuple(starts)
    minor = 1 if run in ("right", "left") else 0
    lines = [places[at : at + grid[minor]] for at in range(0, len(places), grid[minor])]
    for (row_a, col_a), (row_b, col_b) in pairwise(lines[0]):
        assert (row_b - row_a, col_b - col_a) == STEPS[run]
    along = [[place[minor] for place in line] for line in lines]
    turned = [along[0][:: -1 if kind == "snake" and n % 2 else 1] for n in range(len(lines))]
    assert along == turned
    for before, after in pairwise(lines):
        assert after[0][1 - minor] - before[0][1 - minor] == sum(STEPS[advance])


def test_an_empty_row_stays_empty() -> None:
    rows = [0.0, 90.0, 180.0, 360.0, 450.0]
    assert [row for row, _ in grid_places([(y, 0.0) for y in rows], (100, 100))] == [0, 1, 2, 4, 5]
