"""What the queue does meanwhile: jobs that pend for nothing or run on though a GPU is free."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.placement.restarts import restarts
from tilewright.placement.rounds import estimate_s, sooner_elsewhere
from tilewright.placement.tasks import Task
from tilewright.slurm.jobs import STUCK, stale_jobs
from tilewright.slurm.query import Unknown

if TYPE_CHECKING:
    from tilewright.placement.dispatch import Dispatcher


def tend(run: Dispatcher, movable: Callable[[str], bool] = lambda name: True) -> list[str]:
    """Cancel jobs that pend on a limit or a dead node while another place ends them sooner.

    How long they would still wait is not known; as long as they did already is the guess.
    """
    with run.lock:
        moved: list[str] = []
        sent = [task for task in run.tasks.values() if task.active]
        if all(task.seen is not None and task.seen.state == "RUNNING" for task in sent):
            return moved
        room, now_s = run.room(), run.clock()
        if isinstance(room, str):
            return moved
        for task in list(run.tasks.values()):
            job, place = task.seen, task.place
            waited_s = now_s - task.sent_s
            if (
                job is None
                or place is None
                or job.state != "PENDING"
                or task.moved
                or not movable(task.name)
                or waited_s < run.cluster.site.patience_s
                or not STUCK.match(job.reason)
            ):
                continue
            better = sooner_elsewhere(task, room, run.plan, waited_s)
            if better and not isinstance(
                run.cluster.client.cancel([job.id], pending_only=True), Unknown
            ):
                account, kind, shape = better
                room = room.take(account, kind, shape)
                task.moved = f"{job.reason} on {place.account} for {waited_s:.0f} s"
                run.ledger.write(
                    "move", job=task.name, slurm_id=job.id, reason=task.moved,
                    sooner=f"{account} {kind}",
                )  # fmt: skip
                moved.append(task.name)
        return moved


def begin_anew(run: Dispatcher, movable: Callable[[str], bool] = lambda name: True) -> list[str]:
    """Cancel jobs on CPUs that end sooner if they begin anew on GPUs that no job waits for.

    The site's patience is what a new start costs: until Snakemake sees the end of the old job and
    Slurm begins the new one.
    """
    with run.lock:
        sent = [task for task in run.tasks.values() if task.place is not None]
        # a job that was moved and has yet to be seen to end still wants its new slot
        if not run.cluster.site.restarts or any(task.moved for task in sent):
            return []
        room = run.room() if any(map(_may_begin_anew, sent)) else ""
        if isinstance(room, str):
            return []
        able = {
            task.name: task
            for task in sent
            if _may_begin_anew(task)
            and task.seen is not None
            and task.seen.state == "RUNNING"
            and movable(task.name)
        }
        placing, work = run.placing(room), run.workload()
        pools = [
            replace(pool, running=tuple(replace(own, moved=own.job not in able)
                                        for own in pool.running))
            for pool in placing.slots(placing.shapes.largest(able.values()))
        ]  # fmt: skip
        waiting, later = (
            [name for name in names if name in work.index] for names in (run.why_waiting, run.later)
        )
        moves = restarts(
            work, waiting, later, pools, run.clock(), run.way, cost_s=run.cluster.site.patience_s
        )
        moved = []
        for move in moves:
            task = able[move.job]
            assert task.seen is not None
            if isinstance(run.cluster.client.cancel([task.seen.id]), Unknown):
                continue
            task.moved, task.anew = "a GPU is free that ends it sooner", True
            run.ledger.write(
                "move", job=task.name, slurm_id=task.seen.id, reason=task.moved, sooner=move.pool
            )
            moved.append(task.name)
        return moved


def _may_begin_anew(task: Task) -> bool:
    """Return whether a job that was sent to CPUs may use a GPU; one that failed may not again."""
    on_cpus = task.place is not None and task.place.kind == "cpu" and "gpu" in task.kinds
    return on_cpus and not (task.moved or task.anew or task.past.causes)


def soonest_end_s(run: Dispatcher) -> float:
    """Return in how many seconds the first running job is expected to end; 0 if none runs."""
    with run.lock:
        now_s = run.clock()
        ends = [
            (task.seen.start_s or now_s) + estimate_s(task, task.place.kind, run.plan) - now_s
            for task in run.tasks.values()
            if task.active and task.seen is not None and task.place is not None
        ]
        return max(0.0, min(ends, default=0.0))


def end_doubles(run: Dispatcher, ready: Collection[str]) -> set[str]:
    """Cancel what the queue still has of jobs that are to be sent, and name those jobs.

    sbatch may say that slurmctld did not answer although the job was taken.
    """
    queue = run.cluster.queue()
    if isinstance(queue, Unknown):
        return set()
    found = [job for job in stale_jobs(queue, run.workdir) if job.comment in ready]
    wanted = [job.id for job in found if job.state != "COMPLETING"]
    if wanted:
        run.cluster.client.cancel(wanted)
        run.ledger.write("cancel", slurm_ids=wanted, reason="an earlier try of a ready job")
    return {job.comment for job in found}
