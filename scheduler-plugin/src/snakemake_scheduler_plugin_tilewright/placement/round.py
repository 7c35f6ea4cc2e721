"""One round of placing: which ready tasks start now, where, and why the others wait (pure)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity
from snakemake_scheduler_plugin_tilewright.placement.jobs import Kind, Place, Shape, Task
from snakemake_scheduler_plugin_tilewright.placement.limits import clipped, too_long
from snakemake_scheduler_plugin_tilewright.placement.policy import decide
from snakemake_scheduler_plugin_tilewright.placement.resources import Placement
from snakemake_scheduler_plugin_tilewright.placement.sizing import Shapes
from snakemake_scheduler_plugin_tilewright.placement.workload import (
    GpuSlots,
    Running,
    Slots,
    Workload,
)
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account

_PASSES = 6
#: Jobs of one device kind that wait in Slurm's queue for nodes that others fill.
_QUEUED = 4
_NO_SLOT = "no slot is free"
#: A partition that a rule names, and the places that do not give a job the minutes it states.
_Group = tuple[str | None, frozenset[tuple[str, Kind]]]


@dataclass(frozen=True)
class Start:
    """A task that starts now, where, why, and how long it may take."""

    task: Task
    place: Place
    reason: str
    estimate_s: float


class Round:
    """Fills the free capacity in passes: where the largest task fits nowhere, the next (pure)."""

    def __init__(
        self,
        work: Workload,
        placement: Placement,
        capacity: Capacity,
        active: Sequence[Task],
        bad_nodes: Mapping[Kind, Collection[str]],
        now_s: float,
    ) -> None:
        self.work, self.placement, self.capacity, self.now_s = work, placement, capacity, now_s
        self.active, self.bad_nodes = list(active), bad_nodes
        self.shapes = Shapes(placement.estimates, capacity)
        self.placements: list[Start] = []
        self.why: dict[str, str] = {}
        self.most = math.inf
        self._short: dict[Hashable, str] = {}
        self._group_of: dict[int, _Group] = {}

    def place(
        self,
        ready: Sequence[Task],
        later: Sequence[Task],
        gpu_slots: GpuSlots,
        most: float = math.inf,
    ) -> GpuSlots:
        """Place the ready tasks, ``most`` at most; return what the next round has to know."""
        self.most = most
        moved = [task for task in ready if task.bound or task.left]
        for task in moved:
            self._place_moved(task)
        ready = [task for task in ready if not (task.bound or task.left)]
        groups: dict[_Group, list[Task]] = {}
        for task in ready:
            groups.setdefault(self._group(task), []).append(task)
        for group, left in groups.items():
            coming = [task for task in later if self._group(task) == group]
            gpu_slots = self._place_group(left, coming, group, gpu_slots)
        ready = [*moved, *ready]
        self._queue(task for task in ready if task.name in self.why)
        if self._enough():
            placed = {found.task.name for found in self.placements}
            why = "Snakemake runs no more jobs at once (--jobs)"
            self.why |= {task.name: why for task in ready if task.name not in placed}
        if self.capacity.budgeted():
            for task in ready:
                if task.name in self.why and (short := self._short_of(task)):
                    self.why[task.name] = short
        return gpu_slots

    def _place_group(
        self, left: list[Task], coming: Sequence[Task], group: _Group, gpu_slots: GpuSlots
    ) -> GpuSlots:
        for _ in range(_PASSES):
            left = [task for task in left if not self._waits_for_nodes(task)]
            fit = self._fitting(left, coming, group, self.capacity)
            if len(fit) < len(left):
                self._say_no_slot(left, coming, group)
            if not fit or self._enough():
                break
            placed, gpu_slots = self._pass(fit, coming, group, gpu_slots)
            if placed:
                left = [task for task in left if task.name not in placed]
            else:
                left = self.shapes.without_largest(fit)
        return gpu_slots

    def _fitting(
        self,
        tasks: list[Task],
        coming: Sequence[Task],
        group: _Group,
        capacity: Capacity,
    ) -> list[Task]:
        """Return the most tasks, the smallest first, of which the largest has a free slot.

        Where memory follows the input that is asked 14 times for 10,000 sizes.
        """

        def full(some: Sequence[Task]) -> bool:
            return not any(pool.free for pool in self._slots(some, coming, group, capacity))

        if not tasks or not full(tasks):
            return tasks
        each = {id(self.shapes.of(task)): task for task in tasks}.values()
        found: list[Task] = []
        for names in (("mem_mb", "cpus"), ("cpus", "mem_mb")):
            size = attrgetter(*names)
            ordered = sorted(each, key=lambda task: max(map(size, self.shapes.of(task).values())))
            most = bisect_left(range(1, len(ordered)), True, key=lambda n: full(ordered[:n]))
            found = max(found, ordered[:most], key=len)
        held = {id(self.shapes.of(task)) for task in found}
        return [task for task in tasks if id(self.shapes.of(task)) in held]

    def _say_no_slot(self, tasks: list[Task], coming: Sequence[Task], group: _Group) -> None:
        """Say why tasks have no slot, and of which only CPUs that are kept free are in the way."""
        why = self._why_none(self._slots(tasks, coming, group, self.capacity))
        self.why |= dict.fromkeys((task.name for task in tasks), why)
        share = self.capacity.utilisation
        if why == _NO_SLOT and share < 1:
            whole = replace(self.capacity, utilisation=1.0)
            why += f" ({100 * (1 - share):.0f} % of an account's CPUs are kept free: utilisation)"
            fit = self._fitting(tasks, coming, group, whole)
            self.why |= dict.fromkeys((task.name for task in fit), why)

    def _slots(
        self,
        tasks: Sequence[Task],
        coming: Sequence[Task],
        group: _Group,
        capacity: Capacity,
    ) -> list[Slots]:
        """Return the pools for the largest of some tasks; CPU slots are beside later GPU jobs.

        Where those leave none, and nothing runs for which to wait, the tasks go first: the later
        jobs may wait for them.
        """
        shapes = self.shapes.largest(tasks)
        later = None if "gpu" in shapes else self.shapes.largest(coming).get("gpu")
        pools = self.slots({"gpu": later, **shapes} if later else shapes, capacity)
        if later:
            cpus = [pool for pool in pools if pool.kind == "cpu"]
            if not cpus or not (self.active or any(pool.free for pool in cpus)):
                pools = self.slots(shapes, capacity)
        return [pool for pool in pools if (pool.account, pool.kind) not in group[1]]

    def _group(self, task: Task) -> _Group:
        """Return what keeps a task apart from others, nothing for most of them."""
        shapes = self.shapes.of(task)
        if id(shapes) not in self._group_of:
            capacity = self.capacity
            self._group_of[id(shapes)] = (
                task.job.fixed.partition,
                frozenset(
                    (account.name, kind)
                    for account in capacity.accounts
                    for kind, shape in shapes.items()
                    if too_long(account, shape, capacity.where(kind, shape))
                ),
            )
        return self._group_of[id(shapes)]

    def _waits_for_nodes(self, task: Task) -> bool:
        """Note where a task asks for nodes with a feature, or a GPU type, that are all full.

        Slots are counted for any node: it would be given those on which it cannot run.
        """
        shapes = self.shapes.of(task).items()
        if not all(shape.features or shape.gpu_type for _, shape in shapes):
            return False
        full = all(self._full(kind, shape) for kind, shape in shapes)
        if full:
            self.why[task.name] = "the nodes that it asks for are full"
        return full

    def _place_moved(self, task: Task) -> None:
        """Place a task that was moved: where it was moved to, else where it ends first."""
        if self._enough():
            return
        fit = [place for place in self.places(task) if self.capacity.fits(*place)]
        seconds = self.placement.estimates.seconds
        best = min(fit, key=lambda p: (p[:2] != task.bound, seconds(task.job, p[1])), default=None)
        if best is None:
            bound = [place for place in self.places(task) if place[:2] == task.bound]
            best = next((place for place in bound if self.capacity.may_queue(*place)), None)
        if best is None:
            self.why[task.name] = "it was moved, and no other place that takes it is free"
            return
        self._start(task, best[0], best[1], f"it was moved: {task.moved}")

    def places(self, task: Task) -> list[tuple[str, Kind, Shape]]:
        """Return accounts and device kinds that a task may go to; not back to where it was moved.

        Where nothing else will ever take it, it may go back.
        """
        every = self._every(task)
        if not task.left:
            return every
        fresh = [p for p in every if p[:2] not in task.left]
        return fresh if any(self.capacity.may_ever(*p) for p in fresh) else every

    def _every(self, task: Task) -> list[tuple[str, Kind, Shape]]:
        return [
            (account.name, kind, self._shape(task, account, kind))
            for account in self.capacity.accounts
            if task.job.fixed.account in (None, account.name)
            for kind in task.job.kinds
        ]

    def _shape(self, task: Task, account: Account, kind: Kind) -> Shape:
        """Return what a task asks for at a place."""
        shape = self.shapes.of(task)[kind]
        return clipped(shape, account, self.capacity.where(kind, shape))

    def _short_of(self, task: Task) -> str:
        """Return that no account's budget can end a task; empty where one can."""
        key = (id(self.shapes.of(task)), task.job.fixed.account, *sorted(task.left))
        if key not in self._short:
            rests = [self.capacity.short_of(*place) for place in self.places(task)]
            left = "; ".join(dict.fromkeys(rests)) if all(rests) else ""
            why = f"the budgets of its accounts are too small for it now; left are {left}"
            self._short[key] = why if left else ""
        return self._short[key]

    def _pass(
        self,
        large: Sequence[Task],
        coming: Sequence[Task],
        group: _Group,
        gpu_slots: GpuSlots,
    ) -> tuple[set[str], GpuSlots]:
        pools = self._slots(large, coming, group, self.capacity)
        made = decide(self.work, [task.name for task in large], pools, self.now_s, gpu_slots)
        self.why |= made.waiting
        by_name = {task.name: task for task in large}
        where = {pool.name: pool for pool in pools}
        placed = set()
        for start in made.starts:
            pool = where[start.pool]
            task = by_name[start.job]
            shape = self._shape(task, self._account(pool.account), pool.kind)
            fits = self.capacity.fits(pool.account, pool.kind, shape)
            if fits and not self._enough():
                self._start(task, pool.account, pool.kind, start.reason)
                placed.add(start.job)
            else:
                held = self.capacity.on_nodes(pool.kind, shape, now=True) != 0
                why = "its slot was filled in the same round" if held else "its nodes are full"
                self.why[start.job] = why
        return placed, made.gpu_slots

    def _why_none(self, pools: Iterable[Slots]) -> str:
        """Return why no slot is free: what closes all of them, where something does."""
        closed = [self.capacity.closed.get((pool.account, pool.kind)) for pool in pools]
        whys = [why for why in dict.fromkeys(closed) if why]
        return f"{_NO_SLOT}: {'; '.join(whys)}" if all(closed) and whys else _NO_SLOT

    def _enough(self) -> bool:
        """Return whether nothing more may start."""
        return len(self.placements) >= self.most

    def _queue(self, ready: Iterable[Task]) -> None:
        """Have Slurm keep a turn on nodes that others fill, for tasks that nothing else takes.

        That is where no other device kind runs own jobs, whose slots come free. A few at a time:
        what waits there can go nowhere else without being cancelled.
        """
        own = [(one.place.kind, one.seen) for one in self.active if one.place]
        served = {kind for kind, _ in own}
        pending = Counter(kind for kind, seen in own if not seen or seen.state != "RUNNING")
        for task in ready:
            if self._enough():
                break
            for kind, shape in self.shapes.of(task).items():
                elsewhere = served & {k for k in task.job.kinds if k != kind}
                if pending[kind] >= _QUEUED or elsewhere or not self._full(kind, shape):
                    continue
                open_ = self._open(task, kind, self.capacity.may_queue)
                if open_:
                    full = f"its {kind.upper()} nodes are full or reserved"
                    why = f"{full}, so it waits in Slurm's queue"
                    self._start(task, open_[pending[kind] % len(open_)].name, kind, why)
                    pending[kind] += 1
                    served.add(kind)
                    break

    def _full(self, kind: Kind, shape: Shape) -> bool:
        return self.capacity.on_nodes(kind, shape, now=True) == 0

    def _open(
        self, task: Task, kind: Kind, takes: Callable[[str, Kind, Shape], bool]
    ) -> list[Account]:
        """Return the accounts that a task may go to and that take it."""
        open_ = {a for a, one, shape in self.places(task) if one == kind and takes(a, one, shape)}
        return [account for account in self.capacity.accounts if account.name in open_]

    def _start(self, task: Task, account: str, kind: Kind, reason: str) -> None:
        """Give a task a place that takes it."""
        here = self._account(account)
        shape = self._shape(task, here, kind)
        found = self.placement.place(here, kind, shape)
        place = replace(
            found,
            partition=task.job.fixed.partition or found.partition,
            shape=shape,
            exclude=tuple(sorted({*self.bad_nodes[kind], *task.past.nodes})),
        )
        self.capacity = self.capacity.take(account, kind, shape)
        estimate_s = self.placement.estimates.seconds(task.job, kind)
        self.placements.append(Start(task, place, reason, estimate_s))
        self.active.append(replace(task, place=place, sent_s=self.now_s, seen=None))
        self.why.pop(task.name, None)

    def _account(self, name: str) -> Account:
        return next(account for account in self.capacity.accounts if account.name == name)

    def sooner_elsewhere(
        self,
        task: Task,
        waited_s: float,
        *,
        other_nodes: bool = False,
        other_account: bool = False,
        anywhere: bool = False,
    ) -> tuple[str, Kind, Shape] | None:
        """Return the place that would finish a pending task first, None where it best waits.

        Parameters
        ----------
        task : Task
            Pending at its place.
        waited_s : float
            How long it has pended: the guess of how long it still will. Where none of its nodes
            is up any more it waits for ever.
        other_nodes : bool
            It pends for its nodes, so that another account on the same nodes is no better.
        other_account : bool
            It pends for the budget of its account.
        anywhere : bool
            It cannot stay, so a place where it would wait for nodes is better too, and its own
            place with the minutes that it allows now.
        """
        assert task.place is not None
        seconds, here = self.placement.estimates.seconds, task.place
        gone = self.capacity.on_nodes(here.kind, here.shape, now=False) == 0
        best, best_s = None, math.inf if gone else waited_s + seconds(task.job, here.kind)
        for takes in (self.capacity.fits, self.capacity.may_queue)[: 1 + anywhere]:
            for account, kind, shape in self.elsewhere(task, anywhere=anywhere):
                end_s = seconds(task.job, kind)
                if (other_nodes and kind == here.kind) or end_s >= best_s:
                    continue
                if other_account and account == here.account:
                    continue
                if takes(account, kind, shape):
                    best, best_s = (account, kind, shape), end_s
            if best is not None:
                break
        return best

    def elsewhere(self, task: Task, *, anywhere: bool = False) -> list[tuple[str, Kind, Shape]]:
        """Return the places of a task that pends but its own and those that it left.

        Where it goes ``anywhere``, its own is another one with fewer minutes, and it goes back
        where nothing else will ever take it.
        """
        here = task.place
        assert here is not None
        others = [
            (account, kind, shape)
            for account, kind, shape in self._every(task)
            if (account, kind) != (here.account, here.kind)
            or (anywhere and shape.runtime_min < here.shape.runtime_min)
        ]
        fresh = [p for p in others if p[:2] not in task.left]
        back = anywhere and not any(self.capacity.may_ever(*p) for p in fresh)
        return others if back else fresh

    def slots(self, shapes: Mapping[Kind, Shape], capacity: Capacity) -> list[Slots]:
        """Return the pools for jobs of these shapes, with own jobs in them."""
        return [
            Slots(pool.name, pool.account, pool.kind, pool.free + len(own), pool.free, tuple(own))
            for pool in capacity.pools(shapes)
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
            end_s = start_s + self.placement.estimates.seconds(task.job, kind)
            found.append(Running(task.name, start_s, end_s))
        return found
