"""Places that are bad for a job cost a run next to nothing.

Each run is compared with one whose settings never offer that place.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.cluster_runs import AT_NIGHT, ClusterRun, dump
from tests.support.slurm_cluster import Cluster, peak_use
from tests.support.slurm_cluster.settings import ACCOUNTS

pytestmark = [pytest.mark.slurm, AT_NIGHT]

#: More than this the bad place may not cost; polls of Snakemake are 5 s apart.
_MORE, _POLL_S = 1.15, 6.0
#: About 4 min a job by its estimate, of which it sleeps seconds.
JOBS: dict[str, Any] = {
    "jobs": 12,
    "light": True,
    "seconds": "12,13",
    "cpu_seconds": 240,
    "slowdown": 1.1,
}


class Row(NamedTuple):
    """A site: what is set, taken back, settings, those that avoid the bad place, its name."""

    setup: tuple[str, ...]
    undo: tuple[str, ...]
    settings: dict[str, object]
    good: dict[str, object]
    bad: str = ""


USER = "sacctmgr -i modify user where name=root account={} set QOS{}=adebug DefaultQOS={}"
ROWS = {
    "partition of most GPUs for others": Row(
        ("scontrol create PartitionName=pi Nodes=b1,t1,c1 AllowAccounts=brusko",),
        ("scontrol delete PartitionName=pi",),
        {},
        {"gpu-partitions": "hpg-b200,hpg-turin", "cpu-partitions": "hpg-default"},
        "pi",
    ),
    "short default partition": Row(
        ("scontrol create PartitionName=debug Nodes=c1,c2 MaxTime=2 Default=YES",),
        ("scontrol update PartitionName=hpg-default Default=YES",
         "scontrol delete PartitionName=debug"),
        {"gpu-partitions": "none"},
        {"cpu-partitions": "hpg-default"},
        "debug",
    ),
    "QOS for each length": Row(
        ("sacctmgr -i add qos adebug MaxWall=2 GrpTRES=cpu=999",
         USER.format("clive", "+", -1), USER.format("maigan", "+", -1)),
        (USER.format("clive", "-", "clive"), USER.format("maigan", "-", "maigan"),
         "sacctmgr -i delete qos where name=adebug"),
        {},
        {"leave-out": "*-b,adebug"},
        "adebug",
    ),
    "QOS that others preempt": Row(
        ("sacctmgr -i modify qos where name=clive set Preempt+=clive-b",),
        ("sacctmgr -i modify qos where name=clive set Preempt-=clive-b",),
        {"leave-out": "maigan-b"},
        {"leave-out": "*-b"},
        "clive-b",
    ),
    "accounts in capitals": Row((), (), {"accounts": "CLIVE,Maigan"}, {}),
}  # fmt: skip


@contextlib.contextmanager
def site(slurm: Cluster, row: Row) -> Iterator[None]:
    try:
        for command in row.setup:
            slurm.run(command.split())
        yield
    finally:
        slurm.cancel_all()
        for command in row.undo:
            slurm.run(command.split())


@pytest.mark.parametrize("name", ROWS)
def test_a_bad_place_costs_next_to_nothing(name: str, quiet_slurm: Cluster, tmp_path: Path) -> None:
    compare(quiet_slurm, tmp_path, ROWS[name])


def test_three_accounts_on_two_qos_and_three_partitions(
    quiet_slurm: Cluster, tmp_path: Path
) -> None:
    """All limits are known, and those of all places are filled."""
    names = ("clive", "maigan", "brusko")
    both = Row(
        ("sacctmgr -i add qos adebug GrpTRES=cpu=64",
         *(USER.format(one, "+", -1) for one in names)),
        (*(USER.format(one, "-", one) for one in names),
         "sacctmgr -i delete qos where name=adebug"), {}, {},
    )  # fmt: skip
    run = ClusterRun(quiet_slurm, tmp_path)
    with site(quiet_slurm, both):
        run.prepare(
            {"accounts": ",".join(names), "gpu-partitions": "hpg-b200,hpg-turin"},
            jobs=90, light=True, seconds="8,9", slowdown=1.2,
        )  # fmt: skip
        run.run()
    run.check_outputs(*range(90))
    assert not run.causes(), dump(run.events)
    jobs = [replace(job, account=job.qos) for job in run.jobs()]
    for account in ACCOUNTS:
        peak = peak_use(jobs, account.name)
        assert peak["cpu"] <= account.cpus, peak
        assert peak["gpus"] == account.gpus, peak
    assert peak_use(jobs, "adebug")["cpu"] <= 64
    assert {job.partition for job in jobs} >= {"hpg-default", "hpg-b200"}
    assert {job.qos for job in jobs} == {*names, "adebug"}


def test_memory_that_is_no_resource_and_a_partition_that_others_preempt(
    slurm: Cluster, tmp_path: Path
) -> None:
    """It ends the session's cluster, and the next quiet_slurm starts that again."""
    scavenge = "scontrol create PartitionName=scavenge Nodes=b1,t1,c1,c2 PriorityTier=0"
    row = Row(
        (f"{scavenge} PreemptMode=REQUEUE",), ("scontrol delete PartitionName=scavenge",), {},
        {"gpu-partitions": "hpg-b200,hpg-turin", "cpu-partitions": "hpg-default"}, "scavenge",
    )  # fmt: skip
    slurm.stop()
    preempt = "preempt/partition_prio"
    with Cluster(SelectTypeParameters="CR_CPU", PreemptType=preempt) as other:
        none = {"gpu_job": {"cpus": 8, "mem_mb": 0}, "cpu_job": {"cpus": 8, "mem_mb": 0}}
        compare(other, tmp_path, row, **none)


def compare(slurm: Cluster, folder: Path, row: Row, **config: Any) -> None:
    """Run jobs on a site as it is, and where the settings never offer the bad place."""
    seconds = {}
    for offered in (True, False):
        (folder / f"{offered}").mkdir()
        run = ClusterRun(slurm, folder / f"{offered}")
        with site(slurm, row):
            given = {"gpu-partitions": None, "cpu-partitions": None, **row.settings}
            run.prepare(given if offered else given | row.good, **JOBS, **config)
            seconds[offered] = run.run()
        run.check_outputs(*range(12))
        run.check_calm()
        where = Counter(f"{job.partition} {job.qos}" for job in run.jobs())
        assert not any(row.bad in place.split() for place in where), (where, dump(run.events))
    print(f"{seconds[True]:.0f} s, never offered it {seconds[False]:.0f} s")
    assert seconds[True] <= _MORE * seconds[False] + _POLL_S, seconds
