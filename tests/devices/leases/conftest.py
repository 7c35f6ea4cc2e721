"""A pretended machine with GPUs, a folder of leases, and jobs that are gone in the end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.devices.leases.lease_jobs import Jobs, gpus, kill
from tests.support.fake_nvml import FakeMachine


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "root"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("TILEWRIGHT_LEASE_ROOT", str(path))
    return path


@pytest.fixture
def machine(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """One GPU, or what a test makes of it."""
    return FakeMachine(tmp_path / "nvml.json", gpus(25)).install(monkeypatch)


@pytest.fixture
def jobs(machine: FakeMachine, tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    for process in jobs.started:
        kill(process)
