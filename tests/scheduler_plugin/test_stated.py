"""What rules state that never heard of placement, and what their jobs are given."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright.cluster.request import KINDS, ResourceRequest, Target
from snakemake_scheduler_plugin_tilewright.declared import (
    declared_model,
    declared_request,
    fixed_of,
    gpus_of,
    kinds_of,
    resources_at,
)
from snakemake_scheduler_plugin_tilewright.placement.jobs import Assignment, UserOverrides
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account


def job(threads: int = 1, rule: str = "work", wildcards: Any = None, **resources: Any) -> Any:
    """Return what is seen of a job of Snakemake."""
    return SimpleNamespace(
        rule=SimpleNamespace(name=rule), wildcards=wildcards or {}, threads=threads,
        resources=resources, is_group=lambda: False,
    )  # fmt: skip


def test_features_and_gpu_types_are_stated_in_any_words() -> None:
    found = declared_request(job(constraint="avx&ib", gpu=1, gpu_model="a100"))
    assert (found.features, found.gpu_type) == (("avx", "ib"), "a100")
    found = declared_request(job(slurm_extra="--constraint='big' --gres=gpu:h100:2"))
    assert (found.features, found.gpu_type, found.gpus) == (("big",), "h100", 2)
    found = declared_request(job(slurm_extra="--qos=x --licenses=matlab:2"))
    assert found.licences == (("matlab", 2),)
    assert declared_request(job(slurm_extra="-L 'a|b'")).licences == ()
    found = declared_request(job(constraint="[rack1|rack2]", gpu_model="a100"))
    assert (found.features, found.gpu_type, found.gpus) == ((), "a100", 1)
    assert declared_request(job(slurm_extra="--constraint=a100")).gpu_type == ""


class Tbd:
    """A value that is not known before the input is there."""


@pytest.mark.parametrize(
    ("stated", "gpus"),
    [
        ({}, 0), ({"gpu": 2}, 2), ({"gpus": 3}, 3), ({"gpu": True}, 0), ({"gpu": Tbd()}, 0),
        ({"gpu": 1, "gres": "gpu:4"}, 1), ({"slurm_extra": None, "gres": None}, 0),
        *(({"gres": gres}, gpus) for gres, gpus in {
            "gpu:1": 1, "gpu": 1, "gpu:a100": 1, "gpu:a100:2": 2, "gres:gpu:2": 2, "gres/gpu=2": 2,
            "gpu:nvidia_h100_80gb.hbm3:2": 2, "gpu:0": 0, "shard:4": 0, "tmpfs:gpu:4": 0,
            "shard:4,gpu:a100:1,gpu:v100:2": 3,
        }.items()),
        *(({"slurm_extra": extra}, gpus) for extra, gpus in {
            "--gres=gpu:2": 2, "'--gres=gpu:2'": 2, "--gres='gpu:b200:2' --nice=5": 2,
            "--gres gpu:2": 2, "--gpus=2": 2, "--gpus 2": 2, "--gpus a100:3": 3, "-G2": 2,
            "--gpus-per-node=a100:2 --nice=5": 2, "--gpus-per-task=v100": 1, "-G 2": 2,
            "-G a100:2": 2, "--gpu-bind=closest --cpus-per-gpu=4 --mem-per-gpu=4G": 0,
            "--nice=5 --comment=A-G=5": 0,
        }.items()),
    ],
)  # fmt: skip
def test_gpus(stated: dict[str, Any], gpus: int) -> None:
    assert gpus_of(stated)[0] == gpus


@pytest.mark.parametrize(
    ("threads", "stated", "shape"),
    [
        (1, {}, ResourceRequest(1, 0, 0, 60)),
        (1, {"mem_mb": 0}, ResourceRequest(1, 0, 0, 60)),
        (8, {"mem_mb": 5000, "runtime": 30}, ResourceRequest(8, 5000, 0, 30, required_min=30)),
        (8, {"runtime": 30, "qos": "long"}, ResourceRequest(8, 0, 0, 30)),
        (1, {"slurm_partition": "long"}, ResourceRequest(1, 0, 0, 60, partition="long")),
        (8, {"cpus_per_task": 3}, ResourceRequest(3, 0, 0, 60)),
        (2, {"tasks": 4, "mem_mb": 5000}, ResourceRequest(8, 5000, 0, 60)),
        (4, {"mem_mb_per_cpu": 500, "mem_mb": 9}, ResourceRequest(4, 2000, 0, 60)),
        (2, {"tasks": 4, "mem_mb_per_cpu": 500}, ResourceRequest(8, 4000, 0, 60)),
        (1, {"mem_mb": Tbd(), "runtime": Tbd()}, ResourceRequest(1, 1000, 0, 60)),
        (0, {"gpu": 1}, ResourceRequest(1, 0, 1, 60)),
    ],
)
def test_what_a_job_needs(threads: int, stated: dict[str, Any], shape: ResourceRequest) -> None:
    assert declared_request(job(threads, **stated)) == shape


def test_a_model_is_what_one_job_states_by_now() -> None:
    small = job(2, mem_mb=100, runtime=10)
    model = declared_model(small)
    small.resources["mem_mb"] = 900
    for kind in KINDS:
        assert model.request({}, kind) == ResourceRequest(2, 100, 0, 10, required_min=10)
    assert model.cpu_seconds({}) == 300
    assert model.devices == ("cpu",)
    assert (kinds_of(small), kinds_of(job(gres="gpu:1"))) == (("cpu",), ("gpu",))


def test_what_a_rule_fixes() -> None:
    assert fixed_of(job(mem_mb=5, runtime=5)) == UserOverrides()
    stated: dict[str, Any] = {"slurm_account": "maigan", "slurm_partition": "hpg-turin"}
    assert fixed_of(job(**stated)) == UserOverrides("maigan", "hpg-turin")
    assert fixed_of(job(slurm_account="", slurm_partition=None)) == UserOverrides()
    brusko = Account("brusko", "brusko", {}, takes=("night", "brusko"))
    maigan = replace(brusko, name="maigan", qos="maigan", takes=("night", "maigan"))
    accounts = [brusko, maigan]
    assert fixed_of(job(qos="maigan"), accounts) == UserOverrides("maigan", qos="maigan")
    assert fixed_of(job(qos="night"), accounts) == UserOverrides("brusko", qos="night")
    assert fixed_of(job(qos="unknown"), accounts) == UserOverrides(qos="unknown")
    both = job(qos="maigan", slurm_account="brusko")
    assert fixed_of(both, accounts) == UserOverrides("brusko", qos="maigan")


MAIGAN = Target("maigan", "night", "hpg-b200", "cpu")
PLACE = Assignment(MAIGAN, ResourceRequest(4, 8000, 0, 120))
SENT = {"slurm_account": "maigan", "slurm_partition": "hpg-b200", "qos": "night"}


@pytest.mark.parametrize(
    ("stated", "place", "given"),
    [
        ({}, PLACE, SENT),
        (
            {},
            replace(PLACE, target=replace(MAIGAN, qos="", partition=None)),
            {"slurm_account": "maigan"},
        ),
        ({"slurm_account": "maigan"}, PLACE, {"slurm_partition": "hpg-b200", "qos": "night"}),
        ({"slurm_partition": "own"}, PLACE, {"slurm_account": "maigan", "qos": "night"}),
        ({"qos": "own"}, PLACE, {"slurm_account": "maigan", "slurm_partition": "hpg-b200"}),
    ],
)
def test_only_what_the_rule_leaves_open_is_set(
    stated: dict[str, Any], place: Assignment, given: dict[str, Any]
) -> None:
    asked = job(4, mem_mb=1000, runtime=10, **stated)
    assert resources_at(place, asked, failed=False) == given


@pytest.mark.parametrize(
    ("stated", "given"),
    [
        ({"mem_mb": 4000, "runtime": 60}, {"mem_mb": 8000, "runtime": 120}),
        ({"mem_mb": 8000, "runtime": 120}, {}),
        ({"mem_mb": 16000, "runtime": 240}, {}),  # its own function of the attempt asks for more
        ({"mem_mb": 16000, "runtime": 60}, {"runtime": 120}),
        ({"mem_mb_per_cpu": 1000, "runtime": 120}, {"mem_mb_per_cpu": 2000}),
        ({"mem_mb_per_cpu": 1999, "mem_mb": 1, "runtime": 120}, {"mem_mb_per_cpu": 2000}),
        ({"mem_mb_per_cpu": 3000, "runtime": 120}, {}),
    ],
)
def test_after_a_failure_memory_and_time_are_no_less_than_the_rule_states(
    stated: dict[str, Any], given: dict[str, Any]
) -> None:
    asked = job(4, **stated)
    assert resources_at(PLACE, asked, failed=True) == {**SENT, **given}
    assert resources_at(PLACE, asked, failed=False) == SENT


def test_memory_per_cpu_is_never_rounded_down() -> None:
    place = replace(PLACE, request=ResourceRequest(3, 1000, 0, 60))
    found = resources_at(place, job(3, mem_mb_per_cpu=100, runtime=60), failed=True)
    assert found["mem_mb_per_cpu"] == 334
