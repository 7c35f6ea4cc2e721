"""Everything that placement touches of Snakemake beyond its documented interfaces.

:func:`check` finds all of it when a run begins, so that a Snakemake that renamed something stops
with a sentence.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any

from .errors import PlacementError

#: What objects of Snakemake must have beyond the interfaces of its plugins.
NEEDED: Mapping[str, tuple[str, ...]] = {
    "workflow": ("is_main_process", "remote_exec", "resource_settings"),
    "scheduler": ("_errors", "_user_kill"),
    "job": ("restart_times", "rule"),
    "rule": ("resources",),
}
#: What Snakemake says of each round, and nothing of what it does.
_CHATTER = ("Select jobs to execute...", "Execute ")
#: What it says again with each job that ends.
_ONCE = "Will exit after finishing currently running jobs"


def check(what: str, thing: Any) -> None:
    """Refuse an object of Snakemake that lacks an attribute; ``what`` is a key of `NEEDED`.

    Raises
    ------
    PlacementError
        With the first attribute that is absent.
    """
    absent = [name for name in NEEDED[what] if not hasattr(thing, name)]
    if absent:
        import snakemake

        raise PlacementError(
            f"Snakemake {snakemake.__version__} has no {what}.{absent[0]}, which placement needs; "
            "install a version that this plugin asks for, or run with --executor slurm"
        )


def stopping(workflow: Any) -> str:
    """Return why Snakemake starts no more jobs; empty as long as it does.

    Uses ``scheduler._errors`` and ``_user_kill``: while either holds it starts none, and waits for
    those that it takes to run, of which some are not sent yet.
    """
    scheduler = workflow.scheduler
    if scheduler is None:
        return ""
    if scheduler._user_kill:
        return "the run was asked to stop"
    if scheduler._errors and not workflow.execution_settings.keep_going:
        return "a job failed (--keep-going goes on)"
    return ""


def max_jobs(workflow: Any) -> float:
    """Return how many jobs may run at once. Uses ``workflow.resource_settings``."""
    nodes = workflow.resource_settings.nodes
    return math.inf if nodes is None else float(nodes)


def forget_chatter(logger: logging.Logger) -> None:
    """Leave out what Snakemake says of each round."""
    seen = set[str]()

    def says_something(record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if text in seen or text.startswith(_CHATTER):
            return False
        seen.update([text] if text.startswith(_ONCE) else [])
        return True

    parent = logger.parent if logger.name.endswith(".tilewright") else logger
    if parent is not None:
        parent.addFilter(says_something)
