"""Jobs and groups of Snakemake as placement's, and placement's answers as arguments of sbatch.

What a job needs is said by the model of its rule, or else by the resources that it declares.
"""

import contextlib
import re
import shlex
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .placement.jobs import Task, key_of
from .placement.order import Node, Order
from .placement.request import SLOWDOWN, DeviceKind, Place, ResourceModel, ResourceRequest
from .resources import MODEL, Placement

#: Where Slurm writes what a job prints, below the working directory.
SLURM_LOGS = Path(".snakemake/slurm_logs")
#: Reading all jobs takes under 1 ms, changing them too (no figure).
_TRIES = 100


class Tasks:
    """Translates the jobs of one run.

    Parameters
    ----------
    ends : Path
        Folder in which each job writes its exit code.
    """

    def __init__(self, workflow: Any, placement: Placement, reservation: str, ends: Path) -> None:
        self.workflow, self.placement, self.ends = workflow, placement, ends
        self.settings = SimpleNamespace(
            requeue=False, no_requeue=True, qos=None, reservation=reservation or None
        )
        self.order = Order(self.nodes)
        self.logs: dict[str, Path] = {}
        self._first: dict[Any, ResourceRequest] = {}  # what jobs without a model asked for at first
        ends.mkdir(parents=True, exist_ok=True)
        for left in ends.iterdir():
            left.unlink()

    def task(self, job: Any) -> Task:
        """Return a job or group that is ready, with what it needs and what the user chose."""
        model, resources, least = self._model(job), job.resources, None
        if model is None:
            kind = kind_of(resources)
            least = declared_request(job)
            requests = {kind: self._first.setdefault(job, least)}
            seconds = self._declared_s(requests[kind].runtime_min, kind)
        else:
            requests = {kind: self._request(job, model, kind) for kind in model.devices}
            seconds = model.cpu_seconds(job.wildcards)
        return Task(
            job,
            name_of(job),
            rule_of(job),
            requests,
            seconds,
            model.slowdown if model else SLOWDOWN,
            account=str(resources.get("slurm_account") or "").lower(),
            qos=str(resources.get("qos") or "").lower(),
            log=str(job.log[0]) if len(job.log) else "",
            least=least,
            units=[*job.jobs] if job.is_group() else [job],
        )

    def kinds(self) -> set[DeviceKind]:
        """Return the device kinds that may run any job that has still to run."""
        return {kind for node in self.nodes().values() for kind in node.kinds}

    def submission(
        self, task: Task, place: Place, request: ResourceRequest, name: str, command: str
    ) -> tuple[Sequence[str], str]:
        """Return the arguments of sbatch for a job, and its script, which notes its exit code."""
        from snakemake_executor_plugin_slurm.submit_string import get_submit_command
        from snakemake_executor_plugin_slurm.utils import set_gres_string
        from snakemake_executor_plugin_slurm.validation import validate_slurm_extra

        job = _AtPlace(task.job, self._values(task, place, request))
        validate_slurm_extra(job)
        folder = Path(self.workflow.workdir_init) / SLURM_LOGS / task.rule.replace("/", "_")
        folder.mkdir(parents=True, exist_ok=True)
        self.logs[name] = folder / f"{name}.log"
        quoted = {"account": place.account, "partition": ",".join(place.partitions)}
        options = {"account": "-A", "partition": "-p"}
        params = {
            "run_uuid": name,
            "slurm_logfile": self.logs[name],
            "comment_str": task.name,
            "workdir": self.workflow.workdir_init,
            **{key: f"{options[key]} {shlex.quote(text)}" if text else ""
               for key, text in quoted.items()},
        }  # fmt: skip
        call = get_submit_command(job, params, settings=self.settings) + set_gres_string(job)
        end = shlex.quote(str(self.ends / name))
        script = f"#!/bin/sh\n{command}\ncode=$?\necho $code > {end}\nexit $code\n"
        return shlex.split(call), script

    def slurm_log(self, task: Task) -> Path | None:
        """Return Slurm's log of a job that was sent."""
        return self.logs.get(task.slurm_name)

    def _model(self, job: Any) -> ResourceModel | None:
        """Return the model of a job's rule; None where it has none, and for a group."""
        name = "" if job.is_group() else str(job.resources.get(MODEL) or "")
        return self.placement.models.get(name)

    def _request(self, job: Any, model: ResourceModel, kind: DeviceKind) -> ResourceRequest:
        """Return what a job asks for on a device kind, with what the user set for it."""
        chosen, request = self._chosen(job), model.request(job.wildcards, kind)
        return ResourceRequest(
            chosen.get("cpus_per_task") or chosen.get("_cores") or request.cpus,
            chosen.get("mem_mb") or request.mem_mb,
            request.gpus,
            chosen.get("runtime") or request.runtime_min,
            request.gpu_mem_mb,
            str(job.resources.get("gpu_model") or ""),
            str(job.resources.get("slurm_partition") or ""),
            chosen.get("runtime") or 0,
        )

    def _chosen(self, job: Any) -> dict[str, int]:
        """Return the resources of a job that are not what its rule's functions give.

        They come from ``--set-resources``, ``--set-threads``, or a rule that uses another.
        """
        name = str(job.resources[MODEL])
        usual = self.placement.request(name, job.wildcards, job.attempt)
        values = self.placement.values(name, usual)
        now = {**dict(job.resources.items()), "_cores": job.threads}
        return {
            one: now[one] for one, value in values.items()
            if isinstance(now.get(one), int) and now[one] != value
        }  # fmt: skip

    def _values(self, task: Task, place: Place, request: ResourceRequest) -> dict[str, Any]:
        """Return the resources with which a job is sent to a place."""
        values = dict(task.job.resources.items())
        if self._model(task.job) is not None:
            values |= {"mem_mb": request.mem_mb, "runtime": request.runtime_min}
            values |= {"gpu": request.gpus or None, "cpus_per_task": request.cpus}
        else:
            if request.mem_mb > task.requests[place.kind].mem_mb:  # after it ran out of memory
                each = -(-request.mem_mb // max(1, request.cpus))
                per_cpu = bool(values.get("mem_mb_per_cpu"))
                values |= {"mem_mb_per_cpu": each} if per_cpu else {"mem_mb": request.mem_mb}
            if request.runtime_min > (values.get("runtime") or 0) > 0:
                values["runtime"] = request.runtime_min
        if place.qos and not values.get("qos"):
            values["qos"] = place.qos
        return {name: value for name, value in values.items() if value is not None}

    def nodes(self) -> dict[Hashable, Node]:
        """Return all jobs that have still to run, for their order."""
        dag = self.workflow.dag
        jobs = [job for job in self.jobs() if len(job.output) and not dag.finished(job)]
        return {job: self._node(job, [*dag.job_dependencies(job)]) for job in jobs}

    def jobs(self, *, finished: bool = False) -> list[Any]:
        """Return the jobs of Snakemake that this run has to run, or had."""
        for _ in range(_TRIES):
            # the main thread changes them meanwhile where a checkpoint ends
            with contextlib.suppress(RuntimeError):
                return self._needed(finished)
        return self._needed(finished)

    def _needed(self, finished: bool) -> list[Any]:
        return [*self.workflow.dag.needrun_jobs(exclude_finished=not finished)]

    def seconds(self, job: Any) -> float:
        """Return about how long a job takes on CPUs."""
        return self._node(job, ()).cpu_seconds

    def _node(self, job: Any, needs: Iterable[Any]) -> Node:
        model = None if job.is_group() else self.placement.models.get(_constant(job, MODEL))
        if model is None:  # its resources may not be known before its input is there
            kind = kind_of({name: _constant(job, name) for name in ("gpu", "gres", "gpu_model")})
            return Node(job.rule.name, (kind,), 1800.0, float(job.priority), [*needs])
        seconds = model.cpu_seconds(job.wildcards)
        return Node(job.rule.name, model.devices, seconds, float(job.priority), [*needs])

    @staticmethod
    def _declared_s(runtime_min: int, kind: DeviceKind) -> float:
        """Return nominal seconds of a job that runs on one kind: half of what it may take."""
        return 30.0 * runtime_min * (SLOWDOWN if kind == "gpu" else 1.0)


class _Resources(dict[str, Any]):
    """Resources as the executor for Slurm reads them: as keys, and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class _AtPlace:
    """A job with the resources that it has at its place."""

    def __init__(self, job: Any, values: dict[str, Any]) -> None:
        self.resources = _Resources(values)
        self.threads = values.get("cpus_per_task") or job.threads


def rule_of(job: Any) -> str:
    """Return the rule of a job of Snakemake; a group has the name of no rule, but all of them."""
    return f"group {'+'.join(sorted(job.rules))}" if job.is_group() else str(job.rule.name)


def name_of(job: Any) -> str:
    """Return the name of a job or group of Snakemake: of a group with its last job's wildcards."""
    if not job.is_group():
        return key_of(job.rule.name, job.wildcards)
    last = min(job.toposorted[-1], key=lambda one: (one.rule.name, *map(str, one.wildcards)))
    return key_of(job.name, last.wildcards)


def _constant(job: Any, name: str) -> Any:
    """Return a constant resource of a job's rule, whatever its functions need; else empty."""
    resource = job.rule.resources.get(name)
    return "" if resource is None or resource.is_evaluable() else resource.value or ""


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
