"""Why a job failed, and what it gets next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.placement.jobs import Job, Kind, Past, Place
from snakemake_scheduler_plugin_tilewright.placement.limits import (
    largest,
    longest_min,
    may_use,
    partition_of,
)
from snakemake_scheduler_plugin_tilewright.runtime.cause import last_line, read_cause
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account
from snakemake_scheduler_plugin_tilewright.slurm.jobs import (
    Cause,
    SlurmJob,
    cause_of,
    node_of,
    stdout_of,
)
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient, Unknown
from snakemake_scheduler_plugin_tilewright.slurm.records import Partition

#: Characters of a log's last line that are kept.
_MOST_WORDS = 300
#: Failures that are nobody's fault and do not count as tries; more of them do.
_MOST_FREE = 10
#: The same for what sbatch refuses, since a wrong option of the user's own is refused as well.
_MOST_REFUSED = 3


@dataclass(frozen=True)
class NextTry:
    """What comes of a failure.

    Attributes
    ----------
    next : str
        What is done about it, in words.
    give_up : bool
        The job is not tried again.
    free : bool
        The failure does not count as one of the job's tries.
    """

    past: Past
    next: str
    give_up: bool = False
    free: bool = False


def next_try(past: Past, cause: Cause, words: str, node: str, *, moved: bool = False) -> NextTry:
    """Return what a job gets after a failure.

    Parameters
    ----------
    past : Past
        Its failures before.
    cause : str
        As :func:`cause_of` says, ``device`` where CUDA failed.
    words : str
        What Slurm and the job's log said; two equal ones are the same failure.
    node : str
        Where it ran.
    moved : bool
        The workflow cancelled it itself, to place it elsewhere.
    """
    if moved and cause in ("cancelled", "unknown"):
        return NextTry(past, "is placed again", free=True)
    said = f"{cause}: {words}"
    now = replace(past, causes=(*past.causes, said))
    match cause:
        case "memory":
            return NextTry(replace(now, memory=past.memory + 1), "gets twice the memory")
        case "time":
            return NextTry(replace(now, time=past.time + 1), "gets twice the time")
        case "budget":
            free = len(now.causes) <= _MOST_FREE
            return NextTry(now, "goes to an account with a budget that can end it", free=free)
        case "node" | "device":
            avoided = past.nodes | ({node} if node else set())
            return NextTry(replace(now, nodes=avoided), f"goes elsewhere than {node or 'there'}")
        case "preempted":
            return NextTry(now, "is placed again", free=len(now.causes) <= _MOST_FREE)
        case "refused":
            free = now.causes.count(said) <= _MOST_REFUSED
            return NextTry(now, "goes elsewhere, or there after a while", free=free)
        case "error" if said in past.causes:
            return NextTry(now, "failed twice in the same way and is not tried again", True)
        case _:
            return NextTry(now, "is tried again")


def find_cause(
    client: SlurmClient, job: SlurmJob | None, log: str, sent_s: float = 0.0
) -> tuple[Cause, str, str, str]:
    """Return the cause of a failure, what was said, the node, and the log to look at.

    That is the job's own log, else what Slurm wrote of it.

    Parameters
    ----------
    job : SlurmJob or None
        None if the queue never showed it.
    log : str
        The job's log file; empty if it has none.
    sent_s : float
        When the job was sent, in seconds since the epoch: an older log is of an earlier try.
    """
    stated, words = read_cause(last_line(log))
    words = words[:_MOST_WORDS]
    if job is None:
        if words and Path(log).stat().st_mtime >= sent_s:
            return "unknown", words, "", log
        said = "sbatch refused it: see the lines above, or .snakemake/log"
        return "refused", said, "", log
    details = client.job(job.id)
    if isinstance(details, Unknown):
        return "unknown", str(details), job.nodes, log
    cause, said = cause_of(details)
    node = node_of(details) or job.nodes
    if cause == "error" and words:
        return stated, words, node, log
    if cause == "error" and log:
        # it may never have begun, as when srun finds no slurmctld: no two of these are the same
        said = f"{said}; job {job.id} wrote nothing to its log"
    return cause, said, node, log or stdout_of(details)


def memory_limit_mb(
    job: Job, accounts: Iterable[Account], partitions: Iterable[Partition | None]
) -> int | None:
    """Return the most memory that a job may have anywhere it may go; None without a limit."""
    accounts = list(accounts)
    limits = [
        largest(account, partition, "mem")
        for partition in partitions
        for account in _allowed(job, accounts, partition)
    ]
    known = [limit for limit in limits if limit is not None]
    return max(known) if known and len(known) == len(limits) else None


def why_no_retry(
    job: Job,
    place: Place,
    cause: Cause,
    accounts: Iterable[Account],
    partitions: Mapping[Kind, Partition | None],
    named: Mapping[str, Partition],
) -> str:
    """Return why another try of a job would end as this one did; empty if it may not.

    Parameters
    ----------
    job : Job
        That ran out of memory or time.
    place : Place
        Where.
    partitions, named : mapping
        Partition of each device kind, and all by name.
    """
    shape, accounts = place.shape, list(accounts)
    wheres = partitions_of(job, partitions, named)
    if cause == "memory":
        if job.fixed.mem_mb:
            return f"had the {shape.mem_mb} MB that were chosen for it and is not tried again"
        most = memory_limit_mb(job, accounts, wheres)
        if most is not None and most <= shape.mem_mb:
            return "needs more memory than any account has"
    if cause == "time":
        if job.fixed.runtime_min:
            return f"had the {shape.runtime_min} min that were chosen for it, no second try"
        if place.kind == "cpu" and "gpu" in job.kinds and partitions.get("gpu"):
            return ""  # a GPU may do it in time
        longest = [
            longest_min(account, where)
            for where in wheres
            for account in _allowed(job, accounts, where)
        ]
        if all(most is not None and most <= shape.runtime_min for most in longest):
            return f"needs more than {shape.runtime_min} min, the longest that a job may take"
    return ""


def partitions_of(
    job: Job, partitions: Mapping[Kind, Partition | None], named: Mapping[str, Partition]
) -> list[Partition | None]:
    """Return the partitions that a job may go to; for CPUs Slurm has a default."""
    found = [partition_of(kind, job.fixed.partition, partitions, named) for kind in job.kinds]
    return [where for where in found if where is not None] or [None]


def _allowed(job: Job, accounts: Iterable[Account], partition: Partition | None) -> list[Account]:
    return [
        account
        for account in accounts
        if job.fixed.account in (None, account.name) and may_use(account, partition)
    ]
