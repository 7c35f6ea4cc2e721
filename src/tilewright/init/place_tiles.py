"""Where tiles lie: by metadata, or as overlaps show it in every cycle alike; else it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.init.scan_order import places_of_numbers
from tilewright.init.tile_set import GridOptions, PlacedTiles, Places, TileSet
from tilewright.kernels.tile_positions.stage_map import StageMap, fit_stage_map
from tilewright.stages.tile_positions.stage_check import (
    describe,
    middle_tiles,
    orientation,
    overlaps_problem,
    searched_px,
)

#: Region and cycle.
Key = tuple[str, int]
#: Part of a side, and standard errors, by which neighbours must be off their positions before a map
#: replaces these: a stage that misses each place by 3 % of a side is off by two (60 made sets).
_OFF, _BEYOND_SCATTER = 0.02, 5.0
#: Part of a side within which the maps of cycles are the same.
_ALIKE = 0.03
#: Share of overlaps that must agree with an order that is stated (a stage's jitter of 3 % leaves
#: half), with a map that replaces positions or a step that nobody states (one of 4 of 7 was off by
#: 5 px of 224), and with tiles that lie as those of another cycle.
_HALF, _MOST, _NEARLY_ALL = 0.5, 0.6, 0.9
#: Overlap where none is stated, until it is measured.
_GUESS = 0.1


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
    found: dict[Key, StageMap | None] = {}
    problems: dict[Key, str] = {}
    for key, tiles in groups.items():
        stated = options.otherwise(codex, tiles.shape_px[1])
        placed[key] = _nominal(tiles, stated, pixel_um, known=key in earlier)
        if key not in earlier:
            found[key], problems[key] = _fit(placed[key]), _problem(placed[key])
        tiles.forget()
    new = {key: one for key, one in placed.items() if key not in earlier}
    _measure_steps({key: one for key, one in new.items() if one.guessed}, found)
    facts = {key: one for key, one in new.items() if not one.guessed and one.known}
    matrix = _of_table(placed, earlier) if earlier else _common_map(facts, found)
    for one in facts.values():
        if matrix is not None and len(one.yx_px) > 1:
            one.yx_px, one.source = one.yx_px @ matrix.T, "pixels"
    for key, one in placed.items():
        if key in earlier:
            nan = (np.nan, np.nan)
            one.yx_px = np.array([earlier[key].get(name, nan) for name in one.tiles.names])
    for key, one in new.items():
        if not one.known and one.tiles.first[0].y is None:
            _borrow(key, one, placed)
        elif problem := _problem(one) if one.source == "pixels" else problems[key]:
            one.unknown.append(f"y and x: {problem}")
        one.tiles.forget()
    return placed


def _nominal(
    tiles: TileSet, stated: GridOptions, pixel_um: float | None, *, known: bool
) -> PlacedTiles:
    """Return positions by the files' metadata, rows and columns, or the order of numbers."""
    plane, nan = tiles.first[0], np.full((len(tiles.names), 2), np.nan)
    if plane.y is not None:
        scale = 1.0 if plane.unit == "px" else pixel_um or np.nan
        return PlacedTiles(tiles, of_files(tiles, stated) / scale, "stage")
    placed = PlacedTiles(tiles, nan, "grid", guessed=stated.overlap is None)
    if known:
        return placed
    if len(tiles.names) == 1:
        placed.yx_px, placed.guessed = np.zeros((1, 2)), False
        return placed
    if not all(tiles.shape_px):
        placed.unknown.append(f"y and x: {plane.path} cannot be read, so nothing shows them")
        return placed
    if isinstance(tiles.images, str):
        placed.warnings.append(f"overlaps are not compared: {tiles.images}")
    if plane.tile is None:
        grid = np.array([(p.row, p.col) for p in tiles.first], np.float64)
    else:
        grid = places_of_numbers(placed, stated)
    step = (1.0 - (stated.overlap or _GUESS)) * np.array(tiles.shape_px) * stated.signs
    placed.yx_px = (grid - grid.min(axis=0)) * step
    return placed


def of_files(tiles: TileSet, stated: GridOptions) -> Places:
    """Return the positions (n, 2) in the files, in their unit."""
    return np.array([(p.y or 0.0, p.x or 0.0) for p in tiles.first]) * stated.signs


def _fit(placed: PlacedTiles) -> StageMap | None:
    """Return the map from positions to what overlaps show, None where they show none."""
    images = placed.tiles.images if placed.known and len(placed.yx_px) > 1 else ""
    if isinstance(images, str):
        return None
    index = middle_tiles(placed.yx_px)
    found = fit_stage_map(images[index], placed.yx_px[index] / placed.factor)
    return found if found and found.sure else None


def _measure_steps(
    guessed: Mapping[Key, PlacedTiles], found: Mapping[Key, StageMap | None]
) -> None:
    """Write positions of grids whose overlap nobody states as overlaps show them."""
    measured = {
        key: one
        for key in guessed
        if (one := found[key]) and not one.silent_axes and one.matched >= _MOST * one.compared
    }
    alike = _alike([*measured.values()], guessed)
    for key, placed in guessed.items():
        if not placed.known:
            continue
        best = measured.get(key)
        if best:
            placed.findings.append(_overlap_text(best, placed))
            if turned := orientation(best.matrix):
                placed.warnings.append(f"rows and columns lie so that {turned}, as overlaps show")
        matrix = best.matrix if best else alike
        if matrix is None:
            placed.unknown.append(
                "y and x: the overlap of tiles is not stated, and overlaps show too little to "
                "measure it; give --overlap to tilewright init"
            )
            placed.yx_px = np.full_like(placed.yx_px, np.nan)
        else:
            placed.yx_px, placed.source = placed.yx_px @ matrix.T, "pixels"


