"""Before anything is submitted: jobs that fit nowhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.placement.capacity import capacity_now
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    Fixed,
    Job,
    Kind,
    Past,
    PlacementError,
    Shape,
    Task,
)
from snakemake_scheduler_plugin_tilewright.placement.preflight import check_sizes
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account
from snakemake_scheduler_plugin_tilewright.slurm.nodes import Node
from snakemake_scheduler_plugin_tilewright.slurm.records import Partition
from tests.support.placement_rules import LIMIT, Rules, account, partition, room, with_use
from tests.support.recorded import cluster_with

GPU, CPU = Shape(8, 180, 1, 60), Shape(8, 48, 0, 60)
PLACES: dict[Kind, Partition | None] = {"gpu": partition("g"), "cpu": partition("c")}


def check(
    cluster: Cluster,
    tasks: list[Task],
    accounts: list[Account],
    places: dict[Kind, Partition | None] = PLACES,
    shapes: dict[Kind, Shape] | None = None,
    nodes: tuple[Node, ...] | None = None,
) -> None:
    capacity = capacity_now(accounts, [], [], utilisation=1.0, partitions=places,
                            nodes=nodes)  # fmt: skip
    plan = Plan(Rules({"work": shapes or {"gpu": GPU, "cpu": CPU}}))
    check_sizes(tasks, capacity, plan.estimates)


def task(
    fixed: Fixed = Fixed(),  # noqa: B008
    past: Past = Past(),  # noqa: B008
    kinds: tuple[Kind, ...] = ("gpu", "cpu"),
) -> Task:
    job = Job("rule_work_wildcards_a", "work", kinds, fixed=fixed, wildcards={})
    return Task(job, past=past)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return cluster_with("", tmp_path)[0]


def test_a_job_that_fits_somewhere_is_not_refused(cluster: Cluster) -> None:
    no_gpu = account("a", limit={"cpu": 8, "mem": 48, "gres/gpu": 0})
    too_small = account("b", limit={"cpu": 4})
    check(cluster, [task()], [no_gpu, too_small])
    full = account("a", limit={"cpu": 8}, used={"cpu": 8, "mem": 0, "gres/gpu": 0})
    check(cluster, [task()], [full])  # there is no room now, but some day
    check(cluster, [], [])


def test_a_job_that_would_pend_for_ever_is_refused_with_its_figures(cluster: Cluster) -> None:
    small = [account("a", limit={"cpu": 4}), account("b", limit={"mem": 40})]
    with pytest.raises(PlacementError) as caught:
        check(cluster, [task()], small)
    assert str(caught.value) == (
        "rule_work_wildcards_a would pend for ever: it asks for cpu=8 and account a has 4; "
        "it asks for mem=180 and account b has 40; it asks for mem=48 and account b has 40. "
        "Lower the resources of rule work, or use an account that has more"
    )
    with pytest.raises(PlacementError, match="asks for cpu=9 and account a has 8"):
        check(cluster, [task(fixed=Fixed(cpus=9))], [account("a", limit={"cpu": 8})])
    per_user = account("c", of_user={"cpu": 7})
    with pytest.raises(PlacementError, match="cpu=8 and account c has 7"):
        check(cluster, [task()], [per_user])


def test_memory_that_grew_is_cut_to_what_there_is_and_not_refused(cluster: Cluster) -> None:
    grown = task(past=Past(memory=5))
    check(cluster, [grown], [account("a", limit={"mem": 200})])


def test_the_account_that_the_user_chose_counts(cluster: Cluster) -> None:
    accounts = [account("a", limit={"cpu": 4}), account("b")]
    check(cluster, [task()], accounts)
    with pytest.raises(PlacementError, match="asks for cpu=8 and account a has 4"):
        check(cluster, [task(fixed=Fixed("a"))], accounts)
    with pytest.raises(PlacementError, match=r"on account z, which cannot be used; there are a, b"):
        check(cluster, [task(), task(fixed=Fixed("z"))], accounts)


def test_gpu_jobs_without_a_gpu_partition_are_refused(cluster: Cluster) -> None:
    only_gpu = task(kinds=("gpu",))
    none: dict[Kind, Partition | None] = {"gpu": None, "cpu": partition("c")}
    check(cluster, [task()], [account("a")], none)
    with pytest.raises(PlacementError, match="there is no GPU partition"):
        check(cluster, [only_gpu], [account("a")], none)
    check(cluster, [only_gpu], [account("a")])


def test_memory_that_no_account_has_is_refused_and_not_cut(tmp_path: Path) -> None:
    large = Rules({"work": {"cpu": Shape(1, 500, 0, 60)}}, seconds=600)
    plan = Plan(large, cluster=cluster_with("", tmp_path)[0])
    task = Task(Job("rule_work", "work", ("cpu",), wildcards={}))
    small = room(account("a", limit=LIMIT))
    assert plan.estimates.shape_of(task, "cpu", small).mem_mb == 500
    with pytest.raises(PlacementError, match="mem=500 and account a has 400"):
        check_sizes([task], small, plan.estimates)


def test_partitions_that_take_no_account_and_nodes_that_hold_no_job_are_refused(
    cluster: Cluster,
) -> None:
    one = account("a")
    denied = {**PLACES, "cpu": replace(partition("c"), deny_accounts=("a",))}
    with pytest.raises(PlacementError, match="account a may not use partition c"):
        check(cluster, [task(kinds=("cpu",))], [one], denied)
    whole = replace(partition("c"), whole_nodes=True, whole={"cpu": 96})
    small = account("a", limit={"cpu": 48})
    with pytest.raises(PlacementError, match="a whole node with cpu=96 and account a has 48"):
        check(cluster, [task(kinds=("cpu",))], [small], {**PLACES, "cpu": whole})
    down = Node("c1", ("c",), False, "DOWN", {"cpu": 8, "mem": 900}, {"cpu": 8, "mem": 900})
    check(cluster, [task(kinds=("cpu",))], [one], nodes=(down,))  # it may come up again
    with pytest.raises(PlacementError, match="no node of partition c has 9 CPUs, 48 MB"):
        check(cluster, [task(Fixed(cpus=9), kinds=("cpu",))], [one], nodes=(down,))
    featured: dict[Kind, Shape] = {"cpu": replace(CPU, features=("avx",))}
    with pytest.raises(PlacementError, match="8 CPUs, 48 MB, feature avx"):
        check(cluster, [task(kinds=("cpu",))], [one], shapes=featured, nodes=(down,))


def test_a_budget_that_cannot_end_a_job_is_refused_but_not_for_what_comes_back(
    cluster: Cluster,
) -> None:
    used = {"cpu": 0, "mem": 0, "gres/gpu": 0, "cpu/min": 900}
    spent = account("a", limit={"cpu/min": 1000}, used={**used, "cpu/min/spent": 900})
    with pytest.raises(PlacementError, match=r"8 CPU-hours and account a has 1\.67 CPU-hours left"):
        check(cluster, [task(kinds=("cpu",))], [spent])
    check(
        cluster, [task(kinds=("cpu",))], [with_use(spent, lambda _: {**used, "cpu/min/spent": 9})]
    )
    check(cluster, [task(kinds=("cpu",))], [spent, account("b")])


def test_licences_that_are_not_there_are_refused() -> None:
    shape = replace(CPU, licences=(("matlab", 2),))
    plan = Plan(Rules({"work": {"cpu": shape}}))
    one = [task(kinds=("cpu",))]
    for there, refused in (({"matlab": 1}, 1), ({}, 0), ({"matlab": 2}, None), (None, None)):
        capacity = capacity_now([account("a")], [], [], utilisation=1.0,
                                partitions=PLACES, licences=there)  # fmt: skip
        if refused is None:
            check_sizes(one, capacity, plan.estimates)
            continue
        with pytest.raises(PlacementError, match=f"2 of licence matlab and there are {refused}"):
            check_sizes(one, capacity, plan.estimates)


def test_an_account_whose_use_is_not_known_yet_may_take_it(cluster: Cluster) -> None:
    small, large = account("a", limit={"cpu": 4}), account("b", limit={"cpu": 99}, used=None)
    check(cluster, [task(kinds=("cpu",))], [small, large])
    with pytest.raises(PlacementError, match="cpu=8 and account a has 4"):
        check(cluster, [task(kinds=("cpu",))], [small])
