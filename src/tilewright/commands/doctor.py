"""``tilewright doctor``: checks everything that would make a run fail."""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from snakemake_scheduler_plugin_tilewright import (
    Check,
    Cluster,
    check_all,
    make_pools,
    ok,
    on_slurm,
    problem,
)
from tilewright.commands import check_machine
from tilewright.commands.check_experiment import (
    check_config,
    check_space,
    missing_bytes,
    rules_of,
)
from tilewright.config.checks import data_sizes
from tilewright.config.config_file import read_config, with_places
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.load import parse_experiment
from tilewright.errors import ConfigError


def examine(configfile: Path | None, *, profile: Path | None, slurm: bool) -> list[Check]:
    """Return one check for everything that a run depends on.

    Parameters
    ----------
    configfile : Path or None
        None checks no experiment.
    slurm : bool
        Whether jobs go to Slurm.
    """
    checks = list(check_all(Path.cwd()))
    experiment = None
    if configfile is None:
        skipped = "raw files, markers and disk space; give --configfile"
        checks.append(ok("config", f"not checked: {skipped}"))
    else:
        try:
            experiment = parse_experiment(with_places(read_config(configfile), [configfile]))
            of_config = list(check_config(experiment))
            checks += of_config
            if any(check.state == "problem" for check in of_config):
                experiment = None
        except ConfigError as error:
            fix = f"fix {configfile}, or its tables"
            checks += [problem("config", str(message), fix) for message in error.args]
    if slurm:
        return [*checks, *on_slurm(profile, partial(_check_cluster, experiment))]
    checks += [ok("Slurm", "not on this machine: all jobs run here"), *check_machine.check_device()]
    if experiment is not None:
        layout = Layout(experiment.settings.results)
        need, cpus = missing_bytes(experiment, layout), len(os.sched_getaffinity(0))
        checks.append(check_space(need, cpus, Path(layout.results)))
        sizes = data_sizes(experiment, layout, {})
        checks.append(check_machine.check_memory(sizes, rules_of(experiment.settings)))
    return checks


def _check_cluster(experiment: Experiment | None, current: Cluster | None) -> Iterable[Check]:
    """Check CuPy and disk space for a run on a cluster."""
    pools = make_pools(current) if current else []
    yield from check_machine.check_cupy(
        pool.place.pool for pool in pools if pool.place.kind == "gpu"
    )
    if experiment is not None:
        layout = Layout(experiment.settings.results)
        need, slots = missing_bytes(experiment, layout), sum(pool.slots for pool in pools)
        yield check_space(need, slots if current else need.channels, Path(layout.results))
