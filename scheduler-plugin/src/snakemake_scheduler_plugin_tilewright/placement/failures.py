"""How jobs ended: why one failed and what it gets next; ends that the executor does not see."""

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..cluster.limits import largest, longest_min, may_use
from ..cluster.state import ClusterState
from ..errors import SlurmQueryError
from ..runtime.cause import last_line, read_cause
from ..slurm.accounts import Account
from ..slurm.jobs import (
    ENDED,
    Cause,
    SlurmJob,
    cause_of,
    node_of,
    stdout_of,
    why_pending,
)
from ..slurm.query import SlurmClient
from ..slurm.records import Partition
from .jobs import Assignment, FailureHistory, Job, JobState

#: Characters of a log's last line that are recorded.
_MOST_WORDS = 300
#: Failures that are no fault of the job and do not count as tries (no figure); more of them do.
_MOST_FREE = 10
#: Words of sbatch where it may take the same job later: a limit is reached, or Slurm is away.
_LATER = re.compile(
    r"violates accounting/QOS policy|contact|connect|communication|timed? ?out|temporarily|again"
    r"|zero bytes|inactive or drain|authentication|standby",
    re.IGNORECASE,
)
#: A state that the executor does not know must last so long (no figure): Slurm requeues sooner.
_UNEXPECTED_S = 20.0
#: The same for one that it knows, if it does not look: several times as long as answers are old.
_NOT_SEEN_TTL = 5
#: States in which a job ended, or waits for a person, unknown to Snakemake's executor; a job that
#: placement cancelled itself has ended as well.
_UNSEEN = frozenset({"PREEMPTED", "REVOKED", "SPECIAL_EXIT", "CANCELLED"})


@dataclass(frozen=True)
class NextTry:
    """What comes of a failure.

    Attributes
    ----------
    give_up : bool
        The job is not tried again.
    free : bool
        The failure does not count as one of the job's tries.
    """

    history: FailureHistory
    next: str
    give_up: bool = False
    free: bool = False


def next_try(
    past: FailureHistory, cause: Cause, words: str, node: str, *, moved: bool = False
) -> NextTry:
    """Return what a job gets after a failure.

    Parameters
    ----------
    cause : str
        As :func:`cause_of` says, ``device`` where CUDA failed.
    words : str
        The words of Slurm and the job's log; two equal ones are the same failure.
    moved : bool
        The workflow cancelled it itself, to place it elsewhere.
    """
    if moved and cause in ("cancelled", "unknown"):
        return NextTry(past, "is moved", free=True)
    failure = f"{cause}: {words}"
    now = replace(past, causes=(*past.causes, failure))
    few = len(now.causes) <= _MOST_FREE
    match cause:
        case "memory":
            return NextTry(replace(now, memory=past.memory + 1), "gets up to twice the memory")
        case "time":
            return NextTry(replace(now, time=past.time + 1), "gets up to twice the time")
        case "budget":
            return NextTry(now, "goes to an account with a budget that can end it", free=few)
        case "node" | "device":
            avoided = past.nodes | ({node} if node else set())
            return NextTry(replace(now, nodes=avoided), f"goes elsewhere than {node or 'there'}")
        case "preempted":
            return NextTry(now, "is placed again", free=few)
        case "refused":
            free = now.causes.count(failure) <= _MOST_FREE
            return NextTry(now, "goes to another place, or back to this one later", free=free)
        case "error" if failure in past.causes:
            return NextTry(now, "failed twice in the same way and is not tried again", True)
        case _:
            return NextTry(now, "is tried again")


def failure_reason(
    client: SlurmClient,
    job: SlurmJob | None,
    log: str,
    sent_s: float = 0.0,
    submission: str | None = None,
) -> tuple[Cause, str, str, str]:
    """Return the cause of a failure, its words, the node, and the log to look at.

    That is the job's own log, else what Slurm wrote of it.

    Parameters
    ----------
    job : SlurmJob or None
        None if the queue never showed it.
    log : str
        The job's log file; empty if it has none.
    sent_s : float
        When the job was sent, in seconds since the epoch: an older log is of an earlier try.
    submission : str or None
        What Snakemake's executor said of its submission, see :class:`JobState`.
    """
    of_log, words = read_cause(last_line(log))
    words = words[:_MOST_WORDS]
    if job is None and submission:
        cause, refusal = cause_of_refusal(submission)
        return cause, refusal[:_MOST_WORDS], "", log
    if job is None:
        if words and Path(log).stat().st_mtime >= sent_s:
            return "unknown", words, "", log
        if submission is not None:
            return "unknown", "it ended before squeue showed it", "", log
        refusal = "sbatch refused it: see the lines above, or .snakemake/log"
        return "refused", refusal, "", log
    try:
        details = client.job(job.id)
    except SlurmQueryError as error:
        return "unknown", str(error), job.nodes, log
    cause, of_slurm = cause_of(details)
    node = node_of(details) or job.nodes
    if cause == "error" and words:
        return of_log, words, node, log
    if cause == "error" and log:
        # it may never have begun, as when srun finds no slurmctld: no two of these are the same
        of_slurm = f"{of_slurm}; job {job.id} wrote nothing to its log"
    return cause, of_slurm, node, log or stdout_of(details)


