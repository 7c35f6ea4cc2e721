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

#: Part of the overlaps that the best grid explains from which another one is kept.
_EXPLAINED = 0.75
#: Most tiles of which grids with a shorter last run are looked for: of 240 that takes 20 s.
_MOST_RAGGED = 100


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
    # A scan begins with 0 or 1; a part of one with another number.
    whole = numbers[0] < len(numbers) or numbers[-1] <= size
    first = 0 if numbers[0] == 0 else 1 if whole else int(numbers[0])
    at = numbers - first
    fits = bool(size and at[-1] < size)
    if size and not fits:
        found.warnings.append(
            f"{stated.rows} x {stated.cols} tiles are stated, but the files number {len(numbers)}"
        )
    missing = sorted(set(range(first, int(numbers[-1]))) - set(numbers.tolist()))
    if missing and not fits:
        few = f"{', '.join(map(str, missing[:10]))}{', ...' * (len(missing) > 10)}"
        found.missing = (
            f"y and x in the tiles table: tiles {few} are missing, so their order is not looked "
            "for; give --rows and --cols to tilewright init"
        )
        return found
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
        sizes = []
        if stated.rows and stated.cols and at[-1] < stated.rows * stated.cols:
            sizes.append((stated.rows, stated.cols))
        if len(at) > at[-1]:
            for ragged in (False, True) if len(at) <= _MOST_RAGGED else (False,):
                grid = rank_grids(backend, images, overlap, at, ragged=ragged)[0]
                sizes.append((grid.rows, grid.cols))
        rankings = [(size, rank_layouts(backend, images, *size, overlap, at)) for size in sizes]
        clear = [(size, ranking[0]) for size, ranking in rankings if is_clear(ranking)]
        if clear:
            found.overlap = overlap
            # A stated grid, and a full one, unless another explains clearly more overlaps.
            most = max(layout.score * layout.overlaps for _, layout in clear)
            size, best = next(
                one for one in clear if one[1].score * one[1].overlaps >= _EXPLAINED * most
            )
            return best.name, *size, best.score
    return None
