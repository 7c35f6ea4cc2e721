"""One run: Snakemake's jobs as placement's tasks, and placement's answers as Snakemake's."""

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
from tilewright.placement.anew import begin_anew
from tilewright.placement.cluster import Cluster
from tilewright.placement.dispatch import Dispatcher
from tilewright.placement.errors import PlacementError
from tilewright.placement.jobs import Fixed, Place, Task, key_of
from tilewright.placement.ledger import Ledger
from tilewright.placement.preflight import check_sizes
from tilewright.placement.resources import Plan
from tilewright.placement.watch import soonest_end_s, tend

_TEND_S = 5.0
_SAY_S = 300.0
_LAZY_S = 50.0  # jobs of hours need no glance every 10 s, those of seconds one every 5
_EAGER_S = 5.0


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
        self._glance_s = 0.0
        self.dispatcher = Dispatcher(
            cluster, plan, Ledger(plan.ledger), str(dag.workflow.workdir_init)
        )
        self.load()
        self.dispatcher.begin()
        room = self.dispatcher.room()
        if isinstance(room, str):
            raise PlacementError(f"Slurm does not answer: {room}; try again when it does")
        check_sizes(self.dispatcher.tasks.values(), room, plan)
        plan.close = lambda: self._settle({})
        threading.Thread(target=self._tend, name="tilewright-tend", daemon=True).start()

    def load(self) -> None:
        """Take the jobs of the DAG that placement is asked for."""
        chosen: dict[str, Fixed] = {}
        tasks = []
        routed = [job for job in self.dag.needrun_jobs() if self._routed(job)]
        named = {key_of(job.rule.name, job.wildcards): job for job in routed}
        self.jobs |= named
        for name, job in named.items():
            rule, wildcards = job.rule.name, job.wildcards
            if rule not in chosen:
                chosen[rule] = self._fixed(job)
            tasks.append(
                Task(
                    name,
                    rule,
                    wildcards,
                    self.plan.sizes.kinds(rule),
                    tuple(
                        key_of(need.rule.name, need.wildcards)
                        for need in self.dag.job_dependencies(job)
                    ),
                    self.plan.sizes.nominal_s(rule, wildcards),
                    self.plan.sizes.group(wildcards),
                    chosen[rule],
                    str(job.log[0]) if len(job.log) else "",
                )
            )
        self.dispatcher.load(tasks)

    def _routed(self, job: Any) -> bool:
        """Return whether a job's rule asks placement: no target, no group, no foreign rule."""
        return not job.is_group() and not job.is_local and "slurm_account" in job.rule.resources

    def _fixed(self, job: Any) -> Fixed:
        """Return what the user chose with ``--set-resources`` and ``--set-threads``."""
        settings, rule = self.dag.workflow.resource_settings, job.rule.name
        chosen = settings.overwrite_resources.get(rule, {})

        def value(*names: str) -> Any:
            return job.resources.get(names[-1]) if any(name in chosen for name in names) else None

        return Fixed(
            value("slurm_account"),
            job.threads if rule in settings.overwrite_threads else None,
            value("mem", "mem_mb"),
            value("runtime"),
        )

    def select(
        self,
        selectable: Sequence[Any],
        remaining: Sequence[Any],
        available: Mapping[str, int | str],
    ) -> list[Any]:
        """Return the jobs that start now, each with its place in the table."""
        named = {key_of(job.rule.name, job.wildcards): job for job in selectable
                 if not job.is_group()}  # fmt: skip
        ready = {name: job for name, job in named.items() if name in self.dispatcher.tasks}
        routed = set(ready.values())
        others = [job for job in selectable if job not in routed]
        # Snakemake starts a timer after every round, and each ends in a round: one more for each
        # job that ended. `_tend` wakes it instead.
        self.dag.workflow.scheduler._schedule_reevalutation = lambda delay: None
        self._settle(ready)
        waiting = {key_of(job.rule.name, job.wildcards) for job in remaining if not job.is_group()}
        later = (waiting & self.dispatcher.tasks.keys()) - ready.keys()
        places = self.dispatcher.round(ready, later)
        for name in places:
            job = ready[name]
            self._ask_again(job, places[name])
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

    def _ask_again(self, job: Any, place: Place) -> None:
        """Make Snakemake ask all resource functions of a job anew."""
        job._aux_resources.pop("slurm_extra", None)
        job.add_aux_resource(f"placement_{next(self._numbers)}", 1)
        if place.exclude:
            exclude = f"--exclude={','.join(place.exclude)}"
            own = job.resources.get("slurm_extra")
            if own is None:
                job.add_aux_resource("slurm_extra", exclude)
            else:  # what the user gave stays, and Snakemake adds nothing to it
                both = dict(job.resources.items()) | {"slurm_extra": f"{own} {exclude}"}
                job._resources = type(job.resources)(fromdict=both)

    def _say_waiting(self) -> None:
        """Say why ready jobs wait, each reason every few minutes at most."""
        now_s = time.monotonic()
        for why, count in Counter(self.dispatcher.why_waiting.values()).items():
            if now_s - self._said.get(why, -math.inf) > _SAY_S:
                self._said[why] = now_s
                self.logger.info(f"{count} ready jobs wait: {why}")

    def _settle(self, ready: dict[str, Any]) -> None:
        """Note which of the jobs that were sent have ended; those given up leave ``ready``."""
        scheduler = self.dag.workflow.scheduler
        for name, task in self.dispatcher.tasks.items():
            if task.place is None:
                continue
            job = self.jobs[name]
            if self.dag.finished(job):
                self.dispatcher.done(name)
            elif name in ready or job in scheduler.failed:
                verdict = self.dispatcher.failed(name)
                self.logger.info(f"{name} failed ({task.past.causes[-1:]}) and {verdict.next}")
                if verdict.free and name in ready:
                    job.attempt = self.tries.get(name, job.attempt)
                elif verdict.give_up and name in ready:
                    self._give_up(job)
                    del ready[name]

    def _give_up(self, job: Any) -> None:
        """Let Snakemake count a job as failed although it has tries left."""
        scheduler = self.dag.workflow.scheduler
        scheduler.failed.add(job)
        scheduler._errors = True
        self.dag._ready_jobs.discard(job)
        scheduler._open_jobs.release()

    def _tend(self) -> None:
        """Every few seconds move jobs that would end sooner, and keep the executor awake."""
        pause = threading.Event()
        while not pause.wait(_TEND_S):
            try:
                self._tend_once()
            except Exception:
                self.logger.exception("looking after pending jobs failed; it is tried again")

    def _tend_once(self) -> None:
        moved = tend(self.dispatcher, self._has_tries)
        if time.monotonic() > self._glance_s and not self._ending():
            moved += begin_anew(self.dispatcher, self._has_tries)
            self._glance_s = time.monotonic() + self.dispatcher.cluster.site.patience_s / 2
        for name in moved:
            self.logger.info(f"{name}: {self.dispatcher.tasks[name].moved}; placed anew")
        scheduler = self.dag.workflow.scheduler
        if scheduler is not None:
            # it adds 10 s to this after each idle round, up to 180: freed slots idle as long
            wait_s = min(_LAZY_S, soonest_end_s(self.dispatcher) / 4 - _EAGER_S)
            scheduler._executor.next_seconds_between_status_checks = wait_s
            scheduler._open_jobs.release()

    def _ending(self) -> bool:
        """Return whether Snakemake only waits for what runs: what is ended would not begin anew."""
        workflow = self.dag.workflow
        scheduler = workflow.scheduler
        if scheduler is None:
            return True
        failed = scheduler._errors and not workflow.execution_settings.keep_going
        return bool(scheduler._user_kill or scheduler._executor_error or failed)

    def _has_tries(self, name: str) -> bool:
        """Return whether Snakemake would try a job again: on its last try it is not moved."""
        job = self.jobs[name]
        return bool(job.restart_times > job.attempt - 1)
