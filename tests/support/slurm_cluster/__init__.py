"""A real Slurm cluster on one machine, for tests."""

from tests.support.slurm_cluster.client import BUSY, SlurmCommandError, wait_for
from tests.support.slurm_cluster.cluster import Cluster
from tests.support.slurm_cluster.host import Unavailable
from tests.support.slurm_cluster.records import Job, peak_use

__all__ = ["BUSY", "Cluster", "Job", "SlurmCommandError", "Unavailable", "peak_use", "wait_for"]
