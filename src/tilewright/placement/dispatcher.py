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
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from tilewright.placement.avoided import AvoidedPlaces
from tilewright.placement.capacity import Capacity, capacity_now, claim_of
from tilewright.placement.cluster import Cluster
from tilewright.placement.failures import NextTry, find_cause, next_try, why_no_retry
from tilewright.placement.jobs import Job, Kind, Place, Shape, Task, observe
from tilewright.placement.ledger import Ledger
from tilewright.placement.limits import has_room
from tilewright.placement.round import Placement, Round
from tilewright.placement.routing import Plan
from tilewright.placement.submission_lock import SubmissionLock
from tilewright.placement.workload import Strategy, Workload
from tilewright.slurm.jobs import ACTIVE, ODD, SlurmJob, Waiting, stale_jobs, why_pending
from tilewright.slurm.query import Unknown

#: Estimates are made again this often: a new workload of 10,000 jobs takes 50 ms.
_ESTIMATES_S = 60.0
#: A job is moved at most so often.
MOST_MOVES = 3
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
    cluster : Cluster
    plan : Plan
        Its table is written here.
    ledger : Ledger
    workdir : str
        Where the jobs run; with the comment it tells this run's jobs in the queue.
    clock : callable
        Seconds since the epoch.
    tasks : dict of str to Task
    bad_nodes : dict of str to set of str
        Device kind to nodes that are not used any more in this run.
    strategy : Strategy or None
        What the last round followed.
    why_waiting : dict of str to str
        Why the jobs that the last round did not start wait.
    avoided : AvoidedPlaces
        Account and device kind that jobs were moved away from.
    """

    cluster: Cluster
    plan: Plan
    ledger: Ledger
    workdir: str
    clock: Callable[[], float] = time.time
    tasks: dict[str, Task] = field(default_factory=dict)
    bad_nodes: dict[Kind, set[str]] = field(default_factory=lambda: {"gpu": set(), "cpu": set()})
    lock: threading.RLock = field(default_factory=threading.RLock)
    strategy: Strategy | None = None
    why_waiting: dict[str, str] = field(default_factory=dict)
    first_id: int = 0
    avoided: AvoidedPlaces = field(init=False)
    submissions: SubmissionLock = field(init=False)
    _groups: dict[str, str] = field(default_factory=dict)
    _work: Workload | None = None
    _work_s: float = 0.0

    def __post_init__(self) -> None:
        client = self.cluster.client
        self.avoided = AvoidedPlaces(self.cluster.site.patience_s)
        self.submissions = SubmissionLock(client.cache_dir / "claims", client.ttl_s)

    def begin(self) -> None:
        """Write what the run starts from; jobs in the queue by now are not this run's."""
        survey = self.cluster.look()
        queue = self.cluster.queue()
        if not isinstance(queue, Unknown):
            self.first_id = max((job.id for job in queue), default=0)
        self.ledger.write(
            "run",
            run=uuid.uuid4().hex[:8],
            user=survey.user,
            pools={p.name: [p.account, p.kind, p.slots] for p in survey.pools[survey.sharing]},
            sharing=survey.sharing_reason,
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
            closed = {f"{account} {kind}": why for (account, kind), why in capacity.closed.items()}
            self.ledger.write_change("room", "slurm", closed=closed)
            doubles = self._cancel_doubles(ready)
            tasks = [self.tasks[name] for name in ready if name not in doubles]
            round_ = self.begin_round(capacity)
            coming = [self.tasks[name] for name in later]
            self.strategy = round_.place(tasks, coming, self.strategy, most)
            self.why_waiting = round_.why | dict.fromkeys(
                doubles, "an earlier try of it is still in the queue and is cancelled"
            )
            sent = {found.task.name: self._send(found) for found in round_.placements}
            why = Counter(self.why_waiting.values())
            left = round_.free_for(task for task in tasks if task.name in round_.why)
            self.ledger.write_change(
                "wait", "ready", ready=len(self.why_waiting), why=why, free=left
            )
            idle = not any(task.active for task in self.tasks.values())
            if ready and idle and any(self.bad_nodes.values()):
                # nothing else is left: a node may be well again, and retries are bounded
                self.ledger.write("forgive", nodes=sorted(set.union(*self.bad_nodes.values())))
                self.bad_nodes = {"gpu": set(), "cpu": set()}
            if sent:
                self.submissions.add([claim_of(place) for place in sent.values()])
            return sent

    def begin_round(self, capacity: Capacity) -> Round:
        """Return a round with all that is known now."""
        active = [task for task in self.tasks.values() if task.active]
        return Round(
            self.workload(), self.plan, capacity, active, self.bad_nodes, self._groups, self.clock()
        )

    def workload(self) -> Workload:
        """Return all jobs with estimates that are at most a minute old."""
        now_s = self.clock()
        if self._work is None or now_s - self._work_s > _ESTIMATES_S:
            jobs = [task.job for task in self.tasks.values()]
            self._work, self._work_s = self.plan.estimates.workload(jobs), now_s
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
        self.ledger.write_change("notes", "survey", notes=[note.text for note in survey.notes])
        sent = [claim_of(task.place) for task in self.tasks.values() if task.waiting and task.place]
        capacity = capacity_now(
            survey.accounts,
            queue,
            sent + self.submissions.others(self.cluster.client.queue_asked_s()),
            mode=survey.sharing,
            utilisation=self.cluster.site.utilisation,
            partitions=survey.partitions,
            nodes=survey.nodes,
        )
        for kind, nodes in self.bad_nodes.items():
            partition = survey.partitions[kind]
            if partition is not None and len(nodes) >= partition.nodes:
                why = f"every node of {partition.name} failed in this run: {', '.join(nodes)}"
                capacity = capacity.without(kind, why)
        for task in self.tasks.values():
            if task.place and task.runs:
                self.avoided.works((task.place.account, task.place.kind), task.sent_s)
        avoided = self.avoided.now(self.clock())
        closed = {key: one.why for key, one in avoided.items() if one.for_all}
        return replace(
            capacity,
            closed={**capacity.closed, **closed},
            avoided={key: one.why for key, one in avoided.items()},
        )

    def _send(self, found: Placement) -> Place:
        task, place, job = found.task, found.place, found.task.job
        task.after_id = max(self.first_id, task.seen.id if task.seen else 0, task.after_id)
        task.place, task.sent_s, task.seen, task.moved = place, self.clock(), None, ""
        self.plan.table[job.name] = place
        if job.group:
            self._groups[job.group] = place.account
        self.ledger.write(
            "place", job=job.name, rule=job.rule, pool=place.pool, account=place.account,
            kind=place.kind, cpus=place.shape.cpus, mem_mb=place.shape.mem_mb,
            gpus=place.shape.gpus, runtime_min=place.shape.runtime_min, reason=found.reason,
            estimate_s=round(found.estimate_s, 1), exclude=list(place.exclude) or None,
            small=found.small or None,
        )  # fmt: skip
        return place

    def withdraw(self, name: str) -> None:
        """Take back a place that could not be used in this round."""
        with self.lock:
            self.tasks[name].place = None
            self.plan.table.pop(name, None)
            self.ledger.write("withdraw", job=name, reason="another limit of Snakemake is reached")

    def done(self, name: str) -> None:
        """Note that a job finished, and learn from its duration."""
        with self.lock:
            task = self.tasks[name]
            if task.place is None:
                return
            place, seen = task.place, self._seen(task)
            start_s, end_s = (seen.start_s, seen.end_s) if seen else (None, None)
            if start_s and end_s and seen and seen.state == "COMPLETED":
                self.plan.estimates.durations.learn(
                    task.job.rule, place.kind, task.job.nominal_s, end_s - start_s
                )
            self.ledger.write(
                "done", job=name, rule=task.job.rule, pool=place.pool, account=place.account,
                kind=place.kind, slurm_id=seen.id if seen else None,
                node=seen.nodes if seen else None, start_s=start_s or task.sent_s,
                end_s=end_s or self.clock(), sent_s=task.sent_s,
            )  # fmt: skip
            task.place = None

    def failed(self, name: str) -> NextTry:
        """Find out why a job failed and what it gets next."""
        with self.lock:
            task = self.tasks[name]
            job, place, seen = task.job, task.place, self._seen(task)
            cause, words, node = find_cause(self.cluster.client, seen, job.log, task.sent_s)
            found = next_try(task.past, cause, words, node, moved=bool(task.moved))
            if task.refused:
                found = NextTry(task.past, task.refused, give_up=True)
            if place is not None:
                survey = self.cluster.survey
                why = why_no_retry(job, place, cause, survey.accounts, survey.partitions)
                found = NextTry(found.past, why, give_up=True) if why else found
            task.past = found.past
            answers = not isinstance(self.cluster.queue(), Unknown)  # else sbatch takes nothing
            closed = answers and not any(one.taken_as(task) for one in self.tasks.values())
            if place is not None and cause == "refused" and closed:
                self._avoid(place.account, place.kind, f"{words}: {name}", for_all=True)
            if node and place is not None and cause in ("node", "device"):
                self.bad_nodes[place.kind].add(node)
            self.ledger.write(
                "fail", job=name, rule=job.rule, cause=cause, words=words, next=found.next,
                pool=place.pool if place else None, account=place.account if place else None,
                kind=place.kind if place else None, slurm_id=seen.id if seen else None,
                node=node or None, start_s=seen.start_s if seen else None,
                end_s=(seen.end_s if seen else None) or self.clock(), log=job.log or None,
                give_up=found.give_up or None,
            )  # fmt: skip
            if seen is not None:
                task.after_id = seen.id
            task.place, task.seen = None, None
            return found

    def _seen(self, task: Task) -> SlurmJob | None:
        """Return what the queue says of a job that ended."""
        queue = self.cluster.queue()
        if not isinstance(queue, Unknown):
            observe([task], queue, self.workdir)
            if task.seen is None or task.seen.active:
                self.cluster.client.forget()
                queue = self.cluster.queue()
                if not isinstance(queue, Unknown):
                    observe([task], queue, self.workdir)
        return task.seen

    def move_pending(self, movable: Callable[[str], bool] = lambda name: True) -> list[str]:
        """Cancel jobs that pend in vain while another place ends them sooner; return their names.

        How long they would still wait is not known; as long as they did already is the guess. A
        job that was moved waits twice as long before it is moved again, and is at most three
        times. One that Slurm finds invalid goes at once, or ends where no other place takes it.

        Parameters
        ----------
        movable : callable
            Whether Snakemake would try a job again.
        """
        with self.lock:
            active = [task for task in self.tasks.values() if task.active]
            if all(task.runs for task in active):
                return []
            capacity, now_s = self.capacity(), self.clock()
            stuck = [task for task in self._pending() if not task.moved and movable(task.name)]
            if isinstance(capacity, Unknown) or not stuck:
                return []
            moved: list[str] = []
            round_ = self.begin_round(capacity)
            for task, seen, place in map(_sent, stuck):
                why, waited_s = self._why(seen, place), now_s - task.sent_s
                patience_s = self.cluster.site.patience_s * 2**task.moves
                if why.obstacle in ("held", "other") or task.moves >= MOST_MOVES:
                    continue
                if why.obstacle != "invalid" and waited_s < patience_s:
                    continue
                invalid, on_nodes = why.obstacle == "invalid", why.obstacle in ("busy", "nodes")
                better = round_.sooner_elsewhere(
                    task,
                    math.inf if invalid or why.obstacle == "nodes" else waited_s,
                    other_nodes=on_nodes,
                    anywhere=invalid,
                )
                lost = invalid and waited_s >= patience_s
                if (better or lost) and self._cancel_pending(task):
                    self._move(task, seen, place, better)
                    moved.append(task.name)
                    round_ = self.begin_round(round_.capacity.take(*better) if better else capacity)
            return moved

    def restart_sooner(self, movable: Callable[[str], bool] = lambda name: True) -> list[str]:
        """Stop jobs on CPUs that a free GPU would end much sooner, and return their names.

        Only while no ready job waits for a GPU, none that was moved is on its way, Snakemake knows
        of all that ended (what follows goes first), and no GPU node has failed.
        """
        with self.lock:
            tasks, client = self.tasks.values(), self.cluster.client
            if not self.cluster.site.restart_on_gpu or not any(task.runs for task in tasks):
                return []
            capacity, stopped = self.capacity(), []  # with it the tasks' states are new
            moving = any(task.place and task.moved for task in tasks)
            ended = any(task.place and task.seen and not task.seen.active for task in tasks)
            waits = any("gpu" in self.tasks[name].job.kinds for name in self.why_waiting)
            if isinstance(capacity, Unknown) or moving or ended or waits or self.bad_nodes["gpu"]:
                return []
            fresh = [task for task in tasks if task.runs and task.moves < MOST_MOVES]
            slow = [task for task in fresh if not task.past.nodes and movable(task.name)]
            for task, account, why in self.begin_round(capacity).restarts(slow):
                seen = task.seen
                if seen and not isinstance(client.cancel([seen.id]), Unknown):
                    task.moved, task.moves = why, task.moves + 1
                    self.ledger.write("move", job=task.name, slurm_id=seen.id, reason=why,
                                      ran=True, sooner=f"{account} gpu")  # fmt: skip
                    stopped.append(task.name)
            if stopped:
                client.forget()
            return stopped

    def _pending(self) -> list[Task]:
        """Return the tasks that pend, as the queue last said."""
        return [
            task
            for task in self.tasks.values()
            if task.place is not None and task.seen is not None and task.seen.state == "PENDING"
        ]

    def _why(self, seen: SlurmJob, place: Place) -> Waiting:
        """Return why a job pends.

        Slurm 22.05 names ``QOSGrpGRES`` also where GPUs of other jobs, or a reservation, are in the
        way: where its own numbers leave room, the nodes are busy.
        """
        why, survey = why_pending(seen.reason), self.cluster.survey
        if why.obstacle == "limit" and has_room(survey.accounts, survey.partitions, place):
            return why_pending("Resources")
        return why

    def _move(
        self, task: Task, seen: SlurmJob, place: Place, better: tuple[str, Kind, Shape] | None
    ) -> None:
        """Note why a job was cancelled, and avoid for a while what it waited for."""
        why, survey = self._why(seen, place), self.cluster.survey
        text = f"{seen.reason} on {place.account} for {self.clock() - task.sent_s:.0f} s"
        if better is None:
            task.refused = f"{why.words} (Slurm: {seen.reason})"
        else:
            task.moved, task.moves = text, task.moves + 1
        self.ledger.write(
            "move", job=task.name, slurm_id=seen.id, reason=text,
            sooner=f"{better[0]} {better[1]}" if better else None,
        )  # fmt: skip
        if why.obstacle == "limit":  # Slurm says when it is free again
            return
        invalid = why.obstacle == "invalid"
        for account in [place.account] if invalid else [a.name for a in survey.accounts]:
            self._avoid(account, place.kind, text, for_all=invalid)

    def _avoid(self, account: str, kind: Kind, why: str, *, for_all: bool) -> None:
        """Send nothing to a place for a while.

        Where Slurm takes no job as it was sent, limits or partitions changed: they are asked again.
        """
        new = self.avoided.avoid((account, kind), why, self.clock(), for_all=for_all)
        if new and for_all:
            self.cluster.client.forget(limits=True)

    def explain_pending(self) -> list[str]:
        """Return why jobs pend for long, once for each job and reason; the ledger gets it too."""
        with self.lock:
            now_s, patience_s = self.clock(), self.cluster.site.patience_s
            found: dict[str, list[str]] = {}
            for task, seen, place in map(_sent, self._pending()):
                why = self._why(seen, place)
                if now_s - task.sent_s >= patience_s and task.said != why.words:
                    task.said = why.words
                    found.setdefault(f"{why.words} (Slurm: {seen.reason})", []).append(task.name)
                    self.ledger.write(
                        "pend", job=task.name, slurm_id=seen.id, reason=seen.reason, words=why.words
                    )
            return [
                f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''} pend: {words}"
                for words, names in found.items()
            ]

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
                    found[task.name] = f"Slurm job {seen.id} is {state.lower()}", state == _DONE
            return found

    def _cancel_pending(self, task: Task) -> bool:
        """Return whether a job that pends was cancelled before it began; Slurm does not say."""
        client = self.cluster.client
        assert task.seen is not None
        if isinstance(client.cancel([task.seen.id], pending_only=True), Unknown):
            return False
        client.forget()
        queue = self.cluster.queue()
        if not isinstance(queue, Unknown):
            observe([task], queue, self.workdir)
        return task.seen.state != "RUNNING"

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


def _sent(task: Task) -> tuple[Task, SlurmJob, Place]:
    """Return a task that pends with what the queue says of it, and its place."""
    assert task.seen is not None
    assert task.place is not None
    return task, task.seen, task.place
