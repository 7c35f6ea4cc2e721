"""What goes wrong in a lab: each ends in a clear error or a right result, and nothing is lost."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runs import TINY, Run, digests, make_run
from tests.support.slurm_cluster import wait_for

pytestmark = pytest.mark.workflow


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
