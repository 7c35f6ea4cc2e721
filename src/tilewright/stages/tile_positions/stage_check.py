"""Whether tiles lie as the tiles table says: the overlaps that they would have decide."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.io.inputs.tiles import Tiles
from tilewright.kernels.backend import cells
from tilewright.kernels.padding import fill_padding
from tilewright.kernels.tile_positions.overlap_strips import searched_px
from tilewright.kernels.tile_positions.stage_map import StageMap, displaced_tiles, fit_stage_map
from tilewright.runtime.text import few

#: Of more tiles those in the middle are read.
_MOST_TILES = 100
#: Width to which tiles are reduced before they are compared.
_WIDTH_PX = 400
#: Times that by which a single tile is off before it counts: the map of a few overlaps is a little
#: off itself.
_FAR = 2.0
#: Share of overlaps that must agree where they contradict the table.
_BELIEVED = 0.6
#: Rotation of a camera that is reported: less is searched for anyway.
_TURNED_DEG, _SLANTED_DEG = 2.0, 4.0
#: Overlaps that contradict positions, and their share of those that tell where tiles lie, from
#: which the order of the tiles is wrong: tiles of a wrong order mostly do not overlap.
_CONTRADICTING, _SHARE = 2, 0.2


#: Share of tiles without neighbours up to which they are errors, or no part of the image.
_LONE = 0.1
#: Of fewer tiles one that lies alone may be right.
_LEAST_TILES = 4
_REMEDY = (
    "correct y and x of the tiles table, or empty them and give `tilewright init --add` what is "
    "known of the grid"
)


def reduce_tile(image: NDArray[Any]) -> NDArray[np.float32]:
    """Return a plane (y, x) reduced by averaging to about 400 px in width."""
    factor = reduction(image.shape[1])
    return np.asarray(cells(image, factor).mean(axis=(1, 3)), np.float32)


def reduction(width_px: int) -> int:
    """Return by how much :func:`reduce_tile` reduces."""
    return max(1, round(width_px / _WIDTH_PX))


def middle_tiles(nominal_px: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the numbers of the tiles that are compared: of over 100 those in the middle.

    >>> len(middle_tiles(np.array([[0.0, 90.0 * n] for n in range(150)])))
    100
    """
    away = np.abs(nominal_px - np.median(nominal_px, axis=0)).max(axis=1)
    return np.sort(np.argsort(np.round(away, 3), kind="stable")[:_MOST_TILES])


