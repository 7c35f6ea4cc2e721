"""Why a job ended badly, by Slurm and the last words of its log, and whether to try again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tilewright.placement.bounds import largest, longest_min, may_use
from tilewright.placement.jobs import Kind, Place, Task
from tilewright.placement.retry import DEVICE_ERROR
from tilewright.slurm.accounts import Account
from tilewright.slurm.jobs import Cause, SlurmJob, cause_of, node_of
from tilewright.slurm.query import SlurmClient, Unknown
from tilewright.slurm.records import Partition


def find_cause(client: SlurmClient, job: SlurmJob | None, log: str) -> tuple[Cause, str, str]:
    """Return the cause of a failure, what was said, and the node.

    Parameters
    ----------
    client : SlurmClient
    job : SlurmJob or None
        None if the queue never showed it.
    log : str
        The job's log file; empty if it has none.
    """
    words = last_words(log)
    if job is None:
        return "unknown", words or "it never reached the queue", ""
    details = client.job(job.id)
    if isinstance(details, Unknown):
        return "unknown", str(details), job.nodes
    cause, said = cause_of(details)
    node = node_of(details) or job.nodes
    if cause == "error" and words:
        return ("device" if DEVICE_ERROR in words else "error"), words, node
    return cause, said, node


def last_words(log: str) -> str:
    """Return the last line of a job's log: of a traceback, the error."""
    try:
        lines = Path(log).read_text(encoding="utf-8", errors="replace").splitlines() if log else []
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def most_mb(
    task: Task, kind: Kind, accounts: Iterable[Account], partition: Partition | None
) -> int | None:
    """Return the most memory that a job may have anywhere it may go; None without a limit."""
    limits = [largest(account, partition, "mem") for account in _allowed(task, accounts, partition)]
    known = [limit for limit in limits if limit is not None]
    return max(known) if known and len(known) == len(limits) else None


def nothing_more(
    task: Task,
    place: Place,
    cause: Cause,
    accounts: Iterable[Account],
    partitions: Mapping[Kind, Partition | None],
) -> str:
    """Return why another try of a job would end as this one did; empty if it may not.

    Parameters
    ----------
    task : Task
        That ran out of memory or time.
    place : Place
        Where.
    cause : str
    accounts : iterable of Account
    partitions : mapping
        Partition of each device kind.
    """
    shape, accounts = place.shape, list(accounts)
    if cause == "memory":
        if task.fixed.mem_mb:
            return f"had the {shape.mem_mb} MB that were chosen for it and is not tried again"
        most = most_mb(task, place.kind, accounts, partitions.get(place.kind))
        if most is not None and most <= shape.mem_mb:
            return "needs more memory than any account has"
    if cause == "time":
        if task.fixed.runtime_min:
            return f"had the {shape.runtime_min} min that were chosen for it, no second try"
        if place.kind == "cpu" and "gpu" in task.kinds and partitions.get("gpu"):
            return ""  # a GPU may do it in time
        where = partitions.get(place.kind)
        longest = [longest_min(account, where) for account in _allowed(task, accounts, where)]
        if all(most is not None and most <= shape.runtime_min for most in longest):
            return f"needs more than {shape.runtime_min} min, the longest that a job may take"
    return ""


def _allowed(task: Task, accounts: Iterable[Account], partition: Partition | None) -> list[Account]:
    return [
        account
        for account in accounts
        if task.fixed.account in (None, account.name)
        and (partition is None or may_use(account, partition))
    ]
