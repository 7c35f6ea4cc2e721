from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.guard import guarded_backend
from tests.slurm_fixtures import quiet_slurm, slurm
from tilewright.kernels.backend import Backend, cpu_backend

__all__ = ["quiet_slurm", "slurm"]

os.environ.setdefault("MPLBACKEND", "Agg")
REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def cpu() -> Backend:
    return cpu_backend(workers=2)


@pytest.fixture(scope="session")
def guarded() -> Backend:
    """A backend whose arrays refuse NumPy, as CuPy's do."""
    return guarded_backend()


@pytest.fixture(scope="session")
def gpu() -> Backend:
    """The CuPy backend; tests that use it carry the marker ``gpu``."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device")
    from tilewright.kernels.backend import gpu_backend

    return gpu_backend()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of development data and tools beside the checkout."""
    path = REPO.parent / "shared"
    if not (path / "data").is_dir():
        pytest.skip("../shared is absent: development data and tools are not here")
    return path
