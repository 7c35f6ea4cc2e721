"""Rules without a model: what their jobs need, from the resources that they declare."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .cluster.request import DeviceKind, ResourceRequest
from .placement.jobs import Assignment, ResourceModel, UserOverrides
from .slurm.accounts import Account
from .slurm.nodes import node_names

#: Before a job's input is there; without memory Slurm has a default.
_MEM_MB = 1000
_RUNTIME_MIN = 60
_PLACE = ("slurm_account", "slurm_partition", "qos")
_TYPE = r"([A-Za-z][\w.-]*)"


def declared_model(job: Any) -> ResourceModel:
    """Return the model of one job of Snakemake, by what it declares by now."""
    request = declared_request(job)
    seconds = 0.5 * 60 * request.runtime_min  # about half the time that it may take
    return ResourceModel(("cpu",), lambda _, kind: request, lambda _: seconds)


def kinds_of(job: Any) -> tuple[DeviceKind, ...]:
    """Return the one device kind that a job runs on, by what it declares."""
    return ("gpu",) if declared_request(job).gpus else ("cpu",)


def declared_request(job: Any) -> ResourceRequest:
    """Return what a job of Snakemake declares that it needs, in any of the executor's words."""
    resources = job.resources
    cpus = _integer(resources.get("cpus_per_task")) or int(job.threads)
    cpus *= _integer(resources.get("tasks")) or 1
    known = isinstance(resources.get("mem_mb") or 0, int)
    mem_mb = _integer(resources.get("mem_mb")) if known else _MEM_MB
    per_cpu_mb = _integer(resources.get("mem_mb_per_cpu"))
    if per_cpu_mb:
        mem_mb = per_cpu_mb * cpus
    runtime_min = _integer(resources.get("runtime"))
    # what a QOS allows that the rule names is not known
    required_min = 0 if resources.get("qos") else runtime_min
    gpus, gpu_type = gpus_of(resources)
    return ResourceRequest(
        max(1, cpus), mem_mb, gpus, runtime_min or _RUNTIME_MIN,
        gpu_type=gpu_type if gpus else "", required_min=required_min,
        partition=str(resources.get("slurm_partition") or ""), **dict(options_of(resources)),
    )  # fmt: skip


def option_of(resources: Mapping[str, Any], names: str) -> str:
    """Return the value of an option of sbatch in ``slurm_extra``, the last one; empty without.

    >>> option_of({"slurm_extra": "-w c1 --nodelist='c[2-3]'"}, "--nodelist[= ]|-w ?")
    'c[2-3]'
    """
    extra = str(resources.get("slurm_extra") or "")
    found = re.findall(rf"(?<![\w-])(?:{names})(?:'([^']*)'|\"([^\"]*)\"|([^\s'\"]+))", extra)
    return "".join(found[-1]) if found else ""


def options_of(resources: Mapping[str, Any], reservation: str = "") -> tuple[tuple[str, Any], ...]:
    """Return what options of sbatch ask for beside amounts, as names and values of a request.

    Of a choice between features or licences, none.

    Parameters
    ----------
    reservation : str
        That of all jobs which name none.

    Examples
    --------
    >>> options_of({"constraint": "avx&ib"}), options_of({"slurm_extra": "-C 'a|b'"})
    ((('features', ('avx', 'ib')),), ())
    >>> options_of({"slurm_extra": "-L matlab:2,ansys"})
    (('licences', (('matlab', 2), ('ansys', 1))),)
    >>> options_of({"slurm_extra": "-x c[1-2] --reservation=course"}, "ours")
    (('reservation', 'course'), ('not_nodes', ('c1', 'c2')))
    """
    text = str(resources.get("constraint") or option_of(resources, "--constraint[= ]|-C ?"))
    features = text.split("&") if re.fullmatch(r"[\w.-]+(&[\w.-]+)*", text) else ()
    text = option_of(resources, "--licenses[= ]|-L ?")
    parts = [one.partition(":") for one in text.split(",") if re.fullmatch(r"[\w.@:,-]+", text)]
    found = {
        "features": tuple(features),
        "licences": tuple((name, int(n) if n.isdigit() else 1) for name, _, n in parts),
        "reservation": option_of(resources, "--reservation[= ]") or reservation,
        "only_nodes": tuple(node_names(option_of(resources, "--nodelist[= ]|-w ?"))),
        "not_nodes": tuple(node_names(option_of(resources, "--exclude[= ]|-x ?"))),
    }
    return tuple((name, value) for name, value in found.items() if value)


