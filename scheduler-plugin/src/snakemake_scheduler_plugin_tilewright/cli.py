"""The command line: the list of commands. Each computes and shows in a module of ``commands``."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Where the jobs of a Snakemake workflow go on a Slurm cluster with several accounts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

SiteFile = Annotated[
    Path | None, typer.Option(help="Site file: blocked accounts, partitions, job sizes.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def accounts(
    site: SiteFile = None,
    user: Annotated[str | None, typer.Option(help="Whose accounts; yours by default.")] = None,
    json: Json = False,
) -> None:
    """Show your Slurm accounts: limits, use, and how many jobs fit."""
    from .commands.accounts import show_accounts

    show_accounts(site, user, json=json)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def plan(context: typer.Context, site: SiteFile = None, json: Json = False) -> None:
    """Show which jobs remain, and where those that are ready would go now.

    All other options and targets are those of your snakemake command.
    """
    from .commands.plan import show_plan
    from .commands.slurm_here import slurm_wanted

    show_plan(context.args, site=site, slurm=slurm_wanted(site), json=json)


@app.command()
def doctor(site: SiteFile = None, json: Json = False) -> None:
    """Look for what would make any run fail here; status 1 if something would."""
    from .commands.doctor import examine, show_checks
    from .commands.slurm_here import slurm_wanted

    show_checks(examine(site=site, slurm=slurm_wanted(site)), json=json)


@app.command()
def orphaned(
    wait: Annotated[bool, typer.Option("--wait", help="Wait until they have ended.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel them, unless their run is active.")
    ] = False,
) -> None:
    """List jobs of a killed run that still write into this folder; status 1 if there are some."""
    from .commands.orphaned import show_orphaned

    show_orphaned(wait=wait, cancel=cancel)


@app.command()
def status(
    results: Annotated[
        Path, typer.Argument(help="Folder of a workflow, or its results folder.")
    ] = Path(),
) -> None:
    """Show how far a run is, and what failed."""
    from .commands.status import show_status

    show_status(results)


@app.command()
def run_report(
    ledger: Annotated[Path, typer.Argument(help="ledger.jsonl of a run on a cluster.")] = Path(
        ".snakemake/tilewright/ledger.jsonl"
    ),
    output: Annotated[
        Path, typer.Option("--output", "-o", help="HTML file; its table is next to it as CSV.")
    ] = Path("run.html"),
) -> None:
    """Show where the jobs of any workflow ran, from the ledger of their placement."""
    from .report.page import write_run_report

    write_run_report(ledger, output)
    typer.echo(f"report: {output}")


if __name__ == "__main__":
    app()
