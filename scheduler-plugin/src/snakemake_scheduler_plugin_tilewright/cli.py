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

Profile = Annotated[
    Path | None, typer.Option(help="Profile of Snakemake with settings of the cluster.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def accounts(
    profile: Profile = None,
    user: Annotated[str | None, typer.Option(help="Whose accounts; yours by default.")] = None,
    gpu_job: Annotated[
        str | None, typer.Option(help="Size of the GPU jobs that are counted, as 8:180 (GB).")
    ] = None,
    cpu_job: Annotated[str | None, typer.Option(help="The same of CPU jobs, as 8:48.")] = None,
    json: Json = False,
) -> None:
    """Show your Slurm accounts: limits, use, and how many jobs fit."""
    from .commands.accounts import show_accounts

    show_accounts(profile, user, {"gpu": gpu_job, "cpu": cpu_job}, json=json)


@app.command()
def doctor(profile: Profile = None, json: Json = False) -> None:
    """Look for what would make any run fail here; status 1 if something would."""
    from .commands.doctor import examine, show_checks
    from .commands.slurm_here import has_slurm

    slurm = profile is not None or has_slurm()
    show_checks(examine(profile=profile, slurm=slurm), json=json)


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
