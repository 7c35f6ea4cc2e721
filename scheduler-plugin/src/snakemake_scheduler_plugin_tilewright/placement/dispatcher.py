"""The state of one run: which ready jobs start now and where, which are moved, how each ended.

It knows jobs and Slurm, not Snakemake; the scheduler plugin translates. Every decision goes to
the ledger.
"""

import contextlib
import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..cluster.cluster import Cluster
from ..cluster.pools import make_pools, slots_by_name
from ..cluster.request import KINDS, DeviceKind, Target
from ..cluster.state import ClusterState
from ..errors import SlurmQueryError
from ..runtime.ledger import Ledger
from ..slurm.jobs import SlurmJob
from .estimates import Estimates
from .failures import NextTry, failure_reason, may_pass, next_try, unseen_ends, why_no_retry
from .jobs import Assignment, Job, JobState, observe, with_own_gpus
from .move import Mover
from .orphaned import cancel_earlier_tries
from .place_history import FIRST, Admission, Backoff
from .reach import note_preemption
from .round import Round
from .submission_lock import SubmissionLock
from .workload import GpuSlots, Workload

#: Estimates are made again this often: a new workload of 10,000 jobs takes 50 ms.
_ESTIMATES_S = 60.0
#: A queue that takes 75 s to answer is asked again after so long.
_SLOW_QUEUE_S = 300.0