def _alike(
    found: Sequence[StageMap], placed: Mapping[Key, PlacedTiles]
) -> NDArray[np.float64] | None:
    """Return the middle of maps, None where they are not the same within a part of a side."""
    if not found:
        return None
    matrices = np.array([one.matrix for one in found])
    middle = np.median(matrices, axis=0)
    steps = np.array([np.abs((one.matrix - middle) @ one.step_px.T).max() for one in found])
    first = next(iter(placed.values()))
    side = min(first.tiles.shape_px) / first.factor
    return middle if steps.max() <= _ALIKE * side else None


def _common_map(
    facts: Mapping[Key, PlacedTiles], found: Mapping[Key, StageMap | None]
) -> NDArray[np.float64] | None:
    """Return the map that replaces positions: the same in all cycles, far beyond its scatter."""
    far, maps = [], []
    for key, placed in facts.items():
        best = found[key]
        if best is None:
            if len(placed.yx_px) > 1:
                placed.warnings.append(
                    "positions are not confirmed, as overlaps show too little structure"
                )
            continue
        numbered = placed.tiles.first[0].y is None
        if numbered and best.matched < _HALF * best.compared:
            placed.unknown.append(
                f"y and x: {best.matched} of {best.compared} overlaps agree with the rows, columns "
                "and order that are stated; numbers behind a lost tile may be one too low: correct "
                "them, or write y and x"
            )
            placed.yx_px = np.full_like(placed.yx_px, np.nan)
            continue
        side = min(placed.tiles.shape_px)
        off_px = best.largest_error_px * placed.factor
        scatter_px = _BEYOND_SCATTER * best.error_px * placed.factor
        maps.append(best)
        far.append(off_px > max(_OFF * side, scatter_px))
        if not far[-1]:
            placed.findings.append(
                f"overlaps confirm the positions ({best.matched} of {best.compared}), "
                f"{_overlap_text(best, placed)}"
            )
    if not any(far):
        return None
    agreed = sum(one.matched for one in maps) >= _MOST * sum(one.compared for one in maps)
    matrix = _alike(maps, facts) if all(far) and agreed else None
    then = "the measured ones are written" if matrix is not None else (
        "not so in all cycles, so positions stay as they are"
    )  # fmt: skip
    for key, placed in facts.items():
        if best := found[key]:
            text = f"{describe(best, placed.factor)} ({_overlap_text(best, placed)}); {then}"
            placed.warnings.append(text)
    return matrix


def _of_table(
    placed: Mapping[Key, PlacedTiles], earlier: Mapping[Key, Mapping[str, tuple[float, float]]]
) -> NDArray[np.float64] | None:
    """Return the map from positions in the files to those in the tiles table."""
    for key, at in earlier.items():
        one = placed.get(key)
        if one is None or one.source != "stage" or not one.known:
            continue
        there = [k for k, name in enumerate(one.tiles.names) if name in at]
        moved = np.array([at[one.tiles.names[k]] for k in there])
        places = one.yx_px[there]
        if len(there) < 3:
            continue
        centred = places - places.mean(axis=0)
        matrix, _, rank, _ = np.linalg.lstsq(centred, moved - moved.mean(axis=0), rcond=None)
        if rank == 2:
            return None if np.allclose(matrix, np.eye(2), atol=1e-4) else np.asarray(matrix.T)
    return None


def _borrow(key: Key, placed: PlacedTiles, others: Mapping[Key, PlacedTiles]) -> None:
    """Place numbered tiles as those of another cycle or region, unless overlaps contradict."""
    for other_key, other in others.items():
        at = dict(zip(other.tiles.names, other.yx_px, strict=True))
        if other_key == key or not other.known or not set(placed.tiles.names) <= set(at):
            continue
        before, placed.yx_px = placed.yx_px, np.array([at[name] for name in placed.tiles.names])
        found = _fit(placed)
        same = len(at) == len(placed.tiles.names) and not _problem(placed)
        confirmed = (
            found and not found.contradicting and found.matched >= _NEARLY_ALL * found.compared
        )
        if same or confirmed:
            where = f"cycle {other_key[1]}" if other_key[1] != key[1] else "another region"
            text = f"tiles lie as those of {where}"
            if found and confirmed:
                placed.findings.append(f"{text} ({found.matched} of {found.compared} overlaps)")
            else:
                placed.warnings.append(f"{text}, as far as overlaps show")
            placed.source = "pixels"
            placed.unknown.clear()
            return
        placed.yx_px = before


def _problem(placed: PlacedTiles) -> str:
    """Return how overlaps contradict the positions."""
    tiles = placed.tiles
    if isinstance(tiles.images, str) or len(placed.yx_px) < 2 or not placed.known:
        return ""
    index = middle_tiles(placed.yx_px)
    names = [tiles.names[k] for k in index]
    searched = searched_px(tiles.shape_px)
    return overlaps_problem(
        tiles.images[index], placed.yx_px[index], names, tiles.shape_px, searched
    )


def _overlap_text(found: StageMap, placed: PlacedTiles) -> str:
    """Return the overlaps of neighbours along each axis of the image."""
    shares = {}
    for moved in np.abs(found.moved_px) * placed.factor:
        axis = int(np.argmax(moved / placed.tiles.shape_px))
        shares["yx"[axis]] = 1.0 - float(moved[axis]) / placed.tiles.shape_px[axis]
    texts = [f"{shares[axis]:.3f} along {axis}" for axis in "yx" if axis in shares]
    return f"overlap {' and '.join(texts)} by {found.matched} of {found.compared} overlaps"
