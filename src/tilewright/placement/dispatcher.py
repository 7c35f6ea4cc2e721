"""The state of one run: which ready jobs start now and where, which are moved, how each ended.

It knows jobs and Slurm, not Snakemake; the scheduler plugin translates. Every decision goes to
the ledger.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.placement.cluster import Cluster
from tilewright.placement.failures import NextTry, find_cause, next_try, why_no_retry
from tilewright.placement.jobs import Job, Kind, Place, Shape, Task, observe
from tilewright.placement.ledger import Ledger
from tilewright.placement.limits import Capacity, capacity_now, claim_of, clipped
from tilewright.placement.policy import decide
from tilewright.placement.routing import Plan
from tilewright.placement.sizing import Shapes
from tilewright.placement.submission_lock import SubmissionLock
from tilewright.placement.workload import Running, Slots, Strategy, Workload
from tilewright.slurm.jobs import STUCK, SlurmJob, stale_jobs
from tilewright.slurm.query import Unknown

#: Estimates are made again this often: a new workload of 10,000 jobs takes 50 ms.
_ESTIMATES_S = 60.0
_PASSES = 6


@dataclass(frozen=True)
class Placement:
    """A task that starts now, where, why, and how long it may take."""

    task: Task
    place: Place
    reason: str
    estimate_s: float
    small: bool = False


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
    submissions: SubmissionLock = field(init=False)
    _groups: dict[str, str] = field(default_factory=dict)
    _work: Workload | None = None
    _work_s: float = 0.0

    def __post_init__(self) -> None:
        self.submissions = SubmissionLock(self.cluster.client.cache_dir / "claims")

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
        """Take the jobs of the DAG; what is known of those that were there stays."""
        with self.lock:
            self.tasks |= {job.name: Task(job) for job in jobs if job.name not in self.tasks}
            self._work = None

    def round(self, ready: Collection[str], later: Collection[str]) -> dict[str, Place]:
        """Choose which ready jobs start now; their places go to the table and the ledger.

        Where Slurm does not answer nothing starts, and the reason is said once.
        """
        with self.lock, self.submissions.alone() as alone:
            if not alone:
                note = "other runs of yours may choose at the same time: no lock could be had"
                self.ledger.write_change("notes", "claims", notes=[note])
            capacity = self.capacity()
            if isinstance(capacity, Unknown):
                if self.ledger.write_change("hold", "slurm", reason=str(capacity)):
                    self.why_waiting = dict.fromkeys(ready, str(capacity))
                return {}
            closed = {f"{account} {kind}": why for (account, kind), why in capacity.closed.items()}
            self.ledger.write_change("room", "slurm", closed=closed)
            doubles = self._cancel_doubles(ready)
            tasks = [self.tasks[name] for name in ready if name not in doubles]
            round_ = self.begin_round(capacity)
            self.strategy = round_.place(tasks, [self.tasks[n] for n in later], self.strategy)
            self.why_waiting = round_.why | dict.fromkeys(
                doubles, "an earlier try of it is still in the queue and is cancelled"
            )
            sent = {found.task.name: self._send(found) for found in round_.placements}
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
            sent + self.submissions.others(),
            mode=survey.sharing,
            utilisation=self.cluster.site.utilisation,
            partitions=survey.partitions,
        )
        for kind, nodes in self.bad_nodes.items():
            partition = survey.partitions[kind]
            if partition is not None and len(nodes) >= partition.nodes:
                why = f"every node of {partition.name} failed in this run: {', '.join(nodes)}"
                capacity = capacity.without(kind, why)
        return capacity

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
            cause, words, node = find_cause(self.cluster.client, seen, job.log)
            found = next_try(task.past, cause, words, node, moved=bool(task.moved))
            if place is not None:
                survey = self.cluster.survey
                why = why_no_retry(job, place, cause, survey.accounts, survey.partitions)
                found = NextTry(found.past, why, give_up=True) if why else found
            task.past = found.past
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
        """Cancel jobs that pend on a limit or a dead node while another place ends them sooner.

        How long they would still wait is not known; as long as they did already is the guess.

        Parameters
        ----------
        movable : callable
            Whether Snakemake would try a job again.

        Returns
        -------
        list of str
            Names of the jobs that were cancelled.
        """
        with self.lock:
            moved: list[str] = []
            active = [task for task in self.tasks.values() if task.active]
            if all(task.seen is not None and task.seen.state == "RUNNING" for task in active):
                return moved
            capacity, now_s = self.capacity(), self.clock()
            if isinstance(capacity, Unknown):
                return moved
            for task in active:
                seen, place, waited_s = task.seen, task.place, now_s - task.sent_s
                if (
                    seen is None
                    or place is None
                    or seen.state != "PENDING"
                    or task.moved
                    or not movable(task.name)
                    or waited_s < self.cluster.site.patience_s
                    or not STUCK.match(seen.reason)
                ):
                    continue
                better = self.begin_round(capacity).sooner_elsewhere(task, waited_s)
                if better and self._cancel_pending(task):
                    account, kind, shape = better
                    capacity = capacity.take(account, kind, shape)
                    task.moved = f"{seen.reason} on {place.account} for {waited_s:.0f} s"
                    self.ledger.write(
                        "move", job=task.name, slurm_id=seen.id, reason=task.moved,
                        sooner=f"{account} {kind}",
                    )  # fmt: skip
                    moved.append(task.name)
            return moved

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

    def soonest_end_s(self) -> float:
        """Return in how many seconds the first running job is expected to end; 0 if none runs."""
        with self.lock:
            now_s, seconds = self.clock(), self.plan.estimates.seconds
            ends = [
                (task.seen.start_s or now_s) + seconds(task.job, task.place.kind) - now_s
                for task in self.tasks.values()
                if task.active and task.seen is not None and task.place is not None
            ]
            return max(0.0, min(ends, default=0.0))


class Round:
    """Fills the free capacity in passes: where the largest task fits nowhere, the next (pure)."""

    def __init__(
        self,
        work: Workload,
        plan: Plan,
        capacity: Capacity,
        active: Sequence[Task],
        bad_nodes: Mapping[Kind, Collection[str]],
        preferred: Mapping[str, str],
        now_s: float,
    ) -> None:
        self.work, self.plan, self.capacity, self.now_s = work, plan, capacity, now_s
        self.active, self.bad_nodes, self.preferred = list(active), bad_nodes, preferred
        self.shapes = Shapes(plan.estimates, capacity)
        self.placements: list[Placement] = []
        self.why: dict[str, str] = {}

    def place(
        self, ready: Sequence[Task], later: Sequence[Task], last: Strategy | None
    ) -> Strategy | None:
        """Place the ready tasks, the small ones last."""
        large = [task for task in ready if task.name in self.work.index]
        coming = [task for task in later if task.name in self.work.index]
        left = large
        for _ in range(_PASSES):
            if not left:
                break
            placed, last = self._pass(left, coming, last)
            if placed:
                left = [task for task in left if task.name not in placed]
            else:
                left = self.shapes.without_largest(left)
        for task in ready:
            if task.name not in self.work.index:
                self._place_small(task)
        return last

    def _pass(
        self, large: Sequence[Task], coming: Sequence[Task], last: Strategy | None
    ) -> tuple[set[str], Strategy | None]:
        shapes = self.shapes.largest(large)
        if "gpu" not in shapes and (more := self.shapes.largest(coming).get("gpu")):
            shapes = {"gpu": more, **shapes}
        pools = self.slots(shapes)
        if not any(pool.free for pool in pools):
            self.why |= dict.fromkeys((task.name for task in large), "no slot is free")
            return set(), last
        made = decide(
            self.work,
            [task.name for task in large],
            [task.name for task in coming],
            pools,
            self.now_s,
            preferred=self.preferred,
            last=last,
        )
        self.why |= made.waiting
        by_name = {task.name: task for task in large}
        where = {pool.name: pool for pool in pools}
        placed = set()
        for start in made.starts:
            pool = where[start.pool]
            if self._start(by_name[start.job], pool.account, pool.kind, start.reason):
                placed.add(start.job)
        return placed, made.strategy

    def _start(
        self, task: Task, account: str, kind: Kind, reason: str, *, small: bool = False
    ) -> bool:
        shape = self.shapes.of(task)[kind]
        if not self.capacity.fits(account, kind, shape):
            return False
        here = next(a for a in self.capacity.accounts if a.name == account)
        found = self.plan.place(here, kind, task.job.rule, task.job.wildcards)
        place = replace(
            found,
            partition=task.job.fixed.partition or found.partition,
            shape=clipped(shape, here, self.capacity.partitions.get(kind)),
            exclude=tuple(sorted({*self.bad_nodes[kind], *task.past.nodes})),
        )
        self.capacity = self.capacity.take(account, kind, shape)
        estimate_s = self.plan.estimates.seconds(task.job, kind)
        self.placements.append(Placement(task, place, reason, estimate_s, small))
        self.active.append(replace(task, place=place, sent_s=self.now_s, seen=None))
        self.why.pop(task.name, None)
        return True

    def _place_small(self, task: Task) -> None:
        """Place a small task where most CPUs are free; it takes no slot from others."""
        shape, chosen = self.shapes.of(task)["cpu"], task.job.fixed.account
        open_ = [
            account
            for account in self.capacity.accounts
            if chosen in (None, account.name) and self.capacity.fits(account.name, "cpu", shape)
        ]
        if not open_:
            self.why[task.name] = "no account has free capacity for it"
            return
        best = max(open_, key=lambda a: (self.capacity.free_cpus(a), a.name))
        self._start(task, best.name, "cpu", "a small job, where most CPUs are free", small=True)

    def sooner_elsewhere(self, task: Task, waited_s: float) -> tuple[str, Kind, Shape] | None:
        """Return the place that would finish a pending task first, None where it best waits.

        Parameters
        ----------
        task : Task
            Pending at its place.
        waited_s : float
            How long it has pended: the guess of how long it still will.
        """
        assert task.place is not None
        seconds = self.plan.estimates.seconds
        best, best_s = None, waited_s + seconds(task.job, task.place.kind)
        for account in self.capacity.accounts:
            for kind, shape in self.shapes.of(task).items():
                here = (account.name, kind) == (task.place.account, task.place.kind)
                if here or task.job.fixed.account not in (None, account.name):
                    continue
                end_s = seconds(task.job, kind)
                if end_s < best_s and self.capacity.fits(account.name, kind, shape):
                    best, best_s = (account.name, kind, shape), end_s
        return best

    def slots(self, shapes: Mapping[Kind, Shape]) -> list[Slots]:
        """Return the pools for jobs of these shapes, with own jobs in them."""
        return [
            Slots(pool.name, pool.account, pool.kind, pool.free + len(own), pool.free, tuple(own))
            for pool in self.capacity.pools(shapes)
            for own in [self._running(pool.account, pool.kind)]
        ]

    def _running(self, account: str, kind: Kind) -> list[Running]:
        """Return own jobs in the slots of a pool; what pends in a closed one holds none."""
        found = []
        closed = (account, kind) in self.capacity.closed
        for task in self.active:
            place, seen = task.place, task.seen
            if place is None or (place.account, place.kind) != (account, kind):
                continue
            start_s = seen.start_s if seen and seen.state == "RUNNING" else None
            if start_s is None and closed:
                continue
            if start_s is None:  # it may wait as long again as it has
                start_s = 2 * self.now_s - task.sent_s
            end_s = start_s + self.plan.estimates.seconds(task.job, kind)
            found.append(Running(task.name, start_s, end_s))
        return found
