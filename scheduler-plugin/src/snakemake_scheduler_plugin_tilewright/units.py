"""Jobs and groups of Snakemake as placement's, with what each needs and fixes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    Fixed,
    Job,
    job_of,
    name_of,
    rule_of,
)
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter as adapter
from snakemake_scheduler_plugin_tilewright.stated import StatedSizes, fixed_of, kinds_of


class Units:
    """What Snakemake dispatches as one: jobs, and groups of them.

    Attributes
    ----------
    by_name : dict of str to object
        Jobs and groups of Snakemake that are placed.
    names : dict
        Job or group to its name, which is empty for those that run beside the coordinator.
    """

    def __init__(self, dag: Any, plan: Plan) -> None:
        self.dag, self.plan = dag, plan
        self.by_name: dict[str, Any] = {}
        self.names: dict[Any, str] = {}
        self._stated = StatedSizes()

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
        stated = [unit for unit in new.values() if rule_of(unit) not in self.plan.rules]
        self._stated.take(stated)
        for rule in set(map(rule_of, stated)):
            self.plan.sizes.add(rule, self._stated)
        self.by_name.update(new)
        chosen = {rule_of(job): job for job in new.values() if rule_of(job) in self.plan.rules}
        fixed = {rule: self._chosen(job) for rule, job in chosen.items()}
        return [self._job(unit, fixed.get(rule_of(unit))) for unit in new.values()]

    def fixed(self, job: Any) -> Fixed:
        """Return what a job fixes whose rule asks no plan."""
        cluster = self.plan.cluster
        return fixed_of(job, cluster.survey.accounts if cluster else ())

    def _job(self, unit: Any, chosen: Fixed | None) -> Job:
        """Return a job or group of Snakemake as placement's; ``chosen`` if its rule has a plan."""
        needs = {
            adapter.unit_of(self.dag, need)
            for job in adapter.members(unit)
            for need in self.dag.job_dependencies(job)
        }
        rule, all_, kinds = rule_of(unit), self.plan.sizes, None
        if chosen is None:
            chosen, kinds = self.fixed(unit), kinds_of(unit)
        return job_of(unit, needs - {unit}, all_.of(rule), chosen, kinds, all_.name(rule))

    def _chosen(self, job: Any) -> Fixed:
        """Return what the user chose with ``--set-resources`` and ``--set-threads``."""
        chosen, threads = adapter.chosen_resources(self.dag, job.rule.name)

        def value(*names: str) -> Any:
            return job.resources.get(names[-1]) if any(name in chosen for name in names) else None

        return Fixed(
            account=value("slurm_account"),
            cpus=job.threads if threads else None,
            mem_mb=value("mem", "mem_mb"),
            runtime_min=value("runtime"),
        )
