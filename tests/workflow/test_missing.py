"""Cycles with different sets of tiles, and a tile that lacks a plane."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import tifffile

from tests.support.runs import TINY, make_run
from tilewright.io.results.positions import read_positions
from tilewright.phantom.files import tile_path
from tilewright.phantom.make import PhantomDesign

pytestmark = pytest.mark.workflow
#: Of two, so that one channel of each cycle is processed.
DESIGN = {**TINY, "channels": 1}
#: The tile, of 2 x 2, that a cycle lacks.
LACKS = {1: (0, 0), 2: (1, 1)}


def test_tiles_left_out_are_unseen_in_their_cycle_alone(tmp_path: Path, tiny_raw: Path) -> None:
    """A corner tile is missing in cycle 2, a plane of another corner in cycle 1."""
    design = PhantomDesign(**DESIGN)
    shutil.copytree(tiny_raw, tmp_path / "raw")
    run = make_run(tmp_path, tmp_path / "raw", **DESIGN)
    for z in range(design.planes):
        tile_path(tmp_path / "raw", design, 2, 1, 3, z).unlink()
    tile_path(tmp_path / "raw", design, 1, 1, 0, 1).unlink()
    failed = run.snakemake("-n", ok=False)
    assert f"z-plane 2 of {design.planes} missing" in failed.stdout + failed.stderr
    run.edit(acquisition={"missing": "fill"})
    run.snakemake()
    image = tifffile.imread(run.sample / "registration/tonsil.ome.tif")
    tile, step = design.tile_px, round(design.step_px)
    own = slice(0, step - 20), slice(tile + 20, step + tile)  # what no other tile sees
    assert len(image) == 2
    for cycle, plane in enumerate(image, start=1):
        for place in LACKS.values():
            corner = plane[own[place[0]], own[place[1]]]
            lit = np.count_nonzero(corner) / corner.size
            assert lit < 0.01 if place == LACKS[cycle] else lit > 0.3, (cycle, place, lit)
        positions = read_positions(run.sample / f"tile_positions/cycle{cycle}/positions.csv")
        assert set(positions.places()) == set(np.ndindex(2, 2)) - {LACKS[cycle]}
    with (run.results / "qc.csv").open() as stream:
        said = [row for row in csv.DictReader(stream) if row["metric"] == "tiles_left_out"]
    assert [row["verdict"] for row in said] == ["warn", "warn"]
    report = (run.results / "report.html").read_text()
    assert "row 0 column 0" in report
    assert "row 1 column 1" in report
