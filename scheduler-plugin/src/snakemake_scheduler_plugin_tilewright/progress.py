"""How far a run is: a line on the terminal or in the log; and a file that says it is active."""

import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .placement.run import Run
from .resources import Placement
from .runtime.ledger import LEDGER, STATE
from .runtime.run_state import RunState, span_text, write_state
from .tasks import Tasks

#: Seconds between two lines in a log, and between two states for others.
_LOG_S, _STATE_S = 60.0, 10.0
#: Below this share of the work no time left is estimated.
_TOLD = 0.05


class Progress:
    """Says how much of a run's work is done, and when the rest will be.

    Work is counted in the estimated seconds of each job; the time that is left follows from that
    of this run so far. On a terminal one line changes; a log gets one a minute.
    """

    def __init__(
        self, dag: Any, tasks: Tasks, run: Run, placement: Placement, logger: logging.Logger
    ) -> None:
        self.dag, self.tasks, self.run, self.logger = dag, tasks, run, logger
        self._began_s, self._printed_s, self._written_s = time.time(), 0.0, 0.0
        folder, ledger = Path(tasks.workflow.workdir_init), placement.ledger.absolute()
        self._paths = {ledger.with_name(STATE), folder.absolute() / LEDGER.with_name(STATE)}
        self._terminal, self._seconds = sys.stderr.isatty(), dict[Any, float]()
        if self._terminal and logger.parent is not None:
            logger.parent.addFilter(self._clear_line)
        self._write()  # before a job is sent: whose it is may be asked at once
        placement.at_end(self.end)

    def all_done(self) -> bool:
        """Return whether all jobs of the run have ended well."""
        return all(self.dag.finished(job) for job in self.tasks.jobs())

    def line(self) -> str:
        """Return how far the run is, in a line."""
        open_ = self.tasks.nodes()
        self._seconds |= {job: node.cpu_seconds for job, node in open_.items()}
        for job in self.tasks.jobs(finished=True):  # some are found and done between two looks
            if len(job.output) and job not in self._seconds:
                self._seconds[job] = self.tasks.seconds(job)
        done = [job for job in self._seconds if job not in open_ and self.dag.finished(job)]
        seconds = {job: self._seconds[job] for job in [*done, *open_]}
        active = self.run.active
        return progress_line(
            Counter(job.rule.name for job in seconds),
            Counter(job.rule.name for job in done),
            sum(task.running for task in active),
            sum(not task.running for task in active),
            sum(seconds[job] for job in done) / (sum(seconds.values()) or 1.0),
            time.time() - self._began_s,
            self.run.waiting,
        )

    def tell(self) -> None:
        """Say how far the run is, where that is due."""
        now_s = time.time()
        if now_s - self._written_s >= _STATE_S:
            self._write()
        every_s = self.run.settings.poll_s if self._terminal else _LOG_S
        if now_s - self._printed_s < every_s or not (self._printed_s or self.run.active):
            return
        self._printed_s = now_s
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{self.line()}"[: _columns()])
            sys.stderr.flush()
        else:
            self.logger.info(self.line())

    def end(self) -> None:
        """Write that the run has ended."""
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
        self._write(ended=True)

    def _write(self, *, ended: bool = False) -> None:
        self._written_s = time.time()
        for path in self._paths:
            with contextlib.suppress(OSError):  # a full disk must not end the run
                write_state(path, RunState(self._began_s, self._written_s, ended))

    def _clear_line(self, _: logging.LogRecord) -> bool:
        """Take the line away before a message is written where it is."""
        sys.stderr.write("\r\x1b[K")
        return True


def progress_line(
    jobs: Mapping[str, int],
    done: Mapping[str, int],
    running: int,
    queued: int,
    share: float,
    took_s: float,
    waiting: Mapping[str, int],
) -> str:
    """Return jobs done, running and queued, the share of the work, the time left, and waits.

    Parameters
    ----------
    jobs, done : mapping
        Rule to all its jobs, and to those that are done.
    running, queued : int
        Jobs that run, and that pend in Slurm.
    share : float
        Of the work, in estimated seconds of each job, what is done; 0 to 1.
    waiting : mapping
        Reason to the ready jobs that wait for it.

    Examples
    --------
    >>> progress_line({"stitch": 4, "qc": 1}, {"stitch": 3}, 1, 0, 0.5, 60.0, {"no slot": 1})
    '3 of 5 jobs done, 50 % of the work, 1 running, about 60 s left (stitch 3/4); 1 waits: no slot'
    """
    texts = [f"{sum(done.values())} of {sum(jobs.values())} jobs done"]
    texts += [f"{100 * share:.0f} % of the work"]
    texts += [f"{running} running"] if running else []
    texts += [f"{queued} in Slurm's queue"] if queued else []
    if _TOLD <= share < 1:
        texts.append(f"about {span_text(took_s * (1 - share) / share)} left")
    begun = [f"{rule} {done[rule]}/{n}" for rule, n in jobs.items() if 0 < done.get(rule, 0) < n]
    rules = f" ({', '.join(begun)})" if begun else ""
    ordered = sorted(waiting.items(), key=lambda item: (-item[1], item[0]))
    waits = (f"; {n} wait{'s' * (n == 1)}: {why}" if n else f"; {why}" for why, n in ordered)
    return ", ".join(texts) + rules + "".join(waits)


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns + len("\r\x1b[K") - 1
