"""What jobs of a run found out of each place: it is open, full, or closed until a time.

Slurm says so itself, by the reasons of jobs that pend, and by the words of sbatch.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from ..slurm.reasons import NOT_STARTED
from .jobs import Task
from .request import DeviceKind, Place

#: Jobs that are sent to a place of which nothing is known, and that pend at one that is full.
FEW = 4
#: A job that pends for so long for a limit of which nothing is known may never start there.
LONG_S = 120.0
#: A job that pends so long is explained (no figure).
_EXPLAIN_S = 60.0
#: A place is full for so long after Slurm last said so: it schedules every 30 to 60 s.
FULL_S = 60.0
#: A job that pends for so long without a limit waits for nodes: two of Slurm's cycles.
NODES_S = 60.0
#: Limits are asked again after so long.
_WRONG_S = 300.0
#: A place is closed so long at first, and twice as long each time, 64 min at most (no figures).
_CLOSED_S, _MOST_DOUBLINGS = 120.0, 5


@dataclass
class Spot:
    """A place in a round.

    Attributes
    ----------
    running : int
        Jobs of this run that run there.
    pending : int
        Jobs of this run that pend there, or are sent there now.
    full : bool
        Something of this run pends there for a limit, or for nodes.
    at_limit : bool
        It pends for a limit.
    closed : str
        Why nothing is sent there now, in Slurm's words.
    started_s : float
        When the last one was sent of the jobs of this run that started there.
    """

    place: Place
    running: int = 0
    pending: int = 0
    full: bool = False
    at_limit: bool = False
    closed: str = ""
    started_s: float = 0.0

    @property
    def may_pend(self) -> int:
        """How many more jobs may pend there."""
        return max(0, max(FEW, self.running // 2) - self.pending)


class Spots(dict[Place, Spot]):
    """The places of a round; one that is asked for is made.

    Parameters
    ----------
    make : callable
        A place to its `Spot` without jobs.

    Attributes
    ----------
    nodes : dict
        By a list of partitions, all jobs of this run that run or pend on its nodes.
    """

    def __init__(self, make: Callable[[Place], Spot]) -> None:
        super().__init__()
        self.make = make
        self.nodes: dict[tuple[str, ...], Spot] = {}

    def __missing__(self, place: Place) -> Spot:
        self.nodes.setdefault(place.partitions, Spot(place))
        self[place] = self.make(place)
        return self[place]

    def add(self, place: Place, *, running: int = 0, pending: int = 0) -> None:
        """Count jobs of this run at a place."""
        for spot in (self[place], self.nodes[place.partitions]):
            spot.running += running
            spot.pending += pending


class FirstSpot:
    """The places of one group of jobs, of which that with the lowest rank and least key is first.

    Keys only grow in a round, and places drop out (None), so the first one is looked at again and
    others are not; those of a rank are looked at when none of a lower one is left.
    """

    def __init__(
        self, spots: Iterable[Spot], key: Callable[[Spot], tuple[int, ...] | None]
    ) -> None:
        self.key = key
        self.ranks = [[*own] for _, own in groupby(spots, key=lambda spot: spot.place.rank)][::-1]
        self.heap: list[tuple[tuple[int, ...], int, Spot]] = []

    def find(self) -> Spot | None:
        """Return the first place; None where none is left."""
        while self.heap or self.ranks:
            if not self.heap:
                keys = [(self.key(spot), i, spot) for i, spot in enumerate(self.ranks.pop())]
                self.heap = [(key, i, spot) for key, i, spot in keys if key is not None]
                heapq.heapify(self.heap)
                continue
            known, i, spot = self.heap[0]
            now = self.key(spot)
            if now == known:
                return spot
            if now is None:
                heapq.heappop(self.heap)
            else:
                heapq.heapreplace(self.heap, (now, i, spot))
        return None


class Closed(NamedTuple):
    """A place that takes no job: until when, how often it was before, and Slurm's words."""

    until_s: float
    times: int
    words: str


