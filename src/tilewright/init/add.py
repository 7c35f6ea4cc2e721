"""What is new in the raw folders of an experiment: of ``tilewright init --add`` and ``follow``."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.config.experiment import Experiment
from tilewright.config.load import read_experiment
from tilewright.config.tables import Places, cycles_text, read_tiles
from tilewright.errors import ConfigError
from tilewright.init.folder import of, tile_gaps
from tilewright.init.metadata import Metadata, read_metadata
from tilewright.init.place_tiles import Key, place_tiles
from tilewright.init.recognise import RawFolder
from tilewright.init.samples import Sample, add_rows_of, sentences, tile_sets
from tilewright.init.tile_set import GridOptions
from tilewright.init.write import marker_gaps, marker_row
from tilewright.io.formats.common import RawPlane
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
        found = read_metadata(
            RawFolder(settings.acquisition.convention, options, planes, [], folder)
        )
        markers = [marker for marker in found.markers if marker.cycle in new]
        names = {channel.marker for channel in experiment.table}
        if taken := [marker.marker for marker in markers if marker.marker in names]:
            lines.append(f"warning: {few(taken)} in {path.name} twice; rename one")
        first_row = len(list(csv.reader(io.StringIO(text)))) + 1
        text = _with_rows(text, [marker_row(marker) for marker in markers], ())
        lines.append(f"{path.name}: {len(markers)} rows of {cycles_text(sorted(new))}")
        told = Metadata(markers, experiment.reference_cycle, columns=found.columns)
        gaps += marker_gaps(told, 1, first_row)
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
    path, pixel_um = Path(settings.tiles), settings.acquisition.pixel_um
    known = read_tiles(path, experiment.samples, pixel_um)
    lines, rows = list[str](), list[dict[str, Any]]()
    text = path.read_bytes().decode("utf-8")
    for names in dict.fromkeys(tuple(experiment.samples_beside(one)) for one in experiment.samples):
        of_group = {key: places for key, places in known.items() if key[0] in names}
        sample = experiment.samples[names[0]]
        acquisition = experiment.acquisition_of(sample)
        planes = planes_of(sample.raw_dir, acquisition, experiment.reference_channels)
        new = _new_cycles(planes, cycles, of_group)
        if not new:
            continue
        region = planes[0].region
        groups = tile_sets(planes, experiment.channels, experiment.reference_cycle)
        earlier: dict[Key, dict[str, tuple[float, float]]] = {}
        for (_, cycle), places in of_group.items():
            at = earlier.setdefault((region, cycle), {})
            at |= {p.tile: (p.y_px, p.x_px) for p in places if p.known and cycle not in new}
        earlier = {key: at for key, at in earlier.items() if at}
        placed = place_tiles(groups, options, CodexExperiment(), pixel_um, earlier)
        placed = {key: one for key, one in placed.items() if key[1] in new}
        samples = [Sample(name, sample.raw_dir.resolve(), None) for name in names]
        beside = {
            name: np.array([p[1:3] for key, of_key in of_group.items() if key[0] == name
                            for p in of_key if p.known])
            for name in names
        }  # fmt: skip
        if unknown := [name for name in names if len(names) > 1 and not len(beside[name])]:
            raise ConfigError(
                f"{sample.raw_dir}: the samples {', '.join(names)} share its tiles, and the tiles "
                f"table has none of '{unknown[0]}'; write its rows of one cycle"
            )
        add_rows_of(samples, of(placed, None), options, beside)
        said = sentences(placed)
        added = [row for one in samples for row in _missing_rows(one, of_group)]
        if added:
            cycles_of = sorted({row["cycle"] for row in added})
            lines.append(f"{', '.join(names)}: {len(added)} rows of {cycles_text(cycles_of)}")
        lines += said.findings + [f"warning: {line}" for line in said.warnings]
        rows += added
        kept = len(list(csv.reader(io.StringIO(_with_rows(text, [], _tile_keys(rows))))))
        gaps = tile_gaps(said, rows, samples, kept + 1)
        lines += [f"fill in: {line}" for line in gaps]
    if rows:
        write_text_atomic(path, _with_rows(text, rows, _tile_keys(rows)))
    return lines


def _new_cycles(planes: Sequence[RawPlane], cycles: Collection[int], known: Places) -> set[int]:
    """Return the cycles of which the table lacks a tile or a position."""
    listed = {
        (cycle, place.tile)
        for (_, cycle), places in known.items()
        for place in places
        if place.known or not place.use
    }
    return {p.cycle for p in planes if p.cycle in cycles and (p.cycle, p.tile_name) not in listed}


def _missing_rows(sample: Sample, known: Places) -> list[dict[str, Any]]:
    """Return the rows of tiles that the table lacks or has no position of, in its frame."""
    added = []
    for cycle in dict.fromkeys(row["cycle"] for row in sample.rows):
        there = {place.tile: place for place in known.get((sample.name, cycle), ())}
        placed = zip(sample.rows, sample.yx_px, strict=True)
        rows = [(row, at_px) for row, at_px in placed if row["cycle"] == cycle]
        at = {row["tile"]: at_px for row, at_px in rows}
        off = [
            np.array([p.y_px, p.x_px]) - at[tile]
            for tile, p in there.items()
            if tile in at and p.known and not np.isnan(at[tile]).any()
        ]
        for row, at_px in rows:
            place = there.get(row["tile"])
            if place is not None and (place.known or not place.use):
                continue
            if off and not np.isnan(at_px).any():
                y, x = np.median(off, axis=0) + at_px
                row = {**row, "y": f"{y:.3f}", "x": f"{x:.3f}", "unit": "px"}
            added.append(row)
    return added


def _tile_keys(rows: Sequence[Mapping[str, Any]]) -> set[tuple[str, ...]]:
    return {tuple(str(row[name]) for name in ("sample", "cycle", "tile")) for row in rows}


def _with_rows(
    text: str, rows: Sequence[Mapping[str, Any]], filled: Collection[tuple[str, ...]]
) -> str:
    """Return a table with rows in the order of its columns, without those they fill in."""
    lines = text.splitlines(keepends=True)
    columns = [cell.strip().lstrip("\ufeff") for cell in next(csv.reader(lines[:1]))]

    def key(line: str) -> tuple[str, ...]:
        cells = dict(zip(columns, next(csv.reader([line]), []), strict=False))
        sample, cycle, tile = (cells.get(name, "").strip() for name in ("sample", "cycle", "tile"))
        return sample, str(int(cycle)) if cycle.isdecimal() else cycle, tile

    kept = "".join(line for line in lines if key(line) not in filled)
    stream = io.StringIO()
    new = [[row.get(column, "") for column in columns] for row in rows]
    csv.writer(stream, lineterminator="\n").writerows(new)
    return kept + "\n" * (not kept.endswith("\n")) + stream.getvalue()
