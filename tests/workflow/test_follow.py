"""`tilewright follow` beside a pretended microscope, against one run of all cycles at once."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tifffile

from tests.conftest import REPO
from tests.support.microscope import blur_cycle, image_cycle
from tests.support.runs import LATER, Run, digests, make_run
from tests.support.slurm_cluster import BUSY, wait_for
from tests.support.stitched_files import cycle_image, tissue, write_ome_pyramid
from tilewright.init.folder import create_experiment
from tilewright.io.results.positions import read_positions
from tilewright.phantom.files import tile_path
from tilewright.phantom.make import PhantomDesign, make_phantom

pytestmark = pytest.mark.workflow

DESIGN = {**LATER, "channels": 1}
_LONGEST_S = 900


class Follow:
    """The command in a process of its own, its lines in a file."""

    def __init__(self, run: Run, *options: str) -> None:
        self.run = run
        self.said = run.folder / "said.txt"
        command = [sys.executable, "-m", "tilewright.cli", "follow"]
        command += ["--configfile", str(run.config)]
        command += ["--snakefile", str(REPO / "workflow/Snakefile"), *options]
        with self.said.open("a") as stream:
            self.process = subprocess.Popen(
                command,
                cwd=run.folder,
                env={**os.environ, "TILEWRIGHT_DEVICE": "cpu"},
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # a shell ignores it for what it starts in the background
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    def until(self, text: str, path: Path | None = None) -> None:
        """Wait until a text was said, or stands in another file."""
        where = path or self.said
        self.until_that(lambda: where.is_file() and text in where.read_text())

    def until_there(self, pattern: str) -> None:
        """Wait until the sample has a file."""
        self.until_that(lambda: [*self.run.sample.glob(pattern)])

    def until_that(self, condition: Callable[[], object]) -> None:
        def holds() -> object:
            found = condition()
            assert found or self.process.poll() is None, self.said.read_text()[-6000:]
            return found

        wait_for(holds, _LONGEST_S / BUSY, self.said.read_text()[-6000:])

    def kill(self, *, runs: bool) -> None:
        """End it without warning, or all that it has started with it."""
        if runs:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def ends(self) -> int:
        return self.process.wait(_LONGEST_S)


@pytest.fixture
def begin() -> Iterator[Callable[..., Follow]]:
    """Give what starts the command; what a failed test leaves is ended with its runs."""
    begun: list[Follow] = []

    def start(run: Run, *options: str) -> Follow:
        begun.append(Follow(run, *options))
        return begun[-1]

    yield start
    for follow in begun:
        if follow.process.poll() is None:
            follow.process.send_signal(signal.SIGINT)
            follow.process.wait(60)


def made(results: Path) -> dict[str, str]:
    """Return the digests of what must be the same, however it came about."""
    there = digests(results)
    return {path: digest for path, digest in there.items() if not path.startswith("placement/")}


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
    assert follow.ends() == 0
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


def test_a_stitched_cycle_is_judged_before_the_reference_cycle(
    tmp_path: Path, begin: Callable[..., Follow]
) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for cycle in (1, 2):
        image = cycle_image(tissue(1), (3.0 * cycle, 0.0), (640, 660), cycle)
        write_ome_pyramid(raw / f"slide_cycle{cycle}.ome.tif", image, ["DAPI"])
    run = Run(tmp_path, create_experiment(raw, tmp_path).config)
    reference = raw / "slide_cycle1.ome.tif"
    reference.rename(tmp_path / "later.tif")
    follow = begin(run, "--quiet-min", "0.05", "--", "--quiet", "host")
    follow.until("cycle 2: done")
    assert [*run.results.glob("*/qc/stitched_cycle2.json")]
    (tmp_path / "later.tif").rename(reference)
    assert follow.ends() == 0
    assert "cycles 1, 2: done" in follow.said.read_text()
    assert run.planned() == {}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_microscope_is_followed(tmp_path: Path, begin: Callable[..., Follow]) -> None:
    """Killed twice, one cycle bad and imaged again, the end is that of one run."""
    make_phantom(tmp_path, **DESIGN)
    stored, raw = tmp_path / "raw", tmp_path / "microscope"
    blur_cycle(stored, tmp_path / "blurred", 2, 4.0)
    raw.mkdir()
    run = make_run(tmp_path / "followed", raw, **DESIGN)
    told = run.folder / "told.txt"
    notify = run.folder / "notify"
    notify.write_text(f'#!/bin/sh\necho "$1" >> "{told}"\n')
    notify.chmod(0o755)
    options = ("--quiet-min", "0.05", "--notify", str(notify), "--", "--quiet", "host")

    image_cycle(stored, raw, 1)
    follow = begin(run, *options)
    follow.until("cycle 1 is complete")
    with ThreadPoolExecutor() as pool:
        blurred = pool.submit(image_cycle, tmp_path / "blurred", raw, 2, 0.1)
        follow.until_there("stitch/*")
        follow.kill(runs=False)
        blurred.result()

    follow = begin(run, *options)
    follow.until("another run is active")
    follow.until("cycles 1, 2: done")
    stitched = [line for line in follow.said.read_text().splitlines() if "(Rule: stitch)" in line]
    assert len(stitched) == 2  # what the killed one left was finished, and not made again
    follow.until("fail: tonsil cycle 2", told)
    assert re.search(r"fail: .*cycle 2.*no plane is in focus", follow.said.read_text())

    before = own_times(run, "1")
    with ThreadPoolExecutor() as pool:
        imaged = [pool.submit(image_cycle, stored, raw, cycle, 0.1) for cycle in (2, 3)]
        follow.until_there("stitch/cycle[23]*")
        follow.kill(runs=True)
        for cycle in imaged:
            cycle.result()

    follow = begin(run, *options)
    follow.until("if it was killed: rm .snakemake/locks/*")
    shutil.rmtree(run.folder / ".snakemake/locks")
    assert follow.ends() == 0
    assert "all cycles are done" in follow.said.read_text()
    assert own_times(run, "1") == before

    once = make_run(tmp_path / "once", raw, **DESIGN)
    once.snakemake()
    ours, theirs = made(run.results), made(once.results)
    assert len(ours) > 60
    assert ours == theirs
    assert len(json.loads((run.results / "qc.json").read_text())["items"]) > 50
    assert run.planned() == {}
