"""What a Snakefile calls: one set-up, then ``resources: **plan.routed("stitch")``.

Inside a Slurm job the answer is what Slurm granted. In the main process it is the assignment
table that the scheduler plugin writes as jobs are dispatched; where it holds nothing (greedy
scheduler, dry run), a static plan that spreads jobs over the pools by slots and speed. Without a
cluster every job runs here, on the device kind that the plugin chose for it.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from snakemake_scheduler_plugin_tilewright.placement import cluster as clusters
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.jobs import Kind, Place, Shape, Sizes, key_of
from snakemake_scheduler_plugin_tilewright.placement.ledger import (
    LEDGER,
    last_run,
    read_ledger,
    resume_line,
    summary_lines,
)
from snakemake_scheduler_plugin_tilewright.placement.limits import Pool, clipped, pool_name, too_big
from snakemake_scheduler_plugin_tilewright.placement.sizing import (
    Durations,
    EitherSizes,
    Estimates,
    RuleSizes,
    local_durations,
    stated_shape,
)
from snakemake_scheduler_plugin_tilewright.placement.stale import before_run
from snakemake_scheduler_plugin_tilewright.runtime.cause import failed_since
from snakemake_scheduler_plugin_tilewright.runtime.granted import granted_cpus, granted_gpus
from snakemake_scheduler_plugin_tilewright.runtime.snakemake_adapter import remember_parameters
from snakemake_scheduler_plugin_tilewright.runtime.snakemake_command import command, other_scheduler
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account


def set_up(
    workflow: Any,
    sizes: Sizes | None = None,
    *,
    ledger: Path = LEDGER,
    device: Kind | None = None,
    gpus: Callable[[int], int] | None = None,
    logs: Path | None = None,
) -> Plan:
    """Prepare a run; called once, where Snakemake reads the Snakefile.

    Parameters
    ----------
    workflow : snakemake.workflow.Workflow
        The object of that name in every Snakefile.
    sizes : Sizes, optional
        What the workflow says of the rules that it names in ``routed``.
    ledger : Path
        Where decisions are written.
    device : {"gpu", "cpu"}, optional
        Where jobs run that have no place: this machine's device, or the one that Slurm granted;
        by default a GPU where Slurm granted one.
    gpus : callable, optional
        On one machine: how many GPUs could hold a job with so many MB of device memory now.
    logs : Path, optional
        Folder of the jobs' logs, in which the end of a failed run looks for the causes.

    Returns
    -------
    Plan
        Its methods ``routed`` and ``threads``, or ``either``, are for the rules, ``end`` for
        ``onsuccess`` and ``onerror``.

    Raises
    ------
    PlacementError
        Jobs of an earlier run still write into this folder, or Slurm does not say.
    """
    found, argv = clusters.current(), command()
    if workflow.is_main_process:
        before_run(found, argv)
    inside = in_slurm_job(workflow)
    granted = granted_cpus() if inside else None
    if device is None:
        device = "gpu" if inside and granted_gpus() else "cpu"
    return Plan(sizes, device, found, granted, ledger, other_scheduler(argv), gpus, logs)


def in_slurm_job(workflow: Any) -> bool:
    """Return whether this process runs one job that Slurm started."""
    return workflow.remote_exec and "SLURM_JOB_ID" in os.environ


@dataclass
class Plan:
    """Where the jobs of a run go.

    Attributes
    ----------
    described : Sizes or None
        What the workflow says of its rules.
    device : {"gpu", "cpu"}
        Where jobs run that have no place: this machine's, or the one that Slurm granted.
    cluster : Cluster or None
        In the main process of a run on Slurm.
    granted_cpus : int or None
        Inside a Slurm job, its CPUs.
    ledger : Path or None
        Where decisions are written.
    count_slots : bool
        Jobs also count in the Snakemake resource of their pool: for schedulers that do not look
        at Slurm themselves.
    gpus : callable or None
        On one machine: how many GPUs could hold a job with so many MB of device memory now.
    logs : Path or None
        Folder of the jobs' logs.
    rules : set of str
        Rules whose resource functions ask this plan; the scheduler plugin notes them.
    table : dict of str to Place
        The assignment table: job to place, written at dispatch.
    here : dict of str to {"gpu", "cpu"}
        The same on one machine: job to device kind.
    sizes : RuleSizes
        What is described, and what single rules state.
    """

    described: Sizes | None = None
    device: Kind = "cpu"
    cluster: Cluster | None = None
    granted_cpus: int | None = None
    ledger: Path | None = None
    count_slots: bool = False
    gpus: Callable[[int], int] | None = None
    logs: Path | None = None
    rules: set[str] = field(default_factory=set)
    table: dict[str, Place] = field(default_factory=dict)
    here: dict[str, Kind] = field(default_factory=dict)
    sizes: RuleSizes = field(init=False)
    estimates: Estimates = field(init=False)
    _at_end: list[Callable[[], None]] = field(default_factory=list)
    _static: dict[str, Place] = field(default_factory=dict)
    _began_s: float = field(default_factory=time.time)
    _ended: bool = False

    def __post_init__(self) -> None:
        if self.cluster is None:
            learned = Durations(local_durations() if self.gpus else None)
        else:
            site = self.cluster.site
            learned = Durations(self.cluster.durations_file, site.slowdown, site.slowdowns)
        self.sizes = RuleSizes(self.described)
        times = self.cluster.max_times_min() if self.cluster else {}
        self.estimates = Estimates(self.sizes, learned, times)

    def at_end(self, function: Callable[[], None]) -> None:
        """Have a function called when the run ends, so that the last jobs get into the ledger."""
        self._at_end.append(function)

    def end(self, *, failed: bool = False) -> None:
        """Save what was learned and say on standard error how the run ended; once.

        Parameters
        ----------
        failed : bool
            Whether it ended early: a job failed, or somebody stopped it.
        """
        if self._ended:
            return
        self._ended = True
        for function in self._at_end:
            function()
        if self.gpus is not None or self.cluster is not None:
            self.estimates.durations.save()
        lines = []
        if self.cluster is not None and self.ledger is not None:
            events = read_ledger(self.ledger)
            lines = [*summary_lines(last_run(events), command()), *filter(None, [events.note])]
        elif failed:
            causes = failed_since(self.logs, self._began_s) if self.logs else ()
            lines = [f"failed: {words}; log: {path}" for path, words in causes]
            lines += [f"what is finished is kept; {resume_line(command())}"]
        for line in lines:
            sys.stderr.write(f"{line}\n")

    def routed(self, rule: str) -> dict[str, Any]:
        """Return the resources of ``rule``, as Snakemake resource functions where jobs differ.

        Each function costs a dry run of 10,000 jobs half a second, so what is the same for all
        jobs of the rule is a constant, and what placement adds later it adds to the job.
        """
        names, able = ["mem_mb", "runtime"], "gpu" in self.sizes.kinds(rule)
        if self.cluster is None:
            names += ("gpu", "cpu", "gpu_mem_mb") if able and self.device == "gpu" else ()
            return self._functions(names, self.sizes.of(rule), rule)
        names.append("slurm_account")
        names += ["gpu", "slurm_partition"] if able else []
        if any(account.qos for account in self.cluster.survey.accounts):
            names.append("qos")
        if self.count_slots:
            names += sorted({pool.name for pool in self._pools()})
        resources = self._functions(names, self.sizes.of(rule), rule)
        if not able and (partition := self.cluster.partition("cpu")):
            resources["slurm_partition"] = partition
        return resources

    def either(self, gpu: Mapping[str, int], cpu: Mapping[str, int]) -> dict[str, Any]:
        """Return the resources of a rule that may run on a GPU or on CPUs.

        Use it as ``resources: **plan.either(gpu=..., cpu=...)``. The job finds the kind that was
        chosen in ``resources.device``, ``"gpu"`` or ``"cpu"``, and its CPUs in
        ``resources.cpus_per_task``.

        Parameters
        ----------
        gpu, cpu : mapping
            What a job needs on each kind: ``cpus``, ``mem_mb``, ``runtime`` in minutes, and for
            ``gpu`` the number of ``gpus``, 1 unless stated.

        Raises
        ------
        PlacementError
            A key is absent or unknown.
        """
        sizes = EitherSizes({"gpu": stated_shape(gpu, gpus=1), "cpu": stated_shape(cpu, gpus=0)})
        names = ["cpus_per_task", "mem_mb", "runtime", "gpu", "device"]
        if self.cluster is not None:
            names += ["slurm_account", "slurm_partition", "qos"]
        return self._functions(names, sizes)

    def threads(self, rule: str) -> Callable[..., int]:
        """Return the threads of ``rule`` as a Snakemake threads function."""
        sizes = self.sizes.of(rule)

        def threads(wildcards: Any, rulename: str = rule) -> int:
            if self.granted_cpus is not None:
                return self.granted_cpus
            self.sizes.add(rulename, sizes, rule)
            place = self.place_of(rulename, wildcards)
            return place.shape.cpus if place else self._here(rulename, wildcards, 1).cpus

        return remember_parameters(threads)

    def place_of(self, rule: str, wildcards: Any) -> Place | None:
        """Return where a job goes: by the table, or the static plan; None without a cluster."""
        if self.cluster is None:
            return None
        key = key_of(rule, wildcards)
        place = self.table.get(key) or self._static.get(key)
        if place is None:
            place = self._static[key] = self._static_place(key, rule, wildcards)
        return place

    def _functions(self, names: Iterable[str], sizes: Sizes, rule: str = "") -> dict[str, Any]:
        """Return resource functions of a rule, whatever a module names it."""

        def function(name: str) -> Callable[..., Any]:
            def resource(wildcards: Any, attempt: int, rulename: str = rule) -> Any:
                self.sizes.add(rulename, sizes, rule)
                return self._value(rulename, name, wildcards, attempt)

            # the scheduler plugin finds both here
            resource.plan, resource.sizes = self, (sizes, rule)  # type: ignore[attr-defined]
            return remember_parameters(resource)

        return {name: function(name) for name in names}

    def _value(self, rule: str, name: str, wildcards: Any, attempt: int) -> Any:
        place = self.place_of(rule, wildcards)
        shape = place.shape if place else self._here(rule, wildcards, attempt)
        match name:
            case "mem_mb":
                return shape.mem_mb
            case "runtime":
                return shape.runtime_min
            case "gpu":
                return shape.gpus or None
            case "gpu_mem_mb":
                return shape.gpu_mem_mb
            case "cpu":
                return None if shape.gpus else shape.cpus
            case "cpus_per_task":
                return self.granted_cpus or shape.cpus
            case "device":
                return "gpu" if shape.gpus else "cpu"
            case "slurm_account":
                return (place.account or None) if place else None
            case "slurm_partition":
                return place.partition if place else None
            case "qos":
                return place.qos if place else None
            case _:
                return 1 if place and place.pool == name else None

    def _here(self, rule: str, wildcards: Any, attempt: int) -> Shape:
        """Return the shape of a job on this machine, on the first kind without a decision."""
        kind: Kind = "cpu"
        if self.device == "gpu":
            kind = self.here.get(key_of(rule, wildcards)) or self.sizes.kinds(rule)[0]
        stated = self.sizes.shape(rule, wildcards, gpu=kind == "gpu")
        return stated.grown(attempt - 1, attempt - 1)

    def _pools(self) -> tuple[Pool, ...]:
        survey = self.cluster.survey if self.cluster else None
        return survey.pools if survey else ()

    def _static_place(self, key: str, rule: str, wildcards: Any) -> Place:
        """Choose a pool by the job's name, in proportion to slots and speed."""
        assert self.cluster is not None
        kinds = self.sizes.kinds(rule)
        accounts = {account.name: account for account in self.cluster.survey.accounts}
        pools = [
            pool
            for pool in self._pools()
            if pool.kind in kinds
            and not too_big(
                accounts[pool.account],
                self.estimates.shape(rule, wildcards, pool.kind),
                self.cluster.survey.partitions[pool.kind],
            )
        ]
        if not pools:
            return self.place(next(iter(accounts.values())), kinds[-1], rule, wildcards)
        speeds = {kind: 1 / self.estimates.factor(rule, kind) for kind in kinds}
        ends = list(accumulate(pool.slots * speeds[pool.kind] for pool in pools))
        at = zlib.crc32(key.encode()) / 2**32 * ends[-1]
        pool = pools[bisect(ends, at)]
        return self.place(accounts[pool.account], pool.kind, rule, wildcards)

    def place(self, account: Account, kind: Kind, rule: str, wildcards: Any) -> Place:
        """Return a job's place on an account."""
        assert self.cluster is not None
        return Place(
            account.name,
            account.qos or None,
            self.cluster.partition(kind),
            kind,
            clipped(
                self.estimates.shape(rule, wildcards, kind),
                account,
                self.cluster.survey.partitions[kind],
            ),
            pool_name(account.name, kind),
        )


def plan_of(functions: Iterable[tuple[str, Callable[..., Any]]]) -> Plan | None:
    """Return the plan that the resource functions of a workflow's rules ask, None without any.

    Parameters
    ----------
    functions : iterable of (str, callable)
        Rule name and resource function.
    """
    found: Plan | None = None
    for rule, function in functions:
        plan = getattr(function, "plan", None)
        if isinstance(plan, Plan):
            found = plan
            found.rules.add(rule)
            found.sizes.add(rule, *function.sizes)  # type: ignore[attr-defined]
    return found
