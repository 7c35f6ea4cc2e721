"""A cycle or a sample that is added, or imaged again, makes its own jobs and the final ones."""

import os
from pathlib import Path

import pytest

from tests.support.microscope import cycle_folder, image_cycle
from tests.support.runs import LATER, Run, changed, make_run

pytestmark = pytest.mark.workflow

#: Jobs over all cycles of a sample, and over all samples.
FINAL = {"assemble": 1, "report": 1, "summary": 1, "verdict": 1}
#: Jobs of one cycle of the phantom, up to its registration.
OWN = {
    **dict.fromkeys(("calibrate", "register", "resample"), 1),
    **{"stitch": 2, "edf_plane": 2, "qc_cycle": 1, "qc_register": 1},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_run: Run, tiny_later: Path) -> Run:
    """Two cycles of three, processed while the third had no files."""
    made = tiny_run.copy(tmp_path_factory.mktemp("cycles"))
    image_cycle(tiny_later / "later", made.folder / "raw", 3)
    return made


def test_what_is_added_or_imaged_again_makes_its_own_jobs(run: Run) -> None:
    assert run.planned() == {}
    assert "has cycle 3 too, not processed yet" in (run.results / "report.html").read_text()
    manifests = {path: path.stat().st_mtime_ns for path in run.sample.glob("raw/*.csv")}
    assert len(manifests) == 2
    markers, table = run.folder / "markers.csv", run.folder / "samples.tsv"
    lines = markers.read_text().splitlines(keepends=True)
    with run.edited(cycles="auto"):
        assert run.planned() == {**OWN, **FINAL}
        assert (run.sample / "raw/cycle3.csv").is_file()
        assert {path: path.stat().st_mtime_ns for path in manifests} == manifests
        # Of other channels: flat-fields then are a job per channel; those that are there stay.
        with changed(markers, "".join(lines[:-1])):
            one_channel = {"stitch": 1, "edf_plane": 1}
            assert run.planned() == {**OWN, **FINAL, **one_channel}
        # A table that grows is the same as the key, but that the page shows the configuration.
        with changed(markers, "".join(lines[:-2])):
            assert set(run.planned()) == {"report", "verdict"}
    head, tonsil = table.read_text().splitlines()
    spleen = tonsil.replace("tonsil", "spleen")
    # of another scan: else all tiles would tell the flat-fields of both
    tiles = run.folder / "tiles.csv"
    rows = tiles.read_text()
    both = rows + "".join(row.replace("tonsil", "spleen") for row in rows.splitlines(True)[1:])
    with changed(tiles, both), changed(table, f"{head}\tscan\n{tonsil}\n{spleen}\tsecond\n"):
        twice = {name: 2 * count for name, count in OWN.items() if "register" not in name}
        assert run.planned() == {**twice, "register": 1, "qc_register": 1, **FINAL}
    files = sorted(cycle_folder(run.folder / "raw", 2).glob("*.tif"))
    for path in files:
        path.write_bytes(path.read_bytes())
    assert run.planned() == {**OWN, **FINAL}
    for path in files:
        os.utime(path)
    assert run.planned() == {**OWN, **FINAL}


def test_only_the_reference_cycle_is_late(tmp_path: Path, tiny_raw: Path) -> None:
    other = make_run(tmp_path, tiny_raw, **LATER)
    other.edit(cycles=[2])
    assert other.planned("edf") == {
        k: n for k, n in OWN.items() if "register" not in k and k != "resample"
    }
