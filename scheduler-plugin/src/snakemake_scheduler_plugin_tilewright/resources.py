"""What a Snakefile and the run share: ``workflow.placement``, and the resources of its rules.

The Snakefile sets it once (``workflow.placement = detect(workflow)``), in a module too, and each
rule takes its resources from it: ``resources: **workflow.placement.resources("stitch")``. They are
functions of a job, with a constant ``placement="stitch"``, by which the executor finds the model of
a rule whatever a module renames it to. They state what a job needs. With ``--executor tilewright``
the place is chosen as the job is sent; with Snakemake's own ``--executor slurm`` they give account,
QOS and partition as well, from the pools of the accounts. Without a cluster every job runs here;
inside a Slurm job the answer is what was allocated.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .placement.jobs import key_of
from .placement.request import KINDS, SLOWDOWN, DeviceKind, Place, ResourceModel, ResourceRequest
from .runtime.cause import failed_since
from .runtime.errors import PlacementError
from .runtime.ledger import LEDGER, read_ledger, resume_line, runs_of, summary_lines
from .runtime.snakemake_adapter import command
from .runtime.words import printable

#: The constant resource that names the model of a rule.
MODEL = "placement"
_PLACES = ("slurm_account", "slurm_partition", "qos")


def detect(
    workflow: Any,
    models: Mapping[str, ResourceModel] | None = None,
    *,
    ledger: Path = LEDGER,
    device: DeviceKind | None = None,
    logs: Path | None = None,
) -> Placement:
    """Return where jobs of a run go: to Slurm, to this machine, or this is one of Slurm's jobs.

    Parameters
    ----------
    workflow : snakemake.workflow.Workflow
        The object of that name in every Snakefile.
    models : mapping, optional
        Name to the model of a rule's jobs.
    ledger : Path
        Where decisions are written.
    device : {"gpu", "cpu"}, optional
        Where jobs run that are not placed: this machine's device, or the one that Slurm allocated;
        by default a GPU where Slurm allocated one.
    logs : Path, optional
        Folder of the jobs' logs, in which the end of a failed run finds the causes.
    """
    # Snakemake reads a module's Snakefile once for each `use rule`, and all have one placement.
    placement: Placement | None = getattr(workflow, "placement", None)
    if placement is not None:
        placement.models |= models or {}
        return placement
    inside = workflow.remote_exec and "SLURM_JOB_ID" in os.environ
    if device is None:
        device = "gpu" if inside and allocated_gpus() else "cpu"
    # Snakemake asks for --jobs wherever jobs run on other machines
    remote = workflow.is_main_process and workflow.resource_settings.nodes is not None
    cpus = allocated_cpus() if inside else None
    return Placement(
        dict(models or {}), device, remote, inside, cpus, ledger, logs=logs, workflow=workflow
    )


@dataclass
class Placement:
    """Where the jobs of a run go."""

    models: dict[str, ResourceModel] = field(default_factory=dict)
    """What the workflow says of its rules, by the name that they give to ``resources``."""
    device: DeviceKind = "cpu"
    """Where jobs run that are not placed: this machine's, or the one that Slurm allocated."""
    on_cluster: bool = False
    """In the main process of a run whose jobs go to other machines."""
    inside_job: bool = False
    """Whether this process runs one job that Slurm started."""
    allocated_cpus: int | None = None
    """Inside a Slurm job, its CPUs."""
    ledger: Path = LEDGER
    gpus: Callable[[int], int] | None = None
    """On one machine: how many GPUs could hold a job with so many MB of device memory now."""
    logs: Path | None = None
    workflow: Any = None
    chosen: dict[str, DeviceKind] = field(default_factory=dict)
    """On one machine: the device kind of each job that was started, by its name."""
    _resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    _threads: dict[str, Callable[..., int]] = field(default_factory=dict)
    _at_end: list[Callable[[], None]] = field(default_factory=list)
    _static: dict[str, Place] = field(default_factory=dict)
    _sent: Counter[Place] = field(default_factory=Counter)
    _began_s: float = field(default_factory=time.time)
    _ended: bool = False

    def resources(self, name: str) -> dict[str, Any]:
        """Return the resources of a rule, as Snakemake's functions where jobs differ."""
        able = "gpu" in self.model(name).devices
        here = not self.on_cluster and self.device == "gpu" and able
        more = _PLACES if self.on_cluster else ()
        gpu = ("gpu", "cpu", "gpu_mem_mb") if here else ("gpu",) if self.on_cluster else ()
        return self._functions(name, ("mem_mb", "runtime", *gpu, *more))

    def either(
        self, name: str, *, gpu: Mapping[str, int], cpu: Mapping[str, int]
    ) -> dict[str, Any]:
        """Return the resources of a rule that may run on a GPU or on CPUs.

        Use it as ``resources: **placement.either("segment", gpu=..., cpu=...)``. The job finds the
        kind that was chosen in ``resources.device``, ``"gpu"`` or ``"cpu"``, and its CPUs in
        ``resources.cpus_per_task``.

        Parameters
        ----------
        name : str
            The rule.
        gpu, cpu : mapping
            What a job needs on each kind: ``cpus``, ``mem_mb``, ``runtime`` in minutes, and for
            ``gpu`` the number of ``gpus``, 1 by default.

        Raises
        ------
        PlacementError
            A key is absent or unknown.
        """
        self.models[name] = either_model(gpu, cpu)
        more = ("gpu", *_PLACES) if self.on_cluster else ("gpu",)
        return self._functions(name, ("cpus_per_task", "mem_mb", "runtime", "device", *more))

    def threads(self, name: str) -> Callable[..., int]:
        """Return the threads of a rule, as Snakemake's function."""

        def threads(wildcards: Any) -> int:
            return self.allocated_cpus or self.request(name, wildcards).cpus

        return self._threads.setdefault(name, threads)

    def model(self, name: str) -> ResourceModel:
        """Return the model of a rule.

        Raises
        ------
        PlacementError
            There is none.
        """
        if name not in self.models:
            raise PlacementError(f"no model says what rule {name} needs; add it to the models")
        return self.models[name]

    def request(self, name: str, wildcards: Any, attempt: int = 1) -> ResourceRequest:
        """Return what a job asks for where its place is not chosen as it starts.

        Memory and time double with each attempt.
        """
        model, again = self.model(name), attempt - 1
        if self._names_places:
            kind = self._place(name, wildcards).kind
        elif self.on_cluster:
            kind = model.devices[0]
        else:
            kind = self.chosen.get(key_of(name, wildcards)) or (
                model.devices[0] if self.device == "gpu" else "cpu"
            )
        return model.request(wildcards, kind).double(again, again)

    def values(self, name: str, request: ResourceRequest) -> dict[str, Any]:
        """Return the values of what a rule was given, for a job that asks for this.

        ``_cores`` are its threads.
        """
        names = {*self._resources.get(name, ()), *(["_cores"] if name in self._threads else [])}
        return {one: self._value(one, request) for one in names - {MODEL, *_PLACES}}

    def _functions(self, name: str, names: Sequence[str]) -> dict[str, Any]:
        def function(one: str) -> Callable[..., Any]:
            def resource(wildcards: Any, attempt: int) -> Any:
                if one in _PLACES:
                    place = self._place(name, wildcards) if self._names_places else None
                    return place and dict(zip(_PLACES, _names_of(place), strict=True))[one]
                return self._value(one, self.request(name, wildcards, attempt))

            return resource

        if name not in self._resources:
            self._resources[name] = {MODEL: name, **{one: function(one) for one in names}}
        return self._resources[name]

    def _value(self, name: str, request: ResourceRequest) -> Any:
        values: dict[str, Any] = {
            "_cores": request.cpus,
            "mem_mb": request.mem_mb,
            "runtime": request.runtime_min,
            "gpu": request.gpus or None,
            "gpu_mem_mb": request.gpu_mem_mb,
            "cpu": None if request.gpus else request.cpus,
            "cpus_per_task": self.allocated_cpus or request.cpus,
            "device": "gpu" if request.gpus else "cpu",
        }
        return values[name]

    @property
    def _names_places(self) -> bool:
        """Whether Snakemake's own executor sends the jobs, which asks the rules where to."""
        plugin = self.workflow.executor_plugin if self.on_cluster else None
        return plugin is not None and plugin.name == "slurm"

    def _place(self, name: str, wildcards: Any) -> Place:
        """Return the place of a job: that which has the fewest jobs for its slots and speed."""
        key, kinds = key_of(name, wildcards), self.model(name).devices
        if key not in self._static:
            own = [(place, weight) for place, weight in self._pools if place.kind in kinds]
            if not own:
                raise PlacementError(f"no account and partition is open to rule {name}")
            place, _ = min(own, key=lambda one: (self._sent[one[0]] + 1) / one[1])
            self._sent[place] += 1
            self._static[key] = place
        return self._static[key]

    @cached_property
    def _pools(self) -> list[tuple[Place, float]]:
        from .placement.cluster import Cluster, own_client
        from .pools import make_pools

        cluster = Cluster(own_client())
        cluster.look()
        speeds = dict(zip(KINDS, (SLOWDOWN, 1.0), strict=True))
        return [(pool.place, pool.slots * speeds[pool.place.kind]) for pool in make_pools(cluster)]

    def at_end(self, function: Callable[[], None]) -> None:
        """Have a function called when the run ends, so that the last jobs get into the ledger."""
        self._at_end.append(function)

    def end(self, *, failed: bool = False) -> None:
        """Say on standard error how the run ended; once.

        Parameters
        ----------
        failed : bool
            Whether it ended early: a job failed, or it was stopped.
        """
        if self._ended:
            return
        self._ended = True
        for function in self._at_end:
            function()
        lines = []
        if self.on_cluster:
            events = read_ledger(self.ledger)
            own = [
                run for run in runs_of(events)[-1:] if run[0]["time_s"] >= round(self._began_s, 3)
            ]
            lines = [line for run in own for line in summary_lines(run)]
            lines += filter(None, [events.note])
        elif failed and self.logs:
            lines = [*failed_since(self.logs, self._began_s)]
        lines = [*map(printable, lines)]
        if failed:
            lines += [f"what is finished stays; {resume_line(command())}"]
        for line in lines:
            sys.stderr.write(f"{line}\n")


