"""``tilewright plan``: what remains to be done, where it would go now, and when it would end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.commands.checks import count
from tilewright.commands.dag import find_snakefile, read_experiment, read_tasks
from tilewright.config.checks import data_sizes
from tilewright.config.layout import Layout
from tilewright.placement import cluster
from tilewright.placement.capacity import Room, room_now
from tilewright.placement.errors import PlacementError
from tilewright.placement.jobs import Task
from tilewright.placement.outlook import Outlook, look_ahead
from tilewright.placement.preflight import check_sizes
from tilewright.placement.resources import Plan
from tilewright.runtime.machine import device_kinds, usable_gpus
from tilewright.slurm.jobs import SlurmJob, stale_jobs
from tilewright.slurm.query import Unknown


@dataclass(frozen=True)
class Here:
    """The same without Slurm: jobs of each rule, and nominal CPU hours."""

    jobs: dict[str, int]
    cpu_hours: dict[str, float]


@dataclass(frozen=True)
class Preview:
    """What ``tilewright plan`` found.

    Attributes
    ----------
    targets : tuple of str
        Empty is the default target.
    jobs : int
        That remain.
    outlook : Outlook or None
        None without Slurm, and where nothing remains.
    here : Here or None
        Instead of it on a machine without Slurm.
    notes : tuple of str
        Where durations come from, and what is not known.
    """

    targets: tuple[str, ...]
    jobs: int
    outlook: Outlook | None
    here: Here | None
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values; times in seconds, what is not known is null."""
        return asdict(self)


def preview(
    configfile: Path,
    targets: Sequence[str],
    *,
    site: Path | None,
    snakefile: Path | None,
    slurm: bool,
) -> Preview:
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
    look = None if slurm else usable_gpus
    kinds = device_kinds(experiment.settings, look, {} if slurm else os.environ)
    sizes = data_sizes(experiment, Layout(experiment.settings.results), kinds)
    tasks = read_tasks(find_snakefile(snakefile), configfile, targets, sizes)
    if not slurm:
        able = any("gpu" in kind for kind in kinds.values())
        beside = f" beside {count(len(usable_gpus().devices), 'GPU')}" if able else ""
        note = f"no Slurm here: jobs run on this machine, as many at once as its CPUs take{beside}"
        here = _here(tasks, Plan(sizes))
        return Preview(tuple(targets), len(tasks), None, here if tasks else None, (note,))
    found = cluster.use(site)
    plan = Plan(sizes, cluster=found)
    queue = found.queue()
    room = live_room(found, queue)
    check_sizes(tasks, room, plan)
    notes = [_source(plan), *found.survey.notes]
    notes += [f"nothing goes to {a} {kind}: {why}" for (a, kind), why in room.closed.items()]
    if not isinstance(queue, Unknown) and (active := stale_jobs(queue, str(Path.cwd()))):
        notes.append(f"{len(active)} jobs of this folder are in the queue; they count twice here")
    outlook = look_ahead(tasks, plan, room) if tasks else None
    return Preview(tuple(targets), len(tasks), outlook, None, tuple(notes))


def live_room(found: cluster.Cluster, queue: list[SlurmJob] | Unknown) -> Room:
    """Return what is free now.

    Raises
    ------
    PlacementError
        That is not known.
    """
    survey = found.survey
    if isinstance(queue, Unknown):
        raise PlacementError(f"what waits in the queue is not known: {queue}")
    room = room_now(
        survey.accounts,
        queue,
        [],
        mode=survey.sharing,
        utilisation=found.site.utilisation,
        partitions=survey.partitions,
    )
    if not room.accounts:
        raise PlacementError("; ".join(survey.notes) or "the use of your accounts is not known")
    return room


def _source(plan: Plan) -> str:
    known, slowdown = plan.durations.path, plan.durations.slowdown
    guess = f"the size of the data, and CPU jobs {slowdown:g} x longer than GPU jobs"
    if known is not None and known.is_file():
        return f"durations: from jobs that ended here, where there are some; else {guess}"
    return f"durations are first guesses: {guess}; nothing has been learned here yet"


def _here(tasks: Sequence[Task], plan: Plan) -> Here:
    hours: Counter[str] = Counter()
    for task in tasks:
        cpus = plan.shape(task.rule, task.wildcards, "cpu").cpus
        hours[task.rule] += task.nominal_s * cpus / 3600  # type: ignore[assignment]
    return Here(dict(Counter(task.rule for task in tasks)), dict(hours))
