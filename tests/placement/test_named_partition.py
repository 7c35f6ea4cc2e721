"""Jobs whose rule names a partition, or states more minutes than some account allows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity, capacity_now
from snakemake_scheduler_plugin_tilewright.placement.failures import why_no_retry
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    Fixed,
    Job,
    Kind,
    Place,
    PlacementError,
    Shape,
    Task,
)
from snakemake_scheduler_plugin_tilewright.placement.limits import longest_min
from snakemake_scheduler_plugin_tilewright.placement.preflight import check_sizes
from snakemake_scheduler_plugin_tilewright.placement.round import Round
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account
from snakemake_scheduler_plugin_tilewright.slurm.nodes import Node
from snakemake_scheduler_plugin_tilewright.slurm.records import Partition
from tests.support.placement_rules import Rules, account, partition

SHAPE = Shape(2, 10, 0, 120)


def node(name: str, where: str, cpus: int = 8, held: int = 0) -> Node:
    free = {"cpu": cpus - held, "mem": 999}
    return Node(name, (where,), True, "IDLE", {"cpu": cpus, "mem": 999}, free)


def capacity(
    accounts: list[Account], nodes: tuple[Node, ...] | None = None, **named: Partition
) -> Capacity:
    own: dict[Kind, Partition | None] = {"cpu": named.get("cpu", partition("cpu")), "gpu": None}
    named.setdefault("cpu", partition("cpu"))
    return capacity_now(accounts, (), (), utilisation=1.0, partitions=own, nodes=nodes, named=named)


def tasks(count: int, shape: Shape = SHAPE, fixed: Fixed = Fixed()) -> tuple[Plan, list[Task]]:  # noqa: B008
    plan = Plan(Rules({"work": {"cpu": shape}}))
    return plan, [Task(Job(f"work{k}", "work", ("cpu",), fixed=fixed)) for k in range(count)]


def placed(here: Capacity, plan: Plan, ready: list[Task]) -> dict[str, int]:
    work = plan.estimates.workload([task.job for task in ready])
    round_ = Round(work, plan, here, [], {"gpu": (), "cpu": ()}, 0.0)
    plan.place = lambda account, kind, rule, wildcards: Place(  # type: ignore[method-assign]
        account.name, None, "cpu", kind, SHAPE, f"{account.name}_{kind}"
    )
    round_.place(ready, [], None)
    found: dict[str, int] = {}
    for one in round_.placements:
        if "waits in Slurm's queue" in one.reason:
            continue
        found[one.place.account] = found.get(one.place.account, 0) + 1
    return found


def test_a_named_partition_is_the_one_that_is_looked_at() -> None:
    lab = account("lab", limit={"cpu": 40})
    full = (node("a", "cpu", held=8), node("b", "turin"))
    here = capacity([lab], full, turin=partition("turin"))
    assert placed(here, *tasks(5, fixed=Fixed(partition="turin"))) == {"lab": 4}
    assert placed(here, *tasks(5)) == {}
    assert placed(capacity([lab], full), *tasks(5, fixed=Fixed(partition="unseen"))) == {"lab": 5}


def test_a_named_partition_is_the_one_that_a_job_is_refused_for() -> None:
    lab = account("lab", limit={"cpu": 40})
    nodes = (node("a", "cpu", cpus=1), node("b", "turin"))
    closed = partition("cpu", allow_accounts=("other",))
    here = capacity([lab], nodes, cpu=closed, turin=partition("turin"))
    plan, ready = tasks(1, fixed=Fixed(partition="turin"))
    check_sizes(ready, here, plan.estimates)
    with pytest.raises(PlacementError, match="account lab may not use partition cpu"):
        check_sizes(tasks(1)[1], here, plan.estimates)
    wide = replace(SHAPE, cpus=9)
    plan, ready = tasks(1, wide, Fixed(partition="turin"))
    with pytest.raises(PlacementError, match="no node of partition turin has 9 CPUs"):
        check_sizes(ready, here, plan.estimates)


def test_a_job_that_ran_out_of_time_may_have_what_its_own_partition_allows() -> None:
    lab, short = account("lab"), partition("cpu", max_time_min=60)
    named = {"long": partition("long", max_time_min=900)}
    job = Job("a", "work", ("cpu",), fixed=Fixed(partition="long"))
    place = Place("lab", None, "long", "cpu", replace(SHAPE, runtime_min=60), "lab_cpu")
    assert not why_no_retry(job, place, "time", [lab], {"cpu": short}, named)
    default = replace(job, fixed=Fixed())
    assert "longest" in why_no_retry(default, place, "time", [lab], {"cpu": short}, named)


def test_no_account_gets_a_job_that_it_gives_too_few_minutes() -> None:
    short, long = account("short", limit={"cpu": 40}, longest_min=60), account("long")
    here = capacity([short, replace(long, limits=account("long", limit={"cpu": 4}).limits)])
    stated = replace(SHAPE, stated_min=120)
    assert placed(here, *tasks(5, stated)) == {"long": 2}
    assert "short" in placed(here, *tasks(5))  # nobody stated these minutes
    plan, ready = tasks(1, stated)
    with pytest.raises(PlacementError, match="asks for 120 min and account short has 60"):
        check_sizes(ready, capacity([short]), plan.estimates)


def test_shorter_jobs_go_where_longer_ones_may_not() -> None:
    short, long = account("short", limit={"cpu": 4}, longest_min=60), account("long")
    here = capacity([short, replace(long, limits=account("long", limit={"cpu": 2}).limits)])
    rules = Rules({"brief": {"cpu": replace(SHAPE, runtime_min=50, stated_min=50)},
                   "work": {"cpu": replace(SHAPE, stated_min=120)}})  # fmt: skip
    jobs = [Job(f"{rule}{k}", rule, ("cpu",)) for rule in rules.shapes for k in range(3)]
    ready = [Task(job) for job in reversed(jobs)]
    assert placed(here, Plan(rules), ready) == {"long": 1, "short": 2}


def test_a_qos_may_let_jobs_run_longer_than_their_partition() -> None:
    lab = account("lab", longest_min=900)
    where = partition("cpu", max_time_min=60)
    assert longest_min(lab, where) == 60
    limits = {"": replace(lab.limits[""], beyond_partition=True)}
    assert longest_min(replace(lab, limits=limits), where) == 900
