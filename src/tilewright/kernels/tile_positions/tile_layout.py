"""Find in which order a microscope laid its tiles, by correlating the borders they would share."""

from dataclasses import dataclass

import numpy as np

from tilewright.kernels.backend import Array, Backend, Floats, Ints
from tilewright.kernels.tile_positions.overlap_strips import plan_strips
from tilewright.kernels.tile_positions.phase_correlation import correlate_tiles
from tilewright.kernels.tile_positions.stage_map import edge_strength
from tilewright.kernels.tile_positions.tile_order import LAYOUTS, tile_places

Edge = tuple[int, int, int]

#: Overlaps compared per direction and layout: the most textured ones decide.
_EDGES_PER_AXIS = 12
_SIGMA_PX = 1.5
_BATCH = 32


@dataclass(frozen=True)
class LayoutScore:
    """How well a layout fits."""

    name: str
    """One of :data:`~tilewright.kernels.tile_positions.tile_order.LAYOUTS`."""
    row: Ints
    col: Ints
    """int64 (n,): place of each tile, in order of acquisition."""
    score: float
    """Mean over the overlaps of the NCC above that of the best rival peak, estimated from the most
    textured overlaps of each direction; chance gives less than 0.05, neighbours in tissue 0.3 to
    0.9.
    """
    overlaps: int
    """Pairs of neighbours in the grid."""


@dataclass(frozen=True)
class GridScore:
    """A grid size and its best layout."""

    rows: int
    cols: int
    layout: LayoutScore


def rank_layouts(
    backend: Backend,
    tiles: Array,
    rows: int,
    cols: int,
    overlap: float,
    numbers: Ints | None = None,
) -> list[LayoutScore]:
    """Rank the sixteen orders and orientations of a grid, best first.

    Layouts that put every tile into the same place (a single row has many) count once, under
    the first name.

    Parameters
    ----------
    tiles : array, shape (n, y, x)
        One plane of each tile in order of acquisition, reduced in size at will (256 px wide is
        enough), float32.
    rows, cols : int
        Size of the grid.
    overlap : float
        Part of a tile's side that neighbours share, between 0.01 and 0.9.
    numbers : ndarray of int64, shape (n,), optional
        Of a grid with gaps: the number of each tile in the order of acquisition, from 0.

    Raises
    ------
    ValueError
        The grid does not hold the tiles, or the overlap is out of range.

    Examples
    --------
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(112, 112)), 2)
    >>> corners = [(0, 0), (0, 48), (48, 48), (48, 0)]
    >>> tiles = np.stack([scene[y : y + 64, x : x + 64] for y, x in corners])
    >>> rank_layouts(cpu, tiles, 2, 2, 0.25)[0].name
    'snake_right_down'
    """
    tiles = backend.asarray(tiles)
    at = np.arange(tiles.shape[0]) if numbers is None else numbers
    return _rank(backend, tiles, at, (rows, cols), overlap, edge_strength(backend, tiles), {})


def is_clear(ranking: list[LayoutScore]) -> bool:
    """Return whether the best layout is clearly better than the second.

    A wrong layout shares up to half of its overlaps with the right one (a raster and a snake
    agree on every other run), hence the factor 0.75.

    >>> is_clear([LayoutScore(name, [], [], score, 9) for name, score in (("a", 0.5), ("b", 0.2))])
    True
    """
    if not ranking or ranking[0].score < 0.1:
        return False
    return len(ranking) == 1 or ranking[1].score < 0.75 * ranking[0].score


