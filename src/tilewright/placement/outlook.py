"""What a run would do on the room that is there now, beside GPUs only and a lower bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

from tilewright.placement.capacity import Room
from tilewright.placement.forecast import Forecast
from tilewright.placement.jobs import KINDS, Task
from tilewright.placement.policy import decide
from tilewright.placement.resources import Plan
from tilewright.placement.rounds import Shapes, estimate_s, light, make_workload
from tilewright.placement.simulator import Policy, Run, View, simulate
from tilewright.placement.workload import Decision, Job, Slots, Way, Workload

#: Light jobs take no slot, so the simulator gives them a pool that never fills.
LIGHT = "light"


@dataclass(frozen=True)
class RuleShare:
    """Jobs of one rule: all, those placed by kind of slot, and the seconds they run in sum."""

    rule: str
    jobs: int
    gpu: int
    cpu: int
    light: int
    busy_s: float


@dataclass(frozen=True)
class PoolShare:
    """One pool: slots by its limits and free now, jobs it gets, seconds its slots are filled."""

    name: str
    slots: int
    free: int
    jobs: int
    busy_s: float


@dataclass(frozen=True)
class Outlook:
    """How a run would go.

    Attributes
    ----------
    rules : tuple of RuleShare
    pools : tuple of PoolShare
    finish_s : float or None
        When all is done, from now; None where nothing is free for some job.
    gpu_only_s : float or None
        The same were jobs dealt out to the GPU pools in turn; None without a free GPU slot.
    bound_s : float or None
        No placement in the slots that are free now is done sooner.
    all_free_s : float or None
        When all is done were all slots of the accounts free; None where they are.
    """

    rules: tuple[RuleShare, ...]
    pools: tuple[PoolShare, ...]
    finish_s: float | None
    gpu_only_s: float | None
    bound_s: float | None
    all_free_s: float | None


def look_ahead(tasks: Sequence[Task], plan: Plan, room: Room) -> Outlook:
    """Play a run with estimated durations; slots that others fill now stay filled.

    Parameters
    ----------
    tasks : sequence of Task
        The jobs that remain.
    plan : Plan
    room : Room
        What is free now. Slots are counted for the largest job of each device kind.
    """
    heavy = [task for task in tasks if not light(task, plan)]
    counted = room.pools(Shapes(plan, room).largest(heavy))
    free = {pool.name: pool.free for pool in counted}
    all_pools = [Slots(p.name, p.account, p.kind, p.slots, p.slots) for p in counted]
    pools = [replace(p, slots=n, free=n) for p in all_pools if (n := free[p.name])]
    play = _Play(tasks, plan)
    run = play.run(pools, play.policy())
    everything = None
    if any(pool.slots > free[pool.name] for pool in all_pools):
        everything = _end_s(play.run(all_pools, play.policy()))
    gpu_only = None
    if not heavy or any(pool.kind == "gpu" for pool in pools):
        gpu_only = _end_s(play.run(pools, play.gpu_only(pools)))
    finish_s = _end_s(run)
    # bisected to 0.1 % from above
    bound_s = None if finish_s is None else min(finish_s, play.bound_s(pools))
    return Outlook(
        play.by_rule(run, pools),
        tuple(
            PoolShare(p.name, p.slots, free[p.name], sum(bar.pool == p.name for bar in run.bars),
                      run.busy_s.get(p.name, 0.0))
            for p in all_pools
        ),
        finish_s, gpu_only, bound_s, everything,
    )  # fmt: skip


class _Play:
    def __init__(self, tasks: Sequence[Task], plan: Plan) -> None:
        names = {task.name for task in tasks}
        self.rules = {task.name: task.rule for task in tasks}
        self.jobs = [
            Job(t.name, t.rule, t.kinds, tuple(n for n in t.needs if n in names), t.nominal_s,
                t.group, t.fixed.account)
            for t in tasks
        ]  # fmt: skip
        self.seconds = {(t.name, k): estimate_s(t, k, plan) for t in tasks for k in t.kinds}
        self.factors = {
            (rule, kind): plan.durations.factor(rule, kind)
            for rule in set(self.rules.values())
            for kind in KINDS
        }
        self.work = make_workload(tasks, plan)
        self.light = names - self.work.index.keys()

    def run(self, pools: Iterable[Slots], policy: Policy) -> Run:
        many = len(self.light) + 1
        return simulate(
            self.jobs, self.seconds, [*pools, Slots(LIGHT, LIGHT, "cpu", many, many)], policy
        )

    def policy(self) -> Policy:
        """Return the policy of production."""
        groups: dict[str, str] = {}
        last: Way | None = None
        by_name = {job.name: job for job in self.work.jobs}

        def policy(view: View) -> Iterable[Decision]:
            nonlocal last
            starts, heavy = self._light_starts(view)
            pools = [pool for pool in view.pools if pool.name != LIGHT]
            if heavy and any(pool.room for pool in pools):
                later = [name for name in view.later if name in self.work.index]
                made = decide(
                    self.work, heavy, later, pools, view.clock_s, preferred=groups, last=last
                )
                last = made.way
                where = {pool.name: pool.account for pool in pools}
                for start in made.starts:
                    if group := by_name[start.job].group:
                        groups[group] = where[start.pool]
                starts += made.starts
            return starts

        return policy

    def gpu_only(self, pools: Sequence[Slots]) -> Policy:
        """Return a policy that deals jobs out to the GPU pools in turn, before anything runs."""
        turns = {kind: cycle([p.name for p in pools if p.kind == kind] or [""]) for kind in KINDS}
        dealt = {job.name: next(turns[job.kinds[0]]) for job in self.work.jobs}

        def policy(view: View) -> Iterable[Decision]:
            starts, heavy = self._light_starts(view)
            free = {pool.name: pool.room for pool in view.pools}
            for name in heavy:
                pool = dealt[name]
                if free.get(pool):
                    free[pool] -= 1
                    starts.append(Decision(name, pool, view.clock_s, view.clock_s, "its turn"))
            return starts

        return policy

    def _light_starts(self, view: View) -> tuple[list[Decision], list[str]]:
        """Return starts of the light jobs that are ready, and the names of the others."""
        now_s, small = view.clock_s, [name for name in view.ready if name in self.light]
        starts = [Decision(name, LIGHT, now_s, now_s, "light") for name in small]
        return starts, [name for name in view.ready if name not in self.light]

    def bound_s(self, pools: Sequence[Slots]) -> float:
        """Return seconds that no placement beats: work as water, and the longest chain."""
        open_ = {pool.kind for pool in pools}
        reachable = [
            replace(job, kinds=tuple(k for k in job.kinds if k in open_ or job.name in self.light))
            for job in self.jobs
        ]
        chain_s = max(Workload(reachable, self.factors).chain_s, default=0.0)
        if not self.work.jobs:
            return chain_s
        index = range(len(self.work.jobs))
        ready = [i for i in index if not self.work.needs[i]]
        later = [i for i in index if self.work.needs[i]]
        return max(chain_s, Forecast(self.work, ready, later, pools, 0.0).bound_s())

    def by_rule(self, run: Run, pools: Iterable[Slots]) -> tuple[RuleShare, ...]:
        """Return the rules in the order in which they first end, those that never do last."""
        kinds = {LIGHT: LIGHT, **{pool.name: pool.kind for pool in pools}}
        jobs = Counter(self.rules.values())
        counts: Counter[tuple[str, str]] = Counter()
        busy_s: dict[str, float] = {}
        for bar in run.bars:
            rule = self.rules[bar.job]
            counts[rule, kinds[bar.pool]] += 1
            busy_s[rule] = busy_s.get(rule, 0.0) + bar.end_s - bar.start_s
        return tuple(
            RuleShare(
                rule, jobs[rule], counts[rule, "gpu"], counts[rule, "cpu"], counts[rule, LIGHT],
                busy_s.get(rule, 0.0),
            )
            for rule in dict.fromkeys([*busy_s, *sorted(jobs)])
        )  # fmt: skip


def _end_s(run: Run) -> float | None:
    return None if run.undone else run.makespan_s
