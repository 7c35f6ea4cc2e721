"""The whole workflow, run by Snakemake on a phantom, against the phantom's truth."""

import contextlib
import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from scipy import ndimage

from benchmarks.phantom_truth import PhantomTruth, mosaic_offset
from tests.conftest import REPO
from tests.support.runs import LATER, TINY, Run, changed, make_run, peak_mb
from tilewright.config.checks import data_size, data_sizes, manifests
from tilewright.config.layout import Layout
from tilewright.config.load import read_experiment
from tilewright.config.rules import SNAKEMAKE_MB
from tilewright.io.results.mosaic import open_mosaic
from tilewright.phantom.make import PhantomDesign, make_phantom

pytestmark = pytest.mark.workflow
Image = NDArray[np.floating[Any]]


@pytest.fixture(scope="module")
def truth() -> PhantomTruth:
    return PhantomTruth(PhantomDesign(**LATER))


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory, tiny_run: Run) -> Run:
    """The finished run in another folder, its results in a third, without Snakemake's records.

    Tests change its configuration for a while.
    """
    folder = tmp_path_factory.mktemp("moved")
    run = tiny_run.copy(folder / "my")
    shutil.rmtree(run.folder / ".snakemake")
    run.results.rename(folder / "results")
    run.edit(results=str(folder / "results"))
    return run


def _correlation(a: Image, b: Image) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


@pytest.mark.parametrize("channel", [1, 2])
def test_in_focus_plane(tiny_run: Run, truth: PhantomTruth, channel: int) -> None:
    """It comes nearer to the truth than any raw plane."""
    plane = open_mosaic(tiny_run.sample / f"edf/cycle1_channel{channel}.zarr").read(0).astype(float)
    oy, ox = mosaic_offset(tiny_run.sample, truth, 1)
    y, x = np.mgrid[: plane.shape[0], : plane.shape[1]]
    expected = ndimage.map_coordinates(truth.projections[1, channel], [y + oy, x + ox], order=3)
    # Debris is brighter than the camera can say, and lights what is around it; 24 px are the
    # mosaic's ragged rim.
    stack = open_mosaic(tiny_run.sample / f"stitch/cycle1_channel{channel}.zarr")
    saturated = (stack.read() >= stack.attributes["saturated_from_counts"]).any(axis=0)
    judged = ndimage.distance_transform_edt(~saturated) > 16
    judged[:24] = judged[-24:] = judged[:, :24] = judged[:, -24:] = False
    reached = _correlation(plane[judged], expected[judged])
    raw = max(_correlation(stack.read(z)[judged], expected[judged]) for z in range(stack.shape[0]))
    assert reached > 0.99
    # 0.26 and 0.23 of the best raw plane's disagreement are left.
    assert 1 - reached < 0.5 * (1 - raw)


def test_registered_image(tiny_run: Run) -> None:
    with tifffile.TiffFile(tiny_run.sample / "registration/tonsil.ome.tif") as tiff:
        series = tiff.series[0]
        assert (series.axes, series.dtype) == ("CYX", np.uint16)
        image = series.asarray().astype(float)
    with (tiny_run.sample / "registration/markers.csv").open() as stream:
        markers = [row["marker_name"] for row in csv.DictReader(stream)]
    assert markers == [name for names in PhantomDesign(**TINY).markers() for name in names]
    # Lost tissue (3 %) leaves the rest of the nuclei in agreement.
    assert _correlation(*image[[0, 2], 24:-24, 24:-24]) > 0.93


def test_quality_report(tiny_run: Run) -> None:
    content = json.loads((tiny_run.results / "qc.json").read_text())
    assert content["verdict"] in ("pass", "warn")
    assert {item["stage"] for item in content["items"]} == {
        *("illumination", "tile_positions", "stitch", "edf", "register"),
    }
    assert not [item["sentence"] for item in content["items"] if item["value"] is None]
    page = (tiny_run.results / "report.html").read_text()
    assert "tonsil" in page
    assert "data:image/" in page
    assert 'src="http' not in page
    assert len(page) < 3e6  # can be sent by mail
    with (tiny_run.results / "trusted_markers.csv").open() as stream:
        assert {row["verdict"] for row in csv.DictReader(stream)} <= {"pass", "warn"}


IMAGE = {"resample": 2, "assemble": 1}


