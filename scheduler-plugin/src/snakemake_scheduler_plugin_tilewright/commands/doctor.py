"""Everything that would make a run fail, one line each."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.table import Table

from ..begin import look_at_cluster
from ..orphaned import sender_of
from ..placement.cluster import Cluster, own_client
from ..placement.request import KINDS
from ..runtime.errors import PlacementError
from ..runtime.scratch import refused_folders
from ..runtime.snakemake_command import is_locked
from ..settings import settings_of
from . import check_slurm
from .checks import Check, count, ok, plain, problem, problem_from, version_of

_OWN = "snakemake-scheduler-plugin-tilewright"
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def examine(*, profile: Path | None, slurm: bool) -> list[Check]:
    """Return one line for everything that runs of any workflow depend on in this folder."""
    checks = list(check_all(Path.cwd()))
    if not slurm:
        return [*checks, ok("Slurm", "not on this machine: all jobs run here")]
    return [*checks, *on_slurm(profile)]


def check_all(folder: Path) -> Iterable[Check]:
    """Check what a run in a folder needs on any machine."""
    yield from check_plugins()
    yield from check_scratch()
    yield from check_lock(folder)


def check_plugins() -> Iterable[Check]:
    """Check that Snakemake finds the scheduler and the executor of the cluster profiles."""
    from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry
    from snakemake_interface_scheduler_plugins.registry import SchedulerPluginRegistry

    fix = f"install {_OWN} again in this environment"
    for about, name, package, registry in (
        ("scheduler", "tilewright", _OWN, SchedulerPluginRegistry),
        ("executor", "tilewright", _OWN, ExecutorPluginRegistry),
        (
            "job steps",
            "slurm-jobstep",
            "snakemake-executor-plugin-slurm-jobstep",
            ExecutorPluginRegistry,
        ),
    ):
        try:
            found = registry().is_installed(name)
        except Exception as error:  # noqa: BLE001 - a broken plugin of anybody may raise anything
            yield problem(about, f"Snakemake's plugins do not load: {error!r}", fix)
            continue
        if found:
            yield ok(
                about, f"plugin {name} {version_of(package)}, Snakemake {version_of('snakemake')}"
            )
        else:
            yield problem(about, f"Snakemake does not find the plugin {name}", fix)


def check_scratch() -> Iterable[Check]:
    """Check that caches and temporary files can be written."""
    refused = [problem_from("scratch", sentence, "") for sentence in refused_folders()]
    yield from refused or [ok("scratch", "caches and temporary files can be written")]


def check_lock(folder: Path) -> Iterable[Check]:
    """Check that no other run has locked a folder."""
    if not is_locked(folder):
        yield ok("lock", "no run has locked this folder")
        return
    sender = sender_of(folder)
    if sender.active:
        text, fix = "a run is active here and has locked this folder", "wait until it has ended"
    elif sender.active is None:
        text = "this folder is locked: a run is active here, or one was killed"
        fix = "wait for it, or, if none is active, run snakemake with --unlock"
    else:
        text, fix = "a run that was killed left this folder locked", "run snakemake with --unlock"
    yield problem("lock", text, fix)


def on_slurm(
    profile: Path | None,
    of_run: Callable[[Cluster | None], Iterable[Check]] = lambda found: (),
) -> Iterable[Check]:
    """Check a cluster, with the settings of a profile.

    Parameters
    ----------
    of_run : callable
        Checks what is to run on it; None where Slurm's commands are not found.
    """
    if absent := list(check_slurm.check_programs()):
        yield from (*absent, *of_run(None))
        return
    client = own_client()
    daemons = check_slurm.check_daemons(client)
    yield daemons
    if daemons.state == "problem":
        return  # the rest would say the same once more
    try:
        found = look_at_cluster(settings_of(profile), client)
    except PlacementError as error:
        fix = "correct the profile; where Slurm does not answer, wait"
        yield problem_from("accounts", error, fix)
        return
    yield from check_slurm.check_accounts(found)
    yield from (check_slurm.check_partition(found, kind) for kind in KINDS)
    yield check_slurm.check_orphaned(client, str(Path.cwd()))
    yield from of_run(found)


def show_checks(checks: Sequence[Check], *, json: bool) -> NoReturn:
    """Print checks, and end with status 1 if something would make a run fail."""
    problems = sum(check.state == "problem" for check in checks)
    if json:
        found = {"checks": [asdict(check) for check in checks], "problems": problems}
        typer.echo(dumps(found, indent=2))
    else:
        print_checks(checks, Console())
    raise SystemExit(min(problems, 1))


def print_checks(checks: Sequence[Check], console: Console) -> None:
    """Print a line for each check, what fixes it below, and how many problems there are."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for check in checks:
        text = plain(check.text)
        if check.fix:
            text.append("\n").append_text(plain(f"→ {check.fix}", "italic"))
        table.add_row(plain(check.state, _COLOURS[check.state]), plain(check.about), text)
    console.print(table)
    states = Counter(check.state for check in checks)
    warnings = count(states["warning"], "warning")
    failing = f"a run would fail: {count(states['problem'], 'problem')}, {warnings}"
    fine = f"nothing would make a run fail; {warnings}"
    console.print(failing if states["problem"] else fine, highlight=False)
