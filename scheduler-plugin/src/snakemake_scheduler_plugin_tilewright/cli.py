"""The command line: the list of commands. Each computes and shows elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Where the jobs of a Snakemake workflow go on a Slurm cluster with several accounts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def accounts(
    profile: Annotated[
        Path | None, typer.Option(help="Profile of Snakemake with settings of the cluster.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show your Slurm accounts: limits, use, and how many jobs fit."""
    from .accounts_table import show_accounts

    show_accounts(profile, json=json)


@app.command()
def orphaned(
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel them, unless their run is active.")
    ] = False,
) -> None:
    """List jobs of a killed run that still write into this folder; status 1 if some are left."""
    from .orphaned import show_orphaned

    show_orphaned(cancel=cancel)


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
