"""What rules ask for: on one machine, inside a Slurm job, and on a cluster."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright.placement import cluster as clusters
from snakemake_scheduler_plugin_tilewright.placement.request import ResourceRequest
from snakemake_scheduler_plugin_tilewright.resources import Placement, allocated_cpus, detect
from snakemake_scheduler_plugin_tilewright.runtime.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.runtime.ledger import LEDGER
from tests.support.placement_rules import model
from tests.support.recorded import ANSWERS, LIMITS, Recorded, client

GPU, CPU = ResourceRequest(8, 5000, 1, 60, 900), ResourceRequest(6, 3000, 0, 90)
MODELS = {"both": model(gpu=GPU, cpu=CPU), "cpu": model(cpu=CPU)}
ON_GPU = {"cpus": 2, "mem_mb": 8000, "runtime": 2}
ON_CPU = {"cpus": 8, "mem_mb": 16000, "runtime": 6}


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


def sent(placement: Placement, rule: str, request: ResourceRequest) -> dict[str, Any]:
    """Return what the functions of a rule give for a job that asks for this."""
    found = placement.values(rule, request)
    return {name: value for name, value in found.items() if value is not None}


def test_on_one_machine_the_device_of_the_machine_counts() -> None:
    here = Placement(MODELS)
    assert values(here, "both", {}) == {"mem_mb": 3000, "runtime": 90}
    assert here.threads("both")({}) == 6
    gpu = Placement(MODELS, device="gpu")
    on_gpu = {"mem_mb": 5000, "runtime": 60, "gpu": 1, "gpu_mem_mb": 900}
    assert (values(gpu, "both", {}), gpu.threads("both")({})) == (on_gpu, 8)
    assert sent(gpu, "both", GPU) == {**on_gpu, "_cores": 8}
    on_cpus = {"mem_mb": 3000, "runtime": 90, "cpu": 6, "gpu_mem_mb": 0, "_cores": 6}
    assert sent(gpu, "both", CPU) == on_cpus
    assert "gpu" not in values(gpu, "cpu", {})
    assert gpu.threads("cpu")({}) == 6
    inside = Placement(MODELS, device="gpu", allocated_cpus=3)  # a Slurm job
    assert (inside.threads("both")({}), inside.threads("cpu")({})) == (3, 3)
    assert values(inside, "both", {})["gpu"] == 1


def test_on_one_machine_each_retry_doubles_memory_and_time() -> None:
    found = [values(Placement(MODELS), "cpu", {}, attempt) for attempt in (1, 2, 3)]
    doubled = [(3000, 90), (6000, 180), (12000, 360)]
    assert [(one["mem_mb"], one["runtime"]) for one in found] == doubled
    gpu = values(Placement(MODELS, device="gpu"), "both", {}, attempt=2)
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


@pytest.fixture
def snakefile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Placement]:
    """Return what a Snakefile gets that is read in the main process, in a job, or beside both."""
    for name in ("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["snakemake", "all"])
    monkeypatch.chdir(tmp_path)

    def placement(where: str = "main", executor: str = "", **of: Any) -> Placement:
        main, job = where == "main", where == "job"
        workflow = SimpleNamespace(
            is_main_process=main, remote_exec=job,
            executor_plugin=SimpleNamespace(name=executor) if executor else None,
            resource_settings=SimpleNamespace(nodes=9 if executor else None),
        )  # fmt: skip
        return detect(workflow, **of)

    return placement


def test_detection_without_a_cluster_needs_nothing(snakefile: Callable[..., Placement]) -> None:
    found = snakefile()
    assert (found.on_cluster, found.allocated_cpus, found.models, found.gpus) == (
        False, None, {}, None,
    )  # fmt: skip
    assert (found.ledger, found.device) == (LEDGER, "cpu")
    with pytest.raises(PlacementError, match="no model says what rule work needs"):
        found.resources("work")
    own = snakefile(models=MODELS, ledger=Path("own"), device="gpu")
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


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Put recorded answers in the place of Slurm."""
    limits = LIMITS.replace("clive-b|ada||clive-b|clive-b|||||||||\n", "").replace(",clive-b|", "|")
    found = Recorded({**ANSWERS, "sacctmgr": limits.replace(",maigan-b|", "|")})
    monkeypatch.setattr(clusters, "own_client", lambda: client(found))
    return found


def test_with_our_executor_functions_state_needs_and_ask_slurm_nothing(
    snakefile: Callable[..., Placement], recorded: Recorded
) -> None:
    found = snakefile(executor="tilewright", models=MODELS)
    assert found.on_cluster
    on_gpu = {"mem_mb": 5000, "runtime": 60, "gpu": 1}
    assert values(found, "both", {}) == on_gpu
    assert values(found, "cpu", {}) == {"mem_mb": 3000, "runtime": 90}
    assert either(found, "work", {}) == {
        "cpus_per_task": 2, "mem_mb": 8000, "runtime": 2, "device": "gpu", "gpu": 1,
    }  # fmt: skip
    assert snakefile("other", executor="tilewright").on_cluster is False
    assert recorded.asked == []


def test_with_snakemakes_own_executor_they_name_places_by_slots_and_speed(
    snakefile: Callable[..., Placement], recorded: Recorded
) -> None:
    found = snakefile(executor="slurm", models=MODELS)
    sent = [values(found, "both", {"i": i}) for i in range(530)]
    assert recorded.asked == ["partition", "sacctmgr", "use"]
    counts = Counter((one["slurm_account"], "gpu" if "gpu" in one else "cpu") for one in sent)
    # jobs on GPUs are five times as fast
    weights = {("clive", "gpu"): 15, ("clive", "cpu"): 11, ("maigan", "gpu"): 10,
               ("maigan", "cpu"): 8, ("brusko", "gpu"): 5, ("brusko", "cpu"): 3}  # fmt: skip
    assert counts.keys() == weights.keys()
    for place, weight in weights.items():
        assert counts[place] == pytest.approx(530 * weight / 52, abs=2)
    for one in sent:
        kind, partition = (GPU, "hpg-b200") if "gpu" in one else (CPU, "hpg-default")
        assert (one["mem_mb"], one["slurm_partition"]) == (kind.mem_mb, partition)
        assert one["qos"] == one["slurm_account"]
    assert sent[:9] == [values(found, "both", {"i": i}) for i in range(9)]  # and stay there
    assert values(found, "both", {"i": 0}, attempt=2)["mem_mb"] == 2 * sent[0]["mem_mb"]
    assert all("gpu" not in values(found, "cpu", {"i": i}) for i in range(9))


def test_each_snakefile_of_a_run_has_the_same_placement(
    snakefile: Callable[..., Placement],
) -> None:
    workflow = SimpleNamespace(is_main_process=True, remote_exec=False,
                               resource_settings=SimpleNamespace(nodes=None))  # fmt: skip
    workflow.placement = first = detect(workflow, MODELS)
    again = detect(workflow, {"other": MODELS["cpu"]})
    assert again is first
    assert {*again.models} == {"both", "cpu", "other"}


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
