"""One run: Snakemake's jobs as placement's, and placement's answers as Snakemake's."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from snakemake_scheduler_plugin_tilewright.fit import first_fit
from snakemake_scheduler_plugin_tilewright.stated import (
    STATED,
    StatedSizes,
    fixed_of,
    resources_at,
    stated_shape_of,
)
from tilewright.placement.cluster import Cluster
from tilewright.placement.dispatcher import Dispatcher
from tilewright.placement.jobs import Fixed, Place, PlacementError, Task, job_of, name_of
from tilewright.placement.ledger import Ledger
from tilewright.placement.preflight import check_sizes
from tilewright.placement.routing import Plan
from tilewright.runtime import snakemake_adapter as adapter
from tilewright.slurm.query import Unknown

_TEND_S = 5.0
_SAY_S = 300.0


class Run:
    """Answers the scheduler plugin for one DAG.

    Raises
    ------
    PlacementError
        A job would pend for ever, or Slurm does not answer.
    """

    def __init__(self, dag: Any, cluster: Cluster, plan: Plan, logger: logging.Logger) -> None:
        if plan.ledger is None:
            raise PlacementError("the plan has no ledger; name a file for it in the Snakefile")
        self.dag, self.plan, self.logger = dag, plan, logger
        self.jobs: dict[str, Any] = {}
        self.tries: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._said: dict[str, float] = {}
        self._stated = StatedSizes()
        self._read: dict[str, int] = {}
        self._ended = threading.Event()
        self.dispatcher = Dispatcher(cluster, plan, Ledger(plan.ledger), adapter.workdir(dag))
        self.load()
        self.dispatcher.begin()
        capacity = self.dispatcher.capacity()
        if isinstance(capacity, Unknown):
            raise PlacementError(f"Slurm does not answer: {capacity}; try again when it does")
        check_sizes(self.dispatcher.tasks.values(), capacity, plan.estimates)
        plan.at_end(self.close)
        threading.Thread(target=self._tend, name="tilewright-tend", daemon=True).start()

    def load(self) -> None:
        """Take the jobs of the DAG; those of rules that ask no plan by what they state."""
        needed = self.dag.needrun_jobs()
        named = {name_of(job): job for job in needed if not job.is_group() and not job.is_local}
        stated = [job for job in named.values() if job.rule.name not in self.plan.rules]
        self._stated.take(stated)
        for rule in {job.rule.name for job in stated}:
            self.plan.sizes.add(rule, self._stated)
        self.jobs |= named
        by_rule = {job.rule.name: job for job in named.values() if job.rule.name in self.plan.rules}
        chosen = {rule: self._chosen(job) for rule, job in by_rule.items()}
        self.dispatcher.load(
            job_of(
                job,
                self.dag.job_dependencies(job),
                self.plan.sizes.of(job.rule.name),
                chosen.get(job.rule.name) or fixed_of(job),
            )
            for job in named.values()
        )

    def _chosen(self, job: Any) -> Fixed:
        """Return what the user chose with ``--set-resources`` and ``--set-threads``."""
        chosen, threads = adapter.chosen_resources(self.dag, job.rule.name)

        def value(*names: str) -> Any:
            return job.resources.get(names[-1]) if any(name in chosen for name in names) else None

        return Fixed(
            account=value("slurm_account"),
            cpus=job.threads if threads else None,
            mem_mb=value("mem", "mem_mb"),
            runtime_min=value("runtime"),
        )

    def select(
        self,
        selectable: Sequence[Any],
        remaining: Sequence[Any],
        available: Mapping[str, int | str],
    ) -> list[Any]:
        """Return the jobs that start now, each with its place in the table."""
        named = {name_of(job): job for job in selectable if not job.is_group()}
        ready = {name: job for name, job in named.items() if name in self.dispatcher.tasks}
        routed = set(ready.values())
        others = [job for job in selectable if job not in routed]
        adapter.without_timers(self.dag)  # `_tend` wakes Snakemake instead
        self._settle(ready)
        for name, job in ready.items():
            if job.rule.name not in self.plan.rules:
                self._read_stated(self.dispatcher.tasks[name], job)
        waiting = {name_of(job) for job in remaining if not job.is_group()}
        later = (waiting & self.dispatcher.tasks.keys()) - ready.keys()
        limits = [available.get(name) for name in ("_nodes", "_job_count")]
        most = min((n for n in limits if isinstance(n, int)), default=math.inf) - len(others)
        places = self.dispatcher.round(ready, later, most)
        for name in places:
            job = ready[name]
            self._send_to(job, places[name])
            self.tries[name] = job.attempt
        self._say_waiting()
        # slots are counted from what Slurm says, not from jobs that Snakemake has yet to see end
        pools = {pool.name for pools in self.dispatcher.cluster.survey.pools.values()
                 for pool in pools}  # fmt: skip
        rest = {name: n for name, n in available.items() if name not in pools}
        chosen = first_fit([*others, *(ready[name] for name in places)], rest)
        for name in places:
            if ready[name] not in chosen:
                self.dispatcher.withdraw(name)
        return chosen

    def _read_stated(self, task: Task, job: Any) -> None:
        """Note, once a try, what a plain rule asks for: by now its input is there."""
        if self._read.get(task.name) == job.attempt:
            return
        self._read[task.name] = job.attempt
        if job.attempt == 1:
            self.plan.estimates.forget(job.rule.name, job.wildcards)
        else:
            stated = stated_shape_of(job)
            task.least_mem_mb, task.least_min = stated.mem_mb, stated.runtime_min

    def _send_to(self, job: Any, place: Place) -> None:
        """Have Snakemake ask all resource functions of a job again, and set what none gives."""
        task = self.dispatcher.tasks[name_of(job)]
        unset: dict[str, Any] = {"slurm_extra": None}
        if job.rule.name not in self.plan.rules:
            unset |= dict.fromkeys(STATED)
        adapter.change_resources(job, next(self._numbers), unset)
        values: dict[str, Any] = {}
        if place.exclude:  # what the user gave stays
            own, exclude = job.resources.get("slurm_extra"), f"--exclude={','.join(place.exclude)}"
            values["slurm_extra"] = f"{own} {exclude}" if own else exclude
        if job.rule.name not in self.plan.rules:
            values |= resources_at(place, job, task.job.fixed, failed=bool(task.past.causes))
        if values:
            adapter.change_resources(job, next(self._numbers), values)

    def _say_waiting(self) -> None:
        """Say why ready jobs wait, each reason every few minutes at most."""
        now_s = time.monotonic()
        for why, count in Counter(self.dispatcher.why_waiting.values()).items():
            if now_s - self._said.get(why, -math.inf) > _SAY_S:
                self._said[why] = now_s
                self.logger.info(f"{count} ready jobs wait: {why}")

    def _settle(self, ready: dict[str, Any]) -> None:
        """Note which of the jobs that were sent have ended; those given up leave ``ready``."""
        for name, task in self.dispatcher.tasks.items():
            if task.place is None:
                continue
            job = self.jobs[name]
            if self.dag.finished(job):
                self.dispatcher.done(name)
            elif name in ready or adapter.failed(self.dag, job):
                found = self.dispatcher.failed(name)
                why = task.past.causes[-1] if task.past.causes else "it was moved"
                self.logger.info(f"{name} ended early ({why}) and {found.next}")
                if found.free and name in ready:
                    job.attempt = self.tries.get(name, job.attempt)
                elif found.give_up and name in ready:
                    adapter.give_up(self.dag, job)
                    del ready[name]

    def close(self) -> None:
        """Write how the last jobs ended, and stop looking after pending ones."""
        self._ended.set()
        self._settle({})

    def _tend(self) -> None:
        """Every few seconds move jobs that would end sooner, and keep the executor awake."""
        while not self._ended.wait(_TEND_S):
            try:
                self._tend_once()
            except Exception:
                self.logger.exception("looking after pending jobs failed; it is tried again")

    def _tend_once(self) -> None:
        for name, task in list(self.dispatcher.tasks.items()):
            if task.place is not None and self.dag.finished(self.jobs[name]):
                self.dispatcher.done(name)  # else the ledger has it with the next round

        def movable(name: str) -> bool:
            return bool(adapter.has_tries(self.jobs[name]))

        moved = self.dispatcher.move_pending(movable)
        if adapter.started(self.dag) and adapter.starts_jobs(self.dag):
            moved += self.dispatcher.restart_sooner(movable)
        for name in moved:
            task = self.dispatcher.tasks[name]
            self.logger.info(f"{name}: {task.refused or f'{task.moved}; it is placed again'}")
        for sentence in self.dispatcher.explain_pending():
            self.logger.warning(sentence)
        for name, (why, success) in self.dispatcher.lost().items():
            if adapter.end(self.dag, self.jobs[name], why, success=success):
                self.logger.warning(f"{name}: {why}, which Snakemake's executor does not see")
        if adapter.started(self.dag):
            # one more call of `squeue`, as often as our own
            adapter.look_at_jobs_after(self.dag, self.dispatcher.cluster.client.ttl_s)
            adapter.wake(self.dag)
