"""The order in which numbered tiles lie on a grid: by options, metadata or their overlaps."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.backend import cpu_backend
from tilewright.kernels.tile_positions.tile_layout import (
    estimate_overlap,
    is_clear,
    rank_grids,
    rank_layouts,
)
from tilewright.kernels.tile_positions.tile_order import factor_pairs, tile_places


@dataclass(frozen=True)
class TileOrder:
    """What is stated of a grid; None is unknown."""

    rows: int | None = None
    cols: int | None = None
    layout: str | None = None
    overlap: float | None = None


@dataclass
class FoundOrder:
    """Places (n, 2) on the grid by (row, col), None where they are unknown."""

    places: NDArray[np.int64] | None = None
    overlap: float = 0.1
    measured: bool = False
    findings: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    missing: str = ""


def find_order(
    images: NDArray[np.float32] | None, numbers: NDArray[np.int64], stated: TileOrder
) -> FoundOrder:
    """Return the places of numbered tiles.

    Parameters
    ----------
    images : ndarray of float32, shape (n, y, x), or None
        One reduced plane of each tile, in the order of numbers; None where one cannot be read.
    numbers : ndarray of int64, shape (n,)
        Ascending, from 0 or 1 or any first.
    stated : TileOrder
        Of the command line or the metadata.
    """
    found = FoundOrder(overlap=0.1 if stated.overlap is None else stated.overlap)
    size = (stated.rows or 0) * (stated.cols or 0)
    # The first number of a scan is 0 or 1; others are of a part of one.
    first = int(numbers[0]) if numbers[0] == 0 or numbers[-1] > max(size, 1) else 1
    if not size:
        first = int(numbers[0])
    at = numbers - first
    fits = bool(size and at[-1] < size)
    if size and not fits:
        found.warnings.append(
            f"{stated.rows} x {stated.cols} tiles are stated, but the files number {len(numbers)}"
        )
    best = _by_pixels(images, at, stated, found) if images is not None else None
    if best is not None:
        name, rows, cols, score = best
        grid = stated.rows, stated.cols, stated.layout
        found.measured = grid != (rows, cols, name) or stated.overlap is None
        found.findings.append(f"layout {name}, {rows} rows x {cols} columns, score {score:.2f}")
        if size and (rows, cols) != (stated.rows, stated.cols):
            found.warnings.append(
                f"{stated.rows} x {stated.cols} tiles are stated, but {rows} x {cols} fit the "
                "pixels, which is written"
            )
        elif stated.layout not in (None, name) and min(rows, cols) > 1:
            found.warnings.append(
                f"layout {stated.layout} is stated, but {name} fits the pixels, which is written"
            )
        found.places = np.array(tile_places(name, rows, cols), np.int64)[at]
    elif fits and stated.layout and stated.rows and stated.cols:
        found.places = np.array(tile_places(stated.layout, stated.rows, stated.cols), np.int64)[at]
    else:
        pairs = ", ".join(f"{rows} x {cols}" for rows, cols in factor_pairs(len(numbers)))
        found.missing = (
            "y and x in the tiles table: overlaps show too little structure to find the order of "
            f"{len(numbers)} tiles; give --rows, --cols ({pairs}), --layout and --overlap to "
            "tilewright init"
        )
    return found


def _by_pixels(
    images: NDArray[np.float32], at: NDArray[np.int64], stated: TileOrder, found: FoundOrder
) -> tuple[str, int, int, float] | None:
    """Return layout, rows, columns and score that fit the overlaps clearly, else None."""
    backend = cpu_backend(2)
    # With a wrong overlap there may be no clear layout.
    overlaps = [stated.overlap] if stated.overlap else []
    for known in (*overlaps, None):
        overlap = min(max(known or estimate_overlap(backend, images), 0.01), 0.9)
        if stated.rows and stated.cols and at[-1] < stated.rows * stated.cols:
            size = stated.rows, stated.cols
            ranking = rank_layouts(backend, images, *size, overlap, at)
            if is_clear(ranking):
                found.overlap = overlap
                return ranking[0].name, *size, ranking[0].score
        for ragged in (False, True):
            if not ragged and len(at) <= at[-1]:
                continue
            grid = rank_grids(backend, images, overlap, at, ragged=ragged)[0]
            ranking = rank_layouts(backend, images, grid.rows, grid.cols, overlap, at)
            if is_clear(ranking):
                found.overlap = overlap
                return ranking[0].name, grid.rows, grid.cols, ranking[0].score
    return None
