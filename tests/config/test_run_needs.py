"""What a run warns of: too little disk or memory, lossy images, channels of other z-planes."""

import os
import re
from pathlib import Path

import pytest

from tests.support.runs import Run, make_run
from tilewright.config.checks import data_size
from tilewright.config.layout import Layout
from tilewright.config.load import read_experiment
from tilewright.config.rules import DataSize, DataSizes
from tilewright.config.settings import Settings
from tilewright.run_needs import check_memory, check_space, missing_bytes, rules_of


def rules_with(convention: str, method: str) -> set[str]:
    raw = {"convention": convention, "pixel_um": 0.5}
    config = {"samples": "s.csv", "markers": "m.csv", "acquisition": raw, "edf": {"method": method}}
    return rules_of(Settings.model_validate(config))


def test_the_largest_job_of_the_rules_that_run_fits_into_memory() -> None:
    size = DataSize(4, 10, 512, 512, 0.1, 2, 4)
    large = {"deconvolve": {"mem_mb": 1 << 40}}
    models = DataSizes(lambda _: size, {}, overrides=large).models()
    direct = rules_with("codex", "multiplane_wiener")
    deconvolved = rules_with("codex", "sum_projection")
    stitched = rules_with("stitched", "auto")
    assert check_memory(models, direct) == ""
    found = check_memory(models, deconvolved)
    assert found.startswith("the largest job, of deconvolve, asks for 1073741824.0 GB, and jobs ")
    assert found.endswith("; use a larger one, or a cluster")
    assert "stitched_plane" in stitched - direct
    assert not {"stitch", "edf_plane", "deconvolve"} & stitched


def test_disk_space(tmp_path: Path) -> None:
    results = tmp_path / "not/there/yet"
    assert check_space(1e3, 0.0, results) == ""
    for lasting, passing, words in (
        (1e18, 0.0, "results take about 1000000000.0 GB, compressed 700000000.0 GB, and"),
        (1e3, 5e18, "and temporary stacks 5000000000.0 GB, compressed"),
    ):
        said = check_space(lasting, passing, results)
        assert said.startswith("the disk may get full: ")
        assert words in said
        assert f"results: in the configuration is {results}" in said


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

    def need(jobs: int) -> tuple[float, float]:
        experiment = read_experiment(phantom.config)
        return missing_bytes(experiment, layout, data_size(experiment, layout), jobs)

    with phantom.edited(edf={"method": "sum_projection"}):
        assert need(3) == pytest.approx((4 * planes, 4 * stacks))
        phantom.edit(output={"keep": "stacks"})
        assert need(1) == pytest.approx((4 * (stacks + planes), 0))
        done = phantom.sample / "edf/cycle1_channel1.zarr"
        done.mkdir(parents=True)
        assert need(1)[0] == pytest.approx(4 * (stacks + planes) - stacks - 2 * plane)
        done.rmdir()


#: What Python does first on a machine whose disk and memory are nearly full.
_SMALL = """
import os, shutil, types
shutil.disk_usage = lambda path: types.SimpleNamespace(free=1)
os.sysconf = lambda name, own=os.sysconf: 1 if name == "SC_PHYS_PAGES" else own(name)
"""


@pytest.mark.workflow
def test_a_dry_run_warns_and_goes_on(phantom: Run, tmp_path: Path) -> None:
    command = ("registration", "-n", "--cores", "3")
    disk = r"the disk may get full: .* temporary stacks .*elsewhere \(results: in "
    memory = r"the largest job, of \w+, asks for [\d.]+ GB, and jobs of this machine have 0.0 GB"
    (tmp_path / "sitecustomize.py").write_text(_SMALL)
    first = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    for environment, times in (({}, 0), ({"PYTHONPATH": first}, 1)):
        done = phantom.snakemake(*command, env=environment)
        for words in (disk, memory):
            assert len(re.findall(words, done.stdout + done.stderr)) == times


@pytest.mark.workflow
def test_a_dry_run_names_the_channel_that_lacks_a_plane_in_all_tiles(
    phantom: Run, tmp_path: Path
) -> None:
    for path in (phantom.folder / "raw").rglob("Cyc2_reg1/*_Z00[23]_CH2.tif"):
        path.rename(tmp_path / path.name)
    done = phantom.snakemake("registration", "-n", "--cores", "3")
    for path in tmp_path.glob("*.tif"):
        path.rename(phantom.folder / "raw/Cyc2_reg1" / path.name)
    said = re.findall("cycle .* z-plane.*", done.stdout + done.stderr)
    assert said == [
        "cycle 2, channel 2 (PanCK) has 1 z-plane and the others 3; copy the files of planes that "
        "were imaged and are missing"
    ]
