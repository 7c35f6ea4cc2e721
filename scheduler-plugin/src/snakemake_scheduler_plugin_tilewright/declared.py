"""Rules without a model: what their jobs need, from the resources that they declare."""

import re
from collections.abc import Mapping
from typing import Any

from .placement.request import DeviceKind, ResourceRequest

#: A rule that declares no time; without memory Slurm has a default.
_RUNTIME_MIN = 60


def declared_request(job: Any) -> ResourceRequest:
    """Return what a job of Snakemake declares that it needs, in any of the executor's words."""
    resources = job.resources
    cpus = _integer(resources.get("cpus_per_task")) or int(job.threads)
    cpus *= _integer(resources.get("tasks")) or 1
    mem_mb = _integer(resources.get("mem_mb"))
    if per_cpu_mb := _integer(resources.get("mem_mb_per_cpu")):
        mem_mb = per_cpu_mb * cpus
    runtime_min = _integer(resources.get("runtime"))
    gpus, gpu_type = gpus_of(resources)
    return ResourceRequest(
        max(1, cpus), mem_mb, gpus, runtime_min or _RUNTIME_MIN,
        gpu_type=gpu_type, required_min=runtime_min,
        partition=str(resources.get("slurm_partition") or ""),
    )  # fmt: skip


def kind_of(resources: Mapping[str, Any]) -> DeviceKind:
    """Return the one device kind that a job runs on, by what it declares.

    >>> kind_of({"gres": "shard:2"}), kind_of({"mem_mb": 100})
    ('gpu', 'cpu')
    """
    return "gpu" if gpus_of(resources)[0] or _shards(resources) else "cpu"


def gpus_of(resources: Mapping[str, Any]) -> tuple[int, str]:
    """Return number and type of the GPUs that a job asks for; the type is empty for any.

    By ``gpu``, ``gpu_model``, ``gres`` and options of sbatch.

    >>> gpus_of({"gpu": 2}), gpus_of({"gres": "gpu:2080ti:1"}), gpus_of({"gres": "gpu:1g.5gb:2"})
    ((2, ''), (1, '2080ti'), (2, '1g.5gb'))
    >>> gpus_of({"gpu_model": "a100"}), gpus_of({"gpu_model": "a100", "gpu": 4})
    ((1, 'a100'), (4, 'a100'))
    >>> gpus_of({"slurm_extra": "--nice=5 --gres=gpu:2"}), gpus_of({"slurm_extra": "--gpus a100:3"})
    ((2, ''), (3, 'a100'))
    >>> gpus_of({"slurm_extra": "--gpus-per-task=1", "tasks": 2}), gpus_of({"gres": "shard:4"})
    ((2, ''), (0, ''))
    """
    found = [_gpus_in(one.removeprefix("gpu")) for one in _gres(resources)
             if re.match(r"gpu(:|$)", one)]  # fmt: skip
    extra = _option(resources, "--gpus[= ]|--gpus-per-node[= ]|-G ?")
    found += [_gpus_in(one) for one in extra.split(",") if one]
    each = _option(resources, "--gpus-per-task[= ]")
    tasks = _integer(resources.get("tasks")) or 1
    found += [(n * tasks, of) for n, of in map(_gpus_in, filter(None, each.split(",")))]
    model = str(resources.get("gpu_model") or "")
    number = _integer(resources.get("gpu")) or _integer(resources.get("gpus")) or int(bool(model))
    types = [model, *(name for _, name in found)]
    return number or sum(n for n, _ in found), next(filter(None, types), "")


def _gpus_in(text: str) -> tuple[int, str]:
    """Return number and type in ``:a100:2``, ``2080ti:1`` or ``4``."""
    parts = [part for part in text.split(":") if part]
    number = int(parts.pop()) if parts and parts[-1].isdecimal() else 1
    return number, parts[0] if parts else ""


def _gres(resources: Mapping[str, Any]) -> list[str]:
    gres = f"{resources.get('gres') or ''},{_option(resources, '--gres[= ]')}"
    return [one.strip() for one in gres.split(",")]


def _shards(resources: Mapping[str, Any]) -> bool:
    return any(one.startswith("shard") for one in _gres(resources))


def _option(resources: Mapping[str, Any], names: str) -> str:
    """Return the value of an option of sbatch in ``slurm_extra``, the last one; empty without.

    >>> _option({"slurm_extra": "-x c1 --gres='gpu:2'"}, "--gres[= ]")
    'gpu:2'
    """
    extra = str(resources.get("slurm_extra") or "")
    found = re.findall(rf"(?<![\w-])(?:{names})(?:'([^']*)'|\"([^\"]*)\"|([^\s'\"]+))", extra)
    return "".join(found[-1]) if found else ""


def _integer(value: Any) -> int:
    """Return a number, 0 where it is absent or not known before the input is there."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
