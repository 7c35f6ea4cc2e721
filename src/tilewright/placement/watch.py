"""What the queue does meanwhile: jobs that pend for nothing, tries that nobody knows of."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from tilewright.placement.jobs import Task, observe
from tilewright.placement.rounds import estimate_s, sooner_elsewhere
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
            if better and _cancel_pending(run, task):
                account, kind, shape = better
                room = room.take(account, kind, shape)
                task.moved = f"{job.reason} on {place.account} for {waited_s:.0f} s"
                run.ledger.write(
                    "move", job=task.name, slurm_id=job.id, reason=task.moved,
                    sooner=f"{account} {kind}",
                )  # fmt: skip
                moved.append(task.name)
        return moved


def _cancel_pending(run: Dispatcher, task: Task) -> bool:
    """Return whether a job that pends was cancelled before it began; Slurm does not say."""
    client = run.cluster.client
    assert task.seen is not None
    if isinstance(client.cancel([task.seen.id], pending_only=True), Unknown):
        return False
    client.forget()
    queue = run.cluster.queue()
    if not isinstance(queue, Unknown):
        observe([task], queue, run.workdir)
    return task.seen.state != "RUNNING"


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
