"""``tilewright doctor``: everything that would make a run of an experiment fail."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.commands.check_environment import check_all
from snakemake_scheduler_plugin_tilewright.commands.check_slurm import check_fit
from snakemake_scheduler_plugin_tilewright.commands.checks import Check, count, ok, problem
from snakemake_scheduler_plugin_tilewright.commands.dag import DagError
from snakemake_scheduler_plugin_tilewright.commands.doctor import on_slurm
from snakemake_scheduler_plugin_tilewright.placement import cluster
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from tilewright.commands import check_machine
from tilewright.commands.check_experiment import Work, check_config, check_space, remaining
from tilewright.config.experiment import parse_experiment, read_config
from tilewright.errors import ConfigError, DeviceError


def examine(
    configfile: Path | None, *, site: Path | None, snakefile: Path | None, slurm: bool
) -> list[Check]:
    """Return one line for everything that a run depends on.

    Parameters
    ----------
    configfile : Path or None
        None looks at no experiment.
    slurm : bool
        Whether jobs go to Slurm.
    """
    checks = list(check_all(Path.cwd()))
    work = None
    if configfile is None:
        unseen = "raw files, markers, disk space and whether its jobs fit; give --configfile"
        checks.append(ok("config", f"no experiment was looked at: {unseen}"))
    else:
        try:
            experiment = parse_experiment(read_config(configfile))
            looked = list(check_config(experiment))
            checks += looked
            if all(check.state != "problem" for check in looked):
                work = remaining(experiment, configfile, (), snakefile, slurm=slurm)
                checks.append(ok("jobs", f"{count(len(work.jobs), 'job')} to do"))
        except (ConfigError, DagError) as error:
            fix = f"fix {configfile}, or its tables"
            checks += [problem("config", str(sentence), fix) for sentence in error.args]
        except DeviceError as error:
            checks.append(problem("device", str(error), "see tilewright devices"))
    if slurm:
        return [*checks, *on_slurm(lambda: cluster.use(site), partial(_of_run, work))]
    checks += [ok("Slurm", "not on this machine: all jobs run here"), *check_machine.check_device()]
    if work is not None:
        checks.append(check_space(work.disk, len(os.sched_getaffinity(0)), work.results))
        if work.jobs:
            checks.append(check_machine.check_memory(work.jobs, Plan(work.sizes).estimates))
    return checks


def _of_run(work: Work | None, found: Cluster | None) -> Iterable[Check]:
    """Check what an experiment needs of a cluster."""
    pools = found.survey.pools if found else ()
    yield from check_machine.check_cupy(pool.name for pool in pools if pool.kind == "gpu")
    if work is not None:
        slots = sum(pool.slots for pool in pools) if found else work.disk.open
        yield check_space(work.disk, slots, work.results)
        if found and work.jobs:
            yield check_fit(found, work.jobs, Plan(work.sizes, cluster=found).estimates)
