"""``tilewright plan``: what remains to be done, where it would go now, and when it would end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.commands.accounts import left_of
from tilewright.commands.check_experiment import disk_text, missing_bytes
from tilewright.commands.checks import count
from tilewright.commands.dag import find_snakefile, read_experiment, read_tasks
from tilewright.config.checks import data_sizes
from tilewright.config.experiment import check_targets
from tilewright.config.layout import Layout
from tilewright.placement import cluster
from tilewright.placement.capacity import Capacity, capacity_now
from tilewright.placement.jobs import PlacementError, Task
from tilewright.placement.preflight import check_sizes
from tilewright.placement.preview import Preview, preview
from tilewright.placement.routing import Plan
from tilewright.placement.sizing import Durations, Estimates
from tilewright.runtime.machine import device_kinds, usable_gpus
from tilewright.slurm.jobs import SlurmJob, stale_jobs
from tilewright.slurm.query import Unknown


@dataclass(frozen=True)
class Here:
    """The same without Slurm: jobs of each rule, and nominal CPU hours."""

    jobs: dict[str, int]
    cpu_hours: dict[str, float]


@dataclass(frozen=True)
class PlannedRun:
    """What ``tilewright plan`` found; as JSON times are in seconds, what is not known is null.

    Attributes
    ----------
    targets : tuple of str
        Empty is the default target.
    jobs : int
        That remain.
    forecast : Preview or None
        None without Slurm, and where nothing remains.
    here : Here or None
        Instead of it on a machine without Slurm.
    notes : tuple of str
        Where durations come from, and what is not known.
    """

    targets: tuple[str, ...]
    jobs: int
    forecast: Preview | None
    here: Here | None
    notes: tuple[str, ...]


def plan_run(
    configfile: Path,
    targets: Sequence[str],
    *,
    site: Path | None,
    snakefile: Path | None,
    slurm: bool,
) -> PlannedRun:
    """Return what remains of an experiment and how it would go on the live cluster.

    Parameters
    ----------
    configfile : Path
    targets : sequence of str
        None is the default target.
    site, snakefile : Path or None
    slurm : bool
        Whether jobs go to Slurm.

    Raises
    ------
    ConfigError, DagError
        The configuration or a target is wrong.
    SiteError, SurveyError, PlacementError
        The site file is wrong, Slurm does not answer, or a job would pend for ever.
    """
    experiment = read_experiment(configfile)
    check_targets(experiment, targets)
    look = None if slurm else usable_gpus
    kinds = device_kinds(experiment.settings, look, {} if slurm else os.environ)
    layout = Layout(experiment.settings.results)
    sizes = data_sizes(experiment, layout, kinds)
    tasks = read_tasks(find_snakefile(snakefile), configfile, targets, sizes)
    if not slurm:
        able = any("gpu" in kind for kind in kinds.values())
        beside = f" beside {count(len(usable_gpus().devices), 'GPU')}" if able else ""
        note = f"no Slurm here: jobs run on this machine, as many at once as its CPUs take{beside}"
        here = _here(tasks, Plan(sizes).estimates)
        disk = disk_text(missing_bytes(experiment, layout, tasks), len(os.sched_getaffinity(0)))
        return PlannedRun(tuple(targets), len(tasks), None, here if tasks else None, (note, disk))
    found = cluster.use(site)
    plan = Plan(sizes, cluster=found)
    queue = found.queue()
    capacity = live_capacity(found, queue)
    check_sizes(tasks, capacity, plan.estimates)
    notes = [_source(plan.estimates.durations), *_of_accounts(found.survey, capacity)]
    slots = sum(pool.slots for pool in found.survey.pools[found.survey.sharing])
    notes.append(disk_text(missing_bytes(experiment, layout, tasks), slots))
    if not isinstance(queue, Unknown) and (active := stale_jobs(queue, str(Path.cwd()))):
        notes.append(f"{len(active)} jobs of this folder are in the queue; they count twice here")
    forecast = preview(tasks, plan.estimates, capacity) if tasks else None
    return PlannedRun(tuple(targets), len(tasks), forecast, None, tuple(notes))


def _of_accounts(survey: cluster.Survey, capacity: Capacity) -> list[str]:
    """Return what is not known of the accounts, what is left of budgets, and what is closed."""
    notes = [note.text for note in survey.notes]
    for account in survey.accounts:
        rests = "; ".join(map(str, left_of(account, survey)))
        notes += [f"left of the budgets of {account.name}: {rests}"] if rests else []
    closed = capacity.closed.items()
    return notes + [f"nothing goes to {a} {kind}: {why}" for (a, kind), why in closed]


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
    capacity = capacity_now(
        survey.accounts,
        queue,
        [],
        mode=survey.sharing,
        utilisation=found.site.utilisation,
        partitions=survey.partitions,
        nodes=survey.nodes,
        licences=survey.licences,
    )
    if not capacity.accounts:
        raise PlacementError(
            "; ".join(map(str, survey.notes)) or "the use of your accounts is not known"
        )
    return capacity


def _source(durations: Durations) -> str:
    known, slowdown = durations.path, durations.slowdown
    guess = f"the size of the data, and CPU jobs {slowdown:g} x longer than GPU jobs"
    if known is not None and known.is_file():
        return f"durations: from jobs that ended here, where there are some; else {guess}"
    return f"durations are first guesses: {guess}; nothing has been learned here yet"


def _here(tasks: Sequence[Task], estimates: Estimates) -> Here:
    hours: dict[str, float] = {}
    for job in (task.job for task in tasks):
        cpus = estimates.shape(job.rule, job.wildcards, "cpu").cpus
        hours[job.rule] = hours.get(job.rule, 0.0) + job.nominal_s * cpus / 3600
    return Here(dict(Counter(task.job.rule for task in tasks)), hours)