def _names_of(place: Place) -> tuple[str | None, str | None, str | None]:
    return place.account or None, ",".join(place.partitions) or None, place.qos or None


def either_model(gpu: Mapping[str, int], cpu: Mapping[str, int]) -> ResourceModel:
    """Return the model of a rule whose author writes what a job needs on each device kind.

    Raises
    ------
    PlacementError
        A key is absent or unknown, or a value is no positive integer.

    Examples
    --------
    >>> model = either_model(
    ...     gpu={"cpus": 2, "mem_mb": 8000, "runtime": 10},
    ...     cpu={"cpus": 8, "mem_mb": 16000, "runtime": 60},
    ... )
    >>> model.request({}, "gpu").gpus, model.cpu_seconds({})
    (1, 1800.0)
    """
    requests: dict[DeviceKind, ResourceRequest] = {
        "gpu": _request(gpu, gpus=1),
        "cpu": _request(cpu, gpus=0),
    }
    half_limit_s = 0.5 * 60 * requests["cpu"].runtime_min
    slowdown = requests["cpu"].runtime_min / requests["gpu"].runtime_min
    return ResourceModel(KINDS, lambda _, kind: requests[kind], lambda _: half_limit_s, slowdown)


def _request(values: Mapping[str, int], gpus: int) -> ResourceRequest:
    known = {"cpus", "mem_mb", "runtime", "gpus"}
    if wrong := sorted(values.keys() - known):
        raise PlacementError(f"either() takes {', '.join(sorted(known))}, and not {wrong[0]}")
    for key in ("cpus", "mem_mb", "runtime"):
        value = values.get(key)
        if not isinstance(value, int) or value < 1:
            raise PlacementError(f"either() needs {key} for each kind, an integer above 0")
    return ResourceRequest(
        values["cpus"], values["mem_mb"], values.get("gpus", gpus), values["runtime"]
    )


def allocated_gpus(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether Slurm gave this job a GPU.

    ``CUDA_VISIBLE_DEVICES`` alone does not count: sbatch hands a job the variables of the shell
    that submitted it. Slurm itself lists the GPUs of a job and of a step.

    >>> allocated_gpus({"CUDA_VISIBLE_DEVICES": "5", "SLURM_JOB_ID": "7"})
    False
    """
    return bool(environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS"))


def allocated_cpus(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the CPUs that Slurm gave this job, None where it does not say."""
    text = environ.get("SLURM_CPUS_PER_TASK") or environ.get("SLURM_CPUS_ON_NODE") or ""
    return int(text) if text.isdigit() else None