@pytest.mark.parametrize(
    ("sections", "jobs"),
    [
        ({"deconvolve": {"iterations": 7}}, {}),
        (
            {"edf": {"method": "sum_projection"}},
            {"deconvolve": 4, "edf_plane": 4, "register": 1, **IMAGE},
        ),
        ({"registration": {"max_rotation_deg": 4}}, {"register": 1, "resample": 1, "assemble": 1}),
        (
            {"tile_positions": {"false_match_probability": 1e-3}},
            {"calibrate": 2, "stitch": 4, "edf_plane": 4, "register": 1, **IMAGE},
        ),
    ],
    ids=["of what is not made", "method of the plane", "registration", "tile positions"],
)
def test_a_changed_key_reruns_what_depends_on_it(
    moved: Run, sections: dict[str, Any], jobs: dict[str, int]
) -> None:
    with moved.edited(**sections):
        assert moved.planned("registration") == jobs


def test_a_renamed_marker_rewrites_the_final_image_alone(moved: Run) -> None:
    path = moved.folder / "markers.csv"
    with changed(path, path.read_text().replace("1,1,", "1,1,new-")):
        assert moved.planned() == {"assemble": 1, "report": 1, "summary": 1, "verdict": 1}


def test_a_run_from_another_working_folder_makes_nothing_again(moved: Run, tmp_path: Path) -> None:
    assert Run(tmp_path, moved.config).planned() == {}


def test_a_background_reruns_the_final_image_alone(moved: Run) -> None:
    path = moved.folder / "markers.csv"
    head, *lines = [f"{line},,," for line in path.read_text().splitlines()]
    head = head.rstrip(",") + ",exposure_ms,background,remove"
    late = {"assemble": 1, "report": 1, "summary": 1, "verdict": 1}
    with changed(path, "\n".join([head, *lines]) + "\n"):
        assert moved.planned() == {}
    lines[1] = lines[1].removesuffix(",,,") + f",200,{lines[3].split(',')[2]},"
    lines[3] = lines[3].removesuffix(",,,") + ",100,,TRUE"
    with changed(path, "\n".join([head, *lines]) + "\n"):
        # Of its cycle, and of the one that lost a marker.
        assert moved.planned() == {"resample": 2, "qc_subtract": 1, **late}
        with moved.edited(subtract={"method": "none"}):
            assert moved.planned() == {"resample": 1, **late}


def test_a_sample_of_nine_cycles_is_at_most_135_slurm_jobs(tmp_path: Path) -> None:
    nine = make_run(tmp_path, cycles=9, channels=4, rows=1, cols=2, planes=2, tile_px=128)
    jobs = nine.planned("registration", "qc")
    beside_the_coordinator = {"summary", "verdict"}
    assert sum(n for rule, n in jobs.items() if rule not in beside_the_coordinator) <= 135


def test_targets_do_no_more_than_they_need(tmp_path: Path, tiny_raw: Path) -> None:
    fresh = make_run(tmp_path, tiny_raw, **TINY)
    assert set(fresh.planned("stitching")) == {"calibrate", "stitch"}
    registration = fresh.planned("registration")
    # stacks are judged before they are gone
    assert registration["qc_cycle"] == 2
    assert not registration.keys() & {"qc_register", "report", "summary", "verdict"}
    fresh.edit(output={"keep": "stacks"})
    assert "qc_cycle" not in fresh.planned("registration")
    assert "edf_plane" not in fresh.planned("registration", "--until", "stitch")


def test_jobs_ask_for_the_memory_that_they_take(tiny_run: Run) -> None:
    """A job of Slurm holds Snakemake twice, 140 MB each."""
    logs = sorted((tiny_run.results / "logs").glob("*/*.log"))
    assert {log.parent.name for log in logs} > {"stitch", "edf_plane", "register", "report"}
    with contextlib.chdir(tiny_run.folder):
        experiment = read_experiment(tiny_run.config)
        layout = Layout(experiment.settings.results)
        sizes = data_sizes(experiment, data_size(experiment, layout, manifests(layout)), {})
        for log in logs:
            asked_mb = sizes.request(log.parent.name, {"sample": "tonsil"}, "cpu").mem_mb
            taken_mb = SNAKEMAKE_MB + peak_mb(log)
            assert 0.5 * asked_mb < taken_mb < asked_mb, (log, taken_mb, asked_mb)


def test_lint(moved: Run) -> None:
    said = moved.snakemake("--lint")
    assert "in a good condition" in said.stdout + said.stderr


def test_shipped_configurations(tmp_path: Path) -> None:
    make_phantom(tmp_path / "demo", seed=1, planes=2)
    shutil.copytree(REPO / "config", tmp_path / "config")
    for name in ("demo.yaml", "config.yaml"):
        shipped = Run(tmp_path, tmp_path / "config" / name)
        jobs = shipped.planned()
        assert jobs["stitch"] == jobs["edf_plane"] == 9
        assert "deconvolve" not in jobs
