"""What is done with jobs that pend: which are moved, which places are closed, and what is said."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from snakemake_scheduler_plugin_tilewright.placement.avoided import AvoidedPlaces
from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    KINDS,
    Kind,
    Place,
    Shape,
    Task,
    observe,
)
from snakemake_scheduler_plugin_tilewright.placement.ledger import Ledger
from snakemake_scheduler_plugin_tilewright.placement.limits import counted, has_room
from snakemake_scheduler_plugin_tilewright.placement.needs import room_on
from snakemake_scheduler_plugin_tilewright.placement.round import Round
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob, Waiting, why_pending
from snakemake_scheduler_plugin_tilewright.slurm.query import Unknown

#: A job is moved at most so often; where it cannot stay, as often as there are places.
MOST_MOVES = 3
#: Reasons that nobody knows end by themselves more often than not: they get so much more time.
_UNKNOWN_PATIENCE = 4
#: A job with such a reason waits for no node, whatever room there is.
_NOT_FOR_NODES = ("BeginTime", "Priority", "Prolog", "Cleaning", "SchedDefer", "FedJobLock")


class _Stuck(NamedTuple):
    """A task that pends: what the queue says of it, its place, and why it pends for how long."""

    task: Task
    seen: SlurmJob
    place: Place
    why: Waiting
    waited_s: float

    @property
    def for_good(self) -> bool:
        """Whether it cannot stay: what running jobs take of a budget comes back, the rest not."""
        spent = self.why.obstacle == "budget" and "Run" not in self.seen.reason
        return spent or self.why.obstacle == "invalid"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The device kinds of its account that wait for the same."""
        if self.why.obstacle not in ("budget", "uncounted"):
            return (self.place.kind,)
        return ("gpu",) if "GRES" in self.seen.reason else KINDS


