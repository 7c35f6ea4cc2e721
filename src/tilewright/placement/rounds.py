"""One round of placing: tasks and room in, places out, by the policy (pure)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.placement.bounds import clipped
from tilewright.placement.capacity import Room
from tilewright.placement.endings import most_mb
from tilewright.placement.jobs import KINDS, Kind, Place, Shape, Task
from tilewright.placement.policy import decide
from tilewright.placement.resources import Plan
from tilewright.placement.retry import within
from tilewright.placement.workload import Job, Running, Slots, Way, Workload

_PASSES = 6


@dataclass(frozen=True)
class Start:
    """A task that starts now, where, why, and how long it may take."""

    task: Task
    place: Place
    reason: str
    estimate_s: float


def light(task: Task, plan: Plan) -> bool:
    """Return whether a task is so small that it needs no slot: CPUs only, and one of them."""
    return task.kinds == ("cpu",) and plan.shape(task.rule, task.wildcards, "cpu").cpus == 1


def make_workload(tasks: Iterable[Task], plan: Plan) -> Workload:
    """Return the policy's view of all tasks but the light ones, with today's estimates."""
    heavy = [task for task in tasks if not light(task, plan)]
    jobs = [
        Job(t.name, t.rule, t.kinds, t.needs, t.nominal_s, t.group, t.fixed.account) for t in heavy
    ]
    rules = {task.rule for task in heavy}
    return Workload(
        jobs, {(r, kind): plan.durations.factor(r, kind) for r in rules for kind in KINDS}
    )


def shape_of(task: Task, kind: Kind, plan: Plan, room: Room) -> Shape:
    """Return what a task asks for on a device kind, after its failures and the user's choices."""
    base = task.fixed.applied(plan.shape(task.rule, task.wildcards, kind))
    grown = base.grown(task.past.memory, task.past.time)
    partition = room.partitions.get(kind)
    if partition is not None and partition.max_time_min is not None:
        grown = replace(grown, runtime_min=min(grown.runtime_min, partition.max_time_min))
    if not task.past.memory:
        return grown  # what no account can hold is refused, not cut
    return within(grown, base, most_mb(task, kind, room.accounts, partition)) or grown


class Shapes:
    """The shapes of tasks under one room; tasks of equal size share one mapping.

    10,000 tasks are then as many lookups, not as many computations: 3 s were 0.2 s.
    """

    def __init__(self, plan: Plan, room: Room) -> None:
        self.plan, self.room = plan, room
        self._of_task: dict[str, Mapping[Kind, Shape]] = {}
        self._of_size: dict[Hashable, Mapping[Kind, Shape]] = {}

    def of(self, task: Task) -> Mapping[Kind, Shape]:
        """Return the shape of a task on each device kind that may run it."""
        found = self._of_task.get(task.name)
        if found is None:
            bases = [self.plan.shape(task.rule, task.wildcards, kind) for kind in task.kinds]
            size = (task.kinds, *bases, task.fixed, task.past.memory, task.past.time)
            found = self._of_size.get(size)
            if found is None:
                found = {kind: shape_of(task, kind, self.plan, self.room) for kind in task.kinds}
                self._of_size[size] = found
            self._of_task[task.name] = found
        return found

    def distinct(self, tasks: Iterable[Task]) -> list[Mapping[Kind, Shape]]:
        """Return the shapes of tasks, equal ones once."""
        return list({id(shapes): shapes for shapes in map(self.of, tasks)}.values())

    def largest(self, tasks: Iterable[Task]) -> dict[Kind, Shape]:
        """Return for each device kind that a task may use a shape that holds all of them."""
        distinct = self.distinct(tasks)
        found: dict[Kind, Shape] = {}
        for kind in KINDS:
            shapes = [shapes[kind] for shapes in distinct if kind in shapes]
            if shapes:
                found[kind] = Shape(
                    max(shape.cpus for shape in shapes),
                    max(shape.mem_mb for shape in shapes),
                    max(shape.gpus for shape in shapes),
                    max(shape.runtime_min for shape in shapes),
                )
        return found

    def without_largest(self, tasks: Iterable[Task]) -> list[Task]:
        """Return the tasks that ask for less than the largest, in memory or in CPUs.

        Where no task is the largest in both, those with most memory go.
        """
        tops = self.largest(tasks := list(tasks)).values()
        cpus, mem_mb = max(top.cpus for top in tops), max(top.mem_mb for top in tops)
        less = [t for t in tasks if all(s.cpus < cpus or s.mem_mb < mem_mb
                                        for s in self.of(t).values())]  # fmt: skip
        if len(less) < len(tasks):
            return less
        return [t for t in tasks if all(s.mem_mb < mem_mb for s in self.of(t).values())]


def sooner_elsewhere(
    task: Task, room: Room, plan: Plan, waited_s: float
) -> tuple[str, Kind, Shape] | None:
    """Return the place that would finish a pending task first, None where it is best to wait.

    Parameters
    ----------
    task : Task
        Pending at its place.
    room : Room
    plan : Plan
    waited_s : float
        How long it has pended: the guess of how long it still will.
    """
    assert task.place is not None
    best, best_s = None, waited_s + estimate_s(task, task.place.kind, plan)
    for account in room.accounts:
        for kind in task.kinds:
            here = (account.name, kind) == (task.place.account, task.place.kind)
            if here or task.fixed.account not in (None, account.name):
                continue
            shape = shape_of(task, kind, plan, room)
            end_s = estimate_s(task, kind, plan)
            if end_s < best_s and room.fits(account.name, kind, shape):
                best, best_s = (account.name, kind, shape), end_s
    return best