def cause_of_refusal(text: str) -> tuple[Cause, str]:
    """Return why Snakemake's executor did not submit a job, by what it says: sbatch, or itself.

    >>> cause_of_refusal("SLURM sbatch failed. The error message was 'sbatch: error: Batch job "
    ...                  "submission failed: Invalid qos specification'.")
    ('refused', 'Invalid qos specification')
    >>> cause_of_refusal("Job submission failed with exception: [Errno 13] Permission denied")
    ('error', "Snakemake's executor: [Errno 13] Permission denied")
    """
    of_sbatch = re.search(r"error message was '?(.*?)'?\.?\s*(\n\s*sbatch call:|$)", text, re.S)
    if of_sbatch is None:
        own = text.strip().removeprefix("Job submission failed with exception: ")
        return "error", f"Snakemake's executor: {own.partition(chr(10))[0]}"
    head = r"\s*((sbatch|error|Batch job submission failed): )*"
    return "refused", "; ".join(re.sub(head, "", one, count=1) for one in of_sbatch[1].split("\n"))


def may_pass(words: str) -> bool:
    """Return whether sbatch may take a job later that it refuses now in these words.

    >>> may_pass("QOSMaxSubmitJobPerUserLimit"), may_pass("Invalid qos specification")
    (True, False)
    """
    obstacle = why_pending(words).obstacle
    return obstacle in ("limit", "spent") or (obstacle != "invalid" and bool(_LATER.search(words)))


def memory_limit_mb(job: Job, state: ClusterState) -> int | None:
    """Return the most memory that a job may have anywhere it may go; None without a limit."""
    limits = []
    for account, where in _allowed(job, state):
        nodes = state.nodes_in[where.name] if where else []
        most = [n for n in (largest(account, where, "mem"),) if n is not None]
        most += [max(node.total.get("mem", 0) for node in nodes)] if nodes else []
        if not most:
            return None
        limits.append(min(most))
    return max(limits, default=None)


def why_no_retry(job: Job, assignment: Assignment, cause: Cause, state: ClusterState) -> str:
    """Return why a job that ran out of memory or time would do so again; empty if it may not."""
    request = assignment.request
    if cause == "memory":
        if job.overrides.mem_mb:
            return f"needs more than the {request.mem_mb} MB set for it and is not tried again"
        most = memory_limit_mb(job, state)
        if most is not None and most <= request.mem_mb:
            return "needs more memory than any account has"
    if cause == "time":
        if job.overrides.runtime_min:
            return (
                f"needs more than the {request.runtime_min} min set for it and is not tried again"
            )
        on_cpu = assignment.target.device == "cpu"
        if on_cpu and "gpu" in job.kinds and state.partitions.get("gpu"):
            return ""  # a GPU may do it in time
        longest = [longest_min(account, where) for account, where in _allowed(job, state)]
        if all(most is not None and most <= request.runtime_min for most in longest):
            return f"needs more than {request.runtime_min} min, the longest that a job may take"
    return ""


def _allowed(job: Job, state: ClusterState) -> list[tuple[Account, Partition | None]]:
    """Return the accounts and partitions that a job may go to; for CPUs Slurm has a default."""
    name = job.overrides.partition or ""
    found = [where for kind in job.kinds for _, where in state.places(kind, name)]
    wheres: list[Partition | None] = [where for where in found if where is not None]
    return [
        (account, where)
        for where in wheres or [None]
        for account in state.accounts
        if job.overrides.account in (None, account.name) and may_use(account, where)
    ]


def unseen_ends(
    tasks: Mapping[str, JobState],
    queue: Iterable[SlurmJob],
    client: SlurmClient,
    now_s: float,
    sent: Mapping[str, int],
    taken_s: dict[int, float],
) -> dict[str, tuple[str, bool]]:
    """Return how jobs ended that the executor takes to run on, and whether they are done.

    It leaves preempted and revoked jobs to Slurm, and those that slurmctld forgot it never sees
    end, nor any where it asks a slurmdbd that is down. Jobs that were cancelled to be moved it
    would see up to a minute later.

    Parameters
    ----------
    sent : mapping of str to int
        Numbers of the jobs that sbatch took: one that the queue has not shown although it was asked
        since is looked for in accounting.
    taken_s : dict of int to float
        When each was first sent by then, or last looked for.
    """
    for name, job_id in sent.items():
        if not tasks[name].waiting or client.queue_asked_s() <= taken_s.setdefault(job_id, now_s):
            continue
        taken_s[job_id] = now_s
        with contextlib.suppress(SlurmQueryError):
            state = client.final_state(job_id)
            if state in ENDED:
                tasks[name].slurm_job = SlurmJob(job_id, state)
    there = {job.id for job in queue}
    ends = {name: _end(task, there, client, now_s) for name, task in tasks.items()}
    return {name: end for name, end in ends.items() if end is not None}


def _end(
    task: JobState, there: Collection[int], client: SlurmClient, now_s: float
) -> tuple[str, bool] | None:
    job = task.slurm_job
    if task.assignment is None or job is None or (job.active and job.id in there):
        task.unexpected_since_s = None
        return None
    if task.unexpected_since_s is None:
        task.unexpected_since_s = now_s
    cancelled = bool(task.move_reason or task.refused) and job.state == "CANCELLED"
    unseen = job.state in _UNSEEN or job.id not in there
    least_s = _UNEXPECTED_S if unseen else _NOT_SEEN_TTL * client.ttl_s
    if now_s - task.unexpected_since_s < least_s and not cancelled:
        return None
    state = "lost" if job.active else job.state
    with contextlib.suppress(SlurmQueryError):
        if job.active:
            state = client.final_state(job.id) or state
        elif state == "SPECIAL_EXIT":
            client.cancel([job.id])
    if state not in ENDED | {"lost"}:
        return None
    why = " to be moved" if task.move_reason and cancelled else ""
    return f"Slurm job {job.id} is {state.lower()}{why}", state == "COMPLETED"
