"""Limits that a site sets on one account, beside a run that is never offered that account."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster_runs import ClusterRun, dump
from tests.support.slurm_cluster import Cluster
from tests.support.slurm_fixtures import AT_NIGHT

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600), AT_NIGHT]

PARTITIONS = ("hpg-default", "hpg-b200")
#: Seconds by which two equal runs of half a minute differ on two busy cores.
JITTER_S = 6
JOBS: dict[str, Any] = {"jobs": 6, "seconds": "9,10", "nominal_s": 20}


@dataclass(frozen=True)
class Limit:
    """A limit that clive has and maigan has not: how it is set and taken back."""

    name: str
    qos: tuple[str, ...] = ()
    partition: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def set(self, slurm: Cluster) -> None:
        if self.qos:
            slurm.set_qos("clive", *self.qos)
        if self.others:
            slurm.set_qos("maigan", *self.others)
        self._update(slurm, self.partition)

    def take_back(self, slurm: Cluster) -> None:
        slurm.cancel_all()
        slurm.restore_limits()
        self._update(slurm, self.before)

    def _update(self, slurm: Cluster, changes: tuple[str, ...]) -> None:
        for name in PARTITIONS if changes else ():
            slurm.run(["scontrol", "update", f"PartitionName={name}", *changes])


LIMITS = (
    Limit("budget", ("GrpTRESMins=cpu=1",)),
    Limit("running-budget", ("GrpTRESRunMins=cpu=1",)),
    Limit("wall-budget", ("GrpWall=1",)),
    Limit("job-budget", ("MaxTRESMinsPerJob=cpu=1",)),
    Limit("deny-accounts", (), ("DenyAccounts=clive",), ("DenyAccounts=",)),
    Limit("deny-qos", (), ("DenyQos=clive",), ("DenyQos=",)),
    Limit("allow-qos", (), ("AllowQos=maigan",), ("AllowQos=ALL",)),
)


@pytest.fixture
def make(quiet_slurm: Cluster, tmp_path: Path) -> Iterator[Callable[..., ClusterRun]]:
    made: list[ClusterRun] = []

    def run(name: str, *allowed: str, **of: Any) -> ClusterRun:
        folder = tmp_path / name
        folder.mkdir()
        site = {"allowed": list(allowed), "slowdown": 1.1, **of.pop("site", {})}
        made.append(ClusterRun(quiet_slurm, folder).prepare(site=site, **{**JOBS, **of}))
        return made[-1]

    yield run
    for one in made:
        one.kill()


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_a_limit_of_one_account_costs_no_more_than_its_absence(
    limit: Limit, make: Callable[..., ClusterRun], quiet_slurm: Cluster
) -> None:
    limit.set(quiet_slurm)
    try:
        offered = make("offered", "clive", "maigan")
        seconds = offered.run()
        never = make("never", "maigan")
        least = never.run()
    finally:
        limit.take_back(quiet_slurm)
    sys.stderr.write(f"{limit.name}: {seconds:.1f} s, never offered {least:.1f} s\n")
    offered.check_outputs(set(range(6)))
    assert {job.account for job in offered.jobs()} == {"maigan"}, dump(offered.events)
    assert not offered.moves()
    assert not offered.causes()
    assert seconds <= 1.15 * least + JITTER_S
