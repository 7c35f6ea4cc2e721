"""Every naming convention, from ``init`` to the tiles' positions; one of them to the report."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tifffile
import yaml

from tests.support.convention_raw import CONVENTIONS, PIXEL_UM, Tiles, make_tiles, write_as
from tests.support.microscope_files import WRITERS, Specimen
from tests.support.runs import Run, job_counts
from tilewright.config.checks import check_raw
from tilewright.config.experiment import load_experiment, read_config
from tilewright.config.layout import Layout
from tilewright.init.folder import InitResult, create_experiment
from tilewright.io.inputs.tiles import open_tiles
from tilewright.io.results.positions import Positions, read_positions
from tilewright.kernels.backend import Backend
from tilewright.phantom.make import PhantomDesign
from tilewright.stages.tile_positions.locate import locate

#: Files of microscopes; the OME-XML of ``ome_tiff`` is in the files or in one beside them, and
#: files named as MetaXpress's tell their positions where it wrote them.
FILES = {"ome_tiff companion": WRITERS["ome_tiff"], **WRITERS}
FILES["imagexpress positions"] = FILES.pop("imagexpress")
del FILES["ome_tiff"]


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[PhantomDesign, dict[tuple[int, int], Tiles]]:
    return make_tiles(tmp_path_factory.mktemp("phantom"))


# CODEX is what test_workflow.py runs to the end.
NAMES = tuple(name for name in CONVENTIONS if name != "codex")


@pytest.mark.parametrize("convention", [*NAMES, *FILES])
def test_init_then_tiles_at_their_places(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: tuple[PhantomDesign, dict[tuple[int, int], Tiles]],
    cpu: Backend,
    convention: str,
) -> None:
    design, tiles = made
    if convention in FILES:
        FILES[convention](tmp_path / "raw", 1, specimen(tiles[1, 1], round(design.step_px)))
    else:
        write_as(convention, tmp_path / "raw", tiles, round(design.step_px))
    result = create_experiment(tmp_path / "raw", tmp_path)
    run = Run(tmp_path, result.config)
    config = yaml.safe_load(result.config.read_text())
    assert config["acquisition"]["convention"] == convention.split()[0]
    run.edit(acquisition={"pixel_um": PIXEL_UM})
    monkeypatch.chdir(tmp_path)
    check_places(positions_of(run, cpu))


@pytest.mark.workflow
def test_the_readmes_own_command(
    tmp_path: Path, made: tuple[PhantomDesign, dict[tuple[int, int], Tiles]]
) -> None:
    design, tiles = made
    write_as("pattern", tmp_path / "raw", tiles, round(design.step_px))
    result = create_experiment(tmp_path / "raw", tmp_path)
    run = Run(tmp_path, result.config)
    run.edit(acquisition={"pixel_um": PIXEL_UM})
    said = to_the_end(run, design, result)
    assert job_counts(said.stdout + said.stderr)["stitch"] == 1
    (table,) = run.results.glob("*/tile_positions/cycle1/positions.csv")
    check_places(read_positions(table))


def positions_of(run: Run, backend: Backend) -> Positions:
    """Check the raw files and locate the tiles as the workflow and its rule do."""
    experiment = load_experiment(read_config(run.config))
    layout = Layout(experiment.settings.results)
    check_raw(experiment, layout)
    (sample,) = experiment.samples
    tiles = open_tiles(
        Path(layout.manifest.format(sample=sample, cycle=1)), experiment.reference_channel
    )
    return locate(tiles, backend=backend, **experiment.options("tile_positions")).positions


def check_places(positions: Positions) -> None:
    placed = np.stack([positions.y_px, positions.x_px], axis=1)
    assert np.abs(placed - placed[0] - np.array([[0, 0], [0, 1], [1, 0], [1, 1]]) * 153.6).max() < 8


def specimen(tiles: Tiles, step_px: int) -> Specimen:
    """Return tiles (row, col, y, x) as a microscope would have taken them."""
    stacks = {place: tiles[place][None, None] for place in np.ndindex(*tiles.shape[:2])}
    return Specimen(stacks, step_px, ("DAPI",), (461.0,), pixel_um=PIXEL_UM)


def to_the_end(
    run: Run, design: PhantomDesign, result: InitResult
) -> subprocess.CompletedProcess[str]:
    """Run both targets with braces in the config, which the report shows once more."""
    flat = np.ones((design.tile_px, design.tile_px), np.float32)
    (channel,) = {line.split(",")[1] for line in result.markers.read_text().splitlines()[1:]}
    tifffile.imwrite(run.folder / f"flat_{channel}.tif", flat)
    run.edit(illumination={"method": "file", "flat_file": "flat_{channel}.tif"})
    said = run.snakemake("registration", "qc")
    name = result.samples.read_text().splitlines()[1].split("\t")[0]
    assert (run.results / f"{name}/registration/{name}.ome.tif").is_file()
    assert json.loads((run.results / "qc.json").read_text())["verdict"] in ("pass", "warn", "fail")
    page = (run.results / "report.html").read_text()
    assert "tile_r{row}_c{col}" in page
    assert "flat_{channel}.tif" in page
    with (run.results / "trusted_markers.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 1
    return said
