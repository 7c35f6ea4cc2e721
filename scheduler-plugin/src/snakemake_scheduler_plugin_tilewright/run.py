"""One run: Snakemake's jobs as placement's, and placement's answers as Snakemake's."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from snakemake_scheduler_plugin_tilewright.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.fit import first_fit
from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher
from snakemake_scheduler_plugin_tilewright.placement.jobs import KINDS, Place, rule_of
from snakemake_scheduler_plugin_tilewright.placement.ledger import Ledger
from snakemake_scheduler_plugin_tilewright.placement.limits import pool_name
from snakemake_scheduler_plugin_tilewright.placement.preflight import check_sizes
from snakemake_scheduler_plugin_tilewright.placement.resources import MODEL, Placement
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter as adapter
from snakemake_scheduler_plugin_tilewright.slurm.query import Unknown
from snakemake_scheduler_plugin_tilewright.stated import fixed_of, resources_at, stated_shape_of
from snakemake_scheduler_plugin_tilewright.units import Units

_TEND_S = 5.0
_SAY_S = 300.0


class Run:
    """Answers the scheduler plugin for one DAG.

    Raises
    ------
    PlacementError
        A job would pend for ever, or Slurm does not answer.
    """

    def __init__(
        self, dag: Any, cluster: Cluster, placement: Placement, logger: logging.Logger
    ) -> None:
        if placement.ledger is None:
            raise PlacementError("placement has no ledger; name a file for it in the Snakefile")
        self.dag, self.placement, self.logger = dag, placement, logger
        self.units = Units(dag, placement)
        self.jobs, self._names = self.units.by_name, self.units.names
        self.tries: dict[str, int] = {}
        self._said: dict[str, float] = {}
        self._read: dict[Any, int] = {}
        self._ended = threading.Event()
        self.dispatcher = Dispatcher(
            cluster, placement, Ledger(placement.ledger), adapter.workdir(dag)
        )
        self.load(dag.needrun_jobs())
        capacity = self.dispatcher.capacity()
        if isinstance(capacity, Unknown):
            raise PlacementError(f"Slurm does not answer: {capacity}; try again when it does")
        self._check(self.jobs, capacity)
        self.dispatcher.begin(capacity)  # a run that is refused is none in the ledger
        placement.at_end(self.close)
        threading.Thread(target=self._tend, name="tilewright-tend", daemon=True).start()

    def load(self, jobs: Iterable[Any]) -> None:
        """Take the jobs and groups that are not known yet: all at first, then a checkpoint's."""
        if new := self.units.take(jobs):
            self.dispatcher.load(new)

    def _check(self, names: Iterable[str], capacity: Capacity) -> None:
        """Refuse what could never run.

        Raises
        ------
        PlacementError
            No account takes it, or it is a group of which placement should choose each job's place.
        """
        for unit in [self.jobs[name] for name in names if self.jobs[name].is_group()]:
            modelled = {one.rule.name for one in unit.jobs if adapter.constant(one, MODEL)}
            if modelled:
                raise PlacementError(
                    f"rule {min(modelled)} asks placement where each of its jobs runs, so none can "
                    f"be in a group; take it out of group {unit.groupid}"
                )
        tasks = [self.dispatcher.tasks[name] for name in names]
        check_sizes(tasks, capacity, self.placement.estimates)

    def select(
        self,
        selectable: Sequence[Any],
        remaining: Sequence[Any],
        available: Mapping[str, int | str],
    ) -> list[Any]:
        """Return the jobs that start now, each with its place in the table."""
        adapter.without_timers(self.dag)  # `_tend` wakes Snakemake instead
        adapter.keep_ready(self.dag, selectable)
        self._settle({})  # before a job of the same name is taken
        self.load([*remaining, *(job for job in selectable if job.is_group())])
        ready = {name: job for job in selectable if (name := self._names.get(job))}
        others = [job for job in selectable if self._names.get(job) == ""]
        for name, job in ready.items():
            if job is not self.jobs[name]:  # a group that Snakemake made anew
                job.attempt, self.jobs[name] = self.jobs[name].attempt, job
        self._settle(ready)
        self._read_stated(ready)
        waiting = {self._names.get(job, "") for job in remaining}
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
        accounts = self.dispatcher.cluster.survey.accounts
        pools = {pool_name(account.name, kind) for account in accounts for kind in KINDS}
        rest = {name: n for name, n in available.items() if name not in pools}
        chosen = first_fit([*others, *(ready[name] for name in places)], rest)
        for name in places:
            if ready[name] not in chosen:
                self.dispatcher.withdraw(name)
        return chosen

    def _read_stated(self, ready: dict[str, Any]) -> None:
        """Note, once a try, what plain jobs ask for: by now their input is there.

        Those that by now ask for more than any account has are given up, and leave ``ready``.
        """
        first = []
        for name, job in ready.items():
            if adapter.constant(job, MODEL) or self._read.get(job) == job.attempt:
                continue
            self._read[job] = job.attempt
            if job.is_group() or job.attempt > 1:
                adapter.forget_resources(job)
            task, stated = self.dispatcher.tasks[name], stated_shape_of(job)
            if job.attempt == 1:
                task.job = self.units.restated(task.job, job)
                self.placement.estimates.forget(name)
                first.append(name)
            else:
                task.least_mem_mb, task.least_min = stated.mem_mb, stated.runtime_min
        with self.dispatcher.lock:  # the other thread asks as well
            capacity = self.dispatcher.capacity() if first else None
        if capacity is None or isinstance(capacity, Unknown):
            return
        try:
            self._check(first, capacity)  # jobs that are alike are looked at once
        except PlacementError:
            for name in first:
                try:
                    self._check([name], capacity)
                except PlacementError as error:
                    self._give_up(name, ready.pop(name), str(error))

    def _give_up(self, name: str, job: Any, why: str) -> None:
        """Let a job fail that no account could ever run, and the others go on."""
        self.logger.error(f"{name} is given up: {why}")
        self.dispatcher.ledger.write(
            "fail", job=name, rule=rule_of(job), cause="impossible", words=why, give_up=True,
            next="is given up", end_s=time.time(), log=str(job.log[0]) if len(job.log) else None,
        )  # fmt: skip
        adapter.give_up(self.dag, job)

    def _send_to(self, job: Any, place: Place) -> None:
        """Set the resources of a job that starts: its place, and what it asks for there."""
        name, model = self._names[job], adapter.constant(job, MODEL)
        if name in self.tries:  # else the rule was just asked, and nothing was set
            adapter.forget_resources(job)
        if model:
            values = self._placed(job, model, place)
        else:
            failed = bool(self.dispatcher.tasks[name].past.causes)
            values = resources_at(place, job, failed=failed)
        if place.exclude:  # what the user gave stays
            own, exclude = job.resources.get("slurm_extra"), f"--exclude={','.join(place.exclude)}"
            values["slurm_extra"] = f"{own} {exclude}" if own else exclude
        adapter.assign(self.dag, job, values)

    def _placed(self, job: Any, model: str, place: Place) -> dict[str, Any]:
        """Return the resources of a job at a place, but for what the user chose."""
        chosen = adapter.overridden(job, self.placement.given(model))
        values = self.placement.values(model, place.shape, place)
        return {name: value for name, value in values.items() if name not in chosen}

    def send_anywhere(self, jobs: Iterable[Any]) -> None:
        """Give jobs that could not be placed an account that may be used: the default may not."""
        accounts = self.dispatcher.cluster.survey.accounts
        for job in jobs:
            if job.is_local or not accounts or not accounts[0].name:
                continue
            if model := adapter.constant(job, MODEL):
                values = self._placed(job, model, self.placement.static(model, job.wildcards))
            elif not fixed_of(job, accounts).account:
                values = {"slurm_account": accounts[0].name}
                if not job.resources.get("qos"):
                    values["qos"] = accounts[0].qos
            else:
                continue
            adapter.assign(self.dag, job, values)
            self.tries.setdefault(self._names.get(job, ""), job.attempt)

    def _say_waiting(self) -> None:
        """Say why ready jobs wait, each reason every few minutes at most."""
        now_s = time.monotonic()
        for why, number in self.dispatcher.waiting().items():
            if now_s - self._said.get(why, -math.inf) > _SAY_S:
                self._said[why] = now_s
                ready = f"{number} ready jobs wait" if number > 1 else "a ready job waits"
                self.logger.info(f"{ready}: {why}")

    def _settle(self, ready: dict[str, Any]) -> None:
        """Note which of the jobs that were sent have ended; those given up leave ``ready``."""
        self._note_ends()
        for task in [one for one in self.dispatcher.tasks.values() if one.place is not None]:
            name = task.job.name
            job = self.jobs[name]
            if name in ready or adapter.failed(self.dag, job):
                found = self.dispatcher.failed(name)
                why = task.past.causes[-1] if task.past.causes else "it was moved"
                self.logger.info(f"{name} ended early ({why}) and {found.next}")
                if found.free and name in ready:
                    job.attempt = self.tries.get(name, job.attempt)
                elif found.give_up and name in ready:
                    adapter.give_up(self.dag, job)
                    del ready[name]

    def _note_ends(self) -> None:
        """Note which of the jobs that were sent have finished."""
        tasks = list(self.dispatcher.tasks.values())  # the other thread may add some
        sent = [task.job.name for task in tasks if task.place is not None]
        ended = [name for name in sent if adapter.finished(self.dag, self.jobs[name])]
        known_s = self.dispatcher.clock()
        for name in ended:
            self.dispatcher.done(name, known_s)

    def queued(self) -> int:
        """Return how many jobs of Snakemake were sent and pend, as far as the queue says."""
        tasks = list(self.dispatcher.tasks.values())  # the other thread may add some
        return sum(task.job.members for task in tasks if task.pends)

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
        self._note_ends()  # else the ledger has them with the next round

        def movable(name: str) -> bool:
            return bool(adapter.has_tries(self.jobs[name]))

        for name in self.dispatcher.move_pending(movable):
            task = self.dispatcher.tasks[name]
            self.logger.info(f"{name}: {task.refused or f'{task.moved}; it is placed again'}")
        for sentence in self.dispatcher.explain_pending():
            self.logger.warning(sentence)
        for name, (why, success) in self.dispatcher.lost().items():
            task = self.dispatcher.tasks[name]
            own = task.moved or task.refused  # said above
            if adapter.end(self.dag, self.jobs[name], why, success=success) and not own:
                self.logger.warning(f"{name}: {why}, which Snakemake's executor does not see")
        if adapter.started(self.dag):
            # one more call of `squeue`, as often as our own
            adapter.look_at_jobs_after(self.dag, self.dispatcher.cluster.client.ttl_s)
            adapter.wake(self.dag)
