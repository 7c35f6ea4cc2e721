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
from rich.text import Text

from ..cluster import cluster
from ..cluster.cluster import Cluster
from ..cluster.request import KINDS
from ..errors import PlacementError
from . import check_environment, check_slurm
from .checks import Check, count, ok, problem

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def examine(*, site: Path | None, slurm: bool) -> list[Check]:
    """Return one line for everything that runs of any workflow depend on in this folder.

    Parameters
    ----------
    site : Path or None
        The site file; without one ``site.yaml`` of this folder.
    slurm : bool
        Whether jobs go to Slurm.
    """
    checks = list(check_environment.check_all(Path.cwd()))
    if not slurm:
        return [*checks, ok("Slurm", "not on this machine: all jobs run here")]
    return [*checks, *on_slurm(lambda: cluster.of_command(["snakemake"], site))]


def on_slurm(
    find: Callable[[], Cluster],
    of_run: Callable[[Cluster | None], Iterable[Check]] = lambda found: (),
) -> Iterable[Check]:
    """Check a cluster.

    Parameters
    ----------
    find : callable
        Looks at it.
    of_run : callable
        Checks what is to run on it; None where Slurm's commands are not found.
    """
    if absent := list(check_slurm.check_programs()):
        yield from (*absent, *of_run(None))
        return
    client = cluster.own_client()
    client.forget(limits=True)  # not what other runs were answered
    daemons = list(check_slurm.check_daemons(client))
    yield from daemons
    if daemons[0].state == "problem":
        return  # the rest would say the same once more
    try:
        found = find()
    except PlacementError as error:
        fix = "correct --site or the site file; where Slurm does not answer, wait"
        yield problem("site", str(error), fix)
        return
    yield from check_slurm.check_accounts(found)
    yield from (check_slurm.check_partition(found, kind) for kind in KINDS)
    yield from check_slurm.check_orphaned(found, str(Path.cwd()))
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
        text = Text(check.text)
        if check.fix:
            text.append(f"\n→ {check.fix}", style="italic")
        table.add_row(Text(check.state, style=_COLOURS[check.state]), check.about, text)
    console.print(table)
    states = Counter(check.state for check in checks)
    warnings = count(states["warning"], "warning")
    failing = f"a run would fail: {count(states['problem'], 'problem')}, {warnings}"
    fine = f"nothing would make a run fail; {warnings}"
    console.print(failing if states["problem"] else fine, highlight=False)
