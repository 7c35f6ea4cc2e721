"""What a Snakefile and the scheduler share: ``workflow.placement``, and the resources of its rules.

The Snakefile sets it once (``workflow.placement = detect(workflow)``), in a module too, and each
rule takes its resources from it: ``resources: **workflow.placement.resources("stitch")``. They are
functions of a job, with a constant ``placement="stitch"``, by which the scheduler finds the model
of a rule whatever a module renames it to. As a job starts, the scheduler writes where it goes into
its resources. Without that scheduler a static assignment spreads jobs over the accounts by slots
and speed; without a cluster every job runs here; inside a Slurm job the answer is what was
allocated.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from .cluster import cluster as clusters
from .cluster.cluster import Cluster
from .cluster.limits import clip_runtime, largest
from .cluster.request import DeviceKind, ResourceRequest, Target
from .errors import PlacementError
from .placement.estimates import Durations, Estimates, either_model, local_durations
from .placement.jobs import Assignment, Job, JobState, ResourceModel, key_of
from .placement.orphaned import before_run
from .placement.reach import Reach
from .runtime.allocation import allocated_cpus, allocated_gpus
from .runtime.cause import failed_since
from .runtime.ledger import LEDGER, read_ledger, resume_line, runs_of, summary_lines
from .runtime.snakemake_command import command, executor_of, other_scheduler, runs_nothing
from .words import printable

#: The constant resource that names the model of a rule.
MODEL = "placement"
#: What the scheduler sets on a job that goes to Slurm.
_PLACES = ("gpu", "slurm_account", "slurm_partition", "qos")


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

    Raises
    ------
    PlacementError
        Jobs of an earlier run still write into this folder, the site file is wrong, or Slurm does
        not answer.
    """
    # Snakemake reads a module's Snakefile once for each `use rule`, and all have one placement.
    placement: Placement | None = getattr(workflow, "placement", None)
    if placement is not None:
        placement.models |= models or {}
        return placement
    argv, main = command(), workflow.is_main_process
    found = clusters.of_command(argv) if main and executor_of(argv) == "slurm" else None
    if main:
        before_run(found, argv, ledger)
    inside = workflow.remote_exec and "SLURM_JOB_ID" in os.environ
    if device is None:
        device = "gpu" if inside and allocated_gpus() else "cpu"
    known, cpus = dict(models or {}), allocated_cpus() if inside else None
    greedy, looks = other_scheduler(argv), runs_nothing(argv[1:])
    return Placement(
        known, device, found, inside, cpus, ledger, greedy, logs=logs, starts_nothing=looks
    )


