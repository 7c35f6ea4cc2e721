"""A pretended machine with one GPU, a folder of leases, and jobs that are gone in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.devices.leases.lease_jobs import Jobs, Machine, kill
from tilewright.devices.evidence import Held
from tilewright.devices.lease import lease

#: A lease of this process, given a request.
Own = Callable[..., AbstractContextManager[Held]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine", {"GPU-a": 25})


@pytest.fixture
def own(machine: Machine, root: Path) -> Own:
    return partial(lease, snapshot=machine.snapshot, root=root)


@pytest.fixture
def jobs(machine: Machine, root: Path) -> Iterator[Jobs]:
    jobs = Jobs(machine, root)
    yield jobs
    for process in jobs.started:
        kill(process)