@dataclass
class Dispatcher:
    """Places the jobs of one run.

    Attributes
    ----------
    workdir : str
        Where the jobs run; with the comment it tells this run's jobs in the queue.
    site_sizes : bool
        Whether the jobs are of the site's sizes, from which its slots are counted.
    bad_nodes : dict of str to set of str
        Device kind to nodes that are not used any more in this run.
    why_waiting : dict of str to str
        Why the jobs that the last round did not start wait.
    kinds : set of str
        Device kinds that may run any of the jobs; nothing is shown of others.
    """

    cluster: Cluster
    estimates: Estimates
    ledger: Ledger
    workdir: str
    site_sizes: bool = True
    clock: Callable[[], float] = time.time
    tasks: dict[str, JobState] = field(default_factory=dict)
    bad_nodes: dict[DeviceKind, set[str]] = field(default_factory=lambda: {k: set() for k in KINDS})
    lock: threading.RLock = field(default_factory=threading.RLock)
    gpu_slots: GpuSlots = field(default_factory=GpuSlots)
    why_waiting: dict[str, str] = field(default_factory=dict)
    kinds: set[DeviceKind] = field(default_factory=set)
    first_id: int = 0
    admission: Admission = field(default_factory=Admission)
    backoff: Backoff = field(init=False)
    mover: Mover = field(init=False)
    submissions: SubmissionLock = field(init=False)
    _work: Workload | None = None
    _work_s: float = 0.0
    _taken_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        client = self.cluster.client
        self.backoff = Backoff(self.cluster.site.patience_s)
        self.mover = Mover(self.cluster, self.ledger, self.backoff, self.workdir,
                                 lambda: self.clock())  # fmt: skip
        self.submissions = SubmissionLock(
            client.cache_dir / "claims", max(client.ttl_s, _SLOW_QUEUE_S)
        )

    def begin(self, state: ClusterState) -> None:
        """Write what the run starts from; jobs in the queue by now are not this run's."""
        self.first_id = max((job.id for job in self.cluster.queue()), default=0)
        self.kinds = {kind for task in self.tasks.values() for kind in task.job.kinds}
        found = self.cluster.state
        slots = slots_by_name(make_pools(found))
        if not self.site_sizes:
            largest = self.estimates.largest(self.tasks.values(), state)
            slots |= slots_by_name(make_pools(replace(found, largest_jobs=largest)))
        self.ledger.write(
            "run",
            run=uuid.uuid4().hex[:8],
            user=found.user,
            kinds=sorted(self.kinds),
            pools={name: list(of) for name, of in slots.items()},
            left_out={one.account: one.reason for one in found.left_out},
            notes=[note.text for note in found.notes],
        )

    def load(self, jobs: Iterable[Job]) -> None:
        """Take jobs of the DAG; what happened to those that were there stays."""
        with self.lock:
            for job in jobs:
                self.tasks.setdefault(job.name, JobState(job)).job = job
            self._work = None

    def round(
        self, ready: Collection[str], later: Collection[str], most: float = math.inf
    ) -> dict[str, Assignment]:
        """Choose which ready jobs, ``most`` at most, start now; the ledger gets it."""
        with self.lock, self.submissions.alone() as why:
            if why:
                note = f"other runs of yours may choose at the same time, without a lock: {why}"
                self.ledger.write_change("notes", "claims", notes=[note])
            try:
                state = self.state()
            except SlurmQueryError as error:  # nothing starts, and the reason is logged once
                reason = str(error)
                if self.ledger.write_change("hold", "slurm", reason=reason, ready=len(ready)):
                    self.why_waiting = dict.fromkeys(ready, reason)
                return {}
            doubles = cancel_earlier_tries(self.cluster, self.ledger, self.workdir, ready)
            tasks = [self.tasks[name] for name in ready if name not in doubles]
            self._write_room(state, tasks)
            round_, coming = self.begin_round(state), [self.tasks[name] for name in later]
            self.gpu_slots = round_.place(tasks, coming, self.gpu_slots, most)
            held = self.admission.beside_first(round_.assignments, self.tasks, self.backoff)
            still = "an earlier try of it is still in the queue and is cancelled"
            waits = dict.fromkeys(held, FIRST) | dict.fromkeys(doubles, still)
            self.why_waiting = round_.why | waits
            sent = {n: one for n, one in round_.assignments.items() if n not in waits}
            for name, assignment in sent.items():
                self._record(self.tasks[name], assignment)
            waiting = self.waiting()
            self.ledger.write_change("wait", "ready", ready=len(self.why_waiting), why=waiting)
            idle = not any(task.active for task in self.tasks.values())
            if ready and idle and any(self.bad_nodes.values()):  # they may be well again
                self.ledger.write("forgive", nodes=sorted(set.union(*self.bad_nodes.values())))
                self.bad_nodes = {kind: set() for kind in KINDS}
            self.submissions.add([state.use_of(one.target, one.request) for one in sent.values()])
            return sent

    def waiting(self) -> Counter[str]:
        """Return why the jobs of Snakemake wait that the last round did not start, with numbers."""
        found: Counter[str] = Counter()
        for name, why in self.why_waiting.items():
            found[why] += self.tasks[name].job.members
        return found

    def _write_room(self, state: ClusterState, ready: Iterable[JobState]) -> None:
        """Write what is closed, of the device kinds that jobs may run on, and what is not known."""
        # of some jobs their kinds are known only when they are ready
        if more := {kind for task in ready for kind in task.job.kinds} - self.kinds:
            self.kinds |= more
            self.ledger.write("kinds", kinds=sorted(self.kinds))
        closed = {f"{target.account} {target.device}": why for target, why in state.closed.items()
                  if target.device in self.kinds}  # fmt: skip
        self.ledger.write_change("room", "slurm", closed=closed)
        self.ledger.write_change("notes", "survey", notes=[note.text for note in state.notes])

    def begin_round(self, state: ClusterState) -> Round:
        """Return a round with all that is known now."""
        self.admission.note(self.tasks.values())
        active = [task for task in self.tasks.values() if task.active]
        now_s = self.clock()
        return Round(self.workload(), self.estimates, state, active, self.bad_nodes, now_s)

    def workload(self) -> Workload:
        """Return all jobs with estimates that are at most a minute old."""
        now_s = self.clock()
        if self._work is None or now_s - self._work_s > _ESTIMATES_S:
            jobs = [task.job for task in self.tasks.values()]
            self._work, self._work_s = self.estimates.workload(jobs), now_s
        return self._work

    def state(self) -> ClusterState:
        """Return what fits where now; SlurmQueryError where Slurm does not say what is in use."""
        queue = self.cluster.queue()
        observe(self.tasks.values(), queue, self.workdir, self.clock())
        found = self.cluster.look()
        found.check_known()
        sent = [
            found.use_of(task.assignment.target, task.assignment.request)
            for task in self.tasks.values()
            if task.waiting and task.assignment
        ]
        sent += self.submissions.others(self.cluster.client.queue_asked_s())
        state = found.with_pending(with_own_gpus(queue, self.tasks.values()), sent, self.workdir)
        for kind, partition in ((k, p) for k, own in found.partitions.items() for p in own):
            nodes = {one.name for one in found.nodes_in[partition.name]} & self.bad_nodes[kind]
            if len(nodes) >= partition.nodes:
                why = f"every node of {partition.name} failed here: {', '.join(sorted(nodes))}"
                own = (one for one in state.targets() if one.device == kind)
                closed = {one: why for one in own if one.partition == partition.name}
                state = replace(state, closed={**state.closed, **closed})
        for task in self.tasks.values():
            if task.assignment and task.running and task.slurm_job:
                self.backoff.note_start(task.assignment.target, task.sent_s, task.slurm_job.start_s)
        return self.backoff.close(state, self.clock())

    def _record(self, task: JobState, assignment: Assignment) -> None:
        """Note where a job goes; Snakemake's executor will submit it."""
        task.after_id = max(self.first_id, task.slurm_job.id if task.slurm_job else 0,
                            task.after_id)  # fmt: skip
        task.assignment, task.sent_s, task.slurm_job = assignment, self.clock(), None
        task.move_reason, task.submission = "", None
        request = assignment.request
        self.ledger.write(
            "place", **task.event(), cpus=request.cpus, mem_mb=request.mem_mb, gpus=request.gpus,
            runtime_min=request.runtime_min, reason=assignment.reason,
            estimate_s=round(assignment.estimate_s, 1), exclude=list(assignment.exclude) or None,
        )  # fmt: skip

    def withdraw(self, name: str) -> None:
        """Take back an assignment that could not be used in this round."""
        with self.lock:
            self.tasks[name].assignment = None
            self.ledger.write("withdraw", job=name, reason="another limit of Snakemake is reached")

    def done(self, name: str, known_s: float = math.inf) -> None:
        """Note that a job finished, and learn from its duration.

        Parameters
        ----------
        known_s : float
            When it was known to have ended: what the queue has not shown of it since is not asked
            again. Of 50 jobs that ended at once each would cost a call where Slurm forgets them.
        """
        with self.lock:
            task = self.tasks[name]
            if task.assignment is None:
                return
            target, ended = task.assignment.target, self._ended(task, known_s)
            self.admission.taken.add((task.job.rule, target))
            start_s, end_s = (ended.start_s, ended.end_s) if ended else (None, None)
            if start_s and end_s and ended and ended.state == "COMPLETED":
                self.estimates.durations.learn(
                    task.job.rule, target.device, task.job.cpu_seconds, end_s - start_s
                )
            self.ledger.write(
                "done", **task.event(), node=ended.nodes if ended else None,
                start_s=start_s or task.sent_s, end_s=end_s or self.clock(), sent_s=task.sent_s,
                members=task.job.members if task.job.members > 1 else None,
            )  # fmt: skip
            task.assignment = None

    def failed(self, name: str) -> NextTry:
        """Find out why a job failed and what it gets next."""
        with self.lock:
            task = self.tasks[name]
            job, ended = task.job, self._ended(task)
            cause, words, node, log = failure_reason(
                self.cluster.client, ended, job.log, task.sent_s, task.submission
            )
            found = next_try(task.history, cause, words, node, moved=bool(task.move_reason))
            if task.refused:
                found = NextTry(task.history, task.refused, give_up=True)
            if task.assignment is not None:
                if why := why_no_retry(job, task.assignment, cause, self.cluster.state):
                    found = NextTry(found.history, why, give_up=True)
                if why := self._close_after(task, task.assignment.target, cause, words, node):
                    found = NextTry(found.history, why, give_up=True)
            task.history = found.history
            if not task.move_reason:  # what it was moved for may be over by now
                task.excluded_targets = frozenset()
            preempted = task.assignment.target if task.assignment and cause == "preempted" else None
            note_preemption(task, preempted, self.cluster.state)
            self.ledger.write(
                "fail", **task.event(), cause=cause, words=words, next=found.next,
                node=node or None, start_s=ended.start_s if ended else None,
                end_s=(ended.end_s if ended else None) or self.clock(), log=log or None,
                give_up=found.give_up or None,
            )  # fmt: skip
            if ended is not None:
                task.after_id = ended.id
            task.assignment, task.slurm_job = None, None
            return found

    def _close_after(
        self, task: JobState, target: Target, cause: str, words: str, node: str
    ) -> str:
        """Avoid where a job failed by no fault of it; return why no place will ever take it."""
        why = f"{words}: {task.name}"
        if cause == "refused" and task.submission and not may_pass(words):
            round_ = self.begin_round(self.cluster.state)
            every = round_.reach.of(task).every(excluded=True)
            able = [to for to, one in every.items() if round_.state.can_ever_run(to, one)]
            return self.admission.close(task, target, words, able)
        if cause == "refused":
            with contextlib.suppress(SlurmQueryError):  # then sbatch takes nothing
                self.cluster.queue()
                if not any(one.taken_as(task) for one in self.tasks.values()):
                    self.mover.avoid([target], why, for_all=True)
        elif cause == "budget":
            whose, what = "QOS" if "QOS" in words else "Assoc", "GRES" * ("gres" in words)
            targets = self.mover.targets_of_limit(f"{whose}Grp{what}", target)
            self.mover.avoid(targets, why, for_all=True)
        elif cause in ("node", "device") and node:
            self.bad_nodes[target.device].add(node)
        return ""

    def _ended(self, task: JobState, known_s: float = math.inf) -> SlurmJob | None:
        """Return what the queue says of a job that ended, as far as it is known."""
        with contextlib.suppress(SlurmQueryError):
            observe([task], self.cluster.queue(), self.workdir, self.clock())
            old = self.cluster.client.queue_asked_s() < known_s
            if old and (task.slurm_job is None or task.slurm_job.active):
                self.cluster.client.forget()
                # whether the target took others counts as well
                observe(self.tasks.values(), self.cluster.queue(), self.workdir, self.clock())
        return task.slurm_job

    def move_pending(self, movable: Callable[[str], bool] = lambda name: True) -> list[str]:
        """Cancel jobs that pend in vain while another target ends them sooner; return their names.

        None while a job that was cancelled before is not ready again: it may take what is free.

        Parameters
        ----------
        movable : callable
            Whether Snakemake would try a job again.
        """
        with self.lock, self.submissions.alone():
            tasks = [task for task in self.tasks.values() if task.active]
            cancelled = any(t.move_reason and t.assignment for t in self.tasks.values())
            if cancelled or all(task.running for task in tasks):
                return []
            try:
                observe(tasks, self.cluster.queue(), self.workdir, self.clock())
                if not self.mover.anything_due(tasks):  # most jobs start in time: ask nothing else
                    return []
                state = self.state()
            except SlurmQueryError:
                return []
            tasks = [task for task in tasks if movable(task.name)]
            state = self.mover.state_after_change(tasks, state, self.state)
            found = self.mover.move(tasks, self.begin_round(state))
            return [task.name for task in found]

    def explain_pending(self, movable: Callable[[str], bool] = lambda name: True) -> list[str]:
        """Return why jobs pend for long, once for each job and reason; the ledger gets it too."""
        with self.lock:
            return self.mover.explain(self.tasks.values(), movable)

    def unseen_ends(self, sent: Mapping[str, int]) -> dict[str, tuple[str, bool]]:
        """Return jobs whose end the executor does not see: why each ended, and if it is done."""
        with self.lock:
            try:
                queue = self.cluster.queue()
            except SlurmQueryError:
                return {}
            observe(self.tasks.values(), queue, self.workdir, self.clock())
            client, now_s = self.cluster.client, self.clock()
            return unseen_ends(self.tasks, queue, client, now_s, sent, self._taken_s)
