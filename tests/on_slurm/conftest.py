from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_runs import ClusterRun
from tests.support.slurm_cluster import Cluster


@pytest.fixture
def run(quiet_slurm: Cluster, tmp_path: Path) -> Iterator[ClusterRun]:
    """A run to prepare and to start; what is left of it ends with the test."""
    made = ClusterRun(quiet_slurm, tmp_path)
    yield made
    made.kill()
