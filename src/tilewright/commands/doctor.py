"""``tilewright doctor``: everything that would make a run fail, one line each."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Any

import platformdirs
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.commands import check_machine, check_slurm
from tilewright.commands.check_experiment import DiskNeed, check_config, check_space, missing_bytes
from tilewright.commands.checks import Check, count, ok, problem
from tilewright.commands.dag import DagError, find_snakefile, read_experiment, read_tasks
from tilewright.commands.slurm_here import slurm_wanted
from tilewright.config.checks import data_sizes
from tilewright.config.experiment import ConfigError
from tilewright.config.layout import Layout
from tilewright.devices.health import HealthError
from tilewright.devices.lease_queue import LeaseRootError
from tilewright.devices.slurm_grant import DeviceChoiceError
from tilewright.placement import cluster
from tilewright.placement.cluster import SurveyError
from tilewright.placement.jobs import Sizes, Task
from tilewright.placement.routing import Plan
from tilewright.placement.site import SiteError
from tilewright.runtime.machine import device_kinds, usable_gpus
from tilewright.slurm.query import SlurmClient

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def show_checks(
    configfile: Path | None, *, site: Path | None, snakefile: Path | None, json: bool
) -> None:
    """Look and print; end with status 1 if something would make a run fail."""
    checks = examine(configfile, site=site, snakefile=snakefile, slurm=slurm_wanted(site))
    if json:
        typer.echo(dumps(as_json(checks), indent=2))
    else:
        print_checks(checks, Console())
    raise SystemExit(int(any(check.state == "problem" for check in checks)))


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
    checks = [
        *check_machine.check_plugins(),
        *check_machine.check_scratch(),
        *check_machine.check_lock(Path.cwd()),
    ]
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
        return [*checks, *_on_slurm(site, jobs, sizes, disk)]
    checks += [ok("Slurm", "not on this machine: all jobs run here"), *check_machine.check_device()]
    if disk is not None:
        checks.append(check_space(disk[0], len(os.sched_getaffinity(0)), disk[1]))
    if sizes is not None and jobs:
        checks.append(check_machine.check_memory(jobs, Plan(sizes).estimates))
    return checks


def _on_slurm(
    site: Path | None,
    jobs: Sequence[Task],
    sizes: Sizes | None,
    disk: tuple[DiskNeed, Path] | None,
) -> Iterable[Check]:
    absent = list(check_slurm.check_programs())
    yield from absent
    if absent:
        if disk is not None:
            yield check_space(disk[0], disk[0].open, disk[1])
        return
    user = pwd.getpwuid(os.getuid()).pw_name
    yield from check_slurm.check_daemons(
        SlurmClient(user, platformdirs.user_cache_path("tilewright"))
    )
    try:
        found = cluster.use(site)
    except (SiteError, SurveyError) as error:
        yield problem("site", str(error), "fix the site file, or wait until Slurm answers")
        return
    yield from check_slurm.check_accounts(found)
    yield from check_slurm.check_partitions(found)
    pools = found.survey.pools[found.survey.sharing]
    yield from check_machine.check_cupy(pool.name for pool in pools if pool.kind == "gpu")
    yield from check_slurm.check_stale(found, str(Path.cwd()))
    if disk is not None:
        yield check_space(disk[0], sum(pool.slots for pool in pools), disk[1])
    if sizes is not None and jobs:
        yield check_slurm.check_fit(found, jobs, Plan(sizes, cluster=found).estimates)


def print_checks(checks: Sequence[Check], console: Console) -> None:
    """Print a line for each check, what fixes it below, and how many problems there are."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for check in checks:
        text = Text(check.text)
        if check.fix:
            text.append(f"\n→ {check.fix}", style="italic")
        table.add_row(Text(check.state, style=_COLOURS[check.state]), check.about, text)
    console.print(table)
    console.print(_sum(checks), highlight=False)


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return the checks as plain values."""
    return {"checks": [asdict(check) for check in checks], "problems": _count(checks, "problem")}


def _count(checks: Sequence[Check], state: str) -> int:
    return sum(check.state == state for check in checks)


def _sum(checks: Sequence[Check]) -> str:
    problems, warnings = _count(checks, "problem"), count(_count(checks, "warning"), "warning")
    if not problems:
        return f"nothing would make a run fail; {warnings}"
    return f"a run would fail: {count(problems, 'problem')}, {warnings}"
