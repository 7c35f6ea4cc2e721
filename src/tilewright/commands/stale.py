"""``tilewright stale``: jobs of an earlier, killed run that still write into a folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tilewright.commands.checks import count
from tilewright.placement.preflight import deal_with_stale, look_for_stale
from tilewright.slurm.query import SlurmClient


def stale(
    client: SlurmClient,
    folder: str,
    choice: Literal["list", "wait", "cancel"],
    say: Callable[[str], None],
) -> int:
    """List, wait for or cancel the jobs that still write into a folder.

    Parameters
    ----------
    client : SlurmClient
    folder : str
        Where the killed run was started.
    choice : {"list", "wait", "cancel"}
    say : callable
        Takes a line for the user.

    Returns
    -------
    int
        How many are left.

    Raises
    ------
    PlacementError
        The queue is not known.
    """
    if choice != "list":
        deal_with_stale(client, folder, choice, say)
    left = look_for_stale(client, folder)
    if not left:
        say(f"no job of an earlier run writes into {folder}")
        return 0
    say(f"{count(len(left), 'job')} of an earlier run may still write into {folder}:")
    for job in left:
        say(f"  {job.id}  {job.state:<10} {job.comment}")
    say("wait for them with --wait, or end them with --cancel")
    return len(left)
