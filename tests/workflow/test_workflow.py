"""The whole workflow, run by Snakemake on a phantom, against the phantom's truth."""

from __future__ import annotations

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

from benchmarks.starting import peak_mb
from snakemake_scheduler_plugin_tilewright.runtime.run_state import read_state
from tests.conftest import REPO
from tests.support.phantom_truth import PhantomTruth, mosaic_offset, truth_of
from tests.support.runs import SMALL, Run, digests, make_run
from tilewright.commands.dag import read_experiment
from tilewright.config.checks import data_sizes
from tilewright.config.layout import Layout
from tilewright.config.sizing import SNAKEMAKE_MB
from tilewright.io.results.mosaic import open_mosaic
from tilewright.io.results.positions import read_positions
from tilewright.io.results.transform import read_transform
from tilewright.phantom.make import PhantomDesign, make_phantom

pytestmark = pytest.mark.workflow
Image = NDArray[np.floating[Any]]


@pytest.fixture(scope="module")
def truth() -> PhantomTruth:
    return truth_of(PhantomDesign(**SMALL))


def _correlation(a: Image, b: Image) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


@pytest.mark.parametrize("cycle", [1, 2, 3])
def test_positions(run: Run, truth: PhantomTruth, cycle: int) -> None:
    found = read_positions(run.sample / f"tile_positions/cycle{cycle}/positions.csv")
    placed = np.stack([found.y_px, found.x_px], axis=1)
    error = truth.true_px[cycle - 1] - placed - mosaic_offset(run.sample, truth, cycle)
    tied = found.island == 0
    assert tied.sum() >= 4
    assert np.sqrt((error[tied] ** 2).mean()) < 0.2
    # Tiles without tissue stand at the corrected stage position.
    assert np.abs(error).max() < 8


@pytest.mark.parametrize("channel", [1, 2])
def test_flat_field(run: Run, truth: PhantomTruth, channel: int) -> None:
    flat = tifffile.imread(run.sample / f"illumination/cycle1_channel{channel}-ffp.tif")
    expected = truth.flat[channel - 1]
    before = np.sqrt(((1 / expected - 1) ** 2).mean())
    after = np.sqrt(((flat / flat.mean() / expected - 1) ** 2).mean())
    assert after < 0.05
    assert after < before / 3


def _in_focus(
    run: Run, truth: PhantomTruth, cycle: int, channel: int
) -> tuple[Image, Image, NDArray[np.bool_]]:
    """Return the plane, the truth, and where they can be compared."""
    path = run.sample / f"edf/cycle{cycle}_channel{channel}.zarr"
    plane = open_mosaic(path).read(0).astype(float)
    oy, ox = mosaic_offset(run.sample, truth, cycle)
    y, x = np.mgrid[: plane.shape[0], : plane.shape[1]]
    expected = ndimage.map_coordinates(truth.projections[cycle, channel], [y + oy, x + ox], order=3)
    # Debris is brighter than the camera can say, and lights what is around it; 24 px are the
    # mosaic's ragged rim.
    stack = open_mosaic(run.sample / f"stitch/cycle{cycle}_channel{channel}.zarr")
    saturated = (stack.read() >= stack.attributes["saturated_from_counts"]).any(axis=0)
    judged = ndimage.distance_transform_edt(~saturated) > 16
    judged[:24] = judged[-24:] = judged[:, :24] = judged[:, -24:] = False
    return plane, expected, judged


@pytest.mark.parametrize(("cycle", "channel"), [(1, 1), (1, 2)])
def test_in_focus_plane(run: Run, truth: PhantomTruth, cycle: int, channel: int) -> None:
    """It comes nearer to the truth than any raw plane."""
    plane, expected, judged = _in_focus(run, truth, cycle, channel)
    stack = open_mosaic(run.sample / f"stitch/cycle{cycle}_channel{channel}.zarr")
    reached = _correlation(plane[judged], expected[judged])
    raw = max(_correlation(stack.read(z)[judged], expected[judged]) for z in range(stack.shape[0]))
    assert reached > 0.95
    # 0.59 and 0.20 of the best raw plane's disagreement are left.
    assert 1 - reached < 0.75 * (1 - raw)


