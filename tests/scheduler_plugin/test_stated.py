"""What rules state that never heard of placement, and what their jobs are given."""

from types import SimpleNamespace
from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright.placement.request import ResourceRequest
from snakemake_scheduler_plugin_tilewright.tasks import declared_request, gpus_of, kind_of


def job(threads: int = 1, rule: str = "work", wildcards: Any = None, **resources: Any) -> Any:
    """Return what is seen of a job of Snakemake."""
    return SimpleNamespace(
        rule=SimpleNamespace(name=rule), wildcards=wildcards or {}, threads=threads,
        resources=resources, is_group=lambda: False,
    )  # fmt: skip


class Tbd:
    """A value that is not known before the input is there."""


@pytest.mark.parametrize(
    ("stated", "gpus"),
    [
        ({}, 0), ({"gpu": 2}, 2), ({"gpus": 3}, 3), ({"gpu": True}, 0), ({"gpu": Tbd()}, 0),
        ({"gpu": 1, "gres": "gpu:4"}, 1), ({"slurm_extra": None, "gres": None}, 0),
        *(({"gres": gres}, gpus) for gres, gpus in {
            "gpu:1": 1, "gpu": 1, "gpu:a100": 1, "gpu:a100:2": 2, "gpu:2080ti:1": 1,
            "gpu:1g.5gb:2": 2,
            "gpu:nvidia_h100_80gb.hbm3:2": 2, "gpu:0": 0, "shard:4": 0, "tmpfs:gpu:4": 0,
            "shard:4,gpu:a100:1,gpu:v100:2": 3,
        }.items()),
        *(({"slurm_extra": extra}, gpus) for extra, gpus in {
            "--gres=gpu:2": 2, "'--gres=gpu:2'": 2, "--gres='gpu:b200:2' --nice=5": 2,
            "--gres gpu:2": 2, "--gpus=2": 2, "--gpus 2": 2, "--gpus a100:3": 3, "-G2": 2,
            "--gpus-per-node=a100:2 --nice=5": 2, "--gpus-per-task=v100": 1, "-G 2": 2,
            "-G a100:2": 2, "--gpus a100:1,v100:2": 3,
            "--gpu-bind=closest --cpus-per-gpu=4 --mem-per-gpu=4G": 0,
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
        (8, {"runtime": 30, "qos": "long"}, ResourceRequest(8, 0, 0, 30, required_min=30)),
        (1, {"slurm_partition": "long"}, ResourceRequest(1, 0, 0, 60, partition="long")),
        (8, {"cpus_per_task": 3}, ResourceRequest(3, 0, 0, 60)),
        (2, {"tasks": 4, "mem_mb": 5000}, ResourceRequest(8, 5000, 0, 60)),
        (4, {"mem_mb_per_cpu": 500, "mem_mb": 9}, ResourceRequest(4, 2000, 0, 60)),
        (2, {"tasks": 4, "mem_mb_per_cpu": 500}, ResourceRequest(8, 4000, 0, 60)),
        (1, {"mem_mb": Tbd(), "runtime": Tbd()}, ResourceRequest(1, 0, 0, 60)),
        (0, {"gpu": 1}, ResourceRequest(1, 0, 1, 60)),
    ],
)
def test_what_a_job_needs(threads: int, stated: dict[str, Any], shape: ResourceRequest) -> None:
    assert declared_request(job(threads, **stated)) == shape


@pytest.mark.parametrize(
    ("stated", "kind", "gpu_type"),
    [
        ({}, "cpu", ""), ({"gres": "gpu:0"}, "cpu", ""), ({"gres": "shard:2"}, "gpu", ""),
        ({"slurm_extra": "'--gres=shard:1'"}, "gpu", ""), ({"gpu_model": "a100"}, "gpu", "a100"),
        ({"gres": "gpu:2080ti:1"}, "gpu", "2080ti"), ({"gres": "gpu:1g.5gb:1"}, "gpu", "1g.5gb"),
        ({"slurm_extra": "--gpus-per-task=v100:1", "tasks": 2}, "gpu", "v100"),
        ({"slurm_extra": "--constraint=a100"}, "cpu", ""),
    ],
)  # fmt: skip
def test_kind_and_gpu_type_are_stated_in_any_words(
    stated: dict[str, Any], kind: str, gpu_type: str
) -> None:
    assert (kind_of(stated), gpus_of(stated)[1]) == (kind, gpu_type)
    assert declared_request(job(**stated)).gpu_type == gpu_type
