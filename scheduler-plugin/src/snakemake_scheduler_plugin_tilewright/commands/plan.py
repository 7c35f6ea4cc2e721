"""What remains of a workflow, and where the jobs that are ready would go now."""

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from json import dumps
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from ..cluster import cluster
from ..cluster.request import Target
from ..errors import PlacementError, SlurmQueryError
from ..placement.dispatcher import Dispatcher
from ..placement.jobs import JobState, name_of
from ..placement.reach import check_feasible
from ..placement.workload import GpuSlots
from ..resources import Placement
from ..runtime import snakemake_adapter as adapter
from ..runtime import snakemake_command
from ..runtime.ledger import Ledger
from ..slurm.jobs import orphaned_jobs
from ..units import PlacedJobs
from ..words import count
from .checks import plain


@dataclass
class RuleJobs:
    """Jobs of one rule, a group as one: all that remain, those ready, and starts by pool."""

    remain: int
    ready: int
    start: Counter[str] = field(default_factory=Counter)


@dataclass
class Remaining:
    """What remains by rule, why ready jobs would wait with numbers, and what is not counted."""

    rules: dict[str, RuleJobs]
    waiting: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def show_plan(options: Sequence[str], *, site: Path | None, slurm: bool, json: bool) -> None:
    """Print what remains of the workflow of a ``snakemake`` command; see :func:`plan_workflow`."""
    try:
        found = plan_workflow(options, site=site, slurm=slurm)
    except PlacementError as error:
        raise SystemExit(f"plan: {error}") from None
    if json:
        rules = {name: vars(jobs) for name, jobs in found.rules.items()}
        typer.echo(dumps({**vars(found), "rules": rules}, indent=2))
    else:
        print_plan(found, Console())


def print_plan(found: Remaining, console: Console) -> None:
    """Print a line for each rule, and the notes."""
    table = Table("rule", pad_edge=False)
    for head in ("remain", "ready"):
        table.add_column(head, justify="right")
    table.add_column("start now", overflow="fold")
    every = found.rules.values()
    remain, ready = sum(jobs.remain for jobs in every), sum(jobs.ready for jobs in every)
    total = RuleJobs(remain, ready, sum((jobs.start for jobs in every), Counter()))
    for rule, jobs in (*found.rules.items(), ("all", total)):
        pools = ", ".join(f"{number} on {pool}" for pool, number in sorted(jobs.start.items()))
        table.add_row(plain(rule), str(jobs.remain), str(jobs.ready or ""), plain(pools))
    console.print(table if found.rules else "nothing remains to be done")
    waiting = [f"{count(number, 'ready job')} would wait: {why}"
               for why, number in found.waiting.items()]  # fmt: skip
    for line in [*waiting, *found.notes]:
        console.print(plain(line))


def plan_workflow(options: Sequence[str], *, site: Path | None, slurm: bool) -> Remaining:
    """Return what remains of the workflow of a ``snakemake`` command, and one round of placement.

    Parameters
    ----------
    site : Path or None
        The site file; without one that next to the profile.

    Raises
    ------
    PlacementError
        The workflow cannot be read, a target is unknown, the site file is wrong, Slurm does not
        answer, or a job can never start.
    """
    argv = ["snakemake", *options]
    with snakemake_command.dry_run(options, "slurm" if slurm else "local") as (dag, given):
        placement = adapter.placement_of(dag) or Placement()
        if slurm and (site is not None or placement.cluster is None):
            placement = replace(placement, cluster=cluster.of_command(argv, site))
        placed = PlacedJobs(dag, placement)
        tasks = [JobState(job) for job in placed.take(dag.needrun_jobs())]
    open_ = set(map(name_of, placed.names))
    ready = [task for task in tasks if open_.isdisjoint(task.job.needs)]
    remain, now = (Counter(task.job.rule for task in some) for some in (tasks, ready))
    found = Remaining({rule: RuleJobs(remain[rule], now[rule]) for rule in sorted(remain)})
    if placement.cluster is None:
        found.notes.append("no Slurm here: jobs run on this machine, as its CPUs and GPUs allow")
    else:
        _place(found, placement, tasks, ready, given.jobs or math.inf)
    local = [job for job, name in placed.names.items() if not name and not job.is_group()]
    if here := sum(bool(job.output) for job in local):
        found.notes.append(f"not counted: {count(here, 'local job')}, run where snakemake runs")
    found.notes += [f"the jobs that checkpoint {name} will add are not counted"
                    for name in adapter.open_checkpoints(dag)]  # fmt: skip
    return found


def _words_of(target: Target) -> str:
    """Return where jobs go, as ``lab GPU (QOS normal, partition a100)``."""
    qos = f"QOS {target.qos}" if target.qos else ""
    partition = f"partition {target.partition}" if target.partition else ""
    more = ", ".join(filter(None, (qos, partition)))
    return f"{target.account} {target.device.upper()}{f' ({more})' if more else ''}".strip()


def _place(
    found: Remaining,
    placement: Placement,
    tasks: Sequence[JobState],
    ready: Sequence[JobState],
    most: float,
) -> None:
    """Play one round, as a run would, and note its starts and why other ready jobs wait."""
    assert placement.cluster is not None
    folder, unwritten = str(Path.cwd()), Ledger(Path(os.devnull))
    dispatcher = Dispatcher(placement.cluster, placement.estimates, unwritten, folder)
    dispatcher.load(task.job for task in tasks)
    try:
        state = dispatcher.state()
    except SlurmQueryError as error:
        raise PlacementError(f"what is free is not known: {error}") from None
    check_feasible(tasks, state, placement.estimates)
    one = dispatcher.begin_round(state)
    by_name = {task.name: task for task in ready}
    one.place(ready, [task for task in tasks if task.name not in by_name], GpuSlots(), most)
    for name, assignment in one.assignments.items():
        found.rules[by_name[name].job.rule].start[_words_of(assignment.target)] += 1
    found.waiting.update(one.why.values())
    if active := orphaned_jobs(placement.cluster.queue(), folder):
        sent = f"{count(len(active), 'job')} of this folder in the queue"
        found.notes.append(f"counted twice, as in use and as remaining: {sent}")
