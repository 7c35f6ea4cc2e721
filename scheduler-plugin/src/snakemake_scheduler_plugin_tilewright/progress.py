"""How far a run is: a line now and then, and a file for those who ask from elsewhere."""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .declared import declared_model
from .resources import Placement
from .runtime import snakemake_adapter as adapter
from .runtime.ledger import LEDGER, STATE
from .runtime.run_state import RunState, write_state
from .units import model_of

#: After 5, 10, 20 and 40 s, then every minute.
_FIRST_S, _LAST_S = 5.0, 60.0
_SMALL_S = 10.0


class Progress:
    """Says how much of a run's work is done, and when the rest will be.

    Work is counted in the estimated seconds of each job; the time that is left follows from that
    of this run so far.

    Parameters
    ----------
    queued : callable
        How many jobs that Snakemake has started pend in Slurm's queue.
    waiting : callable
        Why ready jobs wait, with their number.
    """

    def __init__(
        self,
        dag: Any,
        placement: Placement,
        logger: logging.Logger,
        queued: Callable[[], int] = lambda: 0,
        waiting: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self.dag, self.placement, self.logger = dag, placement, logger
        self.queued, self.waiting = queued, waiting
        self._began_s = time.time()
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._work_s: dict[Any, float] = {}
        # next to its ledger, and where it began
        self._paths = {placement.ledger.absolute().with_name(STATE)}
        if placement.cluster is not None:
            self._paths.add(Path(adapter.workdir(dag)).absolute() / LEDGER.with_name(STATE))
        self.load(dag.needrun_jobs())
        self._write(self.state())  # before a job is sent: whose it is may be asked at once
        placement.at_end(self._end)
        threading.Thread(target=self._talk, name="tilewright-progress", daemon=True).start()

    def load(self, jobs: Iterable[Any]) -> None:
        """Take jobs that are not known yet."""
        for job in jobs:
            if job not in self._work_s:
                self._work_s[job] = self._nominal_s(job) if len(job.output) else 0.0

    def _nominal_s(self, job: Any) -> float:
        """Return the estimated work of a job; without a model, on one machine, a small one's."""
        if model := model_of(self.placement, job):
            return self.placement.model(model).cpu_seconds(job.wildcards)
        if self.placement.cluster is None or job.is_local:
            return _SMALL_S
        return declared_model(job).cpu_seconds(job.wildcards)

    def state(self, *, ended: bool = False) -> RunState:
        """Return how far the run is."""
        # after a checkpoint Snakemake makes some jobs again, and leaves the old ones out
        known = [job for job in list(self._work_s) if len(job.output)]
        jobs = [job for job in known if self.dag.needrun(job) or self.dag.finished(job)]
        done = [job for job in jobs if self.dag.finished(job)]
        begun, work_s = adapter.started(self.dag) and not ended, self._work_s.__getitem__
        sent = sum(adapter.running(self.dag, job) for job in jobs) if begun else 0
        queued = min(sent, self.queued()) if sent else 0
        return RunState(
            self._began_s,
            time.time(),
            self._by_rule(jobs),
            self._by_rule(done),
            sent - queued,
            sum(map(work_s, done)) / (sum(map(work_s, jobs)) or 1.0),
            {} if ended else self.waiting(),
            ended,
            ledger=str(self.placement.ledger.absolute()),
            queued=queued,
        )

    def _by_rule(self, jobs: Iterable[Any]) -> dict[str, int]:
        """Return how many jobs each rule has, in the order of the Snakefile."""
        counts = Counter(job.rule.name for job in jobs)
        return {r.name: counts[r.name] for r in self.dag.workflow.rules if r.name in counts}

    def _write(self, state: RunState) -> None:
        if not self._work_s:
            return
        with self._lock:
            for path in self._paths if state.ended or not self._ended.is_set() else ():
                with contextlib.suppress(OSError):  # a full disk must not end the run
                    write_state(path, state)

    def _end(self) -> None:
        self._ended.set()
        self._write(self.state(ended=True))

    def _talk(self) -> None:
        wait_s = _FIRST_S
        while not self._ended.wait(wait_s):
            wait_s = min(_LAST_S, 2 * wait_s)
            try:
                if adapter.started(self.dag):
                    state = self.state()
                    self._write(state)
                    self.logger.info(state.line())
            except Exception:
                self.logger.exception("how far the run is could not be written; it is tried again")
