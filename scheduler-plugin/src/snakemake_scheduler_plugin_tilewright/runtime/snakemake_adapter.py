"""Everything that tilewright touches of Snakemake beyond its documented interfaces.

Each function names the attribute that it rests on. :func:`check` finds all of them when a
run begins, so that a Snakemake that renamed one stops with a sentence; one test for each fails
by its name. ``docs/development.md`` proposes public hooks.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import PlacementError

#: What a scheduler, a DAG and a job must have beyond the interfaces of Snakemake's scheduler and
#: executor plugins; see the functions below for what each is used for.
NEEDED: Mapping[str, tuple[str, ...]] = {
    "scheduler": (
        "_errors",
        "_executor",
        "_open_jobs",
        "_schedule_reevalutation",
        "failed",
        "running",
    ),
    "dag": ("_ready_jobs", "_running", "get_job_group", "job_factory", "needrun", "workflow"),
    "job": ("_resources", "_scheduler_resources", "restart_times", "uuid", "wildcards_dict"),
    "group": ("_resources", "_scheduler_resources", "restart_times"),
    "executor": (
        "active_jobs",
        "lock",
        "report_job_error",
        "report_job_submission",
        "report_job_success",
    ),
    "workflow": (
        "executor_settings",
        "global_resources",
        "is_main_process",
        "resource_settings",
        "rules",
    ),
}


def is_snakemakes(dag: Any) -> bool:
    """Return whether a DAG is Snakemake's own, and not one of its test of schedulers."""
    return type(dag).__module__.partition(".")[0] == "snakemake"


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
            "install a version that this scheduler asks for, or run with "
            "--scheduler greedy"
        )


# Rules and jobs.


def placement_of(dag: Any) -> Any:
    """Return what the Snakefile set as ``workflow.placement``, None where it set nothing."""
    return getattr(dag.workflow, "placement", None)


def constant(job: Any, name: str) -> str:
    """Return a constant resource of a job's rule; empty where it has none, and for a group."""
    resource = None if job.is_group() else job.rule.resources.get(name)
    return "" if resource is None or resource.is_evaluable() else str(resource.value or "")


def overridden_names(job: Any, given: Mapping[str, Any]) -> set[str]:
    """Return the resources of a job's rule that are not as they were given to it.

    They come from ``--set-resources``, ``--set-threads``, or a rule that uses another. Snakemake
    wraps some functions. Uses ``Resource._evaluator``.
    """
    found = set()
    for name, resource in job.rule.resources.items():
        value = inspect.unwrap(resource._evaluator) if resource.is_evaluable() else resource.value
        if name not in given or value != given[name]:
            found.add(name)
    return found


def open_checkpoints(dag: Any) -> list[str]:
    """Return the checkpoints that still have to run. Uses ``job.is_checkpoint``."""
    return sorted({job.rule.name for job in dag.needrun_jobs() if job.is_checkpoint})


def unit_of(dag: Any, job: Any) -> Any:
    """Return what is dispatched of a job: its group where it is in one, else itself.

    Groups of one name differ in their ``wildcards``, which a group has not by itself: the
    executor puts those of any job into Slurm's comment. The class gets them: after a checkpoint
    Snakemake may send another object for the same group. Uses ``dag.get_job_group``.
    """
    group = job if job.is_group() else dag.get_job_group(job)
    if group is None:
        return job
    if not hasattr(type(group), "wildcards"):
        type(group).wildcards = property(_last_wildcards)
    return group


def _last_wildcards(group: Any) -> list[str]:
    """Return the wildcards of a group's last job and the beginning of that job's ``uuid``.

    Of several last ones, which have no order of their own, it is the same for the same jobs.
    Uses ``group.jobs``, ``group.toposorted`` and ``job.uuid``.
    """
    jobs, found = getattr(group, "_last_of", (None, []))
    if jobs is not group.jobs:  # 4 µs a job, asked for each member
        last = min(group.toposorted[-1], key=lambda job: job.uuid())
        found = [*map(str, last.wildcards), last.uuid()[:8]]
        group._last_of = group.jobs, found
    return found


def members(job: Any) -> Iterable[Any]:
    """Return the jobs of a group, or the one job. Uses ``group.jobs``."""
    return job.jobs if job.is_group() else (job,)


