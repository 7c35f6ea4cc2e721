"""Room of accounts, counted by hand; what once let too many jobs start, or kept them all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity, capacity_now
from snakemake_scheduler_plugin_tilewright.placement.jobs import Job, Kind, Task
from snakemake_scheduler_plugin_tilewright.placement.limits import make_pools
from snakemake_scheduler_plugin_tilewright.placement.round import Round
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from snakemake_scheduler_plugin_tilewright.slurm.accounts import SiteRules, usable_accounts
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.nodes import Node
from snakemake_scheduler_plugin_tilewright.slurm.records import Association, Partition, Qos
from tests.support.placement_rules import (
    CPU,
    GPU,
    GROUP_REASONS,
    LIMIT,
    PLACES,
    Rules,
    account,
    idle,
    partition,
    room,
)
from tests.support.recorded import cluster_with


def test_accounts_on_one_qos_share_its_room() -> None:
    both = [account(name, limit={"cpu": 8}, qos="shared") for name in "ab"]
    left = room(*both).take("a", "cpu", CPU)
    assert not left.fits("a", "cpu", CPU)
    assert not left.fits("b", "cpu", CPU)


def test_others_jobs_count_for_the_most_jobs_of_an_account() -> None:
    one = account("a", limit={"jobs": 2}, used={"jobs": 2})
    assert not room(one).fits("a", "cpu", CPU)
    assert [pool.free for pool in room(one).pools({"cpu": CPU})] == [0]


def test_without_a_gpu_partition_nothing_goes_to_gpus() -> None:
    left = capacity_now([account("a", limit={"cpu": 100})], [], [], utilisation=1.0,
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
    one = account("a", limit=LIMIT, of_user={"cpu": 8})
    assert room(one, waiting=(job,)).fits("a", "cpu", CPU)


def free(found: Capacity) -> dict[str, int]:
    return {pool.name: pool.free for pool in found.pools({"gpu": GPU, "cpu": CPU})}


def test_use_pending_jobs_and_claims_all_take_room() -> None:
    one = account("a", limit=LIMIT, used={"cpu": 8, "mem": 100, "gres/gpu": 0})
    pending = SlurmJob(1, "PENDING", "a", tres={"cpu": 8, "mem": 50}, reason="Priority")
    running = SlurmJob(2, "RUNNING", "a", tres={"cpu": 8, "mem": 50})  # it is in the use
    elsewhere = SlurmJob(3, "PENDING", "b", tres={"cpu": 8, "mem": 50})
    assert free(room(one)) == {"a_gpu": 2, "a_cpu": 2}
    assert free(room(one, waiting=(pending, running, elsewhere))) == {"a_gpu": 2, "a_cpu": 1}
    both = room(one, waiting=(pending, running), a=GPU)
    assert free(both) == {"a_gpu": 1, "a_cpu": 1}
    (qos,) = both.accounts[0].at("").holders
    assert qos.used == {"cpu": 24, "mem": 250, "gres/gpu": 1}


def test_a_limit_of_each_account_counts_what_was_sent_there() -> None:
    """Two accounts on one QOS of 12 CPUs an account; and the same limit on a partition's QOS."""
    pending = SlurmJob(1, "PENDING", "a", "q", "p", tres={"cpu": 8}, reason="Priority")
    rows = [Association(name, "ada", "", ("q",), "q") for name in "ab"]
    each = {"cpu": 12}
    for qos in (
        [Qos("q", tres_per_account=each), Qos("part")],
        [Qos("q"), Qos("part", tres_per_account=each)],
    ):
        where = replace(partition("p"), qos="part")
        use = idle("q") | idle("part")
        accounts, _ = usable_accounts("ada", rows, qos, SiteRules(), [where], use)
        found = capacity_now(accounts, [pending], [], utilisation=1.0,
                             partitions={"gpu": None, "cpu": where})  # fmt: skip
        assert not found.fits("a", "cpu", CPU)
        assert found.fits("b", "cpu", CPU)
        assert not found.take("b", "cpu", CPU).fits("b", "cpu", CPU)


