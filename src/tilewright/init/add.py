"""What is new in the raw folders of an experiment: of ``tilewright init --add`` and ``follow``."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.config.experiment import Experiment
from tilewright.config.load import read_experiment
from tilewright.config.tables import Places, cycles_text, read_tiles
from tilewright.errors import ConfigError
from tilewright.init.metadata import fill_emission, read_metadata
from tilewright.init.place_tiles import Key, place_tiles
from tilewright.init.recognise import RawFolder
from tilewright.init.samples import Sample, add_rows_of, notes_of_tiles, tile_sets
from tilewright.init.tile_set import GridOptions, PlacedTiles, TileSet
from tilewright.init.write import marker_row, questions
from tilewright.io.inputs.codex_metadata import CodexExperiment
from tilewright.io.inputs.manifest import planes_of, scan_options
from tilewright.runtime.files import write_text_atomic
from tilewright.runtime.text import few


def add_new(configfile: Path, options: GridOptions) -> str:
    """Add the rows that the tables of markers and tiles lack; return what was found.

    New are cycles of which neither table has a row, and tiles without a row or a position.

    Raises
    ------
    ConfigError
        The configuration or a table is wrong.
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
        names = {channel.marker for channel in experiment.table}
        if taken := [one.marker for one in found.markers if one.marker in names]:
            lines.append(f"warning: {few(taken)} in {path.name} twice; rename one")
        if settings.needs_psf:
            fill_emission(found)
        row = _count_rows(text) + 1
        gaps += questions({}, found.markers, psf=settings.needs_psf, first_row=row)
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
        of_scan = {key: places for key, places in known.items() if key[0] in names}
        listed = {
            (cycle, place.tile)
            for (_, cycle), places in of_scan.items()
            for place in places
            if place.known or not place.use
        }
        sample = experiment.samples[names[0]]
        acquisition = experiment.acquisition_of(sample)
        planes = planes_of(sample.raw_dir, acquisition, experiment.reference_channels)
        new = {p.cycle for p in planes if (p.cycle, p.tile_name) not in listed} & {*cycles}
        if not new:
            continue
        groups = tile_sets(planes, experiment.channels, experiment.reference_cycle)
        placed = _place_new(groups, new, of_scan, settings.acquisition.pixel_um, options)
        raw_dir = sample.raw_dir.resolve()
        samples = [Sample(name, raw_dir, None) for name in names]
        of_cycles = {cycle: one for (_, cycle), one in placed.items()}
        add_rows_of(samples, of_cycles, _positions(of_scan, names, raw_dir))
        for one in samples:
            one.rows = [row for row in one.rows if (row["cycle"], row["tile"]) not in listed]
        rows = [row for one in samples for row in one.rows]
        text = _without(text, rows)
        notes = notes_of_tiles(placed, samples, _count_rows(text) + 1)
        text = _with_rows(text, rows)
        if rows:
            added = cycles_text(sorted({row["cycle"] for row in rows}))
            lines.append(f"{', '.join(names)}: {len(rows)} rows of {added}")
        lines += notes.findings + [f"warning: {line}" for line in notes.warnings]
        lines += [f"fill in: {line}" for line in notes.unknown]
    if lines:
        write_text_atomic(path, text)
    return lines


def _place_new(
    groups: Mapping[Key, TileSet],
    new: Collection[int],
    known: Places,
    pixel_um: float,
    options: GridOptions,
) -> dict[Key, PlacedTiles]:
    """Return the tiles of new cycles, in the frame of those that the table has."""
    at = {key: dict[str, tuple[float, float]]() for key in groups}
    for key, of_cycle in at.items():
        for (_, cycle), places in known.items():
            if cycle == key[1]:
                of_cycle |= {one.tile: (one.y_px, one.x_px) for one in places if one.known}
    earlier = {key: of_cycle for key, of_cycle in at.items() if of_cycle and key[1] not in new}
    placed = place_tiles(groups, options, CodexExperiment(), pixel_um, earlier)
    for key, one in placed.items():
        off = [
            np.subtract(at[key][name], at_px)
            for name, at_px in zip(one.tiles.names, one.yx_px, strict=True)
            if name in at[key] and not np.isnan(at_px).any()
        ]
        if off:
            one.move(one.yx_px + np.median(off, axis=0), one.source)
    return {key: one for key, one in placed.items() if key[1] in new}


def _positions(known: Places, names: Sequence[str], raw_dir: Path) -> dict[str, Any]:
    """Return positions (n, 2) in px of the tiles of each sample of one scan, in any cycle."""
    found = {
        name: np.array([
            (place.y_px, place.x_px) for (of, _), places in known.items() if of == name
            for place in places if place.known
        ])
        for name in names
    }  # fmt: skip
    if unknown := [name for name in names if len(names) > 1 and not len(found[name])]:
        raise ConfigError(
            f"{raw_dir}: the samples {', '.join(names)} share its tiles, and the tiles "
            f"table has none of '{unknown[0]}'; write its rows of one cycle"
        )
    return found


def _count_rows(text: str) -> int:
    return len(list(csv.reader(io.StringIO(text))))


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
