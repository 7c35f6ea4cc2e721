"""Leases, limits and the workflow on a real GPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.runs import TINY, Run, make_run
from tilewright.io.results.mosaic import open_mosaic
from tilewright.runtime.machine import usable_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.workflow]


@pytest.fixture(autouse=True)
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    monkeypatch.setenv("TILEWRIGHT_LEASE_ROOT", str(tmp_path / "leases"))
    if not usable_gpus().devices:
        pytest.skip("no GPU")


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
