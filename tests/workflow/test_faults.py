"""What goes wrong in a lab: each ends in a clear error or a right result, and nothing is lost."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runs import TINY, Run, digests, make_run
from tests.support.slurm_cluster import wait_for
from tilewright.phantom.make import make_phantom

pytestmark = pytest.mark.workflow


@pytest.mark.long
def test_another_tissue_fails_until_it_is_allowed(tmp_path: Path) -> None:
    design = {**TINY, "another_tissue_cycle": 2, "empty_channel": (1, 2)}
    make_phantom(tmp_path, **design)
    run = make_run(tmp_path, tmp_path / "raw", **design)
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
    assert (1, "2", "contrast") in {
        (i["cycle"], i["channel"], i["metric"]) for i in items if i["verdict"] == "fail"
    }

    run.edit(qc={"on_fail": "stop"})
    stopped = run.snakemake("qc", ok=False)
    assert "qc.on_fail is 'stop'" in stopped.stdout + stopped.stderr
    assert (run.results / "report.html").is_file()
    assert not (run.results / "trusted_markers.csv").exists()


def to_the_same_bytes(run: Run, other: Run) -> None:
    """Run what was stopped to its end on one core; each file is that of a run of all cores."""
    run.snakemake("registration", "--cores", "1")
    ours, theirs = digests(run.sample), digests(other.sample)
    assert (run.sample / "registration/tonsil.ome.tif").is_file()
    assert len(ours) > 60
    assert ours.items() <= theirs.items()
    assert all(path.startswith("qc/") for path in theirs.keys() - ours.keys())


@pytest.mark.long
@pytest.mark.timeout(1800)
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
    wait_for(lambda: started.poll() is not None or [*run.sample.glob("edf/.*partial*")], 100)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert [path for path in run.sample.glob("*/*.zarr") if (path / ".zattrs").is_file()]
    run.snakemake("--unlock")
    to_the_same_bytes(run, tiny_run)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of ``size`` (as mount knows it) at a new folder; a skip where one cannot."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root and the permission to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.long
def test_full_disk(tmp_path: Path, tiny_raw: Path, tiny_run: Run) -> None:
    run = make_run(tmp_path / "run", tiny_raw, **TINY)
    run.edit(output={"keep": "stacks"})
    with small_disk(tmp_path / "disk", "1500k") as disk:
        run.results.symlink_to(disk)
        said = run.snakemake("registration", ok=False)
        assert "No space left on device" in said.stdout + said.stderr
        assert not [p for p in disk.rglob("*") if "partial" in p.name]
        subprocess.run(["mount", "-o", "remount,size=500m", str(disk)], check=True)
        to_the_same_bytes(run, tiny_run)