def test_each_start_takes_its_own_room() -> None:
    left = room(account("a", limit=LIMIT), account("b", limit={"cpu": 8}))
    for _ in range(2):
        assert left.fits("a", "gpu", GPU)
        left = left.take("a", "gpu", GPU)
    assert not left.fits("a", "gpu", GPU)
    assert left.fits("a", "cpu", CPU)
    assert left.fits("b", "cpu", CPU)
    assert not left.take("b", "cpu", CPU).fits("b", "cpu", CPU)
    assert not left.fits("nobody", "cpu", CPU)


@pytest.mark.parametrize("bound", ["jobs", "submit"])
def test_numbers_of_jobs_bound_as_well(bound: str) -> None:
    used = {"jobs": 1, "submit": 1}
    left = room(account("a", limit={bound: 3}, used=used, mine=used))
    for _ in range(2):
        assert left.fits("a", "cpu", CPU)
        left = left.take("a", "cpu", CPU)
    assert not left.fits("a", "cpu", CPU)


def test_partitions_that_an_account_may_not_use_are_no_room() -> None:
    here = room(account("a"), replace(account("b"), partitions=("c",)))
    assert here.fits("a", "gpu", GPU)
    assert not here.fits("b", "gpu", GPU)
    assert here.fits("b", "cpu", CPU)
    refused = replace(here, partitions={**PLACES, "cpu": partition("c", allow_accounts=("a",))})
    assert not refused.fits("b", "cpu", CPU)


def test_an_account_whose_use_is_not_known_takes_nothing() -> None:
    unknown = account("a", limit=LIMIT, used=None)
    partly = account("b", limit=LIMIT, used={"cpu": 0, "mem": 0})
    found = room(unknown, partly, account("c", limit=LIMIT))
    assert found.closed["a", "gpu"] == "use of cpu, mem, gres/gpu on QOS a is not known"
    assert found.closed["b", "cpu"] == "use of gres/gpu on QOS b is not known"
    assert free(found) == {"a_gpu": 0, "a_cpu": 0, "b_gpu": 0, "b_cpu": 0, "c_gpu": 2, "c_cpu": 3}
    assert not any(found.fits(name, "cpu", CPU) for name in "ab")


@pytest.mark.parametrize("reason", [*GROUP_REASONS, "AssocGrpGRES", "AssocMaxJobsLimit"])
def test_a_group_limit_on_which_a_job_pends_closes_what_waits_for_the_same(reason: str) -> None:
    job = SlurmJob(7, "PENDING", "a", tres={"cpu": 1}, reason=reason, workdir="/elsewhere")
    found = room(account("a", limit=LIMIT), account("b", limit=LIMIT), waiting=(job,))
    only_gpu = "GRES" in reason
    assert not found.fits("a", "gpu", GPU)
    assert found.fits("a", "cpu", CPU) == only_gpu
    said = f"your job 7 waits on a: {reason}"
    assert found.closed["a", "gpu"] == f"{said}; cancel it, or wait"
    own = capacity_now([account("a", limit=LIMIT)], [replace(job, workdir="/run")], [],
                       utilisation=1.0, partitions=PLACES, workdir="/run")  # fmt: skip
    assert own.closed["a", "gpu"] == said
    assert found.fits("b", "gpu", GPU)


def test_a_job_larger_than_its_limit_pends_for_ever_and_holds_nothing() -> None:
    hopeless = SlurmJob(7, "PENDING", "a", tres={"cpu": 41}, reason="QOSGrpCpuLimit")
    assert free(room(account("a", limit=LIMIT), waiting=(hopeless,))) == {"a_gpu": 2, "a_cpu": 3}


def up(name: str, partition: str, free_gpus: int, total_gpus: int = 8) -> Node:
    total = {"cpu": 64, "mem": 900, "gres/gpu": total_gpus}
    return Node(name, (partition,), True, "MIXED", total, {**total, "gres/gpu": free_gpus})


def test_a_labmates_jobs_do_not_count_for_what_each_user_may_run() -> None:
    one = account("a", used={"jobs": 4}, of_user={"jobs": 4})
    assert [pool.free for pool in room(one).pools({"cpu": CPU})] == [4]
    mine = account("a", of_user={"jobs": 4}, mine={"jobs": 4})
    assert not room(mine).fits("a", "cpu", CPU)


