"""A real Slurm cluster on one machine, for tests."""

from tests.support.slurm_cluster.client import BUSY, Client, SlurmCommandError, wait_for
from tests.support.slurm_cluster.cluster import Cluster
from tests.support.slurm_cluster.host import Unavailable
from tests.support.slurm_cluster.records import Job, Step, peak_use
from tests.support.slurm_cluster.settings import Account, Node, Settings

__all__ = [
    "BUSY",
    "Account",
    "Client",
    "Cluster",
    "Job",
    "Node",
    "Settings",
    "SlurmCommandError",
    "Step",
    "Unavailable",
    "peak_use",
    "wait_for",
]
