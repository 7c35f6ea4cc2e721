"""The grid of a sample's tiles, and planes that are missing or duplicate."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tilewright.io.formats.common import RawPlane, ScanOptions
from tilewright.kernels.tile_positions.tile_order import (
    LAYOUTS,
    factor_pairs,
    grid_places,
    tile_places,
)


class GridPlace(NamedTuple):
    """A tile's place: on the grid, its number, and its stage position in pixels."""

    row: int
    col: int
    tile: int
    y_px: float
    x_px: float


#: Identifies a tile of a cycle: its number, row, col, y and x, some of them None.
TileKey = tuple[Any, ...]
#: (row, col) of every tile, per cycle.
_Places = dict[int, dict[TileKey, tuple[int, int]]]


@dataclass
class TileGrid:
    """The grid of one sample.

    ``places`` holds the place of every tile, per cycle; ``expected`` the tiles that
    every cycle and channel must have, ordered by (row, col), with their numbers.
    """

    rows: int
    cols: int
    expected: dict[tuple[int, int], int]
    places: dict[int, dict[TileKey, GridPlace]]
    problems: list[str] = field(default_factory=list)

    def at(self, plane: RawPlane) -> tuple[int, int]:
        """Return the (row, col) of the tile that a plane is of."""
        return self.places[plane.cycle][tile_key(plane)][:2]


def tile_key(plane: RawPlane) -> TileKey:
    """Return what identifies the tile of a plane."""
    return plane.tile, plane.row, plane.col, plane.y_px, plane.x_px


def arrange(
    planes: Iterable[RawPlane], options: ScanOptions, tile_shape_px: tuple[int, int]
) -> TileGrid:
    """Return the grid with the place of every tile of ``planes``.

    Tiles with stage positions or with row and col have their place; numbered ones are
    placed by ``options.rows``, ``cols`` and ``layout``. Where rows and cols are given
    every place of the grid is expected, else those that any plane fills.
    """
    keys: dict[int, set[TileKey]] = defaultdict(set)
    for plane in planes:
        keys[plane.cycle].add(tile_key(plane))
    example = next(iter(next(iter(keys.values()))))
    if example[3] is not None:
        places_of = {
            cycle: _by_position(of_cycle, tile_shape_px) for cycle, of_cycle in keys.items()
        }
        grid = _grid_of_places(places_of, options)
    elif example[1] is not None:
        places_of = _by_row_and_col(keys)
        grid = _grid_of_places(places_of, options)
    else:
        grid, places_of = _by_number(keys, options)
    (height, width), step = tile_shape_px, 1.0 - options.overlap
    for cycle, tiles in places_of.items():
        y0, x0 = (min(key[axis] or 0.0 for key in tiles) for axis in (3, 4))
        grid.places[cycle] = {}
        for key, (row, col) in tiles.items():
            y_px = row * step * height if key[3] is None else key[3] - y0
            x_px = col * step * width if key[4] is None else key[4] - x0
            number = grid.expected.get((row, col), -1)
            grid.places[cycle][key] = GridPlace(row, col, number, y_px, x_px)
    return grid


def _by_number(keys: Mapping[int, set[TileKey]], options: ScanOptions) -> tuple[TileGrid, _Places]:
    numbers = sorted({key[0] for of_cycle in keys.values() for key in of_cycle})
    rows, cols, layout = options.rows, options.cols, options.layout
    pairs = ", ".join(f"{r} x {c}" for r, c in factor_pairs(len(numbers)))
    if len(numbers) == 1 and rows is None and cols is None:
        rows = cols = 1
    if not rows or not cols:
        what = f"files number {len(numbers)} tiles; set acquisition.rows and cols (rows x cols"
        return _no_grid(f"{what} can be {pairs})")
    if layout not in LAYOUTS:
        return _no_grid(f"acquisition.layout is {layout!r}; choose one of {', '.join(LAYOUTS)}")
    count = rows * cols
    first = 0 if numbers[0] == 0 else 1 if numbers[-1] <= count else numbers[0]
    within = range(first, first + count)
    # Numbers without a gap mean another grid; gaps mean missing tiles.
    if numbers[-1] not in within or (
        len(numbers) < count and numbers[-1] - numbers[0] + 1 == len(numbers)
    ):
        return _no_grid(
            f"the grid is {rows} x {cols} = {count} tiles, but the files number {len(numbers)} "
            f"({numbers[0]} to {numbers[-1]}); "
            f"copy what is missing, or correct acquisition.rows and cols (they can be {pairs})"
        )
    places = dict(zip(within, tile_places(layout, rows, cols), strict=True))
    places_of = {
        cycle: {key: places[key[0]] for key in of_cycle} for cycle, of_cycle in keys.items()
    }
    return _grid(rows, cols, {place: number for number, place in places.items()}), places_of


def _no_grid(problem: str) -> tuple[TileGrid, _Places]:
    return TileGrid(0, 0, {}, {}, [problem]), {}


def _by_row_and_col(keys: Mapping[int, set[TileKey]]) -> _Places:
    row0, col0 = (min(key[n] for of_cycle in keys.values() for key in of_cycle) for n in (1, 2))
    return {
        cycle: {key: (key[1] - row0, key[2] - col0) for key in of_cycle}
        for cycle, of_cycle in keys.items()
    }


