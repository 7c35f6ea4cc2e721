"""The phantom's pixels are the same on every CPU, and its noise is Poisson and Gaussian."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.conftest import REPO
from tests.support.runs import digests
from tilewright.phantom.exact import gaussian, normal, poisson, sigmoid
from tilewright.phantom.make import make_phantom

DESIGN = {"seed": 8, "cycles": 2, "channels": 2, "rows": 2, "cols": 2, "planes": 3, "tile_px": 128}
#: Makes a phantom; asked for "rounding", NumPy's functions are wrong by up to two units in the last
#: place, as a CPU with instructions that this one lacks may round. Tables are made at import.
MAKE = """
import sys
from pathlib import Path

import numpy as np

random = np.random.default_rng(0)

def rounded(function):
    def call(*args, **kwargs):
        exact = np.asarray(function(*args, **kwargs))
        steps = random.integers(-2, 3, exact.shape)
        return exact * (1 + steps * np.finfo(exact.real.dtype).eps / 2)
    return call

if sys.argv[1] == "rounding":
    # Those that NumPy takes from libc or from vector instructions, without correct rounding.
    for name in "exp sin cos tan arcsin arctan2 hypot log power sinc".split():
        setattr(np, name, rounded(getattr(np, name)))

from tilewright.phantom.make import make_phantom
make_phantom(Path(sys.argv[2]), **eval(sys.argv[3]))
"""


def without_instructions() -> dict[str, str]:
    """Return an environment without those that NumPy, libc and OpenBLAS choose by the CPU."""
    umath: Any = importlib.import_module("numpy._core._multiarray_umath")
    usable = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]
    return {
        "NPY_DISABLE_CPU_FEATURES": " ".join(usable),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA",
        "OPENBLAS_CORETYPE": "Prescott",
        "OPENBLAS_NUM_THREADS": "1",
    }


@pytest.mark.parametrize("cpu", ["instructions", "rounding"])
def test_the_same_bytes_on_another_cpu(tmp_path: Path, cpu: str) -> None:
    make_phantom(tmp_path / "here", **DESIGN)
    here = digests(tmp_path / "here")
    environment = without_instructions() if cpu == "instructions" else {}
    env = {**os.environ, "PYTHONPATH": f"{REPO / 'src'}:{REPO}", **environment}
    command = [sys.executable, "-c", MAKE, cpu, str(tmp_path / "there"), repr(DESIGN)]
    subprocess.run(command, env=env, check=True)
    assert len(here) == 2 * 2 * 4 * 3
    assert digests(tmp_path / "there") == here


def words(n: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    """Even steps through all quantiles, in any order."""
    even = ((np.arange(n) + 0.5) / n * 2**32).astype(np.uint32)
    return np.random.default_rng(seed).permutation(even)


@pytest.mark.parametrize("mean", [0.0, 0.02, 0.7, 2.5, 4.0, 6.5, 12.0, 80.0, 1500.0, 60_000.0])
def test_shot_noise_is_poisson(mean: float) -> None:
    drawn = words(100_000, 1)
    numbers = poisson(drawn, np.full(len(drawn), mean, np.float32)).astype(np.float64)
    truth = stats.poisson.ppf((drawn + 0.5) / 2**32, np.round(mean * 64) / 64)
    assert (numbers != truth).mean() < 0.03
    assert np.abs(numbers - truth).max() <= 1 + mean * 1e-4
    assert numbers.mean() == pytest.approx(mean, rel=1e-3, abs=0.01)
    assert numbers.var() == pytest.approx(mean, rel=3e-3, abs=0.01)


def test_read_noise_is_normal_to_its_far_tails() -> None:
    drawn = words(100_000, 2)
    assert np.abs(normal(drawn) - stats.norm.ppf((drawn + 0.5) / 2**32)).max() < 1e-3
    ends = np.array([0, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
    assert normal(ends) == pytest.approx([-6.337, 0, 0, 6.337], abs=2e-3)


def test_tables_are_near_their_functions_and_level_out() -> None:
    x = np.linspace(-40, 40, 200_001, dtype=np.float32)
    assert np.abs(sigmoid(x) - 1 / (1 + np.exp(-x.astype(float)))).max() < 3e-5
    assert np.abs(gaussian(x) - np.exp(-0.5 * x.astype(float) ** 2)).max() < 2e-5
