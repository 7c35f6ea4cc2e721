"""What remains to be done, where it would go now, and when it would end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.commands.accounts import left_of
from snakemake_scheduler_plugin_tilewright.commands.dag import read_command, read_dag
from snakemake_scheduler_plugin_tilewright.placement import cluster
from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity
from snakemake_scheduler_plugin_tilewright.placement.jobs import Kind, PlacementError, Task
from snakemake_scheduler_plugin_tilewright.placement.preflight import check_sizes
from snakemake_scheduler_plugin_tilewright.placement.preview import Preview, preview
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan, plan_of
from snakemake_scheduler_plugin_tilewright.placement.sizing import Estimates
from snakemake_scheduler_plugin_tilewright.placement.survey import Survey
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter as adapter
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_command
from snakemake_scheduler_plugin_tilewright.runtime.words import count
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob, stale_jobs
from snakemake_scheduler_plugin_tilewright.slurm.query import Unknown
from snakemake_scheduler_plugin_tilewright.units import Units


@dataclass(frozen=True)
class Here:
    """The same without Slurm: jobs of each rule, and nominal CPU hours."""

    jobs: dict[str, int]
    cpu_hours: dict[str, float]


@dataclass(frozen=True)
class PlannedRun:
    """What ``plan`` found; as JSON times are in seconds, what is not known is null.

    Attributes
    ----------
    targets : tuple of str
        Empty is the default target.
    jobs : int
        That remain and are placed; a group is one.
    forecast : Preview or None
        None without Slurm, and where nothing remains.
    here : Here or None
        Instead of it on a machine without Slurm.
    notes : tuple of str
        Where durations come from, and what is not known.
    members : int or None
        How many jobs of Snakemake they are; None: as many.
    """

    targets: tuple[str, ...]
    jobs: int
    forecast: Preview | None
    here: Here | None
    notes: tuple[str, ...]
    members: int | None = None


def plan_workflow(options: Sequence[str], *, site: Path | None, slurm: bool) -> PlannedRun:
    """Return what remains of any workflow and how it would go on the live cluster.

    Parameters
    ----------
    options : sequence of str
        Those of the ``snakemake`` command that would run it.
    site : Path or None
        The site file; without one that beside the profile.
    slurm : bool
        Whether jobs go to Slurm.

    Raises
    ------
    DagError
        The workflow cannot be read, or a target is unknown.
    SiteError, SurveyError, PlacementError
        The site file is wrong, Slurm does not answer, or a job would pend for ever.
    """
    plan, tasks, targets, later = read_workflow(options, site=site, slurm=slurm)
    if plan.cluster is None:
        note = "no Slurm here: jobs run on this machine, as many at once as its CPUs take"
        return plan_here(plan.estimates, tasks, targets, (note, *later))
    return plan_on(plan, tasks, targets, later)


def read_workflow(
    options: Sequence[str], *, site: Path | None, slurm: bool
) -> tuple[Plan, list[Task], tuple[str, ...], list[str]]:
    """Return the plan, the jobs that are placed, the targets, and what is not counted yet.

    Jobs that run beside the coordinator are not placed. See :func:`plan_workflow`.
    """
    argv = ["snakemake", *options]
    with snakemake_command.as_dry_run(argv):  # the Snakefile may ask which command it is
        given = read_command(options)
        found = cluster.of_command(argv, site) if slurm else None
        given.executor = "slurm"  # under the local executor nothing is placed
        dag = read_dag(given)
        plan = plan_of(adapter.resource_functions(dag)) or Plan(cluster=found)
        units = Units(dag, plan)
        tasks = [Task(job) for job in units.take(dag.needrun_jobs())]
        local = [job for job, name in units.names.items() if not name and not job.is_group()]
        later = []
        if here := sum(bool(job.output) for job in local):
            later.append(
                f"not counted: {count(here, 'local job')}, run where snakemake itself runs"
            )
        later += [
            f"the jobs that checkpoint {name} will add are not counted"
            for name in adapter.open_checkpoints(dag)
        ]
    return plan, tasks, tuple(sorted(map(str, given.targets))), later


def plan_on(
    plan: Plan, tasks: Sequence[Task], targets: Sequence[str], notes: Sequence[str] = ()
) -> PlannedRun:
    """Return how jobs would go on the live cluster of a plan; ``notes`` are said too.

    Raises
    ------
    PlacementError
        What is free is not known, or a job would pend for ever.
    """
    found = plan.cluster
    assert found is not None
    queue = found.queue()
    capacity = live_capacity(found, queue)
    check_sizes(tasks, capacity, plan.estimates)
    kinds = {kind for task in tasks for kind in task.job.kinds}
    said = [_source(plan, kinds), *_of_accounts(found.survey, capacity, kinds), *notes]
    if not isinstance(queue, Unknown) and (active := stale_jobs(queue, str(Path.cwd()))):
        twice = "this plan counts their slots as taken, and places them once more"
        said.append(f"in the queue already: {count(len(active), 'job')} of this folder; {twice}")
    forecast = preview(tasks, plan.estimates, capacity) if tasks else None
    return PlannedRun(tuple(targets), len(tasks), forecast, None, tuple(said), members_of(tasks))


def plan_here(
    estimates: Estimates, tasks: Sequence[Task], targets: Sequence[str], notes: Sequence[str]
) -> PlannedRun:
    """Return how many jobs there are on a machine without Slurm."""
    here = _here(tasks, estimates) if tasks else None
    return PlannedRun(tuple(targets), len(tasks), None, here, tuple(notes), members_of(tasks))


def members_of(tasks: Sequence[Task]) -> int:
    """Return how many jobs of Snakemake some tasks are."""
    return sum(task.job.members for task in tasks)


def _of_accounts(survey: Survey, capacity: Capacity, kinds: Collection[Kind]) -> list[str]:
    """Return what is not known of the accounts, what is left of budgets, and what is closed.

    Nothing is said of device kinds that no job may use.
    """
    notes = [note.text for note in survey.notes]
    for account in survey.accounts:
        some = left_of(account, survey)
        rests = [str(one) for one in some if "gpu" in kinds or not one.name.startswith("gres/")]
        notes += [f"left of the budgets of {account.name}: {'; '.join(rests)}"] if rests else []
    closed = capacity.closed.items()
    return notes + [
        f"no {kind.upper()} job goes to {a}: {why}" for (a, kind), why in closed if kind in kinds
    ]


def live_capacity(found: cluster.Cluster, queue: list[SlurmJob] | Unknown) -> Capacity:
    """Return what is free now.

    Raises
    ------
    PlacementError
        That is not known.
    """
    survey = found.survey
    if isinstance(queue, Unknown):
        raise PlacementError(f"what waits in the queue is not known: {queue}")
    if unknown := survey.unknown():
        raise PlacementError(unknown.reason)
    return survey.capacity(queue, [], str(Path.cwd()))


def _source(plan: Plan, kinds: Collection[Kind]) -> str:
    """Return where durations come from."""
    known, slowdown = plan.estimates.durations.path, plan.estimates.durations.slowdown
    guess = "the size of the data" if plan.described else "half of the stated runtime"
    if "gpu" in kinds:
        guess += f", and a job on CPUs takes {slowdown:g} times as long as on a GPU"
    if known is not None and known.is_file():
        return f"durations: from jobs that ended here, where there are some; else {guess}"
    return f"durations are first guesses: {guess}; nothing has been learned here yet"


def _here(tasks: Sequence[Task], estimates: Estimates) -> Here:
    hours: dict[str, float] = {}
    for job in (task.job for task in tasks):
        cpus = estimates.shape(job.rule, job.wildcards, "cpu").cpus
        hours[job.rule] = hours.get(job.rule, 0.0) + job.nominal_s * cpus / 3600
    return Here(dict(Counter(task.job.rule for task in tasks)), hours)
