"""``tilewright doctor``: everything that would make a run of an experiment fail."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.commands.check_environment import check_all
from snakemake_scheduler_plugin_tilewright.commands.check_slurm import check_fit
from snakemake_scheduler_plugin_tilewright.commands.checks import Check, count, ok, problem
from snakemake_scheduler_plugin_tilewright.commands.dag import DagError
from snakemake_scheduler_plugin_tilewright.commands.doctor import on_slurm
from snakemake_scheduler_plugin_tilewright.placement import cluster
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.jobs import Sizes, Task
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from tilewright.commands import check_machine
from tilewright.commands.check_experiment import DiskNeed, check_config, check_space, missing_bytes
from tilewright.commands.dag import find_snakefile, read_experiment, read_tasks
from tilewright.config.checks import data_sizes
from tilewright.config.experiment import ConfigError
from tilewright.config.layout import Layout
from tilewright.devices.health import HealthError
from tilewright.devices.lease_queue import LeaseRootError
from tilewright.devices.slurm_grant import DeviceChoiceError
from tilewright.runtime.machine import device_kinds, usable_gpus


def examine(
    configfile: Path | None, *, site: Path | None, snakefile: Path | None, slurm: bool
) -> list[Check]:
    """Return one line for everything that a run depends on.

    Parameters
    ----------
    configfile : Path or None
        None looks at no experiment.
    site, snakefile : Path or None
    slurm : bool
        Whether jobs go to Slurm.
    """
    checks = list(check_all(Path.cwd()))
    jobs: list[Task] = []
    sizes: Sizes | None = None
    disk: tuple[DiskNeed, Path] | None = None
    if configfile is None:
        unseen = "raw files, markers, disk space and whether its jobs fit; give --configfile"
        checks.append(ok("config", f"no experiment was looked at: {unseen}"))
    else:
        try:
            experiment = read_experiment(configfile)
            layout = Layout(experiment.settings.results)
            looked = list(check_config(experiment, layout))
            checks += looked
            if all(check.state != "problem" for check in looked):
                look = None if slurm else usable_gpus
                kinds = device_kinds(experiment.settings, look, {} if slurm else os.environ)
                sizes = data_sizes(experiment, layout, kinds)
                # before a cluster is in use: the Snakefile would look for stale jobs itself
                jobs = read_tasks(find_snakefile(snakefile), configfile, (), sizes)
                results = Path(experiment.settings.results)
                disk = missing_bytes(experiment, layout, jobs), results
                checks.append(ok("jobs", f"{count(len(jobs), 'job')} to do"))
        except (ConfigError, DagError) as error:
            checks.append(problem("config", str(error), f"fix {configfile}, or its tables"))
        except (DeviceChoiceError, HealthError, LeaseRootError) as error:
            checks.append(problem("device", str(error), "see tilewright devices"))
    if slurm:
        of_run = partial(_of_run, jobs, sizes, disk)
        return [*checks, *on_slurm(lambda: cluster.use(site), of_run)]
    checks += [ok("Slurm", "not on this machine: all jobs run here"), *check_machine.check_device()]
    if disk is not None:
        checks.append(check_space(disk[0], len(os.sched_getaffinity(0)), disk[1]))
    if sizes is not None and jobs:
        checks.append(check_machine.check_memory(jobs, Plan(sizes).estimates))
    return checks


def _of_run(
    jobs: Sequence[Task],
    sizes: Sizes | None,
    disk: tuple[DiskNeed, Path] | None,
    found: Cluster | None,
) -> Iterable[Check]:
    """Check what an experiment needs of a cluster."""
    if found is None:
        if disk is not None:
            yield check_space(disk[0], disk[0].open, disk[1])
        return
    pools = found.survey.pools[found.survey.sharing]
    yield from check_machine.check_cupy(pool.name for pool in pools if pool.kind == "gpu")
    if disk is not None:
        yield check_space(disk[0], sum(pool.slots for pool in pools), disk[1])
    if sizes is not None and jobs:
        yield check_fit(found, jobs, Plan(sizes, cluster=found).estimates)
