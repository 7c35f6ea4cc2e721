"""Stacks go when nothing needs them, and a rerun does what its dry run said."""

import json
import shutil
from pathlib import Path

import pytest
import tifffile

from tests.support.runs import REPO, TINY, Run, digests, job_counts, make_run

pytestmark = pytest.mark.workflow

TARGETS = ("registration", "qc")


@pytest.fixture(scope="module")
def processed(tmp_path_factory: pytest.TempPathFactory, tiny_raw: Path) -> Run:
    """One channel of one cycle, processed to the end by way of deconvolved stacks."""
    run = make_run(tmp_path_factory.mktemp("processed"), tiny_raw, **TINY)
    table = run.folder / "markers.csv"
    table.write_text("\n".join(table.read_text().splitlines()[:2]) + "\n")
    run.edit(deconvolve={"iterations": 2}, edf={"method": "sum_projection"})
    run.snakemake("registration")
    return run


@pytest.fixture
def done(processed: Run, tmp_path: Path) -> Run:
    """The same in a folder of its own, for a test to go on with."""
    return processed.copy(tmp_path / "done")


def stacks(run: Run) -> list[Path]:
    return [*run.sample.glob("stitch/*"), *run.sample.glob("deconvolve/*")]


def rerun(run: Run, *args: str) -> dict[str, int]:
    """Run, and return how many jobs of each rule were done, which are those of the dry run."""
    planned = run.planned(*TARGETS, *args)
    said = run.snakemake(*TARGETS, *args, "--quiet", "rules")
    assert job_counts(said.stdout + said.stderr) == planned
    return planned


def test_stacks_go_when_nothing_needs_them(done: Run) -> None:
    with tifffile.TiffFile(done.sample / "registration/tonsil.ome.tif") as tiff:
        assert tiff.series[0].axes == "YX"  # one channel
    assert not (done.sample / "register").exists()  # of one cycle
    assert stacks(done) == []
    assert rerun(done) == {"report": 1, "summary": 1, "verdict": 1}
    assert done.planned(*TARGETS) == {}
    done.snakemake("deconvolution")
    assert len(stacks(done)) == 2  # they stay where they are asked for
    assert not done.planned(*TARGETS).keys() & {"stitch", "deconvolve"}


def test_another_installation_runs_nothing_again(done: Run, tmp_path: Path) -> None:
    done.snakemake(*TARGETS)
    for folder in ("workflow", "scripts", "profiles"):  # of a later time than all results
        shutil.copytree(REPO / folder, tmp_path / folder, copy_function=shutil.copyfile)
    assert done.planned(*TARGETS, "--snakefile", str(tmp_path / "workflow/Snakefile")) == {}


@pytest.mark.long
def test_reruns_make_what_they_need_and_no_more(done: Run) -> None:
    done.snakemake(*TARGETS)
    before = digests(done.sample)
    late = {"resample": 1, "assemble": 1, "qc_cycle": 1}
    whole = {"stitch": 1, "deconvolve": 1, "edf_plane": 1, **late}
    jobs = rerun(done, "-R", "edf_plane")
    assert {name: jobs.get(name) for name in whole} == whole
    assert "calibrate" not in jobs
    assert stacks(done) == []
    assert digests(done.sample) == before
    done.edit(edf={"method": "auto"})
    jobs = rerun(done)
    assert {name: jobs.get(name) for name in whole} == {**whole, "deconvolve": None}
    assert (done.results / "report.html").is_file()
    table = done.folder / "markers.csv"
    table.write_text(table.read_text().replace("1,1,", "1,1,new-"))
    judged = {"summary": 1, "report": 1, "verdict": 1}
    assert rerun(done) == {"assemble": 1, **judged}
    assert "new-" in (done.results / "qc.csv").read_text()
    done.edit(qc={"thresholds": {"contrast": {"warn": 1e6, "fail": 0.001}}})
    assert rerun(done) == {"summary": 1, "report": 1, "verdict": 1}
    items = json.loads((done.results / "qc.json").read_text())["items"]
    assert {item["fail"] for item in items if item["metric"] == "contrast"} == {0.001}
    assert done.planned(*TARGETS) == {}
