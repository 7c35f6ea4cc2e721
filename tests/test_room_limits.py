"""What once let too many jobs start, or kept jobs from starting at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.test_capacity import Rules, account, partition
from tests.test_room import CPU, GPU, LIMIT, PLACES, dispatcher, pending, room
from tests.test_stale import cluster_with
from tilewright.placement.jobs import Job, PlacementError, Shape, Task
from tilewright.placement.ledger import Ledger, read_ledger
from tilewright.placement.limits import capacity_now
from tilewright.placement.preflight import check_sizes
from tilewright.placement.routing import Plan
from tilewright.runtime.snakemake_adapter import only_looks
from tilewright.slurm.jobs import STUCK, SlurmJob, cause_of
from tilewright.slurm.query import Unknown


def test_accounts_on_one_qos_share_its_room() -> None:
    both = [replace(account(name, limit={"cpu": 8}), qos="shared") for name in "ab"]
    left = room(*both).take("a", "cpu", CPU)
    assert not left.fits("a", "cpu", CPU)
    assert not left.fits("b", "cpu", CPU)


def test_others_jobs_count_for_the_most_jobs_of_an_account() -> None:
    one = replace(account("a"), jobs=2, jobs_used=2, jobs_mine=0)
    assert not room(one).fits("a", "cpu", CPU)
    assert [pool.free for pool in room(one).pools({"cpu": CPU})] == [0]


def test_without_a_gpu_partition_nothing_goes_to_gpus() -> None:
    left = capacity_now([account("a", limit={"cpu": 100})], [], [], mode="shared", utilisation=1.0,
                    partitions={"gpu": None, "cpu": partition("c")})  # fmt: skip
    assert not left.fits("a", "gpu", GPU)
    assert {pool.kind for pool in left.pools({"gpu": GPU, "cpu": CPU})} == {"cpu"}


@pytest.mark.parametrize(
    "job",
    [
        SlurmJob(1, "PENDING", "a", "a", tres={"cpu": 9}, reason="QOSMaxCpuPerUserLimit"),
        SlurmJob(1, "PENDING", "a", "a-b", tres={"cpu": 1}, reason="QOSGrpCpuLimit"),
    ],
)
def test_a_job_that_can_never_run_or_is_on_another_qos_closes_nothing(job: SlurmJob) -> None:
    one = replace(account("a", limit=LIMIT), limit_per_user={"cpu": 8}, qos="a")
    assert room(one, waiting=(job,)).fits("a", "cpu", CPU)


def test_memory_that_no_account_has_is_refused_and_not_cut(tmp_path: Path) -> None:
    large = Rules({"work": {"cpu": Shape(1, 500, 0, 60)}}, seconds=600)
    plan = Plan(large, cluster=cluster_with("", tmp_path)[0])
    task = Task(Job("rule_work", "work", ("cpu",), wildcards={}))
    small = room(account("a", limit=LIMIT))
    assert plan.estimates.shape_of(task, "cpu", small).mem_mb == 500
    with pytest.raises(PlacementError, match="mem=500 and account a has 400"):
        check_sizes([task], small, plan.estimates)


def test_a_dead_node_counts_for_the_kind_that_it_died_under(tmp_path: Path) -> None:
    run = dispatcher(pending(0, ""), tmp_path, 0, 2)
    run.bad_nodes["cpu"].add("c1")
    found = run.capacity()
    assert not isinstance(found, Unknown)
    assert not any(kind == "gpu" for _, kind in found.closed)


def test_an_event_after_a_cut_line_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).write("done", job="a")
    with path.open("r+b") as stream:
        stream.seek(0, 2)
        stream.truncate(stream.tell() - 5)
    Ledger(path).write("run")
    assert [event["event"] for event in read_ledger(path)] == ["run"]


def test_words_of_slurm() -> None:
    said = "JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0 DerivedExitCode=0:125"
    assert cause_of(said) == ("memory", "FAILED, NonZeroExitCode, exit 0:125")
    assert STUCK.match("BadConstraints")


@pytest.mark.parametrize("looks", ["-nj4", "-fn", "-S", "-t", "--dryru", "--lc code", "--report"])
def test_what_only_looks(looks: str) -> None:
    assert only_looks(["registration", *looks.split()])


def test_what_runs() -> None:
    assert not only_looks(["registration", "--report-after-run"])
    assert PLACES["gpu"] is not None