@dataclass
class Placement:
    """Where the jobs of a run go."""

    models: dict[str, ResourceModel] = field(default_factory=dict)
    """What the workflow says of its rules, by the name that they give to ``resources``."""
    device: DeviceKind = "cpu"
    """Where jobs run that are not placed: this machine's, or the one that Slurm allocated."""
    cluster: Cluster | None = None
    """In the main process of a run on Slurm."""
    inside_job: bool = False
    """Whether this process runs one job that Slurm started."""
    allocated_cpus: int | None = None
    """Inside a Slurm job, its CPUs."""
    ledger: Path = LEDGER
    counts_slots: bool = False
    """Another scheduler runs the jobs, which does not look at Slurm: they have a static account and
    count in the Snakemake resource of their pool."""
    gpus: Callable[[int], int] | None = None
    """On one machine: how many GPUs could hold a job with so many MB of device memory now."""
    logs: Path | None = None
    starts_nothing: bool = False
    """A dry run, which shows the static accounts."""
    _either: set[str] = field(default_factory=set)
    _resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    _threads: dict[str, Callable[..., int]] = field(default_factory=dict)
    _at_end: list[Callable[[], None]] = field(default_factory=list)
    _static: dict[str, Assignment] = field(default_factory=dict)
    _began_s: float = field(default_factory=time.time)
    _ended: bool = False

    @cached_property
    def estimates(self) -> Estimates:
        """What jobs need and how long they take, with what earlier runs learned."""
        if self.cluster is None:
            return Estimates(Durations(local_durations() if self.gpus else None))
        site = self.cluster.site
        return Estimates(Durations(self.cluster.durations_file, site.slowdown, site.slowdowns))

    @property
    def has_models(self) -> bool:
        """Whether the workflow has models of its rules, beyond what ``either`` states."""
        return bool(self.models.keys() - self._either)

    def resources(self, name: str) -> dict[str, Any]:
        """Return the resources of a rule, as Snakemake's functions where jobs differ.

        What the scheduler sets as a job starts is None until then.
        """
        able = "gpu" in self.model(name).devices
        here = self.cluster is None and self.device == "gpu" and able
        names = ("mem_mb", "runtime", *(("gpu", "cpu", "gpu_mem_mb") if here else ()))
        return self._functions(name, names)

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
        self._either.add(name)
        here = () if self.cluster else ("gpu",)
        return self._functions(name, ("cpus_per_task", "mem_mb", "runtime", "device", *here))

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
        """Return what a job asks for where it is not placed: here, or by the static assignment.

        Memory and time double with each attempt, at most to what its account allows.
        """
        if self.cluster is None:
            model = self.model(name)
            kind = model.devices[0] if self.device == "gpu" else "cpu"
            return model.request(wildcards, kind).double(attempt - 1, attempt - 1)
        place, state = self.static(name, wildcards), self.cluster.state
        account = state.account(place.target.account, place.target.qos)
        where = state.where(place.target)
        if attempt == 1 or account is None:
            return place.request
        more = clip_runtime(place.request.double(attempt - 1, attempt - 1), account, where)
        most_mb = max(place.request.mem_mb, largest(account, where, "mem") or more.mem_mb)
        return replace(more, mem_mb=min(more.mem_mb, most_mb))

    def rule_resources(self, name: str) -> dict[str, Any]:
        """Return the resources, and as ``_cores`` the threads, that a rule was given from here."""
        threads = {"_cores": self._threads[name]} if name in self._threads else {}
        return {**self._resources.get(name, {}), **threads}

    def values(
        self, name: str, request: ResourceRequest, target: Target | None = None
    ) -> dict[str, Any]:
        """Return the values of what a rule was given, for a job that asks for this there."""
        names = self.rule_resources(name).keys() - {MODEL}
        return {one: self._value(one, request, target) for one in names}

    def _functions(self, name: str, names: Sequence[str]) -> dict[str, Any]:
        def function(one: str) -> Callable[..., Any]:
            def resource(wildcards: Any, attempt: int) -> Any:
                target = self.static(name, wildcards).target if self.cluster else None
                return self._value(one, self.request(name, wildcards, attempt), target)

            return resource

        if name not in self._resources:
            found: dict[str, Any] = {} if self.counts_slots else {MODEL: name}
            if self.cluster is not None:
                found |= dict.fromkeys(_PLACES)
                if self.starts_nothing or self.counts_slots:
                    names = (*names, *_PLACES)
                if self.counts_slots:
                    names = (*names, *sorted({pool.name for pool in self.cluster.pools}))
            self._resources[name] = found | {one: function(one) for one in names}
        return self._resources[name]

    def _value(self, name: str, request: ResourceRequest, target: Target | None) -> Any:
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
        if target:
            values |= {"slurm_account": target.account or None, target.pool: 1}
            values |= {"slurm_partition": target.partition, "qos": target.qos or None}
        return values.get(name)

    def static(self, name: str, wildcards: Any) -> Assignment:
        """Return an assignment of a job by its name alone, in proportion to slots and speed."""
        assert self.cluster is not None
        key = key_of(name, wildcards)
        if key in self._static:
            return self._static[key]
        state, model = self.cluster.state, self.model(name)
        kinds, cpu_seconds = model.devices, model.cpu_seconds(wildcards)
        job = Job(key, name, kinds, cpu_seconds=cpu_seconds, wildcards=wildcards, model=model)
        asked = Reach(self.estimates, state).of(JobState(job)).every()
        pools = [pool for pool in self.cluster.pools if pool.target in asked]
        target = next((one for one in asked if one.device == kinds[-1]), next(iter(asked), None))
        if pools:
            speeds = {kind: 1 / self.estimates.factor(job, kind) for kind in kinds}
            ends = list(accumulate(pool.slots * speeds[pool.kind] for pool in pools))
            target = pools[bisect(ends, zlib.crc32(key.encode()) / 2**32 * ends[-1])].target
        if target is None:
            raise PlacementError(f"no account and partition is open to rule {name}")
        self._static[key] = Assignment(target, asked[target])
        return self._static[key]

    def at_end(self, function: Callable[[], None]) -> None:
        """Have a function called when the run ends, so that the last jobs get into the ledger."""
        self._at_end.append(function)

    def end(self, *, failed: bool = False) -> None:
        """Save what was learned and say on standard error how the run ended; once.

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
        if self.gpus is not None or self.cluster is not None:
            self.estimates.durations.save()
        lines = []
        if self.cluster is not None:
            events = read_ledger(self.ledger)
            last = runs_of(events)[-1:]
            lines = [line for run in last for line in summary_lines(run)]
            lines += filter(None, [events.note])
        elif failed and self.logs:
            lines = [*failed_since(self.logs, self._began_s)]
        lines = [*map(printable, lines)]
        if failed:
            lines += [f"what is finished stays; {resume_line(command())}"]
        for line in lines:
            sys.stderr.write(f"{line}\n")
