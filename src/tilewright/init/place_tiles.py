"""Where tiles lie: by metadata, or as overlaps show it in every cycle alike; else it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.init.tile_set import GridOptions, PlacedTiles, Places, TileSet
from tilewright.kernels.tile_positions.overlap_strips import searched_px
from tilewright.kernels.tile_positions.stage_map import StageMap, fit_stage_map
from tilewright.kernels.tile_positions.tile_layout import is_sure, rank_grids
from tilewright.kernels.tile_positions.tile_order import tile_places
from tilewright.runtime.text import few
from tilewright.stages.tile_positions.stage_check import (
    describe,
    middle_tiles,
    orientation,
    overlaps_problem,
)

#: Region and cycle.
Key = tuple[str, int]
#: Part of a side, and standard errors, by which neighbours must be off their positions before a map
#: replaces these: a stage that misses each place by 3 % of a side is off by two (60 made sets).
_OFF, _BEYOND_SCATTER = 0.02, 5.0
#: Part of a side within which the maps of cycles are the same.
_ALIKE = 0.03
#: Share of overlaps that must agree with an order that is given (a stage's jitter of 3 % leaves
#: half), with a map that replaces positions or a step that is not given (one of 4 of 7 was off by
#: 5 px of 224), and with tiles that lie as those of another cycle.
_HALF, _MOST, _NEARLY_ALL = 0.5, 0.6, 0.9
#: Overlap where none is given, until it is measured.
_GUESS = 0.1
#: Grids that a question names.
_NAMED = 3


def place_tiles(
    groups: Mapping[Key, TileSet],
    options: GridOptions,
    codex: Any,
    pixel_um: float | None,
    earlier: Mapping[Key, Mapping[str, tuple[float, float]]],
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
    earlier : mapping
        Positions (y, x) in px by tile, of groups that the tiles table has.
    """
    placed: dict[Key, PlacedTiles] = {}
    maps: dict[Key, StageMap | None] = {}
    problems: dict[Key, str] = {}
    for key, tiles in groups.items():
        grid = options.otherwise(codex, tiles.shape_px[1])
        placed[key] = _nominal(tiles, grid, pixel_um, known=key in earlier)
        if key not in earlier:
            maps[key], problems[key] = _compare(placed[key])
        tiles.forget()
    new = {key: one for key, one in placed.items() if key not in earlier}
    by_stage = all(one.source == "stage" for one in placed.values())
    fitted = [(one, maps[key]) for key, one in new.items()]
    common = _map_to_table(placed, earlier) if earlier and by_stage else _common_map(fitted)
    for key, one in new.items():
        if one.known and len(one.yx_px) > 1:
            _correct(one, maps[key], common)
    for key, at in earlier.items():
        if key in placed:
            names = placed[key].tiles.names
            placed[key].yx_px = np.array([at.get(name, (np.nan, np.nan)) for name in names])
    for key, one in new.items():
        if not one.known and one.tiles.first[0].y is None:
            _borrow(key, one, placed)
        elif problem := _compare(one)[1] if one.source == "pixels" else problems[key]:
            one.notes.unknown.append(f"y and x: {problem}")
        one.tiles.forget()
    return placed


def _nominal(
    tiles: TileSet, options: GridOptions, pixel_um: float | None, *, known: bool
) -> PlacedTiles:
    """Return positions by the files' metadata, rows and columns, or the order of numbers."""
    plane, nan = tiles.first[0], np.full((len(tiles.names), 2), np.nan)
    if plane.y is not None:
        at = np.array([(p.y or 0.0, p.x or 0.0) for p in tiles.first])
        if plane.unit == "px":
            return PlacedTiles(tiles, at, "stage")
        return PlacedTiles(tiles, at / (pixel_um or np.nan), "stage", yx_um=at)
    placed = PlacedTiles(tiles, nan, "grid", guessed=options.overlap is None)
    if known:
        return placed
    if len(tiles.names) == 1:
        placed.yx_px = np.zeros((1, 2))
        return placed
    if not all(tiles.shape_px):
        placed.ask(f"y and x: {plane.path} cannot be read, so nothing shows them")
        return placed
    if isinstance(tiles.images, str):
        placed.notes.warnings.append(f"overlaps are not compared: {tiles.images}")
    if plane.tile is None:
        grid = np.array([(p.row, p.col) for p in tiles.first], np.float64)
    else:
        grid = _places_of_numbers(placed, options)
    step = (1.0 - (options.overlap or _GUESS)) * np.array(tiles.shape_px)
    placed.yx_px = (grid - grid.min(axis=0)) * step
    return placed


def _places_of_numbers(placed: PlacedTiles, options: GridOptions) -> Places:
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
    ranked, images = [], placed.tiles.images
    if not isinstance(images, str) and (fits or not gaps):
        sizes = dict.fromkeys([*[size] * fits, *([] if gaps else sizes_of(len(at)))])
        ranked = rank_grids(images, sizes, at)
    if ranked and is_sure(ranked):
        best = ranked[0]
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
    placed.notes.unknown.append(
        f"y and x: in which order {len(numbers)} tiles lie is not sure, as {why}; give --rows, "
        "--cols, --layout and --overlap to tilewright init"
    )
    return np.full((len(numbers), 2), np.nan)


