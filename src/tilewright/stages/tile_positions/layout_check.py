"""Whether tiles lie as the configuration says: the borders that they would share decide."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.inputs.tiles import Tiles
from tilewright.kernels.backend import Backend, cells
from tilewright.kernels.tile_positions.tile_layout import (
    LayoutScore,
    is_clear,
    measure_overlap,
    rank_grids,
    rank_layouts,
)

#: Of a grid of more than 100 tiles the middle rows and columns are read.
_SIDE = 10
#: Width to which tiles are reduced before their borders are compared.
_WIDTH_PX = 400
#: Fewer tiles have too few borders to contradict a configuration; two dim tiles side by side
#: scored 0.10 one over the other by chance.
_LEAST_TILES = 4
#: Score of a layout that is clear enough to refuse another one.
_SURE = 0.2
#: Part of a side over which places are searched: an overlap that differs by more is refused.
SEARCHED = 0.03
#: Rows and columns that turn out to run otherwise have their stage axes flipped.
FLIPS = {
    "raster_right_down": (False, False),
    "raster_right_up": (True, False),
    "raster_left_down": (False, True),
    "raster_left_up": (True, True),
}


def reduce_tile(image: NDArray[Any]) -> NDArray[np.float32]:
    """Return a plane (y, x) reduced by averaging to about 400 px in width."""
    factor = max(1, round(image.shape[1] / _WIDTH_PX))
    return np.asarray(cells(image, factor).mean(axis=(1, 3)), np.float32)


def layout_problem(
    tiles: Tiles,
    overlap: float,
    *,
    numbered: bool,
    backend: Backend,
    spaced: bool = False,
    searched: float = SEARCHED,
) -> str:
    """Return how the borders of the tiles contradict their places, nothing where they do not.

    Every order and direction of the grid is compared (:func:`rank_layouts`). A contradiction must
    be clear: four tiles, and another layout that scores at least 0.2 and four thirds of any
    other's. Grids with empty places are skipped. Of more than 100 tiles the middle 10 x 10 are
    read, which show reversed axes but no wrong order of numbers.

    Parameters
    ----------
    tiles : Tiles
        Of the channel with the most structure, usually nuclei.
    overlap : float
        Part of a tile's side that neighbours share.
    numbered : bool
        Whether the places come from rows, cols and layout of the configuration, and not from
        the files.
    spaced : bool
        Whether rows and columns are the files', and only their distance the configuration's.
    searched : float
        Part of a tile's side over which places are searched.
    """
    rows, cols = int(tiles.row.max()) + 1, int(tiles.col.max()) + 1
    if rows * cols != len(tiles.row) or rows * cols < _LEAST_TILES:
        return ""
    whole = rows * cols <= _SIDE**2
    index = _compared_tiles(tiles, rows, cols, whole=whole)
    row, col = (place[index] - place[index].min() for place in (tiles.row, tiles.col))
    shape = int(row.max()) + 1, int(col.max()) + 1
    images = np.stack([reduce_tile(tiles.read(int(t), tiles.shape[0] // 2)) for t in index])
    clipped = min(max(overlap, 0.01), 0.9)
    ranking = rank_layouts(backend, images, *shape, clipped)
    mine = next((one for one in ranking if (one.row == row).all() and (one.col == col).all()), None)
    if mine is None:
        return ""
    if mine is not ranking[0] and is_clear(ranking):
        return _other_layout(ranking[0], mine, numbered=numbered, whole=whole)
    other = _other_grid(backend, images, shape, clipped, mine) if numbered and whole else ""
    shared = measure_overlap(backend, images, row, col, clipped) if numbered or spaced else None
    if other or shared is None or abs(shared - overlap) <= searched:
        return other
    return _other_overlap(shared, overlap)


def _other_overlap(shared: float, overlap: float) -> str:
    return (
        f"the borders of the tiles show an overlap of {shared:.3f}, not of {overlap:.3f}; set "
        f"acquisition.overlap: {shared:.3f} (or the column overlap of the samples table)"
    )


def _other_layout(best: LayoutScore, mine: LayoutScore, *, numbered: bool, whole: bool) -> str:
    """Return that another layout fits, and what to set; nothing where its score is low."""
    if best.score < _SURE:
        return ""
    sentence = (
        f"the borders of the tiles fit {{}} (score {best.score:.2f}), not {{}} ({mine.score:.2f})"
    )
    if numbered and whole:
        return sentence.format(best.name, mine.name) + f"; set acquisition.layout: {best.name}"
    if best.name in FLIPS:
        axes = [axis for axis, on in zip("yx", FLIPS[best.name], strict=True) if on]
        keys = " and ".join(f"acquisition.flip_{axis}" for axis in axes)
        text = sentence.format(f"with {' and '.join(axes)} turned round", "where they are placed")
        return f"{text}; change {'acquisition.layout' if numbered else keys}"
    return sentence.format(f"the order {best.name}", "where they are placed") + (
        "; check the positions in the files, or rows and columns in acquisition.pattern"
    )


def _compared_tiles(tiles: Tiles, rows: int, cols: int, *, whole: bool) -> NDArray[np.int64]:
    """Return the numbers of all tiles of a grid, or of those in its middle."""
    index = np.flatnonzero(whole | (_middle(tiles.row, rows) & _middle(tiles.col, cols)))
    # By number, as the microscope took them; in part of a grid numbers define no layout.
    return index[np.argsort(tiles.number[index], kind="stable")] if whole else index


def _middle(place: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    first = max(0, (count - _SIDE) // 2)
    return np.asarray((place >= first) & (place < first + _SIDE))


def _other_grid(
    backend: Backend,
    images: NDArray[np.float32],
    shape: tuple[int, int],
    overlap: float,
    mine: LayoutScore,
) -> str:
    """Return whether other rows and columns explain clearly more overlaps."""
    best = rank_grids(backend, images, overlap)[0]
    count = len(images)
    explained = mine.score * (2 * count - sum(shape))
    most = best.layout.score * (2 * count - best.rows - best.cols)
    if (
        (best.rows, best.cols) == shape
        or best.layout.score < _SURE
        or explained >= 0.75 * most
        or not is_clear(rank_layouts(backend, images, best.rows, best.cols, overlap))
    ):
        return ""
    return (
        f"the borders of the tiles fit {best.rows} rows x {best.cols} columns "
        f"({best.layout.name}, score {best.layout.score:.2f}), not {shape[0]} x {shape[1]} "
        f"({mine.score:.2f}); correct acquisition.rows, cols and layout"
    )