def finished(dag: Any, job: Any) -> bool:
    """Return whether a job, or all of a group, has finished.

    When a group with a checkpoint ends, Snakemake makes others of its jobs again, and counts those
    as finished in place of the old; some groups hold a job twice by then. Uses ``dag.finished``,
    ``dag.job_factory``.
    """
    ended: set[Any] = set()
    others: set[Any] = set()
    for one in members(job):
        key = one.rule.name, *sorted(one.wildcards_dict.items())
        done = dag.finished(one) or dag.finished(dag.job_factory.cache.get(key))
        (ended if done else others).add(key)
    return others <= ended


def is_open(dag: Any, job: Any) -> bool:
    """Return whether a job is still to run or runs.

    After a checkpoint Snakemake makes some jobs again, and leaves the old ones out of the DAG. Uses
    ``dag.needrun``, ``scheduler.failed`` and ``scheduler.running``.
    """
    if finished(dag, job) or failed(dag, job):
        return False
    return all(map(dag.needrun, members(job))) or (started(dag) and running(dag, job))


def forget_resources(job: Any) -> None:
    """Have Snakemake ask the rule for a job's resources again.

    Uses ``job._resources`` and ``job._scheduler_resources``, in which it keeps them.
    """
    job._resources = job._scheduler_resources = None


def assign(dag: Any, job: Any, values: Mapping[str, Any]) -> None:
    """Set resources of a job or group, ``_cores`` for its threads, as far as the run has them.

    Until its next try; None takes one away. Uses ``job._resources`` and
    ``job._scheduler_resources``, ``workflow.global_resources`` and ``workflow.resource_settings``.
    """
    from snakemake.resources import Resources

    workflow, wanted = dag.workflow, {n: value for n, value in values.items() if value is not None}
    resources = {name: value for name, value in job.resources.items() if name not in values}
    most_threads = workflow.resource_settings.max_threads
    if "_cores" in wanted and most_threads is not None:
        wanted["_cores"] = min(wanted["_cores"], most_threads)
    expanded = Resources.from_mapping(wanted).expand_items(
        constraints=workflow.global_resources, evaluate=None
    )
    resources |= dict(expanded)
    job._resources = resources if job.is_group() else type(job.resources)(fromdict=resources)
    job._scheduler_resources = None


def priority(job: Any) -> float:
    """Return the priority of a job: its rule's, or more where the user or Snakemake raised it.

    Uses ``job.priority``, which fails with a KeyError where the DAG was only read, and
    ``rule.expand_priority``.
    """
    try:
        return float(job.priority)
    except KeyError:
        return float(job.rule.expand_priority(job.wildcards, job.input, job.attempt))


# A run.


def executor(dag: Any) -> str:
    """Return the name of the executor that runs the jobs. Uses ``workflow.executor_plugin``."""
    plugin = dag.workflow.executor_plugin
    return str(plugin.name) if plugin is not None else ""


def executor_setting(dag: Any, name: str) -> str:
    """Return an option of the executor; empty without. Uses ``workflow.executor_settings``."""
    return str(getattr(dag.workflow.executor_settings, name, None) or "")


def workdir(dag: Any) -> str:
    """Return the folder where the run began. Uses ``workflow.workdir_init``."""
    return str(dag.workflow.workdir_init)


def failed(dag: Any, job: Any) -> bool:
    """Return whether Snakemake has given a job up. Uses ``scheduler.failed``."""
    return started(dag) and job in dag.workflow.scheduler.failed


def running(dag: Any, job: Any) -> bool:
    """Return whether a job, or its group, was started and has not ended.

    Uses ``scheduler.running`` and ``dag.get_job_group``.
    """
    started = dag.workflow.scheduler.running
    return job in started or dag.get_job_group(job) in started


def anything_runs(dag: Any) -> bool:
    """Return whether any job was started and has not ended. Uses ``scheduler.running``."""
    return bool(dag.workflow.scheduler.running)


def machine_resources(dag: Any) -> Mapping[str, int]:
    """Return what the whole machine has. Uses ``workflow.global_resources``."""
    found = {name: one.value for name, one in dag.workflow.global_resources.items()}
    return {name: value for name, value in found.items() if isinstance(value, int)}


def give_up(dag: Any, job: Any) -> None:
    """Let Snakemake count a job as failed although it has tries left.

    Uses ``scheduler.failed``, ``_errors`` and ``_open_jobs``, ``dag._ready_jobs`` and ``_running``.
    """
    scheduler = dag.workflow.scheduler
    scheduler.failed.add(job)
    scheduler._errors = True
    dag._ready_jobs.discard(job)
    dag._running.add(job)  # as Snakemake leaves what failed: no checkpoint makes it ready again
    scheduler._open_jobs.release()


def has_tries(job: Any) -> bool:
    """Return whether Snakemake would try a job again. Uses ``job.restart_times``."""
    return bool(job.restart_times > job.attempt - 1)


