"""Leases, limits and the workflow on a real GPU."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.runs import TINY, Run, make_run
from tests.support.slurm_cluster import wait_for
from tilewright.devices.inventory import snapshot
from tilewright.devices.leases import holders, share_b
from tilewright.io.results.mosaic import open_mosaic
from tilewright.runtime.machine import usable_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.workflow]
MIB = 2**20
#: A job that takes what it was granted, to the byte, and holds it.
JOB = """
import sys, time
from pathlib import Path
from tilewright.runtime.gpu import leased_backend
with leased_backend(sys.argv[1], int(sys.argv[2])) as backend:
    cupy = backend.xp
    held = cupy.zeros(int(sys.argv[2]) * 2**20 - 2**21, dtype=cupy.uint8)
    cupy.cuda.Device().synchronize()
    Path(sys.argv[3]).touch()
    try:
        cupy.zeros(2**28, dtype=cupy.uint8)
    except cupy.cuda.memory.OutOfMemoryError:
        Path(sys.argv[3] + ".limited").touch()
    time.sleep(float(sys.argv[4]))
"""


@pytest.fixture(autouse=True)
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    monkeypatch.setenv("TILEWRIGHT_LEASE_ROOT", str(tmp_path / "leases"))
    if not usable_gpus().devices:
        pytest.skip("no GPU")


def begin(folder: Path, name: str, mib: int, hold_s: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", JOB, name, str(mib), str(folder / name), str(hold_s)]
    )


def test_the_devices_are_those_that_cupy_sees() -> None:
    found = {device.uuid for device in usable_gpus().devices}
    code = (
        "import cupy; print(*(cupy.cuda.runtime.getDeviceProperties(k)['uuid'].hex()"
        " for k in range(cupy.cuda.runtime.getDeviceCount())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    )  # fmt: skip
    seen = {name.replace("-", "").lower() for name in done.stdout.split()}
    assert {uuid.split("-", 1)[1].replace("-", "") for uuid in found} == seen


def test_four_jobs_share_one_device_and_a_killed_one_frees_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = usable_gpus().devices[0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", device.uuid)
    monkeypatch.setenv("TILEWRIGHT_JOBS_PER_GPU", "4")
    mib = share_b(device, 4) // MIB
    jobs = [begin(tmp_path, f"job{k}", mib, 300.0) for k in range(4)]
    try:
        wait_for(lambda: len(list(tmp_path.glob("job?.limited"))) == 4, 60)
        assert len(holders(tmp_path / "leases")) == 4
        assert snapshot().devices[0].used_b <= device.total_b
        late = begin(tmp_path, "late", mib, 0.0)
        jobs.append(late)
        time.sleep(20.0)  # it imports CuPy first
        assert not (tmp_path / "late").exists()
        jobs[0].kill()
        assert late.wait(60) == 0
    finally:
        for job in jobs:
            job.kill()
            job.wait()


def test_the_phantom_on_the_gpu_has_the_pixels_of_the_cpu(
    tmp_path: Path, tiny_raw: Path, tiny_run: Run
) -> None:
    on_gpu = make_run(tmp_path / "gpu", tiny_raw, **TINY)
    on_gpu.edit(device="gpu", output={"keep": "stacks"})
    env = {"TILEWRIGHT_LEASE_ROOT": str(tmp_path / "leases"), "TILEWRIGHT_DEVICE": "gpu"}
    on_gpu.snakemake("registration", env=env)
    logs = [*(on_gpu.results / "logs").glob("stitch/*.log")]
    assert logs
    assert all("GPU memory: at most" in log.read_text() for log in logs)
    check_within_a_count(on_gpu, tiny_run, "stitch")
    # A count of difference in the stitched pixels can tip a threshold of the planes.
    shutil.copytree(tiny_run.sample / "stitch", on_gpu.sample / "stitch", dirs_exist_ok=True)
    on_gpu.snakemake("registration", "-R", "edf_plane", "--until", "edf_plane", env=env)
    check_within_a_count(on_gpu, tiny_run, "edf")


def check_within_a_count(one: Run, other: Run, stage: str) -> None:
    paths = sorted((other.sample / stage).glob("*.zarr"))
    assert paths
    for path in paths:
        a, b = (
            open_mosaic(run.sample / stage / path.name).read(0).astype(float)
            for run in (one, other)
        )
        assert np.abs(a - b).max() <= 1, path
