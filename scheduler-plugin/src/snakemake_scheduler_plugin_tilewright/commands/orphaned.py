"""Jobs of Snakemake that still write into a folder."""

from pathlib import Path

import typer

from ..orphaned import end_orphaned, find_orphaned, sender_of
from ..placement.cluster import own_client
from ..runtime.errors import PlacementError
from ..runtime.snakemake_command import is_locked
from ..runtime.words import printable
from .slurm_here import has_slurm

_RESUME = """\
the folder is still locked; unless a run is active in it, run the same command twice:
  snakemake … --unlock
  snakemake … --rerun-incomplete"""


def show_orphaned(*, wait: bool, cancel: bool) -> None:
    """List, wait for or cancel those of the current folder; end with status 1 if some are left."""
    if wait and cancel:
        raise SystemExit("orphaned: give --wait or --cancel, not both")
    if not has_slurm():
        typer.echo("no Slurm here, so no job of Snakemake is left in its queue")
        return
    client, folder = own_client(), Path.cwd()
    try:
        if wait or cancel:
            end_orphaned(client, str(folder), "cancel" if cancel else "wait", typer.echo)
        jobs = find_orphaned(client, str(folder))
    except PlacementError as error:
        raise SystemExit(f"orphaned: {error}") from None
    sender = sender_of(folder)
    if jobs:
        typer.echo(f"{sender.listed(jobs, str(folder))}\n{sender.advice}")
        raise SystemExit(1)
    typer.echo(f"no job of Snakemake writes into {printable(folder)}")
    if is_locked(folder) and not sender.active:
        typer.echo(_RESUME)
