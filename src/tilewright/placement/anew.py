"""Jobs that run on CPUs and begin anew on GPUs that came free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from tilewright.placement.bounds import needs
from tilewright.placement.capacity import Claim, Room
from tilewright.placement.jobs import Place, Task
from tilewright.placement.pools import pool_name
from tilewright.placement.restarts import restarts
from tilewright.placement.workload import Decision
from tilewright.slurm.jobs import parse_start
from tilewright.slurm.query import Unknown

if TYPE_CHECKING:
    from tilewright.placement.dispatch import Dispatcher

_WHY = "a GPU is free that ends it sooner"


def begin_anew(run: Dispatcher, movable: Callable[[str], bool] = lambda name: True) -> list[str]:
    """Cancel jobs on CPUs that end sooner if they begin anew on GPUs that no job waits for.

    The site's patience is what a new start costs: until Snakemake sees the end of the old job and
    Slurm begins the new one. Slurm is asked first whether it would begin them at once: room in an
    account is no idle GPU.

    Parameters
    ----------
    run : Dispatcher
    movable : callable
        Whether Snakemake would try a job again.

    Returns
    -------
    list of str
        Names of the jobs that were cancelled.
    """
    with run.lock, run.claims.alone() as alone:
        if not alone or not run.cluster.site.restarts or not _calm(run):
            return []
        room = run.room()
        if isinstance(room, str) or not _calm(run):
            return []
        able = {
            task.name: task
            for task in run.tasks.values()
            if _may_begin_anew(run, task)
            and task.seen is not None
            and task.seen.state == "RUNNING"
            and movable(task.name)
        }
        moved: list[str] = []
        moves = sorted(_moves(run, room, able), key=lambda move: move.pool)
        for pool, wanted in groupby(moves, key=lambda move: move.pool):
            moved += _move(run, room, pool, [able[move.job] for move in wanted])
        return moved


def _calm(run: Dispatcher) -> bool:
    """Return whether a job may begin anew, and none waits for a GPU that was found for it."""
    sent = [task for task in run.tasks.values() if task.place is not None]
    return any(_may_begin_anew(run, task) for task in sent) and not any(
        # a job that was moved and has yet to be seen to end still wants its new slot
        task.moved
        or (task.place is not None and task.place.kind == "gpu" and task.active
            and (task.seen is None or task.seen.state == "PENDING"))
        for task in sent
    )  # fmt: skip


def _may_begin_anew(run: Dispatcher, task: Task) -> bool:
    """Return whether a job on CPUs may use a GPU: not after a failure, nor on a guess."""
    on_cpus = task.place is not None and task.place.kind == "cpu" and "gpu" in task.kinds
    known = on_cpus and run.plan.durations.learned(task.rule, "gpu")
    return known and not (task.moved or task.anew or task.past.causes)


def _moves(run: Dispatcher, room: Room, able: dict[str, Task]) -> list[Decision]:
    placing, work = run.placing(room), run.workload()
    pools = [
        replace(pool, running=tuple(replace(own, moved=own.job not in able)
                                    for own in pool.running))
        for pool in placing.slots(placing.shapes.largest(able.values()))
    ]  # fmt: skip
    waiting, later = (
        [name for name in names if name in work.index] for names in (run.why_waiting, run.later)
    )
    return restarts(
        work, waiting, later, pools, run.clock(), run.way, cost_s=run.cluster.site.patience_s
    )


def _move(run: Dispatcher, room: Room, pool: str, tasks: Sequence[Task]) -> list[str]:
    """Cancel as many of the jobs that want one pool as Slurm would begin there at once."""
    account = next(a for a in room.accounts if pool_name(a.name, "gpu") == pool)
    places = [run.plan.place(account, "gpu", task.rule, task.wildcards) for task in tasks]
    count = len(tasks)
    while count and not _begins_now(run, places[:count]):
        count //= 2
    moved = []
    for task, place in zip(tasks[:count], places, strict=False):
        assert task.seen is not None
        if isinstance(run.cluster.client.cancel([task.seen.id]), Unknown):
            continue
        task.moved, task.anew = _WHY, True
        run.claims.add([Claim(place.account, needs(place.shape, 1), place.partition)])
        run.ledger.write("move", job=task.name, slurm_id=task.seen.id, reason=_WHY, sooner=pool)
        moved.append(task.name)
    return moved


def _begins_now(run: Dispatcher, places: Sequence[Place]) -> bool:
    first = places[0]
    options = [
        f"--account={first.account}",
        f"--ntasks={len(places)}",
        "--gpus-per-task=1",
        f"--cpus-per-task={max(place.shape.cpus for place in places)}",
        f"--mem-per-gpu={max(place.shape.mem_mb for place in places)}M",
        f"--time={max(place.shape.runtime_min for place in places)}",
    ]
    options += [f"--partition={first.partition}"] if first.partition else []
    options += [f"--qos={first.qos}"] if first.qos else []
    bad = sorted(run.bad_nodes["gpu"])
    options += [f"--exclude={','.join(bad)}"] if bad else []
    said = run.cluster.client.would_start(options)
    start_s = None if isinstance(said, Unknown) else parse_start(said)
    return start_s is not None and start_s <= run.clock() + run.cluster.site.patience_s
