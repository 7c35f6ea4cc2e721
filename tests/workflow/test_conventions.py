"""The README's own command, from ``init`` to the report, on every naming convention."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import tifffile
import yaml

from tests.support.convention_raw import CONVENTIONS, PIXEL_UM, Tiles, make_tiles, write_as
from tests.support.runs import Run
from tilewright.init.folder import create_experiment
from tilewright.io.positions import read_positions
from tilewright.phantom.make import PhantomDesign

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[PhantomDesign, dict[tuple[int, int], Tiles]]:
    return make_tiles(tmp_path_factory.mktemp("phantom"))


# CODEX is what test_workflow.py runs to the end.
@pytest.mark.parametrize("convention", [name for name in CONVENTIONS if name != "codex"])
def test_both_targets_run_to_the_end(
    tmp_path: Path,
    made: tuple[PhantomDesign, dict[tuple[int, int], Tiles]],
    convention: str,
) -> None:
    design, tiles = made
    write_as(convention, tmp_path / "raw", tiles, round(design.step_px))
    result = create_experiment(tmp_path / "raw", tmp_path)
    run = Run(tmp_path, result.config)
    config = yaml.safe_load(result.config.read_text())
    assert config["acquisition"]["convention"] == convention
    run.edit(acquisition={"pixel_um": PIXEL_UM})
    if convention == "pattern":
        # Braces in the config as it is shown in the report, once more.
        flat = np.ones((design.tile_px, design.tile_px), np.float32)
        (channel,) = {line.split(",")[1] for line in result.markers.read_text().splitlines()[1:]}
        tifffile.imwrite(tmp_path / f"flat_{channel}.tif", flat)
        run.edit(illumination={"method": "file", "flat_file": "flat_{channel}.tif"})
    run.snakemake("registration", "qc")
    name = result.samples.read_text().splitlines()[1].split("\t")[0]
    sample = run.results / name
    assert (sample / f"registration/{name}.ome.tif").is_file()
    assert json.loads((run.results / "qc.json").read_text())["verdict"] in ("pass", "warn", "fail")
    page = (run.results / "report.html").read_text()
    if convention == "pattern":
        assert "tile_r{row}_c{col}" in page
        assert "flat_{channel}.tif" in page
    with (run.results / "trusted_markers.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 1
    positions = read_positions(sample / "tile_positions/cycle1/positions.csv")
    placed = np.stack([positions.y_px, positions.x_px], axis=1)
    assert np.abs(placed - placed[0] - np.array([[0, 0], [0, 1], [1, 0], [1, 1]]) * 153.6).max() < 8
