"""How far a run is: a line on the terminal or in the log, and a file for others."""

import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .placement.run import Run
from .resources import Placement
from .runtime.ledger import LEDGER, STATE
from .runtime.run_state import RunState, write_state
from .tasks import Tasks

#: Seconds between two lines in a log, and between two states for others.
_LOG_S, _STATE_S = 60.0, 10.0


class Progress:
    """Says how much of a run's work is done, and when the rest will be.

    Work is counted in the estimated seconds of each job; the time that is left follows from that
    of this run so far. On a terminal one line changes; a log gets one a minute.
    """

    def __init__(
        self, dag: Any, tasks: Tasks, run: Run, placement: Placement, logger: logging.Logger
    ) -> None:
        self.dag, self.tasks, self.run, self.logger = dag, tasks, run, logger
        self._began_s, self._told_s, self._written_s = time.time(), 0.0, 0.0
        folder, ledger = Path(tasks.workflow.workdir_init), placement.ledger.absolute()
        self._paths = {ledger.with_name(STATE), folder.absolute() / LEDGER.with_name(STATE)}
        self._ledger = str(ledger)
        self._terminal, self._seconds = sys.stderr.isatty(), dict[Any, float]()
        if self._terminal and logger.parent is not None:
            logger.parent.addFilter(self._clear_line)
        self._write(self.state())  # before a job is sent: whose it is may be asked at once
        placement.at_end(self.end)

    def all_done(self) -> bool:
        """Return whether all jobs of the run have ended well."""
        return all(self.dag.finished(job) for job in self.tasks.jobs())

    def state(self, *, ended: bool = False) -> RunState:
        """Return how far the run is."""
        open_ = self.tasks.nodes()
        self._seconds |= {job: node.cpu_seconds for job, node in open_.items()}
        for job in self.tasks.jobs(finished=True):  # some are found and done between two states
            if len(job.output) and job not in self._seconds:
                self._seconds[job] = self.tasks.seconds(job)
        done = [job for job in self._seconds if job not in open_ and self.dag.finished(job)]
        seconds = {job: self._seconds[job] for job in [*done, *open_]}
        active = self.run.active
        return RunState(
            self._began_s,
            time.time(),
            _by_rule(seconds),
            _by_rule(done),
            0 if ended else sum(task.members for task in active if task.running),
            sum(seconds[job] for job in done) / (sum(seconds.values()) or 1.0),
            {} if ended else dict(self.run.waiting),
            ended,
            ledger=self._ledger,
            queued=0 if ended else sum(task.members for task in active if not task.running),
        )

    def tell(self) -> None:
        """Say how far the run is, where that is due."""
        now_s = time.time()
        every_s = self.run.settings.poll_s if self._terminal else _LOG_S
        first = not self._told_s and self.run.active
        if now_s - self._written_s < _STATE_S and now_s - self._told_s < every_s and not first:
            return
        state = self.state()
        self._write(state)
        if first or now_s - self._told_s >= every_s:
            self._told_s = now_s
            if self._terminal:
                sys.stderr.write(f"\r\x1b[K{state.line()}"[: _columns()])
                sys.stderr.flush()
            else:
                self.logger.info(state.line())

    def end(self) -> None:
        """Write that the run has ended."""
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
        self._write(self.state(ended=True))

    def _write(self, state: RunState) -> None:
        self._written_s = time.time()
        for path in self._paths:
            with contextlib.suppress(OSError):  # a full disk must not end the run
                write_state(path, state)

    def _clear_line(self, _: logging.LogRecord) -> bool:
        """Take the line away before a message is written where it is."""
        sys.stderr.write("\r\x1b[K")
        return True


def _by_rule(jobs: Iterable[Any]) -> dict[str, int]:
    """Return how many jobs each rule has."""
    return dict(Counter(job.rule.name for job in jobs))


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns + len("\r\x1b[K") - 1
