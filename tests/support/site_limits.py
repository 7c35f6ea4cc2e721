"""Limits that a site sets on one account of the private cluster and not on the other."""

from dataclasses import dataclass

from tests.support.slurm_cluster import Cluster

PARTITIONS = ("hpg-default", "hpg-b200")


@dataclass(frozen=True)
class Limit:
    """A limit that clive has and maigan has not: how it is set and taken back."""

    name: str
    qos: tuple[str, ...] = ()
    partition: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    above: tuple[str, ...] = ()

    def set(self, slurm: Cluster) -> None:
        """Set it."""
        if self.qos:
            slurm.set_qos("clive", *self.qos)
        if self.others:
            slurm.set_qos("maigan", *self.others)
        if self.above:
            _account(slurm, "add", "account", "dept")
            _account(slurm, "modify", "account", "clive", "set", "parent=dept")
            _account(slurm, "modify", "account", "dept", "set", *self.above)
        self._update(slurm, self.partition)

    def take_back(self, slurm: Cluster) -> None:
        """Cancel all jobs and set what was before."""
        slurm.cancel_all()
        slurm.restore_limits()
        if self.above:
            _account(slurm, "modify", "account", "clive", "set", "parent=root")
            _account(slurm, "delete", "account", "dept")
        self._update(slurm, self.before)

    def _update(self, slurm: Cluster, changes: tuple[str, ...]) -> None:
        for name in PARTITIONS if changes else ():
            slurm.run(["scontrol", "update", f"PartitionName={name}", *changes])


def _account(slurm: Cluster, *what: str) -> None:
    slurm.run(["sacctmgr", "-i", *what])


LIMITS = (
    Limit("budget", ("GrpTRESMins=cpu=1",)),
    Limit("running-budget", ("GrpTRESRunMins=cpu=1",)),
    Limit("wall-budget", ("GrpWall=1",)),
    Limit("job-budget", ("MaxTRESMinsPerJob=cpu=1",)),
    Limit("jobs-above", above=("GrpJobs=0",)),
    Limit("deny-accounts", (), ("DenyAccounts=clive",), ("DenyAccounts=",)),
    Limit("deny-qos", (), ("DenyQos=clive",), ("DenyQos=",)),
    Limit("allow-qos", (), ("AllowQos=maigan",), ("AllowQos=ALL",)),
    Limit(
        "exclusive",
        ("GrpTRES=cpu=48",),
        ("OverSubscribe=EXCLUSIVE",),
        ("OverSubscribe=NO",),
        ("GrpTRES=cpu=999,mem=4000G,gres/gpu=99",),
    ),
)
