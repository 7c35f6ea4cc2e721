"""What a run warns of: too little disk, too little memory for the largest job, lossy images."""

import re
from pathlib import Path

import pytest

from tests.support.runs import Run, make_run
from tilewright.config.layout import Layout
from tilewright.config.load import read_experiment
from tilewright.config.rules import DataSize, DataSizes
from tilewright.config.settings import Settings
from tilewright.run_needs import (
    DiskNeed,
    check_memory,
    check_space,
    missing_bytes,
    rules_of,
    run_warnings,
)


def rules_with(convention: str, method: str) -> set[str]:
    raw = {"convention": convention, "pixel_um": 0.5}
    config = {"samples": "s.csv", "markers": "m.csv", "acquisition": raw, "edf": {"method": method}}
    return rules_of(Settings.model_validate(config))


def test_the_largest_job_of_the_rules_that_run_fits_into_memory() -> None:
    size = DataSize(4, 10, 512, 512, 0.1, 2, 4)
    large = {"deconvolve": {"mem_mb": 1 << 40}}
    sizes = DataSizes(lambda _: size, {}, overrides=large)
    direct = rules_with("codex", "multiplane_wiener")
    deconvolved = rules_with("codex", "sum_projection")
    stitched = rules_with("stitched", "auto")
    assert check_memory(sizes, direct) == ""
    found = check_memory(sizes, deconvolved)
    assert found.startswith("the largest job, of deconvolve, asks for 1073741824.0 GB, and jobs ")
    assert found.endswith("; use a larger one, or a cluster")
    assert "stitched_plane" in stitched - direct
    assert not {"stitch", "edf_plane", "deconvolve"} & stitched


def test_disk_space(tmp_path: Path) -> None:
    results = tmp_path / "not/there/yet"
    passing = DiskNeed(1e3, 1e18, 5, 4)
    enough, results_alone, with_stacks = (
        check_space(need, 4, results) for need in (DiskNeed(1e3), DiskNeed(1e18), passing)
    )
    assert enough == ""
    assert "the remaining results take about 1000000000.0 GB, compressed" in results_alone
    assert "temporary stacks about 5000000000.0 GB at once with 4 jobs, compressed" in with_stacks
    for said in (results_alone, with_stacks):
        assert said.startswith("the disk may get full: ")
        assert f"results: in the configuration is {results}" in said
    assert [passing.peak(jobs) for jobs in (1, 4)] == [1e3 + 5e18] * 2
    assert DiskNeed(1e3, 1e18, 36, 4).peak(2) == 1e3 + 10e18


@pytest.fixture(scope="module")
def phantom(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("phantom")
    run = make_run(folder, cycles=2, channels=2, rows=1, cols=2, planes=3, tile_px=128)
    run.snakemake("-n")  # writes the manifests
    return run


def test_the_size_of_what_is_to_come(phantom: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(phantom.folder)
    layout, plane = Layout("results"), 128 * (128 + int(0.85 * 128))
    stacks, planes = 3 * plane * (2 + 4), plane * (2 + 2 * 2 * 4 / 3)

    def need() -> DiskNeed:
        return missing_bytes(read_experiment(phantom.config), layout)

    with phantom.edited(edf={"method": "sum_projection"}):
        assert (need().permanent, need().stack) == pytest.approx((4 * planes, stacks))
        assert (need().channels, need().channels_of_cycle) == (4, 2)
        phantom.edit(output={"keep": "stacks"})
        assert need().peak(3) == pytest.approx(4 * (stacks + planes))
        done = phantom.sample / "deconvolve/cycle1_channel1.zarr"
        done.mkdir(parents=True)
        assert need().permanent == pytest.approx(4 * (stacks + planes) - 12 * plane)
        done.rmdir()


def test_memory_is_that_of_the_machine_on_which_jobs_run(
    phantom: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(phantom.folder)
    experiment, layout = read_experiment(phantom.config), Layout("results")
    assert run_warnings(experiment, layout, 1, here=True) == []
    monkeypatch.setattr("os.sysconf", lambda _: 1)
    (memory,) = run_warnings(experiment, layout, 1, here=True)
    assert memory.startswith("the largest job, of ")
    assert run_warnings(experiment, layout, 1, here=False) == []


#: What Python does first on a machine whose disk and memory are nearly full.
_SMALL = """
import os, shutil, types
shutil.disk_usage = lambda path: types.SimpleNamespace(free=1)
os.sysconf = lambda name, own=os.sysconf: 1 if name == "SC_PHYS_PAGES" else own(name)
"""


@pytest.mark.workflow
def test_a_dry_run_warns_and_goes_on(phantom: Run, tmp_path: Path) -> None:
    command = ("registration", "-n", "--cores", "3")
    disk = r"the disk may get full: .* at once with 3 jobs, .*elsewhere \(results: in "
    memory = r"the largest job, of \w+, asks for [\d.]+ GB, and jobs of this machine have 0.0 GB"
    (tmp_path / "sitecustomize.py").write_text(_SMALL)
    for environment, times in (({}, 0), ({"PYTHONPATH": str(tmp_path)}, 1)):
        done = phantom.snakemake(*command, env=environment)
        for words in (disk, memory):
            assert len(re.findall(words, done.stdout + done.stderr)) == times
