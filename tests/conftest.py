import os
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import scipy.linalg  # noqa: F401
from hypothesis.internal.conjecture import providers
from threadpoolctl import threadpool_limits

from tests.support.guard import guarded_backend
from tests.support.microscope import cycle_folder
from tests.support.runs import LATER, REPO, Run, make_once, make_run
from tilewright.kernels.backend import Backend, cpu_backend
from tilewright.phantom.make import make_phantom

__all__ = ["REPO"]

os.environ.setdefault("MPLBACKEND", "Agg")
# As in jobs: see tilewright.runtime.job.running. SciPy has a BLAS of its own, loaded above.
threadpool_limits(1)
# Examples are not timed: beside other work the same one takes ten times as long.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
# It draws constants of the modules that a worker happens to have imported, and then other examples.
providers._get_local_constants = lambda: providers._local_constants
#: CuPy's name over NumPy, for processes that have it on their path.
STANDIN = REPO / "tests/support/standin"
ON_SLURM = "tests/on_slurm/"
#: What begins first: the cluster's tests, then whole runs, of which ``tiny_run`` is one, then files
#: of more than half a minute, so that no worker begins one when the others have ended.
FIRST = (
    ON_SLURM,
    "tests/workflow/test_workflow.py",
    "tests/workflow/test_stitched.py",
    "tests/workflow/test_installed.py",
    "tests/workflow/",
    "tests/quality/test_damages.py",
    "tests/stages/illumination/test_estimate.py",
    "tests/init/test_init.py",
    "tests/init/test_overlap.py",
    "tests/commands/test_follow.py",
    "tests/stages/register/",
    "tests/stages/test_device_memory.py",
    "tests/kernels/tile_positions/",
)
#: Modules of more than about 10 s of arithmetic, or that start processes; `make check` skips them.
SLOW = (
    "tests/benchmarks/",
    "tests/stages/edf/test_multiplane_wiener.py",
    "tests/stages/illumination/",
    "tests/stages/register/test_cycle.py",
    "tests/stages/register/test_subtract.py",
    "tests/stages/test_device_memory.py",
    "tests/stages/tile_positions/",
    "tests/commands/test_devices.py",
    "tests/commands/test_follow.py",
    "tests/phantom/",
    "tests/placement/test_slurm_simulator.py",
    "tests/scheduler_plugin/",
    "tests/devices/leases/",
    "tests/quality/",
)


@pytest.fixture(scope="session")
def cpu() -> Backend:
    return cpu_backend(workers=2)


@pytest.fixture(scope="session")
def tiny_later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw tiles of ``TINY`` in ``raw``, of one more cycle in ``later``, once for all workers."""

    def make(folder: Path) -> None:
        make_phantom(folder, **LATER)
        (folder / "later").mkdir()
        third = cycle_folder(folder / "raw", 3)
        third.rename(folder / "later" / third.name)

    return make_once(tmp_path_factory, "tiny", make)


@pytest.fixture(scope="session")
def tiny_raw(tiny_later: Path) -> Path:
    """Raw tiles of ``TINY``, made once for all workers: read only."""
    return tiny_later / "raw"


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, tiny_raw: Path) -> Run:
    """``TINY`` to the report, stacks kept, cycle 3 awaited, once for all workers: read only."""

    def process(folder: Path) -> None:
        run = make_run(folder, tiny_raw, **LATER)
        run.edit(cycles=[1, 2], output={"keep": "stacks"})
        run.snakemake("registration", "qc")

    folder = make_once(tmp_path_factory, "tiny_run", process)
    return Run(folder, folder / "config.yaml")


@pytest.fixture(scope="session")
def guarded() -> Backend:
    """A backend whose arrays refuse NumPy, as CuPy's do."""
    return guarded_backend()


@pytest.fixture(scope="session")
def gpu() -> Backend:
    """The CuPy backend; tests that use it get the marker ``gpu``."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device")
    from tilewright.kernels.backend import gpu_backend

    return gpu_backend()


@pytest.fixture(params=["guarded", pytest.param("gpu", marks=pytest.mark.gpu)])
def other(request: pytest.FixtureRequest) -> Backend:
    """The pretended device, and a GPU where there is one."""
    backend: Backend = request.getfixturevalue(request.param)
    return backend


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of development data and tools beside the checkout."""
    path = REPO.parent / "shared"
    if not (path / "data").is_dir():
        pytest.skip("../shared is absent: development data and tools are not here")
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")
        fixtures = {*getattr(item, "fixturenames", ())}
        if "gpu" in fixtures:
            item.add_marker("gpu")
        if {"slurm", "quiet_slurm"} & fixtures:
            item.add_marker("slurm")
            # more than the longest wait of such a test, which says what it waited for
            item.add_marker(pytest.mark.timeout(3600))
    items.sort(key=_begins)


def _begins(item: pytest.Item) -> list[bool]:
    """Return what orders tests; in the chain of the cluster's tests nobody waits for ``tiny_run``.

    Another worker makes it, while the chain, which decides how long all take, goes on.
    """
    waits = "tiny_run" in getattr(item, "fixturenames", ())
    first = [not item.nodeid.startswith(folder) for folder in FIRST]
    return [*first, waits and not first[0]]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep what shares costly fixtures on one worker: all that needs the cluster, and each file."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFixtures(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return ON_SLURM if nodeid.startswith(ON_SLURM) else nodeid.partition("::")[0]

    return ByFixtures(config, log)
