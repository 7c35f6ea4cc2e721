"""Where the n-th tile of a scan lies on the stage, and the grid behind positions.

A layout is named by its mode, the direction of its first run and the direction in
which runs advance: ``snake_right_down`` runs right, then one row down runs left, and
so on; ``raster_right_down`` runs right in every row; ``snake_down_left`` runs down the
rightmost column first. Rows count downwards and columns to the right, from 0.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

_RUNS = (
    *((run, advance) for run in ("right", "left") for advance in ("down", "up")),
    *((run, advance) for run in ("down", "up") for advance in ("right", "left")),
)

#: The sixteen names that :func:`tile_places` knows.
LAYOUTS: tuple[str, ...] = tuple(
    f"{mode}_{run}_{advance}" for mode in ("snake", "raster") for run, advance in _RUNS
)


def tile_places(layout: str, rows: int, cols: int) -> list[tuple[int, int]]:
    """Return (row, col) of every tile in the order of acquisition, by one of :data:`LAYOUTS`.

    >>> tile_places("snake_right_down", 2, 3)
    [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0)]
    >>> tile_places("raster_up_left", 2, 2)
    [(1, 1), (0, 1), (1, 0), (0, 0)]
    """
    mode, run, advance = layout.split("_")
    along_rows = run in ("right", "left")
    length, runs = (cols, rows) if along_rows else (rows, cols)
    places = []
    for number in range(runs):
        major = number if advance in ("down", "right") else runs - 1 - number
        forward = (run in ("right", "down")) ^ (mode == "snake" and number % 2 == 1)
        for minor in range(length) if forward else reversed(range(length)):
            places.append((major, minor) if along_rows else (minor, major))
    return places


def grid_places(
    positions_px: Sequence[tuple[float, float]], tile_shape_px: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return (row, col) of tiles known by their (y, x) stage positions.

    Two positions share a row when no gap of more than a quarter of a tile lies between
    them: stages repeat to a few pixels, and the distance of neighbours is at least half a tile at
    any useful overlap. A gap of several steps leaves rows empty, so a hole stays a hole.

    >>> grid_places([(0.0, 90.0), (2.0, 0.0), (181.0, 90.0), (90.0, 0.0)], (100, 100))
    [(0, 1), (0, 0), (2, 1), (1, 0)]
    """
    rows = _line_numbers([y for y, _ in positions_px], tile_shape_px[0] / 4)
    cols = _line_numbers([x for _, x in positions_px], tile_shape_px[1] / 4)
    return list(zip(rows, cols, strict=True))


def _line_numbers(values: Sequence[float], gap: float) -> list[int]:
    """Return the number of the grid line on which each value lies."""
    order = sorted(range(len(values)), key=values.__getitem__)
    lines: list[list[int]] = []
    for index in order:
        if lines and values[index] - values[lines[-1][-1]] <= gap:
            lines[-1].append(index)
        else:
            lines.append([index])
    centres = [fmean(values[index] for index in line) for line in lines]
    steps = [after - before for before, after in pairwise(centres)]
    step = median(steps) if steps else 1.0
    numbers = [0] * len(values)
    number = 0
    for position, line in enumerate(lines):
        if position:
            number += max(1, round(steps[position - 1] / step))
        for index in line:
            numbers[index] = number
    return numbers
