"""Jobs of Snakemake that still write into a folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import typer

from ..cluster.cluster import own_client
from ..errors import PlacementError
from ..placement.orphaned import end_orphaned, find_orphaned, sender_of
from ..runtime.snakemake_command import is_locked
from ..slurm.query import SlurmClient
from .slurm_here import slurm_wanted

_RESUME = """\
the folder is still locked; unless a run is active in it, run the same command twice:
  snakemake … --unlock
  snakemake … --rerun-incomplete"""


def show_orphaned(*, wait: bool, cancel: bool) -> None:
    """Do so for the current folder; end with status 1 if some are left."""
    if wait and cancel:
        raise SystemExit("orphaned: give --wait or --cancel, not both")
    if not slurm_wanted():
        typer.echo("no Slurm here, so no job of Snakemake is left in its queue")
        return
    choice: Literal["list", "wait", "cancel"] = "cancel" if cancel else "wait" if wait else "list"
    try:
        count = list_orphaned(own_client(), str(Path.cwd()), choice, typer.echo)
    except PlacementError as error:
        raise SystemExit(f"orphaned: {error}") from None
    raise SystemExit(min(count, 1))


def list_orphaned(
    client: SlurmClient,
    folder: str,
    choice: Literal["list", "wait", "cancel"],
    say: Callable[[str], None],
) -> int:
    """List, wait for or cancel the jobs that still write into a folder.

    Parameters
    ----------
    folder : str
        Where the run that sent them was started.
    say : callable
        Takes a line for the user.

    Returns
    -------
    int
        How many are left.

    Raises
    ------
    PlacementError
        The queue is not known, or they are to be cancelled and their run is active.
    """
    if choice != "list":
        end_orphaned(client, folder, choice, say)
    jobs = find_orphaned(client, folder)
    if not jobs:
        say(f"no job of Snakemake writes into {folder}")
        if is_locked(Path(folder)) and sender_of(Path(folder)).active is not True:
            say(_RESUME)
        return 0
    sender = sender_of(Path(folder))
    say(sender.listed(jobs, folder))
    say(sender.advice)
    return len(jobs)
