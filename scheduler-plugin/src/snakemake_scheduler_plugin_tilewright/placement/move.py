"""What becomes of jobs that pend: which are moved, which targets closed, and what is shown.

To move a job is to cancel it and to exclude the target at which it pended: it is ready again, and a
later round places it as any other.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..cluster.cluster import Cluster
from ..cluster.limits import targets_of_limit
from ..cluster.request import ResourceRequest, Target
from ..cluster.state import ClusterState
from ..errors import SlurmQueryError
from ..runtime.ledger import Ledger
from ..slurm.jobs import SlurmJob, Waiting, is_held, why_pending
from .jobs import JobState, observe
from .place_history import Backoff
from .round import Round

#: A job is moved at most so often (no figure); one that cannot stay as often as there are targets.
MOST_MOVES = 3


class _Pending(NamedTuple):
    """A job that pends: what the queue says of it, where, and why it pends for how long."""

    task: JobState
    slurm_job: SlurmJob
    target: Target
    why: Waiting
    waited_s: float

    @property
    def cannot_stay(self) -> bool:
        """Whether it cannot stay: it is invalid, or jobs that ended have used up its budget."""
        return self.why.obstacle in ("invalid", "spent")

    @property
    def on_nodes(self) -> bool:
        """Whether it waits for nodes, which are those of other accounts as well."""
        return self.why.obstacle in ("order", "nodes")

    @property
    def reason(self) -> str:
        return f"{self.slurm_job.reason} on {self.target.account} for {self.waited_s:.0f} s"


@dataclass
class Mover:
    """Looks after the jobs of one run that pend.

    Attributes
    ----------
    backoff : Backoff
        Gets the targets at which jobs pended in vain.
    """

    cluster: Cluster
    ledger: Ledger
    backoff: Backoff
    workdir: str
    clock: Callable[[], float]

    def anything_due(self, tasks: Iterable[JobState]) -> bool:
        """Return whether a job pends for so long, or so, that something may be done about it."""
        return any(
            one.why.obstacle == "invalid" or one.waited_s >= self.cluster.site.patience_s
            for one in self._pending(tasks)
        )

    def state_after_change(
        self, tasks: Iterable[JobState], old: ClusterState, ask: Callable[[], ClusterState]
    ) -> ClusterState:
        """Return the state of the cluster, asked again where Slurm finds a job invalid."""
        invalid = {one.target for one in self._pending(tasks) if one.why.obstacle == "invalid"}
        if not invalid - self.backoff.avoided_at(self.clock()).keys():
            return old
        # it was valid when it was sent, so limits or partitions changed since they were asked
        self.cluster.client.forget(limits=True)
        try:
            return ask()
        except SlurmQueryError:
            return old

    def move(self, tasks: Iterable[JobState], round_: Round) -> list[JobState]:
        """Cancel those jobs that pend in vain while another target ends them sooner; return them.

        How long a job would still wait is not known: the guess is as long as it has. Each move
        doubles the time until the next one; after three a job stays. One that cannot stay
        (`cannot_stay`) is moved as often as there are targets, also where the next one is full now:
        one whose budget is used up after that time, an invalid one at once. An invalid one that no
        target will ever take fails. All are jobs that Snakemake would try again.
        """
        found: list[JobState] = []
        for one in filter(self._may_move, self._pending(tasks)):
            better = self._better(one, round_)
            later = one.cannot_stay and better is None and self._takes_later(one, round_)
            invalid = one.why.obstacle == "invalid" and self._has_waited(one)
            fails = invalid and not (better or later)
            self._close(one, better)
            if (better or later or fails) and self._cancel(one.task):
                self._note(one, better, fails=fails)
                found.append(one.task)
                if better:
                    round_.room.take(*better)
        return found

    def explain(self, tasks: Iterable[JobState], movable: Callable[[str], bool]) -> list[str]:
        """Return why jobs pend for long, once for each job and reason; the ledger gets it too."""
        found: dict[str, list[str]] = {}
        for one in self._pending(tasks):
            task, slurm_job, _, why, waited_s = one
            words = why.words
            if not movable(task.name):
                words += "; it has no try left (--retries), so it is not moved"
            elif task.moves >= MOST_MOVES:
                words += f"; it was moved {task.moves} times and waits here, where it ends first"
            elif not one.on_nodes and why.obstacle != "held":
                words += f"; no more such jobs go to {one.target.account} until one starts there"
            if waited_s >= self.cluster.site.patience_s and task.last_reason != words:
                task.last_reason = words
                found.setdefault(f"{words} (Slurm: {slurm_job.reason})", []).append(task.name)
                self.ledger.write(
                    "pend", job=task.name, slurm_id=slurm_job.id, reason=slurm_job.reason,
                    words=words,
                )  # fmt: skip
        return [
            f"{names[0]} and {len(names) - 1} more pend: {words}"
            if names[1:]
            else f"{names[0]} pends: {words}"
            for words, names in found.items()
        ]

    def avoid(
        self, targets: Collection[Target], why: str, *, for_all: bool, invalid: bool = False
    ) -> None:
        """Send nothing to some targets for a while."""
        now_s = self.clock()
        new = [
            self.backoff.avoid(target, why, now_s, for_all=for_all, invalid=invalid)
            for target in targets
        ]
        if any(new) and for_all:  # where Slurm takes no job as it was sent, they changed
            self.cluster.client.forget(limits=True)

    def targets_of_limit(self, reason: str, target: Target) -> set[Target]:
        """Return a target, and those that what Slurm says of a job there bounds as well."""
        state = self.cluster.state
        return {target} | targets_of_limit(reason, target, state.where(target), state.every_target)

    def _pending(self, tasks: Iterable[JobState]) -> list[_Pending]:
        """Return the jobs that pend, as the queue last showed."""
        now_s = self.clock()
        return [
            _Pending(
                task, job, assignment.target, why_pending(job.reason),
                now_s - (task.sent_s if is_held(job) else task.pending_since_s),
            )
            for task in tasks
            if (job := task.slurm_job) and (assignment := task.assignment)
            and job.state == "PENDING"
        ]  # fmt: skip

    def _has_waited(self, one: _Pending) -> bool:
        """Return whether a job has pended for longer than `patience_s`, doubled for each move."""
        return one.waited_s >= 2.0**one.task.moves * self.cluster.site.patience_s

    def _may_move(self, one: _Pending) -> bool:
        """Return whether a job may be moved now."""
        if one.task.move_reason or one.why.obstacle == "held":
            return False
        may_again = one.cannot_stay or one.task.moves < MOST_MOVES
        return one.why.obstacle == "invalid" or (may_again and self._has_waited(one))

    def _better(self, one: _Pending, round_: Round) -> tuple[Target, ResourceRequest] | None:
        """Return the target that ends a job sooner than its own."""
        endless = one.cannot_stay or one.why.obstacle == "nodes"
        return sooner_elsewhere(
            round_,
            one.task,
            math.inf if endless else one.waited_s,
            closed=self._closed_by(one),
            anywhere=one.cannot_stay,
        )

    def _closed_by(self, one: _Pending) -> set[Target]:
        """Return the targets that are no better, by the reason for which a job pends."""
        if one.why.obstacle == "invalid":
            return set()
        if not one.on_nodes:
            return self.targets_of_limit(one.slurm_job.reason, one.target)
        accounts = self.cluster.state.accounts
        return {replace(one.target, account=each.name, qos=each.qos) for each in accounts}

    def _takes_later(self, one: _Pending, round_: Round) -> bool:
        """Return whether another target takes a job, although it is full now."""
        closed = self._closed_by(one)
        return any(
            target not in closed and round_.state.can_ever_run(target, request)
            for target, request in elsewhere(round_, one.task, anywhere=one.cannot_stay)
        )

    def _close(self, one: _Pending, better: tuple[Target, ResourceRequest] | None) -> None:
        """Avoid for a while what a job waits for."""
        if one.why.obstacle == "invalid":
            if better is None or better[0] != one.target:
                self.avoid([one.target], one.reason, for_all=True, invalid=True)
        elif better or not one.on_nodes:
            self.avoid(self._closed_by(one), one.reason, for_all=not one.on_nodes)

    def _note(
        self, one: _Pending, better: tuple[Target, ResourceRequest] | None, *, fails: bool
    ) -> None:
        """Note why a job was cancelled, and where it does not go again."""
        task = one.task
        if fails:
            task.refused = f"{one.why.words} (Slurm: {one.slurm_job.reason})"
        else:
            task.move_reason, task.moves = one.reason, task.moves + 1
            vain = {one.target} | (set() if one.on_nodes else self._closed_by(one))
            # it may go back with fewer minutes
            task.excluded_targets |= vain - ({better[0]} if better else set())
        self.ledger.write(
            "move", job=task.name, slurm_id=one.slurm_job.id, reason=one.reason,
            sooner=f"{better[0].account} {better[0].device}" if better else None,
            later=True if better is None and not fails else None,
        )  # fmt: skip

    def _cancel(self, task: JobState) -> bool:
        """Return whether a job that pends was cancelled before it began; Slurm does not say."""
        client = self.cluster.client
        assert task.slurm_job is not None
        try:
            client.cancel([task.slurm_job.id], pending_only=True)
        except SlurmQueryError:
            return False
        client.forget()
        with contextlib.suppress(SlurmQueryError):
            observe([task], self.cluster.queue(), self.workdir, self.clock())
        return task.slurm_job.state != "RUNNING"


def sooner_elsewhere(
    round_: Round,
    task: JobState,
    waited_s: float,
    *,
    closed: Collection[Target] = (),
    anywhere: bool = False,
) -> tuple[Target, ResourceRequest] | None:
    """Return the target that would finish a pending job first, None where it best waits.

    Parameters
    ----------
    waited_s : float
        How long it has pended: the guess of how long it still will. Where none of its nodes
        is up any more it never starts.
    closed : collection of Target
        Those that what it pends for closes as well.
    anywhere : bool
        It cannot stay, so a target where it would wait for nodes is better too, and its own
        with the minutes that it allows now.
    """
    assert task.assignment is not None
    here = task.assignment

    def seconds(target: Target) -> float:
        return round_.estimates.seconds(task.job, target.device)

    gone = not round_.state.some_node_holds(here.target, here.request)
    least_s = math.inf if gone else waited_s + seconds(here.target)
    room = round_.room
    if task.slurm_job and round_.state.counts_pending(task.slurm_job):
        room = room.copy()  # what it holds of limits itself is not in its way elsewhere
        room.take(here.target, here.request, -1)
    others = [one for one in elsewhere(round_, task, anywhere=anywhere) if one[0] not in closed]
    sooner = [one for one in others if seconds(one[0]) < least_s]
    sooner.sort(key=lambda one: seconds(one[0]))
    for takes in (room.fits, room.within_limits)[: 1 + anywhere]:
        if best := next((one for one in sooner if takes(*one)), None):
            return best
    return None


def elsewhere(
    round_: Round, task: JobState, *, anywhere: bool = False
) -> list[tuple[Target, ResourceRequest]]:
    """Return the targets of a job that pends but its own and those that are excluded.

    Where it goes ``anywhere``, its own is another one with fewer minutes, and it goes back
    where nothing else will ever take it.
    """
    here = task.assignment
    assert here is not None
    others = [
        (target, request)
        for target, request in round_.reach.of(task).every(excluded=True).items()
        if target != here.target or (anywhere and request.runtime_min < here.request.runtime_min)
    ]
    fresh = [(target, one) for target, one in others if target not in task.excluded_targets]
    back = anywhere and not any(round_.state.can_ever_run(*one) for one in fresh)
    return others if back else fresh
