"""`tilewright follow` through Slurm: a cycle is judged, then the next, and it ends."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.cluster_runs import ClusterRun
from tests.support.microscope import image_cycle
from tests.support.runs import REPO, TINY, Run, make_run
from tests.support.slurm_cluster import BUSY, Cluster, wait_for
from tilewright.phantom.make import make_phantom

pytestmark = pytest.mark.slurm

DESIGN = {**TINY, "channels": 1}
#: In place of the workflow: both targets, and one job of Slurm.
SMALL = """
localrules: qc

rule registration:
    output: "results/number.txt"
    resources: runtime=5
    shell: "echo $SLURM_JOB_ID > {output}"

rule qc:
"""


def followed(run: ClusterRun) -> str:
    """Follow a raw folder to its last cycle, and return what is said."""
    log = run.folder / "run.log"
    follow = [sys.executable, "-m", "tilewright.cli", "follow", "--quiet-min", "0.1",
              "--configfile", "config.yaml", "--snakefile", str(run.snakefile),
              "--", *run.profile, *run.options()]  # fmt: skip
    with log.open("w") as stream:
        done = subprocess.run(
            follow, cwd=run.folder, env=run.environment(), stdout=stream,
            stderr=subprocess.STDOUT, timeout=BUSY * 600, check=False,
        )  # fmt: skip
    assert done.returncode == 0, log.read_text()[-6000:]
    return log.read_text()


def imaged(folder: Path, **design: object) -> Run:
    """Return an experiment whose first cycle was imaged."""
    make_phantom(folder, **design)
    image_cycle(folder / "raw", folder / "microscope", 1)
    return make_run(folder / "followed", folder / "microscope", **design)


def test_a_cycle_is_followed_through_slurm(quiet_slurm: Cluster, tmp_path: Path) -> None:
    made = imaged(tmp_path, **{**DESIGN, "cycles": 1, "planes": 2, "tile_px": 160})
    (made.folder / "Snakefile").write_text(SMALL)
    run = ClusterRun(quiet_slurm, made.folder, made.folder / "Snakefile").prepare()
    assert "cycle 1: done" in followed(run)
    (job,) = run.check_placed({"clive", "maigan"})
    assert (made.results / "number.txt").read_text() == f"{job.id}\n"


@pytest.mark.long
def test_cycles_are_followed_through_slurm(quiet_slurm: Cluster, tmp_path: Path) -> None:
    made = imaged(tmp_path, **DESIGN)
    run = ClusterRun(quiet_slurm, made.folder, REPO / "workflow/Snakefile").prepare()
    log = made.folder / "run.log"

    def next_cycle() -> None:
        wait_for(lambda: log.is_file() and "cycle 1: done" in log.read_text(), 600)
        image_cycle(tmp_path / "raw", tmp_path / "microscope", 2)

    threading.Thread(target=next_cycle, daemon=True).start()
    assert "cycles 1, 2: done" in followed(run)
    assert sum(run.placed().values()) > 8
    assert made.planned() == {}
