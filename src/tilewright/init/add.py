"""What is new in the raw folders of an experiment: of ``tilewright init --add`` and ``follow``."""

import csv
import io
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.config.experiment import Experiment
from tilewright.config.load import read_experiment
from tilewright.config.tables import Places, cycles_text, read_tiles
from tilewright.errors import ConfigError
from tilewright.init.metadata import fill_emission, read_codex, read_metadata
from tilewright.init.notes import Notes
from tilewright.init.place_tiles import place_tiles
from tilewright.init.recognise import RawFolder
from tilewright.init.samples import notes_of_tiles, tile_rows, tile_sets
from tilewright.init.tile_set import GridOptions, PlacedTiles
from tilewright.init.write import marker_row, questions
from tilewright.io.inputs.manifest import planes_of, scan_options
from tilewright.io.inputs.placed_planes import TilePlace
from tilewright.runtime.files import write_text_atomic


def add_new(configfile: Path, options: GridOptions) -> str:
    """Add the rows that the tables of markers and tiles lack; return what was found.

    New are cycles of which neither table has a row, and tiles without a row or a position.

    Raises
    ------
    ConfigError
        The configuration or a table is wrong, or it is open of which sample a tile is.
    RawDataError
        The raw folder of a sample cannot be read.
    """
    experiment = read_experiment(configfile)
    lines, gaps = _add_markers(experiment)
    if gaps:
        again = "then the same command again, which adds the tiles of these cycles"
        return "\n".join([*lines, "fill in:", *(f"  {gap}" for gap in gaps), again])
    if lines:
        experiment = read_experiment(configfile)
    lines += add_rows(experiment, experiment.cycles, options)
    return "\n".join(lines) or "every tile of the raw folders has a row with a position"


def _add_markers(experiment: Experiment) -> tuple[list[str], list[str]]:
    """Add the channels of cycles that no table has; return what was added, and its gaps."""
    settings = experiment.settings
    path, text = Path(settings.markers), Path(settings.markers).read_bytes().decode("utf-8")
    listed = {channel.cycle for channel in experiment.table}
    if settings.tiles is not None:
        known = read_tiles(Path(settings.tiles), experiment.samples, settings.acquisition.pixel_um)
        listed |= {cycle for _, cycle in known}
    lines, gaps = list[str](), list[str]()
    for sample in experiment.samples.values():
        acquisition = experiment.acquisition_of(sample)
        planes = planes_of(sample.raw_dir, acquisition, None)
        new = {plane.cycle for plane in planes} - listed
        if not new:
            continue
        options, folder = scan_options(acquisition), sample.raw_dir.resolve()
        convention = settings.acquisition.convention
        found = read_metadata(RawFolder(convention, options, planes, [], folder))
        found = replace(found, markers=[one for one in found.markers if one.cycle in new])
        if settings.needs_psf:
            fill_emission(found)
        first_row = len(text.splitlines()) + 1  # the last line may have no end
        gaps += questions("", [], found.markers, psf=settings.needs_psf, first_row=first_row)
        text = _with_rows(text, [marker_row(marker) for marker in found.markers])
        lines.append(f"{path.name}: {len(found.markers)} rows of {cycles_text(sorted(new))}")
        listed |= new
    if lines:
        write_text_atomic(path, text)
    return lines, gaps


def add_rows(experiment: Experiment, cycles: Collection[int], options: GridOptions) -> list[str]:
    """Add rows of tiles that the tiles table lacks, in some cycles; return what was found.

    Cycles are those of the markers table. Rows without a position are filled in; all others stay
    byte for byte.
    """
    settings = experiment.settings
    if settings.tiles is None:
        raise ConfigError("stitched images have no tiles table; nothing to add")
    path = Path(settings.tiles)
    known = read_tiles(path, experiment.samples, settings.acquisition.pixel_um)
    text, lines = path.read_bytes().decode("utf-8"), list[str]()
    for names in dict.fromkeys(
        tuple(experiment.samples_of_scan(one)) for one in experiment.samples
    ):
        rows, notes = _rows_of_scan(experiment, names, {*cycles}, known, options)
        if rows:
            added = cycles_text(sorted({row["cycle"] for row in rows}))
            lines.append(f"{', '.join(names)}: {len(rows)} rows of {added}")
        text = _with_rows(_without(text, rows), rows)
        lines += notes.seen() + [f"fill in: {line}" for line in notes.unknown]
    if lines:
        write_text_atomic(path, text)
    return lines


