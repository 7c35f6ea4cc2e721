"""Infer grid size and scan order of numbered tiles from their overlaps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tilewright.kernels.backend import Bools, Floats, Ints
from tilewright.kernels.tile_positions.stage_map import (
    ALONE,
    CLEAR,
    PAIRS,
    RIVAL_FACTOR,
    TEXTURED,
    edge_strength,
    measure_pairs,
)
from tilewright.kernels.tile_positions.strip_correlation import Image
from tilewright.kernels.tile_positions.tile_order import LAYOUTS, tile_places

#: Directions (axis, sign) in which a tile may lie of the one before.
_DIRECTIONS = ((1, 1), (1, -1), (0, 1), (0, -1))
#: Grids of which neighbouring runs are compared: a raster's consecutive tiles agree with two, up
#: and down, of each length of run that blank tiles leave open.
_LEADING = 8
#: Share of the votes up to which overlaps may contradict, share of the overlaps that must agree
#: with a grid, and part of the lead of the first grid up to which the next one has some. Of 120 new
#: made mosaics (1 x 4 to 6 x 5 tiles, sparse, a tile lost) 61 were sure with these, none of them
#: wrong. With half as many against 58 were sure (small rasters were not); with 0.6 of the overlaps
#: 62, 1 of them wrong; with 0.9 57. Of 82 further ones 43 were sure, none of them wrong.
_AGAINST, _MANY, _NEXT = 0.2, 0.75, 0.75


class GridVotes(NamedTuple):
    """A grid of tiles with an order, and how many overlaps agree with it.

    Attributes
    ----------
    rows, cols : int
        Size of the grid.
    layout : str
        One of :data:`~tilewright.kernels.tile_positions.tile_order.LAYOUTS`.
    places : int64 (n, 2)
        (row, col) of each tile, from 0.
    votes, against, compared : int
        Overlaps that show neighbours so, elsewhere, and all of tiles with structure.
    """

    rows: int
    cols: int
    layout: str
    places: Ints
    votes: int
    against: int
    compared: int

    @property
    def lead(self) -> int:
        """Votes less overlaps that contradict them, or show nothing."""
        return 2 * self.votes - self.compared

    def __str__(self) -> str:
        return f"{self.rows} x {self.cols} {self.layout} ({self.votes} of {self.compared})"


def rank_grids(tiles: Image, sizes: Iterable[tuple[int, int]], numbers: Ints) -> list[GridVotes]:
    """Return grids with their orders, those with which most overlaps agree first.

    Consecutive tiles are compared in all directions, and neighbouring runs of the leading grids.
    Grids that put every tile into the same place count once.

    Parameters
    ----------
    tiles : ndarray of float32, shape (n, y, x)
        One plane of each tile, reduced in size at will (256 px wide is enough).
    sizes : iterable of (int, int)
        Rows and columns.
    numbers : ndarray of int64, shape (n,)
        Ascending number of each tile in the order of acquisition, from 0; some may be missing.

    Examples
    --------
    >>> from scipy import ndimage
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(112, 112)), 2)
    >>> corners = [(0, 0), (0, 48), (48, 48), (48, 0)]
    >>> tiles = np.stack([scene[y : y + 64, x : x + 64] for y, x in corners])
    >>> print(rank_grids(tiles, [(2, 2), (1, 4)], np.arange(4))[0])
    2 x 2 snake_right_down (3 of 4)
    """
    strength = edge_strength(tiles)
    textured = strength >= TEXTURED * np.quantile(strength, 0.75)
    first = np.flatnonzero(np.diff(numbers) == 1)
    runs = np.stack([first, first + 1], axis=1)
    measured = _directions(tiles, runs, textured)
    grids: dict[bytes, GridVotes] = {}
    for rows, cols in sizes:
        for name in LAYOUTS:
            places = np.array(tile_places(name, rows, cols), np.int64)[numbers]
            places = places - places.min(axis=0)
            grid = GridVotes(rows, cols, name, places, *_votes(runs, measured, textured, places))
            grids.setdefault(places.tobytes(), grid)
    ranked = sorted(grids.values(), key=lambda grid: -grid.lead)
    leading = []
    for grid in ranked[:_LEADING]:
        pairs = _other_neighbours(grid.places, strength)
        more = _votes(pairs, _directions(tiles, pairs, textured), textured, grid.places)
        votes = (a + b for a, b in zip(grid[-3:], more, strict=True))
        leading.append(GridVotes(*grid[:4], *votes))
    return sorted(leading, key=lambda grid: -grid.lead)


def is_sure(ranked: Sequence[GridVotes]) -> bool:
    """Return whether nearly all overlaps agree with the first grid, and fewer with the next.

    All must where the last run is shorter, and where there is one run.

    >>> grid = GridVotes(2, 2, "snake_right_down", np.zeros((4, 2)), 4, 0, 4)
    >>> is_sure([grid, grid._replace(votes=2)]), is_sure([grid, grid])
    (True, False)
    """
    best, *others = ranked
    rival = max((one.lead for one in others), default=0)
    if best.lead <= 0 or rival > _NEXT * best.lead:
        return False
    if best.rows * best.cols == len(best.places) and min(best[:2]) > 1:
        return best.against <= _AGAINST * best.votes and best.votes >= _MANY * best.compared
    # A scan that lost a tile and was numbered on agrees up to that tile, or after it.
    return best.votes == best.compared >= len(best.places) - 1


def _directions(tiles: Image, pairs: Ints, textured: Bools) -> Ints:
    """Return the direction (m,) in which b of each pair lies of a, -1 where none is clear."""
    score: Floats = np.array([measure_pairs(tiles, pairs, way)[1] for way in _DIRECTIONS])
    ordered = np.sort(score, axis=0)
    # a tile without structure matches by chance, and one or two pairs are no majority
    some = textured[pairs].all(axis=1) & (len(pairs) > 2)
    least = np.where(some, CLEAR, ALONE)
    clear = (ordered[-1] > least) & (ordered[-1] >= RIVAL_FACTOR * ordered[-2])
    return np.where(clear, score.argmax(axis=0), -1)


def _votes(pairs: Ints, measured: Ints, textured: Bools, places: Ints) -> tuple[int, int, int]:
    """Return how many pairs agree with places, contradict them, and are compared."""
    steps = np.array([np.eye(2, dtype=np.int64)[axis] * sign for axis, sign in _DIRECTIONS])
    alike = (places[pairs[:, 1]] - places[pairs[:, 0]])[:, None] == steps
    predicted = np.where(alike.all(axis=2).any(axis=1), alike.all(axis=2).argmax(axis=1), -1)
    clear = measured >= 0
    compared = (clear | textured[pairs].all(axis=1)) & (clear | (predicted >= 0))
    agreeing, against = clear & (predicted == measured), clear & (predicted != measured)
    return int(agreeing.sum()), int(against.sum()), int(compared.sum())


def _other_neighbours(places: Ints, strength: Floats) -> Ints:
    """Return the most textured pairs (m, 2) of neighbours that are not consecutive."""
    at = {(int(row), int(col)): k for k, (row, col) in enumerate(places)}
    pairs = [
        (k, at[row + down, col + 1 - down])
        for (row, col), k in at.items()
        for down in (0, 1)
        if (row + down, col + 1 - down) in at and abs(at[row + down, col + 1 - down] - k) > 1
    ]
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[np.argsort(-strength[found].min(axis=1), kind="stable")][:PAIRS]
