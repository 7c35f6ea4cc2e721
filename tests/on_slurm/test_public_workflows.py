"""Stand-ins of five public workflows: each ends, on accounts that are allowed, and in the ledger.

Each Snakefile names its model.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster_runs import dump, foreign
from tests.support.slurm_cluster import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("name", "jobs"),
    [("rna_seq", 20), ("dna_seq", 23), ("nanopore", 20), ("metagenome", 17), ("population", 11)],
)
def test_a_public_workflow_ends_on_allowed_accounts(
    quiet_slurm: Cluster, tmp_path: Path, name: str, jobs: int
) -> None:
    """The user's default account, clive, is none of them; a group is one job."""
    allowed = {"maigan", "brusko"}
    run = foreign(quiet_slurm, tmp_path, name, {"allowed": sorted(allowed)})
    run.run(timeout_s=600)
    assert len(run.check_placed(allowed)) == jobs, dump(run.events)
    assert not run.causes(), dump(run.events)
    run.check_limits()
