"""Where tiles lie: by metadata, or as overlaps show it in every cycle alike; else it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.init.tile_set import GridOptions, PlacedTiles, Places, TileSet
from tilewright.kernels.tile_positions.overlap_strips import searched_px
from tilewright.kernels.tile_positions.stage_map import StageMap, fit_stage_map
from tilewright.kernels.tile_positions.tile_layout import GridVotes, is_sure, rank_grids
from tilewright.kernels.tile_positions.tile_order import tile_places
from tilewright.runtime.text import few
from tilewright.stages.tile_positions.stage_check import describe, middle_tiles, orientation

#: Region and cycle.
Key = tuple[str, int]
#: Part of a side, and standard errors, by which neighbours must be off their positions before a map
#: replaces these: a stage that misses each place by 3 % of a side is off by two (60 made sets).
_OFF, _BEYOND_SCATTER = 0.02, 5.0
#: Part of a side within which the maps of cycles are the same.
_ALIKE = 0.03
#: Share of overlaps that must agree with an order that is given (a stage's jitter of 3 % leaves
#: half), and with a map that replaces positions or a step that is not given (one of 4 of 7 was off
#: by 5 px of 224).
_HALF, _MOST = 0.5, 0.6
#: Overlap where none is given, until it is measured.
_GUESS = 0.1
#: Grids that a question names.
_NAMED = 3
#: Part of a side within which two tiles are of one position.
_SAME_PLACE = 0.05
#: Share of tiles up to which they were imaged twice; more are another cycle.
_REPEATED = 0.25


def place_tiles(
    groups: Mapping[Key, TileSet], options: GridOptions, codex: Any, pixel_um: float | None
) -> dict[Key, PlacedTiles]:
    """Return where the tiles of all regions and cycles of one scan lie.

    Parameters
    ----------
    groups : mapping
        Tiles by region and cycle, those first whose overlaps show most.
    options : GridOptions
        Of the command line.
    codex : CodexExperiment
        What ``experiment.json`` states.
    pixel_um : float or None
        None is unknown; positions of the stage in µm are then not compared with overlaps.
    """
    placed: dict[Key, PlacedTiles] = {}
    maps: dict[Key, StageMap | None] = {}
    for key, tiles in groups.items():
        grid = options.otherwise(codex, tiles.shape_px[1])
        orders = [one.order for one in placed.values() if one.order]
        placed[key] = _nominal(tiles, grid, pixel_um, orders)
        maps[key] = _fit(placed[key])
        tiles.forget()
    common = _common_map([(one, maps[key]) for key, one in placed.items()])
    for key, one in placed.items():
        if one.known and len(one.yx_px) > 1:
            _correct(one, maps[key], common)
        one.repeated = _repeated(one)
    return placed


def _nominal(
    tiles: TileSet, options: GridOptions, pixel_um: float | None, orders: Sequence[GridVotes]
) -> PlacedTiles:
    """Return positions by the files' metadata, rows and columns, or the order of numbers.

    ``orders`` are those of other cycles.
    """
    plane, nan = tiles.first[0], np.full((len(tiles.names), 2), np.nan)
    if plane.y is not None:
        at = np.array([(p.y or 0.0, p.x or 0.0) for p in tiles.first])
        if plane.unit == "px":
            return PlacedTiles(tiles, at, "stage")
        return PlacedTiles(tiles, at / (pixel_um or np.nan), "stage", yx_um=at)
    placed = PlacedTiles(tiles, nan, "grid", guessed=options.overlap is None)
    if len(tiles.names) == 1:
        placed.yx_px = np.zeros((1, 2))
        return placed
    if not all(tiles.shape_px):
        placed.ask(f"{plane.path} cannot be read, so nothing shows them")
        return placed
    if plane.tile is None:
        grid = np.array([(p.row, p.col) for p in tiles.first], np.float64)
    else:
        grid = _places_of_numbers(placed, options, orders)
    step = (1.0 - (options.overlap or _GUESS)) * np.array(tiles.shape_px)
    placed.yx_px = (grid - grid.min(axis=0)) * step
    return placed


def _places_of_numbers(
    placed: PlacedTiles, options: GridOptions, orders: Sequence[GridVotes]
) -> Places:
    """Return (row, col) of numbered tiles, NaN where nothing shows them."""
    numbers = np.array([p.tile or 0 for p in placed.tiles.first], np.int64)
    size = (options.rows or 0, options.cols or 0)
    most = size[0] * size[1]
    # A scan begins with 0 or 1; a part of one with another number.
    whole = numbers[0] < len(numbers) or numbers[-1] <= most
    at = numbers - (0 if numbers[0] == 0 else 1 if whole else numbers[0])
    fits, gaps = int(at[-1]) < most, len(at) <= at[-1]
    if most and not fits:
        placed.notes.warnings.append(
            f"{options.rows} x {options.cols} tiles are given, but the files number {len(numbers)}"
        )
    sizes = [size] * fits + [one[:2] for one in orders if at[-1] < one.rows * one.cols]
    sizes += [] if gaps else sizes_of(len(at))
    images = placed.tiles.images
    ranked = [] if images is None else rank_grids(images, dict.fromkeys(sizes), at)
    if ranked and is_sure(ranked):
        placed.order = best = ranked[0]
        placed.notes.findings.append(f"the overlaps speak for {best} and no other order")
        if (*size, options.layout) != best[:3]:
            placed.source = "pixels"
            if fits and (best[:2] != size or options.layout):
                size_text = f"{size[0]} x {size[1]} {options.layout or ''}".strip()
                placed.notes.warnings.append(
                    f"{size_text} is given, but {best} fits the overlaps, which is written"
                )
        return best.places.astype(np.float64)
    if fits and options.layout:
        return np.array(tile_places(options.layout, *size), np.float64)[at]
    speak = few((grid for grid in ranked if grid.votes), _NAMED)
    why = f"overlaps speak for {speak}" if speak else "overlaps show too little"
    if gaps:
        missing = sorted({*range(int(at[-1]))} - {*at.tolist()})
        why = f"tiles {few(np.array(missing) + numbers[0] - at[0])} are missing and {why}"
    placed.ask(
        f"in which order {len(numbers)} tiles lie is not sure, as {why}; give --rows, --cols, "
        "--layout and --overlap to tilewright init"
    )
    return np.full((len(numbers), 2), np.nan)


def sizes_of(count: int) -> Iterator[tuple[int, int]]:
    """Yield (rows, cols) that hold so many tiles, full grids first: a scan may be stopped."""
    sizes = {(-(-count // length), length) for length in range(1, count + 1)}
    sizes |= {(cols, rows) for rows, cols in sizes}
    yield from sorted(sizes, key=lambda size: (size[0] * size[1] - count, abs(size[0] - size[1])))


def _fit(placed: PlacedTiles) -> StageMap | None:
    """Return the map from positions to what overlaps show, None where they show nothing sure."""
    images = placed.tiles.images
    if len(placed.yx_px) < 2 or not placed.known or images is None:
        return None
    index = middle_tiles(placed.yx_px)
    found = fit_stage_map(images[index], placed.yx_px[index] / placed.factor)
    return found if found and found.sure else None


def _agree(found: StageMap, share: float) -> bool:
    """Return whether a share of the overlaps that were compared speak for a map."""
    return found.matched >= share * found.compared


def _far(placed: PlacedTiles, found: StageMap) -> bool:
    """Return whether neighbours are off their positions, far beyond the scatter of matches."""
    least_px = _OFF * min(placed.tiles.shape_px) / placed.factor
    return found.largest_error_px > max(least_px, _BEYOND_SCATTER * found.error_px)


def _common_map(
    fitted: Sequence[tuple[PlacedTiles, StageMap | None]],
) -> NDArray[np.float64] | None:
    """Return the one map of all cycles that replaces positions; None where they do not agree.

    Most overlaps speak for it, and in each cycle it is far beyond the scatter; of grids whose
    overlap is not given any will do.
    """
    found = [(one, fit) for one, fit in fitted if fit and not _contradicts(one, fit)]
    if not found or not all(one.guessed or _far(one, fit) for one, fit in found):
        return None
    matrices = np.array([fit.matrix for _, fit in found])
    middle = np.asarray(np.median(matrices, axis=0))
    agreed = sum(fit.matched for _, fit in found) >= _MOST * sum(fit.compared for _, fit in found)
    alike = all(
        np.abs((fit.matrix - middle) @ fit.step_px.T).max() * one.factor
        <= _ALIKE * min(one.tiles.shape_px)
        for one, fit in found
    )
    return middle if agreed and alike else None


def _contradicts(placed: PlacedTiles, found: StageMap) -> bool:
    """Return whether overlaps speak against the order in which tiles are numbered."""
    given = placed.tiles.first[0].y is None and not placed.guessed
    return given and not _agree(found, _HALF)


def _correct(
    placed: PlacedTiles, found: StageMap | None, common: NDArray[np.float64] | None
) -> None:
    """Write positions as overlaps show them, or say how they confirm those that are given."""
    notes, matrix = placed.notes, common
    overlap = _overlap_text(found, placed) if found else ""
    if placed.guessed:
        if found and not found.silent_axes and _agree(found, _MOST):
            matrix = found.matrix
            notes.findings.append(overlap)
            if turned := orientation(matrix):
                notes.warnings.append(f"rows and columns lie so that {turned}, as overlaps show")
        if matrix is None:
            placed.ask(
                "the overlap of tiles is not given, and overlaps show too little to "
                f"measure it{overlap and f' ({overlap})'}; give --overlap to tilewright init"
            )
            return
    elif found is None:
        notes.warnings.append("positions are not confirmed, as overlaps show too little structure")
    elif _contradicts(placed, found):
        placed.ask(
            f"{found.matched} of {found.compared} overlaps agree with the rows, columns and order "
            "that are given; numbers behind a lost tile may be one too low: correct them, or write "
            "y and x"
        )
        return
    elif _far(placed, found):
        shown = f"{describe(found, placed.factor)} ({overlap})"
        stay = f"{shown}; not so in all cycles, so positions stay as they are"
        if matrix is not None:
            notes.warnings.append(f"{shown}; the measured ones are written")
        elif found.largest_error_px * placed.factor > searched_px(placed.tiles.shape_px):
            notes.unknown.append(f"y and x: {stay}: correct them if these are right")
        else:
            notes.warnings.append(stay)
    else:
        agree = f"{found.matched} of {found.compared}"
        notes.findings.append(f"overlaps confirm the positions ({agree}), {overlap}")
    if matrix is not None:
        placed.move(placed.yx_px @ matrix.T, "pixels")


def _repeated(placed: PlacedTiles) -> set[str]:
    """Return the tiles that were imaged twice; where they are many, all positions are asked."""
    names = placed.tiles.names
    near = np.abs(placed.yx_px[:, None] - placed.yx_px[None, :]).max(axis=2)
    again = near < _SAME_PLACE * min(placed.tiles.shape_px)
    first = {k: int(np.argmax(again[k, :k])) for k in range(len(names)) if again[k, :k].any()}
    pairs = few(f"{names[k]} (as {names[earlier]})" for k, earlier in first.items())
    if len(first) > max(1, _REPEATED * len(names)):
        placed.ask(
            f"{len(first)} of {len(names)} tiles lie where others do, {pairs}: if they are of "
            "another cycle, say by --pattern how files are named; else set their use to 0"
        )
        return set()
    if first:
        placed.notes.warnings.append(f"tiles imaged twice have use 0 in the tiles table: {pairs}")
    return {names[k] for k in first}


def _overlap_text(found: StageMap, placed: PlacedTiles) -> str:
    """Return the overlaps of neighbours as shares of a tile's side."""
    moved = np.abs(found.moved_px) * placed.factor / placed.tiles.shape_px
    shares = 1.0 - moved.max(axis=1)
    return (
        f"overlap {shares.min():.3f} to {shares.max():.3f} by {found.matched} of {found.compared} "
        "overlaps"
    )
