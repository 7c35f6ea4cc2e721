"""What goes wrong in a lab: each ends in a clear error or a right result, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile

from tests.support.runs import TINY, Run, digests, make_run
from tests.workflow.mounts import small_disk
from tilewright.phantom.make import make_phantom

pytestmark = pytest.mark.workflow

FAULTS = {**TINY, "another_tissue_cycle": 2, "empty_channel": (1, 2)}


@pytest.fixture(scope="module")
def faulty_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faulty")
    make_phantom(folder, **FAULTS)
    return folder / "raw"


def _one_tile(folder: Path) -> Path:
    return folder / "Cyc2_reg1" / "1_00003_Z002_CH1.tif"


def _remove(folder: Path) -> None:
    _one_tile(folder).unlink()


def _truncate(folder: Path) -> None:
    path = _one_tile(folder)
    path.write_bytes(path.read_bytes()[:9000])


def _empty(folder: Path) -> None:
    _one_tile(folder).write_bytes(b"")


def _as_float(folder: Path) -> None:
    path = _one_tile(folder)
    tifffile.imwrite(path, tifffile.imread(path).astype(np.float32))


def _smaller(folder: Path) -> None:
    path = _one_tile(folder)
    tifffile.imwrite(path, tifffile.imread(path)[:-8])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_remove, ["missing", "cycle 2"]),
        (_truncate, ["1_00003_Z002_CH1.tif", "truncated"]),
        (_empty, ["1_00003_Z002_CH1.tif"]),
        (_as_float, ["1_00003_Z002_CH1.tif", "float32"]),
        (_smaller, ["1_00003_Z002_CH1.tif", "216"]),
    ],
    ids=["missing", "truncated", "empty", "dtype", "shape"],
)
def test_damaged_raw_data_are_named_before_any_work(
    tmp_path: Path, tiny_raw: Path, damage: Callable[[Path], None], words: list[str]
) -> None:
    shutil.copytree(tiny_raw, tmp_path / "raw")
    damage(tmp_path / "raw")
    run = make_run(tmp_path, tmp_path / "raw", **TINY)
    said = run.snakemake("registration", ok=False)
    text = said.stdout + said.stderr
    for word in words:
        assert word in text
    assert "Traceback" not in text
    assert not (run.sample / "illumination").exists()


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"acquisition": {"rows": 5}}, ["rows", "5"]),
        ({"stitch": {"faether_px": 9}}, ["did you mean 'feather_px'?"]),
        ({"optics": {"numerical_aperture": float("nan")}}, ["optics.numerical_aperture"]),
        ({"qc": {"thresholds": {"nccc": {"warn": 0.5}}}}, ["did you mean 'ncc'?"]),
    ],
    ids=["grid", "key", "nan", "metric"],
)
def test_wrong_configuration_is_said_in_one_sentence(
    tmp_path: Path, tiny_raw: Path, sections: dict[str, object], words: list[str]
) -> None:
    run = make_run(tmp_path, tiny_raw, **TINY)
    run.edit(**sections)
    said = run.snakemake("registration", "-n", ok=False)
    for word in words:
        assert word in said.stdout + said.stderr
    assert "Traceback" not in said.stdout + said.stderr


def test_gpu_without_cuda_is_an_error(tmp_path: Path, tiny_raw: Path) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a GPU")
    run = make_run(tmp_path, tiny_raw, **TINY)
    target = "results/tonsil/tile_positions/cycle1/positions.csv"
    said = run.snakemake(target, ok=False, env={"TILEWRIGHT_DEVICE": "gpu"})
    assert "is to run on a GPU, and this machine has none" in said.stdout + said.stderr
    assert "Traceback" not in said.stdout + said.stderr
    assert not (run.folder / target).exists()
    wrong = run.snakemake(target, "-n", ok=False, env={"TILEWRIGHT_DEVICE": "cuda"})
    assert "set it to cpu, gpu or auto" in wrong.stdout + wrong.stderr


@pytest.mark.long
def test_another_tissue_fails_until_it_is_allowed(tmp_path: Path, faulty_raw: Path) -> None:
    run = make_run(tmp_path, faulty_raw, **FAULTS)
    said = run.snakemake("registration", ok=False)
    assert "does not match the reference" in said.stdout + said.stderr
    assert not (run.sample / "register/cycle2.npz").exists()
    assert not list(run.sample.glob("registration/tonsil.ome.*"))
    assert (run.sample / "edf/cycle2_channel1.zarr").is_dir()

    run.edit(registration={"allow_unregistered": [2]})
    run.snakemake("registration", "qc")
    assert not json.loads((run.sample / "register/cycle2.json").read_text())["registered"]
    assert "NOT registered" in (run.results / "report.html").read_text()
    items = json.loads((run.results / "qc.json").read_text())["items"]
    failed = {(i["cycle"], i["metric"]) for i in items if i["verdict"] == "fail"}
    assert (2, "unregistered") in failed
    empty = [i for i in items if (i["cycle"], i["channel"]) == (1, "2") and i["metric"] == "empty"]
    assert empty[0]["verdict"] != "pass"

    run.edit(qc={"on_fail": "stop"})
    stopped = run.snakemake("qc", ok=False)
    assert "qc.on_fail is 'stop'" in stopped.stdout + stopped.stderr
    assert (run.results / "report.html").is_file()
    assert not (run.results / "trusted_markers.csv").exists()


@pytest.mark.long
def test_killed_run_resumes_to_the_same_bytes(
    tmp_path: Path, tiny_raw: Path, tiny_run: Run
) -> None:
    run = make_run(tmp_path, tiny_raw, **TINY)
    run.edit(output={"keep": "stacks"})
    started = subprocess.Popen(
        run.command("registration"),
        cwd=run.folder,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while not list(run.sample.glob("edf/.*partial*")) and started.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    finished = [path for path in run.sample.glob("*/*.zarr") if (path / ".zattrs").is_file()]
    assert finished
    run.snakemake("--unlock")
    run.snakemake("registration")
    assert digests(run.sample) == digests(tiny_run.sample)


@pytest.mark.long
def test_full_disk(tmp_path: Path, tiny_raw: Path, tiny_run: Run) -> None:
    run = make_run(tmp_path / "run", tiny_raw, **TINY)
    run.edit(output={"keep": "stacks"})
    with small_disk(tmp_path / "disk", "1500k") as disk:
        run.results.symlink_to(disk)
        said = run.snakemake("registration", ok=False)
        assert "No space left on device" in said.stdout + said.stderr
        partial = [p for p in disk.rglob("*") if "partial" in p.name]
        assert not partial
        subprocess.run(["mount", "-o", "remount,size=500m", str(disk)], check=True)
        run.snakemake("registration")
        assert digests(run.sample) == digests(tiny_run.sample)
