"""What ``sacct`` says of every job, as typed records, and the peak use they add up to."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

#: Unit separator: comments and reasons may hold any printable character.
DELIMITER = "\x1f"
FIELDS = (
    *("JobIDRaw", "Account", "QOS", "Partition", "State", "Submit", "Start", "End"),
    *("AllocTRES", "ReqTRES", "Comment", "WorkDir", "NodeList"),
)
_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


@dataclass(frozen=True)
class Job:
    """One run of a job; a requeued job has one record for each run.

    ``state`` is Slurm's first word (``CANCELLED by 1001`` is ``CANCELLED``); times are
    seconds since 1970, ``None`` where it has not come to that; ``cpus``, ``mem_mb`` and
    ``gpus`` are what was allocated, or asked for by a job that never started.
    """

    id: int
    account: str
    qos: str
    partition: str
    state: str
    submit: int | None
    start: int | None
    end: int | None
    cpus: int
    mem_mb: int
    gpus: int
    comment: str
    workdir: str
    node: str

    @property
    def ended(self) -> bool:
        return self.state not in {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED"}


def _amount(text: str) -> float:
    """Return an amount of a TRES list; memory in MB."""
    unit = _MB.get(text[-1:], 0.0)
    return float(text[:-1]) * unit if unit else float(text)


def parse_jobs(text: str) -> list[Job]:
    """Return the jobs of ``sacct -n -P -D -X`` output."""
    jobs = []
    for line in text.splitlines():
        row = dict(zip(FIELDS, line.split(DELIMITER), strict=True))
        # A job that is cancelled while it waits has equal start and end, and nothing allocated.
        ran = bool(row["AllocTRES"])
        items = filter(None, (row["AllocTRES"] or row["ReqTRES"]).split(","))
        tres = {name: _amount(amount) for name, _, amount in (i.partition("=") for i in items)}
        times = {name: int(row[name]) if row[name].isdigit() else None for name in FIELDS[5:8]}
        jobs.append(
            Job(
                *(int(row["JobIDRaw"]), row["Account"], row["QOS"], row["Partition"]),
                *(row["State"].split()[0], times["Submit"], times["Start"] if ran else None),
                *(times["End"], int(tres.get("cpu", 0)), round(tres.get("mem", 0))),
                *(int(tres.get("gres/gpu", 0)), row["Comment"], row["WorkDir"]),
                row["NodeList"] if ran else "",
            )
        )
    return jobs


def peak_use(jobs: Iterable[Job], account: str) -> dict[str, int]:
    """Return the most CPUs, memory and GPUs that jobs of ``account`` held at one instant.

    Each maximum is its own: they need not fall together. A job holds its resources from
    ``start`` up to, not including, ``end``. Accounting knows whole seconds only, so a job
    that starts in the second another ends does not overlap it, and one that starts and ends
    within a second does not count: no oversubscription is seen where there was none.
    """
    changes: list[tuple[float, int, tuple[int, int, int]]] = []
    for job in jobs:
        end = math.inf if job.end is None else job.end
        if job.account == account and job.start is not None and end > job.start:
            amounts = (job.cpus, job.mem_mb, job.gpus)
            changes += [(job.start, 1, amounts), (end, -1, amounts)]
    held, peak = [0, 0, 0], [0, 0, 0]
    for _, sign, amounts in sorted(changes):  # at one instant, ends (-1) come before starts
        held = [have + sign * amount for have, amount in zip(held, amounts, strict=True)]
        peak = [max(pair) for pair in zip(peak, held, strict=True)]
    return dict(zip(("cpu", "mem_mb", "gpus"), peak, strict=True))
