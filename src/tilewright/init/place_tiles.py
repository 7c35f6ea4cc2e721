"""Where the tiles of a cycle lie, by metadata or names, and whether their overlaps agree."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import RawDataError
from tilewright.init.tile_order import GridOptions, PlacedTiles, find_order
from tilewright.init.tile_set import TileSet
from tilewright.kernels.backend import cpu_backend
from tilewright.kernels.tile_positions.stage_map import StageMap, displaced_tiles, fit_stage_map
from tilewright.runtime.text import few
from tilewright.stages.tile_positions.stage_check import (
    FAR,
    describe,
    lone_tiles,
    middle_tiles,
    orientation,
    reduction,
    searched_px,
)

#: Part of a side up to which overlaps confirm positions; others are written as they show them.
_CONFIRMED = 0.02
#: Standard errors by which positions are off before overlaps correct them: a stage that misses each
#: place by 3 % of a side is off by two (60 made sets).
_BEYOND_SCATTER = 5.0
#: Share of overlaps that must confirm the positions of another cycle.
_SAME = 0.7
#: Share of overlaps that must confirm an order of tiles: in a stage's jitter of 3 % half agree.
_ORDERED = 0.5
#: Part of a side within which two tiles are of one position.
_SAME_PLACE = 0.05


def place_tiles(
    tiles: TileSet, stated: GridOptions, pixel_um: float | None, earlier: PlacedTiles
) -> PlacedTiles:
    """Return where the tiles of a cycle lie, as their overlaps confirm it.

    Options are those of the command line and the metadata. Positions of an earlier cycle are tried
    first for tiles of the same numbers.
    """
    placed = PlacedTiles(turn=earlier.turn)
    plane = tiles.first[0]
    if plane.y is not None:
        nominal, source = _stage_positions(tiles, stated, pixel_um), "stage"
        if nominal is not None and not np.allclose(earlier.turn, np.eye(2)):
            nominal, source = nominal @ earlier.turn.T, "pixels"
    elif plane.tile is None:
        grid = np.array([(p.row, p.col) for p in tiles.first], np.float64)
        nominal, source = _of_grid(tiles, grid, stated), "grid"
    else:
        nominal, source = _of_numbers(tiles, stated, earlier.yx_px, placed)
        if nominal is None and set(tiles.planes) == set(earlier.yx_px):
            placed.unknown.clear()
            placed.warnings.append("the order of tiles is taken from another cycle or sample")
            nominal = np.array([earlier.yx_px[name] for name in tiles.planes])
            stated = replace(stated, overlap=0.0 if stated.overlap is None else stated.overlap)
    if not all(tiles.shape_px):
        placed.warnings.append(f"{plane.path} cannot be read, so positions are not compared")
        nominal = nominal if source == "stage" else None
    if nominal is None:
        nominal = np.full((len(tiles.planes), 2), np.nan)
    elif len(nominal) > 1 and all(tiles.shape_px):
        nominal, source = _confirmed(tiles, nominal, source, stated, placed)
        if plane.y is None:
            placed.turn = np.eye(2)
    _write_rows(tiles, nominal, source, stated, placed)
    return placed


def _stage_positions(
    tiles: TileSet, stated: GridOptions, pixel_um: float | None
) -> NDArray[np.float64] | None:
    if tiles.first[0].unit == "px":
        return _of_files(tiles, stated)
    return _of_files(tiles, stated) / pixel_um if pixel_um else None


def _of_files(tiles: TileSet, stated: GridOptions) -> NDArray[np.float64]:
    """Return the positions in the files, in their unit."""
    return np.array([(p.y or 0.0, p.x or 0.0) for p in tiles.first]) * stated.signs


def _of_grid(
    tiles: TileSet, grid: NDArray[np.float64], stated: GridOptions, overlap: float = 0.1
) -> NDArray[np.float64]:
    """Return places on a grid in px, with the stated overlap or else a guess."""
    step = 1.0 - (overlap if stated.overlap is None else stated.overlap)
    places = (grid - grid.min(axis=0)) * step * tiles.shape_px * stated.signs
    return np.asarray(places, np.float64)


def _of_numbers(
    tiles: TileSet,
    stated: GridOptions,
    earlier: Mapping[str, tuple[float, float]],
    placed: PlacedTiles,
) -> tuple[NDArray[np.float64] | None, str]:
    """Return positions of numbered tiles and their source; None where nothing shows them."""
    names = list(tiles.planes)
    if len(names) == 1 or not all(tiles.shape_px):
        return np.zeros((len(names), 2)), "grid"
    images = _images(tiles, names, placed)
    if images is not None and set(names) <= set(earlier):
        nominal = np.array([earlier[name] for name in names])
        found = fit_stage_map(cpu_backend(2), images, nominal / reduction(tiles.shape_px[1]))
        if found is not None and found.matched >= _SAME * found.compared:
            return nominal, "grid"
    order = find_order(images, np.array([p.tile or 0 for p in tiles.first]), stated, placed)
    if order is None:
        return None, "grid"
    nominal = _of_grid(tiles, order.places.astype(np.float64), stated, order.overlap)
    return nominal, "pixels" if order.measured else "grid"


def _images(
    tiles: TileSet, names: Sequence[str], placed: PlacedTiles
) -> NDArray[np.float32] | None:
    """Return the reduced middle plane of some tiles; None, with a warning, if one is damaged."""
    try:
        return np.stack([tiles.image(name) for name in names])
    except RawDataError as error:
        placed.warnings.append(f"positions are not compared with overlaps: {error}")
        return None


def _confirmed(
    tiles: TileSet,
    nominal: NDArray[np.float64],
    source: str,
    stated: GridOptions,
    placed: PlacedTiles,
) -> tuple[NDArray[np.float64], str]:
    """Return the positions as overlaps show them, and where they come from."""
    names = list(tiles.planes)
    index = middle_tiles(nominal)
    images = _images(tiles, [names[k] for k in index], placed)
    if images is None:
        return nominal, source
    factor = reduction(tiles.shape_px[1])
    places = nominal[index] / factor
    found = fit_stage_map(cpu_backend(2), images, places)
    guessed = tiles.first[0].y is None and stated.overlap is None
    ordered = source == "pixels" and tiles.first[0].y is None
    # Overlaps along both axes of a grid must agree with an order of its tiles.
    agreed = found and not found.silent_axes and found.matched >= _ORDERED * found.compared
    if found is None or not found.sure or (ordered and not agreed):
        return _unconfirmed(nominal, source, placed, guessed=guessed or ordered)
    side = min(tiles.shape_px)
    moves = {
        int(index[tile]): off * factor
        for tile, off in displaced_tiles(cpu_backend(2), images, places, found).items()
        if np.abs(off).max() * factor > FAR * searched_px(tiles.shape_px)
    }
    placed.warnings += [
        f"overlaps show tile {names[tile]} ({round(y)}, {round(x)}) px (y, x) from its place, "
        "and there it is written"
        for tile, (y, x) in moves.items()
    ]
    measured, off_px = _overlap_text(found, tiles, factor), found.largest_error_px * factor
    scatter_px = _BEYOND_SCATTER * found.error_px * factor
    confirmed = off_px <= max(_CONFIRMED * side, scatter_px)
    if confirmed and not guessed and not moves:
        placed.findings.append(
            f"overlaps confirm the positions ({found.matched} of {found.compared}): {measured}"
        )
        return nominal, source
    if orientation(found.matrix) or (not confirmed and not guessed):
        stated_overlap = "" if stated.overlap is None else f", {stated.overlap:.3f} is stated"
        placed.warnings.append(
            f"{describe(found, factor)} ({measured}{stated_overlap}); the measured ones are written"
        )
        placed.turn = found.matrix @ placed.turn
    placed.findings.append(f"{measured}, from the pixels ({found.matched} of {found.compared})")
    corrected = np.asarray(nominal @ found.matrix.T)
    for tile, move in moves.items():
        corrected[tile] += move
    return corrected, "pixels"


def _unconfirmed(
    nominal: NDArray[np.float64], source: str, placed: PlacedTiles, *, guessed: bool
) -> tuple[NDArray[np.float64], str]:
    """Return positions that overlaps do not show: those stated, NaN of a guess."""
    if guessed:
        placed.unknown.append(
            "y and x in the tiles table: overlaps show too little structure to measure them; give "
            "--rows, --cols, --layout and --overlap to tilewright init"
        )
        return np.full_like(nominal, np.nan), source
    where = "the grid" if source == "grid" else "the files' positions"
    placed.warnings.append(
        f"{where} could not be compared with the pixels: overlaps show too little structure"
    )
    return nominal, source


def _overlap_text(found: StageMap, tiles: TileSet, factor: int) -> str:
    """Return the overlaps of neighbours along each axis of the image."""
    shares = {}
    for moved in np.abs(found.moved_px) * factor:
        axis = int(np.argmax(moved / tiles.shape_px))
        shares["yx"[axis]] = 1.0 - float(moved[axis]) / tiles.shape_px[axis]
    texts = [f"{shares[axis]:.3f} along {axis}" for axis in "yx" if axis in shares]
    return f"overlap {' and '.join(texts)}"


def _write_rows(
    tiles: TileSet,
    nominal: NDArray[np.float64],
    source: str,
    stated: GridOptions,
    placed: PlacedTiles,
) -> None:
    """Add the rows of the tiles table; what is there twice or lacks planes is told."""
    in_um = source == "stage" and tiles.first[0].unit == "um"
    # Positions of the stage stay as the files give them, whatever the size of a pixel.
    written = _of_files(tiles, stated) if in_um else nominal
    repeated = _repeated(nominal, min(tiles.shape_px))
    lone = lone_tiles(nominal, tiles.shape_px) if all(tiles.shape_px) else []
    placed.shape_px = tiles.shape_px
    incomplete = tiles.incomplete()
    for k, name in enumerate(tiles.planes):
        left_out = k in repeated or k in lone or (name in incomplete and stated.fill)
        y, x = (_number(value, 3 if in_um else 2) for value in written[k])
        placed.yx_px[name] = (float(nominal[k, 0]), float(nominal[k, 1]))
        placed.rows.append(
            {"tile": name, "y": y, "x": x, "unit": "um" if in_um else "px", "source": source,
             "file": min(plane.path for plane in tiles.planes[name]), "use": int(not left_out)}
        )  # fmt: skip
    names = list(tiles.planes)
    if repeated:
        pairs = ", ".join(f"{names[k]} (as {names[first]})" for k, first in repeated.items())
        placed.warnings.append(f"tiles imaged twice have use 0 in the tiles table: {pairs}")
    if lone:
        alone = ", ".join(names[k] for k in lone)
        placed.warnings.append(
            f"tiles that overlap with no other have use 0 in the tiles table: {alone}; make them "
            "samples of their own"
        )
    if incomplete:
        then = "have use 0 in the tiles table" if stated.fill else (
            "copy their planes, or set use to 0 in the tiles table (--missing fill does)"
        )  # fmt: skip
        placed.warnings.append(f"tiles lack planes: {few(incomplete)}; {then}")


def _number(value: float, digits: int) -> str:
    text = f"{round(float(value), digits) + 0.0:.{digits}f}"
    return "" if np.isnan(value) else text.rstrip("0").rstrip(".")


def _repeated(nominal: NDArray[np.float64], side: int) -> dict[int, int]:
    """Return the tiles at the position of an earlier one, with that one's number."""
    found: dict[int, int] = {}
    for k in range(1, len(nominal)):
        near = np.abs(nominal[:k] - nominal[k]).max(axis=1) < _SAME_PLACE * side
        if near.any():
            found[k] = int(np.argmax(near))
    return found


def with_metadata(options: GridOptions, codex: Any, width_px: int) -> GridOptions:
    """Return the options of the command line with those of ``experiment.json`` where it has none.

    An overlap from 1 on is in pixels.
    """
    overlap = codex.overlap
    if overlap is not None and overlap >= 1:
        overlap = overlap / width_px if width_px else None
    if overlap is not None and not 0.01 <= overlap <= 0.9:
        overlap = None
    return options.otherwise(GridOptions(codex.rows, codex.cols, codex.layout, overlap))
