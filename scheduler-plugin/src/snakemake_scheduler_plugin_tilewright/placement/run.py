"""One run: jobs come in as they are ready, and go out as they have ended.

Each step looks at Slurm's queue once, ends what has ended, and places what is ready. A look that
fails is no look: nothing is concluded from it.
"""

import math
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..runtime.errors import SlurmQueryError
from ..runtime.ledger import Ledger
from ..slurm.jobs import SlurmJob
from ..slurm.reasons import may_pass, refusal_words
from .cluster import Cluster
from .ends import Ends
from .jobs import End, History, Task, exclude, names_of
from .order import Durations, Order
from .request import KINDS, DeviceKind, Place, ResourceRequest
from .room import Settings, Survey
from .round import Choice, Round
from .sender import Sender, Submission
from .status import NODES_S, Places, Spot, Spots, long_pending, never_starts

#: The order of jobs is made again when 1, 2, 4 … and each time so many more are done (no figure).
_ORDER_AGAIN = 64
#: A job that pends for a limit may go elsewhere after so long (no figure).
_LIMIT_S = 5.0
#: An answer of Slurm that takes long is not asked again before so many times as long (no figure).
_PAUSE = 4
#: Jobs that a round sends at most, in 5 s by four calls of sbatch at once that take 0.2 s each.
MOST_STARTS = 100


