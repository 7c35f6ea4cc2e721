"""The DAG that Snakemake would run; nothing is run and nothing printed."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Sequence
from typing import Any

from snakemake_scheduler_plugin_tilewright.runtime import snakemake_command


class DagError(RuntimeError):
    """Snakemake cannot say what would run; the message is its own."""


def read_command(options: Sequence[str]) -> Any:
    """Return the options of a ``snakemake`` command, with those of its profiles.

    Raises
    ------
    DagError
        Snakemake's parser refuses them.
    """
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            return snakemake_command.parsed(options)
        except SystemExit as error:
            words = said.getvalue().strip().splitlines() or [str(error)]
    raise DagError(words[-1])


def read_dag(given: Any, targets_are: str = "") -> Any:
    """Return the DAG of a command that :func:`read_command` read.

    Parameters
    ----------
    targets_are : str
        What is said where a target is unknown.

    Raises
    ------
    DagError
        The workflow cannot be read, or a target is unknown.
    """
    from snakemake.api import SnakemakeApi
    from snakemake.exceptions import MissingRuleException, RuleException
    from snakemake.settings.enums import Quietness
    from snakemake.settings.types import OutputSettings
    from snakemake_interface_common.exceptions import ApiError, WorkflowError

    silent = OutputSettings(
        quiet={Quietness.ALL}, enable_file_logging=False, log_level_override=logging.CRITICAL + 1
    )
    try:
        with SnakemakeApi(silent) as api, contextlib.redirect_stdout(io.StringIO()):
            return snakemake_command.dag_of_command(api, given)
    except MissingRuleException as error:
        what = str(error).partition(" (")[0].lower()
        raise DagError(f"there is {what}{targets_are}") from None
    except (ApiError, RuleException, WorkflowError) as error:
        raise DagError(str(error)) from None
