"""Results know what made them wherever they lie: moved, copied, or seen from another folder."""

import shutil
from pathlib import Path

import pytest

from tests.support.runs import Run, changed

pytestmark = pytest.mark.workflow

JUDGED = {"report": 1, "summary": 1, "verdict": 1}
REGISTERED = {"register": 1, "qc_register": 1, "resample": 1, "assemble": 1, **JUDGED}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_run: Run) -> Run:
    return tiny_run.copy(tmp_path_factory.mktemp("first"))


def moved_to(folder: Path, run: Run, *, elsewhere: bool) -> Run:
    """Return a copy of an experiment without Snakemake's records.

    Its results lie ``elsewhere``, or it is run from another folder than that of its configuration.
    """
    shutil.copytree(run.folder, folder / "my", ignore=shutil.ignore_patterns(".snakemake"))
    moved = Run(folder / "my", folder / "my/config.yaml")
    if elsewhere:
        (moved.folder / "results").rename(folder / "results")
        moved.edit(results=str(folder / "results"))
        return moved
    (folder / "other").mkdir()
    return Run(folder / "other", moved.config)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_moved_results_know_what_made_them(run: Run, tmp_path: Path, elsewhere: bool) -> None:
    moved = moved_to(tmp_path, run, elsewhere=elsewhere)
    assert moved.planned() == {}
    with moved.edited(registration={"max_rotation_deg": 4}):
        assert moved.planned() == REGISTERED
    markers = moved.config.with_name("markers.csv")
    with changed(markers, markers.read_text().replace("1,1,", "1,1,new-")):
        assert moved.planned() == {"assemble": 1, **JUDGED}
    assert moved.planned() == {}
