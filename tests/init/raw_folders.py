"""Raw folders for tilewright init."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import scipy.ndimage
import yaml
from numpy.typing import NDArray

from tests.support.microscope_files import Specimen
from tests.support.runs import mark_references
from tilewright.config.checks import rows_of
from tilewright.config.config_file import with_places
from tilewright.config.experiment import Experiment
from tilewright.config.load import load_experiment
from tilewright.config.tables import Places, read_tiles
from tilewright.init.folder import InitResult, create_experiment
from tilewright.io.inputs.manifest import build_manifest
from tilewright.kernels.tile_positions.tile_order import grid_places

SIZE = 128
OVERLAP = 0.15
STEP = round(SIZE * (1 - OVERLAP))


def specimen_tiles(rows: int, cols: int, seed: int = 0) -> NDArray[np.uint16]:
    """Overlapping tiles (row, col, y, x) of one textured specimen, each with its own noise."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(STEP * rows + SIZE, STEP * cols + SIZE))
    specimen = scipy.ndimage.gaussian_filter(noise, 2.0)
    specimen = 2000 + 4000 * (specimen - specimen.min())
    tiles = np.empty((rows, cols, SIZE, SIZE), np.uint16)
    for row, col in np.ndindex(rows, cols):
        y, x = row * STEP, col * STEP
        tiles[row, col] = specimen[y : y + SIZE, x : x + SIZE] + rng.normal(0, 30, (SIZE, SIZE))
    return tiles


def two_fields() -> Specimen:
    """Two fields of two channels and three planes in which nothing is to be seen."""
    stack = np.random.default_rng(0).integers(90, 110, (2, 3, 64, 64)).astype(np.uint16)
    return Specimen({(0, 0): stack, (0, 1): stack}, 58, ("DAPI", "CD8"), (460.0, 520.0))


def config(result: InitResult) -> dict[str, Any]:
    content = with_places(yaml.safe_load(result.config.read_text()), [result.config])
    return dict(content)


def initiated(raw: Path, out: str = "out", **options: Any) -> tuple[InitResult, dict[str, Any]]:
    """Return what init says of a folder, and the section ``acquisition`` that it writes."""
    result = create_experiment(raw, raw.parent / out, **options)
    return result, config(result)["acquisition"]


def filled_in(result: InitResult) -> Experiment:
    """Load what init wrote, its gaps filled, and check all raw files with it."""
    content = config(result)
    for section in ("acquisition", "optics"):
        for key, value in content.get(section, {}).items():
            if value is None:
                content[section][key] = {"numerical_aperture": 0.5}.get(key, 1.4)
    content["deconvolve"] = {"method": "none"}
    mark_references(result.markers)
    experiment = load_experiment(content)
    wanted: dict[int, list[str]] = {}
    for channel in experiment.channels:
        wanted.setdefault(channel.cycle, []).append(channel.channel)
    places = places_of(experiment)
    for name, sample in experiment.samples.items():
        tables = {c: result.config.parent / f"{name}/cycle{c}.csv" for c in wanted}
        rows = rows_of(experiment, sample, places)
        build_manifest(sample.raw_dir, experiment.acquisition_of(sample), wanted, rows, tables)
    return experiment


def places_of(experiment: Experiment) -> Places:
    """Return the rows of the tiles table by sample and cycle."""
    settings = experiment.settings
    assert settings.tiles is not None
    return read_tiles(Path(settings.tiles), experiment.samples, settings.acquisition.pixel_um)


def tile_rows(result: InitResult) -> list[dict[str, str]]:
    """Return the tiles table that init wrote."""
    with result.tiles.open(newline="") as stream:
        return list(csv.DictReader(stream))


def grid_of(rows: list[dict[str, str]], cycle: int = 1) -> dict[str, tuple[int, int]]:
    """Return (row, col) of each tile of a cycle, by its position in the table."""
    of_cycle = [row for row in rows if row["cycle"] == str(cycle) and row["y"]]
    positions = [(float(row["y"]), float(row["x"])) for row in of_cycle]
    scale = SIZE if of_cycle and of_cycle[0]["unit"] == "px" else SIZE / 2
    places = grid_places(positions, (int(scale), int(scale)))
    return dict(zip([row["tile"] for row in of_cycle], places, strict=True))
