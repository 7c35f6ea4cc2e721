"""The state of one run: which ready jobs start now and where, which are moved, how each ended.

It knows jobs and Slurm, not Snakemake; the scheduler plugin translates. Every decision goes to
the ledger.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from snakemake_scheduler_plugin_tilewright.placement.avoided import AvoidedPlaces
from snakemake_scheduler_plugin_tilewright.placement.capacity import (
    Capacity,
    Claim,
    claim_at,
    claim_of,
)
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.failures import (
    NextTry,
    find_cause,
    next_try,
    why_no_retry,
)
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    KINDS,
    Job,
    Kind,
    Place,
    Task,
    observe,
)
from snakemake_scheduler_plugin_tilewright.placement.ledger import Ledger
from snakemake_scheduler_plugin_tilewright.placement.limits import partition_of
from snakemake_scheduler_plugin_tilewright.placement.pending import PendingJobs
from snakemake_scheduler_plugin_tilewright.placement.resources import Placement
from snakemake_scheduler_plugin_tilewright.placement.round import Round, Start
from snakemake_scheduler_plugin_tilewright.placement.sizing import Shapes
from snakemake_scheduler_plugin_tilewright.placement.submission_lock import SubmissionLock
from snakemake_scheduler_plugin_tilewright.placement.workload import GpuSlots, Workload
from snakemake_scheduler_plugin_tilewright.slurm.jobs import ACTIVE, ODD, SlurmJob, stale_jobs
from snakemake_scheduler_plugin_tilewright.slurm.query import Unknown

#: Estimates are made again this often: a new workload of 10,000 jobs takes 50 ms.
_ESTIMATES_S = 60.0
#: A state that the executor does not know must last so long: a requeued job leaves it by itself.
_ODD_S = 20.0
_DONE = "COMPLETED"
#: Where a move cancelled it, a job that is cancelled counts too.
_UNSEEN = ODD | {"CANCELLED"}


@dataclass
class Dispatcher:
    """Places the jobs of one run.

    Attributes
    ----------
    workdir : str
        Where the jobs run; with the comment it tells this run's jobs in the queue.
    clock : callable
        Seconds since the epoch.
    bad_nodes : dict of str to set of str
        Device kind to nodes that are not used any more in this run.
    gpu_slots : GpuSlots
        What the last round knew of the number of GPU slots.
    why_waiting : dict of str to str
        Why the jobs that the last round did not start wait.
    kinds : set of str
        Device kinds that may run any of the jobs; nothing is said of others.
    avoided : AvoidedPlaces
        Account and device kind that jobs were moved away from.
    pending : PendingJobs
        Looks after the jobs that pend.
    """

    cluster: Cluster
    placement: Placement
    ledger: Ledger
    workdir: str
    clock: Callable[[], float] = time.time
    tasks: dict[str, Task] = field(default_factory=dict)
    bad_nodes: dict[Kind, set[str]] = field(default_factory=lambda: {"gpu": set(), "cpu": set()})
    lock: threading.RLock = field(default_factory=threading.RLock)
    gpu_slots: GpuSlots = field(default_factory=GpuSlots)
    why_waiting: dict[str, str] = field(default_factory=dict)
    kinds: set[Kind] = field(default_factory=set)
    first_id: int = 0
    avoided: AvoidedPlaces = field(init=False)
    pending: PendingJobs = field(init=False)
    submissions: SubmissionLock = field(init=False)
    _work: Workload | None = None
    _work_s: float = 0.0

    def __post_init__(self) -> None:
        client = self.cluster.client
        self.avoided = AvoidedPlaces(self.cluster.site.patience_s)
        self.pending = PendingJobs(self.cluster, self.ledger, self.avoided, self.workdir,
                                   lambda: self.clock())  # fmt: skip
        self.submissions = SubmissionLock(client.cache_dir / "claims", client.ttl_s)

    def begin(self, capacity: Capacity) -> None:
        """Write what the run starts from; jobs in the queue by now are not this run's."""
        survey = self.cluster.look()
        queue = self.cluster.queue()
        if not isinstance(queue, Unknown):
            self.first_id = max((job.id for job in queue), default=0)
        self.kinds = {kind for task in self.tasks.values() for kind in task.job.kinds}
        pools = list(survey.pools)
        if not self.placement.models:  # its jobs are not of the site's sizes
            shapes = Shapes(self.placement.estimates, capacity).largest(self.tasks.values())
            pools += replace(survey, shapes=shapes).pools
        self.ledger.write(
            "run",
            run=uuid.uuid4().hex[:8],
            user=survey.user,
            kinds=sorted(self.kinds),
            pools={p.name: [p.account, p.kind, p.slots] for p in pools},
            left_out={left.account: left.reason for left in survey.left_out},
            notes=[note.text for note in survey.notes],
        )

    def load(self, jobs: Iterable[Job]) -> None:
        """Take jobs of the DAG; what happened to those that were there stays."""
        with self.lock:
            for job in jobs:
                self.tasks.setdefault(job.name, Task(job)).job = job
            self._work = None

    def round(
        self, ready: Collection[str], later: Collection[str], most: float = math.inf
    ) -> dict[str, Place]:
        """Choose which ready jobs, ``most`` at most, start now: for the table and the ledger.

        Where Slurm does not answer nothing starts, and the reason is said once.
        """
        with self.lock, self.submissions.alone() as alone:
            if not alone:
                note = "other runs of yours may choose at the same time: no lock could be had"
                self.ledger.write_change("notes", "claims", notes=[note])
            capacity = self.capacity()
            if isinstance(capacity, Unknown):
                if self.ledger.write_change(
                    "hold", "slurm", reason=str(capacity), ready=len(ready)
                ):
                    self.why_waiting = dict.fromkeys(ready, str(capacity))
                return {}
            doubles = self._cancel_doubles(ready)
            tasks = [self.tasks[name] for name in ready if name not in doubles]
            self._write_room(capacity, tasks)
            round_ = self.begin_round(capacity)
            coming = [self.tasks[name] for name in later]
            self.gpu_slots = round_.place(tasks, coming, self.gpu_slots, most)
            self.why_waiting = round_.why | dict.fromkeys(
                doubles, "an earlier try of it is still in the queue and is cancelled"
            )
            sent = {found.task.name: self._send(found) for found in round_.placements}
            waiting = self.waiting()
            self.ledger.write_change("wait", "ready", ready=len(self.why_waiting), why=waiting)
            idle = not any(task.active for task in self.tasks.values())
            if ready and idle and any(self.bad_nodes.values()):
                # nothing else is left: a node may be well again, and retries are bounded
                self.ledger.write("forgive", nodes=sorted(set.union(*self.bad_nodes.values())))
                self.bad_nodes = {"gpu": set(), "cpu": set()}
            where = self.cluster.survey.where
            self._claim([claim_of(place, where(place)) for place in sent.values()])
            return sent

    def waiting(self) -> Counter[str]:
        """Return why the jobs of Snakemake wait that the last round did not start, with numbers."""
        found: Counter[str] = Counter()
        for name, why in self.why_waiting.items():
            found[why] += self.tasks[name].job.members
        return found

    def _write_room(self, capacity: Capacity, ready: Iterable[Task]) -> None:
        """Write what is closed, of the device kinds that jobs may run on, and what is not known.

        Of some jobs their kinds are known only when they are ready.
        """
        if more := {kind for task in ready for kind in task.job.kinds} - self.kinds:
            self.kinds |= more
            self.ledger.write("kinds", kinds=sorted(self.kinds))
        closed = {f"{a} {kind}": why for (a, kind), why in capacity.closed.items()
                  if kind in self.kinds}  # fmt: skip
        self.ledger.write_change("room", "slurm", closed=closed)
        notes = [note.text for note in self.cluster.survey.notes]
        self.ledger.write_change("notes", "survey", notes=notes)

    def begin_round(self, capacity: Capacity) -> Round:
        """Return a round with all that is known now."""
        active = [task for task in self.tasks.values() if task.active]
        return Round(
            self.workload(), self.placement, capacity, active, self.bad_nodes, self.clock()
        )

    def workload(self) -> Workload:
        """Return all jobs with estimates that are at most a minute old."""
        now_s = self.clock()
        if self._work is None or now_s - self._work_s > _ESTIMATES_S:
            jobs = [task.job for task in self.tasks.values()]
            self._work, self._work_s = self.placement.estimates.workload(jobs), now_s
        return self._work

    def capacity(self) -> Capacity | Unknown:
        """Return what fits where now, or why that is not known."""
        queue = self.cluster.queue()
        if isinstance(queue, Unknown):
            return queue
        observe(self.tasks.values(), queue, self.workdir)
        survey = self.cluster.look()
        unknown = survey.unknown()
        if unknown is not None:
            return unknown
        sent = [
            claim_of(task.place, survey.where(task.place))
            for task in self.tasks.values()
            if task.waiting and task.place
        ]
        sent += self._on_their_way()
        sent += self.submissions.others(self.cluster.client.queue_asked_s())
        capacity = survey.capacity(queue, sent, self.workdir)
        for kind, nodes in self.bad_nodes.items():
            partition = survey.partitions[kind]
            if partition is not None and len(nodes) >= partition.nodes:
                why = f"every node of {partition.name} failed in this run: {', '.join(nodes)}"
                capacity = capacity.without(kind, why)
        for task in self.tasks.values():
            if task.place and task.runs and task.seen:
                place = task.place
                self.avoided.works((place.account, place.kind), task.sent_s, task.seen.start_s)
        avoided = self.avoided.now(self.clock())
        closed = {key: one.why for key, one in avoided.items() if one.for_all}
        return replace(
            capacity,
            closed={**capacity.closed, **closed},
            avoided={key: one.why for key, one in avoided.items()},
            invalid=frozenset(key for key, one in avoided.items() if one.invalid),
        )

    def _send(self, found: Start) -> Place:
        task, place, job = found.task, found.place, found.task.job
        task.after_id = max(self.first_id, task.seen.id if task.seen else 0, task.after_id)
        task.place, task.sent_s, task.seen, task.moved = place, self.clock(), None, ""
        task.bound = None
        self.ledger.write(
            "place", job=job.name, rule=job.rule, pool=place.pool, account=place.account,
            kind=place.kind, cpus=place.shape.cpus, mem_mb=place.shape.mem_mb,
            gpus=place.shape.gpus, runtime_min=place.shape.runtime_min, reason=found.reason,
            estimate_s=round(found.estimate_s, 1), exclude=list(place.exclude) or None,
        )  # fmt: skip
        return place

    def withdraw(self, name: str) -> None:
        """Take back a place that could not be used in this round."""
        with self.lock:
            self.tasks[name].place = None
            self.ledger.write("withdraw", job=name, reason="another limit of Snakemake is reached")

    def done(self, name: str, known_s: float = math.inf) -> None:
        """Note that a job finished, and learn from its duration.

        Parameters
        ----------
        known_s : float
            When it was known to have ended: what the queue has not said of it since is not asked
            again. Of 50 jobs that ended at once each would cost a call where Slurm forgets them.
        """
        with self.lock:
            task = self.tasks[name]
            if task.place is None:
                return
            place, seen = task.place, self._seen(task, known_s)
            start_s, end_s = (seen.start_s, seen.end_s) if seen else (None, None)
            if start_s and end_s and seen and seen.state == "COMPLETED":
                self.placement.estimates.durations.learn(
                    task.job.rule, place.kind, task.job.nominal_s, end_s - start_s
                )
            self.ledger.write(
                "done", job=name, rule=task.job.rule, pool=place.pool, account=place.account,
                kind=place.kind, slurm_id=seen.id if seen else None,
                node=seen.nodes if seen else None, start_s=start_s or task.sent_s,
                end_s=end_s or self.clock(), sent_s=task.sent_s,
                members=task.job.members if task.job.members > 1 else None,
            )  # fmt: skip
            task.place = None

    def failed(self, name: str) -> NextTry:
        """Find out why a job failed and what it gets next."""
        with self.lock:
            task = self.tasks[name]
            job, place, seen = task.job, task.place, self._seen(task)
            cause, words, node, log = find_cause(self.cluster.client, seen, job.log, task.sent_s)
            found = next_try(task.past, cause, words, node, moved=bool(task.moved))
            if task.refused:
                found = NextTry(task.past, task.refused, give_up=True)
            if place is not None:
                survey = self.cluster.survey
                why = why_no_retry(
                    job, place, cause, survey.accounts, survey.partitions, survey.named
                )
                found = NextTry(found.past, why, give_up=True) if why else found
            task.past = found.past
            answers = not isinstance(self.cluster.queue(), Unknown)  # else sbatch takes nothing
            closed = answers and not any(one.taken_as(task) for one in self.tasks.values())
            if place is not None and cause == "refused" and closed:
                self.pending.avoid(place.account, [place.kind], f"{words}: {name}", for_all=True)
            if place is not None and cause == "budget":
                kinds = KINDS[:1] if "gres" in words.lower() else KINDS  # a GPU's leaves CPUs open
                self.pending.avoid(place.account, kinds, f"{words}: {name}", for_all=True)
            if not task.moved:  # what it was moved for may be over by now
                task.left, task.bound = frozenset(), None
            if node and place is not None and cause in ("node", "device"):
                self.bad_nodes[place.kind].add(node)
            self.ledger.write(
                "fail", job=name, rule=job.rule, cause=cause, words=words, next=found.next,
                pool=place.pool if place else None, account=place.account if place else None,
                kind=place.kind if place else None, slurm_id=seen.id if seen else None,
                node=node or None, start_s=seen.start_s if seen else None,
                end_s=(seen.end_s if seen else None) or self.clock(), log=log or None,
                give_up=found.give_up or None,
            )  # fmt: skip
            if seen is not None:
                task.after_id = seen.id
            task.place, task.seen = None, None
            return found

    def _seen(self, task: Task, known_s: float = math.inf) -> SlurmJob | None:
        """Return what the queue says of a job that ended."""
        queue = self.cluster.queue()
        if not isinstance(queue, Unknown):
            observe([task], queue, self.workdir)
            old = self.cluster.client.queue_asked_s() < known_s
            if old and (task.seen is None or task.seen.active):
                self.cluster.client.forget()
                queue = self.cluster.queue()
                if not isinstance(queue, Unknown):  # whether the place took others counts as well
                    observe(self.tasks.values(), queue, self.workdir)
        return task.seen

    def move_pending(self, movable: Callable[[str], bool] = lambda name: True) -> list[str]:
        """Cancel jobs that pend in vain while another place ends them sooner; return their names.

        Parameters
        ----------
        movable : callable
            Whether Snakemake would try a job again.
        """
        with self.lock, self.submissions.alone() as alone:
            tasks = [task for task in self.tasks.values() if task.active]
            if all(task.runs for task in tasks):
                return []
            queue = self.cluster.queue()
            if not isinstance(queue, Unknown):
                observe(tasks, queue, self.workdir)
            if not self.pending.due(tasks):  # nothing else is asked: most jobs start in time
                return []
            capacity = self.capacity()
            if isinstance(capacity, Unknown):
                return []
            tasks = [task for task in tasks if movable(task.name)]
            capacity = self.pending.refreshed(tasks, capacity, self.capacity)
            moved = self.pending.move(tasks, self.begin_round(capacity), self.begin_round)
            if alone and moved:
                self._claim()
            return [task.name for task in moved]

    def explain_pending(self) -> list[str]:
        """Return why jobs pend for long, once for each job and reason; the ledger gets it too."""
        with self.lock:
            return self.pending.explain(self.tasks.values())

    def _on_their_way(self) -> list[Claim]:
        """Return what the tasks that were moved will take: it is kept for them."""
        survey, estimates = self.cluster.survey, self.placement.estimates
        return [
            claim_at(account, estimates.shape(task.job, kind), where)
            for task in self.tasks.values()
            if task.place and task.moved and task.bound
            for account, kind in [task.bound]
            for name in [task.job.fixed.partition]
            for where in [partition_of(kind, name, survey.partitions, survey.named)]
        ]

    def _claim(self, sent: Sequence[Claim] = ()) -> None:
        """Have the other runs count what is sent now and what is on its way."""
        self.submissions.add(list(sent), self._on_their_way())

    def lost(self) -> dict[str, tuple[str, bool]]:
        """Return the jobs whose end Snakemake's executor does not see: why, and if they are done.

        Preempted and revoked jobs are left by it to Slurm, and those that slurmctld forgets are
        taken to run for ever. Jobs that were cancelled here to be placed again it would see up to
        a minute later.
        """
        with self.lock:
            queue = self.cluster.queue()
            if isinstance(queue, Unknown):
                return {}
            observe(self.tasks.values(), queue, self.workdir)
            there, now_s = {job.id for job in queue}, self.clock()
            found: dict[str, tuple[str, bool]] = {}
            for task in self.tasks.values():
                seen = task.seen
                odd = seen is not None and (seen.state in _UNSEEN or seen.id not in there)
                if task.place is None or seen is None or not odd:
                    task.odd_s = None
                    continue
                task.odd_s = now_s if task.odd_s is None else task.odd_s
                moved = bool(task.moved or task.refused) and seen.state == "CANCELLED"
                if now_s - task.odd_s < _ODD_S and not moved:
                    continue
                state = seen.state
                if seen.id not in there:
                    said = self.cluster.client.final_state(seen.id)
                    state = "lost" if isinstance(said, Unknown) or not said else said
                elif state == "SPECIAL_EXIT":
                    self.cluster.client.cancel([seen.id])
                if state not in ACTIVE:
                    why = " to be placed again" if task.moved and moved else ""
                    found[task.name] = (
                        f"Slurm job {seen.id} is {state.lower()}{why}",
                        state == _DONE,
                    )
            return found

    def _cancel_doubles(self, ready: Collection[str]) -> set[str]:
        """Cancel what the queue still has of jobs that are to be sent, and name those jobs.

        sbatch may say that slurmctld did not answer although the job was taken.
        """
        queue = self.cluster.queue()
        if isinstance(queue, Unknown):
            return set()
        found = [job for job in stale_jobs(queue, self.workdir) if job.comment in ready]
        wanted = [job.id for job in found if job.state != "COMPLETING"]
        if wanted:
            self.cluster.client.cancel(wanted)
            self.ledger.write("cancel", slurm_ids=wanted, reason="an earlier try of a ready job")
        return {job.comment for job in found}
