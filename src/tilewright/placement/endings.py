"""Why a job ended badly: what Slurm says of it, and the last words of its log."""

from __future__ import annotations

from pathlib import Path

from tilewright.placement.retry import DEVICE_ERROR
from tilewright.slurm.jobs import Cause, SlurmJob, cause_of, node_of
from tilewright.slurm.query import SlurmClient, Unknown


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
