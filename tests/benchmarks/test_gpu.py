"""Kernels agree on the CPU and on another device; none that a rule runs on a GPU is left out."""

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.gpu import difference
from benchmarks.gpu_cases import cases
from tests.conftest import REPO, STANDIN
from tilewright.kernels.backend import Backend

KERNELS = "tilewright.kernels."
#: What is no kernel: it moves work, not pixels.
MACHINERY = ("backend", "device_memory")
#: Folders of stages whose rules a GPU may run.
ON_GPUS = ("stitch", "deconvolve", "edf", "register")


def test_the_benchmark_runs_on_the_standin() -> None:
    path = os.pathsep.join([str(STANDIN), str(REPO), *sys.path[1:]])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--px=192", "--planes=7", "--repeats=1"],
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "0"},
        cwd=REPO, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "multi-plane Wiener plane" in done.stdout


def test_all_kernels_agree_on_another_device(cpu: Backend, other: Backend) -> None:
    both = (cases(backend, 192, 7) for backend in (other, cpu))
    for there, here in zip(*both, strict=True):
        found, expected = there.run(), here.run()
        assert np.size(expected) < 3 or np.ptp(expected) > 0, here.name
        assert difference(other, found, cpu, expected) <= here.tolerance, here.name


def imported(folder: Path, files: str) -> set[tuple[str, str]]:
    """Return the names that modules import from kernels, each with its module."""
    return {
        (str(node.module), name.name)
        for path in folder.rglob(files)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(KERNELS)
        for name in node.names
    }


def on_a_device(module: str, name: str) -> bool:
    """Return whether a function or class of the module computes with a backend."""
    kernel = getattr(importlib.import_module(module), name)
    if module.removeprefix(KERNELS) in MACHINERY or getattr(kernel, "__module__", "") != module:
        return False
    return bool({"backend", "blur"} & {*inspect.signature(kernel).parameters})


def test_every_kernel_that_a_stage_runs_on_a_device_is_compared() -> None:
    used = {
        kernel
        for stage in ON_GPUS
        for kernel in imported(REPO / "src/tilewright/stages" / stage, "*.py")
        if on_a_device(*kernel)
    }
    assert len(used) > 15
    assert not used - imported(REPO / "benchmarks", "gpu_cases.py")