def _rows_of_scan(
    experiment: Experiment,
    names: Sequence[str],
    cycles: set[int],
    known: Places,
    options: GridOptions,
) -> tuple[list[dict[str, Any]], Notes]:
    """Return the rows that the table lacks of the samples of one scan, and what was found."""
    settings, sample = experiment.settings, experiment.samples[names[0]]
    table: dict[int, dict[str, tuple[str, TilePlace]]] = defaultdict(dict)
    for (name, cycle), places in known.items():
        if name in names:
            table[cycle] |= {place.tile: (name, place) for place in places}
    listed = {
        (cycle, tile)
        for cycle, of_cycle in table.items()
        for tile, (_, place) in of_cycle.items()
        if place.known or not place.use
    }
    acquisition = experiment.acquisition_of(sample)
    planes = planes_of(sample.raw_dir, acquisition, experiment.reference_channels)
    new = {p.cycle for p in planes if (p.cycle, p.tile_name) not in listed} & cycles
    if not new:
        return [], Notes()
    # The reference cycle shows the map of the stage where a new one shows little.
    planes = [plane for plane in planes if plane.cycle in {*new, experiment.reference_cycle}]
    raw_dir = sample.raw_dir.resolve()
    codex, _ = read_codex(raw_dir)
    groups = tile_sets(planes, experiment.channels, experiment.reference_cycle)
    placed = place_tiles(groups, options, codex, settings.acquisition.pixel_um)
    placed = {key: one for key, one in placed.items() if key[1] in new}
    rows = []
    for (_, cycle), one in placed.items():
        _move_to_table(one, {tile: place for tile, (_, place) in table[cycle].items()})
        sample_of = _samples_of_tiles(names, cycle, one.tiles.names, table)
        rows += [
            row | {"sample": sample_of[row["tile"]]}
            for row in tile_rows("", raw_dir, {cycle: one})
            if (cycle, row["tile"]) not in listed
        ]
    return rows, notes_of_tiles(placed)


def _move_to_table(placed: PlacedTiles, table: Mapping[str, TilePlace]) -> None:
    """Place the tiles of a cycle in the frame of those that the tiles table has of it."""
    off = [
        (table[name].y_px - y, table[name].x_px - x)
        for name, (y, x) in zip(placed.tiles.names, placed.yx_px, strict=True)
        if placed.known and name in table and table[name].known
    ]
    if off:
        placed.move(placed.yx_px + np.median(off, axis=0), placed.source)


def _samples_of_tiles(
    names: Sequence[str],
    cycle: int,
    tiles: Sequence[str],
    table: Mapping[int, Mapping[str, tuple[str, TilePlace]]],
) -> dict[str, str]:
    """Return the sample of each tile of a cycle, as in a cycle of the table with the same tiles."""
    if len(names) == 1:
        return dict.fromkeys(tiles, names[0])
    for of_cycle in table.values():
        if of_cycle.keys() == {*tiles}:
            return {tile: name for tile, (name, _) in of_cycle.items()}
    raise ConfigError(
        f"the samples {', '.join(names)} share a raw folder, and the tiles table has no cycle with "
        f"the same {len(tiles)} tiles as cycle {cycle}; write its rows"
    )


def _columns(text: str) -> list[str]:
    return [cell.strip().lstrip("\ufeff") for cell in next(csv.reader(text.splitlines()[:1]))]


def _without(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the tiles table without the rows of some tiles."""
    columns, others = _columns(text), ""
    tiles = {(row["sample"], row["cycle"], row["tile"]) for row in rows}
    for line in text.splitlines(keepends=True):
        row = dict(zip(columns, map(str.strip, next(csv.reader([line]), [])), strict=False))
        cycle = row.get("cycle", "")
        number = int(cycle) if cycle.isdecimal() else cycle
        if (row.get("sample"), number, row.get("tile")) not in tiles:
            others += line
    return others


def _with_rows(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with more rows, in the order of its columns."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _columns(text), extrasaction="ignore", lineterminator="\n")
    writer.writerows(rows)
    return text + "\n" * (not text.endswith("\n")) + stream.getvalue()
