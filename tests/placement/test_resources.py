"""What the rules ask for: on one machine, inside a Slurm job, by the static plan and the table."""

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

from snakemake_scheduler_plugin_tilewright.cluster import cluster as clusters
from snakemake_scheduler_plugin_tilewright.cluster.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.cluster.request import ResourceRequest, Target
from snakemake_scheduler_plugin_tilewright.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.placement.estimates import Durations
from snakemake_scheduler_plugin_tilewright.placement.jobs import Job, JobState
from snakemake_scheduler_plugin_tilewright.resources import Placement, detect
from snakemake_scheduler_plugin_tilewright.runtime.allocation import allocated_cpus
from snakemake_scheduler_plugin_tilewright.runtime.ledger import LEDGER
from tests.support.placement_rules import Rules
from tests.support.recorded import cluster_with, queue_line

GPU, CPU = ResourceRequest(8, 5000, 1, 60, 900), ResourceRequest(6, 3000, 0, 90)
RULES = Rules({"both": {"gpu": GPU, "cpu": CPU}, "cpu": {"cpu": CPU}})
POOLS = {
    f"{account}_{kind}" for account in ("brusko", "clive", "maigan") for kind in ("gpu", "cpu")
}
ON_GPU = {"cpus": 2, "mem_mb": 8000, "runtime": 2}
ON_CPU = {"cpus": 8, "mem_mb": 16000, "runtime": 6}
NIGHT = Target("maigan", "night", "hpg-b200", "gpu")
AT_5 = ResourceRequest(5, 1234, 1, 17)
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


def asked(functions: dict[str, Any], wildcards: Any, attempt: int) -> dict[str, Any]:
    """Return what Snakemake finds when it calls the resource functions of a rule."""
    found = {
        name: ask(wildcards, attempt) if callable(ask) else ask for name, ask in functions.items()
    }
    found.pop("placement", None)
    return {name: value for name, value in found.items() if value is not None}


def values(placement: Placement, rule: str, wildcards: Any, attempt: int = 1) -> dict[str, Any]:
    return asked(placement.resources(rule), wildcards, attempt)


def either(placement: Placement, rule: str, wildcards: Any, attempt: int = 1) -> dict[str, Any]:
    return asked(placement.either(rule, gpu=ON_GPU, cpu=ON_CPU), wildcards, attempt)


def sent(
    placement: Placement, rule: str, request: ResourceRequest, target: Target | None = None
) -> dict[str, Any]:
    """Return what is set on a job as it starts."""
    found = placement.values(rule, request, target)
    return {name: value for name, value in found.items() if value is not None}


def test_on_one_machine_the_device_of_the_machine_counts() -> None:
    here = Placement(RULES.models)
    assert values(here, "both", {}) == {"mem_mb": 3000, "runtime": 90}
    assert here.threads("both")({}) == 6
    gpu = Placement(RULES.models, device="gpu")
    on_gpu = {"mem_mb": 5000, "runtime": 60, "gpu": 1, "gpu_mem_mb": 900}
    assert (values(gpu, "both", {}), gpu.threads("both")({})) == (on_gpu, 8)
    assert sent(gpu, "both", GPU) == {**on_gpu, "_cores": 8}
    on_cpus = {"mem_mb": 3000, "runtime": 90, "cpu": 6, "gpu_mem_mb": 0, "_cores": 6}
    assert sent(gpu, "both", CPU) == on_cpus
    assert "gpu" not in values(gpu, "cpu", {})
    assert gpu.threads("cpu")({}) == 6
    inside = Placement(RULES.models, device="gpu", allocated_cpus=3)  # a Slurm job
    assert (inside.threads("both")({}), inside.threads("cpu")({})) == (3, 3)
    assert values(inside, "both", {})["gpu"] == 1


def test_on_one_machine_each_retry_doubles_memory_and_time() -> None:
    found = [values(Placement(RULES.models), "cpu", {}, attempt) for attempt in (1, 2, 3)]
    doubled = [(3000, 90), (6000, 180), (12000, 360)]
    assert [(one["mem_mb"], one["runtime"]) for one in found] == doubled
    gpu = values(Placement(RULES.models, device="gpu"), "both", {}, attempt=2)
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
def test_what_slurm_allocated(environ: dict[str, str], cpus: int | None) -> None:
    assert allocated_cpus(environ) == cpus


def test_the_static_plan_spreads_by_slots_and_speed(cluster: Cluster) -> None:
    placement = Placement(RULES.models, cluster=cluster)
    placement.estimates.durations = Durations(slowdown=4.0)
    pools = {p.name: p for p in cluster.pools}
    assert set(pools) == POOLS
    for rule in ("both", "cpu"):
        kinds = RULES.models[rule].devices
        weight = {name: p.slots * (4 if p.kind == "gpu" else 1)
                  for name, p in pools.items() if p.kind in kinds}  # fmt: skip
        count = Counter(placement.static(rule, {"i": str(i)}).target.pool for i in range(2000))
        assert set(count) == set(weight)
        for name, share in weight.items():
            assert count[name] / 2000 == pytest.approx(share / sum(weight.values()), abs=0.06)


