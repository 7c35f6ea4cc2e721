"""Tiles of every cycle of every sample of a raw folder, and pieces of tissue that lie apart."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from tilewright.config.tables import cycles_text
from tilewright.errors import RawDataError
from tilewright.init.metadata import Metadata
from tilewright.init.place_tiles import (
    GridOptions,
    PlacedTiles,
    place_tiles,
    tile_set,
    with_metadata,
)
from tilewright.init.recognise import RawFolder
from tilewright.io.formats.common import RawPlane

#: Sides of a tile between pieces of tissue that become samples of their own, and most of those.
_APART, _MOST_PIECES = 3, 8


@dataclass
class PlacedSample:
    """A sample with the rows of its tiles.

    Attributes
    ----------
    findings, warnings, unknown : list of str
        A sentence each, with the cycles that it is of.
    """

    name: str
    raw_dir: Path
    region: str | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def place_samples(
    recognised: RawFolder,
    metadata: Metadata,
    samples: Sequence[tuple[str, Path, str | None]],
    options: GridOptions,
    *,
    split: bool = True,
) -> list[PlacedSample]:
    """Return the samples with the places of their tiles; of tissue in pieces one for each piece.

    Parameters
    ----------
    samples : sequence of (str, Path, str or None)
        Name, raw folder and region of each.
    options : GridOptions
        Of the command line.
    split : bool
        Whether pieces of tissue that lie apart become samples of their own.
    """
    result = []
    reference = {m.cycle: m.channel for m in metadata.markers if m.reference}
    for name, raw_dir, region in samples:
        of_sample = [p for p in recognised.planes if region in (None, p.region)]
        placed = place_cycles(of_sample, reference, metadata, options)
        names = [one for one, *source in samples if source == [raw_dir, region]]
        if names[0] == name:
            result += split_samples(names, raw_dir, placed, region, split=split)
    return result


def split_samples(
    names: Sequence[str],
    raw_dir: Path,
    placed: Mapping[int, PlacedTiles],
    region: str | None = None,
    *,
    split: bool = False,
) -> list[PlacedSample]:
    """Return the rows of one raw folder and region, of tissue in pieces one sample for each piece.

    Parameters
    ----------
    names : sequence of str
        Of the samples that there are; several are pieces already.
    split : bool
        Whether pieces of one sample become samples of their own.
    """
    pieces = _pieces(placed) if split or len(names) > 1 else [None]
    warnings = []
    if len(pieces) > 1 and len(names) == 1:
        name, names = names[0], [f"{names[0]}_{n}" for n in range(1, len(pieces) + 1)]
        warnings.append(
            f"{name}: its tiles are {len(pieces)} pieces far apart, written as samples "
            f"{', '.join(names)}; for one image give them one name in the tables of samples and "
            "tiles"
        )
    if len(names) != len(pieces):
        raise RawDataError(
            f"{raw_dir}: the samples {', '.join(names)} share its tiles, which are "
            f"{len(pieces)} pieces of tissue; write their rows of the tiles table yourself"
        )
    samples = [PlacedSample(name, raw_dir, region) for name in names]
    add_sentences(samples[0], placed)
    samples[0].warnings += warnings
    for sample, of_piece in zip(samples, pieces, strict=True):
        for cycle, tiles in placed.items():
            sample.rows += [
                {**row, "sample": sample.name, "cycle": cycle, "file": below(raw_dir, row)}
                for row in tiles.rows
                if of_piece is None or row["tile"] in of_piece[cycle]
            ]
    return samples


def place_cycles(
    planes: Sequence[RawPlane],
    reference: Mapping[int, str],
    metadata: Metadata,
    options: GridOptions,
    earlier: Mapping[str, tuple[float, float]] | None = None,
) -> dict[int, PlacedTiles]:
    """Return the tiles of every cycle of one sample.

    Parameters
    ----------
    planes : sequence of RawPlane
        Of one sample.
    reference : mapping of int to str
        The channel of each cycle in which overlaps are compared; the first where there is none.
    earlier : mapping, optional
        Positions of another cycle in px by tile.
    """
    by_cycle: dict[int, list[RawPlane]] = defaultdict(list)
    for plane in planes:
        by_cycle[plane.cycle].append(plane)
    placed: dict[int, PlacedTiles] = {}
    # The reference cycle first: the others are likely to lie as it does.
    for cycle in sorted(by_cycle, key=lambda c: (c != metadata.reference_cycle, c)):
        of_cycle = by_cycle[cycle]
        channel = reference.get(cycle, min(plane.channel for plane in of_cycle))
        tiles = tile_set(of_cycle, channel)
        stated = with_metadata(options, metadata.codex, tiles.shape_px[1])
        placed[cycle] = place_tiles(tiles, stated, metadata.pixel_um, earlier)
        if not placed[cycle].unknown and earlier is None:
            earlier = placed[cycle].yx_px
    return dict(sorted(placed.items()))


def below(raw_dir: Path, row: Mapping[str, Any]) -> str:
    """Return the path of a row's file below the raw folder, "" where no table can hold it."""
    path = Path(row["file"])
    name = str(path.relative_to(raw_dir) if path.is_relative_to(raw_dir) else path)
    return name if name.isprintable() else ""


def add_sentences(sample: PlacedSample, placed: Mapping[int, PlacedTiles]) -> None:
    """Add what was found of each cycle, equal sentences once with all their cycles."""
    for kind in ("findings", "warnings", "unknown"):
        cycles: dict[str, list[int]] = defaultdict(list)
        for cycle, tiles in placed.items():
            for sentence in getattr(tiles, kind):
                cycles[sentence].append(cycle)
        where = "" if sample.region is None else f"{sample.name}, "
        getattr(sample, kind).extend(
            f"{where}{cycles_text(of_sentence)}: {sentence}"
            for sentence, of_sentence in cycles.items()
        )


def _pieces(placed: Mapping[int, PlacedTiles]) -> list[dict[int, set[str]] | None]:
    """Return the tiles of each piece of tissue by cycle; one None where there is one piece.

    Every cycle must have the same number of pieces of two tiles or more: lone tiles are fields
    that were searched for.
    """
    groups = {cycle: _groups(tiles.yx_px, tiles.shape_px) for cycle, tiles in placed.items()}
    counts = {len(of_cycle) for of_cycle in groups.values()}
    sizes = [len(group) for of_cycle in groups.values() for group in of_cycle]
    if len(counts) > 1 or not 1 < max(counts) <= _MOST_PIECES or min(sizes) < 2:
        return [None]
    return [
        {cycle: set(of_cycle[k]) for cycle, of_cycle in groups.items()} for k in range(max(counts))
    ]


def _groups(yx_px: Mapping[str, tuple[float, float]], side: tuple[int, int]) -> list[list[str]]:
    """Return the tiles of groups that lie apart, ordered by their first tile's position."""
    names, at = list(yx_px), np.array(list(yx_px.values()))
    gap = np.abs(at[:, None] - at[None, :]) / np.maximum(side, 1)
    near = (gap <= 1 + _APART).all(axis=2) | np.isnan(gap).any(axis=2)
    count, label = connected_components(coo_matrix(near), directed=False)
    groups = [[k for k in range(len(names)) if label[k] == n] for n in range(count)]
    groups.sort(key=lambda group: tuple(np.round(at[group].min(axis=0), 3)))
    return [[names[k] for k in group] for group in groups]
