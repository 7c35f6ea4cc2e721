"""Samples of a raw folder, and the rows and notes of their tiles; distant pieces of tissue."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from tilewright.config.tables import Channel, cycles_text, is_formula
from tilewright.init.notes import Notes, rows_text
from tilewright.init.place_tiles import Key
from tilewright.init.tile_set import PlacedTiles, Places, TileSet, tile_set
from tilewright.io.formats.common import RawPlane, clean_token
from tilewright.runtime.text import few

#: Sides of a tile between pieces of tissue that become samples of their own, and most of those.
_APART, _MOST_PIECES = 3, 8


def tile_sets(
    planes: Sequence[RawPlane], markers: Sequence[Channel], reference_cycle: int
) -> dict[Key, TileSet]:
    """Return the tiles of each region and cycle, those of the reference cycle first.

    Overlaps are compared in the reference channel of each cycle, in the first where none is known.
    """
    reference = {m.cycle: m.channel for m in reversed(markers) if m.reference}
    groups: dict[Key, list[RawPlane]] = defaultdict(list)
    for plane in planes:
        groups[plane.region, plane.cycle].append(plane)
    order = sorted(groups, key=lambda key: (key[1] != reference_cycle, key[1], key[0]))
    first = {key: min(plane.channel for plane in groups[key]) for key in order}
    return {key: tile_set(groups[key], reference.get(key[1], first[key])) for key in order}


def notes_of_tiles(
    placed: Mapping[Key, PlacedTiles], rows: Sequence[Mapping[str, Any]] = ()
) -> Notes:
    """Return what was found of the tiles of all cycles, equal sentences once with their cycles.

    What is to be filled in names the ``rows`` without a position, where they are the whole table.
    """
    notes = Notes()
    several = len({region for region, _ in placed}) > 1
    for kind in ("findings", "warnings", "unknown"):
        keys: dict[str, dict[Key, None]] = defaultdict(dict)
        for key, tiles in sorted(placed.items()):
            for sentence in getattr(tiles.notes, kind):
                keys[sentence][key] = None
        for sentence, found in keys.items():
            cycles = {cycle for _, cycle in found}
            where = cycles_text(sorted(cycles))
            if several:
                where = f"region {few(dict.fromkeys(region for region, _ in found))}, {where}"
            if kind == "unknown":
                empty = [
                    n for n, row in enumerate(rows, 2) if not row["y"] and row["cycle"] in cycles
                ]
                where = f"{rows_text(empty)} ({where})" if empty else where
                where = f"tiles.csv, {where}"
            getattr(notes, kind).append(f"{where}: {sentence}")
    return notes


def split_pieces(
    name: str, placed: Mapping[int, PlacedTiles], reference_cycle: int
) -> dict[str, Places]:
    """Return positions in the reference cycle by names of pieces of tissue; none of a whole one."""
    groups = {cycle: _groups(tiles) for cycle, tiles in placed.items()}
    counts = {len(of_cycle) for of_cycle in groups.values()}
    sizes = [len(group) for of_cycle in groups.values() for group in of_cycle]
    # Every cycle has as many pieces; lone tiles are fields that were searched for.
    if len(counts) != 1 or not 1 < max(counts) <= _MOST_PIECES or min(sizes) < 2:
        return {}
    pieces = groups[reference_cycle if reference_cycle in groups else min(groups)]
    return {f"{name}_{n}": places for n, places in enumerate(pieces, 1)}


def _groups(placed: PlacedTiles) -> list[Places]:
    """Return the positions of the tiles of distant groups, the first one first."""
    at = placed.yx_px
    if not placed.known:
        return []
    gap = np.abs(at[:, None] - at[None, :]) / np.maximum(placed.tiles.shape_px, 1)
    near = coo_matrix(np.asarray((gap <= 1 + _APART).all(axis=2), np.int8))
    count, label = connected_components(near, directed=False)
    groups = [at[label == n] for n in range(count)]
    return sorted(groups, key=lambda group: tuple(np.round(group.min(axis=0), 3)))


def tile_rows(
    sample: str,
    raw_dir: Path,
    placed: Mapping[int, PlacedTiles],
    pieces: Mapping[str, Places] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of the tiles table of one sample, its tiles by cycle.

    Of a sample in ``pieces`` (:func:`split_pieces`) each tile is one of the nearest.
    """
    rows = []
    for cycle, tiles in sorted(placed.items()):
        unit, written = ("px", tiles.yx_px) if tiles.yx_um is None else ("um", tiles.yx_um)
        for name, at_px, (y, x) in zip(tiles.tiles.names, tiles.yx_px, written, strict=True):
            if pieces:
                away = {one: np.abs(at - at_px).max(axis=1).min() for one, at in pieces.items()}
                sample = min(away, key=away.__getitem__)
            file = min(plane.path for plane in tiles.tiles.planes[name])
            rows.append(
                {
                    **{"sample": sample, "cycle": cycle, "tile": name},
                    **{"y": _number(y), "x": _number(x), "unit": unit, "source": tiles.source},
                    **{"file": _below(raw_dir, file), "use": int(name not in tiles.repeated)},
                }
            )
    return rows


def _below(raw_dir: Path, file: str) -> str:
    """Return the path of a file below the raw folder, "" where no table can hold it."""
    path = Path(file)
    name = str(path.relative_to(raw_dir) if path.is_relative_to(raw_dir) else path)
    fits = name.isprintable() and name == name.strip() and not is_formula(name)
    return name if fits else ""


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{round(value, 3) + 0.0:.3f}".rstrip("0").rstrip(".")


def region_samples(raw_dir: Path, regions: Collection[str]) -> dict[str, str | None]:
    """Return the region of each sample by its name, which is the raw folder's; None of one alone.

    >>> region_samples(Path("/tonsil/raw"), ["1"]), region_samples(Path("/tonsil"), ["A2", "A1"])
    ({'tonsil': None}, {'tonsil_A1': 'A1', 'tonsil_A2': 'A2'})
    """
    folder = raw_dir
    while folder.name.lower() in ("raw", "data") and folder.parent.name:
        folder = folder.parent
    name = clean_token(folder.name) or "sample"
    if len(regions) == 1:
        return {name: None}
    ordered = sorted(regions, key=lambda region: (len(region), region))
    return {f"{name}_{clean_token(region)}": region for region in ordered}