@pytest.mark.long
def test_the_plane_of_deconvolved_stacks(tmp_path: Path, run: Run, truth: PhantomTruth) -> None:
    """It is asked for, quality passes, and it is no nearer to the truth."""
    other = make_run(tmp_path / "deconvolved", raw=run.folder / "raw")
    other.edit(edf={"method": "psf_mean"}, output={"keep": "stacks"})
    assert not (run.sample / "deconvolve").exists()
    assert not (run.sample / "qc/deconvolve_cycle1.json").exists()
    other.snakemake("results/tonsil/qc/edf_cycle1.json")
    for stage in ("deconvolve", "edf"):
        content = json.loads((other.sample / f"qc/{stage}_cycle1.json").read_text())
        assert content["verdict"] in ("pass", "warn")
    for channel in (1, 2):
        name = f"edf/cycle1_channel{channel}.zarr"
        methods = [open_mosaic(made.sample / name).attributes["method"] for made in (run, other)]
        assert methods == ["direct", "psf_mean"]
        left = []
        for made in (run, other):
            plane, expected, at = _in_focus(made, truth, 1, channel)
            left.append(1 - _correlation(plane[at], expected[at]))
        # 0.47 and 0.76 were measured
        assert left[0] < 0.9 * left[1]
    # The target deconvolves whatever the method is.
    assert run.planned("deconvolution") == {"deconvolve": 6}
    assert other.planned("registration")["deconvolve"] == 4


@pytest.mark.parametrize("cycle", [2, 3])
def test_registration_error(run: Run, truth: PhantomTruth, cycle: int) -> None:
    transform = read_transform(run.sample / f"register/cycle{cycle}.npz")
    reference = mosaic_offset(run.sample, truth, 1)
    moving = mosaic_offset(run.sample, truth, cycle)
    # A grid on the cycle's canvas, where it shows tissue that the cycle kept.
    y, x = np.mgrid[60:400:12, 60:600:12].astype(float)
    there = np.stack(truth.maps[cycle - 1].to_reference(y, x))
    seen = ndimage.map_coordinates(
        (truth.tissue * truth.kept[cycle - 1]).astype(float), there, order=1
    )
    on_tissue = seen > 0.9
    points = np.stack([there[0][on_tissue], there[1][on_tissue]], axis=1) - reference
    expected = np.stack([y[on_tissue], x[on_tissue]], axis=1) - moving
    error = np.hypot(*(transform.points(points) - expected).T)
    assert len(error) > 200
    assert np.median(error) < 0.35
    assert np.percentile(error, 95) < 1.2


def test_registered_image(run: Run, truth: PhantomTruth) -> None:
    path = run.sample / "registration/tonsil.ome.tif"
    with tifffile.TiffFile(path) as tiff:
        series = tiff.series[0]
        assert series.axes == "CYX"
        assert series.dtype == np.uint16
        assert len(series.levels) > 1
        image = series.asarray().astype(float)
        metadata = tiff.ome_metadata or ""
    with (run.sample / "registration/markers.csv").open() as stream:
        markers = [row["marker_name"] for row in csv.DictReader(stream)]
    assert markers == [name for names in truth.design.markers() for name in names]
    for marker in markers:
        assert f'Name="{marker}"' in metadata
    assert 'PhysicalSizeX="0.377"' in metadata
    inner = (slice(24, -24), slice(24, -24))
    nuclei = [image[k][inner] for k in (0, 2, 4)]
    # Lost tissue (3 %) and the empty tile leave the rest in agreement.
    assert _correlation(nuclei[0], nuclei[1]) > 0.85
    assert _correlation(nuclei[0], nuclei[2]) > 0.85


def test_quality_report(run: Run) -> None:
    content = json.loads((run.results / "qc.json").read_text())
    assert content["verdict"] in ("pass", "warn")
    stages = {item["stage"] for item in content["items"]}
    assert stages == {
        *("illumination", "tile_positions", "stitch", "edf", "register", "image"),
    }
    unknown = [item["sentence"] for item in content["items"] if item["value"] is None]
    assert not unknown
    page = (run.results / "report.html").read_text()
    assert "tonsil" in page
    assert "data:image/" in page
    with (run.results / "trusted_markers.csv").open() as stream:
        assert {row["verdict"] for row in csv.DictReader(stream)} <= {"pass", "warn"}


