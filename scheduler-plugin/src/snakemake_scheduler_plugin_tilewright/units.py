"""Jobs and groups of Snakemake as placement's, with what each needs and fixes."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from .cluster.request import ResourceRequest, Target
from .declared import declared_model, fixed_of, kinds_of, options_of
from .errors import PlacementError
from .placement.jobs import Job, UserOverrides, job_of, name_of, rule_of
from .resources import MODEL, Placement
from .runtime import snakemake_adapter as adapter


class PlacedJobs:
    """What Snakemake dispatches as one: jobs, and groups of them.

    Attributes
    ----------
    names : dict
        Job or group to its name, which is empty for those that run next to the coordinator.
    """

    def __init__(self, dag: Any, placement: Placement) -> None:
        self.dag, self.placement = dag, placement
        self.by_name: dict[str, Any] = {}
        self.names: dict[Any, str] = {}

    def take(self, jobs: Iterable[Any]) -> list[Job]:
        """Return the jobs and groups that are not known yet: all at first, then a checkpoint's.

        Slurm's comment is the same for some jobs of one rule (wildcards ``a_b``, ``c`` and ``a``,
        ``b_c``): the second of such waits untaken until the first has ended.

        Raises
        ------
        PlacementError
            One is a group of which placement should choose each job's target.
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
        by_rule = {rule_of(job): job for job in new.values() if model_of(self.placement, job)}
        fixed = {rule: self._chosen(job) for rule, job in by_rule.items()}
        return [self._job(unit, fixed.get(rule_of(unit))) for unit in new.values()]

    def declared_job(self, job: Job, of: Any) -> Job:
        """Return a job whose rule has no model with what the one of Snakemake declares by now."""
        return replace(job, overrides=self._fixed(of), kinds=kinds_of(of), model=declared_model(of))

    def _fixed(self, job: Any) -> UserOverrides:
        """Return what a job fixes whose rule has no model."""
        cluster = self.placement.cluster
        fixed = fixed_of(job, cluster.state.accounts if cluster else ())
        return replace(fixed, options=self._options(job))

    def _options(self, job: Any) -> tuple[tuple[str, Any], ...]:
        return options_of(job.resources, adapter.executor_setting(self.dag, "reservation"))

    def _job(self, unit: Any, chosen: UserOverrides | None) -> Job:
        """Return a job or group of Snakemake as placement's; ``chosen`` if its rule has a model."""
        if unit.is_group():
            modelled = {one.rule.name for one in unit.jobs if model_of(self.placement, one)}
            if modelled:
                raise PlacementError(
                    f"rule {min(modelled)} asks placement where each of its jobs runs, so none can "
                    f"be in a group; take it out of group {unit.groupid}"
                )
        needs = {
            adapter.unit_of(self.dag, need)
            for job in adapter.members(unit)
            for need in self.dag.job_dependencies(job)
        } - {unit}
        if chosen is None:
            return job_of(unit, needs, declared_model(unit), self._fixed(unit), kinds_of(unit))
        return job_of(unit, needs, self.placement.model(model_of(self.placement, unit)), chosen)

    def _chosen(self, job: Any) -> UserOverrides:
        """Return what the user chose with ``--set-resources``, ``--set-threads`` or ``with:``."""
        given = self.placement.rule_resources(model_of(self.placement, job))
        chosen = adapter.overridden_names(job, given)
        # a rule of `either` has its CPUs in a resource, and one thread by default
        cpus = "cpus_per_task" if "cpus_per_task" in given else "_cores"

        def value(name: str) -> Any:
            return job.resources.get(name) if name in chosen else None

        return UserOverrides(
            account=str(value("slurm_account") or "").lower() or None,
            cpus=value(cpus),
            mem_mb=value("mem_mb"),
            runtime_min=value("runtime"),
            options=self._options(job),
            qos=value("qos"),
        )


def model_of(placement: Placement, job: Any) -> str:
    """Return the name of the model of a job's rule; empty where it has none, and for a group."""
    name = adapter.constant(job, MODEL)
    return name if name in placement.models else ""


def values_of(
    placement: Placement, job: Any, request: ResourceRequest, target: Target | None = None
) -> dict[str, Any]:
    """Return the resources of a job that asks for this there, but for what the user chose."""
    name = model_of(placement, job)
    chosen = adapter.overridden_names(job, placement.rule_resources(name))
    values = placement.values(name, request, target)
    return {one: value for one, value in values.items() if one not in chosen}
