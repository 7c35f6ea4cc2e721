"""Fixtures that lend tests a real Slurm cluster."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_runs import ClusterRun
from tests.support.slurm_cluster import Cluster, Unavailable


@pytest.fixture(scope="package")
def slurm() -> Iterator[Cluster]:
    """A started cluster for all of tests/on_slurm; a skip with the reason where there is none."""
    # The chain of the cluster's tests decides how long all take, so its processes go first.
    nice = os.nice(0)
    with contextlib.suppress(PermissionError):
        os.nice(-10)
    cluster = Cluster()
    began = time.monotonic()
    try:
        cluster.start()
        sys.stderr.write(f"Slurm cluster started in {time.monotonic() - began:.1f} s\n")
        yield cluster
    except Unavailable as reason:
        # where the cluster's tests are what was asked for, it must be there
        unmet = pytest.fail if "TILEWRIGHT_NEEDS_SLURM" in os.environ else pytest.skip
        unmet(f"no Slurm cluster: {reason}")
    finally:
        cluster.stop()
        os.setpriority(os.PRIO_PROCESS, 0, nice)


@pytest.fixture
def quiet_slurm(slurm: Cluster) -> Iterator[Cluster]:
    """The cluster with all daemons up, nodes idle, no jobs, and the limits of the example."""
    slurm.repair()
    yield slurm
    slurm.end_clients()


@pytest.fixture
def run(quiet_slurm: Cluster, tmp_path: Path) -> ClusterRun:
    """A run to prepare and to start."""
    return ClusterRun(quiet_slurm, tmp_path)
