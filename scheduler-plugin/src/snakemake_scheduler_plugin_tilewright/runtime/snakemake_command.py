"""A ``snakemake`` command: what it asks for, and the DAG that it would run.

Beside `snakemake_adapter` the only module that touches what Snakemake does not document.
"""

import contextlib
import io
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from snakemake_interface_common.exceptions import ApiError

from ..errors import PlacementError
from ..strict_yaml import VALUE_ERRORS

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


@contextlib.contextmanager
def dry_run(options: Sequence[str], executor: str) -> Iterator[tuple[Any, Any]]:
    """Read the workflow of a Snakemake command, whose Snakefile sees a dry run with an executor.

    Yields its DAG and all its options, with those of its profiles. Nothing is run, nothing printed
    and no lock taken.

    Raises
    ------
    PlacementError
        Snakemake refuses an option, the workflow cannot be read, or a target is unknown.
    """
    from snakemake.api import SnakemakeApi
    from snakemake.exceptions import RuleException
    from snakemake.settings.enums import Quietness
    from snakemake.settings.types import OutputSettings
    from snakemake_interface_common.exceptions import WorkflowError

    silent = OutputSettings(
        quiet={Quietness.ALL}, enable_file_logging=False, log_level_override=logging.CRITICAL + 1
    )
    own, sys.argv = sys.argv, ["snakemake", *options, "--executor", executor, "--dry-run"]
    try:
        given = _parsed(options)
        with SnakemakeApi(silent) as api, contextlib.redirect_stdout(io.StringIO()):
            dag = _dag_of(api, given)
        yield dag, given
    except (ApiError, OSError, RuleException, WorkflowError) as error:
        raise PlacementError(str(error).partition(" (if you use input functions")[0]) from None
    finally:
        sys.argv = own


def _parsed(options: Sequence[str]) -> Any:
    """Return the options of a Snakemake command with those of its profiles.

    Uses ``snakemake.cli.parse_args``, which ends the process with what is wrong.
    """
    from snakemake.cli import parse_args

    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        try:
            return parse_args(list(options))[1]
        except SystemExit as error:
            words = stderr.getvalue().strip().splitlines() or [str(error)]
    raise PlacementError(words[-1])


def _dag_of(api: Any, given: Any) -> Any:
    """Return the DAG of a command's options, as ``snakemake.cli.args_to_api`` would build it.

    Uses ``WorkflowApi._workflow``, ``workflow._executor_plugin``, without which all jobs are local,
    ``workflow.execution_settings``, ``workflow.group_settings`` and ``dag.postprocess``.
    """
    from snakemake.cli import parse_config
    from snakemake.settings import types
    from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

    workflow = api.workflow(
        types.ResourceSettings(
            cores=given.cores, nodes=given.jobs or 1, max_threads=given.max_threads,
            resources=given.resources,
            overwrite_threads=given.set_threads, overwrite_scatter=given.set_scatter,
            overwrite_resources=given.set_resources, default_resources=given.default_resources,
        ),
        types.ConfigSettings(
            config=parse_config(given.config), configfiles=given.configfile,
            config_args=given.config,
        ),
        snakefile=given.snakefile,
        workdir=given.directory,
    )  # fmt: skip
    internal = workflow._workflow
    internal._executor_plugin = ExecutorPluginRegistry().get_plugin("slurm")
    internal.execution_settings = types.ExecutionSettings()
    internal.group_settings = types.GroupSettings(
        group_components=given.group_components, overwrite_groups=given.groups
    )
    dag = workflow.dag(
        types.DAGSettings(
            targets=frozenset(given.targets), batch=given.batch, forcetargets=given.force,
            forceall=given.forceall, forcerun=given.forcerun, until=given.until,
            omit_from=given.omit_from, force_incomplete=given.rerun_incomplete,
            rerun_triggers=given.rerun_triggers,
        )
    )  # fmt: skip
    dag.printrulegraph()  # the shortest of the calls that build it
    # what is not to run leaves it, and groups are made
    internal.async_run(internal.dag.postprocess(update_needrun=False, check_initial=True))
    return internal.dag


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


def other_scheduler(argv: Sequence[str]) -> bool:
    """Return whether a Snakemake command names a scheduler other than ours.

    >>> other_scheduler(["snakemake", "--scheduler", "greedy"]), other_scheduler(["snakemake"])
    (True, False)
    """
    named = [argv[i + 1] for i, word in enumerate(argv[:-1]) if word == "--scheduler"]
    named += [word.partition("=")[2] for word in argv if word.startswith("--scheduler=")]
    return any(name != "tilewright" for name in named)


def profile_file(name: str, argv: Sequence[str]) -> Path | None:
    """Return a file next to a profile that a Snakemake command names, else of this folder, if any.

    A profile cannot tell where it lies, and a copy of one must not read the file of the other.
    """
    found = (*(file.with_name(name) for file in _profiles(argv)), Path(name))
    return next((path for path in found if path.is_file()), None)


def executor_of(argv: Sequence[str]) -> str:
    """Return the executor that a Snakemake command or its profile names; empty for none."""
    given = _options(argv[1:])
    if given is not None and given.executor:
        return str(given.executor)
    for file in _profiles(argv):  # as they stand: to evaluate one would count slots again
        with contextlib.suppress(OSError, RecursionError, yaml.YAMLError, *VALUE_ERRORS):
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
            if isinstance(content, dict) and content.get("executor"):
                return str(content["executor"])
    return ""


def _profiles(argv: Sequence[str]) -> list[Path]:
    """Return the files of the profiles of a Snakemake command, that of the workflow first.

    Uses ``get_profile_dir`` and ``resolve_snakefile`` of ``snakemake.cli``.
    """
    from snakemake.cli import get_profile_dir, resolve_snakefile

    given = _options(argv[1:])
    if given is None:
        return []
    own: list[str | Path] = []
    if given.workflow_profile != "none":
        name = Path("profiles", given.workflow_profile or "default")
        snakefile = resolve_snakefile(given.snakefile, allow_missing=True)
        own_folder = [Path(snakefile).parent / name] if snakefile else []
        own = [*filter(None, [given.workflow_profile]), name, *own_folder]
    found = [get_profile_dir(str(profile)) for profile in own]
    workflow_profile = next(filter(None, found), None)
    others = [get_profile_dir(str(profile)) for profile in given.profile or ()]
    return [Path(one[1]) for one in (workflow_profile, *others) if one is not None]