def test_a_retry_on_a_static_place_asks_for_more_as_far_as_its_account_has_it(
    cluster: Cluster,
) -> None:
    placement = Placement(RULES.models, cluster=cluster, counts_slots=True)
    found = [values(placement, "cpu", {}, attempt) for attempt in (1, 2, 12)]
    assert [one["mem_mb"] for one in found[:2]] == [3000, 6000]
    account = cluster.state.account(found[0]["slurm_account"])
    assert account is not None
    assert found[2]["mem_mb"] == account.at("").scopes[0].limit["mem"]
    assert [one["runtime"] for one in found] == [90, 180, 31 * 24 * 60]  # the longest


def test_the_static_plan_is_the_same_in_every_process(cluster: Cluster) -> None:
    """Each process of the tests has a seed of its own for ``hash``."""
    placement = Placement(RULES.models, cluster=cluster)
    placement.estimates.durations = Durations()
    placed = [placement.static("both", {"i": i}) for i in range(8)]
    pools = ["clive_gpu", "clive_gpu", "maigan_gpu", "maigan_gpu"] * 2
    assert [place.target.pool for place in placed] == pools


@given(
    st.integers(1, 120), st.integers(1, 900_000), st.sampled_from(["both", "cpu"]), st.integers()
)
def test_static_places_fit(cluster: Cluster, cpus: int, mem_mb: int, rule: str, name: int) -> None:
    shape = ResourceRequest(cpus, mem_mb, 0, 5)
    rules = Rules({"both": {"gpu": replace(shape, gpus=2), "cpu": shape}, "cpu": {"cpu": shape}})
    place = Placement(rules.models, cluster=cluster).static(rule, {"i": name})
    limits = {one.name: one.at("").scopes[0].limit for one in cluster.state.accounts}
    fits = {
        (account, kind)
        for account, limit in limits.items()
        for kind in rules.shapes[rule]
        if limit["cpu"] >= cpus and limit["mem"] >= mem_mb
        and (kind == "cpu" or limit["gres/gpu"] >= 2)
    }  # fmt: skip
    assert place.target.device in rules.shapes[rule]
    assert not fits or (place.target.account, place.target.device) in fits
    assert (place.request.gpus == 2) == (place.target.device == "gpu")


def test_a_job_that_starts_is_given_its_place_and_what_it_asks_for_there(cluster: Cluster) -> None:
    placement = Placement(RULES.models, cluster=cluster)
    before = values(placement, "both", {"sample": "a"})
    assert before.keys() == {"mem_mb", "runtime"}  # the rest is set as it starts
    assert placement.resources("both")["placement"] == "both"
    placement.threads("both")
    assert sent(placement, "both", AT_5, NIGHT) == {**AT_NIGHT, "_cores": 5}
    assert values(placement, "both", {"sample": "a"}) == before


@given(
    st.integers(1, 10**6), st.floats(0.001, 1e8), st.floats(0.01, 1e4),
    st.sampled_from([3, 10080, None]),
)  # fmt: skip
def test_no_job_asks_for_more_time_than_its_partition_gives(
    cluster: Cluster, runtime_min: int, seconds: float, factor: float, most: int | None
) -> None:
    places = cluster.state.partitions
    bounded = {**places, "gpu": tuple(replace(p, max_time_min=most) for p in places["gpu"])}
    limited = replace(cluster, state=replace(cluster.state, partitions=bounded))
    gpu = replace(GPU, runtime_min=runtime_min)
    model = Rules({"both": {"gpu": gpu, "cpu": CPU}}, seconds).models["both"]
    estimates = Placement(cluster=limited).estimates
    durations = estimates.durations = Durations()
    durations.learn("both", "gpu", 1.0, factor)
    job = Job("both", "both", model.devices, cpu_seconds=seconds, wildcards={}, model=model)
    found = estimates.request_of(JobState(job), "gpu", limited.state)
    # twice what it took so far, in steps of 19 %, where that is allowed
    wanted = max(runtime_min, int(2 * durations.factor("both", "gpu") * seconds / 60))
    assert 1 <= found.runtime_min <= (most or math.inf)
    least = min(wanted, most or wanted)
    assert least - 1 <= found.runtime_min <= 1.19 * least + 1
    assert found == replace(gpu, runtime_min=found.runtime_min)


