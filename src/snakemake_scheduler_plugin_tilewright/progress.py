"""How far a run is: a line now and then, for those who do not follow every job."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import Any

from tilewright.placement.jobs import PlacementError
from tilewright.placement.routing import Plan
from tilewright.runtime import snakemake_adapter as adapter

#: After 5, 10, 20 and 40 s, then every minute.
_FIRST_S, _LAST_S = 5.0, 60.0
_SMALL_S = 10.0
#: Share of the work after which the rest is foretold.
_TOLD = 0.05


class Progress:
    """Says how much of a run's work is done, and when the rest will be.

    Work is counted in the estimated seconds of each job; the time that is left follows from that
    of this run so far.
    """

    def __init__(self, dag: Any, plan: Plan, logger: logging.Logger) -> None:
        self.dag, self.plan, self.logger = dag, plan, logger
        self._began_s = time.monotonic()
        self._ended = threading.Event()
        self._work_s: dict[Any, float] = {}
        self.load()
        plan.at_end(self._ended.set)
        threading.Thread(target=self._talk, name="tilewright-progress", daemon=True).start()

    def load(self) -> None:
        """Take the jobs of the DAG."""
        for job in self.dag.needrun_jobs():
            if not job.is_group() and len(job.output):
                self._work_s[job] = self._nominal_s(job)

    def _nominal_s(self, job: Any) -> float:
        """Return the estimated work of a job; of one that nothing describes, as a small one's."""
        rule = job.rule.name
        try:
            return self.plan.sizes.of(rule).nominal_s(rule, job.wildcards)
        except PlacementError:
            return _SMALL_S

    def line(self) -> str:
        """Return jobs done and running, the share of the work, the time left, and open rules."""
        jobs = list(self._work_s)
        done = [job for job in jobs if self.dag.finished(job)]
        running = sum(adapter.running(self.dag, job) for job in jobs)
        share = sum(self._work_s[job] for job in done) / (sum(self._work_s.values()) or 1.0)
        texts = [f"{len(done)} of {len(jobs)} jobs done", f"{100 * share:.0f} % of the work"]
        texts += [f"{running} running"] if running else []
        if _TOLD <= share < 1:
            left_s = (time.monotonic() - self._began_s) * (1 - share) / share
            texts.append(f"about {_length(left_s)} left")
        ended = Counter(job.rule.name for job in done)
        every = Counter(job.rule.name for job in jobs)
        begun = [f"{rule} {ended[rule]}/{n}" for rule, n in every.items() if 0 < ended[rule] < n]
        return ", ".join(texts) + (f" ({', '.join(begun)})" if begun else "")

    def _talk(self) -> None:
        wait_s = _FIRST_S
        while not self._ended.wait(wait_s):
            wait_s = min(_LAST_S, 2 * wait_s)
            try:
                if adapter.started(self.dag):
                    self.logger.info(self.line())
            except Exception:
                self.logger.exception("how far the run is could not be said; it is tried again")


def _length(seconds: float) -> str:
    """Return a length of time with its unit.

    >>> _length(40), _length(600), _length(9000)
    ('40 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
