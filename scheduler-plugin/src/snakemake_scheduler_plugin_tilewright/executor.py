"""Snakemake's ``--executor tilewright``: takes jobs that are ready, and sends them to Slurm.

Snakemake hands over every job that is ready, and takes all of them to run. One thread, that which
Snakemake's executors have for the state of their jobs, asks Slurm, places jobs and tells how they
ended. No command of Slurm runs under a lock of Snakemake, and a job that goes elsewhere is none of
Snakemake's tries.
"""

import asyncio
import atexit
import logging
import threading
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings

from .runtime.errors import PlacementError
from .runtime.words import count, printable_log
from .settings import ExecutorSettings

if TYPE_CHECKING:
    from .placement.jobs import End, Task

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=0,
)
#: Jobs that become ready together come one after the other: so long is waited for the next.
_GATHER_S = 0.3
#: Whether a job became ready is looked at so often.
_LOOK_S = 0.1


class Executor(RemoteExecutor):  # type: ignore[misc]
    """Sends jobs to Slurm."""

    logger: logging.Logger

    def __init__(self, workflow: Any, logger: logging.Logger) -> None:
        # Snakemake starts the thread that asks for the state of jobs before `__post_init__`
        self._begun = threading.Event()
        super().__init__(workflow, logger)

    def __post_init__(self) -> None:
        from .begin import Beginning
        from .orphaned import refuse_second_run
        from .progress import Progress
        from .runtime import snakemake_adapter as adapter
        from .runtime.snakemake_adapter import SetUpError

        self.logger = printable_log(self.logger)
        adapter.forget_chatter(self.logger)
        self._wake, self._infos = threading.Event(), dict[Any, SubmittedJobInfo]()
        self._withdrawn, self._checked, self._cancelled = 0, False, False
        try:
            adapter.check("workflow", self.workflow)
            begun = Beginning(
                self.workflow, self.executor_settings, self.logger, self._command, self._sent
            )
            self.run, self.tasks, self.placement = begun.run, begun.tasks, begun.placement
            refuse_second_run(self.placement.ledger)  # one may have begun meanwhile
            self._progress = Progress(self.dag, self.tasks, self.run, self.placement, self.logger)
        except PlacementError as error:
            raise SetUpError(str(error)) from None
        # a workflow whose Snakefile has no `placement.end()` says how it ended all the same
        atexit.register(lambda: self.placement.end(failed=not self._progress.all_done()))
        self._begun.set()

    # What Snakemake asks

    def run_jobs(self, jobs: list[Any]) -> None:
        """Take jobs that are ready."""
        self._begin(jobs)
        self.run.submit([self.tasks.task(job) for job in jobs])
        self._wake.set()

    def run_job(self, job: Any) -> None:
        """Take one job."""
        self.run_jobs([job])

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Look at Slurm, place what is ready, and report what has ended."""
        from .runtime import snakemake_adapter as adapter

        while not self._begun.is_set():
            await asyncio.sleep(_LOOK_S)
        self._wake.clear()
        for end in self.run.step():
            self._report(end)
        self._progress.tell()
        if why := adapter.stopping(self.workflow):
            self._stop(why)
        for info in active_jobs:
            if info.job in self._infos:
                yield info

    async def sleep(self) -> None:
        """Wait until Slurm is asked again, or a job becomes ready."""
        until_s = self.run.clock() + self.executor_settings.poll_seconds
        while not self._wake.is_set() and self.run.clock() < min(until_s, self.run.due_s):
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(_GATHER_S)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel all jobs: the user wants to stop at once."""
        self._cancelled = True
        self.run.withdraw()
        self._cancel_sent()

    def _cancel_sent(self) -> None:
        ids = [task.slurm_id for task in self.run.active if task.slurm_id]
        if ids:
            try:
                self.run.cluster.client.cancel(ids)
            except PlacementError as error:
                self.logger.error(
                    f"the jobs could not be cancelled ({error}); do it later with "
                    "`tilewright-placement orphaned --cancel`"
                )

    def shutdown(self) -> None:
        """End the thread."""
        with self.lock:
            self.wait = False
        self._wake.set()
        super().shutdown()
        if self._cancelled:  # also those that were being sent
            self._cancel_sent()

    def additional_general_args(self) -> str:
        """Return how the Snakemake in a job runs it: as a step of Slurm's job."""
        return "--executor slurm-jobstep --jobs 1"

    # What Slurm says

    def _command(self, task: "Task", place: Any, request: Any, name: str) -> Any:
        self.run_job_pre(task.job)
        return self.tasks.submission(task, place, request, name, self.format_job_exec(task.job))

    def _sent(self, task: "Task") -> None:
        """Tell Snakemake that Slurm has a job."""
        info = SubmittedJobInfo(task.job, external_jobid=str(task.slurm_id))
        self._infos[task.job] = info
        self.report_job_submission(info)
        kind = "a GPU" if task.place and task.place.kind == "gpu" else "CPUs"
        self.logger.info(f"{task.name} goes to {task.place}, {kind} (Slurm job {task.slurm_id})")

    def _report(self, end: "End") -> None:
        """Tell Snakemake how a job ended."""
        task = end.task
        info = self._infos.pop(task.job, SubmittedJobInfo(task.job))
        log = self.tasks.slurm_log(task)
        if not end.words:
            if log:
                log.unlink(missing_ok=True)
            self.report_job_success(info)
            return
        if end.final:  # it has no try left
            task.job.attempt = max(task.job.attempt, task.job.restart_times + 1)
        logs = [str(log)] if log and log.exists() else []
        self.report_job_error(info, msg=f"{end.words}. ", aux_logs=logs)

    def _stop(self, why: str) -> None:
        """Send no more jobs; end the run when those that were sent have ended."""
        self._withdrawn += len(self.run.withdraw())
        if self._withdrawn and not self.run.active:
            jobs = count(self._withdrawn, "job")
            error = WorkflowError(f"{jobs} that were ready are not sent, as {why}")
            self._withdrawn = 0
            self.workflow.scheduler.executor_error_callback(error)

    def _begin(self, jobs: list[Any]) -> None:
        """Check, once, what Snakemake has made by now."""
        from .runtime import snakemake_adapter as adapter
        from .runtime.snakemake_adapter import SetUpError

        if self._checked or not jobs:
            return
        self._checked = True
        single = next(iter(jobs[0].jobs)) if jobs[0].is_group() else jobs[0]
        checked = {"scheduler": self.workflow.scheduler, "job": single, "rule": single.rule}
        try:
            for what, thing in checked.items():
                adapter.check(what, thing)
        except PlacementError as error:
            raise SetUpError(str(error)) from None


__all__ = ["Executor", "ExecutorSettings", "common_settings"]