@dataclass
class PendingJobs:
    """Looks after the jobs of one run that pend.

    Attributes
    ----------
    avoided : AvoidedPlaces
        Gets the places that jobs are moved away from.
    workdir : str
        Where the jobs run.
    clock : callable
        Seconds since the epoch.
    """

    cluster: Cluster
    ledger: Ledger
    avoided: AvoidedPlaces
    workdir: str
    clock: Callable[[], float]

    def due(self, tasks: Iterable[Task]) -> bool:
        """Return whether a task pends for so long, or so, that something may be done about it."""
        return any(
            one.why.obstacle == "invalid" or one.waited_s >= self.cluster.site.patience_s
            for one in self._stuck(tasks)
        )

    def refreshed(
        self, tasks: Iterable[Task], old: Capacity, ask: Callable[[], Capacity | Unknown]
    ) -> Capacity:
        """Return the capacity, asked again where Slurm finds a job invalid.

        Limits or partitions then changed, and what is known of them may be minutes old.
        """
        now = self.avoided.now(self.clock())
        invalid = {
            (one.place.account, one.place.kind)
            for one in self._stuck(tasks)
            if one.why.obstacle == "invalid"
        }
        if not invalid - now.keys():
            return old
        self.cluster.client.forget(limits=True)
        new = ask()
        return old if isinstance(new, Unknown) else new

    def move(
        self, tasks: Iterable[Task], round_: Round, begin: Callable[[Capacity], Round]
    ) -> list[Task]:
        """Cancel jobs that pend in vain while another place ends them sooner, and return them.

        How long they would still wait is not known; as long as they did already is the guess. A
        job that was moved waits twice as long before it is moved again, and is at most three
        times. One that Slurm finds invalid goes at once, and that or one whose budget is used up
        is ready again where another place takes it, although not now; an invalid one that none
        ever will take ends.

        Parameters
        ----------
        tasks : iterable of Task
            That Snakemake would try again.
        round_ : Round
            With all that is known now.
        begin : callable
            Begins a round with less capacity.
        """
        moved: list[Task] = []
        for stuck in [one for one in self._stuck(tasks) if not one.task.moved]:
            if not self._tried(stuck):
                continue
            better = self._better(stuck, round_)
            later = stuck.for_good and better is None and self._takes_later(stuck, round_)
            lost = stuck.why.obstacle == "invalid" and self._waited(stuck) and not later
            self._close(stuck, better)
            if (better or later or lost) and self._cancel(stuck.task):
                self._note(stuck, better, lost=lost and better is None)
                moved.append(stuck.task)
                round_ = begin(round_.capacity.take(*better) if better else round_.capacity)
        return moved

    def explain(self, tasks: Iterable[Task]) -> list[str]:
        """Return why jobs pend for long, once for each job and reason; the ledger gets it too."""
        found: dict[str, list[str]] = {}
        for task, seen, _, why, waited_s in self._stuck(tasks):
            words = why.words
            if task.moves >= MOST_MOVES:
                words += f"; it was moved {task.moves} times and waits here, where it ends first"
            if waited_s >= self.cluster.site.patience_s and task.said != words:
                task.said = words
                found.setdefault(f"{words} (Slurm: {seen.reason})", []).append(task.name)
                self.ledger.write(
                    "pend", job=task.name, slurm_id=seen.id, reason=seen.reason, words=words
                )
        return [
            f"{names[0]} and {len(names) - 1} more pend: {words}"
            if names[1:]
            else f"{names[0]} pends: {words}"
            for words, names in found.items()
        ]

    def avoid(
        self,
        account: str,
        kinds: Collection[Kind],
        why: str,
        *,
        for_all: bool,
        invalid: bool = False,
    ) -> None:
        """Send nothing to an account for a while.

        Where Slurm takes no job as it was sent, limits or partitions changed: they are asked again.
        """
        now_s = self.clock()
        new = [
            self.avoided.avoid((account, kind), why, now_s, for_all=for_all, invalid=invalid)
            for kind in kinds
        ]
        if any(new) and for_all:
            self.cluster.client.forget(limits=True)

    def _stuck(self, tasks: Iterable[Task]) -> list[_Stuck]:
        """Return the tasks that pend, as the queue last said."""
        now_s = self.clock()
        return [
            _Stuck(task, seen, place, self._why(seen, place), now_s - task.sent_s)
            for task in tasks
            if (seen := task.seen) and (place := task.place) and seen.state == "PENDING"
        ]

    def _why(self, seen: SlurmJob, place: Place) -> Waiting:
        """Return why a job pends.

        Slurm 22.05 names ``QOSGrpGRES`` also where GPUs of other jobs, or a reservation, are in the
        way: where its own numbers of what it names leave room, the nodes are busy.
        """
        why, survey = why_pending(seen.reason), self.cluster.survey
        where = survey.where(place)
        account = next((one for one in survey.accounts if one.name == place.account), None)
        if why.obstacle == "limit" and account is not None:
            if not counted(seen.reason, account, where):
                why = replace(why, obstacle="uncounted")
            elif has_room(account, where, place.shape):
                why = Waiting("busy", "its account has room, so its nodes are in the way")
        if why.obstacle == "busy" and survey.nodes is not None and where is not None:
            free = room_on(survey.nodes, where, place.shape, now=True)
            if free and not seen.reason.startswith(_NOT_FOR_NODES):
                words = f"by Slurm's own numbers {where.name} has room for it: a reservation may be"
                return Waiting("busy", f"{words} in the way")
        return why

    def _waited(self, stuck: _Stuck) -> bool:
        """Return whether a job has pended for longer than patience lasts."""
        patience_s = self.cluster.site.patience_s * 2.0**stuck.task.moves
        return stuck.waited_s >= patience_s * (
            _UNKNOWN_PATIENCE if stuck.why.obstacle == "other" else 1
        )

    def _tried(self, stuck: _Stuck) -> bool:
        """Return whether a job may be moved now."""
        if stuck.why.obstacle == "invalid":
            return True
        if stuck.why.obstacle == "held" or not self._waited(stuck):
            return False
        return stuck.for_good or stuck.task.moves < MOST_MOVES

    def _better(self, stuck: _Stuck, round_: Round) -> tuple[str, Kind, Shape] | None:
        """Return the place that ends a job sooner than its own."""
        endless = stuck.for_good or stuck.why.obstacle == "nodes"
        return round_.sooner_elsewhere(
            stuck.task,
            math.inf if endless else stuck.waited_s,
            other_nodes=stuck.why.obstacle in ("busy", "nodes"),
            other_account=stuck.kinds == KINDS,
            anywhere=stuck.for_good,
        )

    def _takes_later(self, stuck: _Stuck, round_: Round) -> bool:
        """Return whether another place takes a job, although it is full now."""
        own = stuck.place.account if stuck.why.obstacle == "budget" else None
        return any(
            place[0] != own and round_.capacity.may_ever(*place)
            for place in round_.elsewhere(stuck.task, anywhere=stuck.for_good)
        )

    def _close(self, stuck: _Stuck, better: tuple[str, Kind, Shape] | None) -> None:
        """Avoid for a while what a job waits for, by the reason; a limit Slurm says by itself."""
        place, obstacle = stuck.place, stuck.why.obstacle
        text, account, kinds = self._text(stuck), place.account, (place.kind,)
        if obstacle == "budget" or (obstacle == "uncounted" and better):
            self.avoid(account, stuck.kinds, text, for_all=True)
        elif obstacle == "other":
            self.avoid(account, kinds, text, for_all=True)
        elif obstacle == "invalid" and (better is None or better[:2] != (account, place.kind)):
            self.avoid(account, kinds, text, for_all=True, invalid=True)
        elif obstacle in ("busy", "nodes") and better:
            for one in self.cluster.survey.accounts:
                self.avoid(one.name, kinds, text, for_all=False)

    def _text(self, stuck: _Stuck) -> str:
        return f"{stuck.seen.reason} on {stuck.place.account} for {stuck.waited_s:.0f} s"

    def _note(self, stuck: _Stuck, better: tuple[str, Kind, Shape] | None, *, lost: bool) -> None:
        """Note why a job was cancelled, and where it goes and does not go again."""
        task, place = stuck.task, stuck.place
        if lost:
            task.refused = f"{stuck.why.words} (Slurm: {stuck.seen.reason})"
        else:
            task.moved, task.moves = self._text(stuck), task.moves + 1
            task.bound = better[:2] if better else None
            kinds = {place.kind, *stuck.kinds}
            task.left |= {(place.account, kind) for kind in kinds} - {task.bound}
        self.ledger.write(
            "move", job=task.name, slurm_id=stuck.seen.id, reason=self._text(stuck),
            sooner=f"{better[0]} {better[1]}" if better else None,
            later=True if better is None and not lost else None,
        )  # fmt: skip

    def _cancel(self, task: Task) -> bool:
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
