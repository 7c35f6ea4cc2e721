"""``tilewright plan``: what remains of an experiment, and where it would go now."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.commands.checks import count
from snakemake_scheduler_plugin_tilewright.commands.dag import DagError
from snakemake_scheduler_plugin_tilewright.commands.plan import PlannedRun, plan_here, plan_on
from snakemake_scheduler_plugin_tilewright.commands.plan_table import show
from snakemake_scheduler_plugin_tilewright.commands.slurm_here import slurm_wanted
from snakemake_scheduler_plugin_tilewright.placement import cluster
from snakemake_scheduler_plugin_tilewright.placement.cluster import SurveyError
from snakemake_scheduler_plugin_tilewright.placement.jobs import PlacementError
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from snakemake_scheduler_plugin_tilewright.placement.site import SiteError
from tilewright.commands.check_experiment import disk_text, missing_bytes
from tilewright.commands.dag import find_snakefile, read_experiment, read_tasks
from tilewright.config.checks import data_sizes
from tilewright.config.experiment import ConfigError, check_targets
from tilewright.config.layout import Layout
from tilewright.runtime.machine import device_kinds, usable_gpus


def show_plan(
    configfile: Path,
    targets: Sequence[str],
    *,
    site: Path | None,
    snakefile: Path | None,
    json: bool,
) -> None:
    """Look at what remains to be done and print where it would go."""
    try:
        slurm = slurm_wanted(site)
        found = plan_run(configfile, targets, site=site, snakefile=snakefile, slurm=slurm)
    except (ConfigError, DagError, PlacementError, SiteError, SurveyError) as error:
        raise SystemExit(f"tilewright plan: {error}") from None
    show(found, json=json)


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
        disk = disk_text(missing_bytes(experiment, layout, tasks), len(os.sched_getaffinity(0)))
        return plan_here(Plan(sizes).estimates, tasks, targets, (note, disk))
    found = cluster.use(site)
    slots = sum(pool.slots for pool in found.survey.pools[found.survey.sharing])
    disk = disk_text(missing_bytes(experiment, layout, tasks), slots)
    return plan_on(Plan(sizes, cluster=found), tasks, targets, (disk,))
