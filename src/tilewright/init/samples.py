"""Samples of a raw folder, with the rows of their tiles; pieces of tissue that lie apart."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from tilewright.config.tables import Channel, cycles_text, is_formula
from tilewright.init.place_tiles import Key, of_files
from tilewright.init.tile_set import GridOptions, PlacedTiles, Places, TileSet, tile_set
from tilewright.io.formats.common import RawPlane, clean_token
from tilewright.runtime.text import few
from tilewright.stages.tile_positions.stage_check import lone_text, lone_tiles

#: Sides of a tile between pieces of tissue that become samples of their own, and most of those.
_APART, _MOST_PIECES = 3, 8
#: Part of a side within which two tiles are of one position.
_SAME_PLACE = 0.05


@dataclass
class Sample:
    """A sample and the rows of its tiles."""

    name: str
    raw_dir: Path
    region: str | None
    """As in the samples table."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Of the tiles table."""
    yx_px: list[NDArray[np.float64]] = field(default_factory=list)
    """Position (y, x) of the tile of each row, NaN where unknown."""


@dataclass
class Said:
    """Sentences on tiles, each with its cycles."""

    findings: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unknown: list[tuple[str, set[int], str]] = field(default_factory=list)
    """Region, cycles, and what is to be filled in of their rows."""


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
    first = {cycle: min(plane.channel for plane in groups[_, cycle]) for _, cycle in groups}
    return {key: tile_set(groups[key], reference.get(key[1], first[key[1]])) for key in order}


def sentences(placed: Mapping[Key, PlacedTiles]) -> Said:
    """Return what was found of all groups, equal sentences once with all their cycles."""
    said = Said()
    regions = {region for region, _ in placed}
    for kind in ("findings", "warnings", "unknown"):
        cycles: dict[tuple[str, str], set[int]] = defaultdict(set)
        for (region, cycle), tiles in placed.items():
            for sentence in getattr(tiles, kind):
                cycles[region, sentence].add(cycle)
        for (region, sentence), of_sentence in cycles.items():
            if kind == "unknown":
                said.unknown.append((region, of_sentence, sentence))
                continue
            where = f"region {region}, " * (len(regions) > 1)
            text = f"{where}{cycles_text(sorted(of_sentence))}: {sentence}"
            getattr(said, kind).append(text)
    return said


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
    """Return the positions of the tiles of groups that lie apart, the first one first."""
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
    options: GridOptions,
    known: Mapping[str, Places],
) -> None:
    """Add the rows of the tiles of one region, each tile to the sample whose tiles are nearest.

    Parameters
    ----------
    samples : sequence of Sample
        All of one raw folder and region.
    placed : mapping
        Its tiles by cycle. What is there twice, lies alone or lacks planes is added to what is
        said of it.
    known : mapping of str to ndarray of float64, shape (n, 2)
        Positions in px of tiles of each sample, in any cycle; not needed of a single one.
    """
    for cycle, tiles in sorted(placed.items()):
        left_out = _left_out(tiles, options)
        for row, at in zip(_rows(tiles, options, left_out), tiles.yx_px, strict=True):
            away = [
                0.0 if len(samples) == 1 else float(np.abs(known[one.name] - at).max(axis=1).min())
                for one in samples
            ]
            sample = samples[int(np.argmin(np.nan_to_num(away, nan=np.inf)))]
            file = _below(sample.raw_dir, row["file"])
            of_table = {"sample": sample.name, "cycle": cycle, "file": file}
            sample.rows.append({**row, **of_table})
            sample.yx_px.append(at)


def _rows(
    placed: PlacedTiles, options: GridOptions, left_out: Collection[str]
) -> list[dict[str, Any]]:
    """Return rows of the tiles table, without sample and cycle."""
    tiles = placed.tiles
    in_um = placed.source == "stage" and tiles.first[0].unit == "um"
    # Positions of the stage stay as the files give them, whatever the size of a pixel.
    written = of_files(tiles, options) if in_um else placed.yx_px
    return [
        {
            "tile": name,
            **{
                axis: _number(value, 3 if in_um else 2)
                for axis, value in zip("yx", at, strict=True)
            },
            "unit": "um" if in_um else "px",
            "source": placed.source,
            "file": min(plane.path for plane in planes),
            "use": int(name not in left_out),
        }
        for (name, planes), at in zip(tiles.planes.items(), written, strict=True)
    ]


def _left_out(placed: PlacedTiles, options: GridOptions) -> set[str]:
    """Return the tiles that are not used; what is there twice, alone or lacks planes is told."""
    tiles, names = placed.tiles, placed.tiles.names
    repeated = _repeated(placed.yx_px, min(tiles.shape_px))
    if repeated:
        pairs = ", ".join(f"{names[k]} (as {names[first]})" for k, first in repeated.items())
        placed.warnings.append(f"tiles imaged twice have use 0 in the tiles table: {pairs}")
    if lone := lone_tiles(placed.yx_px, tiles.shape_px) if all(tiles.shape_px) else []:
        placed.unknown.append(f"y, x or use: {lone_text([names[k] for k in lone])}")
    incomplete = tiles.incomplete()
    if incomplete and options.fill:
        placed.warnings.append(f"tiles lack planes and have use 0: {few(incomplete)}")
    elif incomplete:
        placed.unknown.append(
            f"use: tiles {few(incomplete)} lack planes; copy these, or set use to 0 "
            "(tilewright init --missing fill does)"
        )
    return {names[k] for k in repeated} | set(incomplete if options.fill else ())


def _repeated(nominal: Places, side: int) -> dict[int, int]:
    """Return the tiles at the position of an earlier one, with that one's number."""
    found: dict[int, int] = {}
    for k in range(1, len(nominal)):
        near = np.abs(nominal[:k] - nominal[k]).max(axis=1) < _SAME_PLACE * side
        if near.any():
            found[k] = int(np.argmax(near))
    return found


def _below(raw_dir: Path, file: str) -> str:
    """Return the path of a file below the raw folder, "" where no table can hold it."""
    path = Path(file)
    name = str(path.relative_to(raw_dir) if path.is_relative_to(raw_dir) else path)
    fits = name.isprintable() and name == name.strip() and not is_formula(name)
    return name if fits else ""


def _number(value: float, digits: int) -> str:
    text = f"{round(float(value), digits) + 0.0:.{digits}f}"
    return "" if np.isnan(value) else text.rstrip("0").rstrip(".")


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
