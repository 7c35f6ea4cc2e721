"""A ``snakemake`` command: what it asks for, and the DAG that it would run.

Beside `snakemake_adapter` the only module that touches what Snakemake does not document.
"""

import contextlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import ApiError

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
