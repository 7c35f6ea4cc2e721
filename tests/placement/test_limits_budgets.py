"""Budgets, whole nodes and partitions with limits of their own, as they are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.placement.budgets import budgets
from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity, capacity_now
from snakemake_scheduler_plugin_tilewright.placement.jobs import Kind, Shape
from snakemake_scheduler_plugin_tilewright.placement.limits import (
    make_pools,
    may_use,
    too_big,
    unknown_use,
)
from snakemake_scheduler_plugin_tilewright.placement.needs import in_hours, needs, room_on
from snakemake_scheduler_plugin_tilewright.slurm.accounts import (
    Account,
    Holder,
    SiteRules,
    usable_accounts,
)
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.nodes import Node
from snakemake_scheduler_plugin_tilewright.slurm.parse import parse_assoc_mgr, parse_sacctmgr
from snakemake_scheduler_plugin_tilewright.slurm.partitions import with_whole_nodes
from snakemake_scheduler_plugin_tilewright.slurm.records import BUDGETS, Partition
from tests.support.placement_rules import account, partition

JOB, GPU_JOB = Shape(8, 100, 0, 60), Shape(8, 100, 1, 60)
FREE = {"cpu": 0, "mem": 0, "gres/gpu": 0}


def capacity(*accounts: Account, waiting: tuple[SlurmJob, ...] = (), **of: Any) -> Capacity:
    where: dict[Kind, Partition | None] = {"gpu": partition("g"), "cpu": partition("c")}
    where |= of.pop("partitions", {})
    return capacity_now(accounts, waiting, [], utilisation=1.0, partitions=where,
                        **of)  # fmt: skip


def with_budget(limit: int, used: int, name: str = "cpu/min", spent: int | None = None) -> Account:
    was = {**FREE, name: used, f"{name}/spent": used if spent is None else spent}
    return account("a", limit={name: limit}, used=was)


def test_a_job_goes_only_where_the_budget_can_end_it() -> None:
    enough, short = capacity(with_budget(1000, 520)), capacity(with_budget(1000, 521))
    assert enough.fits("a", "cpu", JOB)  # 8 CPUs for 60 minutes
    assert not enough.take("a", "cpu", JOB).fits("a", "cpu", JOB)
    assert not short.fits("a", "cpu", JOB)
    assert not short.fits("a", "gpu", GPU_JOB)  # CPUs are charged on both kinds
    assert [pool.free for pool in enough.pools({"cpu": JOB})] == [1]
    assert short.pools({"cpu": JOB}) == []


def test_a_spent_budget_of_gpus_leaves_cpus_open() -> None:
    found = capacity(with_budget(0, 0, "gres/gpu/min"))
    assert found.fits("a", "cpu", JOB)
    assert not found.fits("a", "gpu", GPU_JOB)


def test_what_running_jobs_may_take_comes_back_and_what_is_spent_does_not() -> None:
    running, gone = with_budget(1000, 900, spent=100), with_budget(1000, 900)
    assert too_big(running, JOB) is None
    assert too_big(gone, JOB) == "it may take 8 CPU-hours and account a has 1.67 CPU-hours left"
    per_job = account("a", per_job={"cpu/min": 479})
    assert too_big(per_job, JOB) == "it may take 8 CPU-hours and account a has 7.98 CPU-hours left"
    assert not capacity(per_job).fits("a", "cpu", JOB)


def test_a_budget_above_an_account_and_one_whose_use_is_not_known() -> None:
    above = account("a", above=(Holder("account dept", {"cpu/min": 500}, {"cpu/min": 100}),))
    assert not capacity(above).fits("a", "cpu", JOB)
    assert [str(one) for one in budgets(above)] == [
        "6.67 CPU-hours of 8.33 CPU-hours (account dept)"
    ]
    unknown = account("a", limit={"cpu/min": 500})
    assert unknown_use(unknown) == {"QOS a": ["cpu/min"]}
    assert "cpu/min on QOS a is not known" in capacity(unknown).closed["a", "cpu"]
    assert [str(one) for one in budgets(unknown)] == ["? of 8.33 CPU-hours (QOS a)"]


def test_a_job_that_pends_counts_with_its_time_limit() -> None:
    job = SlurmJob(7, "PENDING", "a", "a", "c", tres={"cpu": 8, "mem": 100}, limit_min=60)
    assert capacity(with_budget(959, 0)).fits("a", "cpu", JOB)
    assert not capacity(with_budget(959, 0), waiting=(job,)).fits("a", "cpu", JOB)


def test_a_job_that_pends_for_a_budget_closes_all_kinds() -> None:
    job = SlurmJob(7, "PENDING", "a", "a", "c", tres={"cpu": 8}, reason="AssocGrpCPUMinutesLimit")
    found = capacity(account("a"), waiting=(job,))
    assert set(found.closed) == {("a", "gpu"), ("a", "cpu")}


def test_budgets_of_a_qos_and_of_an_association_as_slurm_says_them() -> None:
    rows = "\n".join([
        "c|ada||c|c|||||||||||||", "c|||c|c|||||||||root|cpu=600|||",
        f"root{'|' * 14}gres/gpu=60|||1-00:00:00", f"c{'|' * 13}cpu=1200|cpu=300||",
    ])  # fmt: skip
    found, qos = parse_sacctmgr(rows)
    (one,), _ = usable_accounts("ada", found, qos, SiteRules())
    assert {holder.name: holder.limit for holder in one.at("").holders} == {
        "QOS c": {"cpu/min": 1200, "cpu/min/running": 300},
        "account root": {"gres/gpu/min": 60, "wall/min": 1440},
    }
    live = parse_assoc_mgr(
        "QOS=c(2) GrpWall=N(0.10) GrpTRES=cpu=N(8) GrpTRESMins=cpu=1200(26)"
        " GrpTRESRunMins=cpu=300(40),node=N(5)\n"
        "ClusterName=x Account=root UserName= Partition= GrpWall=1440(60.5) GrpTRES=cpu=N(8)"
        " GrpTRESMins=gres/gpu=60(7) GrpTRESRunMins=gres/gpu=N(3),node=N(5)\n"
    )
    (one,), _ = usable_accounts("ada", found, qos, SiteRules(), (), live)
    left = {budget.name: budget.left for budget in budgets(one)}
    assert left == {"cpu/min": 1134, "cpu/min/running": 260, "gres/gpu/min": 50, "wall/min": 1375}


@given(
    st.integers(1, 9), st.integers(1, 200), st.integers(0, 5000), st.integers(0, 5000),
    st.sampled_from(BUDGETS),
)  # fmt: skip
def test_slots_never_pass_a_budget(cpus: int, minutes: int, limit: int, used: int,
                                   name: str) -> None:  # fmt: skip
    shape = Shape(cpus, 10, 0, minutes)
    one = with_budget(limit, used, name)
    each = needs(shape, 1)[name]
    for pool in make_pools([one], {"cpu": shape}, utilisation=1.0):
        assert pool.free * each <= max(0, limit - used)
    now = capacity(one)
    assert now.fits("a", "cpu", shape) == (each <= max(0, limit - used))


def test_hours_are_said_in_the_unit_of_the_budget() -> None:
    assert in_hours("mem/min", 61_440) == "1 GB-hours of memory"
    assert in_hours("wall/min", 90) == "1.5 job-hours"


# Partitions


def nodes(*free: int, cpus: int = 96, **of: Any) -> tuple[Node, ...]:
    return tuple(
        Node(f"c{i}", ("c",), True, "MIXED", {"cpu": cpus, "mem": 1000, "gres/gpu": 2},
             {"cpu": n, "mem": 1000, "gres/gpu": 2}, **of)
        for i, n in enumerate(free)
    )  # fmt: skip


def test_where_jobs_get_whole_nodes_they_count_with_all_of_one() -> None:
    where = with_whole_nodes(replace(partition("c"), whole_nodes=True), nodes(96, 96))
    wanted = needs(JOB, 1, where)
    assert (wanted["cpu"], wanted["mem"], wanted["gres/gpu"]) == (96, 100, 2)
    assert room_on(nodes(96, 90), where, JOB, now=True) == 1
    assert room_on(nodes(96, 90), where, JOB, now=False) == 2
    few, many = account("a", limit={"cpu": 48}), account("b", limit={"cpu": 200})
    found = capacity(few, many, nodes=nodes(96, 96), partitions={"cpu": where})
    assert too_big(few, JOB, where) == ("it gets a whole node with cpu=96 and account a has 48")
    assert (found.fits("a", "cpu", JOB), found.fits("b", "cpu", JOB)) == (False, True)
    after = found.take("b", "cpu", JOB)
    assert [pool.free for pool in after.pools({"cpu": JOB}) if pool.account == "b"] == [1]
    assert not after.take("b", "cpu", JOB).fits("b", "cpu", JOB)


def test_limits_of_a_partition_for_each_node_and_cpu() -> None:
    plain = partition("c")
    assert room_on(nodes(96), replace(plain, cpus_a_node=20), JOB, now=False) == 2
    assert room_on(nodes(88), replace(plain, cpus_a_node=20), JOB, now=True) == 1
    assert too_big(account("a"), JOB, replace(plain, cpus_a_node=4)) is not None
    assert too_big(account("a"), JOB, replace(plain, mem_a_node=99)) is not None
    assert needs(JOB, 1, replace(plain, mem_a_cpu=10))["cpu"] == 10


def test_nodes_with_a_feature_a_gpu_type_or_a_reservation() -> None:
    where, own = partition("c"), nodes(96, features=("avx", "big"), gpu_types=("a100",))
    assert room_on(own, where, replace(JOB, features=("big",)), now=True)
    assert not room_on(own, where, replace(JOB, features=("big", "ib")), now=False)
    assert not room_on(own, where, replace(GPU_JOB, gpu_type="h100"), now=False)
    soon = nodes(96, free_min=59)
    assert not room_on(soon, where, JOB, now=True)
    assert room_on(soon, where, replace(JOB, runtime_min=59), now=True)
    assert room_on(soon, where, JOB, now=False)  # after it


def test_accounts_and_qos_that_a_partition_denies() -> None:
    one = account("a")
    assert may_use(one, partition("c"))
    assert not may_use(one, replace(partition("c"), deny_accounts=("b", "a")))
    assert not may_use(one, replace(partition("c"), deny_qos=("a",)))