def sizes_of(count: int) -> Iterator[tuple[int, int]]:
    """Yield (rows, cols) that hold so many tiles, full grids first: a scan may be stopped."""
    sizes = {(-(-count // length), length) for length in range(1, count + 1)}
    sizes |= {(cols, rows) for rows, cols in sizes}
    yield from sorted(sizes, key=lambda size: (size[0] * size[1] - count, abs(size[0] - size[1])))


def _compare(placed: PlacedTiles) -> tuple[StageMap | None, str]:
    """Return the map from positions to what overlaps show, and how these contradict positions.

    None and "" where they show nothing.
    """
    tiles = placed.tiles
    if len(placed.yx_px) < 2 or not placed.known or isinstance(tiles.images, str):
        return None, ""
    index = middle_tiles(placed.yx_px)
    images, at, names = tiles.images[index], placed.yx_px[index], [tiles.names[k] for k in index]
    found = fit_stage_map(images, at / placed.factor)
    searched = searched_px(tiles.shape_px)
    problem = overlaps_problem(images, at, names, tiles.shape_px, searched)
    return found if found and found.sure else None, problem


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
                "y and x: the overlap of tiles is not given, and overlaps show too little to "
                f"measure it{overlap and f' ({overlap})'}; give --overlap to tilewright init"
            )
            return
    elif found is None:
        notes.warnings.append("positions are not confirmed, as overlaps show too little structure")
    elif _contradicts(placed, found):
        placed.ask(
            f"y and x: {found.matched} of {found.compared} overlaps agree with the rows, columns "
            "and order that are given; numbers behind a lost tile may be one too low: correct "
            "them, or write y and x"
        )
        return
    elif _far(placed, found):
        shown = f"{describe(found, placed.factor)} ({overlap})"
        stay = f"{shown}; not so in all cycles, so positions stay as they are"
        if matrix is not None:
            notes.warnings.append(f"{shown}; the measured ones are written")
        elif found.largest_error_px * placed.factor > searched_px(placed.tiles.shape_px):
            placed.ask(f"y and x: {stay}: correct them if these are right", placed.tiles.names)
        else:
            notes.warnings.append(stay)
    else:
        agree = f"{found.matched} of {found.compared}"
        notes.findings.append(f"overlaps confirm the positions ({agree}), {overlap}")
    if matrix is not None:
        placed.move(placed.yx_px @ matrix.T, "pixels")


def _map_to_table(
    placed: Mapping[Key, PlacedTiles], earlier: Mapping[Key, Mapping[str, tuple[float, float]]]
) -> NDArray[np.float64] | None:
    """Return the map from positions in the files to those in the tiles table; None if the same."""
    for key, at in earlier.items():
        one = placed.get(key)
        there = [k for k, name in enumerate(one.tiles.names) if name in at] if one else []
        if one is None or len(there) < 3:
            continue
        moved, places = np.array([at[one.tiles.names[k]] for k in there]), one.yx_px[there]
        if np.isnan(places).any():
            continue
        matrix, _, rank, _ = np.linalg.lstsq(
            places - places.mean(axis=0), moved - moved.mean(axis=0), rcond=None
        )
        if rank == 2:
            return None if np.allclose(matrix, np.eye(2), atol=1e-4) else np.asarray(matrix.T)
    return None


def _borrow(key: Key, placed: PlacedTiles, others: Mapping[Key, PlacedTiles]) -> None:
    """Place numbered tiles as those of another cycle or region, unless overlaps contradict."""
    for other_key, other in others.items():
        at = dict(zip(other.tiles.names, other.yx_px, strict=True))
        if other_key == key or not other.known or not set(placed.tiles.names) <= set(at):
            continue
        placed.yx_px = np.array([at[name] for name in placed.tiles.names])
        found, problem = _compare(placed)
        sure = found and not found.contradicting and _agree(found, _NEARLY_ALL)
        if sure or (len(at) == len(placed.tiles.names) and not problem):
            where = f"cycle {other_key[1]}" if other_key[1] != key[1] else "another region"
            speak = f"{found.matched} of {found.compared}" if found else "no"
            text = f"tiles lie as those of {where}, which {speak} overlaps confirm"
            (placed.notes.findings if sure else placed.notes.warnings).append(text)
            placed.source = "pixels"
            placed.notes.unknown.clear()
            return
        if len(at) > len(placed.tiles.names) and placed.notes.unknown:
            placed.notes.unknown[:] = [
                f"y and x: {len(placed.tiles.names)} tiles, where cycle {other_key[1]} has "
                f"{len(at)}, and overlaps speak for no order: if one failed and the next ones are "
                "numbered one less, name the files by the numbers of that cycle"
            ]
    placed.yx_px = np.full_like(placed.yx_px, np.nan)


def _overlap_text(found: StageMap, placed: PlacedTiles) -> str:
    """Return the overlaps of neighbours along each axis of the image."""
    shares = {}
    for moved in np.abs(found.moved_px) * placed.factor:
        axis = int(np.argmax(moved / placed.tiles.shape_px))
        shares["yx"[axis]] = 1.0 - float(moved[axis]) / placed.tiles.shape_px[axis]
    texts = [f"{shares[axis]:.3f} along {axis}" for axis in "yx" if axis in shares]
    return f"overlap {' and '.join(texts)} by {found.matched} of {found.compared} overlaps"
