"""Samples of a raw folder, with the rows of their tiles; distant pieces of tissue."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
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
from tilewright.stages.tile_positions.stage_check import lone_text, lone_tiles

#: Sides of a tile between pieces of tissue that become samples of their own, and most of those.
_APART, _MOST_PIECES = 3, 8
#: Part of a side within which two tiles are of one position.
_SAME_PLACE = 0.05
#: Share of tiles up to which they were imaged twice; more are another cycle.
_REPEATED = 0.25


@dataclass
class Sample:
    """A sample and the rows of its tiles.

    Attributes
    ----------
    region : str | None
        As in the samples table.
    rows : list[dict[str, Any]]
        Of the tiles table.
    """

    name: str
    raw_dir: Path
    region: str | None
    rows: list[dict[str, Any]] = field(default_factory=list)


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
    first = {cycle: min(plane.channel for plane in groups[at, cycle]) for at, cycle in groups}
    return {key: tile_set(groups[key], reference.get(key[1], first[key[1]])) for key in order}


def notes_of_tiles(
    placed: Mapping[Key, PlacedTiles], samples: Sequence[Sample], first_row: int = 2
) -> Notes:
    """Return what was found of the tiles of all cycles, equal sentences once with their cycles.

    The rows of the samples are in the tiles table from its row ``first_row`` on; what has no row is
    not to be filled in.
    """
    notes = Notes()
    regions = {region for region, _ in placed}
    rows = [
        ((sample.region or min(regions), row["cycle"]), row["tile"])
        for sample in samples
        for row in sample.rows
    ]
    for kind in ("findings", "warnings", "unknown"):
        keys: dict[str, dict[Key, None]] = defaultdict(dict)
        for key, tiles in sorted(placed.items()):
            for sentence in dict.fromkeys(getattr(tiles.notes, kind)):
                keys[sentence][key] = None
        for sentence, found in keys.items():
            where = cycles_text(sorted({cycle for _, cycle in found}))
            if len(regions) > 1:
                where = f"region {few(dict.fromkeys(region for region, _ in found))}, {where}"
            lines = [
                n for n, (key, tile) in enumerate(rows, first_row)
                if key in found and tile in placed[key].asked.get(sentence, [tile])
            ]  # fmt: skip
            if kind != "unknown":
                getattr(notes, kind).append(f"{where}: {sentence}")
            elif lines:
                notes.unknown.append(f"tiles.csv, {rows_text(lines)} ({where}): {sentence}")
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


def add_rows_of(
    samples: Sequence[Sample],
    placed: Mapping[int, PlacedTiles],
    known: Mapping[str, Places],
) -> None:
    """Add the rows of the tiles of one region, each tile to the sample whose tiles are nearest.

    Parameters
    ----------
    samples : sequence of Sample
        All of one raw folder and region.
    placed : mapping
        Its tiles by cycle. Tiles imaged twice, alone or without all planes are added to its
        notes.
    known : mapping of str to ndarray of float64, shape (n, 2)
        Positions in px of tiles of each sample, in any cycle; not needed of a single one.
    """
    for cycle, tiles in sorted(placed.items()):
        repeated = _repeated(tiles)
        unit, written = ("px", tiles.yx_px) if tiles.yx_um is None else ("um", tiles.yx_um)
        for name, at_px, (y, x) in zip(tiles.tiles.names, tiles.yx_px, written, strict=True):
            sample = samples[0]
            if len(samples) > 1:
                away = [np.abs(known[one.name] - at_px).max(axis=1).min() for one in samples]
                sample = samples[int(np.argmin(away))]
            file = min(plane.path for plane in tiles.tiles.planes[name])
            sample.rows.append(
                {
                    **{"sample": sample.name, "cycle": cycle, "tile": name},
                    **{"y": _number(y), "x": _number(x), "unit": unit, "source": tiles.source},
                    **{"file": _below(sample.raw_dir, file), "use": int(name not in repeated)},
                }
            )


def _repeated(placed: PlacedTiles) -> set[str]:
    """Return the tiles that were imaged twice; those that lie alone or lack planes are asked."""
    tiles, names, notes = placed.tiles, placed.tiles.names, placed.notes
    near = np.abs(placed.yx_px[:, None] - placed.yx_px[None, :]).max(axis=2)
    again = near < _SAME_PLACE * min(tiles.shape_px)
    first = {k: int(np.argmax(again[k, :k])) for k in range(len(names)) if again[k, :k].any()}
    pairs = few(f"{names[k]} (as {names[earlier]})" for k, earlier in first.items())
    if len(first) > max(1, _REPEATED * len(names)):
        placed.ask(
            f"y and x: {len(first)} of {len(names)} tiles lie where others do, {pairs}: if they "
            "are of another cycle, say by --pattern how files are named; else set their use to 0"
        )
        first = {}
    elif first:
        notes.warnings.append(f"tiles imaged twice have use 0 in the tiles table: {pairs}")
    if lone := lone_tiles(placed.yx_px, tiles.shape_px) if all(tiles.shape_px) else []:
        alone = [names[k] for k in lone]
        placed.ask(f"y, x or use: {lone_text(alone)}", alone)
    if incomplete := tiles.incomplete():
        placed.ask(
            f"use: tiles {few(incomplete)} lack planes; copy these, or set use to 0", incomplete
        )
    return {names[k] for k in first}


def _below(raw_dir: Path, file: str) -> str:
    """Return the path of a file below the raw folder, "" where no table can hold it."""
    path = Path(file)
    name = str(path.relative_to(raw_dir) if path.is_relative_to(raw_dir) else path)
    fits = name.isprintable() and name == name.strip() and not is_formula(name)
    return name if fits else ""


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{round(value, 3) + 0.0:.3f}".rstrip("0").rstrip(".")


def region_samples(raw_dir: Path, regions: Collection[str]) -> list[Sample]:
    """Return a sample for each region, named by the raw folder."""
    folder = raw_dir
    while folder.name.lower() in ("raw", "data") and folder.parent.name:
        folder = folder.parent
    name = clean_token(folder.name) or "sample"
    if len(regions) == 1:
        return [Sample(name, raw_dir, None)]
    ordered = sorted(regions, key=lambda region: (len(region), region))
    return [Sample(f"{name}_{clean_token(region)}", raw_dir, region) for region in ordered]
