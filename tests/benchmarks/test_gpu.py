"""The benchmark of GPUs runs where there is none, has every kernel, and its devices agree."""

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.conftest import REPO, STANDIN
from tests.support.gpu_cases import cases
from tests.support.gpu_cases_of_rules import cases_of_rules
from tilewright.kernels.backend import Backend

KERNELS = "tilewright.kernels."
#: What is no kernel: it moves work, not pixels.
MACHINERY = ("backend", "device_memory")


def test_all_kernels_agree_on_the_standin() -> None:
    path = os.pathsep.join([str(STANDIN), str(REPO), *sys.path[1:]])
    options = {"px": 192, "planes": 7, "repeats": 1, "copy-b": 1_000_000}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *(f"--{k}={v}" for k, v in options.items())],
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "0"},
        cwd=REPO, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "kernels of a full cycle with the multi-plane Wiener plane" in done.stdout


def test_all_kernels_agree_on_another_device(cpu: Backend, other: Backend) -> None:
    both = ([*cases(b, 192, 7), *cases_of_rules(b, 192, 7)] for b in (other, cpu))
    for there, here in zip(*both, strict=True):
        found, expected = (
            np.asarray(b.to_numpy(c.run()), np.float64) for b, c in ((other, there), (cpu, here))
        )
        assert np.ptp(expected) > 0 or expected.size < 3, here.name
        differ = np.abs(found - expected).max() / np.abs(expected).max()
        assert differ <= here.tolerance, here.name


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
    """Return whether a function or class computes with a backend, or with maps made on one."""
    kernel = getattr(importlib.import_module(module), name)
    if module.removeprefix(KERNELS) in MACHINERY or getattr(kernel, "__module__", "") != module:
        return False
    return bool({"backend", "maps", "blur"} & {*inspect.signature(kernel).parameters})


def test_every_kernel_that_a_stage_runs_on_a_device_is_in_it() -> None:
    run = {kernel for kernel in imported(REPO / "src/tilewright/stages", "*.py")
           if on_a_device(*kernel)}  # fmt: skip
    assert len(run) > 15
    assert not run - imported(REPO / "tests/support", "gpu_cases*.py")