def stage_problem(tiles: Tiles, *, max_shift_px: float | None = None) -> str:
    """Return how the overlaps of the tiles contradict their positions, "" where they do not.

    Of more than 100 tiles the middle ones are read. They are of the channel with the most
    structure, usually nuclei. Places are searched over 3 % of the shorter side by default.
    """
    nominal = tiles.nominal_px
    index = middle_tiles(nominal)
    if len(index) < 2:
        return ""
    planes = (fill_padding(tiles.read(int(t), tiles.shape[0] // 2)) for t in index)
    images = np.stack([reduce_tile(plane) for plane in planes])
    shape_px = tiles.shape[1], tiles.shape[2]
    searched = max_shift_px or searched_px(shape_px)
    names = tiles.name[index].tolist()
    found = overlaps_problem(images, nominal[index], names, shape_px, searched)
    if not found and (lone := lone_tiles(nominal, shape_px)):
        return lone_text([tiles.name[lone[0]]])
    return f"{found}; {_REMEDY}" if found else ""


def overlaps_problem(
    images: NDArray[np.float32],
    nominal_px: NDArray[np.float64],
    names: Sequence[str],
    shape_px: tuple[int, int],
    searched: float,
) -> str:
    """Return how overlaps contradict positions, "" where they do not.

    Parameters
    ----------
    images : ndarray of float32, shape (n, y, x)
        A plane of each tile by :func:`reduce_tile`.
    nominal_px : ndarray of float64, shape (n, 2)
        Position (y, x) of each tile.
    names : sequence of str
        Name of each tile.
    shape_px : (int, int)
        (y, x) of a tile.
    searched : float
        Pixels over which places are searched.
    """
    factor = reduction(shape_px[1])
    found = fit_stage_map(images, nominal_px / factor)
    if found is None:
        return ""
    # Of four overlaps two that agree by chance are no evidence against the table.
    off_px = found.largest_error_px * factor
    turned = off_px > 0.5 * min(shape_px) and found.matched >= _CONTRADICTING
    believed = turned or found.matched >= _BELIEVED * found.compared
    if believed and off_px > searched:
        return describe(found, factor)
    for tile, off in displaced_tiles(images, nominal_px / factor, found).items():
        if float(np.abs(off).max()) * factor > _FAR * searched:
            y, x = (round(px) for px in off * factor)
            return (
                f"overlaps show tile {names[tile]} ({y}, {x}) px (y, x) from where the tiles table "
                "has it"
            )
    wrong = found.contradicting
    if len(wrong) >= max(_CONTRADICTING, _SHARE * (found.matched + len(wrong))):
        a, b = (names[k] for k in wrong[0])
        return (
            f"{len(wrong)} of {found.compared} overlaps show tiles elsewhere than the tiles table, "
            f"such as {b} next to {a}"
        )
    return ""


def lone_text(names: Sequence[str]) -> str:
    """Return what to do about tiles that lie alone."""
    return (
        f"no other tile overlaps with {'tiles' if len(names) > 1 else 'tile'} {few(names)}, where "
        "all others have neighbours; correct y and x in the tiles table, set use to 0, or make a "
        "sample of it"
    )


def lone_tiles(nominal_px: NDArray[np.float64], shape_px: tuple[int, int]) -> list[int]:
    """Return tiles that overlap with no other, where all but one or a tenth do.

    >>> row = np.array([[0.0, 90.0 * n] for n in range(10)] + [[500.0, 0.0]])
    >>> lone_tiles(row, (100, 100)), lone_tiles(row[8:], (100, 100))
    ([10], [])
    """
    away = np.abs(nominal_px[:, None] - nominal_px[None, :]) < shape_px
    alone = np.flatnonzero(away.all(axis=2).sum(axis=1) == 1).tolist()
    few = max(1, int(_LONE * len(nominal_px)))
    return alone if len(alone) <= few and len(nominal_px) >= _LEAST_TILES else []


def describe(found: StageMap, factor: int) -> str:
    """Return what overlaps show of positions that differ, with both numbers.

    >>> step = np.array([[0.0, 90.0], [90.0, 0.0]])
    >>> describe(StageMap(np.array([[0.0, 1.0], [1.0, 0.0]]), step, 9, 9, ()), 2)
    '9 of 9 overlaps show neighbours at (180, 0) px (y, x) instead of (0, 180) px: the axes of the \
stage are swapped'
    """
    off = np.abs(found.moved_px - found.step_px).max(axis=1)
    k = int(np.argmax(np.round(off, 2)))
    nominal, measured = (
        f"({round(y)}, {round(x)}) px"
        for y, x in (found.step_px[k] * factor, found.moved_px[k] * factor)
    )
    text = (
        f"{found.matched} of {found.compared} overlaps show neighbours at {measured} (y, x) "
        f"instead of {nominal}"
    )
    return text + (f": {what}" if (what := orientation(found.matrix)) else "")


def orientation(matrix: NDArray[np.float64]) -> str:
    """Return what turns positions into those of a map: swapped or mirrored axes, a rotation.

    >>> orientation(np.array([[1.0, 0.04], [0.04, -1.0]]))
    'x mirrored, the camera is turned by 2.3 degrees'
    """
    swapped = abs(matrix[0, 1]) + abs(matrix[1, 0]) > abs(matrix[0, 0]) + abs(matrix[1, 1])
    upright = matrix[::-1] if swapped else matrix
    names = ("x", "y") if swapped else ("y", "x")
    mirrored = [f"{name} mirrored" for k, name in enumerate(names) if upright[k, k] < 0]
    parts = ["the axes of the stage are swapped"] * bool(swapped) + mirrored
    signs = np.sign(np.diag(upright))
    turned = np.asarray(signs[:, None] * upright)
    of_y, of_x = (
        math.degrees(math.atan2(*pair))
        for pair in ((turned[1, 0], turned[0, 0]), (-turned[0, 1], turned[1, 1]))
    )
    if abs(of_y - of_x) >= _SLANTED_DEG:
        parts.append("rows and columns are slanted")
    elif abs(of_y + of_x) / 2 >= _TURNED_DEG:
        parts.append(f"the camera is turned by {abs(of_y + of_x) / 2:.1f} degrees")
    return ", ".join(parts)
