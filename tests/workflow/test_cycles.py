"""A cycle or a sample that is added, or imaged again, makes its own jobs and the final ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.runs import TINY, Run, make_run

pytestmark = pytest.mark.workflow

#: Jobs are counted here, and no pixel is looked at.
DESIGN = {**TINY, "cycles": 3, "planes": 2, "tile_px": 128}
#: Jobs over all cycles of a sample, and over all samples.
FINAL = {"assemble": 1, "report": 1, "summary": 1, "verdict": 1}
#: Jobs of one cycle of the phantom, up to its registration.
OWN = {
    "illumination": 1,
    "tile_positions": 1,
    "stitch": 2,
    "edf_plane": 2,
    "qc_cycle": 1,
    "register": 1,
    "qc_register": 1,
    "resample": 1,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two cycles of three, processed while the third has no files."""
    made = make_run(tmp_path_factory.mktemp("cycles"), **DESIGN)
    (folder,) = (made.folder / "raw").glob("[Cc]yc*3_reg*")
    third = made.folder / folder.name
    folder.rename(third)
    made.edit(cycles=[1, 2])
    made.snakemake()
    third.rename(folder)
    return made


def times(run: Run) -> dict[str, int]:
    """Return when each file of the results was written."""
    return {str(p.relative_to(run.results)): p.stat().st_mtime_ns for p in run.results.rglob("*")}


def test_what_is_added_or_imaged_again_makes_its_own_jobs(run: Run) -> None:
    a_cycle_that_is_added(run)
    a_cycle_of_other_channels_that_is_added(run)
    a_line_of_the_markers_table_that_is_added(run)
    a_sample_that_is_added(run)
    a_cycle_that_is_imaged_again(run)  # the last: its raw files stay newer


def a_cycle_that_is_added(run: Run) -> None:
    assert run.planned() == {}
    assert "has cycle 3 too, not processed yet" in (run.results / "report.html").read_text()
    before = times(run)
    run.edit(cycles="auto")
    try:
        assert run.planned() == {**OWN, **FINAL, "qc_image": 3}
    finally:
        run.edit(cycles=[1, 2])
    after = times(run)
    assert "tonsil/raw/cycle3.csv" in after
    assert {path: after[path] for path in before if path.endswith(".csv")} == {
        path: at for path, at in before.items() if path.endswith(".csv")
    }


def a_cycle_of_other_channels_that_is_added(run: Run) -> None:
    """Flat-fields then are a job per channel; those that are there stay."""
    table = run.folder / "markers.csv"
    whole = table.read_text()
    table.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    run.edit(cycles="auto")
    try:
        jobs = run.planned()
    finally:
        table.write_text(whole)
        run.edit(cycles=[1, 2])
    assert jobs == {**OWN, **FINAL, "qc_image": 3, "stitch": 1, "edf_plane": 1}


def a_line_of_the_markers_table_that_is_added(run: Run) -> None:
    """The same as without the key: a table that grows."""
    table = run.folder / "markers.csv"
    whole = table.read_text()
    table.write_text("".join(whole.splitlines(keepends=True)[:-2]))
    run.edit(cycles="auto")
    try:
        assert set(run.planned()) == {"report", "verdict"}  # the page shows the configuration
    finally:
        table.write_text(whole)
        run.edit(cycles=[1, 2])


def a_sample_that_is_added(run: Run) -> None:
    table = run.folder / "samples.tsv"
    before = table.read_text()
    table.write_text(before + before.splitlines()[1].replace("tonsil", "spleen") + "\n")
    try:
        jobs = run.planned()
    finally:
        table.write_text(before)
    twice = {name: 2 * count for name, count in OWN.items() if "register" not in name}
    assert jobs == {**twice, "register": 1, "qc_register": 1, **FINAL, "qc_image": 2}


def a_cycle_that_is_imaged_again(run: Run) -> None:
    (folder,) = (run.folder / "raw").glob("[Cc]yc*2_reg*")
    files = sorted(folder.glob("*.tif"))
    for path in files:
        path.write_bytes(path.read_bytes())
    assert run.planned() == {**OWN, **FINAL, "qc_image": 2}
    for path in files:
        os.utime(path)
    assert run.planned() == {**OWN, **FINAL, "qc_image": 2}


def test_only_the_reference_cycle_is_late(tmp_path: Path, run: Run) -> None:
    other = make_run(tmp_path, raw=run.folder / "raw", **DESIGN)
    other.edit(cycles=[2])
    said = other.snakemake("-n", ok=False)
    assert "add it, or give the target edf" in said.stdout + said.stderr
    assert other.planned("edf") == {
        k: n for k, n in OWN.items() if "register" not in k and k != "resample"
    }
