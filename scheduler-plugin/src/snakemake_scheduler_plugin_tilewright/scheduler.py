"""Snakemake's ``--scheduler tilewright``: asks tilewright's placement who goes where, now.

It places the jobs of any workflow: of rules that take their resources from
``workflow.placement``, and of rules that only state ``threads``, ``mem_mb``, ``runtime`` and
``gpu``. Inside jobs, and on one machine without GPUs, it hands jobs out as they come.
"""

import _thread
import atexit
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_scheduler_plugins.base import SchedulerBase
from snakemake_interface_scheduler_plugins.settings import SchedulerSettingsBase

from .cluster import cluster
from .cluster.summary import cluster_summary
from .errors import PlacementError
from .fit import first_fit
from .local import LocalRun
from .placement.orphaned import before_run, begin_alone, refuse_second_run
from .progress import Progress
from .resources import Placement
from .run import Run
from .runtime import snakemake_adapter as adapter
from .runtime import snakemake_command as command_line
from .runtime.scratch import refused_folders
from .slurm.query import PLACE
from .words import printable_log

#: Rounds that may fail, one every 5 s, before the greedy scheduler sends all (no figure).
_MOST_FAILED_ROUNDS = 12
_AGAIN_S = 5


@dataclass
class SchedulerSettings(SchedulerSettingsBase):  # type: ignore[misc]
    """No settings; Snakemake asks for them before it writes anything itself."""

    def __post_init__(self) -> None:
        if command_line.does_a_job(command_line.command()):
            return  # the coordinator's TMPDIR may not be on a node
        for sentence in refused_folders():
            raise WorkflowError(sentence)


class Scheduler(SchedulerBase):  # type: ignore[misc]
    """Chooses jobs and their places."""

    logger: logging.Logger

    def __post_init__(self) -> None:
        self.logger = printable_log(self.logger)
        self._run: Run | LocalRun | None = None
        self._progress: Progress | None = None
        self._failures = 0
        self._begun = False
        # within a job the executor drops what names Slurm with what Slurm said of that job
        self._slurm = {name: os.environ[name] for name in PLACE if name in os.environ}
        if not adapter.is_snakemakes(self.dag):
            return
        try:
            adapter.check("dag", self.dag)
            adapter.check("workflow", self.dag.workflow)
            placement = adapter.placement_of(self.dag) or self._own_placement()
            if placement is None:
                return
            if job := next(iter(self.dag.needrun_jobs()), None):
                adapter.check("job", job)
            if placement.cluster is not None:
                self._run = Run(self.dag, placement.cluster, placement, self.logger)
            elif placement.gpus is not None:
                self._run = LocalRun(self.dag, placement, self.logger)
            runs = adapter.is_main(self.dag) and not command_line.runs_nothing(
                command_line.command()[1:]
            )
            if not runs:
                return
            with begin_alone(placement.ledger):
                refuse_second_run(placement.ledger)  # begun meanwhile
                # Snakemake asks nothing between the end of the last job and its own, and leaves
                # `onsuccess` of a module out
                atexit.register(lambda: placement.end(failed=not adapter.all_done(self.dag)))
                asked: tuple[Callable[[], Any], ...] = ()
                if isinstance(self._run, Run):
                    placing = self._run.dispatcher
                    asked = self._run.queued, placing.ledger.waiting
                    if not placement.has_models:
                        for line in cluster_summary(placing.cluster.state, placing.kinds):
                            self.logger.info(line)
                if placement.cluster or placement.has_models:
                    self._progress = Progress(self.dag, placement, self.logger, *asked)
        except PlacementError as error:
            raise WorkflowError(str(error)) from None

    def _own_placement(self) -> Placement | None:
        """Return that of a workflow that never heard of placement, None without Slurm."""
        if adapter.executor(self.dag) != "slurm":
            return None
        argv = command_line.command()
        found = cluster.of_command(argv)
        before_run(found, argv, has_lock=True)
        return Placement(cluster=found)

    def _begin(self) -> None:
        """Do what Snakemake's own handler, scheduler and executor must be there for."""
        _handle_sigterm_in_a_thread()
        if self._run is None:
            return
        try:
            adapter.check("scheduler", self.dag.workflow.scheduler)
            if isinstance(self._run, Run):
                adapter.check("executor", adapter.executor_of(self.dag))
                self._run.hear_submissions()
                adapter.trust_placement(self.dag)
        except PlacementError as error:
            raise WorkflowError(str(error)) from None
        os.environ |= self._slurm

    def select_jobs(
        self,
        selectable_jobs: Sequence[Any],
        remaining_jobs: Sequence[Any],
        available_resources: Mapping[str, int | str],
        input_sizes: Mapping[Any, int],
    ) -> Sequence[Any] | None:
        """Return the jobs that start now; None lets the greedy scheduler choose."""
        if not self._begun:
            self._begin()
            self._begun = True
        if self._run is None:
            if self._progress is not None:
                self._progress.load(remaining_jobs)
            return first_fit(selectable_jobs, available_resources)
        try:
            chosen = self._run.select(selectable_jobs, remaining_jobs, available_resources)
            self._failures = 0
            if self._progress is not None:  # by now it is known what those of a checkpoint need
                self._progress.load(remaining_jobs)
            return chosen
        except Exception as error:
            # one that left here would make Snakemake cancel all running jobs
            self._failures += 1
            self.logger.error(f"placement failed: {error!r}", exc_info=True)
            if self._failures < _MOST_FAILED_ROUNDS:
                if isinstance(self._run, LocalRun):  # where no job runs, nothing else would ask
                    adapter.round_later(self.dag, _AGAIN_S)
                return []
            self.logger.error(f"placement failed {self._failures} times; this round is greedy")
            if isinstance(self._run, Run):
                self._run.dispatcher.ledger.write("greedy", reason=repr(error))
                self._run.send_anywhere(selectable_jobs)
            return None


def _handle_sigterm_in_a_thread() -> None:
    """Let the present handler of SIGTERM run in a thread of its own."""
    # Snakemake's takes the scheduler's lock, which the main thread holds while it selects jobs. A
    # signal in these seconds would wait for what it interrupted, and the run would never end.
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        # A threading.Thread waits for its start, and takes locks that may be held here too.
        signal.signal(
            signal.SIGTERM, lambda number, _: _thread.start_new_thread(handler, (number, None))
        )
