"""What ``sacct`` says of every job, as typed records, and the peak use they add up to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

#: Unit separator: comments and reasons may hold any printable character.
DELIMITER = "\x1f"
FIELDS = (
    "JobIDRaw",
    "User",
    "Account",
    "QOS",
    "Partition",
    "State",
    "ExitCode",
    "DerivedExitCode",
    "Submit",
    "Start",
    "End",
    "AllocTRES",
    "ReqTRES",
    "Comment",
    "JobName",
    "WorkDir",
    "NodeList",
)
_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


@dataclass(frozen=True)
class Step:
    """A step of a job: ``name`` is ``batch``, ``extern`` or the number of an ``srun``."""

    name: str
    state: str
    exit_code: str


@dataclass(frozen=True)
class Job:
    """One run of a job; a requeued job has one record for each run.

    ``state`` is Slurm's first word (``CANCELLED by 1001`` is ``CANCELLED``); times are
    seconds since 1970, ``None`` where it has not come to that; ``cpus``, ``mem_mb`` and
    ``gpus`` are what was allocated, or asked for by a job that never started.
    """

    id: int
    user: str
    account: str
    qos: str
    partition: str
    state: str
    exit_code: str
    derived_exit_code: str
    submit: int | None
    start: int | None
    end: int | None
    cpus: int
    mem_mb: int
    gpus: int
    comment: str
    name: str
    workdir: str
    node: str
    steps: dict[str, Step] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.state not in {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED"}


def parse_tres(text: str) -> dict[str, float]:
    """Return the amounts of a TRES list; memory in MB.

    >>> parse_tres("billing=8,cpu=8,gres/gpu=1,mem=48G,node=1")["mem"]
    49152.0
    """
    amounts: dict[str, float] = {}
    for item in filter(None, text.split(",")):
        name, _, amount = item.partition("=")
        unit = _MB.get(amount[-1:], 0.0)
        amounts[name] = float(amount[:-1]) * unit if unit else float(amount)
    return amounts


def _epoch(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _job(row: dict[str, str]) -> Job:
    # A job that is cancelled while it waits has equal start and end, and nothing allocated.
    ran = bool(row["AllocTRES"])
    tres = parse_tres(row["AllocTRES"] or row["ReqTRES"])
    return Job(
        id=int(row["JobIDRaw"]),
        user=row["User"],
        account=row["Account"],
        qos=row["QOS"],
        partition=row["Partition"],
        state=row["State"].split()[0],
        exit_code=row["ExitCode"],
        derived_exit_code=row["DerivedExitCode"],
        submit=_epoch(row["Submit"]),
        start=_epoch(row["Start"]) if ran else None,
        end=_epoch(row["End"]),
        cpus=int(tres.get("cpu", 0)),
        mem_mb=round(tres.get("mem", 0)),
        gpus=int(tres.get("gres/gpu", 0)),
        comment=row["Comment"],
        name=row["JobName"],
        workdir=row["WorkDir"],
        node=row["NodeList"] if ran else "",
    )


def parse_jobs(text: str) -> list[Job]:
    """Return the jobs of ``sacct -n -P -D`` output, each with the steps that follow it."""
    jobs: list[Job] = []
    for line in text.splitlines():
        row = dict(zip(FIELDS, line.split(DELIMITER), strict=True))
        _, is_step, step = row["JobIDRaw"].partition(".")
        if is_step:
            jobs[-1].steps[step] = Step(step, row["State"].split()[0], row["ExitCode"])
        else:
            jobs.append(_job(row))
    return jobs


def peak_use(jobs: Iterable[Job], account: str, qos: str | None = None) -> dict[str, int]:
    """Return the most CPUs, memory and GPUs that jobs of ``account`` held at one instant.

    Each maximum is its own: they need not fall together. A job holds its resources from
    ``start`` up to, not including, ``end``. Accounting knows whole seconds only, so a job
    that starts in the second another ends does not overlap it, and one that starts and ends
    within a second does not count: no oversubscription is seen where there was none.

    Parameters
    ----------
    jobs : iterable of Job
        Records of :meth:`Cluster.jobs`.
    account : str
        Jobs of other accounts do not count.
    qos : str, optional
        Count only jobs of this QOS: limits are the QOS's where burst is one on the same account.
    """
    changes: list[tuple[float, int, tuple[int, int, int]]] = []
    for job in jobs:
        if job.account != account or qos not in (None, job.qos) or job.start is None:
            continue
        end = math.inf if job.end is None else job.end
        if end > job.start:
            changes.append((job.start, 1, (job.cpus, job.mem_mb, job.gpus)))
            changes.append((end, -1, (job.cpus, job.mem_mb, job.gpus)))
    held, peak = [0, 0, 0], [0, 0, 0]
    for _, sign, amounts in sorted(changes):  # at one instant, ends (-1) come before starts
        held = [have + sign * amount for have, amount in zip(held, amounts, strict=True)]
        peak = [max(pair) for pair in zip(peak, held, strict=True)]
    return dict(zip(("cpu", "mem_mb", "gpus"), peak, strict=True))