@dataclass
class Run:
    """Places the jobs of one run.

    Parameters
    ----------
    command : callable
        Job, place, request, and the job's name in Slurm to its submission.
    sent : callable
        Called with each job that Slurm took, first of all.
    say : callable
        Gets sentences for the user.
    pools : mapping
        By pool, its account, device kind and slots, for the ledger.
    """

    cluster: Cluster
    settings: Settings
    ledger: Ledger
    ends: Ends
    command: Callable[[Task, Place, ResourceRequest, str], Submission]
    order: Order = field(default_factory=Order)
    sent: Callable[[Task], None] = lambda task: None
    say: Callable[[str], None] = lambda sentence: None
    pools: Mapping[str, Sequence[object]] = field(default_factory=dict)
    name: str = field(default_factory=lambda: f"tw-{uuid.uuid4().hex[:8]}")
    durations: Durations = field(default_factory=Durations)
    places: Places = field(default_factory=Places)
    tasks: list[Task] = field(default_factory=list)
    waiting: Counter[str] = field(default_factory=Counter)
    stopped: bool = False
    _inbox: list[Task] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _histories: dict[tuple[str, str], History] = field(default_factory=dict)
    _groups: dict[object, int] = field(default_factory=dict)
    sender: Sender = field(init=False)
    survey: Survey = field(init=False)
    _done: int = 0
    _looked_s: float = -math.inf
    _due_s: float = -math.inf
    _more: bool = False
    _away: str = ""

    def __post_init__(self) -> None:
        self.sender = Sender(
            self.cluster, self.ledger, self.places, self.name, self.command, self.sent
        )
        self.survey = Survey(self.cluster, self.settings.cpu_share)

    def submit(self, tasks: Iterable[Task]) -> None:
        """Take jobs that are ready; another thread may call it."""
        with self._lock:
            self._inbox += tasks

    def step(self) -> list[End]:
        """Look at the queue if that is due, place what is ready, and return what has ended."""
        new, ended = self._take_inbox(), list[End]()
        due = self.clock() >= self._due_s
        # the queue was asked when the run began; of jobs that none took, time is all that passes
        if due and (self.active or (self.tasks and not new)):
            try:
                ended = self._look()
            except SlurmQueryError as error:
                self._note_away(str(error))
                return []
            self._note_away("")
        elif not new and not self._more:
            return []
        self._look_at_limits()
        ready = [task for task in self.tasks if task.place is None]
        if not self.stopped and not self._away and (ready or any(t.pending for t in self.tasks)):
            ended += self._act(self._round(ready))
        return ended

    def withdraw(self) -> list[Task]:
        """Stop sending jobs; return those that were not sent."""
        self.stopped, self._more = True, False
        self._take_inbox()
        held = [task for task in self.tasks if task.place is None]
        self.tasks = [task for task in self.tasks if task.place is not None]
        return held

    @property
    def active(self) -> list[Task]:
        """Jobs that Slurm has."""
        return [task for task in self.tasks if task.place is not None]

    @property
    def due_s(self) -> float:
        """When there is something to do next, in seconds since the epoch."""
        return -math.inf if self._more and not self._away else self._due_s

    def clock(self) -> float:
        """Return the time in seconds since the epoch."""
        return self.cluster.client.clock()

    def _take_inbox(self) -> bool:
        with self._lock:
            new, self._inbox = self._inbox, []
        for task in new:
            task.history = self._histories.setdefault((task.name, task.log), task.history)
            self.durations.slowdowns[task.rule] = task.slowdown
            self._hold(task)
        self.tasks += new
        return bool(new)

    def _hold(self, task: Task) -> None:
        """Make a job ready, again or for the first time."""
        task.forget()
        self.sender.exclude_refusals(task)
        task.group = self._groups.setdefault(task.alike, len(self._groups))

    def _look(self) -> list[End]:
        """Ask for the queue; return what has ended."""
        began_s = self.clock()
        queue = self.cluster.client.queue()
        self._looked_s, took_s = began_s, self.clock() - began_s
        self._due_s = began_s + max(self.settings.poll_s, _PAUSE * took_s)
        self._observe(queue)
        self.places.note(self.tasks, began_s)
        found = []
        for task in self.active:
            end = self.ends.end_of(task, queue, self._looked_s)
            if end is not None:
                found += self._end(task, *end)
        self._free_held()
        self._explain()
        return found

    def _observe(self, queue: Sequence[SlurmJob]) -> None:
        """Note what the queue says of each job that was sent: by its number, else by its name."""
        by_id = {job.id: job for job in queue}
        by_name = {job.name: job for job in queue}
        for task in self.active:
            job = by_id.get(task.slurm_id) or by_name.get(task.slurm_name)
            if job is None:
                continue
            if not task.slurm_id:
                task.slurm_id = job.id
                self.sent(task)
            if task.slurm_job and task.running and job.pending:  # it was requeued
                task.waits_since_s = self._looked_s
            task.slurm_job, task.observed_s = job, self._looked_s
            if job.active and not job.pending:  # it started before it was cancelled
                task.leaves = False
            if job.waiting.obstacle == "held" and job.pending:
                task.waits_since_s = self._looked_s

    def _note_away(self, why: str) -> None:
        """Note that Slurm does not answer, or does again; it is asked again with the next poll."""
        if why and not self._away:
            self.say(f"{why}; what runs goes on, and Slurm is asked again")
            self.ledger.write("hold", reason=why)
        if why:
            self._due_s = self.clock() + self.settings.poll_s
        elif self._away:
            self.say("Slurm answers again")
        self._away = why

    def _look_at_limits(self) -> None:
        """Ask for limits and live use where they are old."""
        if not self.survey.begun:
            self._write_run()
        for note in self.survey.look(self.active):
            self.say(note)

    def _write_run(self) -> None:
        found = self.cluster
        self.ledger.write(
            "run", run=self.name, user=found.client.user, pools=self.pools,
            kinds=sorted({kind for task in self.tasks for kind in task.requests}),
            left_out={one.account: one.reason for one in found.left_out}, notes=found.notes,
        )  # fmt: skip

    def _round(self, ready: Sequence[Task]) -> Choice:
        now_s = self.clock()
        spots = Spots(lambda place: self.places.spot(place, now_s))
        ends: dict[DeviceKind, list[tuple[float, Place]]] = {kind: [] for kind in KINDS}
        waits: dict[DeviceKind, tuple[float, Place]] = {}
        movable = []
        for task in self.active:
            place = task.place
            assert place is not None
            if task.running:
                spots.add(place, running=1)
                ends[place.kind].append((self._end_s(task, place, now_s), place))
                continue
            spots.add(place, pending=1)
            # where none runs, a slot is guessed: a job waits as long again as it has waited
            guess = 2 * now_s - task.waits_since_s + self._seconds(task, place)
            if place.kind not in waits or guess < waits[place.kind][0]:
                waits[place.kind] = guess, place
            if self._may_move(task, spots[place], now_s):
                movable.append(task)
        for kind, one in waits.items():
            ends[kind] = ends[kind] or [one]
        for task in [*ready, *movable]:
            task.order = task.order or self.order.of(task.units or [task.job], self.durations)
        most = min(self.settings.most_jobs - len(self.active), MOST_STARTS)
        room = self.survey.room(self.tasks, movable, self.places.wrong(now_s))
        made = Round(self.cluster, self.durations, room, spots, ends, now_s, most)
        return made.place(ready, movable)

    def _end_s(self, task: Task, place: Place, now_s: float) -> float:
        """Return when a running job is expected to end; one that is late, as late again."""
        start_s = (task.slurm_job and task.slurm_job.start_s) or task.sent_s
        end_s = start_s + self._seconds(task, place)
        return end_s if end_s > now_s else 2 * now_s - end_s + 1.0

    def _seconds(self, task: Task, place: Place) -> float:
        return self.durations.factor(task.rule, place.kind) * task.cpu_seconds

    def _may_move(self, task: Task, spot: Spot, now_s: float) -> bool:
        """Return whether a job that pends may go elsewhere: Slurm has said why it does."""
        if not task.slurm_id or task.slurm_job is None or task.leaves:
            return False
        if task.obstacle in ("held", "invalid"):
            return False
        if spot.closed:
            return True
        # each move doubles the time until the next one
        least_s = (NODES_S if task.obstacle == "order" else _LIMIT_S) * 2.0**task.moves
        return now_s - task.waits_since_s > least_s

    def _act(self, choice: Choice) -> list[End]:
        """Do what a round decided; return the jobs that no place takes."""
        for place, tasks in choice.moves.items():
            self._move(tasks, place)
        if choice.switches:
            self._cancel(choice.switches, "the other device kind ends it sooner")
            for task in choice.switches:
                task.switches += 1
        refused = self.sender.send(choice.starts)
        for task in refused:
            task.forget()
        if refused:
            for task in self.tasks:
                if task.place is None:  # others of its size are not sent there either
                    self._hold(task)
            self._due_s = min(self._due_s, self.clock() + 1.0)
        self._more = len(choice.starts) >= MOST_STARTS
        if not self._more and choice.waiting != self.waiting:
            self.waiting = choice.waiting
            self.ledger.write("wait", why=dict(choice.waiting))
        ended = []
        for task, why in choice.impossible:
            self.tasks.remove(task)
            self.ledger.write(
                "fail", **task.event(), cause="refused", words=why, next="is given up",
                give_up=True, end_s=self.clock(), log=task.log or None,
            )  # fmt: skip
            ended.append(End(task, f"no place takes it: {why}", final=True))
        return ended

    def _move(self, tasks: list[Task], place: Place) -> None:
        """Give pending jobs another place, by one call; what it refuses is tried one by one."""
        partitions = ",".join(place.partitions)
        try:
            ids = [task.slurm_id for task in tasks]
            self.cluster.client.move(ids, place.account, place.qos, partitions)
        except SlurmQueryError as error:
            if tasks[1:]:
                for task in tasks:
                    self._move([task], place)
            elif "no longer pending" not in error.reason and not may_pass(error.reason):
                exclude(tasks[0].history, place, refusal_words(error.reason))
            return
        for task in tasks:
            reason = task.slurm_job.reason if task.slurm_job else ""
            self.ledger.write("move", **task.event(), reason=reason, sooner=f"{place} {place.kind}")
            task.place, task.slurm_job, task.waits_since_s = place, None, self.clock()
            task.moves += 1
        self.say(f"{names_of(tasks)} {'go' if tasks[1:] else 'goes'} to {place}")

    def _cancel(self, tasks: list[Task], why: str) -> None:
        """Cancel pending jobs that are sent elsewhere as soon as they are gone."""
        try:
            self.cluster.client.cancel([t.slurm_id for t in tasks], pending_only=True)
        except SlurmQueryError:
            return  # the next round does it again
        for task in tasks:
            task.leaves = True
            self.ledger.write("move", **task.event(), reason=why, later=True)
        self._due_s = min(self._due_s, self.clock() + 2.0)

    def _end(self, task: Task, ok: bool, job: SlurmJob | None) -> list[End]:
        """Note how a job ended; return it, unless it is sent again."""
        place = task.place
        assert place is not None
        start_s = (job and job.start_s) or task.sent_s
        end_s = (job and job.end_s) or self.clock()
        node = job.nodes if job else ""
        if not task.leaves:  # one that was cancelled while it pended held no slot
            self.places.note_end(place, task, self.clock())
        if ok:
            self.durations.learn(task.rule, place.kind, task.cpu_seconds, end_s - start_s)
            self.ledger.write(
                "done", **task.event(), node=node or None, start_s=start_s, end_s=end_s,
                sent_s=task.sent_s,
            )  # fmt: skip
            self.tasks.remove(task)
            self._note_done()
            return [End(task)]
        if task.leaves and (job is None or job.state == "CANCELLED"):
            task.leaves = False
            self._hold(task)
            return []
        cause, words, log = self.ends.cause_of(task, job)
        then, free, final = self.ends.next_try(task, cause, words)
        if cause in ("node", "device") and node:
            self.sender.bad_nodes[place.kind].add(node)
        self.ledger.write(
            "fail", **task.event(), cause=cause, words=words, next=then, node=node or None,
            start_s=start_s, end_s=end_s, log=log or None, give_up=final or None,
        )  # fmt: skip
        self.say(f"{task.name} failed ({cause}: {words}); it {then}")
        if free:
            self._hold(task)
            return []
        self.tasks.remove(task)
        return [End(task, f"{cause}: {words}", final)]

    def _note_done(self) -> None:
        """Make the order of jobs again, with what was learned of their durations, now and then."""
        self._done += 1
        if self._done & (self._done - 1) == 0 or self._done % _ORDER_AGAIN == 0:
            self.order.forget()
            for task in self.tasks:
                task.order = ()

    def _free_held(self) -> None:
        """Cancel what Slurm will never start where it is, so that it goes elsewhere."""
        invalid = [task for task in self.active if never_starts(task)]
        for task in invalid:
            assert task.slurm_job is not None
            assert task.place is not None
            waiting = task.slurm_job.waiting
            exclude(task.history, task.place, f"{waiting.words} (Slurm: {task.slurm_job.reason})")
        if invalid:
            self._cancel(invalid, "Slurm does not start it there")

    def _explain(self) -> None:
        """Say why jobs pend for long, once for each reason of a job."""
        for words, tasks in long_pending(self.active, self._looked_s).items():
            for task in tasks:
                reason = task.slurm_job.reason if task.slurm_job else ""
                self.ledger.write("pend", **task.event(), reason=reason, words=words)
            self.say(f"{names_of(tasks)} pend{'' if tasks[1:] else 's'}: {words}")
