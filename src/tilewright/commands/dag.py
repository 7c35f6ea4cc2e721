"""The jobs that Snakemake would run, as placement's tasks; nothing is run and nothing printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.commands.dag import DagError, read_command, read_dag
from snakemake_scheduler_plugin_tilewright.placement.jobs import Sizes, Task, job_of
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_command
from tilewright.config.experiment import Experiment, load_experiment, read_config
from tilewright.installed import snakefile


def read_experiment(configfile: Path) -> Experiment:
    """Return the experiment of a config file.

    Raises
    ------
    ConfigError
        The file is absent, is not YAML, or its content is wrong.
    """
    return load_experiment(read_config(configfile))


def find_snakefile(given: Path | None) -> Path:
    """Return the Snakefile: the one given, that of the current folder, or the installed one.

    Raises
    ------
    DagError
        The one given is no file.
    """
    if given is not None and not given.is_file():
        raise DagError(f"there is no {given}; name a Snakefile with --snakefile, or leave it out")
    here = [path for path in (Path("Snakefile"), Path("workflow/Snakefile")) if path.is_file()]
    return given or next(iter(here), snakefile())


def read_tasks(
    snakefile: Path, configfile: Path, targets: Sequence[str], sizes: Sizes
) -> list[Task]:
    """Return the jobs that are not done yet; target rules, which run nothing, are left out.

    To be called before a cluster is in use in this process: else the Snakefile looks for stale
    jobs, as before a run.

    Parameters
    ----------
    targets : sequence of str
        None is the default target.

    Raises
    ------
    DagError
        The workflow cannot be read, or a target is unknown.
    """
    options = [*targets, "--snakefile", str(snakefile), "--configfile", str(configfile)]
    given = read_command([*options, "--profile", "none", "--workflow-profile", "none"])
    known = "; targets are stitching, deconvolution, edf, registration and qc"
    with snakemake_command.as_dry_run(["snakemake", *options]):  # the Snakefile asks which it is
        dag = read_dag(given, known)
    jobs = sorted(dag.needrun_jobs(), key=lambda job: job.jobid)
    return [Task(job_of(job, dag.job_dependencies(job), sizes)) for job in jobs if len(job.output)]
