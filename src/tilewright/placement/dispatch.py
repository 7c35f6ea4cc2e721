"""The coordinator's side of placement: which ready jobs start now and where, and what failed.

It knows tasks and Slurm, not Snakemake; the scheduler plugin translates. Every decision goes to
the ledger.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from tilewright.placement.bounds import needs
from tilewright.placement.capacity import Claim, Room, room_now
from tilewright.placement.claims import Claims
from tilewright.placement.cluster import Cluster
from tilewright.placement.endings import find_cause, nothing_more
from tilewright.placement.jobs import Kind, Place, Task, observe
from tilewright.placement.ledger import Ledger
from tilewright.placement.resources import Plan
from tilewright.placement.retry import Verdict, judge
from tilewright.placement.rounds import RoundOfPlacing, Start, make_workload
from tilewright.placement.watch import end_doubles
from tilewright.placement.workload import Way, Workload
from tilewright.slurm.jobs import SlurmJob
from tilewright.slurm.query import Unknown

#: Estimates are learned anew this often: a new workload of 10,000 jobs takes 50 ms.
_ESTIMATES_S = 60.0


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
    way : Way or None
        What the last round followed.
    why_waiting : dict of str to str
        Why the jobs that the last round did not start wait.
    later : frozenset of str
        Jobs that could not start then.
    """

    cluster: Cluster
    plan: Plan
    ledger: Ledger
    workdir: str
    clock: Callable[[], float] = time.time
    tasks: dict[str, Task] = field(default_factory=dict)
    bad_nodes: dict[Kind, set[str]] = field(default_factory=lambda: {"gpu": set(), "cpu": set()})
    lock: threading.RLock = field(default_factory=threading.RLock)
    way: Way | None = None
    why_waiting: dict[str, str] = field(default_factory=dict)
    later: frozenset[str] = frozenset()
    first_id: int = 0
    claims: Claims = field(init=False)
    _groups: dict[str, str] = field(default_factory=dict)
    _work: Workload | None = None
    _work_s: float = 0.0

    def __post_init__(self) -> None:
        self.claims = Claims(self.cluster.client.cache_dir / "claims")

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
            notes=list(survey.notes),
        )

    def round(self, ready: Collection[str], later: Collection[str]) -> dict[str, Place]:
        """Choose which ready jobs start now; their places go to the table and the ledger.

        Where Slurm does not answer nothing starts, and the reason is said once.
        """
        with self.lock, self.claims.alone() as alone:
            if not alone:
                note = "other runs of yours may choose at the same time: no lock could be had"
                self.ledger.write_change("notes", "claims", notes=[note])
            room = self.room()
            if isinstance(room, str):
                if self.ledger.write_change("hold", "slurm", reason=room):
                    self.why_waiting = dict.fromkeys(ready, room)
                return {}
            self.ledger.write_change("room", "slurm", closed=_named(room))
            doubles = end_doubles(self, ready)
            tasks = [self.tasks[name] for name in ready if name not in doubles]
            placing = self.placing(room)
            self.later = frozenset(later)
            self.way = placing.place(tasks, [self.tasks[name] for name in later], self.way)
            self.why_waiting = placing.why | dict.fromkeys(
                doubles, "an earlier try of it is still in the queue and is cancelled"
            )
            sent = {start.task.name: self._send(start) for start in placing.starts}
            idle = not any(task.active for task in self.tasks.values())
            if ready and idle and any(self.bad_nodes.values()):
                # nothing else is left: a node may be well again, and retries are bounded
                self.ledger.write("forgive", nodes=sorted(set.union(*self.bad_nodes.values())))
                self.bad_nodes = {"gpu": set(), "cpu": set()}
            if sent:
                self.claims.add(
                    [
                        Claim(place.account, needs(place.shape, 1), place.partition)
                        for place in sent.values()
                    ]
                )
            return sent

    def placing(self, room: Room) -> RoundOfPlacing:
        """Return a round with all that is known now."""
        active = [task for task in self.tasks.values() if task.active]
        return RoundOfPlacing(
            self.workload(), self.plan, room, active, self.bad_nodes, self._groups, self.clock()
        )

    def workload(self) -> Workload:
        """Return all tasks with estimates that are at most a minute old."""
        now_s = self.clock()
        if self._work is None or now_s - self._work_s > _ESTIMATES_S:
            self._work, self._work_s = make_workload(self.tasks.values(), self.plan), now_s
        return self._work

    def load(self, tasks: Iterable[Task]) -> None:
        """Take the jobs of the DAG; what is known of those that were there stays."""
        with self.lock:
            self.tasks |= {t.name: t for t in tasks if t.name not in self.tasks}
            self._work = None

    def room(self) -> Room | str:
        """Return what fits where now, or why that is not known."""
        queue = self.cluster.queue()
        if isinstance(queue, Unknown):
            return str(queue)
        observe(self.tasks.values(), queue, self.workdir)
        survey = self.cluster.look()
        unknown = [note for note in survey.notes if note.startswith("the partitions are not known")]
        if unknown:
            return unknown[0]
        if all(account.used is None for account in survey.accounts):
            return "; ".join(note for note in survey.notes if "use" in note) or "use is not known"
        self.ledger.write_change("notes", "survey", notes=list(survey.notes))
        sent = [
            Claim(task.place.account, needs(task.place.shape, 1), task.place.partition)
            for task in self.tasks.values()
            if task.waiting and task.place is not None
        ]
        room = room_now(
            survey.accounts,
            queue,
            sent + self.claims.others(),
            mode=survey.sharing,
            utilisation=self.cluster.site.utilisation,
            partitions=survey.partitions,
        )
        for kind, nodes in self.bad_nodes.items():
            partition = survey.partitions[kind]
            if partition is not None and len(nodes) >= partition.nodes:
                why = f"every node of {partition.name} failed in this run: {', '.join(nodes)}"
                closed = {(a.name, kind): why for a in room.accounts}
                room = Room(
                    room.accounts, {**room.closed, **closed}, room.mode, room.utilisation,
                    room.partitions,
                )  # fmt: skip
        return room

    def _send(self, start: Start) -> Place:
        task, place = start.task, start.place
        now_s = self.clock()
        task.after_id = max(self.first_id, task.seen.id if task.seen else 0, task.after_id)
        task.place, task.sent_s, task.seen, task.moved = place, now_s, None, ""
        self.plan.table[task.name] = place
        if task.group:
            self._groups[task.group] = place.account
        self.ledger.write(
            "place", job=task.name, rule=task.rule, pool=place.pool, account=place.account,
            kind=place.kind, cpus=place.shape.cpus, mem_mb=place.shape.mem_mb,
            gpus=place.shape.gpus, runtime_min=place.shape.runtime_min, reason=start.reason,
            estimate_s=round(start.estimate_s, 1), exclude=list(place.exclude) or None,
        )  # fmt: skip
        return place

    def withdraw(self, name: str) -> None:
        """Take back a place that could not be used in this round."""
        with self.lock:
            task = self.tasks[name]
            task.place = None
            self.plan.table.pop(name, None)
            self.ledger.write("withdraw", job=name, reason="another limit of Snakemake is reached")

    def done(self, name: str) -> None:
        """Note that a job finished, and learn from its duration."""
        with self.lock:
            task = self.tasks[name]
            if task.place is None:
                return
            place, job = task.place, self._seen(task)
            start_s, end_s = (job.start_s, job.end_s) if job else (None, None)
            if start_s and end_s and job and job.state == "COMPLETED":
                self.plan.durations.learn(task.rule, place.kind, task.nominal_s, end_s - start_s)
            self.ledger.write(
                "done", job=name, rule=task.rule, pool=place.pool, account=place.account,
                kind=place.kind, slurm_id=job.id if job else None, node=job.nodes if job else None,
                start_s=start_s or task.sent_s, end_s=end_s or self.clock(), sent_s=task.sent_s,
            )  # fmt: skip
            task.place = None

    def failed(self, name: str) -> Verdict:
        """Find out why a job failed and what it gets next."""
        with self.lock:
            task = self.tasks[name]
            place, job = task.place, self._seen(task)
            cause, words, node = find_cause(self.cluster.client, job, task.log)
            verdict = judge(task.past, cause, words, node, moved=bool(task.moved))
            if place is not None:
                survey = self.cluster.survey
                more = nothing_more(task, place, cause, survey.accounts, survey.partitions)
                verdict = Verdict(verdict.past, more, True) if more else verdict
            task.past = verdict.past
            if node and place is not None and cause in ("node", "device"):
                self.bad_nodes[place.kind].add(node)
            self.ledger.write(
                "fail", job=name, rule=task.rule, cause=cause, words=words, next=verdict.next,
                pool=place.pool if place else None, account=place.account if place else None,
                kind=place.kind if place else None, slurm_id=job.id if job else None,
                node=node or None, start_s=job.start_s if job else None,
                end_s=(job.end_s if job else None) or self.clock(), log=task.log or None,
                give_up=verdict.give_up or None,
            )  # fmt: skip
            if job is not None:
                task.after_id = job.id
            task.place, task.seen = None, None
            return verdict

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


def _named(room: Room) -> dict[str, str]:
    return {f"{account} {kind}": why for (account, kind), why in room.closed.items()}
