"""`tilewright follow` beside a pretended microscope, against one run of all cycles at once."""

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tifffile

from tests.conftest import REPO
from tests.support.microscope import image_cycle
from tests.support.runs import LATER, Run
from tests.support.slurm_cluster import BUSY, wait_for
from tilewright.io.results.positions import read_positions
from tilewright.phantom.make import PhantomDesign, tile_path

pytestmark = pytest.mark.workflow

_LONGEST_S = 900


class Follow:
    """The command in a process of its own, its lines in a file."""

    def __init__(self, run: Run, *options: str) -> None:
        self.said = run.folder / "said.txt"
        command = [sys.executable, "-m", "tilewright.cli", "follow"]
        command += ["--configfile", str(run.config)]
        command += ["--snakefile", str(REPO / "workflow/Snakefile"), *options]
        with self.said.open("w") as stream:
            self.process = subprocess.Popen(
                command,
                cwd=run.folder,
                env={**os.environ, "TILEWRIGHT_DEVICE": "cpu"},
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def until(self, text: str) -> None:
        """Wait until it printed a text."""

        def holds() -> bool:
            found = text in self.said.read_text()
            assert found or self.process.poll() is None, self.said.read_text()[-6000:]
            return found

        wait_for(holds, _LONGEST_S / BUSY)


@pytest.fixture
def begin() -> Iterator[Callable[..., Follow]]:
    """Give what starts the command; what a failed test leaves is ended with its run."""
    begun: list[Follow] = []

    def start(run: Run, *options: str) -> Follow:
        begun.append(Follow(run, *options))
        return begun[-1]

    yield start
    for follow in begun:
        if follow.process.poll() is None:
            follow.process.terminate()
            follow.process.wait(_LONGEST_S)


def own_times(run: Run, cycles: str) -> dict[str, int]:
    """Return when the files were written that are some cycles' own."""
    folders = ("raw", "illumination", "tile_positions", "edf", "register", "registration", "qc")
    tops = [path for name in folders for path in run.sample.glob(f"{name}/*cycle[{cycles}]*")]
    found = [path for top in tops for path in (top, *top.rglob("*"))]
    times = {
        str(p): p.stat().st_mtime_ns for p in found if not p.name.lstrip(".").startswith("image_")
    }
    assert len(times) > 25
    return times


def test_a_cycle_that_comes_makes_its_own_and_the_final_image(
    tmp_path: Path, begin: Callable[..., Follow], tiny_run: Run, tiny_later: Path
) -> None:
    """In its second channel a tile lacks a plane: its user leaves it out of the cycle."""
    run, design = tiny_run.copy(tmp_path / "run"), PhantomDesign(**LATER)
    run.edit(cycles="auto")
    before = own_times(run, "12")
    follow = begin(run, "--quiet-min", "0.05", "--", "--quiet", "host")
    follow.until("cycles 1, 2: done")
    assert "(Rule: stitch)" not in follow.said.read_text()
    later = shutil.copytree(tiny_later / "later", tmp_path / "later")
    tile_path(later, design, 3, 2, 0, 1).unlink()
    image_cycle(later, run.folder / "raw", 3)
    follow.until("cycle 3, tile 1 lacks")
    table = run.folder / "tiles.csv"
    row = next(row for row in table.read_text().splitlines(True) if row.startswith("tonsil,3,1,"))
    table.write_text(table.read_text().replace(row, row.removesuffix("1\n") + "0\n"))
    assert follow.process.wait(_LONGEST_S) == 0
    assert "(Rule: stitch)" in follow.said.read_text()
    assert "all cycles are done" in follow.said.read_text()
    assert own_times(run, "12") == before
    assert run.planned() == {}
    places = read_positions(run.sample / "tile_positions/cycle3/positions.csv").places()
    assert set(places) == {"2", "3", "4"}
    image = tifffile.imread(run.sample / "registration/tonsil.ome.tif")
    own = slice(0, round(design.step_px) - 20)  # of the corner that no other tile sees
    lit = [np.count_nonzero(plane[own, own]) / plane[own, own].size for plane in image]
    assert len(lit) == 6
    assert min(lit[:4]) > 0.3
    assert max(lit[4:]) < 0.01
    nuclei = image[[0, 4], own.stop + 40 : -24, 24:-24].reshape(2, -1)
    assert np.corrcoef(nuclei)[0, 1] > 0.98
    with (run.results / "qc.csv").open() as stream:
        said = [row for row in csv.DictReader(stream) if row["metric"] == "tiles_left_out"]
    assert [row["cycle"] for row in said if row["verdict"] == "warn"] == ["3"]
    assert "tile 1" in (run.results / "report.html").read_text()
