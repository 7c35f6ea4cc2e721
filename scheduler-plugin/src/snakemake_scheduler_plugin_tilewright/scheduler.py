"""Snakemake's ``--scheduler tilewright``: which jobs start now.

On a cluster every ready job goes to the executor at once, which sends it in time: only what the
user limits with ``--resources`` waits here. On one machine with GPUs it chooses the device kind of
each job as it starts. Inside jobs it hands jobs out as they come.
"""

import _thread
import atexit
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_scheduler_plugins.base import SchedulerBase
from snakemake_interface_scheduler_plugins.settings import SchedulerSettingsBase

from .local import LocalRun, first_fit
from .runtime import snakemake_adapter as command_line
from .runtime.snakemake_adapter import forget_chatter
from .runtime.words import printable_log


@dataclass
class SchedulerSettings(SchedulerSettingsBase):  # type: ignore[misc]
    """No settings; Snakemake asks for them before it writes anything itself."""

    def __post_init__(self) -> None:
        if command_line.does_a_job(command_line.command()):
            return  # the coordinator's TMPDIR may not be on a node
        for sentence in refused_folders():
            raise WorkflowError(sentence)


class Scheduler(SchedulerBase):  # type: ignore[misc]
    """Chooses the jobs that start."""

    logger: logging.Logger

    def __post_init__(self) -> None:
        self.logger = printable_log(self.logger)
        forget_chatter(self.logger)
        workflow = getattr(self.dag, "workflow", None)  # Snakemake's test of schedulers has none
        self._local: LocalRun | None = None
        plugin = workflow.executor_plugin if workflow is not None else None
        self._sends_all = plugin is not None and plugin.name == "tilewright"
        placement = getattr(workflow, "placement", None)
        if placement is not None and placement.gpus is not None and not placement.on_cluster:
            self._local = LocalRun(self.dag, placement, self.logger)
        self._placement, self._begun = placement, False

    def select_jobs(
        self,
        selectable_jobs: Sequence[Any],
        remaining_jobs: Sequence[Any],
        available_resources: Mapping[str, int | str],
        input_sizes: Mapping[Any, int],
    ) -> Sequence[Any]:
        """Return the jobs that start now."""
        if not self._begun:
            self._begin()
        if self._local is not None:
            return self._local.select(selectable_jobs, available_resources)
        limits = dict(available_resources)
        if self._sends_all:
            limits.pop("_nodes", None)  # the executor has no more jobs than --jobs in Slurm
        return first_fit(selectable_jobs, limits)

    def _begin(self) -> None:
        """Prepare the end of the run; a dry run selects no jobs."""
        self._begun = True
        handle_sigterm_in_thread()  # Snakemake sets its own handler after it made this object
        placement = self._placement
        if placement is None or self._sends_all or command_line.does_a_job(command_line.command()):
            return
        jobs = [*self.dag.needrun_jobs()]
        # Snakemake runs no `onerror` of a module, as ours is in the Snakefile of `tilewright init`
        atexit.register(
            lambda: placement.end(failed=not all(self.dag.finished(job) for job in jobs))
        )


def handle_sigterm_in_thread() -> None:
    """Let Snakemake's handler of SIGTERM run in a thread of its own."""
    # It takes the scheduler's lock, which the main thread may hold: it would wait for itself.
    handler: Callable[..., Any] | Any = signal.getsignal(signal.SIGTERM)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        # a threading.Thread waits for its start, and takes locks that may be held here too
        signal.signal(
            signal.SIGTERM, lambda number, _: _thread.start_new_thread(handler, (number, None))
        )


_TRIED_B = 2**20  # a disk that is full takes an empty file


def refused_folders() -> Iterator[str]:
    """Yield a sentence for each folder that a run writes to and cannot: cause and fix.

    Snakemake keeps the sources of a workflow in the user's cache; shells, SciPy and Slurm's
    commands write to ``TMPDIR``. Both end in a traceback, or in failed jobs, where they are full
    or closed.
    """
    cache = platformdirs.user_cache_path("snakemake")
    named = os.environ.get("XDG_CACHE_HOME")
    source = f"XDG_CACHE_HOME={named}" if named else "HOME"
    if why := _refuses(cache):
        yield (
            f"Snakemake's cache {cache} cannot be written ({why}); make room there, or set "
            f"XDG_CACHE_HOME to a folder that you can write to (it follows from {source})"
        )
    scratch = os.environ.get("TMPDIR")
    if scratch and (why := _refuses(Path(scratch), make=False)):
        yield (
            f"TMPDIR={scratch} cannot be written ({why}); make room there, or set "
            "TMPDIR to another folder"
        )


def _refuses(folder: Path, *, make: bool = True) -> str:
    """Return why a file of 1 MiB cannot be written into a folder; empty where it can."""
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(_TRIED_B))
    except OSError as error:
        return error.strerror or repr(error)
    return ""
