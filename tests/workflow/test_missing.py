"""Cycles with different sets of tiles, and a tile that lacks a plane."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import tifffile

from tests.support.runs import TINY, make_run
from tilewright.io.results.positions import read_positions
from tilewright.kernels.tile_positions.tile_order import tile_places
from tilewright.phantom.files import tile_path
from tilewright.phantom.make import PhantomDesign

pytestmark = pytest.mark.workflow


def test_tiles_left_out_are_unseen_in_their_cycle_alone(tmp_path: Path) -> None:
    """A corner tile is missing in cycle 2, a plane of another corner in cycle 1, channel 2."""
    values = {**TINY, "rows": 3, "cols": 3, "planes": 2, "tile_px": 160}
    run = make_run(tmp_path, **values)
    design = PhantomDesign(**values)
    places = tile_places("snake_right_down", 3, 3)
    first, last = places.index((0, 0)), places.index((2, 2))
    for channel in (1, 2):
        for z in range(2):
            tile_path(tmp_path / "raw", design, 2, channel, last, z).unlink()
    tile_path(tmp_path / "raw", design, 1, 2, first, 1).unlink()
    failed = run.snakemake("registration", "qc", ok=False)
    assert "z-plane 2 of 2 missing" in failed.stdout + failed.stderr
    run.edit(acquisition={"missing": "fill"})
    run.snakemake("registration", "qc")
    image = tifffile.imread(run.sample / "registration/tonsil.ome.tif")
    tile, step = design.tile_px, round(design.step_px)
    own = tile - step  # what no other tile sees begins here
    seen = [np.ones((3, 3), bool) for _ in range(2)]
    seen[0][0, 0] = seen[1][2, 2] = False
    for channel, plane in enumerate(image):
        corners = {
            (0, 0): plane[: step - 20, : step - 20],
            (2, 2): plane[2 * step + own + 20 : 2 * step + tile, 2 * step + own + 20 :],
        }
        for place, corner in corners.items():
            lit = np.count_nonzero(corner) / corner.size
            assert lit > 0.3 if seen[channel // 2][place] else lit < 0.01, (channel, place, lit)
    for cycle, missing in ((1, (0, 0)), (2, (2, 2))):
        positions = read_positions(run.sample / f"tile_positions/cycle{cycle}/positions.csv")
        assert set(positions.places()) == set(places) - {missing}
    with (run.results / "qc.csv").open() as stream:
        said = [row for row in csv.DictReader(stream) if row["metric"] == "tiles_left_out"]
    assert [row["verdict"] for row in said] == ["warn", "warn"]
    report = (run.results / "report.html").read_text()
    assert "row 0 column 0" in report
    assert "row 2 column 2" in report
