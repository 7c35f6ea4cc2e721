"""Room of accounts, budgets and nodes, counted by hand; what once let too many jobs start."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.cluster.limits import too_big, unknown_use
from snakemake_scheduler_plugin_tilewright.cluster.pending_use import PendingUse
from snakemake_scheduler_plugin_tilewright.cluster.request import DeviceKind, ResourceRequest
from snakemake_scheduler_plugin_tilewright.cluster.room import Room
from snakemake_scheduler_plugin_tilewright.cluster.state import ClusterState
from snakemake_scheduler_plugin_tilewright.cluster.tres import (
    budgets,
    fitting_jobs,
    in_hours,
    tres_of,
    why_not_counted,
)
from snakemake_scheduler_plugin_tilewright.placement.jobs import JobState
from snakemake_scheduler_plugin_tilewright.resources import Placement
from snakemake_scheduler_plugin_tilewright.slurm.accounts import (
    Account,
    LimitScope,
    SiteRules,
    usable_accounts,
)
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.nodes import Node
from snakemake_scheduler_plugin_tilewright.slurm.parse import (
    parse_assoc_mgr,
    parse_partitions,
    parse_sacctmgr,
)
from snakemake_scheduler_plugin_tilewright.slurm.partitions import with_whole_nodes
from snakemake_scheduler_plugin_tilewright.slurm.records import Association, Partition, Qos
from tests.support.placement_rules import (
    CPU,
    GPU,
    GROUP_REASONS,
    LIMIT,
    PLACES,
    Rules,
    account,
    at,
    fits,
    free_slots,
    idle,
    partition,
    room,
    round_on,
    slots_of,
    take,
)
from tests.support.recorded import PARTITION, cluster_with


def free(found: ClusterState) -> dict[str, int]:
    return {pool.name: pool.free for pool in free_slots(found, {"gpu": GPU, "cpu": CPU})}


def fitting(found: ClusterState) -> list[str]:
    """Return which of CPU and GPU jobs fit on which account."""
    names = [one.name for one in found.accounts]
    shapes: dict[DeviceKind, ResourceRequest] = {"cpu": CPU, "gpu": GPU}
    return [f"{n} {k}" for n in names for k, one in shapes.items() if fits(found, n, k, one)]


def pend(account: str, reason: str = "Priority", **of: Any) -> SlurmJob:
    return SlurmJob(7, "PENDING", account, reason=reason, **of)


def test_others_jobs_count_for_the_most_jobs_of_an_account_and_not_of_a_user() -> None:
    full = room(account("a", limit={"jobs": 2}, used={"jobs": 2}))
    assert (fitting(full), [pool.free for pool in free_slots(full, {"cpu": CPU})]) == ([], [0])
    one = account("a", used={"jobs": 4}, of_user={"jobs": 4})
    assert [pool.free for pool in free_slots(room(one), {"cpu": CPU})] == [4]
    assert fitting(room(account("a", of_user={"jobs": 4}, mine={"jobs": 4}))) == []


@pytest.mark.parametrize(
    "job",
    [
        pend("a", "QOSMaxCpuPerUserLimit", qos="a", tres={"cpu": 9}),
        pend("a", "QOSGrpCpuLimit", qos="a", tres={"cpu": 41}),
        pend("a", "QOSGrpCpuLimit", qos="a-b", tres={"cpu": 1}),
    ],
    ids=["above what a user may have", "above the limit", "on another QOS"],
)
def test_a_job_that_can_never_run_or_is_on_another_qos_closes_nothing(job: SlurmJob) -> None:
    one = account("a", limit=LIMIT, of_user={"cpu": 8})
    assert fitting(room(one, waiting=[job])) == ["a cpu", "a gpu"]


def test_use_pending_jobs_and_claims_all_take_room() -> None:
    one = account("a", limit=LIMIT, used={"cpu": 8, "mem": 100, "gres/gpu": 0})
    of = {"cpu": 8, "mem": 50}
    running = SlurmJob(2, "RUNNING", "a", tres=of)  # it is in the use
    waiting = [pend("a", tres=of), running, pend("b", tres=of)]
    assert free(room(one)) == {"a_gpu": 2, "a_cpu": 2}
    assert free(room(one, waiting=waiting)) == {"a_gpu": 2, "a_cpu": 1}
    sent = PendingUse("a", {"cpu": 8, "mem": 100, "gres/gpu": 1, "jobs": 1})
    both = room(one, waiting=waiting, sent=[sent])
    assert free(both) == {"a_gpu": 1, "a_cpu": 1}
    (qos,) = both.accounts[0].at("").scopes
    assert qos.used == {"cpu": 24, "mem": 250, "gres/gpu": 1}


@pytest.mark.parametrize("where", [0, 1], ids=["own QOS", "QOS of the partition"])
def test_a_limit_of_each_account_counts_what_was_sent_there(where: int) -> None:
    rows = [Association(name, "ada", "", ("q",), "q") for name in "ab"]
    qos = [Qos("q"), Qos("part")]
    qos[where] = replace(qos[where], tres_per_account={"cpu": 12})
    place = replace(partition("p"), qos="part")
    accounts, _ = usable_accounts("ada", rows, qos, SiteRules(), [place], idle("q") | idle("part"))
    pending = pend("a", qos="q", partition="p", tres={"cpu": 8})
    found = room(*accounts, waiting=[pending], partitions={"gpu": None, "cpu": place})
    assert fitting(found) == ["b cpu"]
    assert fitting(take(found, "b", "cpu", CPU)) == []


def test_each_start_takes_its_own_room() -> None:
    left = room(account("a", limit=LIMIT), account("b", limit={"cpu": 8}))
    assert fitting(left) == ["a cpu", "a gpu", "b cpu", "b gpu"]
    left = take(left, "a", "gpu", GPU)
    assert fits(left, "a", "gpu", GPU)
    left = take(left, "a", "gpu", GPU)
    assert fitting(left) == ["a cpu", "b cpu", "b gpu"]
    assert fitting(take(left, "b", "cpu", CPU)) == ["a cpu"]
    assert not fits(left, "nobody", "cpu", CPU)


def test_an_account_whose_use_is_not_known_takes_nothing() -> None:
    unknown = account("a", limit=LIMIT, used=None)
    partly = account("b", limit=LIMIT, used={"cpu": 0, "mem": 0})
    found = room(unknown, partly, account("c", limit=LIMIT))
    assert found.closed[at(found, "a", "gpu")] == "use of cpu, mem, gres/gpu on QOS a is not known"
    assert found.closed[at(found, "b", "cpu")] == "use of gres/gpu on QOS b is not known"
    assert free(found) == {"a_gpu": 0, "a_cpu": 0, "b_gpu": 0, "b_cpu": 0, "c_gpu": 2, "c_cpu": 3}
    assert fitting(found) == ["c cpu", "c gpu"]


@pytest.mark.parametrize("reason", [*GROUP_REASONS, "AssocGrpGRES", "AssocMaxJobsLimit"])
def test_a_group_limit_on_which_a_job_pends_closes_what_waits_for_the_same(reason: str) -> None:
    job = pend("a", reason, tres={"cpu": 1}, workdir="/elsewhere")
    both = [account("a", limit=LIMIT), account("b", limit=LIMIT)]
    found = room(*both, waiting=[job])
    assert fitting(found) == ["a cpu"] * ("GRES" in reason) + ["b cpu", "b gpu"]
    said = f"your job 7 waits on a: {reason}"
    assert found.closed[at(found, "a", "gpu")] == f"{said}; cancel it, or wait"
    own = room(*both, waiting=[replace(job, workdir="/run")], workdir="/run")
    assert own.closed[at(own, "a", "gpu")] == said


# Budgets


def with_budget(limit: int, used: int, name: str = "cpu/min", spent: int | None = None) -> Account:
    was = {"cpu": 0, "mem": 0, "gres/gpu": 0, name: used}
    was[f"{name}/spent"] = used if spent is None else spent
    return account("a", limit={name: limit}, used=was)


def test_what_running_jobs_may_take_comes_back_and_what_is_spent_does_not() -> None:
    assert too_big(with_budget(1000, 900, spent=100), CPU) is None
    gone, per_job = with_budget(1000, 900), account("a", per_job={"cpu/min": 479})
    for one, hours in ((gone, "1.67"), (per_job, "7.98")):
        assert too_big(one, CPU) == (
            f"it may take 8 CPU-hours and account a has {hours} CPU-hours left"
        )
        assert "a cpu" not in fitting(room(one))


def test_a_budget_above_an_account_and_one_whose_use_is_not_known() -> None:
    above = account("a", above=(LimitScope("account dept", {"cpu/min": 500}, {"cpu/min": 100}),))
    assert fitting(room(above)) == []
    assert [str(one) for one in budgets(above)] == [
        "6.67 CPU-hours of 8.33 CPU-hours (account dept)"
    ]
    unknown = account("a", limit={"cpu/min": 500})
    assert unknown_use(unknown) == {"QOS a": ["cpu/min"]}
    assert "cpu/min on QOS a is not known" in room(unknown).closed[at(room(unknown), "a", "cpu")]
    assert [str(one) for one in budgets(unknown)] == ["? of 8.33 CPU-hours (QOS a)"]


def test_a_job_that_pends_counts_with_its_time_limit_and_closes_what_it_waits_for() -> None:
    job = pend("a", "", qos="a", partition="c", tres={"cpu": 8, "mem": 100}, limit_min=60)
    assert "a cpu" in fitting(room(with_budget(959, 0)))
    assert fitting(room(with_budget(959, 0), waiting=[job])) == []
    job = replace(job, reason="AssocGrpCPUMinutesLimit")
    found = room(account("a"), waiting=[job])
    assert {at(found, "a", "gpu"), at(found, "a", "cpu")} < set(found.closed)
    assert set(found.closed) == set(found.every_target)


def test_budgets_of_a_qos_and_of_an_association_as_slurm_says_them() -> None:
    rows = "\n".join([
        "c|ada||c|c|||||||||||||", "c|||c|c|||||||||root|cpu=600|||",
        f"root{'|' * 14}gres/gpu=60|||1-00:00:00", f"c{'|' * 13}cpu=1200|cpu=300|||||||",
    ])  # fmt: skip
    found, qos = parse_sacctmgr(rows)
    live = parse_assoc_mgr(
        "QOS=c(2) GrpWall=N(0.10) GrpTRES=cpu=N(8) GrpTRESMins=cpu=1200(26)"
        " GrpTRESRunMins=cpu=300(40),node=N(5)\n"
        "ClusterName=x Account=root UserName= Partition= GrpWall=1440(60.5) GrpTRES=cpu=N(8)"
        " GrpTRESMins=gres/gpu=60(7) GrpTRESRunMins=gres/gpu=N(3),node=N(5)\n"
    )
    (one,), _ = usable_accounts("ada", found, qos, SiteRules(), (), live)
    assert {scope.name: scope.limit for scope in one.at("").scopes} == {
        "QOS c": {"cpu/min": 1200, "cpu/min/running": 300},
        "account root": {"gres/gpu/min": 60, "wall/min": 1440},
    }
    left = {budget.name: budget.remaining for budget in budgets(one)}
    assert left == {"cpu/min": 1134, "cpu/min/running": 260, "gres/gpu/min": 50, "wall/min": 1375}


_EACH = ("cpu/min", "mem/min", "node/min", "billing/min", "gres/gpu/min")
BUDGETS = ("wall/min", *_EACH, *(f"{name}/running" for name in _EACH))


@given(
    st.integers(1, 9), st.sampled_from([("cpu", 0), ("gpu", 1)]), st.integers(1, 200),
    st.integers(0, 5000), st.integers(0, 5000), st.sampled_from(BUDGETS),
)  # fmt: skip
def test_slots_stay_in_a_budget(
    cpus: int, device: tuple[DeviceKind, int], minutes: int, limit: int, used: int, name: str
) -> None:
    kind, gpus = device
    shape = ResourceRequest(cpus, 10, gpus, minutes)
    one, each = with_budget(limit, used, name), tres_of(shape)[name]
    for pool in slots_of([one], {kind: shape}, utilisation=1.0):
        assert pool.free * each <= max(0, limit - used)
    assert fits(room(one), "a", kind, shape) == (each <= max(0, limit - used))


def test_hours_are_said_in_the_unit_of_the_budget() -> None:
    assert in_hours("mem/min", 61_440) == "1 GB-hours of memory"
    assert in_hours("wall/min", 90) == "1.5 job-hours"


# TRES of every kind

MATLAB = replace(CPU, licences=(("matlab", 2),))
#: The example of slurm.conf(5): one CPU and 8 GB are 3 by the sum, 2 by the largest.
WEIGHTS = "CPU=1.0,Mem=0.25G,GRES/gpu=2.0,license/matlab=5"
BILLED = f"PartitionName=c MaxTime=1:00:00 State=UP TRES=cpu=96{PARTITION}"


def billing(flags: tuple[str, ...] | None, **of: Any) -> int:
    (where,) = parse_partitions(f"{BILLED.strip()} TRESBillingWeights={WEIGHTS}")
    request = replace(ResourceRequest(1, 8192, 0, 60), **of)
    return tres_of(request, replace(where, priority_flags=flags))["billing"]


def test_a_partition_bills_by_its_weights() -> None:
    assert (billing(()), billing(("MAX_TRES",)), billing(("MAX_TRES_GRES",))) == (3, 2, 2)
    assert [billing((one,), gpus=2) for one in ("SMALL", "MAX_TRES", "MAX_TRES_GRES")] == [7, 4, 6]
    assert billing(("MAX_TRES",), licences=(("matlab", 2),)) == 12
    assert tres_of(CPU)["billing"] == 8


@pytest.mark.parametrize(
    ("limit", "jobs", "shape"),
    [
        ({"billing": 17}, 2, CPU),
        ({"license/matlab": 5}, 2, MATLAB),
        ({"license/matlab": 0}, 3, CPU),
        ({"bb/fast": 0, "gres/shard": 0}, 3, CPU),
        ({"energy": 0, "node": 0}, 3, CPU),  # Slurm measures it; jobs share nodes
        ({"gres/gpu:b200": 2}, 2, GPU),
        ({"gres/gpu:a100": 0}, 2, GPU),
        ({"license/matlab/min/running": 2 * 60 * 2}, 2, MATLAB),
    ],
)  # fmt: skip
def test_every_tres_in_a_limit_counts(
    limit: dict[str, int], jobs: int, shape: ResourceRequest
) -> None:
    kind: DeviceKind = "gpu" if shape.gpus else "cpu"
    places = {**PLACES, "gpu": partition("g", tres={"gres/gpu": 2, "gres/gpu:b200": 2})}
    one = account("a", limit=limit, used=dict.fromkeys(limit, 0))
    found = room(one, partitions=places)
    slots = [pool.free for pool in free_slots(found, {kind: shape})]
    assert (min(slots[0], 3) if kind == "cpu" else slots[0]) == jobs
    for n in range(4 if kind == "cpu" else 2):
        assert fits(found, "a", kind, shape) == (n < jobs or jobs == 3)
        found = take(found, "a", kind, shape)


def test_where_jobs_get_whole_nodes_a_limit_on_nodes_counts() -> None:
    where = replace(partition("c"), whole_nodes=True, whole={"cpu": 96})
    one = account("a", limit={"node": 2}, used={"node": 1})
    found = room(one, partitions={**PLACES, "cpu": where})
    assert fits(found, "a", "cpu", CPU)
    assert not fits(take(found, "a", "cpu", CPU), "a", "cpu", CPU)


def test_what_cannot_be_counted_is_left_to_slurm() -> None:
    mixed = partition("g", tres={"gres/gpu": 4, "gres/gpu:a100": 2, "gres/gpu:h100": 2})
    unknown = replace(mixed, billing=(("cpu", 1.0),), priority_flags=None)
    assert why_not_counted("gres/gpu:a100", mixed) == "its partition's GPUs are not of one type"
    assert why_not_counted("billing/min", unknown) == "PriorityFlags are not known"
    assert not why_not_counted("billing", mixed)
    one = account("a", limit={"gres/gpu:a100": 0, "energy": 5}, used={"cpu": 0})
    assert fits(room(one, partitions={**PLACES, "gpu": mixed}), "a", "gpu", GPU)


def test_minutes_that_the_jobs_of_one_user_may_take_count() -> None:
    name = "cpu/min/running"
    one = account("a", of_user={name: 2 * 8 * 60 + 1}, mine={name: 1})
    found = room(one)
    assert [pool.free for pool in free_slots(found, {"cpu": CPU})] == [2]


# Nodes and partitions


def nodes(*cpus_free: int, **of: Any) -> tuple[Node, ...]:
    return tuple(
        Node(f"c{i}", ("c",), True, {"cpu": 96, "mem": 1000, "gres/gpu": 2},
             {"cpu": n, "mem": 1000, "gres/gpu": 2}, **of)
        for i, n in enumerate(cpus_free)
    )  # fmt: skip


def up(name: str, partition: str, free_gpus: int, total_gpus: int = 8) -> Node:
    total = {"cpu": 64, "mem": 900, "gres/gpu": total_gpus}
    return Node(name, (partition,), True, total, {**total, "gres/gpu": free_gpus})


def test_nodes_bound_what_fits_now_and_what_may_wait_for_them() -> None:
    full = (up("g1", "g", 1), up("g2", "g", 0), up("c1", "c", 0, 0))
    found = room(account("a"), account("b"), nodes=full)
    assert fits(found, "a", "gpu", GPU)
    taken = take(found, "a", "gpu", GPU)
    assert not fits(taken, "b", "gpu", GPU)
    assert Room(taken).within_limits(at(taken, "b", "gpu"), GPU)
    assert not Room(found).within_limits(at(found, "b", "gpu"), replace(GPU, gpus=9))
    avoided = replace(found, avoided={at(found, "a", "gpu"): "Resources"})
    assert not fits(avoided, "a", "gpu", GPU)
    assert Room(avoided).within_limits(at(avoided, "a", "gpu"), GPU)
    assert {p.name: p.free for p in free_slots(avoided, {"gpu": GPU})} == {"a_gpu": 0, "b_gpu": 1}
    pending = pend("a", partition="g", tres={"cpu": 8, "gres/gpu": 1})  # it stands before new ones
    own = room(account("a"), waiting=[pending], nodes=full[:1])
    assert not fits(own, "a", "gpu", GPU)


def test_accounts_without_limits_share_the_nodes() -> None:
    eight, own = [account(str(i)) for i in range(8)], account("own", limit={"gres/gpu": 2})
    sized: Mapping[DeviceKind, Partition | None] = {
        "gpu": partition("g", tres={"cpu": 99, "gres/gpu": 8})
    }

    def slots(accounts: list[Account], where: Mapping[DeviceKind, Partition | None]) -> list[Any]:
        pools = slots_of(accounts, {"gpu": GPU}, partitions=where, nodes=(up("g1", "g", 8),))
        return [(pool.account, pool.slots, pool.bound) for pool in pools]

    each = [(str(i), 1, "partition") for i in range(8)]
    assert slots(eight, PLACES) == slots(eight, sized) == each
    assert slots([*eight[:2], own], PLACES) == [
        ("0", 4, "partition"), ("1", 4, "partition"), ("own", 2, "gres/gpu"),
    ]  # fmt: skip


@pytest.mark.parametrize("waiting", [1, 4, 8])
def test_jobs_that_wait_for_a_feature_keep_no_others_waiting(tmp_path: Path, waiting: int) -> None:
    total = {"cpu": 32, "mem": 500_000, "gres/gpu": 0}
    both = (
        Node("big", ("p",), True, total, {**total, "cpu": 0}, ("big",)),
        Node("plain", ("p",), True, total, dict(total)),
    )
    where = Partition("p", None, None, {"cpu": 64, "mem": 10**6}, True, True, None, None, nodes=2)
    one = account("a", limit={"cpu": 4000, "mem": 400_000})
    here = room(one, partitions={"gpu": None, "cpu": where}, nodes=both)
    found, big = here, replace(CPU, features=("big",))
    for _ in range(waiting):
        found = take(found, "a", "cpu", big)
    assert fits(found, "a", "cpu", CPU)
    rules = Rules({"feature": {"cpu": big}, "plain": {"cpu": CPU}}, seconds=600)
    placement = Placement(rules.models, cluster=cluster_with("", tmp_path)[0])
    names = ["feature"] * waiting + ["plain"] * 4
    tasks = [
        JobState(rules.job(f"{rule}{i}", rule, wildcards={"i": i}, priority=-i))
        for i, rule in enumerate(names)
    ]
    started = round_on(here, placement, tasks).assignments
    assert sum(name.startswith("plain") for name in started) == 4


def held(own: tuple[Node, ...], where: Partition, request: ResourceRequest) -> int | None:
    """Return how many jobs nodes hold now."""
    here = room(account("a"), nodes=own, partitions={**PLACES, "cpu": where})
    return Room(here).on_nodes(where, request)


def test_where_jobs_get_whole_nodes_they_count_with_all_of_one() -> None:
    where = with_whole_nodes(replace(partition("c"), whole_nodes=True), nodes(96, 96))
    wanted = tres_of(CPU, where)
    assert (wanted["cpu"], wanted["mem"], wanted["gres/gpu"]) == (96, 50, 2)
    assert (held(nodes(96, 90), where, CPU), fitting_jobs(nodes(96, 90), where, CPU)) == (1, 2)
    few, many = account("a", limit={"cpu": 48}), account("b", limit={"cpu": 200})
    found = room(few, many, nodes=nodes(96, 96), partitions={**PLACES, "cpu": where})
    assert too_big(few, CPU, where) == "it gets a whole node with cpu=96 and account a has 48"
    assert (fits(found, "a", "cpu", CPU), fits(found, "b", "cpu", CPU)) == (False, True)
    after = take(found, "b", "cpu", CPU)
    assert [pool.free for pool in free_slots(after, {"cpu": CPU}) if pool.account == "b"] == [1]
    assert not fits(take(after, "b", "cpu", CPU), "b", "cpu", CPU)


def test_limits_of_a_partition_for_each_node_and_cpu() -> None:
    plain = partition("c")
    few = replace(plain, cpus_a_node=20)
    assert fitting_jobs(nodes(96), few, CPU) == 2
    assert held(nodes(88), few, CPU) == 1
    for where in (replace(plain, cpus_a_node=4), replace(plain, mem_a_node=49)):
        assert too_big(account("a"), CPU, where) is not None
    assert tres_of(CPU, replace(plain, mem_a_cpu=5))["cpu"] == 10


def test_nodes_with_a_feature_a_gpu_type_or_a_reservation() -> None:
    where, own = partition("c"), nodes(96, features=("avx", "big"), gpu_types=("a100",))
    assert held(own, where, replace(CPU, features=("big",)))
    assert not fitting_jobs(own, where, replace(CPU, features=("big", "ib")))
    assert not fitting_jobs(own, where, replace(GPU, gpu_type="h100"))
    soon = nodes(96, free_min=59)
    assert not held(soon, where, CPU)
    assert held(soon, where, replace(CPU, runtime_min=59))
    assert fitting_jobs(soon, where, CPU)  # after it


def test_a_job_goes_to_the_fullest_node_that_holds_it() -> None:
    own = nodes(64, 96)
    here = room(account("a"), nodes=own, partitions=PLACES)
    wide, found = replace(CPU, cpus=64), Room(here)
    target = here.target(here.accounts[0], "cpu")
    for one, jobs in ((CPU, 20), (CPU, 19), (wide, 1)):
        assert found.on_nodes(here.where(target), one) == jobs
        found.take(target, one)
    assert found.on_nodes(here.where(target), wide) == 0
