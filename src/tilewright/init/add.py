"""Rows of the tiles table for cycles that it lacks: of ``tilewright init --add`` and ``follow``."""

import csv
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.config.experiment import Experiment
from tilewright.config.load import read_experiment
from tilewright.config.tables import Sample, cycles_text
from tilewright.config.tile_table import Places, read_tiles, tiles_text
from tilewright.errors import ConfigError
from tilewright.init.metadata import Metadata
from tilewright.init.place_samples import place_cycles, split_samples
from tilewright.init.place_tiles import GridOptions
from tilewright.io.formats import scan
from tilewright.io.formats.common import RawPlane, select_region
from tilewright.io.inputs.manifest import scan_options
from tilewright.runtime.files import write_text_atomic


def add_cycles(configfile: Path, options: GridOptions) -> str:
    """Add the rows of all cycles that the tiles table lacks; return what was found.

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
    """Add rows of cycles that the tiles table lacks, or lacks tiles of; return what was found.

    The rows of a cycle that lacks tiles are written anew, without those that its user left out;
    all others stay byte for byte.

    Parameters
    ----------
    cycles : collection of int
        Of the markers table.
    """
    settings = experiment.settings
    if settings.tiles is None:
        raise ConfigError("stitched images have no tiles table; nothing to add")
    path = Path(settings.tiles)
    known = read_tiles(path, experiment.samples, settings.acquisition.pixel_um)
    lines, rows, replaced = list[str](), list[dict[str, Any]](), set[tuple[str, str]]()
    for group in _groups(experiment):
        of_group = {key: rows for key, rows in known.items() if key[0] in group}
        sample = experiment.samples[group[0]]
        new = _new_planes(sample, cycles, of_group)
        if not new:
            continue
        placed = place_cycles(
            new,
            experiment.reference_channels,
            Metadata([], experiment.reference_cycle, pixel_um=settings.acquisition.pixel_um),
            options,
            _earlier(of_group, experiment.reference_cycle),
        )
        found = split_samples(group, sample.raw_dir.resolve(), placed)
        for one in found:
            cycles_of = sorted({row["cycle"] for row in one.rows})
            replaced |= {(one.name, str(cycle)) for cycle in cycles_of}
            lines += [f"{one.name}: rows of {cycles_text(cycles_of)} are in {path}"]
            lines += one.findings + [f"warning: {line}" for line in one.warnings]
            lines += [f"fill in: {line}" for line in one.unknown]
            for row in one.rows:
                before = of_group.get((one.name, row["cycle"]), ())
                if any(place.tile == row["tile"] and not place.use for place in before):
                    row["use"] = 0
            rows += one.rows
    if rows:
        text = path.read_bytes().decode("utf-8").splitlines(keepends=True)
        others = "".join(line for line in text if _sample_and_cycle(line) not in replaced)
        end = "\n" * (not others.endswith("\n"))
        write_text_atomic(path, others + end + tiles_text(rows, header=False))
    return lines


def _groups(experiment: Experiment) -> list[list[str]]:
    """Return the names of samples, those of one raw folder and region together."""
    groups: dict[tuple[Path, str | None], list[str]] = {}
    for name, sample in experiment.samples.items():
        source = sample.raw_dir.resolve(), sample.acquisition.region
        groups.setdefault(source, []).append(name)
    return list(groups.values())


def _new_planes(sample: Sample, cycles: Collection[int], known: Places) -> list[RawPlane]:
    """Return the planes of cycles of which the table lacks a tile."""
    options = scan_options(sample.acquisition.model_dump())
    planes = select_region(
        scan(sample.acquisition.convention, sample.raw_dir, options), options.region, sample.raw_dir
    )
    listed = {
        (cycle, place.tile)
        for (_, cycle), places in known.items()
        for place in places
        if not place.use or not math.isnan(place.y_px + place.x_px)
    }
    stale = {p.cycle for p in planes if p.cycle in cycles and (p.cycle, p.tile_name) not in listed}
    return [plane for plane in planes if plane.cycle in stale]


def _sample_and_cycle(line: str) -> tuple[str, str]:
    sample, cycle, *_ = [cell.strip() for cell in next(csv.reader([line]), [])] + ["", ""]
    return sample, cycle.lstrip("0") or "0"


def _earlier(known: Places, reference_cycle: int) -> dict[str, tuple[float, float]] | None:
    """Return the positions of the reference cycle, or of the first that the table has."""
    cycles = sorted((cycle for _, cycle in known), key=lambda c: (c != reference_cycle, c))
    if not cycles:
        return None
    of_cycle = next(places for (_, cycle), places in known.items() if cycle == cycles[0])
    at = {place.tile: (place.y_px, place.x_px) for place in of_cycle}
    return None if np.isnan(list(at.values())).any() else at
