"""Results know what made them wherever they lie: moved, copied, or seen from another folder."""

import shutil
from pathlib import Path

import pytest

from tests.support.runs import Run, changed
from tilewright.io.results.ome_zarr import open_image

pytestmark = pytest.mark.workflow

JUDGED = {"report": 1, "summary": 1, "verdict": 1}
REGISTERED = {"register": 1, "qc_register": 1, "resample": 1, "assemble": 1, **JUDGED}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_run: Run) -> Run:
    return tiny_run.copy(tmp_path_factory.mktemp("first"))


def lies(run: Run, folder: Path, how: str) -> Run:
    """Return an experiment, whose results are at ``folder / "results"``, after a move or copy."""
    shutil.copytree(run.folder, folder / "my")
    moved = Run(folder / "my", folder / "my/config.yaml")
    if how != "copied":
        shutil.rmtree(moved.folder / ".snakemake")
    if how == "absolute":
        (moved.folder / "results").rename(folder / "results")
        moved.edit(results=str(folder / "results"))
    if how == "seen from another folder":
        (folder / "other").mkdir()
        return Run(folder / "other", moved.config)
    return moved


@pytest.mark.parametrize(
    "how",
    ["copied", "without .snakemake", "absolute", "seen from another folder"],
)
def test_moved_results_know_what_made_them(run: Run, tmp_path: Path, how: str) -> None:
    moved = lies(run, tmp_path, how)
    assert moved.planned() == {}
    with moved.edited(registration={"max_rotation_deg": 4}):
        assert moved.planned() == REGISTERED
    markers = moved.config.with_name("markers.csv")
    with changed(markers, markers.read_text().replace("1,1,", "1,1,new-")):
        assert moved.planned() == {"assemble": 1, **JUDGED}
    assert moved.planned() == {}


def test_names_change_no_pixel(run: Run, tmp_path: Path) -> None:
    renamed = lies(run, tmp_path, "copied")
    image = renamed.sample / "registration/tonsil.ome.zarr"
    before = open_image(image)
    markers = renamed.folder / "markers.csv"
    one, two = before.channel_names[:2]
    text = markers.read_text().replace(f",{one},", ",X,").replace(f",{two},", f",{one},")
    markers.write_text(text.replace(",X,", f",{two},"))
    done = renamed.snakemake("registration", "--quiet", "rules")
    assert "resample" not in done.stdout + done.stderr
    after = open_image(image)
    assert after.channel_names == (two, one, *before.channel_names[2:])
    assert (after.levels[0][:] == open_image(
        run.sample / "registration/tonsil.ome.zarr").levels[0][:]).all()  # fmt: skip
