"""Fixtures that lend tests a real Slurm cluster."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

import pytest

from tests.support.slurm_cluster import Cluster, Unavailable

AT_NIGHT = pytest.mark.skipif(
    "TILEWRIGHT_NIGHT" not in os.environ, reason="takes minutes: set TILEWRIGHT_NIGHT=1"
)


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """A started cluster for the whole session; a skip with the reason where there is none."""
    # The chain of the cluster's tests decides how long all take, so its processes go first.
    with contextlib.suppress(PermissionError):
        os.nice(-10)
    cluster = Cluster()
    began = time.monotonic()
    try:
        cluster.start()
    except Unavailable as reason:
        pytest.skip(f"no Slurm cluster: {reason}")
    sys.stderr.write(f"Slurm cluster started in {time.monotonic() - began:.1f} s\n")
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def quiet_slurm(slurm: Cluster) -> Cluster:
    """The cluster with all daemons up, nodes idle, no jobs, and the limits of the example."""
    slurm.repair()
    return slurm