def _by_position(keys: set[TileKey], shape: tuple[int, int]) -> dict[TileKey, tuple[int, int]]:
    ordered = sorted(keys, key=lambda key: key[3:])
    return dict(zip(ordered, grid_places([key[3:] for key in ordered], shape), strict=True))


def _grid(rows: int, cols: int, expected: dict[tuple[int, int], int]) -> TileGrid:
    return TileGrid(rows, cols, dict(sorted(expected.items())), {})


def _grid_of_places(places_of: _Places, options: ScanOptions) -> TileGrid:
    """Return the grid of tiles with row and col."""
    occupied = {place for tiles in places_of.values() for place in tiles.values()}
    rows = 1 + max(row for row, _ in occupied)
    cols = 1 + max(col for _, col in occupied)
    if not options.rows or not options.cols:
        return _grid(rows, cols, {place: number for number, place in enumerate(sorted(occupied))})
    all_places = [(row, col) for row in range(options.rows) for col in range(options.cols)]
    grid = _grid(options.rows, options.cols, {place: n for n, place in enumerate(all_places)})
    if rows > options.rows or cols > options.cols:
        grid.problems.append(
            f"the grid is {options.rows} x {options.cols}, but the files hold {rows} rows and "
            f"{cols} columns ({len(occupied)} tiles); correct acquisition.rows and cols"
        )
    return grid


def completeness(
    grid: TileGrid,
    planes: Sequence[RawPlane],
    expected_channels: Mapping[int, Sequence[str]],
    excluded: Mapping[int, Sequence[tuple[int, int]]] | None = None,
) -> list[str]:
    """Return one line per tile with a missing or duplicate plane.

    Every tile of a cycle and channel must have as many z-planes as the fullest one of
    its cycle; those in ``excluded`` are ignored.
    """
    stacks: dict[tuple[int, str, int, int], dict[int, str]] = defaultdict(dict)
    depth: dict[int, int] = defaultdict(int)
    problems: list[str] = []
    for plane in planes:
        place = grid.places[plane.cycle][tile_key(plane)]
        stack = stacks[plane.cycle, plane.channel, place.row, place.col]
        z = plane.z or 0
        if z in stack and len(problems) < 1000:
            problems.append(
                f"cycle {plane.cycle}, channel {plane.channel}, tile {place.tile} "
                f"(row {place.row}, col {place.col}), duplicate z {z}: "
                f"{stack[z]} and {plane.path}"
            )
        stack[z] = plane.path
        depth[plane.cycle] = max(depth[plane.cycle], z + 1)
    for cycle, channels in sorted(expected_channels.items()):
        for channel in channels:
            required = [
                place for place in grid.expected if place not in (excluded or {}).get(cycle, ())
            ]
            problems += _missing(grid, required, stacks, cycle, channel, depth[cycle])
    return problems


def exclude_incomplete(
    grid: TileGrid, planes: Sequence[RawPlane], expected_channels: Mapping[int, Sequence[str]]
) -> tuple[list[RawPlane], dict[int, list[tuple[int, int]]]]:
    """Return the planes of complete tiles, and per cycle the (row, col) of the others.

    A tile is complete in a cycle where all its channels have all z-planes of the fullest tile. An
    incomplete one is excluded from all channels of that cycle, so that a cycle has one set of
    tiles. A channel without any plane excludes no tile: ``completeness`` reports it.
    """
    planes_of_tile: dict[tuple[int, ...], set[tuple[str, int]]] = defaultdict(set)
    # Of the fullest tile: every (channel, z) that any tile of the cycle has.
    complete: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for plane in planes:
        for planes_of in (planes_of_tile[plane.cycle, *grid.at(plane)], complete[plane.cycle]):
            planes_of.add((plane.channel, plane.z or 0))
    excluded = {
        cycle: [at for at in grid.expected if planes_of_tile[cycle, *at] != complete[cycle]]
        for cycle in expected_channels
    }
    return [plane for plane in planes if grid.at(plane) not in excluded[plane.cycle]], excluded


def _missing(
    grid: TileGrid,
    required: Sequence[tuple[int, int]],
    stacks_of: Mapping[tuple[int, str, int, int], dict[int, str]],
    cycle: int,
    channel: str,
    depth: int,
) -> list[str]:
    stacks = {place: stacks_of.get((cycle, channel, *place), {}) for place in required}
    where = f"cycle {cycle}, channel {channel}"
    if not any(stacks.values()):
        return [f"{where}: no files, but the markers table lists it"]
    example = next(path for stack in stacks.values() for path in stack.values())
    problems: list[str] = []
    for (row, col), stack in stacks.items():
        absent = [z for z in range(depth) if z not in stack]
        if absent:
            counted = ", ".join(str(z + 1) for z in absent)
            planes = f"z-plane {counted} of {depth}" if stack else "all planes"
            problems.append(
                f"{where}, tile {grid.expected[row, col]} (row {row}, col {col}): "
                f"{planes} missing next to {next(iter(stack.values()), example)}"
            )
    return problems
