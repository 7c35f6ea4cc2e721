"""Tiles tables of grids."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tilewright.config.tables import TILE_COLUMNS
from tilewright.io.inputs.placed_planes import TilePlace, TileRows
from tilewright.kernels.tile_positions.tile_order import tile_places
from tilewright.runtime.files import csv_text


def tiles_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a tiles table of rows."""
    return csv_text(TILE_COLUMNS, rows)


def grid_places_px(
    rows: int,
    cols: int,
    overlap: float,
    tile_px: int | tuple[int, int],
    layout: str = "snake_right_down",
) -> list[tuple[str, float, float]]:
    """Return (tile, y, x) of numbered tiles of one side, or of (y, x), from 1."""
    height, width = (tile_px, tile_px) if isinstance(tile_px, int) else tile_px
    y, x = height * (1 - overlap), width * (1 - overlap)
    places = enumerate(tile_places(layout, rows, cols), 1)
    return [(str(number), row * y, col * x) for number, (row, col) in places]


def grid_rows(*grid: Any) -> TileRows:
    """Return the same, of the same arguments, as rows of one cycle."""
    places = grid_places_px(*grid)
    return TileRows([TilePlace(name, y, x, row=f"tiles.csv, row {name}") for name, y, x in places])


def write_tiles(
    path: Path,
    samples: Iterable[str],
    cycles: Iterable[int],
    *grid: Any,
) -> None:
    """Write the tiles table of samples whose cycles have one grid, see :func:`grid_places_px`."""
    places = grid_places_px(*grid)
    cycles = list(cycles)
    path.write_text(
        tiles_text(
            {"sample": sample, "cycle": cycle, "tile": tile, "y": f"{y:.6g}", "x": f"{x:.6g}",
             "unit": "px", "source": "grid", "use": 1}
            for sample in samples
            for cycle in cycles
            for tile, y, x in places
        )
    )  # fmt: skip