@pytest.mark.parametrize("cycle", [2, 3])
def test_the_report_says_how_much_tissue_was_lost(
    run: Run, truth: PhantomTruth, cycle: int
) -> None:
    content = json.loads((run.results / "qc.json").read_text())
    (found,) = (
        item["value"]
        for item in content["items"]
        if item["metric"] == "lost_tissue" and item["cycle"] == cycle
    )
    mosaic = open_mosaic(run.sample / "edf/cycle1_channel1.zarr")
    top, left = mosaic_offset(run.sample, truth, 1).round().astype(int)
    seen = (slice(top, top + mosaic.shape[1]), slice(left, left + mosaic.shape[2]))
    light = truth.tissue[seen] * truth.projections[1, 1][seen]
    lost = float((light * (1 - truth.kept[cycle - 1][seen])).sum() / light.sum())
    assert lost > 0.005
    assert found == pytest.approx(lost, rel=0.4)


def test_the_run_says_that_it_is_complete(run: Run) -> None:
    state = read_state(run.results / "placement/state.json")
    assert state.complete
    assert state.ended
    assert state.jobs["stitch"] == 6


def test_nothing_is_left_to_do(run: Run) -> None:
    assert run.planned() == {}


def test_changed_key_reruns_what_depends_on_it(run: Run) -> None:
    before = run.config.read_text()
    run.edit(deconvolve={"iterations": 7}, camera={"gain_counts_per_photon": 2.0})
    try:
        assert run.planned("registration") == {}
        run.edit(edf={"method": "psf_mean"})
        jobs = run.planned("registration")
    finally:
        run.config.write_text(before)
    assert jobs.pop("deconvolve") == 6
    assert jobs.pop("edf_plane") == 6
    assert jobs.pop("register") == 2
    assert jobs.pop("resample") == 3
    assert jobs.pop("assemble") == 1
    assert set(jobs) <= {"registration"}


@pytest.mark.parametrize(
    ("section", "values", "first"),
    [
        # Only the registered image has TIFF tiles.
        ("output", {"tiff_tile_px": 256}, "assemble"),
        ("stitch", {"feather_px": 20}, "stitch"),
    ],
)
def test_a_key_of_one_rule_reruns_no_other(
    run: Run, section: str, values: dict[str, Any], first: str
) -> None:
    before = run.config.read_text()
    run.edit(**{section: values})
    try:
        jobs = run.planned("registration")
    finally:
        run.config.write_text(before)
    order = [
        "illumination",
        "tile_positions",
        "stitch",
        "edf_plane",
        "register",
        "resample",
        "assemble",
    ]
    earlier = set(order[: order.index(first)])
    assert first in jobs
    assert not earlier & set(jobs)


def test_a_background_reruns_the_final_image_alone(run: Run) -> None:
    table = (run.folder / "markers.csv").read_text()
    lines = [f"{line},,," for line in table.splitlines()]
    lines[0] = lines[0].rstrip(",") + ",exposure_ms,background,remove"
    config = run.config.read_text()
    late = {"assemble": 1, "qc_image": 3, "report": 1, "summary": 1, "verdict": 1}
    try:
        (run.folder / "markers.csv").write_text("\n".join(lines) + "\n")
        assert run.planned() == {}
        lines[2] = lines[2].removesuffix(",,,") + f",200,{lines[4].split(',')[2]},"
        lines[4] = lines[4].removesuffix(",,,") + ",100,,TRUE"
        (run.folder / "markers.csv").write_text("\n".join(lines) + "\n")
        # Of its cycle, and of the one that lost a marker.
        assert run.planned() == {"resample": 2, **late}
        run.edit(subtract={"method": "none"})
        assert run.planned() == {"resample": 1, **late}
    finally:
        run.config.write_text(config)
        (run.folder / "markers.csv").write_text(table)
    assert run.planned() == {}


def test_a_folder_that_moves_reruns_nothing(run: Run) -> None:
    there = run.folder.with_name("moved")
    table = (run.folder / "samples.tsv").read_text()
    run.folder.rename(there)
    try:
        (there / "samples.tsv").write_text(table.replace(str(run.folder), str(there)))
        moved = Run(there, there / "config.yaml")
        assert moved.planned() == {}
        assert (moved.sample / "raw/raw_dir.txt").read_text() == f"{there / 'raw'}\n"
    finally:
        there.rename(run.folder)
        (run.folder / "samples.tsv").write_text(table)


