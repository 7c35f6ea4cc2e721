"""Jobs of Snakemake that still write into a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import typer

from snakemake_scheduler_plugin_tilewright.commands.slurm_here import slurm_wanted
from snakemake_scheduler_plugin_tilewright.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.placement.cluster import own_client
from snakemake_scheduler_plugin_tilewright.placement.stale import (
    deal_with_stale,
    look_for_stale,
    sender_of,
)
from snakemake_scheduler_plugin_tilewright.runtime.snakemake_command import is_locked
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient

_RESUME = """\
the folder is still locked; unless a run is active in it, run the same command twice:
  snakemake … --unlock
  snakemake … --rerun-incomplete"""


def show_stale(*, wait: bool, cancel: bool) -> None:
    """Do so for the current folder; end with status 1 if some are left."""
    if wait and cancel:
        raise SystemExit("stale: give --wait or --cancel, not both")
    if not slurm_wanted():
        typer.echo("no Slurm here, so no job of Snakemake is left in its queue")
        return
    choice: Literal["list", "wait", "cancel"] = "cancel" if cancel else "wait" if wait else "list"
    try:
        left = stale(own_client(), str(Path.cwd()), choice, typer.echo)
    except PlacementError as error:
        raise SystemExit(f"stale: {error}") from None
    raise SystemExit(min(left, 1))


def stale(
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
        deal_with_stale(client, folder, choice, say)
    left = look_for_stale(client, folder)
    if not left:
        say(f"no job of Snakemake writes into {folder}")
        if is_locked(Path(folder)) and sender_of(Path(folder)).active is not True:
            say(_RESUME)
        return 0
    sender = sender_of(Path(folder))
    say(sender.listed(left, folder))
    say(sender.advice)
    return len(left)
