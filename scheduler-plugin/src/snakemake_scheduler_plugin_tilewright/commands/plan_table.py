"""A planned run in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from snakemake_scheduler_plugin_tilewright.commands.checks import sizes_text
from snakemake_scheduler_plugin_tilewright.commands.dag import DagError
from snakemake_scheduler_plugin_tilewright.commands.plan import Here, PlannedRun, plan_workflow
from snakemake_scheduler_plugin_tilewright.commands.slurm_here import slurm_wanted
from snakemake_scheduler_plugin_tilewright.placement.jobs import PlacementError
from snakemake_scheduler_plugin_tilewright.placement.preview import Preview
from snakemake_scheduler_plugin_tilewright.placement.site import SiteError
from snakemake_scheduler_plugin_tilewright.placement.survey import SurveyError
from snakemake_scheduler_plugin_tilewright.runtime.run_state import span_text
from snakemake_scheduler_plugin_tilewright.runtime.words import count_jobs


def show_plan(options: Sequence[str], *, site: Path | None, json: bool) -> None:
    """Look at what remains of any workflow and print where it would go.

    Parameters
    ----------
    options : sequence of str
        Those of the ``snakemake`` command that would run it.
    """
    try:
        found = plan_workflow(options, site=site, slurm=slurm_wanted(site))
    except (DagError, PlacementError, SiteError, SurveyError) as error:
        raise SystemExit(f"plan: {error}") from None
    show(found, json=json)


def show(found: PlannedRun, *, json: bool) -> None:
    """Print a planned run as a table or as JSON."""
    if json:
        typer.echo(dumps(asdict(found), indent=2))
    else:
        print_plan(found, Console())


def print_plan(found: PlannedRun, console: Console) -> None:
    """Print jobs by rule and pool, when all would be done, and the notes."""
    targets = ", ".join(found.targets) or "all targets"
    if not found.jobs:
        console.print(f"nothing remains to be done for {targets}", highlight=False)
    else:
        jobs = count_jobs(found.jobs, found.jobs if found.members is None else found.members)
        console.print(f"{jobs} to do for {targets}", highlight=False)
    if found.here:
        _print_here(found.here, console)
    if found.forecast:
        _print_forecast(found.forecast, console)
    for note in found.notes:
        console.print(note, highlight=False, markup=False)


def _print_forecast(forecast: Preview, console: Console) -> None:
    gpus = "gpu" in forecast.slots_for
    rules = [
        (rule.rule, *(str(n or "") for n in (rule.jobs, *[rule.gpu] * gpus, rule.cpu)),
         span_text(rule.busy_s), ", ".join(f"{a} {n}" for a, n in rule.accounts.items()))
        for rule in forecast.rules
    ]  # fmt: skip
    heads = ["rule", "jobs", *["GPU"] * gpus, "CPU", "run time", "accounts"]
    console.print(_table(heads, rules))
    pools = [
        (pool.name, f"{pool.free} of {pool.slots}", str(pool.jobs), span_text(pool.busy_s))
        for pool in forecast.pools
    ]
    if pools:
        console.print(_table(["pool", "free slots", "jobs", "busy"], pools))
        sizes = sizes_text(forecast.slots_for, ", the largest that remain")
        console.print(sizes, highlight=False)
    for use in forecast.use:
        where = f"on {use.account}" if use.account else "by jobs that take no slot"
        hours = f" and {use.gpu_hours:.3g} GPU-hours" if use.gpu_hours else ""
        console.print(f"uses about {use.cpu_hours:.3g} CPU-hours{hours} {where}", highlight=False)
    for line in _end(forecast):
        console.print(line, highlight=False, markup=False)


def _end(forecast: Preview) -> list[str]:
    """Return when all would be done."""
    if forecast.finish_s is None or forecast.bound_s is None:
        lines = ["when it would end is not known: no slot is free now for the largest job"]
    else:
        alone = span_text(forecast.gpu_only_s) if forecast.gpu_only_s else "none free"
        gpus = f"GPUs only: {alone}, " if "gpu" in forecast.slots_for else ""
        lines = [
            f"finish in about {span_text(forecast.finish_s)} "
            f"({gpus}lower bound {span_text(forecast.bound_s)})"
        ]
    if forecast.all_free_s is not None:
        lines.append(f"with all slots of your accounts free: {span_text(forecast.all_free_s)}")
    return lines


def _print_here(here: Here, console: Console) -> None:
    rows = [(rule, str(jobs), f"{here.cpu_hours[rule]:.1f}") for rule, jobs in here.jobs.items()]
    rows.append(("all", str(sum(here.jobs.values())), f"{sum(here.cpu_hours.values()):.1f}"))
    console.print(_table(["rule", "jobs", "CPU hours"], rows))


def _table(head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(pad_edge=False)
    for k, name in enumerate(head):
        right, words = k > 0 and name != "accounts", name in ("rule", "accounts")
        table.add_column(
            name, justify="right" if right else "left", no_wrap=not words, overflow="fold"
        )
    for row in rows:
        table.add_row(*row)
    return table
