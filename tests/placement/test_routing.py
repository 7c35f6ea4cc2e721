"""What the rules ask for: on one machine, inside a Slurm job, by the static plan and the table."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

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
from snakemake_scheduler_plugin_tilewright.placement.ledger import LEDGER, read_ledger
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan, plan_of, set_up
from snakemake_scheduler_plugin_tilewright.placement.sizing import Durations
from snakemake_scheduler_plugin_tilewright.runtime.granted import granted_cpus
from tests.conftest import REPO
from tests.support.placement_rules import Rules
from tests.support.recorded import cluster_with, named_qos, queue_line
from tests.support.scribe import dispatched, run

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


@pytest.mark.parametrize(
    ("cpus", "work_s", "small_jobs", "beside"),
    [(1, 9, "here", True), (1, 11, "here", False), (2, 1, "here", False), (1, 1, "slurm", False)],
)
def test_small_jobs_run_beside_the_coordinator(
    cluster: Cluster, cpus: int, work_s: float, small_jobs: Literal["here", "slurm"], beside: bool
) -> None:
    class Told(Rules):
        def nominal_s(self, rule: str, wildcards: Any) -> float:
            return 8.0 + work_s

    rules = Told({"tell": {"cpu": Shape(cpus, 800, 0, 10)}})
    here = replace(cluster, site=cluster.site.model_copy(update={"small_jobs": small_jobs}))
    assert Plan(rules, cluster=here).beside("tell") == beside
    assert not Plan(rules).beside("tell")


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
    pools = {p.name: p for p in cluster.survey.pools}
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
        "from snakemake_scheduler_plugin_tilewright.placement.jobs import Shape\n"
        "from snakemake_scheduler_plugin_tilewright.placement.routing import Plan\n"
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
    limits = {one.name: one.at("").holders[0].limit for one in cluster.survey.accounts}
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
        "qos": "night",
        "maigan_gpu": 1,
    }
    assert plan.threads("both")(wildcards) == 5
    del plan.table[key_of("both", wildcards)]
    assert values(plan, "both", wildcards) == before


def test_the_qos_is_always_named(tmp_path: Path) -> None:
    plan = Plan(RULES, cluster=named_qos(tmp_path))
    by_account: dict[str, set[str | None]] = {}
    for i in range(200):
        asked = values(plan, "both", {"i": i})
        by_account.setdefault(asked["slurm_account"], set()).add(asked.get("qos"))
    assert by_account == {name: {name} for name in ("maigan", "clive", "brusko")}


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
        assert names in (("wildcards", "attempt", "rulename"), ("wildcards", "rulename"))


def test_what_snakemake_remembers_is_what_it_would_find(cluster: Cluster) -> None:
    functions = list(Plan(RULES, cluster=cluster).routed("both").values())
    methods = [
        Resource("runtime", function).evaluate for function in functions if callable(function)
    ]
    for ask in (*functions, *methods):
        if callable(ask):
            assert hasattr(ask, FUNC_OVERWRITE_PARAMS_ATTR)
            assert get_function_params(ask) == inspect.signature(ask).parameters


def set_up_in(workflow: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> Plan:
    """Return what a Snakefile gets that is read in the main process, in a job, or beside both."""
    monkeypatch.chdir(folder)
    asks = SimpleNamespace(is_main_process=workflow == "main", remote_exec=workflow == "job")
    return set_up(asks, **kwargs)


@pytest.fixture
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(clusters, "_current", None)
    monkeypatch.setattr(sys, "argv", ["snakemake", "all"])


@pytest.mark.usefixtures("no_job")
def test_set_up_without_a_cluster_needs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = set_up_in("main", tmp_path, monkeypatch)
    assert (plan.cluster, plan.granted_cpus, plan.described, plan.gpus) == (None, None, None, None)
    assert (plan.ledger, plan.device, plan.count_slots) == (LEDGER, "cpu", False)
    with pytest.raises(PlacementError, match="nothing says what rule work needs"):
        plan.routed("work")
    own = set_up_in("main", tmp_path, monkeypatch, sizes=RULES, ledger=Path("own"), device="gpu")
    assert (own.ledger, own.device) == (Path("own"), "gpu")
    assert values(own, "both", {})["gpu"] == 1


@pytest.mark.usefixtures("no_job")
@pytest.mark.parametrize(("workflow", "granted"), [("main", None), ("job", 3), ("other", None)])
def test_set_up_inside_a_job_takes_what_slurm_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workflow: str, granted: int | None
) -> None:
    assert set_up_in(workflow, tmp_path, monkeypatch).granted_cpus is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # also where Snakemake itself runs inside a job
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    plan = set_up_in(workflow, tmp_path, monkeypatch)
    assert plan.granted_cpus == granted
    asked = plan.either(gpu=ON_GPU, cpu=ON_CPU)["cpus_per_task"]
    assert asked({}, 1, "work") == (granted or 8)


@pytest.mark.usefixtures("no_job")
def test_set_up_refuses_to_run_beside_stale_jobs_and_only_where_jobs_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = queue_line(JobID="7", State="RUNNING", WorkDir=str(tmp_path), Comment="rule_a")
    found, recorded = cluster_with(line, tmp_path / "cache")
    monkeypatch.setattr(clusters, "_current", found)
    with pytest.raises(PlacementError, match="still write into"):
        set_up_in("main", tmp_path, monkeypatch)
    asked = recorded.asked.count("squeue")
    assert set_up_in("other", tmp_path, monkeypatch).cluster is found
    monkeypatch.setattr(sys, "argv", ["snakemake", "-n"])
    assert set_up_in("main", tmp_path, monkeypatch).cluster is found
    assert recorded.asked.count("squeue") == asked


@pytest.mark.usefixtures("no_job")
def test_set_up_counts_slots_for_a_scheduler_that_does_not_look_at_slurm(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "_current", cluster)
    assert not POOLS & set_up_in("main", tmp_path, monkeypatch, sizes=RULES).routed("both").keys()
    monkeypatch.setattr(sys, "argv", ["snakemake", "--scheduler", "greedy"])
    assert set_up_in("main", tmp_path, monkeypatch, sizes=RULES).routed("both").keys() > POOLS


ON_GPU = {"cpus": 2, "mem_mb": 8000, "runtime": 2}
ON_CPU = {"cpus": 8, "mem_mb": 16000, "runtime": 6}


def asked_of(plan: Plan, rule: str, wildcards: Any, attempt: int = 1) -> dict[str, Any]:
    functions = plan.either(gpu=ON_GPU, cpu=ON_CPU).items()
    found = {name: function(wildcards, attempt, rule) for name, function in functions}
    return {name: value for name, value in found.items() if value is not None}


def test_a_rule_that_states_both_kinds_runs_on_the_device_of_the_machine() -> None:
    on_cpu = {"cpus_per_task": 8, "mem_mb": 16000, "runtime": 6, "device": "cpu"}
    on_gpu = {"cpus_per_task": 2, "mem_mb": 8000, "runtime": 2, "gpu": 1, "device": "gpu"}
    assert asked_of(Plan(), "segment", {}) == on_cpu
    plan = Plan(device="gpu")
    assert asked_of(plan, "segment", {}) == on_gpu
    assert asked_of(plan, "segment", {}, attempt=2) == {**on_gpu, "mem_mb": 16000, "runtime": 4}
    plan.here[key_of("segment", {"i": 1})] = "cpu"
    assert asked_of(plan, "segment", {"i": 1}) == on_cpu
    two = plan.either(gpu={**ON_GPU, "gpus": 2}, cpu=ON_CPU)
    assert two["gpu"]({}, 1, "train") == 2
    assert plan.sizes.kinds("segment") == plan.sizes.kinds("train") == ("gpu", "cpu")
    assert plan.sizes.nominal_s("segment", {}) == 180


def test_a_rule_that_states_both_kinds_is_spread_over_accounts_and_follows_the_table(
    cluster: Cluster,
) -> None:
    plan = Plan(cluster=cluster)
    plan.estimates.durations = Durations()
    partitions = {kind: cluster.partition(kind) for kind in cluster.survey.partitions}
    found = [asked_of(plan, "segment", {"i": i}) for i in range(200)]
    assert {(one["slurm_account"], one["device"]) for one in found} == {
        (account, kind) for account, _, kind in (pool.rpartition("_") for pool in POOLS)
    }
    for one in found:
        shape = ON_GPU if one["device"] == "gpu" else ON_CPU
        assert (one["cpus_per_task"], one["mem_mb"]) == (shape["cpus"], shape["mem_mb"])
        assert one["slurm_partition"] == partitions[one["device"]]
        assert one.get("gpu", 0) == (one["device"] == "gpu")
        assert one["qos"] == one["slurm_account"]
    place = Place("maigan", "night", "hpg-b200", "gpu", Shape(5, 1234, 1, 17), "maigan_gpu")
    plan.table[key_of("segment", {"i": 0})] = place
    assert asked_of(plan, "segment", {"i": 0}) == {
        "cpus_per_task": 5,
        "mem_mb": 1234,
        "runtime": 17,
        "gpu": 1,
        "device": "gpu",
        "slurm_account": "maigan",
        "slurm_partition": "hpg-b200",
        "qos": "night",
    }


def test_the_plan_is_found_behind_the_resource_functions_of_a_rule() -> None:
    plan = Plan(RULES)
    functions = [("segment", f) for f in plan.either(gpu=ON_GPU, cpu=ON_CPU).values()]
    functions += [("both", f) for f in plan.routed("both").values()]
    assert plan_of([("plain", lambda wildcards: 1), *functions]) is plan
    assert plan.rules == {"segment", "both"}
    assert plan.sizes.shape("segment", {}, gpu=True) == Shape(2, 8000, 1, 2)
    assert plan.sizes.shape("both", {}, gpu=True) == GPU
    assert plan_of([("plain", lambda wildcards: 1)]) is None
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


def test_a_run_of_a_rule_that_states_both_kinds(tmp_path: Path) -> None:
    snakefile = (REPO / "tests/support/foreign/either/Snakefile").read_text()
    done = run(tmp_path, f"{ON_RECORDED}\n{snakefile}", "tilewright", "--config", "images=12")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "placement failed" not in said
    assert "placement: 24 jobs done" in said
    events = read_ledger(tmp_path / "ledger.jsonl")
    places = {event["job"]: event for event in events if event["event"] == "place"}
    jobs = dispatched(tmp_path, "segment")
    assert len(jobs) == 12
    for wildcards, given_ in jobs:
        place = places[f"rule_segment_wildcards_{wildcards['i']}"]
        stated = ON_GPU if place["kind"] == "gpu" else ON_CPU
        assert (given_["device"], given_["slurm_account"]) == (place["kind"], place["account"])
        assert (given_["cpus_per_task"], given_["mem_mb"]) == (stated["cpus"], stated["mem_mb"])
        assert given_.get("gpu", 0) == place["gpus"] == (place["kind"] == "gpu")
        assert given_["slurm_partition"] == {"gpu": "hpg-b200", "cpu": "hpg-default"}[place["kind"]]
    # rules that state no kinds of the same workflow are placed as well, each on an account
    measured = [given_["slurm_account"] for _, given_ in dispatched(tmp_path, "measure")]
    assert len(measured) == 12
    assert set(measured) <= {"clive", "maigan", "brusko"}


ON_RECORDED = """
from tests.support.failing_slurm import recorded_cluster
from snakemake_scheduler_plugin_tilewright.placement import cluster
cluster._current = recorded_cluster()  # as a profile names it
"""
