"""Rows of the tiles table for tiles that it lacks: of ``tilewright init --add`` and ``follow``."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.config.experiment import Experiment
from tilewright.config.load import read_experiment
from tilewright.config.tables import Places, cycles_text, read_tiles
from tilewright.errors import ConfigError
from tilewright.init.metadata import Metadata
from tilewright.init.place_samples import PlacedSample, place_cycles, share_tiles
from tilewright.init.tile_order import GridOptions, PlacedTiles
from tilewright.io.formats.common import RawPlane
from tilewright.io.inputs.manifest import planes_of
from tilewright.runtime.files import write_text_atomic


def add_cycles(configfile: Path, options: GridOptions) -> str:
    """Add the rows that the tiles table lacks; return what was found.

    Raises
    ------
    ConfigError
        The configuration or a table is wrong.
    RawDataError
        The raw folder of a sample cannot be read.
    """
    experiment = read_experiment(configfile)
    return "\n".join(add_rows(experiment, experiment.cycles, options)) or "no tile is new"


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
    groups = dict.fromkeys(tuple(experiment.samples_beside(name)) for name in experiment.samples)
    for names in groups:
        of_group = {key: places for key, places in known.items() if key[0] in names}
        sample = experiment.samples[names[0]]
        acquisition = experiment.acquisition_of(sample)
        planes = planes_of(sample.raw_dir, acquisition, experiment.reference_channels)
        new = _of_new_cycles(planes, cycles, of_group)
        if not new:
            continue
        placed = place_cycles(
            new,
            experiment.reference_channels,
            Metadata([], experiment.reference_cycle, pixel_um=pixel_um),
            options,
            _earlier(of_group, planes, experiment.reference_cycle, pixel_um),
        )
        at = {
            name: np.array([p[1:3] for key, of in of_group.items() if key[0] == name for p in of])
            for name in names
        }
        for one in share_tiles(names, sample.raw_dir.resolve(), None, placed, at):
            added = _missing_rows(one, placed, of_group)
            if added:
                cycles_of = sorted({row["cycle"] for row in added})
                lines.append(f"{one.name}: {len(added)} rows of {cycles_text(cycles_of)}")
            lines += one.findings + [f"warning: {line}" for line in one.warnings]
            lines += [f"fill in: {line}" for line in one.unknown]
            rows += added
    if rows:
        write_text_atomic(path, _with_rows(path.read_bytes().decode("utf-8"), rows))
    return lines


def _of_new_cycles(
    planes: Sequence[RawPlane], cycles: Collection[int], known: Places
) -> list[RawPlane]:
    """Return the planes of cycles of which the table lacks a tile or a position."""
    listed = {
        (cycle, place.tile)
        for (_, cycle), places in known.items()
        for place in places
        if place.known or not place.use
    }
    new = {p.cycle for p in planes if p.cycle in cycles and (p.cycle, p.tile_name) not in listed}
    return [plane for plane in planes if plane.cycle in new]


def _earlier(
    known: Places, planes: Sequence[RawPlane], reference_cycle: int, pixel_um: float
) -> PlacedTiles:
    """Return the positions of the reference cycle, or of the first that the table has."""
    cycles = sorted({cycle for _, cycle in known}, key=lambda c: (c != reference_cycle, c))
    for cycle in cycles:
        of_cycle = [p for key, of in known.items() if key[1] == cycle for p in of if p.known]
        at = {place.tile: (place.y_px, place.x_px) for place in of_cycle}
        if at:
            turn = _turn([p for p in planes if p.cycle == cycle], at, pixel_um)
            return PlacedTiles(yx_px=at, turn=turn)
    return PlacedTiles()


def _turn(
    planes: Sequence[RawPlane], at_px: Mapping[str, tuple[float, float]], pixel_um: float
) -> NDArray[np.float64]:
    """Return the matrix from positions in the files to those of the table."""
    scale = pixel_um if planes and planes[0].unit == "um" else 1.0
    stage = {
        p.tile_name: (p.y / scale, p.x / scale)
        for p in planes
        if p.y is not None and p.x is not None and p.tile_name in at_px
    }
    if len(stage) < 3:
        return np.eye(2)
    moved = np.array([at_px[tile] for tile in stage])
    places = np.array(list(stage.values()))
    matrix, _, rank, _ = np.linalg.lstsq(
        places - places.mean(axis=0), moved - moved.mean(axis=0), rcond=None
    )
    return np.asarray(matrix.T) if rank == 2 else np.eye(2)


def _missing_rows(
    sample: PlacedSample, placed: Mapping[int, PlacedTiles], known: Places
) -> list[dict[str, Any]]:
    """Return the rows of tiles that the table lacks or has no position of, in its frame."""
    added = []
    for cycle, tiles in placed.items():
        there = {place.tile: place for place in known.get((sample.name, cycle), ())}
        rows = [row for row in sample.rows if row["cycle"] == cycle]
        at = {row["tile"]: np.array(tiles.yx_px[row["tile"]]) for row in rows}
        common = [there[tile] for tile in at if tile in there and not np.isnan(at[tile]).any()]
        off = [np.array([p.y_px, p.x_px]) - at[p.tile] for p in common if p.known]
        for row in rows:
            place, (y, x) = there.get(row["tile"]), at[row["tile"]]
            if place is not None and (place.known or not place.use):
                continue
            if off and not np.isnan(y + x):
                y, x = np.median(off, axis=0) + at[row["tile"]]
                row = {**row, "y": f"{y:.3f}", "x": f"{x:.3f}", "unit": "px"}
            added.append(row)
    return added


def _with_rows(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with rows in the order of its columns, in place of those they fill in."""
    lines = text.splitlines(keepends=True)
    columns = [cell.strip().lstrip("\ufeff") for cell in next(csv.reader(lines[:1]))]
    names = ("sample", "cycle", "tile")
    filled = {tuple(str(row[name]) for name in names) for row in rows}

    def key(line: str) -> tuple[str, ...]:
        cells = dict(zip(columns, next(csv.reader([line]), []), strict=False))
        sample, cycle, tile = (cells.get(name, "").strip() for name in names)
        return sample, str(int(cycle)) if cycle.isdecimal() else cycle, tile

    kept = "".join(line for line in lines if key(line) not in filled)
    new = [[row.get(column, "") for column in columns] for row in rows]
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(new)
    return kept + "\n" * (not kept.endswith("\n")) + stream.getvalue()
