"""What the rules ask for: on one machine, inside a Slurm job, by the static plan and the table."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake.common import FUNC_OVERWRITE_PARAMS_ATTR, get_function_params
from snakemake.resources import Resource

from tests.conftest import REPO
from tests.support.placement_rules import Rules
from tests.support.recorded import LIMITS, cluster_with
from tilewright.placement.cluster import Cluster, survey
from tilewright.placement.jobs import Place, Shape, key_of
from tilewright.placement.routing import Plan, granted_cpus
from tilewright.placement.site import Site
from tilewright.placement.sizing import Durations

GPU, CPU = Shape(8, 5000, 1, 60, 900), Shape(6, 3000, 0, 90)
RULES = Rules({"both": {"gpu": GPU, "cpu": CPU}, "cpu": {"cpu": CPU}})
POOLS = {"clive_gpu", "clive_cpu", "maigan_gpu", "maigan_cpu", "brusko_gpu", "brusko_cpu"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return cluster_with("", tmp_path_factory.mktemp("cache"))[0]


def values(plan: Plan, rule: str, wildcards: Any, attempt: int = 1) -> dict[str, Any]:
    """Return what Snakemake finds when it calls the resource functions of a rule."""
    asked = plan.routed(rule).items()
    found = {name: ask(wildcards, attempt) if callable(ask) else ask for name, ask in asked}
    return {name: value for name, value in found.items() if value is not None}


def test_on_one_machine_the_device_of_the_machine_counts() -> None:
    here = Plan(RULES)
    assert values(here, "both", {}) == {"mem_mb": 3000, "runtime": 90}
    assert here.threads("both")({}) == 6
    assert here.place_of("both", {}) is None
    gpu = Plan(RULES, device="gpu")
    found = values(gpu, "both", {})
    assert found == {"mem_mb": 5000, "runtime": 60, "gpu": 1, "gpu_mem_mb": 900}
    gpu.here["rule_both"] = "cpu"
    on_cpus = {"mem_mb": 3000, "runtime": 90, "cpu": 6, "gpu_mem_mb": 0}
    assert values(gpu, "both", {}) == on_cpus
    assert gpu.threads("both")({}) == 6
    del gpu.here["rule_both"]
    assert gpu.threads("both")({}) == 8
    assert "gpu" not in values(gpu, "cpu", {})
    assert gpu.threads("cpu")({}) == 6


def test_on_one_machine_each_retry_doubles_memory_and_time() -> None:
    found = [values(Plan(RULES), "cpu", {}, attempt) for attempt in (1, 2, 3)]
    assert [(one["mem_mb"], one["runtime"]) for one in found] == [
        (3000, 90),
        (6000, 180),
        (12000, 360),
    ]
    gpu = values(Plan(RULES, device="gpu"), "both", {}, attempt=2)
    assert gpu == {"mem_mb": 10000, "runtime": 120, "gpu": 1, "gpu_mem_mb": 1800}


def test_inside_a_job_the_cpus_are_those_that_slurm_granted() -> None:
    inside = Plan(RULES, device="gpu", granted_cpus=3)
    assert (inside.threads("both")({}), inside.threads("cpu")({})) == (3, 3)
    assert values(inside, "both", {})["gpu"] == 1


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
    pools = {p.name: p for p in cluster.survey.pools[cluster.survey.sharing]}
    assert set(pools) == POOLS
    for rule in ("both", "cpu"):
        kinds = RULES.kinds(rule)
        weight = {name: p.slots * (4 if p.kind == "gpu" else 1)
                  for name, p in pools.items() if p.kind in kinds}  # fmt: skip
        placed = [plan.place_of(rule, {"i": str(i)}) for i in range(3000)]
        count = Counter(place.pool for place in placed if place)
        assert set(count) == set(weight)
        for name, share in weight.items():
            assert count[name] / 3000 == pytest.approx(share / sum(weight.values()), abs=0.06)


def test_the_static_plan_is_the_same_in_every_process(cluster: Cluster, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.support.placement_rules import Rules\n"
        "from tests.support.recorded import cluster_with\n"
        "from tilewright.placement.jobs import Shape\n"
        "from tilewright.placement.routing import Plan\n"
        f"RULES = {RULES}\n"
        "plan = Plan(RULES, cluster=cluster_with('', Path(sys.argv[1]))[0])\n"
        "print(*(plan.place_of('both', {'i': i}).pool for i in range(60)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": f"{REPO / 'src'}:{REPO}", "HOME": "/"},
    )
    plan = Plan(RULES, cluster=cluster)
    plan.estimates.durations = Durations()
    placed = [plan.place_of("both", {"i": i}) for i in range(60)]
    assert done.stdout.split() == [place.pool for place in placed if place]


@given(
    st.integers(1, 120), st.integers(1, 900_000), st.sampled_from(["both", "cpu"]), st.integers()
)
def test_the_static_plan_leaves_out_accounts_on_which_a_job_would_pend_for_ever(
    cluster: Cluster, cpus: int, mem_mb: int, rule: str, name: int
) -> None:
    shape = Shape(cpus, mem_mb, 0, 5)
    plan = Plan(Rules({"both": {"gpu": replace(shape, gpus=2), "cpu": shape},
                       "cpu": {"cpu": shape}}), cluster=cluster)  # fmt: skip
    place = plan.place_of(rule, {"i": name})
    assert place is not None
    limits = {account.name: account.limit for account in cluster.survey.accounts}
    fits = {
        (account, kind)
        for account, limit in limits.items()
        for kind in plan.sizes.kinds(rule)
        if limit["cpu"] >= cpus and limit["mem"] >= mem_mb
        and (kind == "cpu" or limit["gres/gpu"] >= 2)
    }  # fmt: skip
    assert place.kind in plan.sizes.kinds(rule)
    assert not fits or (place.account, place.kind) in fits
    assert (place.shape.gpus == 2) == (place.kind == "gpu")


def test_the_table_wins_and_its_place_is_all_that_rules_ask_for(cluster: Cluster) -> None:
    plan = Plan(RULES, cluster=cluster, count_slots=True)
    wildcards = {"sample": "a"}
    before = values(plan, "both", wildcards)
    assert before["slurm_account"] in {"brusko", "clive", "maigan"}
    shape = Shape(5, 1234, 1, 17)
    place = Place("maigan", "night", "hpg-b200", "gpu", shape, "maigan_gpu", ("b1", "b2"))
    plan.table[key_of("both", wildcards)] = place
    assert values(plan, "both", wildcards) == {
        "mem_mb": 1234,
        "runtime": 17,
        "gpu": 1,
        "slurm_account": "maigan",
        "slurm_partition": "hpg-b200",
        "maigan_gpu": 1,
    }
    assert plan.threads("both")(wildcards) == 5
    del plan.table[key_of("both", wildcards)]
    assert values(plan, "both", wildcards) == before


def named_qos(folder: Path) -> Cluster:
    """Return a cluster where the jobs of one account must name their QOS."""
    cluster, recorded = cluster_with("", folder)
    recorded.answers["sacctmgr"] = LIMITS.replace("maigan,maigan-b|maigan|", "maigan,maigan-b||")
    cluster.client._kept.clear()
    return replace(cluster, survey=survey(cluster.client, 1001, Site()))


def test_the_qos_is_named_only_where_slurm_does_not_take_it_by_itself(
    cluster: Cluster, tmp_path: Path
) -> None:
    assert "qos" not in Plan(RULES, cluster=cluster).routed("both")
    plan = Plan(RULES, cluster=named_qos(tmp_path))
    by_account: dict[str, set[str | None]] = {}
    for i in range(200):
        asked = values(plan, "both", {"i": i})
        by_account.setdefault(asked["slurm_account"], set()).add(asked.get("qos"))
    assert by_account == {"maigan": {"maigan"}, "clive": {None}, "brusko": {None}}


@given(
    st.integers(1, 10**6), st.floats(0.001, 1e8), st.floats(0.01, 1e4), st.sampled_from([3, 10080])
)
def test_no_job_asks_for_more_time_than_its_partition_gives(
    cluster: Cluster, runtime_min: int, seconds: float, factor: float, most: int
) -> None:
    places = cluster.survey.partitions
    assert places["gpu"] is not None
    bounded = {**places, "gpu": replace(places["gpu"], max_time_min=most)}
    limited = replace(cluster, survey=replace(cluster.survey, partitions=bounded))
    shapes = {"both": {"gpu": replace(GPU, runtime_min=runtime_min), "cpu": CPU}}
    plan = Plan(Rules(shapes, seconds), cluster=limited)  # type: ignore[arg-type]
    plan.estimates.durations = Durations()
    plan.estimates.durations.learn("both", "gpu", 1.0, factor)
    found = plan.estimates.shape("both", {}, "gpu").runtime_min
    assert 1 <= found <= most
    # twice what it took so far, where that is allowed
    wanted = max(
        runtime_min, int(2 * plan.estimates.durations.factor("both", "gpu") * seconds / 60)
    )
    assert found == pytest.approx(min(wanted, most), abs=1)
    assert replace(plan.estimates.shape("both", {}, "gpu"), runtime_min=0) == replace(
        GPU, runtime_min=0
    )


def test_where_a_partition_has_no_limit_time_has_none(cluster: Cluster) -> None:
    free = {kind: p and replace(p, max_time_min=None)
            for kind, p in cluster.survey.partitions.items()}  # fmt: skip
    plan = Plan(
        Rules({"cpu": {"cpu": replace(CPU, runtime_min=10**6)}}),
        cluster=replace(cluster, survey=replace(cluster.survey, partitions=free)),
    )
    assert plan.estimates.shape("cpu", {}, "cpu").runtime_min == 10**6


def test_snakemake_reads_the_arguments_that_the_functions_want(cluster: Cluster) -> None:
    plan = Plan(RULES, cluster=cluster)
    asked: list[Callable[..., Any]] = [*plan.routed("both").values(), plan.threads("both")]
    for function in asked:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        assert names in (("wildcards", "attempt"), ("wildcards",))


def test_what_snakemake_remembers_is_what_it_would_find(cluster: Cluster) -> None:
    functions = list(Plan(RULES, cluster=cluster).routed("both").values())
    methods = [
        Resource("runtime", function).evaluate for function in functions if callable(function)
    ]
    for ask in (*functions, *methods):
        if callable(ask):
            assert hasattr(ask, FUNC_OVERWRITE_PARAMS_ATTR)
            assert get_function_params(ask) == inspect.signature(ask).parameters
