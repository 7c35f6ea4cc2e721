"""The benchmark of GPUs runs where there is none, and its devices agree."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import REPO, STANDIN


def test_all_kernels_agree_on_the_standin() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--px", "192", "--planes", "7", "--strips", "3",
         "--repeats", "1", "--copy-b", "1000000"],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(STANDIN), str(REPO), *sys.path[1:]]),
             "CUDA_VISIBLE_DEVICES": "0"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    for kernel in ("Richardson-Lucy", "direct plane", "soft focus", "fuse", "warp", "correlation"):
        assert kernel in done.stdout
    assert "kernels of a full cycle with the direct plane" in done.stdout
