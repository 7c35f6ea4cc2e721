"""The stand-in for CuPy takes the GPU's way through the program and gives the CPU's pixels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPO, STANDIN

KERNELS = """
import numpy as np
from tilewright.kernels.backend import cpu_backend, gpu_backend
from tests.kernels.deconvolve.deconvolution import deconvolve
from tilewright.kernels.edf.focus import soft_focus
from tilewright.kernels.noise import NoiseModel
from tilewright.kernels.tile_positions.phase_correlation import correlate_strips

cpu, gpu = cpu_backend(), gpu_backend()
assert gpu.device == "gpu" and gpu.xp.__version__.endswith("standin")
rng = np.random.default_rng(0)
stack = rng.poisson(200, (5, 48, 40)).astype(np.float32)
psf = np.ones((3, 5, 5)) / 75
strips = rng.normal(1000, 100, (2, 64, 48)).astype(np.float32)
pair = strips[:, :60], strips[:, 4:]


def results(backend):
    light = deconvolve(backend, stack, psf, background=60, iterations=4, margin=(1, 2, 2))
    sharp = soft_focus(backend, stack, NoiseModel(0.5, 4.0), 60.0, np.ones(5, bool))
    found = correlate_strips(backend, *pair, np.zeros((2, 2)), 8, 1.5)
    arrays = [light.image, sharp.image, sharp.height, found.shift_px, found.score]
    return [np.asarray(backend.to_numpy(array)) for array in arrays]


for a, b in zip(results(cpu), results(gpu), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)
    assert np.ptp(a) > 0
"""


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    path = os.pathsep.join([str(STANDIN), str(REPO), str(REPO / "src")])
    env = {**kept, "PYTHONPATH": path, "TILEWRIGHT_DEVICE": "gpu", **env}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )


def test_kernels_give_the_pixels_of_the_cpu() -> None:
    done = run(KERNELS, CUDA_VISIBLE_DEVICES="0")
    assert done.returncode == 0, done.stderr


def test_devices_are_those_that_the_job_was_given() -> None:
    code = "import cupy; print(cupy.cuda.runtime.getDeviceCount(), cupy.cuda.is_available())"
    assert run(code, CUDA_VISIBLE_DEVICES="2,5").stdout == "2 True\n"
    none = run("import cupy; print(cupy.cuda.is_available())")
    assert none.stdout == "False\n"
    assert "cudaErrorNoDevice: no CUDA-capable device is detected" in run(code).stderr
    assert "cudaErrorNoDevice" in run(code, CUDA_VISIBLE_DEVICES="").stderr


@pytest.mark.parametrize(("node", "works"), [("b1", False), ("b2", True)])
def test_cuda_fails_on_a_broken_node(tmp_path: Path, node: str, works: bool) -> None:
    listing = tmp_path / "broken"
    listing.write_text("b1\nt1\n")
    done = run(
        "from tilewright.kernels.backend import gpu_backend; gpu_backend()",
        CUDA_VISIBLE_DEVICES="0",
        SLURMD_NODENAME=node,
        STANDIN_BROKEN_NODES=str(listing),
    )
    assert (done.returncode == 0) == works
    assert ("cudaErrorInitializationError: initialization error" in done.stderr) != works