def test_per_rule_reruns(run: Run) -> None:
    forced = run.planned("registration", "-R", "edf_plane")
    assert forced["edf_plane"] == 6
    assert "stitch" not in forced
    one = run.planned("results/tonsil/edf/cycle1_channel2.zarr", "-f")
    assert one == {"edf_plane": 1}


def test_cycles_with_different_channels(tmp_path: Path, run: Run) -> None:
    """Flat-fields are then a job per channel, and the same."""
    other = make_run(tmp_path, raw=run.folder / "raw")
    table = tmp_path / "markers.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    assert other.planned("stitching")["illumination"] == 5
    flat = "illumination/cycle1_channel2-ffp.tif"
    other.snakemake(f"results/tonsil/{flat}")
    assert (other.sample / flat).read_bytes() == (run.sample / flat).read_bytes()


def test_a_sample_of_nine_cycles_is_at_most_134_slurm_jobs(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "cycles": 9,
        "channels": 4,
        "rows": 1,
        "cols": 2,
        "planes": 2,
        "tile_px": 128,
    }
    nine = make_run(tmp_path, **values)
    nine.edit(registration={"block_px": 96})
    jobs = nine.planned("registration", "qc")
    beside_the_coordinator = {"summary", "report", "verdict"}
    assert sum(n for rule, n in jobs.items() if rule not in beside_the_coordinator) <= 134


def test_targets_do_no_more_than_they_need(tmp_path: Path, run: Run) -> None:
    fresh = make_run(tmp_path, raw=run.folder / "raw")
    stitching = fresh.planned("stitching")
    assert set(stitching) == {"illumination", "tile_positions", "stitch"}
    registration = fresh.planned("registration")
    # stacks are judged before they are gone
    assert registration["qc_cycle"] == 3
    assert not registration.keys() & {"qc_register", "qc_image", "report", "summary", "verdict"}
    fresh.edit(output={"keep": "stacks"})
    assert "qc_cycle" not in fresh.planned("registration")
    until = fresh.planned("registration", "--until", "stitch")
    assert "edf_plane" not in until


def test_jobs_ask_for_the_memory_that_they_take(run: Run) -> None:
    """A job of Slurm holds Snakemake twice, 140 MB each."""
    logs = sorted((run.results / "logs").glob("*/*.log"))
    assert {log.parent.name for log in logs} > {"stitch", "edf_plane", "register", "report"}
    with contextlib.chdir(run.folder):
        experiment = read_experiment(run.config)
        sizes = data_sizes(experiment, Layout(experiment.settings.results), {})
        for log in logs:
            asked_mb = sizes.shape(log.parent.name, {"sample": "tonsil"}, gpu=False).mem_mb
            taken_mb = SNAKEMAKE_MB + peak_mb(log)
            assert 0.5 * asked_mb < taken_mb < asked_mb, (log, taken_mb, asked_mb)


@pytest.mark.long
def test_same_bytes_again(tmp_path: Path, run: Run) -> None:
    """Another folder, another number of threads, the same bytes.

    One pair of images goes through every stage; the final image is compared on the cluster.
    """
    again = make_run(tmp_path, raw=run.folder / "raw")
    again.edit(output={"keep": "stacks"})
    again.snakemake("results/tonsil/register/cycle2.npz", "--cores", "1")
    ours, theirs = digests(again.sample), digests(run.sample)
    assert len(ours) > 30
    assert {path: theirs.get(path) for path in ours} == ours


def test_lint(run: Run) -> None:
    said = run.snakemake("--lint")
    assert "in a good condition" in said.stdout + said.stderr


@pytest.mark.parametrize("name", ["demo.yaml", "config.yaml"])
def test_shipped_configurations_run(tmp_path: Path, name: str) -> None:
    make_phantom(tmp_path / "demo", seed=1, tile_px=128, planes=2, workers=2)
    shutil.copytree(REPO / "config", tmp_path / "config")
    shipped = Run(tmp_path, tmp_path / "config" / name)
    jobs = shipped.planned()
    assert jobs["stitch"] == jobs["edf_plane"] == 9
    assert "deconvolve" not in jobs
    shipped.snakemake("demo/results/tonsil/stitch/cycle1_channel1.zarr")
    assert open_mosaic(tmp_path / "demo/results/tonsil/stitch/cycle1_channel1.zarr").shape[0] == 2