def estimate_s(task: Task, kind: Kind, plan: Plan) -> float:
    """Return about how long a task runs on a device kind."""
    return plan.durations.factor(task.rule, kind) * task.nominal_s


class RoundOfPlacing:
    """Fills the room that there is, in passes: where the largest task fits nowhere, the next."""

    def __init__(
        self,
        work: Workload,
        plan: Plan,
        room: Room,
        active: Sequence[Task],
        bad_nodes: Mapping[Kind, Collection[str]],
        preferred: Mapping[str, str],
        now_s: float,
    ) -> None:
        self.work, self.plan, self.room, self.now_s = work, plan, room, now_s
        self.active, self.bad_nodes, self.preferred = list(active), bad_nodes, preferred
        self.shapes = Shapes(plan, room)
        self.starts: list[Start] = []
        self.why: dict[str, str] = {}

    def place(self, ready: Sequence[Task], later: Sequence[Task], last: Way | None) -> Way | None:
        """Place the ready tasks, the light ones last."""
        small = {task.name for task in ready if light(task, self.plan)}
        heavy = [task for task in ready if task.name not in small]
        coming = [task for task in later if task.name in self.work.index]
        for _ in range(_PASSES):
            if not heavy:
                break
            placed, last = self._pass(heavy, coming, last)
            if placed:
                heavy = [task for task in heavy if task.name not in placed]
            else:
                heavy = self.shapes.without_largest(heavy)
        for task in ready:
            if task.name in small:
                self._place_light(task)
        return last

    def _pass(
        self, heavy: Sequence[Task], coming: Sequence[Task], last: Way | None
    ) -> tuple[set[str], Way | None]:
        shapes = self.shapes.largest(heavy)
        if "gpu" not in shapes and (more := self.shapes.largest(coming).get("gpu")):
            shapes = {"gpu": more, **shapes}
        pools = self.slots(shapes)
        if not any(pool.free for pool in pools):
            self.why |= dict.fromkeys((task.name for task in heavy), "no slot is free")
            return set(), last
        made = decide(
            self.work,
            [task.name for task in heavy],
            [task.name for task in coming],
            pools,
            self.now_s,
            preferred=self.preferred,
            last=last,
        )
        self.why |= made.waiting
        by_name = {task.name: task for task in heavy}
        where = {pool.name: pool for pool in pools}
        placed = {
            start.job
            for start in made.starts
            if self._start(
                by_name[start.job], where[start.pool].account, where[start.pool].kind, start.reason
            )
        }
        return placed, made.way

    def _start(self, task: Task, account: str, kind: Kind, reason: str) -> bool:
        shape = self.shapes.of(task)[kind]
        if not self.room.fits(account, kind, shape):
            return False
        here = next(a for a in self.room.accounts if a.name == account)
        shape = clipped(shape, here, self.room.partitions.get(kind))
        place = replace(
            self.plan.place(here, kind, task.rule, task.wildcards),
            shape=shape,
            exclude=tuple(sorted({*self.bad_nodes[kind], *task.past.nodes})),
        )
        self.room = self.room.take(account, kind, shape)
        self.starts.append(Start(task, place, reason, estimate_s(task, kind, self.plan)))
        self.active.append(replace(task, place=place, sent_s=self.now_s, seen=None))
        self.why.pop(task.name, None)
        return True

    def _place_light(self, task: Task) -> None:
        """Place a light task where most CPUs are free; it takes no slot from others."""
        shape = self.shapes.of(task)["cpu"]
        chosen = task.fixed.account
        open_ = [
            account
            for account in self.room.accounts
            if chosen in (None, account.name) and self.room.fits(account.name, "cpu", shape)
        ]
        if not open_:
            self.why[task.name] = "no account has room for it"
            return
        best = max(open_, key=lambda a: (self.room.free_cpus(a), a.name))
        self._start(task, best.name, "cpu", "a light job, where most CPUs are free")

    def slots(self, shapes: Mapping[Kind, Shape]) -> list[Slots]:
        """Return the pools for jobs of these shapes, with own jobs in them."""
        return [
            Slots(pool.name, pool.account, pool.kind, pool.free + len(own), pool.free, tuple(own))
            for pool in self.room.pools(shapes)
            for own in [self._running(pool.account, pool.kind)]
        ]

    def _running(self, account: str, kind: Kind) -> list[Running]:
        """Return own jobs in the slots of a pool; what pends in a closed one holds none."""
        found = []
        closed = (account, kind) in self.room.closed
        for task in self.active:
            place, seen = task.place, task.seen
            if place is None or (place.account, place.kind) != (account, kind):
                continue
            start_s = seen.start_s if seen and seen.state == "RUNNING" else None
            if start_s is None and closed:
                continue
            if start_s is None:  # it may wait as long again as it has
                start_s = 2 * self.now_s - task.sent_s
            end_s = start_s + estimate_s(task, kind, self.plan)
            found.append(Running(task.name, start_s, end_s))
        return found