def gpus_of(resources: Mapping[str, Any]) -> tuple[int, str]:
    """Return number and type of the GPUs that a job asks for; the type is empty for any.

    By ``gpu``, ``gpu_model``, ``gres`` and options of sbatch.

    >>> gpus_of({"gpu": 2}), gpus_of({"gres": "gpu:a100:1"}), gpus_of({"gres": "shard:4"})
    ((2, ''), (1, 'a100'), (0, ''))
    >>> gpus_of({"gpu_model": "a100"}), gpus_of({"gpu_model": "a100", "gpu": 4})
    ((1, 'a100'), (4, 'a100'))
    >>> gpus_of({"slurm_extra": "--nice=5 --gres=gpu:2"}), gpus_of({"slurm_extra": "--gpus a100:3"})
    ((2, ''), (3, 'a100'))
    """
    gres = f"{resources.get('gres') or ''},{option_of(resources, '--gres[= ]')}".split(",")
    extra = option_of(resources, "--gpus[= ]|--gpus-per-node[= ]|--gpus-per-task[= ]|-G ?")
    asked = [re.fullmatch(rf"(?:gres[:/])?gpu(?::{_TYPE})?(?:[:=](\d+))?\W*", one) for one in gres]
    asked += [re.fullmatch(rf"{_TYPE}?:?(\d+)?\W*", one) for one in extra.split(",") if one]
    found = [(int(one[2] or 1), one[1] or "") for one in asked if one]
    model = str(resources.get("gpu_model") or "")
    number = _integer(resources.get("gpu")) or _integer(resources.get("gpus")) or bool(model)
    types = [model, *(name for _, name in found)]
    return int(number) or sum(n for n, _ in found), next(filter(None, types), "")


def fixed_of(job: Any, accounts: Iterable[Account] = ()) -> UserOverrides:
    """Return what a job's rule and the command line fix: account and partition stay as they are.

    A job that names only a QOS stays on the account whose jobs run on it, else on the first that
    takes it.
    """
    account, partition, qos = (job.resources.get(name) for name in _PLACE)
    qos = option_of(job.resources, "-q ?") or qos
    if qos and not account:
        qos = str(qos).lower()
        takes = [one for one in accounts if qos in (one.qos, *one.takes)]
        account = min(takes, key=lambda one: one.qos != qos).name if takes else None
    # Slurm takes names of accounts and QOS in any case, and stores small letters
    return UserOverrides(
        str(account).lower() if account else None,
        str(partition) if partition else None,
        qos=str(qos).lower() if qos else None,
    )


def resources_at(assignment: Assignment, job: Any, *, failed: bool) -> dict[str, Any]:
    """Return the resources that send a job to its target; what it declares is not among them."""
    target, request = assignment.target, assignment.request
    places = zip(_PLACE, (target.account, target.partition, target.qos), strict=True)
    values: dict[str, Any] = {n: one for n, one in places if one and not job.resources.get(n)}
    if failed:  # never below what the rule then declares
        now = declared_request(job)
        if request.mem_mb > now.mem_mb:
            per_cpu = job.resources.get("mem_mb_per_cpu")
            name, value = "mem_mb_per_cpu", -(-request.mem_mb // max(1, request.cpus))
            values |= {name: value} if per_cpu else {"mem_mb": request.mem_mb}
        if request.runtime_min > now.runtime_min:
            values["runtime"] = request.runtime_min
    return values


def _integer(value: Any) -> int:
    """Return a number, 0 where it is absent or not known before the input is there."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
