"""One run: Snakemake's jobs as placement's, and placement's answers as Snakemake's."""

import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .cluster.cluster import Cluster
from .cluster.request import KINDS, pool_name
from .declared import declared_request, fixed_of, resources_at
from .errors import PlacementError, SlurmQueryError
from .fit import first_fit
from .placement.dispatcher import Dispatcher
from .placement.jobs import Assignment, rule_of
from .placement.reach import check_feasible, infeasible
from .resources import Placement
from .runtime import snakemake_adapter as adapter
from .runtime.ledger import Ledger
from .units import PlacedJobs, model_of, values_of

#: Pending jobs are checked this often (no figure).
_MONITOR_S = 5.0


class Run:
    """Answers the scheduler plugin for one DAG.

    Raises
    ------
    PlacementError
        A job can never start, or Slurm does not answer.
    """

    def __init__(
        self, dag: Any, cluster: Cluster, placement: Placement, logger: logging.Logger
    ) -> None:
        self.dag, self.placement, self.logger = dag, placement, logger
        self.placed_jobs = PlacedJobs(dag, placement)
        self.jobs, self._names = self.placed_jobs.by_name, self.placed_jobs.names
        self.tries: dict[str, int] = {}  # Snakemake's attempt with which each job was last sent
        self._preemptable: set[str] = set()  # where others may end jobs, once this was said
        self._attempts: dict[Any, int] = {}  # the attempt for which its resources were last read
        self._ended = threading.Event()
        ledger, folder = Ledger(placement.ledger), adapter.workdir(dag)
        self.dispatcher = Dispatcher(
            cluster, placement.estimates, ledger, folder, site_sizes=placement.has_models
        )
        self.load(dag.needrun_jobs())
        try:
            state = self.dispatcher.state()
        except SlurmQueryError as error:
            raise PlacementError(
                f"Slurm does not answer: {error}; try again when it does"
            ) from None
        check_feasible(self.dispatcher.tasks.values(), state, placement.estimates)
        self.dispatcher.begin(state)  # a run that is refused is none in the ledger
        placement.at_end(self.close)
        threading.Thread(target=self._monitor, name="tilewright-monitor", daemon=True).start()

    def load(self, jobs: Iterable[Any]) -> None:
        """Take the jobs and groups that are not known yet: all at first, then a checkpoint's."""
        if new := self.placed_jobs.take(jobs):
            self.dispatcher.load(new)

    def select(
        self,
        selectable: Sequence[Any],
        remaining: Sequence[Any],
        available: Mapping[str, int | str],
    ) -> list[Any]:
        """Return the jobs that start now, each with its place among its resources."""
        adapter.without_timers(self.dag)  # `_monitor` wakes Snakemake instead
        adapter.keep_ready(self.dag, selectable)
        self._settle({})  # before a job of the same name is taken
        self.load([*remaining, *(job for job in selectable if job.is_group())])
        ready = {name: job for job in selectable if (name := self._names.get(job))}
        others = [job for job in selectable if self._names.get(job) == ""]
        for name, job in ready.items():
            if job is not self.jobs[name]:  # a group that Snakemake made again
                job.attempt, self.jobs[name] = self.jobs[name].attempt, job
        self._settle(ready)
        self._read_declared(ready)
        waiting = {self._names.get(job, "") for job in remaining}
        later = (waiting & self.dispatcher.tasks.keys()) - ready.keys()
        limits = [available.get(name) for name in ("_nodes", "_job_count")]
        most = min((n for n in limits if isinstance(n, int)), default=math.inf)
        assigned = self.dispatcher.round(ready, later, max(0, most - len(others)))
        for name, assignment in assigned.items():
            self._assign(ready[name], assignment)
            self.tries[name] = ready[name].attempt
            self._say_preemptable(name, assignment)
        # slots are counted from what Slurm says, not from jobs that Snakemake has yet to see end
        accounts = self.dispatcher.cluster.state.accounts
        pools = {pool_name(account.name, kind) for account in accounts for kind in KINDS}
        rest = {name: n for name, n in available.items() if name not in pools}
        chosen = first_fit([*others, *(ready[name] for name in assigned)], rest)
        for name in assigned:
            if ready[name] not in chosen:
                self.dispatcher.withdraw(name)
        return chosen

    def _read_declared(self, ready: dict[str, Any]) -> None:
        """Note, once a try, what jobs without a model declare; those given up leave ``ready``."""
        first = []
        for name, job in ready.items():
            if model_of(self.placement, job) or self._attempts.get(job) == job.attempt:
                continue
            self._attempts[job] = job.attempt  # by now its input is there
            if job.is_group() or job.attempt > 1:
                adapter.forget_resources(job)
            task, request = self.dispatcher.tasks[name], declared_request(job)
            if job.attempt == 1:
                task.job = self.placed_jobs.declared_job(task.job, job)
                self.placement.estimates.forget(name)
                first.append(task)
            else:
                task.least_mem_mb, task.least_min = request.mem_mb, request.runtime_min
        if not first:
            return
        try:
            with self.dispatcher.lock:  # the other thread asks as well
                state = self.dispatcher.state()
        except SlurmQueryError:
            return
        for name, why in infeasible(first, state, self.placement.estimates):
            self._give_up(name, ready.pop(name), why)

    def _give_up(self, name: str, job: Any, why: str) -> None:
        """Let a job fail that no account could ever run, and the others go on."""
        self.logger.error(f"{name} is given up: {why}")
        self.dispatcher.ledger.write(
            "fail", job=name, rule=rule_of(job), cause="impossible", words=why, give_up=True,
            next="is given up", end_s=time.time(), log=str(job.log[0]) if len(job.log) else None,
        )  # fmt: skip
        adapter.give_up(self.dag, job)

    def _assign(self, job: Any, assignment: Assignment) -> None:
        """Set the resources of a job that starts: where it goes, and what it asks for there."""
        name = self._names[job]
        if name in self.tries:  # else the rule was just asked, and nothing was set
            adapter.forget_resources(job)
        if model_of(self.placement, job):
            values = values_of(self.placement, job, assignment.request, assignment.target)
        else:
            failed = bool(self.dispatcher.tasks[name].history.causes)
            values = resources_at(assignment, job, failed=failed)
        if assignment.exclude:  # what the user gave stays; of two such options the last holds
            exclude = f"--exclude={','.join((*assignment.exclude, *assignment.request.not_nodes))}"
            own = job.resources.get("slurm_extra")
            values["slurm_extra"] = f"{own} {exclude}" if own else exclude
        adapter.assign(self.dag, job, values)

    def hear_submissions(self) -> None:
        """Learn from the executor which jobs Slurm takes; look again where others wait for one."""

        def heard(job: Any, refusal: str) -> None:
            task = self.dispatcher.tasks.get(self._names.get(job, ""))
            if task and self.dispatcher.admission.note_submission(task, refusal):
                adapter.wake(self.dag)

        adapter.hear_submissions(self.dag, heard)

    def send_anywhere(self, jobs: Iterable[Any]) -> None:
        """Give jobs that could not be placed an account that may be used: the default may not."""
        accounts = self.dispatcher.cluster.state.accounts
        for job in jobs:
            if job.is_local or not accounts or not accounts[0].name:
                continue
            if model := model_of(self.placement, job):
                static = self.placement.static(model, job.wildcards)
                values = values_of(self.placement, job, static.request, static.target)
            elif not fixed_of(job, accounts).account:
                values = {"slurm_account": accounts[0].name}
                if not job.resources.get("qos"):
                    values["qos"] = accounts[0].qos
            else:
                continue
            adapter.assign(self.dag, job, values)
            self.tries.setdefault(self._names.get(job, ""), job.attempt)

    def _say_preemptable(self, name: str, assignment: Assignment) -> None:
        """Say once of each partition and QOS that jobs go where others may end them."""
        where = self.dispatcher.cluster.state.preempted_in(assignment.target)
        if where and where not in self._preemptable:
            self._preemptable.add(where)
            self.logger.warning(
                f"{name} goes to {where}, where others may preempt it: nothing else is free "
                "(one that was preempted there twice goes elsewhere)"
            )

    def _settle(self, ready: dict[str, Any]) -> None:
        """Note which of the jobs that were sent have ended; those given up leave ``ready``."""
        self._note_ends()
        for task in [one for one in self.dispatcher.tasks.values() if one.assignment is not None]:
            name = task.job.name
            job = self.jobs[name]
            if name in ready or adapter.failed(self.dag, job):
                past = len(task.history.causes)
                found = self.dispatcher.failed(name)
                causes = task.history.causes[past:]
                what = f"failed ({causes[0]})" if causes else "was cancelled"
                self.logger.info(f"{name} {what} and {found.next}")
                if found.free and name in ready:
                    job.attempt = self.tries.get(name, job.attempt)
                elif found.give_up and name in ready:
                    adapter.give_up(self.dag, job)
                    del ready[name]

    def _note_ends(self) -> None:
        """Note which of the jobs that were sent have finished."""
        tasks = list(self.dispatcher.tasks.values())  # the other thread may add some
        sent = [task.job.name for task in tasks if task.assignment is not None]
        ended = [name for name in sent if adapter.finished(self.dag, self.jobs[name])]
        known_s = self.dispatcher.clock()
        for name in ended:
            self.dispatcher.done(name, known_s)

    def queued(self) -> int:
        """Return how many jobs of Snakemake were sent and pend, as far as the queue says."""
        tasks = list(self.dispatcher.tasks.values())  # the other thread may add some
        return sum(task.job.members for task in tasks if task.pending)

    def close(self) -> None:
        """Write how the last jobs ended, and stop looking after pending ones."""
        self._ended.set()
        self._settle({})

    def _monitor(self) -> None:
        """Every few seconds move jobs that pend in vain, and keep the executor awake."""
        while not self._ended.wait(_MONITOR_S):
            try:
                self._monitor_once()
            except Exception:
                self.logger.exception(
                    f"checking pending jobs failed; next try in {_MONITOR_S:.0f} s"
                )

    def _monitor_once(self) -> None:
        self._note_ends()  # else the ledger has them with the next round

        def movable(name: str) -> bool:
            return bool(adapter.has_tries(self.jobs[name]))

        for name in self.dispatcher.move_pending(movable):
            task = self.dispatcher.tasks[name]
            self.logger.info(f"{name}: {task.refused or f'{task.move_reason}; it is moved'}")
        for sentence in self.dispatcher.explain_pending(movable):
            self.logger.warning(sentence)
        ids = adapter.slurm_ids(self.dag).items()
        sent = {key: number for job, number in ids if (key := self._names.get(job))}
        for name, (why, success) in self.dispatcher.unseen_ends(sent).items():
            task = self.dispatcher.tasks[name]
            own = task.move_reason or task.refused  # logged above
            if adapter.end(self.dag, self.jobs[name], why, success=success) and not own:
                self.logger.warning(f"{name}: {why}, which Snakemake's executor does not see")
        if adapter.started(self.dag):
            # one more call of `squeue`, as often as our own
            adapter.look_at_jobs_after(self.dag, self.dispatcher.cluster.client.ttl_s)
            adapter.wake(self.dag)
