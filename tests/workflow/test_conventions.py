"""Every naming convention, from ``init`` to the tiles' places; to the end: test_installed.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.support.convention_raw import CONVENTIONS, PIXEL_UM, Tiles, make_tiles, write_as
from tests.support.illuminate import place_tiles
from tests.support.microscope_files import WRITERS, Specimen
from tests.support.runs import Run, mark_references
from tilewright.config.checks import check_raw
from tilewright.config.config_file import read_config
from tilewright.config.layout import Layout
from tilewright.config.load import load_experiment
from tilewright.init.folder import create_experiment
from tilewright.init.tile_set import GridOptions
from tilewright.io.inputs.tiles import open_tiles
from tilewright.io.results.positions import Positions
from tilewright.kernels.backend import Backend
from tilewright.phantom.make import PhantomDesign

#: Files of microscopes; the OME-XML of ``ome_tiff`` is in the files or in one beside them, and
#: files named as MetaXpress's tell their positions where it wrote them.
FILES = {"ome_tiff companion": WRITERS["ome_tiff"], **WRITERS}
FILES["imagexpress positions"] = FILES.pop("imagexpress")
del FILES["ome_tiff"]


@pytest.fixture(scope="module")
def made() -> Made:
    return make_tiles()


# CODEX is what test_workflow.py runs to the end.
NAMES = tuple(name for name in CONVENTIONS if name != "codex")
Made = tuple[PhantomDesign, dict[tuple[int, int], Tiles]]


@pytest.mark.parametrize("convention", [*NAMES, *FILES])
def test_init_then_tiles_at_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Made, cpu: Backend, convention: str
) -> None:
    design, tiles = made
    if convention in FILES:
        FILES[convention](tmp_path / "raw", 1, specimen(tiles[1, 1], round(design.step_px)))
    else:
        write_as(convention, tmp_path / "raw", tiles, round(design.step_px))
    # One of four numbered tiles is empty: their order is to be said.
    grid = GridOptions(2, 2, "snake_right_down") if convention == "imagexpress" else None
    result = create_experiment(tmp_path / "raw", tmp_path, grid=grid)
    run = Run(tmp_path, result.config)
    config = yaml.safe_load(result.config.read_text())
    assert config["acquisition"]["convention"] == convention.split()[0]
    run.edit(acquisition={"pixel_um": PIXEL_UM})
    mark_references(result.markers)
    monkeypatch.chdir(tmp_path)
    found = positions_of(run, cpu)
    placed = np.stack([found.y_px, found.x_px], axis=1)
    expected = design.step_px * np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    assert np.abs(placed - placed[0] - expected).max() < 8


def positions_of(run: Run, backend: Backend) -> Positions:
    """Check the raw files and locate the tiles as the workflow and its rule do."""
    experiment = load_experiment(read_config(run.config))
    layout = Layout(experiment.settings.results)
    check_raw(experiment, layout)
    (sample,) = experiment.samples
    manifest = Path(layout.manifest.format(sample=sample, cycle=1))
    tiles = open_tiles(manifest, experiment.reference_channels[1])
    return place_tiles(tiles, backend, **experiment.options("tile_positions")).positions


def specimen(tiles: Tiles, step_px: int) -> Specimen:
    """Return tiles (row, col, y, x) as a microscope would have taken them."""
    stacks = {place: tiles[place][None, None] for place in np.ndindex(*tiles.shape[:2])}
    return Specimen(stacks, step_px, ("DAPI",), (461.0,), pixel_um=PIXEL_UM)
