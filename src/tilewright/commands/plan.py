"""``tilewright plan``: what remains of an experiment, and where it would go now."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.commands.checks import count
from snakemake_scheduler_plugin_tilewright.commands.dag import DagError
from snakemake_scheduler_plugin_tilewright.commands.plan import plan_here, plan_on
from snakemake_scheduler_plugin_tilewright.commands.plan_table import show
from snakemake_scheduler_plugin_tilewright.commands.slurm_here import slurm_wanted
from snakemake_scheduler_plugin_tilewright.placement import cluster
from snakemake_scheduler_plugin_tilewright.placement.jobs import PlacementError
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from snakemake_scheduler_plugin_tilewright.placement.site import SiteError
from snakemake_scheduler_plugin_tilewright.placement.survey import SurveyError
from tilewright.commands.check_experiment import disk_text, remaining
from tilewright.config.checks import checked_experiment
from tilewright.config.experiment import read_config
from tilewright.errors import ConfigError
from tilewright.runtime.machine import usable_gpus


def show_plan(
    configfile: Path,
    targets: Sequence[str],
    *,
    site: Path | None,
    snakefile: Path | None,
    json: bool,
) -> None:
    """Look at what remains of an experiment and print how it would go, on the live cluster or here.

    Parameters
    ----------
    targets : sequence of str
        None is the default target.
    json : bool
        Whether JSON is printed.
    """
    try:
        slurm = slurm_wanted(site)
        experiment = checked_experiment(read_config(configfile), targets)
        tasks, sizes, need, _ = remaining(experiment, configfile, targets, snakefile, slurm=slurm)
        if slurm:
            found = cluster.use(site)
            slots = sum(pool.slots for pool in found.survey.pools)
            disk = disk_text(need, slots)
            planned = plan_on(Plan(sizes, cluster=found), tasks, targets, (disk,))
        else:
            able = any("gpu" in kind for kind in sizes.kinds_of.values())
            beside = f" beside {count(len(usable_gpus().devices), 'GPU')}" if able else ""
            here = "jobs run on this machine, as many at once as its CPUs take"
            note = f"no Slurm here: {here}{beside}"
            disk = disk_text(need, len(os.sched_getaffinity(0)))
            planned = plan_here(Plan(sizes).estimates, tasks, targets, (note, disk))
    except (ConfigError, DagError, PlacementError, SiteError, SurveyError) as error:
        raise SystemExit(f"tilewright plan: {error}") from None
    show(planned, json=json)