def without_timers(dag: Any) -> None:
    """Keep Snakemake from starting a timer after every round.

    Each timer ends in a round that starts another: one more for each job that ended. Whoever
    calls this calls :func:`wake` from time to time. Replaces
    ``scheduler._schedule_reevalutation``.
    """
    dag.workflow.scheduler._schedule_reevalutation = lambda delay: None


def keep_ready(dag: Any, jobs: Iterable[Any]) -> None:
    """Keep Snakemake from forgetting jobs that failed and wait for their next try.

    It leaves them among those that run, and when a checkpoint ends none of these is ready. Uses
    ``dag._running``.
    """
    dag._running.difference_update(jobs)


def round_later(dag: Any, seconds: float) -> None:
    """Ask for a round in some seconds. Uses ``scheduler._schedule_reevalutation``."""
    dag.workflow.scheduler._schedule_reevalutation(seconds)


def wake(dag: Any) -> None:
    """Ask for a round now. Uses ``scheduler._open_jobs``."""
    dag.workflow.scheduler._open_jobs.release()


def look_at_jobs_after(dag: Any, seconds: float) -> None:
    """Set how long the executor waits until it asks for the state of its jobs again.

    It adds 10 s to what it finds here after each idle round, up to 180: freed slots idle as long.
    Uses ``scheduler._executor.next_seconds_between_status_checks``.
    """
    executor_of(dag).next_seconds_between_status_checks = max(1.0, seconds - 10)


def executor_of(dag: Any) -> Any:
    """Return the executor of remote jobs. Uses ``scheduler._executor``."""
    return dag.workflow.scheduler._executor


def hear_submissions(dag: Any, heard: Callable[[Any, str], None]) -> None:
    """Have each submission told: the job, and why it was not submitted, empty where it was.

    Of jobs that were, it tells the errors that end them too.

    Replaces ``scheduler._executor.report_job_error`` and ``.report_job_submission``.
    """
    executor = executor_of(dag)
    error, submission = executor.report_job_error, executor.report_job_submission

    def report_error(info: Any, msg: str | None = None, **more: Any) -> None:
        heard(info.job, msg or "it does not say why")
        error(info, msg=msg, **more)

    def report_submission(info: Any) -> None:
        heard(info.job, "")
        submission(info)

    executor.report_job_error = report_error
    executor.report_job_submission = report_submission


def slurm_ids(dag: Any) -> dict[Any, int]:
    """Return the numbers of the jobs that sbatch took. Uses ``scheduler._executor.active_jobs``."""
    active = list(executor_of(dag).active_jobs) if started(dag) else []
    sent = [(one.job, str(one.external_jobid)) for one in active]
    return {job: int(number) for job, number in sent if number.isdecimal()}


def trust_placement(dag: Any) -> None:
    """Keep the executor from looking for accounts, and from guessing an account or a partition.

    It refuses to send a job where Slurm hides them. Replaces ``executor._fallback_account_arg``,
    ``._fallback_partition``, and ``validate_account`` of its module.
    """
    executor = executor_of(dag)
    executor._fallback_account_arg = executor._fallback_partition = ""
    module: Any = sys.modules[type(executor).__module__]
    if hasattr(module, "validate_account"):
        module.validate_account = lambda account, logger: account


def end(dag: Any, job: Any, why: str, *, success: bool) -> bool:
    """Tell Snakemake that a job has ended of which its executor does not learn.

    False where the executor is just looking at its jobs itself: ask again later. Uses
    ``scheduler._executor.lock``, ``.active_jobs``, ``.report_job_success``, ``.report_job_error``.
    """
    executor = executor_of(dag)
    with executor.lock:
        sent = next((info for info in executor.active_jobs if info.job is job), None)
        if sent is None:
            return False
        executor.active_jobs.remove(sent)
    if success:
        executor.report_job_success(sent)
    else:
        executor.report_job_error(sent, msg=f"{why}. ")
    return True


def is_main(dag: Any) -> bool:
    """Return whether this process coordinates the run. Uses ``workflow.is_main_process``."""
    return bool(dag.workflow.is_main_process)


def all_done(dag: Any) -> bool:
    """Return whether all jobs of the run have ended well. Uses ``dag.needrun_jobs``."""
    return all(finished(dag, job) for job in dag.needrun_jobs())


def started(dag: Any) -> bool:
    """Return whether Snakemake has made its scheduler by now. Uses ``workflow.scheduler``."""
    return dag.workflow.scheduler is not None
