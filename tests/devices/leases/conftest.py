"""A pretended machine with one GPU, a folder of leases, and jobs that are gone in the end."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.devices.leases import lease_jobs
from tests.devices.leases.lease_jobs import Machine, start


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "machine")
    made.build({"GPU-a": 25})
    return made


@pytest.fixture
def begin(machine: Machine, root: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start jobs that are gone at the end of the test."""
    started: list[subprocess.Popen[bytes]] = []

    def one(gib: float, *, environment: dict[str, str] | None = None, **more: Any) -> Any:
        job = lease_jobs.job(machine, root, gib, **more)
        started.append(start(job, **(environment or {})))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.wait()