def rank_grids(
    backend: Backend,
    tiles: Array,
    overlap: float,
    numbers: Ints | None = None,
    *,
    ragged: bool = False,
) -> list[GridScore]:
    """Rank every rows × cols that holds the tiles, best first, each with its best layout.

    Parameters
    ----------
    tiles : array, shape (n, y, x)
        As for :func:`rank_layouts`.
    overlap : float
        Part of a tile's side that neighbours share.
    numbers : ndarray of int64, shape (n,), optional
        As for :func:`rank_layouts`.
    ragged : bool
        Whether the last run may be shorter: a scan may be stopped.

    Raises
    ------
    ValueError
        There is no tile, or the overlap is out of range.

    Examples
    --------
    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(112, 112)), 2)
    >>> corners = [(0, 0), (0, 48), (48, 48), (48, 0)]
    >>> tiles = np.stack([scene[y : y + 64, x : x + 64] for y, x in corners])
    >>> best = rank_grids(cpu, tiles, 0.25)[0]
    >>> best.rows, best.cols
    (2, 2)
    """
    device_tiles = backend.asarray(tiles)
    count = device_tiles.shape[0]
    if count == 0:
        raise ValueError("no tile was given; a layout needs at least one")
    at = np.arange(count) if numbers is None else np.asarray(numbers, np.int64)
    last = int(at.max()) + 1
    strength = edge_strength(backend, device_tiles)
    cache: dict[Edge, float] = {}
    sizes = [(rows, last // rows) for rows in range(1, last + 1) if last % rows == 0]
    if ragged:
        runs = {(-(-last // length), length) for length in range(2, last)}
        sizes = sorted({*sizes, *runs, *((length, n) for n, length in runs)})
    grids = []
    for rows, cols in sizes:
        best = _rank(backend, device_tiles, at, (rows, cols), overlap, strength, cache)[0]
        grids.append(GridScore(rows, cols, best))

    # The true grid explains the most overlaps, not the highest part of its own: one row of all
    # tiles is right about all but the ends of runs, and has no other direction.
    def explained(grid: GridScore) -> float:
        return grid.layout.score * grid.layout.overlaps

    return sorted(grids, key=lambda grid: (-round(explained(grid), 2), grid.rows * grid.cols))


def estimate_overlap(backend: Backend, tiles: Array) -> float:
    """Estimate the overlap from tiles taken one after the other; 0.1 of fewer than two.

    Each candidate is tried in the four directions of a run on the most textured consecutive
    pairs; the best one is returned, which :func:`rank_layouts` needs no better.

    >>> scene = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(112, 112)), 2)
    >>> corners = [(0, 0), (0, 48), (48, 48), (48, 0)]
    >>> tiles = np.stack([scene[y : y + 64, x : x + 64] for y, x in corners])
    >>> estimate_overlap(cpu, tiles)
    0.2
    """
    device_tiles = backend.asarray(tiles)
    count = device_tiles.shape[0]
    if count < 2:
        return 0.1  # the usual one
    strength = edge_strength(backend, device_tiles)
    first = np.arange(count - 1)
    first = first[_sharpest_pairs(strength, first, first + 1)]
    best = (0.0, 0.1)
    for candidate in (0.05, 0.1, 0.15, 0.2, 0.3, 0.4):
        for axis in (1, 0):
            for pair in ((first, first + 1), (first + 1, first)):
                edges = [(int(a), int(b), axis) for a, b in zip(*pair, strict=True)]
                score = _correlate(backend, device_tiles, edges, candidate)
                # Half the pairs at least lie within a run of two tiles or more.
                top = np.argsort(-score, kind="stable")[: max(1, len(score) // 2)]
                value = (float(score[top].mean()), candidate)
                if round(value[0], 3) > round(best[0], 3):
                    best = value
    return best[1]


def _rank(
    backend: Backend,
    tiles: Array,
    numbers: Ints,
    size: tuple[int, int],
    overlap: float,
    strength: Floats,
    cache: dict[Edge, float],
) -> list[LayoutScore]:
    rows, cols = size
    if rows < 1 or cols < 1 or rows * cols <= int(numbers.max()):
        raise ValueError(f"{rows} rows of {cols} columns do not hold {tiles.shape[0]} tiles")
    if not 0.01 <= overlap <= 0.9:
        raise ValueError(f"overlap is {overlap}; give the shared part of a side, 0.01 to 0.9")
    layouts: list[tuple[str, Ints, Ints, list[Edge], tuple[int, int]]] = []
    grids: set[bytes] = set()
    for name in LAYOUTS:
        row, col = np.array(tile_places(name, rows, cols), np.int64)[numbers].T
        grid = np.full((rows, cols), -1, np.int64)
        grid[row, col] = np.arange(len(numbers))
        # Places of a grid with gaps may be the same but for an empty row.
        key = np.stack([row - row.min(), col - col.min()]).tobytes()
        if key not in grids:
            grids.add(key)
            layouts.append((name, row, col, *_edges(grid, strength)))
    new_edges = sorted({edge for layout in layouts for edge in layout[3]} - cache.keys())
    for edge, score in zip(new_edges, _correlate(backend, tiles, new_edges, overlap), strict=True):
        cache[edge] = float(score)
    scored = []
    for name, row, col, edges, counts in layouts:
        total = sum(
            number * float(np.mean([cache[edge] for edge in edges if edge[2] == axis]))
            for axis, number in enumerate(counts)
            if number
        )
        scored.append(LayoutScore(name, row, col, total / max(1, sum(counts)), sum(counts)))
    return sorted(scored, key=lambda layout: -round(layout.score, 4))


def _edges(grid: Ints, strength: Floats) -> tuple[list[Edge], tuple[int, int]]:
    """Return the most textured (a, b, axis) of a grid of tile numbers, and how many there are."""
    out: list[Edge] = []
    counts = [0, 0]
    for axis, first, second in ((1, grid[:, :-1], grid[:, 1:]), (0, grid[:-1], grid[1:])):
        both = (first >= 0) & (second >= 0)
        a, b = first[both], second[both]
        counts[axis] = len(a)
        out += [(int(a[i]), int(b[i]), axis) for i in _sharpest_pairs(strength, a, b)]
    return out, (counts[0], counts[1])


def _sharpest_pairs(strength: Floats, a: Ints, b: Ints) -> Ints:
    order = np.argsort(-np.minimum(strength[a], strength[b]), kind="stable")
    return order[:_EDGES_PER_AXIS]


def _correlate(backend: Backend, tiles: Array, edges: list[Edge], overlap: float) -> Floats:
    """Return the score above chance of (a, b, axis) edges."""
    shape = (int(tiles.shape[1]), int(tiles.shape[2]))
    score = np.zeros(len(edges))
    for axis in (1, 0):
        indices = [i for i, edge in enumerate(edges) if edge[2] == axis]
        advance = np.zeros(2)
        advance[axis] = shape[axis] * (1.0 - overlap)
        reach = max(6.0, min(0.04 * min(shape), 0.6 * overlap * shape[axis]))
        plans = plan_strips(np.stack([np.zeros(2), advance]), shape, reach)
        for start in range(0, len(indices) if plans else 0, _BATCH):
            part = indices[start : start + _BATCH]
            pairs = np.array([edges[i][:2] for i in part])
            shifts = correlate_tiles(backend, tiles, pairs, plans[0], _SIGMA_PX)
            score[part] = shifts.score - shifts.second
    return score