@dataclass
class Places:
    """What is known of the places of a run.

    Attributes
    ----------
    wrong_s : dict
        Places that were full although their known limits had room, and when: what is known of them
        is not trusted for a while.
    """

    closed: dict[Place, Closed] = field(default_factory=dict)
    wrong_s: dict[Place, float] = field(default_factory=dict)
    _full_s: dict[Hashable, float] = field(default_factory=dict)
    _ended_s: dict[Hashable, float] = field(default_factory=dict)
    _started_s: dict[Place, float] = field(default_factory=dict)
    _pends: set[Hashable] = field(default_factory=set)
    _nodes_full_s: dict[tuple[DeviceKind, tuple[str, ...]], float] = field(default_factory=dict)

    def note(self, tasks: Iterable[Task], now_s: float) -> None:
        """Note why jobs pend, and where jobs run."""
        tasks = list(tasks)
        pending = {task.place for task in tasks if task.place and task.pending}
        self._pends = {key for place in pending for key in _bounds(place)}
        runs = {task.place for task in tasks if task.running}
        for task in tasks:
            place, job = task.place, task.slurm_job
            if place is None or job is None:
                continue
            if not job.pending:
                self._note_start(place, task)
                if (known := self.closed.get(place)) and task.sent_s > known.until_s:
                    del self.closed[place]
            elif job.waiting.obstacle in ("limit", "unknown"):
                self.fill(place, now_s, job.reason)
                if task.had_room:
                    self.wrong_s[place] = now_s
                # where none of this run runs, a limit may never let any start
                if place not in runs and now_s - task.waits_since_s > LONG_S:
                    self.close(place, f"{job.waiting.words} (Slurm: {job.reason})", now_s)
            elif job.waiting.obstacle == "nodes":
                self.close(place, f"{job.waiting.words} (Slurm: {job.reason})", now_s)
            elif waits_for_nodes(task, now_s):
                self._nodes_full_s[place.kind, place.partitions] = now_s

    def fill(self, place: Place, now_s: float, reason: str = "") -> None:
        """Note that a limit of a place is reached, or one of its QOS or account for all places."""
        bound, of_qos, of_account = _bounds(place)
        if reason.startswith("QOS") and "PerAccount" not in reason and place.qos:
            bound = of_qos
        elif reason.startswith("Assoc"):
            bound = of_account
        self._full_s[bound] = now_s

    def note_end(self, place: Place, task: Task, now_s: float) -> None:
        """Note that a job ended: where none pends, its slot is free whatever was said before."""
        self._note_start(place, task)
        self._ended_s.update(dict.fromkeys(_bounds(place), now_s))

    def _note_start(self, place: Place, task: Task) -> None:
        self._started_s[place] = max(task.waits_since_s, self._started_s.get(place, 0.0))

    def close(self, place: Place, words: str, now_s: float) -> None:
        """Send nothing to a place for a while."""
        known = self.closed.get(place)
        if known is not None and known.until_s > now_s:
            return
        times = known.times + 1 if known else 0
        until_s = now_s + _CLOSED_S * 2 ** min(times, _MOST_DOUBLINGS)
        self.closed[place] = Closed(until_s, times, words)

    def wrong(self, now_s: float) -> set[Place]:
        """Return the places of which what is known is not trusted now."""
        return {place for place, at_s in self.wrong_s.items() if now_s - at_s < _WRONG_S}

    def _limit_s(self, bound: Hashable) -> float:
        """Return when a limit was last reached; 0 where it is not now, as far as is known."""
        full_s = self._full_s.get(bound, 0.0)
        opened = bound not in self._pends and self._ended_s.get(bound, 0.0) >= full_s
        return 0.0 if opened else full_s

    def spot(self, place: Place, now_s: float) -> Spot:
        """Return a place as it is now, without its jobs."""
        known = self.closed.get(place)
        limit_s = max(map(self._limit_s, _bounds(place)))
        full_s = max(
            limit_s,
            self._nodes_full_s.get((place.kind, place.partitions), 0.0),
        )
        closed = known.words if known and known.until_s > now_s else ""
        full, at_limit = now_s - full_s < FULL_S, now_s - limit_s < FULL_S
        started_s = self._started_s.get(place, 0.0)
        return Spot(place, full=full, at_limit=at_limit, closed=closed, started_s=started_s)


def _bounds(place: Place) -> tuple[Hashable, Hashable, Hashable]:
    """Return what may be full: a place, its QOS for all accounts, its account for all QOS."""
    return place, (place.qos, place.kind), (place.account, place.partitions)


def waits_for_nodes(task: Task, now_s: float) -> bool:
    """Return whether a job has pended for so long that its nodes, or the queue, are full."""
    return task.pending and task.obstacle == "order" and now_s - task.waits_since_s > NODES_S


def never_starts(task: Task) -> bool:
    """Return whether a job pends that Slurm will not start where it is."""
    if not task.pending or task.slurm_job is None or task.leaves:
        return False
    waiting = task.slurm_job.waiting
    return waiting.obstacle == "invalid" or waiting.words == NOT_STARTED


def long_pending(tasks: Iterable[Task], now_s: float) -> dict[str, list[Task]]:
    """Return jobs that pend for long by the words of Slurm's reason, each once for each reason."""
    found: dict[str, list[Task]] = {}
    for task in tasks:
        job = task.slurm_job
        if (
            job
            and job.pending
            and now_s - task.sent_s > _EXPLAIN_S
            and task.explained != task.obstacle
        ):
            task.explained = task.obstacle
            found.setdefault(f"{job.waiting.words} (Slurm: {job.reason})", []).append(task)
    return found
