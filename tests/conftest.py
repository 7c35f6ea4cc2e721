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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what shares costly fixtures on one worker: all that needs the cluster, and each file.

    The cluster's tests mostly wait, so they start first and run beside the others.
    """

    def on_cluster(item: pytest.Item) -> bool:
        return not {"slurm", "quiet_slurm"}.isdisjoint(getattr(item, "fixturenames", ()))

    items.sort(key=lambda item: not on_cluster(item))
    for item in items:
        item.add_marker(pytest.mark.xdist_group("slurm" if on_cluster(item) else item.path.name))
