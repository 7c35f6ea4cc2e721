"""What the rules ask for: on one machine, inside a Slurm job, by the static plan and the table."""

from __future__ import annotations

import inspect
import math
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake.common import FUNC_OVERWRITE_PARAMS_ATTR, get_function_params
from snakemake.resources import Resource

from snakemake_scheduler_plugin_tilewright.placement import cluster as clusters
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    Place,
    PlacementError,
    Shape,
    key_of,
)
from snakemake_scheduler_plugin_tilewright.placement.ledger import LEDGER
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan, plan_of, set_up
from snakemake_scheduler_plugin_tilewright.placement.sizing import Durations
from snakemake_scheduler_plugin_tilewright.runtime.granted import granted_cpus
from tests.support.placement_rules import Rules
from tests.support.recorded import cluster_with, named_qos, queue_line

GPU, CPU = Shape(8, 5000, 1, 60, 900), Shape(6, 3000, 0, 90)
RULES = Rules({"both": {"gpu": GPU, "cpu": CPU}, "cpu": {"cpu": CPU}})
POOLS = {
    f"{account}_{kind}" for account in ("brusko", "clive", "maigan") for kind in ("gpu", "cpu")
}
ON_GPU = {"cpus": 2, "mem_mb": 8000, "runtime": 2}
ON_CPU = {"cpus": 8, "mem_mb": 16000, "runtime": 6}
NIGHT = Place("maigan", "night", "hpg-b200", "gpu", Shape(5, 1234, 1, 17), "maigan_gpu")
#: What a rule asks for that is sent there.
AT_NIGHT = {
    "mem_mb": 1234,
    "runtime": 17,
    "gpu": 1,
    "slurm_account": "maigan",
    "slurm_partition": "hpg-b200",
    "qos": "night",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return cluster_with("", tmp_path_factory.mktemp("cache"))[0]


def asked(functions: dict[str, Any], rule: str, wildcards: Any, attempt: int) -> dict[str, Any]:
    """Return what Snakemake finds when it calls the resource functions of a rule."""
    found = {
        name: ask(wildcards, attempt, rule) if callable(ask) else ask
        for name, ask in functions.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def values(plan: Plan, rule: str, wildcards: Any, attempt: int = 1) -> dict[str, Any]:
    return asked(plan.routed(rule), rule, wildcards, attempt)


def either(plan: Plan, rule: str, wildcards: Any, attempt: int = 1) -> dict[str, Any]:
    return asked(plan.either(gpu=ON_GPU, cpu=ON_CPU), rule, wildcards, attempt)


def test_on_one_machine_the_device_of_the_machine_counts() -> None:
    here = Plan(RULES)
    assert values(here, "both", {}) == {"mem_mb": 3000, "runtime": 90}
    assert (here.threads("both")({}), here.place_of("both", {})) == (6, None)
    gpu = Plan(RULES, device="gpu")
    on_gpu = {"mem_mb": 5000, "runtime": 60, "gpu": 1, "gpu_mem_mb": 900}
    assert (values(gpu, "both", {}), gpu.threads("both")({})) == (on_gpu, 8)
    gpu.here["rule_both"] = "cpu"
    on_cpus = {"mem_mb": 3000, "runtime": 90, "cpu": 6, "gpu_mem_mb": 0}
    assert (values(gpu, "both", {}), gpu.threads("both")({})) == (on_cpus, 6)
    assert "gpu" not in values(gpu, "cpu", {})
    assert gpu.threads("cpu")({}) == 6
    inside = Plan(RULES, device="gpu", granted_cpus=3)  # a Slurm job
    assert (inside.threads("both")({}), inside.threads("cpu")({})) == (3, 3)
    assert values(inside, "both", {})["gpu"] == 1


def test_on_one_machine_each_retry_doubles_memory_and_time() -> None:
    found = [values(Plan(RULES), "cpu", {}, attempt) for attempt in (1, 2, 3)]
    doubled = [(3000, 90), (6000, 180), (12000, 360)]
    assert [(one["mem_mb"], one["runtime"]) for one in found] == doubled
    gpu = values(Plan(RULES, device="gpu"), "both", {}, attempt=2)
    assert gpu == {"mem_mb": 10000, "runtime": 120, "gpu": 1, "gpu_mem_mb": 1800}


@pytest.mark.parametrize(
    ("environ", "cpus"),
    [
        ({"SLURM_CPUS_PER_TASK": "8", "SLURM_CPUS_ON_NODE": "16"}, 8),
        ({"SLURM_CPUS_ON_NODE": "16"}, 16),
        ({"SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "2"}, 2),
        ({"SLURM_CPUS_PER_TASK": "8(x2)"}, None),
        ({}, None),
    ],
)
def test_what_slurm_granted(environ: dict[str, str], cpus: int | None) -> None:
    assert granted_cpus(environ) == cpus


def test_the_static_plan_spreads_by_slots_and_speed(cluster: Cluster) -> None:
    plan = Plan(RULES, cluster=cluster)
    plan.estimates.durations = Durations(slowdown=4.0)
    pools = {p.name: p for p in cluster.survey.pools}
    assert set(pools) == POOLS
    for rule in ("both", "cpu"):
        kinds = RULES.kinds(rule)
        weight = {name: p.slots * (4 if p.kind == "gpu" else 1)
                  for name, p in pools.items() if p.kind in kinds}  # fmt: skip
        placed = [plan.place_of(rule, {"i": str(i)}) for i in range(2000)]
        count = Counter(place.pool for place in placed if place)
        assert set(count) == set(weight)
        for name, share in weight.items():
            assert count[name] / 2000 == pytest.approx(share / sum(weight.values()), abs=0.06)


def test_the_static_plan_is_the_same_in_every_process(cluster: Cluster) -> None:
    """Each process of the tests has a seed of its own for ``hash``."""
    plan = Plan(RULES, cluster=cluster)
    plan.estimates.durations = Durations()
    placed = [plan.place_of("both", {"i": i}) for i in range(8)]
    pools = ["clive_gpu", "clive_gpu", "maigan_gpu", "maigan_gpu"] * 2
    assert [place.pool for place in placed if place] == pools


@given(
    st.integers(1, 120), st.integers(1, 900_000), st.sampled_from(["both", "cpu"]), st.integers()
)
def test_static_places_fit(cluster: Cluster, cpus: int, mem_mb: int, rule: str, name: int) -> None:
    shape = Shape(cpus, mem_mb, 0, 5)
    rules = Rules({"both": {"gpu": replace(shape, gpus=2), "cpu": shape}, "cpu": {"cpu": shape}})
    place = Plan(rules, cluster=cluster).place_of(rule, {"i": name})
    assert place is not None
    limits = {one.name: one.at("").holders[0].limit for one in cluster.survey.accounts}
    fits = {
        (account, kind)
        for account, limit in limits.items()
        for kind in rules.kinds(rule)
        if limit["cpu"] >= cpus and limit["mem"] >= mem_mb
        and (kind == "cpu" or limit["gres/gpu"] >= 2)
    }  # fmt: skip
    assert place.kind in rules.kinds(rule)
    assert not fits or (place.account, place.kind) in fits
    assert (place.shape.gpus == 2) == (place.kind == "gpu")


def test_the_table_wins_and_its_place_is_all_that_rules_ask_for(cluster: Cluster) -> None:
    plan = Plan(RULES, cluster=cluster, count_slots=True)
    wildcards = {"sample": "a"}
    before = values(plan, "both", wildcards)
    assert before["slurm_account"] in {"brusko", "clive", "maigan"}
    plan.table[key_of("both", wildcards)] = replace(NIGHT, exclude=("b1", "b2"))
    assert values(plan, "both", wildcards) == {**AT_NIGHT, "maigan_gpu": 1}
    assert plan.threads("both")(wildcards) == 5
    del plan.table[key_of("both", wildcards)]
    assert values(plan, "both", wildcards) == before


def test_the_qos_is_always_named(tmp_path: Path) -> None:
    plan = Plan(RULES, cluster=named_qos(tmp_path))
    found = [values(plan, "both", {"i": i}) for i in range(200)]
    assert {(one["slurm_account"], one["qos"]) for one in found} == {
        (name, name) for name in ("maigan", "clive", "brusko")
    }


@given(
    st.integers(1, 10**6), st.floats(0.001, 1e8), st.floats(0.01, 1e4),
    st.sampled_from([3, 10080, None]),
)  # fmt: skip
def test_no_job_asks_for_more_time_than_its_partition_gives(
    cluster: Cluster, runtime_min: int, seconds: float, factor: float, most: int | None
) -> None:
    places = cluster.survey.partitions
    assert places["gpu"] is not None
    bounded = {**places, "gpu": replace(places["gpu"], max_time_min=most)}
    limited = replace(cluster, survey=replace(cluster.survey, partitions=bounded))
    gpu = replace(GPU, runtime_min=runtime_min)
    plan = Plan(Rules({"both": {"gpu": gpu, "cpu": CPU}}, seconds), cluster=limited)
    durations = plan.estimates.durations = Durations()
    durations.learn("both", "gpu", 1.0, factor)
    found = plan.estimates.shape("both", {}, "gpu")
    # twice what it took so far, where that is allowed
    wanted = max(runtime_min, int(2 * durations.factor("both", "gpu") * seconds / 60))
    assert 1 <= found.runtime_min <= (most or math.inf)
    assert found.runtime_min == pytest.approx(min(wanted, most or wanted), abs=1)
    assert found == replace(gpu, runtime_min=found.runtime_min)


def test_snakemake_reads_the_arguments_that_the_functions_want(cluster: Cluster) -> None:
    """What it remembers of them is what it would find."""
    plan = Plan(RULES, cluster=cluster)
    functions = [ask for ask in plan.routed("both").values() if callable(ask)]
    for function in (*functions, plan.threads("both")):
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        assert names in (("wildcards", "attempt", "rulename"), ("wildcards", "rulename"))
    for ask in (*functions, *(Resource("runtime", function).evaluate for function in functions)):
        assert hasattr(ask, FUNC_OVERWRITE_PARAMS_ATTR)
        assert get_function_params(ask) == inspect.signature(ask).parameters


@pytest.fixture
def snakefile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """Return what a Snakefile gets that is read in the main process, in a job, or beside both."""
    for name in ("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(clusters, "_current", None)
    monkeypatch.setattr(sys, "argv", ["snakemake", "all"])
    monkeypatch.chdir(tmp_path)

    def plan(where: str = "main", **of: Any) -> Plan:
        main, job = where == "main", where == "job"
        return set_up(SimpleNamespace(is_main_process=main, remote_exec=job), **of)

    return plan


def test_set_up_without_a_cluster_needs_nothing(snakefile: Callable[..., Plan]) -> None:
    plan = snakefile()
    assert (plan.cluster, plan.granted_cpus, plan.described, plan.gpus) == (None, None, None, None)
    assert (plan.ledger, plan.device, plan.count_slots) == (LEDGER, "cpu", False)
    with pytest.raises(PlacementError, match="nothing says what rule work needs"):
        plan.routed("work")
    own = snakefile(sizes=RULES, ledger=Path("own"), device="gpu")
    assert (own.ledger, own.device, values(own, "both", {})["gpu"]) == (Path("own"), "gpu", 1)


@pytest.mark.parametrize(("where", "granted"), [("main", None), ("job", 3), ("other", None)])
def test_set_up_inside_a_job_takes_what_slurm_granted(
    snakefile: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, where: str, granted: int | None
) -> None:
    assert snakefile(where).granted_cpus is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # also where Snakemake itself runs inside a job
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    plan = snakefile(where)
    assert plan.granted_cpus == granted
    assert either(plan, "work", {})["cpus_per_task"] == (granted or 8)


def test_set_up_refuses_to_run_beside_stale_jobs_and_only_where_jobs_are_sent(
    snakefile: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = queue_line(JobID="7", State="RUNNING", WorkDir=str(tmp_path), Comment="rule_a")
    found, recorded = cluster_with(line, tmp_path / "cache")
    monkeypatch.setattr(clusters, "_current", found)
    with pytest.raises(PlacementError, match="still write into"):
        snakefile()
    times = recorded.asked.count("squeue")
    assert snakefile("other").cluster is found
    monkeypatch.setattr(sys, "argv", ["snakemake", "-n"])
    assert snakefile().cluster is found
    assert recorded.asked.count("squeue") == times


def test_set_up_counts_slots_for_a_scheduler_that_does_not_look_at_slurm(
    cluster: Cluster, snakefile: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "_current", cluster)
    assert not POOLS & snakefile(sizes=RULES).routed("both").keys()
    monkeypatch.setattr(sys, "argv", ["snakemake", "--scheduler", "greedy"])
    assert snakefile(sizes=RULES).routed("both").keys() > POOLS


def test_a_rule_that_states_both_kinds_runs_on_the_device_of_the_machine() -> None:
    on_cpu = {"cpus_per_task": 8, "mem_mb": 16000, "runtime": 6, "device": "cpu"}
    on_gpu = {"cpus_per_task": 2, "mem_mb": 8000, "runtime": 2, "gpu": 1, "device": "gpu"}
    assert either(Plan(), "segment", {}) == on_cpu
    plan = Plan(device="gpu")
    assert either(plan, "segment", {}) == on_gpu
    assert either(plan, "segment", {}, attempt=2) == {**on_gpu, "mem_mb": 16000, "runtime": 4}
    plan.here[key_of("segment", {"i": 1})] = "cpu"
    assert either(plan, "segment", {"i": 1}) == on_cpu
    two = plan.either(gpu={**ON_GPU, "gpus": 2}, cpu=ON_CPU)
    assert two["gpu"]({}, 1, "train") == 2
    assert plan.sizes.kinds("segment") == plan.sizes.kinds("train") == ("gpu", "cpu")
    assert plan.sizes.nominal_s("segment", {}) == 180


def test_a_rule_of_both_kinds_is_spread_and_follows_the_table(cluster: Cluster) -> None:
    plan = Plan(cluster=cluster)
    plan.estimates.durations = Durations()
    found = [either(plan, "segment", {"i": i}) for i in range(200)]
    assert {f"{one['slurm_account']}_{one['device']}" for one in found} == POOLS
    for one in found:
        stated, partition, gpus = (
            (ON_GPU, "hpg-b200", 1) if one["device"] == "gpu" else (ON_CPU, "hpg-default", 0)
        )
        assert (one["cpus_per_task"], one["mem_mb"]) == (stated["cpus"], stated["mem_mb"])
        assert (one["slurm_partition"], one.get("gpu", 0)) == (partition, gpus)
        assert one["qos"] == one["slurm_account"]
    plan.table[key_of("segment", {"i": 0})] = NIGHT
    at_night = {**AT_NIGHT, "cpus_per_task": 5, "device": "gpu"}
    assert either(plan, "segment", {"i": 0}) == at_night


def test_the_plan_is_found_behind_the_resource_functions_of_a_rule() -> None:
    plan = Plan(RULES)
    plain = ("plain", lambda wildcards: 1)
    functions = [("segment", f) for f in plan.either(gpu=ON_GPU, cpu=ON_CPU).values()]
    functions += [("both", f) for f in plan.routed("both").values()]
    assert plan_of([plain, *functions]) is plan
    assert plan_of([plain]) is None
    assert plan.rules == {"segment", "both"}
    assert plan.sizes.shape("segment", {}, gpu=True) == Shape(2, 8000, 1, 2)
    assert plan.sizes.shape("both", {}, gpu=True) == GPU
    for _, function in functions:
        assert get_function_params(function) == inspect.signature(function).parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cpu": 8}, "either\\(\\) takes cpus, gpus, mem_mb, runtime, and not cpu$"),
        ({"mem_mb": 0}, "needs mem_mb for each kind, an integer above 0"),
        ({"cpus": "8"}, "needs cpus for each kind"),
        ({"runtime": None}, "needs runtime for each kind"),
    ],
)
@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_what_is_stated_wrongly_is_named(kind: str, change: dict[str, Any], message: str) -> None:
    stated: dict[str, Any] = {"gpu": ON_GPU, "cpu": ON_CPU}
    with pytest.raises(PlacementError, match=message):
        Plan().either(**{**stated, kind: {**stated[kind], **change}})
