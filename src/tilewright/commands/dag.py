"""The jobs that Snakemake would run, as placement's tasks; nothing is run and nothing printed."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tilewright
from tilewright.config.experiment import Experiment, load_experiment, read_config
from tilewright.placement.jobs import Sizes, Task, job_of
from tilewright.runtime.snakemake_adapter import dag_of


class DagError(RuntimeError):
    """Snakemake cannot say what would run; the message is its own."""


def read_experiment(configfile: Path) -> Experiment:
    """Return the experiment of a config file.

    Raises
    ------
    ConfigError
        The file is absent, is not YAML, or its content is wrong.
    """
    return load_experiment(read_config(configfile))


def find_snakefile(given: Path | None) -> Path:
    """Return the Snakefile: the one given, that of the current folder, or the checkout's.

    Raises
    ------
    DagError
        There is none.
    """
    checkout = Path(tilewright.__file__).parents[2] / "workflow" / "Snakefile"
    tried = [given] if given else [Path("workflow/Snakefile"), checkout]
    for path in tried:
        if path.is_file():
            return path
    raise DagError(
        f"there is no {' and no '.join(map(str, tried))}; start in the folder of the repository, "
        "or name its Snakefile with --snakefile"
    )


def read_tasks(
    snakefile: Path, configfile: Path, targets: Sequence[str], sizes: Sizes
) -> list[Task]:
    """Return the jobs that are not done yet; target rules, which run nothing, are left out.

    To be called before a cluster is in use in this process: else the Snakefile looks for stale
    jobs, as before a run.

    Parameters
    ----------
    snakefile, configfile : Path
    targets : sequence of str
        None is the default target.
    sizes : Sizes

    Raises
    ------
    DagError
        The workflow cannot be read, or a target is unknown.
    """
    from snakemake.api import SnakemakeApi
    from snakemake.exceptions import MissingRuleException, RuleException
    from snakemake.settings.enums import Quietness
    from snakemake.settings.types import (
        ConfigSettings,
        DAGSettings,
        OutputSettings,
        ResourceSettings,
    )
    from snakemake_interface_common.exceptions import ApiError, WorkflowError

    silent = OutputSettings(
        quiet={Quietness.ALL}, enable_file_logging=False, log_level_override=logging.CRITICAL + 1
    )
    try:
        with SnakemakeApi(silent) as api, contextlib.redirect_stdout(io.StringIO()):
            workflow = api.workflow(
                ResourceSettings(cores=1), ConfigSettings(configfiles=[configfile]),
                snakefile=snakefile,
            )  # fmt: skip
            # the shortest of the calls that build the DAG, take no lock and run nothing
            workflow.dag(DAGSettings(targets=frozenset(targets))).printrulegraph()
            return _tasks(dag_of(workflow), sizes)
    except MissingRuleException as error:
        what = str(error).partition(" (")[0].lower()
        raise DagError(
            f"there is {what}; targets are stitching, deconvolution, edf, registration and qc"
        ) from None
    except (ApiError, RuleException, WorkflowError) as error:
        raise DagError(str(error)) from None


def _tasks(dag: Any, sizes: Sizes) -> list[Task]:
    jobs = sorted(dag.needrun_jobs(), key=lambda job: job.jobid)
    return [Task(job_of(job, dag.job_dependencies(job), sizes)) for job in jobs if len(job.output)]
