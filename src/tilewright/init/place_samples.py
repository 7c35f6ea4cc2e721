"""Tiles of every cycle of every sample of a raw folder, and pieces of tissue that lie apart."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from tilewright.config.tables import cycles_text, is_formula
from tilewright.errors import RawDataError
from tilewright.init.metadata import Metadata
from tilewright.init.place_tiles import place_tiles, with_metadata
from tilewright.init.recognise import RawFolder
from tilewright.init.tile_order import GridOptions, PlacedTiles
from tilewright.init.tile_set import tile_set
from tilewright.io.formats.common import RawPlane

#: Positions (n, 2) of tiles in px.
Places = NDArray[np.float64]
#: Sides of a tile between pieces of tissue that become samples of their own, and most of those.
_APART, _MOST_PIECES = 3, 8


@dataclass
class PlacedSample:
    """A sample with the rows of its tiles."""

    name: str
    raw_dir: Path
    region: str | None
    """As in the samples table."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Of the tiles table."""
    findings: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """A sentence each, with the cycles that it is of."""


def place_samples(
    recognised: RawFolder,
    metadata: Metadata,
    samples: Sequence[tuple[str, Path, str | None]],
    options: GridOptions,
    known: Mapping[str, Places],
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
    known : mapping
        As for :func:`share_tiles`.
    split : bool
        Whether pieces of tissue that lie apart become samples of their own.
    """
    reference = {m.cycle: m.channel for m in metadata.markers if m.reference}
    groups: dict[tuple[Path, str | None], list[str]] = defaultdict(list)
    for name, raw_dir, region in samples:
        groups[raw_dir, region].append(name)

    def place(region: str | None, name: str, earlier: PlacedTiles) -> dict[int, PlacedTiles]:
        planes = [plane for plane in recognised.planes if region in (None, plane.region)]
        return place_cycles(planes, reference, metadata, options, earlier)

    placed = {at: place(at[1], names[0], PlacedTiles()) for at, names in groups.items()}
    whole = [of_cycles for of_cycles in placed.values() if of_cycles and not _unknown(of_cycles)]
    result = []
    for (raw_dir, region), names in groups.items():
        of_cycles = placed[raw_dir, region]
        if _unknown(of_cycles) and whole:
            # What one sample of a scan shows of the order of tiles holds for all.
            of_cycles = place(region, names[0], next(iter(whole[0].values())))
        one = split and len(names) == 1
        pieces = _pieces(names[0], of_cycles, metadata.reference_cycle) if one else {}
        of_group = share_tiles([*pieces] or names, raw_dir, region, of_cycles, pieces or known)
        if pieces:
            of_group[0].warnings.append(
                f"{names[0]}: its tiles are {len(pieces)} pieces far apart, written as samples "
                f"{', '.join(pieces)}; for one image give them one name in the tables of samples "
                "and tiles"
            )
        result += of_group
    return result


def _unknown(placed: Mapping[int, PlacedTiles]) -> bool:
    return any(tiles.unknown for tiles in placed.values())


def share_tiles(
    names: Sequence[str],
    raw_dir: Path,
    region: str | None,
    placed: Mapping[int, PlacedTiles],
    known: Mapping[str, Places],
) -> list[PlacedSample]:
    """Return samples of one raw folder and region, each tile in the one whose tiles are nearest.

    Parameters
    ----------
    known : mapping of str to ndarray of float64, shape (n, 2)
        Positions in px of tiles of each sample, in any cycle; not needed of a single one.

    Raises
    ------
    RawDataError
        There are several samples, and none are known of one.
    """
    samples = [PlacedSample(name, raw_dir, region) for name in names]
    _add_sentences(samples[0], placed)
    if unknown := [name for name in names if len(names) > 1 and not len(known.get(name, ()))]:
        raise RawDataError(
            f"{raw_dir}: the samples {', '.join(names)} share its tiles, and the tiles table has "
            f"none of '{unknown[0]}'; write its rows of one cycle"
        )
    for cycle, tiles in placed.items():
        for row in tiles.rows:
            at = np.array(tiles.yx_px[row["tile"]])
            away = [
                0.0 if len(names) == 1 else float(np.abs(known[name] - at).max(axis=1).min())
                for name in names
            ]
            nearest = samples[int(np.argmin(np.nan_to_num(away, nan=np.inf)))]
            nearest.rows.append(
                {**row, "sample": nearest.name, "cycle": cycle, "file": _below(raw_dir, row)}
            )
    return samples


def place_cycles(
    planes: Sequence[RawPlane],
    reference: Mapping[int, str],
    metadata: Metadata,
    options: GridOptions,
    earlier: PlacedTiles,
) -> dict[int, PlacedTiles]:
    """Return the tiles of every cycle of one sample.

    Overlaps are compared in the ``reference`` channel of each cycle, in the first where there is
    none. ``earlier`` is of another cycle; empty where there is none.
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
        if not placed[cycle].unknown and not earlier.yx_px:
            earlier = placed[cycle]
    return dict(sorted(placed.items()))


def _below(raw_dir: Path, row: Mapping[str, Any]) -> str:
    """Return the path of a row's file below the raw folder, "" where no table can hold it."""
    path = Path(row["file"])
    name = str(path.relative_to(raw_dir) if path.is_relative_to(raw_dir) else path)
    fits = name.isprintable() and name == name.strip() and not is_formula(name)
    return name if fits else ""


def _add_sentences(sample: PlacedSample, placed: Mapping[int, PlacedTiles]) -> None:
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


def _pieces(
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


def _groups(tiles: PlacedTiles) -> list[Places]:
    """Return the positions of the tiles in use of groups that lie apart, the first one first."""
    at = np.array([tiles.yx_px[row["tile"]] for row in tiles.rows if row["use"]])
    if not len(at) or np.isnan(at).any():
        return []
    gap = np.abs(at[:, None] - at[None, :]) / np.maximum(tiles.shape_px, 1)
    near = coo_matrix((gap <= 1 + _APART).all(axis=2))
    count, label = connected_components(near, directed=False)
    groups = [at[label == n] for n in range(count)]
    return sorted(groups, key=lambda group: tuple(np.round(group.min(axis=0), 3)))
