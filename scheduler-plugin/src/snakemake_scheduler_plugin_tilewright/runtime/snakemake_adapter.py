"""Everything that placement touches of Snakemake beyond its documented interfaces.

:func:`check` finds all of it when a run begins, so that a Snakemake that renamed something stops
with a sentence.
"""

import contextlib
import io
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import ApiError

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
    printed = set[str]()

    def says_something(record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if text in printed or text.startswith(_CHATTER):
            return False
        printed.update([text] if text.startswith(_ONCE) else [])
        return True

    parent = logger.parent if logger.name.endswith(".tilewright") else logger
    if parent is not None:
        parent.addFilter(says_something)


#: Options with which Snakemake runs nothing, as its parser names them.
LOOKING = (
    "dryrun", "touch", "summary", "detailed_summary", "dag", "rulegraph", "filegraph", "d3dag",
    "lint", "list_rules", "list_target_rules", "list_changes", "list_input_changes",
    "list_params_changes", "list_untracked", "list_conda_envs", "report", "archive",
    "containerize", "generate_unit_tests", "cleanup_metadata", "print_compilation", "export_cwl",
)  # fmt: skip


class SetUpError(ApiError):  # type: ignore[misc]
    """Why a workflow cannot run, in a sentence that Snakemake prints as it is.

    Without a traceback to read, Snakemake does not head it with the file and line of the Snakefile
    that checks everything (``snakemake.exceptions.get_exception_origin``).
    """

    __traceback__ = None


def command() -> list[str]:
    """Return the command that started this process, its name first."""
    return list(sys.argv)


def _options(argv: Sequence[str]) -> Any:
    """Return the options of a Snakemake command, None where Snakemake refuses them itself.

    Uses ``snakemake.cli.get_argument_parser``.
    """
    from snakemake.cli import get_argument_parser

    # where the command is another program's, Snakemake's parser would say so
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            return get_argument_parser().parse_known_args(list(argv))[0]
        except SystemExit:
            return None


def runs_nothing(argv: Sequence[str]) -> bool:
    """Return whether a Snakemake command runs no job and unlocks nothing.

    >>> runs_nothing(["registration", "-np"]), runs_nothing(["registration", "--unlock"])
    (True, False)
    """
    given = _options(argv)
    return any(getattr(given, name, None) not in (None, False, []) for name in LOOKING)


def targets(argv: Sequence[str]) -> list[str]:
    """Return the targets of a Snakemake command, none where it is another program's.

    >>> targets(["registration", "qc", "-n"])
    ['registration', 'qc']
    """
    return list(getattr(_options(argv), "targets", None) or ())


def is_locked(folder: Path) -> bool:
    """Return whether a run has locked a folder and still runs there, or was killed."""
    return any((folder / ".snakemake" / "locks").glob("*"))


def does_a_job(argv: Sequence[str]) -> bool:
    """Return whether a Snakemake command does one job of a run, by the mode that it is given.

    >>> does_a_job(["snakemake", "--mode", "remote"]), does_a_job(["snakemake", "qc"])
    (True, False)
    """
    return any(word == "--mode" or word.startswith("--mode=") for word in argv)
