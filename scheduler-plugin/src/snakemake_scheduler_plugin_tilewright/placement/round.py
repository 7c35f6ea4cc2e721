"""One round: which ready jobs are sent now and where, and which pending ones go elsewhere (pure).

List scheduling (HEFT; Topcuoglu, Hariri and Wu 2002, doi:10.1109/71.993206): the job that most work
waits for comes first, and goes where it ends first, among the places that have room and the slots
that will fall free. A job whose slot is not free waits here, or, a few at each place, in Slurm's
queue, which fills a slot the moment it falls free. Nothing here forbids: where limits are not known
or wrong, jobs that pend tell.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from .cluster import Cluster
from .jobs import Task, with_minutes
from .order import Durations
from .request import KINDS, DeviceKind, Place, ResourceRequest
from .room import Room
from .status import FEW, LONG_S, FirstSpot, Spot, Spots

#: Slurm starts jobs, or says why not, after so long (``sched_interval``, ``bf_interval``).
CYCLE_S = 30.0
#: A pending job goes to the other device kind at most so often (no figure).
_MOST_SWITCHES = 3
WAITS_FOR_GPU = "a GPU that falls free ends it sooner than a CPU"
NO_ROOM = "every place that it may use is full"


@dataclass
class Choice:
    """What a round does.

    Attributes
    ----------
    starts : list
        Jobs that are sent, where, and what they ask for.
    moves : dict
        Pending jobs that go to another place of the same device kind, by that place.
    switches : list
        Pending jobs that are cancelled, as the other device kind ends them sooner.
    impossible : list
        Jobs that no place will ever take, and why.
    waiting : Counter
        Why the others wait.
    """

    starts: list[tuple[Task, Place, ResourceRequest]] = field(default_factory=list)
    moves: dict[Place, list[Task]] = field(default_factory=dict)
    switches: list[Task] = field(default_factory=list)
    impossible: list[tuple[Task, str]] = field(default_factory=list)
    waiting: Counter[str] = field(default_factory=Counter)


@dataclass
class _Side:
    """The places of a group of jobs of one device kind.

    Attributes
    ----------
    open, queue : FirstSpot
        Those with room, and those where a job may pend.
    unknown : list
        Those of which not all that bounds them is known.
    """

    kind: DeviceKind
    spots: list[Spot]
    open: FirstSpot
    queue: FirstSpot
    seconds: float
    with_margin_s: float
    places: frozenset[Place]
    unknown: list[Spot]


@dataclass
class _Group:
    """Jobs that are alike, in their order, and where they may go."""

    tasks: deque[Task]
    sides: dict[DeviceKind, _Side]


class Round:
    """Decides for all ready jobs, and for pending ones that may go elsewhere.

    Parameters
    ----------
    spots : Spots
        The places where jobs of this run are, and others as they are asked for.
    ends_s : mapping
        By device kind, when slots fall free in which jobs of this run run, and where.
    most : int
        Jobs that may be sent at most.
    """

    def __init__(
        self,
        cluster: Cluster,
        durations: Durations,
        room: Room,
        spots: Spots,
        ends_s: Mapping[DeviceKind, Sequence[tuple[float, Place]]],
        now_s: float,
        most: float = math.inf,
    ) -> None:
        self.cluster, self.durations, self.room, self.spots = cluster, durations, room, spots
        self.now_s, self.most, self.choice = now_s, most, Choice()
        self._count = self._sent = 0
        self._ends = {kind: [(at, i, place) for i, (at, place) in enumerate(ends_s.get(kind, ()))]
                      for kind in KINDS}  # fmt: skip
        for heap in self._ends.values():
            heapq.heapify(heap)

    def place(self, ready: Iterable[Task], movable: Iterable[Task]) -> Choice:
        """Place the ready jobs, and pending ones that Slurm does not start where they are."""
        groups: dict[int, _Group] = {}
        for task in ready:
            if task.group not in groups:
                groups[task.group] = self._group(task)
            groups[task.group].tasks.append(task)
        heads = []
        for number, group in enumerate(groups.values()):
            if any(side.spots for side in group.sides.values()):
                group.tasks = deque(sorted(group.tasks, key=attrgetter("order")))
                heads.append((group.tasks[0].order, number, group))
            else:
                self._note_impossible(group)
        for number, task in enumerate(movable, len(groups)):
            sides = groups[task.group].sides if task.group in groups else self._group(task).sides
            heads.append((task.order, number, _Group(deque([task]), sides)))
        heapq.heapify(heads)
        while heads:
            _, number, group = heads[0]
            if group.tasks[0].place is not None:
                heapq.heappop(heads)
                self._move(group.tasks[0], group.sides)
            elif self._send_first(group) and group.tasks:
                heapq.heapreplace(heads, (group.tasks[0].order, number, group))
            else:
                heapq.heappop(heads)
                self._queue(group)
        return self.choice

    def _group(self, task: Task) -> _Group:
        return _Group(deque(), {kind: self._side(task, kind) for kind in task.requests})

    def _side(self, task: Task, kind: DeviceKind) -> _Side:
        spots = [spot for one in self._able(task, kind) if not (spot := self.spots[one]).closed]
        request, seconds = task.request(kind), self._seconds(task, kind)
        cut = kind == "cpu" and len(task.requests) > 1
        margin = self.durations.margin(task.rule) if cut else 0.0
        return _Side(
            kind,
            spots,
            FirstSpot(spots, partial(self._room_key, request=request)),
            FirstSpot(spots, partial(self._queue_key, request=request)),
            seconds,
            seconds * (1 + margin),
            frozenset(spot.place for spot in spots),
            [spot for spot in spots if not self.room.is_known(spot.place)],
        )

    def _seconds(self, task: Task, kind: DeviceKind) -> float:
        return max(1.0, self.durations.factor(task.rule, kind) * task.cpu_seconds)

    def _able(self, task: Task, kind: DeviceKind) -> list[Place]:
        """Return the places of a job whose limits are not smaller than it, as far as is known."""
        fixed = task.account, task.qos
        return self.cluster.able_places(kind, task.request(kind), task.history.excluded, fixed)

    def _send_first(self, group: _Group) -> bool:
        """Send the first job of a group, or let it take a slot that falls free.

        Return False where no place has room for it now: nothing more of the group is sent then.
        """
        task, best, best_s = group.tasks[0], None, math.inf
        open_ = {kind: side.open.find() for kind, side in group.sides.items()}
        if self._count >= self.most or not any(open_.values()):
            return False
        for kind, side in group.sides.items():
            start_s = self.now_s if open_[kind] else self._next_s(side)
            if start_s + side.with_margin_s < best_s:
                best, best_s = kind, start_s + side.with_margin_s
        assert best is not None
        group.tasks.popleft()
        if (spot := open_[best]) is not None:
            self._send(task, spot)
        else:
            if not self._pend(task, [group.sides[best]]):
                self._take_slot(group.sides[best])
                self.choice.waiting[WAITS_FOR_GPU] += 1
        return True

    def _move(self, task: Task, sides: Mapping[DeviceKind, _Side]) -> None:
        """Send a pending job where it ends sooner, if it does anywhere.

        How long it would still pend is guessed: until a slot of this run falls free where a limit
        is reached, else as long again as it has. For nodes it waits as well with another account,
        unless jobs that were sent there later have started: that account or QOS goes first.
        """
        assert task.place is not None
        kind, slot = task.place.kind, None
        of_nodes, closed = task.obstacle == "order", bool(self.spots[task.place].closed)
        least_s = math.inf
        if not closed:
            slot = None if of_nodes else self._slot(sides[kind])
            if slot and not self.spots[slot[2]].running:  # it is guessed
                slot = None
            start_s = slot[0] if slot else 2 * self.now_s - task.waits_since_s
            least_s = start_s + sides[kind].seconds
        best = None
        for other, side in sides.items():
            spot = None if other == kind and of_nodes and not closed else side.open.find()
            if spot is not None and self.now_s + side.with_margin_s < least_s:
                best, least_s = spot, self.now_s + side.with_margin_s
        lost = closed or self.now_s - task.waits_since_s > LONG_S * 2.0**task.moves
        if best is not None and (best.place.kind == kind or task.switches < _MOST_SWITCHES):
            self._send(task, best)
        elif slot is not None:
            self._take_slot(sides[kind])
        elif (lost or of_nodes) and (queue := self._other_queue(task, sides[kind], of_nodes)):
            self._send(task, queue, waits=True)

    def _other_queue(self, task: Task, side: _Side, of_nodes: bool) -> Spot | None:
        """Return where a job may pend without room, and may start sooner than where it is."""
        others = (one for one in side.spots if one.place != task.place and not one.at_limit)
        return next(
            (
                spot
                for spot in others
                if spot.may_pend and (not of_nodes or spot.started_s > task.waits_since_s)
            ),
            None,
        )

    def _room_key(self, spot: Spot, request: ResourceRequest) -> tuple[int, ...] | None:
        """Return less for a place with more room; None for one that is full."""
        if spot.full:
            return None
        room = self.room.jobs(spot.place, request)
        if not self.room.is_known(spot.place):
            room = min(room, max(FEW, spot.running) - spot.pending)
        return (-room,) if room > 0 else None

    def _queue_key(self, spot: Spot, request: ResourceRequest) -> tuple[int, ...] | None:
        """Return less for a place where more jobs run; None for one where no more may pend.

        Where nodes are full, all accounts share the queue of their partitions. Where a limit is
        known that jobs of this run alone wait for, none pends: one that is sent when a slot has
        fallen free starts at once, one that pends with Slurm's next cycle. Where no job of this run
        runs, one does: no slot falls free, and what is known of the limit may be wrong.
        """
        place = spot.place
        none = spot.may_pend == 0
        if not none and self.room.jobs(place, request) == 0:
            if self.room.on_nodes(place, request) == 0:
                none = self.spots.nodes[place.partitions].may_pend == 0
            else:
                own = self.room.is_left(place, request) and not self.room.others_wait(place)
                none = own and self._any_runs()
        return None if none else (-spot.running, spot.pending)

    def _any_runs(self) -> bool:
        """Return whether any job of this run runs, or is sent now."""
        return self._sent > 0 or any(self._ends.values())

    def _next_s(self, side: _Side) -> float:
        """Return when the next slot falls free of those that a group may use.

        Of a place of which nothing is known, and where jobs were sent just now, Slurm's next cycle
        tells whether it takes more.
        """
        found = self._slot(side)
        next_s = max(found[0], self.now_s + 1.0) if found else math.inf
        if next_s > self.now_s + CYCLE_S and any(map(_is_untested, side.unknown)):
            return self.now_s + CYCLE_S
        return next_s

    def _slot(self, side: _Side) -> tuple[float, int, Place] | None:
        heap = self._ends[side.kind]
        if heap and heap[0][2] in side.places:
            return heap[0]
        return min((one for one in heap if one[2] in side.places), default=None)

    def _take_slot(self, side: _Side) -> None:
        found, heap = self._slot(side), self._ends[side.kind]
        if found is None:
            return
        later = max(found[0], self.now_s) + side.seconds, found[1], found[2]
        if found is heap[0]:
            heapq.heapreplace(heap, later)
        else:
            heap[heap.index(found)] = later
            heapq.heapify(heap)

    def _send(self, task: Task, spot: Spot, *, waits: bool = False) -> None:
        """Send a job to a place, or a pending one from where it is."""
        place, kind = spot.place, spot.place.kind
        request = with_minutes(task.request(kind), self.cluster.longest_min(place))
        task.had_room = not waits and self.room.is_known(place)
        self.room.take(place, request)
        self.spots.add(place, pending=1)
        self._count += task.place is None
        self._sent += 1
        if not waits:  # one that waits starts in a slot that is counted already
            end_s = self.now_s + self._seconds(task, kind)
            heapq.heappush(self._ends[kind], (end_s, -self._sent, place))
        if task.place is None:
            self.choice.starts.append((task, place, request))
            return
        self.spots.add(task.place, pending=-1)
        if task.place.kind == kind:
            self.choice.moves.setdefault(place, []).append(task)
        else:
            task.bound = kind
            self.choice.switches.append(task)

    def _queue(self, group: _Group) -> None:
        """Let the first jobs of a group pend where they end first; Slurm starts them in time.

        Where no more may pend there, the others wait here: one that pends elsewhere is bound.
        """
        while group.tasks and self._count < self.most:
            ends = {self._next_s(side) + side.seconds: side for side in group.sides.values()}
            first_s = min(ends)
            sides = [ends[first_s]] if first_s < math.inf else group.sides.values()
            if not self._pend(group.tasks[0], sides):
                break
            group.tasks.popleft()
        waiting = len(group.tasks)
        if waiting:
            jobs = "Snakemake runs no more jobs at once (--jobs)"
            self.choice.waiting[NO_ROOM if self._count < self.most else jobs] += waiting

    def _pend(self, task: Task, sides: Iterable[_Side]) -> bool:
        """Send a job to a full place where few pend, for the next slot that falls free.

        One that was cancelled for the other device kind pends for that only.
        """
        for side in sides:
            if task.bound in (None, side.kind) and (spot := side.queue.find()) is not None:
                self._take_slot(side)
                self._send(task, spot, waits=True)
                return True
        return False

    def _note_impossible(self, group: _Group) -> None:
        """Note jobs that no place takes: Slurm refused them, or limits are smaller."""
        task = group.tasks[0]
        closed, reasons = Counter[str](), list(task.history.words)
        for kind in task.requests:
            request, fixed = task.request(kind), (task.account, task.qos)
            closed.update(self.spots[place].closed for place in self._able(task, kind))
            for place in self.cluster.places(kind, request, task.history.excluded, fixed):
                reasons.append(self.cluster.too_large(place, request))
        if closed:
            self.choice.waiting["; ".join(closed)] += len(group.tasks)
            return
        text = "; ".join(dict.fromkeys(filter(None, reasons))) or "there is no partition for it"
        self.choice.impossible += [(one, text) for one in group.tasks if one.place is None]


def _is_untested(spot: Spot) -> bool:
    """Return whether Slurm has yet to say something of jobs that were sent to a place just now."""
    return spot.pending > 0 and not spot.full
