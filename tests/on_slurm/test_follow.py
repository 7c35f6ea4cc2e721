"""`tilewright follow` through Slurm: a cycle is judged, then the next, and it ends."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.cluster_runs import ClusterRun
from tests.support.microscope import image_cycle
from tests.support.runs import REPO, TINY, make_run
from tests.support.slurm_cluster import BUSY, Cluster, wait_for
from tilewright.phantom.make import make_phantom

pytestmark = pytest.mark.slurm

DESIGN = {**TINY, "channels": 1}
SMALLER = {"cycles": 1, "planes": 2, "tile_px": 160}


@pytest.mark.parametrize("cycles", [1, pytest.param(2, marks=pytest.mark.long)])
def test_cycles_are_followed_through_slurm(
    quiet_slurm: Cluster, tmp_path: Path, cycles: int
) -> None:
    design = DESIGN if cycles > 1 else {**DESIGN, **SMALLER}
    make_phantom(tmp_path, **design)
    raw = tmp_path / "microscope"
    image_cycle(tmp_path / "raw", raw, 1)
    made = make_run(tmp_path / "followed", raw, **design)
    run = ClusterRun(quiet_slurm, made.folder, REPO / "workflow/Snakefile").prepare()
    log = made.folder / "run.log"

    def next_cycle() -> None:
        wait_for(lambda: log.is_file() and "cycle 1: done" in log.read_text(), 600)
        image_cycle(tmp_path / "raw", raw, 2)

    if cycles > 1:
        threading.Thread(target=next_cycle, daemon=True).start()
    follow = [sys.executable, "-m", "tilewright.cli", "follow", "--quiet-min", "0.1",
              "--configfile", "config.yaml", "--snakefile", str(run.snakefile),
              "--", *run.profile, *run.options()]  # fmt: skip
    with log.open("w") as stream:
        done = subprocess.run(
            follow, cwd=made.folder, env=run.environment(), stdout=stream,
            stderr=subprocess.STDOUT, timeout=BUSY * 600, check=False,
        )  # fmt: skip
    said = log.read_text()
    assert done.returncode == 0, said[-6000:]
    assert ("cycles 1, 2: done" if cycles > 1 else "cycle 1: done") in said
    assert sum(run.placed().values()) > 4 * cycles
    assert made.planned() == {}