def test_nodes_bound_what_fits_now_and_what_may_wait_for_them() -> None:
    nodes = (up("g1", "g", 1), up("g2", "g", 0), up("c1", "c", 0, 0))
    found = replace(room(account("a"), account("b")), nodes=nodes)
    assert found.fits("a", "gpu", GPU)
    taken = found.take("a", "gpu", GPU)
    assert not taken.fits("b", "gpu", GPU)
    assert taken.may_queue("b", "gpu", GPU)
    assert not found.may_queue("b", "gpu", replace(GPU, gpus=9))
    avoided = replace(found, avoided={("a", "gpu"): "Resources"})
    assert not avoided.fits("a", "gpu", GPU)
    assert avoided.may_queue("a", "gpu", GPU)
    assert {p.name: p.free for p in avoided.pools({"gpu": GPU})} == {"a_gpu": 0, "b_gpu": 1}


def test_accounts_without_limits_share_the_nodes() -> None:
    eight = [account(str(i)) for i in range(8)]
    pools = make_pools(eight, {"gpu": GPU}, partitions=PLACES, nodes=[up("g1", "g", 8)])
    assert [pool.slots for pool in pools] == [1] * 8
    assert {pool.bound for pool in pools} == {"partition"}
    sized: dict[Kind, Partition | None] = {"gpu": partition("g", tres={"cpu": 99, "gres/gpu": 8})}
    assert make_pools(eight, {"gpu": GPU}, partitions=sized, nodes=[up("g1", "g", 8)]) == pools
    own = account("own", limit={"gres/gpu": 2})
    mixed = make_pools([*eight[:2], own], {"gpu": GPU}, partitions=PLACES, nodes=[up("g", "g", 8)])
    assert {pool.account: pool.slots for pool in mixed} == {"0": 4, "1": 4, "own": 2}


def test_own_pending_jobs_stand_before_new_ones_on_the_nodes() -> None:
    pending = SlurmJob(1, "PENDING", "a", partition="g", tres={"cpu": 8, "gres/gpu": 1},
                       reason="Priority")  # fmt: skip
    found = capacity_now(
        [account("a")], [pending], [], utilisation=1.0, partitions=PLACES,
        nodes=(up("g1", "g", 1),),
    )  # fmt: skip
    assert not found.fits("a", "gpu", GPU)


def two_kinds(free_big: int = 0) -> Capacity:
    """Return an account on two nodes, of which one has a feature and is full."""
    total = {"cpu": 32, "mem": 500_000, "gres/gpu": 0}
    nodes = (
        Node("big", ("p",), True, "MIXED", total, {**total, "cpu": free_big}, ("big",)),
        Node("plain", ("p",), True, "IDLE", total, dict(total)),
    )
    where = Partition("p", None, None, {"cpu": 64, "mem": 10**6}, True, True, None, None, nodes=2)
    limits = {"cpu": 4000, "mem": 400_000}
    return replace(
        room(account("a", limit=limits)), partitions={"gpu": None, "cpu": where}, nodes=nodes
    )


def test_jobs_that_wait_for_a_feature_hold_no_other_nodes() -> None:
    found = two_kinds()
    for _ in range(4):
        found = found.take("a", "cpu", replace(CPU, features=("big",)))
    assert found.fits("a", "cpu", CPU)


@pytest.mark.parametrize("waiting", [1, 4, 8])
def test_jobs_that_wait_for_a_feature_keep_no_others_waiting(tmp_path: Path, waiting: int) -> None:
    rules = Rules(
        {"feature": {"cpu": replace(CPU, features=("big",))}, "plain": {"cpu": CPU}}, seconds=600
    )
    plan = Plan(rules, cluster=cluster_with("", tmp_path)[0])
    names = ["feature"] * waiting + ["plain"] * 4
    jobs = [
        Job(f"{rule}{i}", rule, ("cpu",), nominal_s=600.0, wildcards={"i": i}, priority=-i)
        for i, rule in enumerate(names)
    ]
    work = plan.estimates.workload(jobs)
    round_ = Round(work, plan, two_kinds(), [], {"gpu": set(), "cpu": set()}, 5000.0)
    round_.place([Task(job) for job in jobs], [], None)
    started = [one.task.job.rule for one in round_.placements]
    assert started.count("plain") == 4