@pytest.fixture
def snakefile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Placement]:
    """Return what a Snakefile gets that is read in the main process, in a job, or beside both."""
    for name in ("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["snakemake", "all"])
    monkeypatch.chdir(tmp_path)

    def placement(where: str = "main", **of: Any) -> Placement:
        main, job = where == "main", where == "job"
        return detect(SimpleNamespace(is_main_process=main, remote_exec=job), **of)

    return placement


def test_detection_without_a_cluster_needs_nothing(snakefile: Callable[..., Placement]) -> None:
    found = snakefile()
    assert (found.cluster, found.allocated_cpus, found.models, found.gpus) == (None, None, {}, None)
    assert (found.ledger, found.device, found.counts_slots) == (LEDGER, "cpu", False)
    with pytest.raises(PlacementError, match="no model says what rule work needs"):
        found.resources("work")
    own = snakefile(models=RULES.models, ledger=Path("own"), device="gpu")
    assert (own.ledger, own.device, values(own, "both", {})["gpu"]) == (Path("own"), "gpu", 1)


@pytest.mark.parametrize(("where", "allocated"), [("main", None), ("job", 3), ("other", None)])
def test_inside_a_job_what_slurm_allocated_counts(
    snakefile: Callable[..., Placement],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    allocated: int | None,
) -> None:
    assert snakefile(where).allocated_cpus is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # also where Snakemake itself runs inside a job
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    found = snakefile(where)
    assert (found.allocated_cpus, found.inside_job) == (allocated, where == "job")
    assert either(found, "work", {})["cpus_per_task"] == (allocated or 8)


def test_a_run_beside_stale_jobs_is_refused_and_only_where_jobs_are_sent(
    snakefile: Callable[..., Placement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = queue_line(JobID="7", State="RUNNING", WorkDir=str(tmp_path), Comment="rule_a")
    found, recorded = cluster_with(line, tmp_path / "cache")
    monkeypatch.setattr(clusters, "of_command", lambda argv: found)
    assert snakefile().cluster is None
    monkeypatch.setattr(sys, "argv", ["snakemake", "all", "--executor", "slurm"])
    with pytest.raises(PlacementError, match="still write into"):
        snakefile()
    times = recorded.asked.count("squeue")
    assert snakefile("other").cluster is None
    monkeypatch.setattr(sys, "argv", ["snakemake", "-n", "--executor", "slurm"])
    assert snakefile().cluster is found
    assert recorded.asked.count("squeue") == times


def test_jobs_have_an_account_and_a_slot_for_a_scheduler_that_does_not_look_at_slurm(
    cluster: Cluster, snakefile: Callable[..., Placement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "of_command", lambda argv: cluster)
    monkeypatch.setattr(sys, "argv", ["snakemake", "-n", "--executor", "slurm"])
    assert not POOLS & snakefile(models=RULES.models).resources("both").keys()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--scheduler", "greedy"])
    found = values(snakefile(models=RULES.models), "both", {"i": 1})
    (pool,) = POOLS & found.keys()
    assert pool == f"{found['slurm_account']}_{'gpu' if 'gpu' in found else 'cpu'}"
    assert found["slurm_account"] == found["qos"]


def test_a_rule_that_states_both_kinds_runs_on_the_device_of_the_machine() -> None:
    on_cpu = {"cpus_per_task": 8, "mem_mb": 16000, "runtime": 6, "device": "cpu"}
    on_gpu = {"cpus_per_task": 2, "mem_mb": 8000, "runtime": 2, "gpu": 1, "device": "gpu"}
    assert either(Placement(), "segment", {}) == on_cpu
    placement = Placement(device="gpu")
    assert either(placement, "segment", {}) == on_gpu
    assert either(placement, "segment", {}, attempt=2) == {**on_gpu, "mem_mb": 16000, "runtime": 4}
    two = placement.either("train", gpu={**ON_GPU, "gpus": 2}, cpu=ON_CPU)
    assert two["gpu"]({}, 1) == 2
    model = placement.model("train")
    assert (model.devices, model.cpu_seconds({})) == (("gpu", "cpu"), 180)


def test_a_rule_of_both_kinds_is_spread_and_is_given_its_place(cluster: Cluster) -> None:
    placement = Placement(cluster=cluster, counts_slots=True)
    placement.estimates.durations = Durations()
    found = [either(placement, "segment", {"i": i}) for i in range(200)]
    assert {f"{one['slurm_account']}_{one['device']}" for one in found} == POOLS
    for one in found:
        stated, partition, gpus = (
            (ON_GPU, "hpg-b200", 1) if one["device"] == "gpu" else (ON_CPU, "hpg-default", 0)
        )
        assert (one["cpus_per_task"], one["mem_mb"]) == (stated["cpus"], stated["mem_mb"])
        assert (one["slurm_partition"], one.get("gpu", 0)) == (partition, gpus)
        assert one["qos"] == one["slurm_account"]
    at_night = {**AT_NIGHT, "cpus_per_task": 5, "device": "gpu", "maigan_gpu": 1}
    assert sent(placement, "segment", AT_5, NIGHT) == at_night


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
        Placement().either("work", **{**stated, kind: {**stated[kind], **change}})
