"""The order in which numbered tiles lie on a grid: by options, metadata or their overlaps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
from tilewright.runtime.text import few

#: Part of the overlaps that the best grid explains from which another one is kept.
_EXPLAINED = 0.75
#: Overlap where none is stated or measured.
_GUESS = 0.1
#: Most tiles of which grids with a shorter last run are looked for: of 240 that takes 20 s.
_MOST_RAGGED = 100


@dataclass(frozen=True)
class GridOptions:
    """What the command line or metadata say of the grid; None is unknown."""

    rows: int | None = None
    cols: int | None = None
    layout: str | None = None
    overlap: float | None = None
    flip_y: bool = False
    flip_x: bool = False
    fill: bool = False
    """Leave tiles out that lack planes."""

    @property
    def signs(self) -> tuple[float, float]:
        """Directions (y, x) of the stage in the image."""
        return (-1.0 if self.flip_y else 1.0), (-1.0 if self.flip_x else 1.0)

    def otherwise(self, other: GridOptions) -> GridOptions:
        """Return what is stated here, and what ``other`` states where nothing is."""
        silent = [key for key, value in vars(self).items() if value is None or value is False]
        return replace(self, **{key: getattr(other, key) for key in silent})


@dataclass
class PlacedTiles:
    """Rows of the tiles table for one cycle, and what was found of it."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """Of the tiles table."""
    yx_px: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Positions by tile, NaN where unknown."""
    shape_px: tuple[int, int] = (0, 0)
    """(y, x) of a tile."""
    turn: NDArray[np.float64] = field(default_factory=lambda: np.eye(2))
    """float64 (2, 2): from positions of the stage to the image, where axes are swapped or mirrored
    or the camera is turned: that is the same for all cycles.
    """
    findings: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """A sentence each."""


class Order(NamedTuple):
    """Places (n, 2) on the grid by (row, col), their overlap, and whether pixels show them."""

    places: NDArray[np.int64]
    overlap: float
    measured: bool


def find_order(
    images: NDArray[np.float32] | None,
    numbers: NDArray[np.int64],
    stated: GridOptions,
    placed: PlacedTiles,
) -> Order | None:
    """Return the places of numbered tiles, None where nothing shows them.

    Parameters
    ----------
    images : ndarray of float32, shape (n, y, x), or None
        One reduced plane of each tile, in the order of numbers; None where one cannot be read.
    numbers : ndarray of int64, shape (n,)
        Ascending, from 0 or 1 or any first.
    stated : GridOptions
        Of the command line or the metadata.
    placed : PlacedTiles
        What is found is added to its sentences.
    """
    size = (stated.rows or 0) * (stated.cols or 0)
    # A scan begins with 0 or 1; a part of one with another number.
    whole = numbers[0] < len(numbers) or numbers[-1] <= size
    first = 0 if numbers[0] == 0 else 1 if whole else int(numbers[0])
    at = numbers - first
    fits = bool(size and at[-1] < size)
    if size and not fits:
        placed.warnings.append(
            f"{stated.rows} x {stated.cols} tiles are stated, but the files number {len(numbers)}"
        )
    missing = sorted(set(range(first, int(numbers[-1]))) - set(numbers.tolist()))
    if missing and not fits:
        placed.unknown.append(
            f"y and x in the tiles table: tiles {few(missing)} are missing, so their order is not "
            "looked for; give --rows and --cols to tilewright init"
        )
        return None
    if images is not None and (order := _by_pixels(images, at, stated, placed)):
        return order
    if fits and stated.layout and stated.rows and stated.cols:
        places = np.array(tile_places(stated.layout, stated.rows, stated.cols), np.int64)
        return Order(places[at], _GUESS if stated.overlap is None else stated.overlap, False)
    pairs = ", ".join(f"{rows} x {cols}" for rows, cols in factor_pairs(len(numbers)))
    placed.unknown.append(
        "y and x in the tiles table: overlaps show too little structure to find the order of "
        f"{len(numbers)} tiles; give --rows, --cols ({pairs}), --layout and --overlap to "
        "tilewright init"
    )
    return None


def _by_pixels(
    images: NDArray[np.float32], at: NDArray[np.int64], stated: GridOptions, placed: PlacedTiles
) -> Order | None:
    """Return the order that fits the overlaps clearly, else None."""
    backend = cpu_backend(2)
    fits = stated.rows and stated.cols and at[-1] < stated.rows * stated.cols
    # With a wrong overlap there may be no clear layout.
    overlaps = [stated.overlap] if stated.overlap else []
    for known in (*overlaps, None):
        overlap = min(max(known or estimate_overlap(backend, images), 0.01), 0.9)
        sizes = [(stated.rows or 0, stated.cols or 0)] if fits else []
        if len(at) > at[-1]:
            for ragged in (False, True) if len(at) <= _MOST_RAGGED else (False,):
                grid = rank_grids(backend, images, overlap, at, ragged=ragged)[0]
                sizes.append((grid.rows, grid.cols))
        rankings = [(size, rank_layouts(backend, images, *size, overlap, at)) for size in sizes]
        clear = [(size, ranking[0]) for size, ranking in rankings if is_clear(ranking)]
        if clear:
            # A stated grid, and a full one, unless another explains clearly more overlaps.
            most = max(layout.score * layout.overlaps for _, layout in clear)
            size, best = next(
                one for one in clear if one[1].score * one[1].overlaps >= _EXPLAINED * most
            )
            _compare(stated, best.name, *size, best.score, placed)
            same = (stated.rows, stated.cols, stated.layout) == (*size, best.name)
            places = np.array(tile_places(best.name, *size), np.int64)[at]
            return Order(places, overlap, not same or stated.overlap is None)
    return None


def _compare(
    stated: GridOptions, name: str, rows: int, cols: int, score: float, placed: PlacedTiles
) -> None:
    """Tell the layout that pixels show, and how it differs from what is stated."""
    placed.findings.append(f"layout {name}, {rows} rows x {cols} columns, score {score:.2f}")
    if stated.rows and stated.cols and (rows, cols) != (stated.rows, stated.cols):
        placed.warnings.append(
            f"{stated.rows} x {stated.cols} tiles are stated, but {rows} x {cols} fit the "
            "pixels, which is written"
        )
    elif stated.layout not in (None, name) and min(rows, cols) > 1:
        placed.warnings.append(
            f"layout {stated.layout} is stated, but {name} fits the pixels, which is written"
        )
