"""Jobs and groups of Snakemake as placement's, with what each needs and fixes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    Fixed,
    Job,
    job_of,
    name_of,
    rule_of,
)
from snakemake_scheduler_plugin_tilewright.placement.resources import MODEL, Placement
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter as adapter
from snakemake_scheduler_plugin_tilewright.stated import fixed_of, kinds_of, stated_model_of


class Units:
    """What Snakemake dispatches as one: jobs, and groups of them.

    Attributes
    ----------
    by_name : dict of str to object
        Jobs and groups of Snakemake that are placed.
    names : dict
        Job or group to its name, which is empty for those that run beside the coordinator.
    """

    def __init__(self, dag: Any, placement: Placement) -> None:
        self.dag, self.placement = dag, placement
        self.by_name: dict[str, Any] = {}
        self.names: dict[Any, str] = {}

    def take(self, jobs: Iterable[Any]) -> list[Job]:
        """Return the jobs and groups that are not known yet: all at first, then a checkpoint's.

        Slurm's comment cannot tell some jobs of one rule apart (wildcards ``a_b``, ``c`` and ``a``,
        ``b_c``): the second of such waits untaken until the first has ended.
        """
        new: dict[str, Any] = {}
        for job in jobs:
            if job in self.names:
                continue
            unit = adapter.unit_of(self.dag, job)
            name = "" if unit.is_local else name_of(unit)
            twin = None if unit.is_group() else new.get(name) or self.by_name.get(name)
            if twin is not None and adapter.is_open(self.dag, twin):
                continue
            self.names[job] = self.names[unit] = name
            if name:
                new[name] = unit
        self.by_name.update(new)
        by_rule = {rule_of(job): job for job in new.values() if adapter.constant(job, MODEL)}
        fixed = {rule: self._chosen(job) for rule, job in by_rule.items()}
        return [self._job(unit, fixed.get(rule_of(unit))) for unit in new.values()]

    def restated(self, task_job: Job, job: Any) -> Job:
        """Return a job whose rule has no model with what it states by now."""
        fixed, kinds = self._fixed(job), kinds_of(job)
        return replace(task_job, fixed=fixed, kinds=kinds, model=stated_model_of(job))

    def _fixed(self, job: Any) -> Fixed:
        """Return what a job fixes whose rule has no model."""
        cluster = self.placement.cluster
        return fixed_of(job, cluster.survey.accounts if cluster else ())

    def _job(self, unit: Any, chosen: Fixed | None) -> Job:
        """Return a job or group of Snakemake as placement's; ``chosen`` if its rule has a model."""
        needs = {
            adapter.unit_of(self.dag, need)
            for job in adapter.members(unit)
            for need in self.dag.job_dependencies(job)
        } - {unit}
        if chosen is None:
            return job_of(unit, needs, stated_model_of(unit), self._fixed(unit), kinds_of(unit))
        return job_of(unit, needs, self.placement.model(adapter.constant(unit, MODEL)), chosen)

    def _chosen(self, job: Any) -> Fixed:
        """Return what the user chose with ``--set-resources``, ``--set-threads`` or ``with:``."""
        chosen = adapter.overridden(job, self.placement.given(adapter.constant(job, MODEL)))

        def value(name: str) -> Any:
            return job.resources.get(name) if name in chosen else None

        return Fixed(
            account=value("slurm_account"),
            cpus=job.threads if "_cores" in chosen else None,
            mem_mb=value("mem_mb"),
            runtime_min=value("runtime"),
        )
