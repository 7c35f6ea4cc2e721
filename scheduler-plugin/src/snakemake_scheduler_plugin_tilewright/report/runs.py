"""What a ledger says of its runs: tries of jobs, and the table of where they ran."""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from ..runtime.ledger import runs_of

Event = Mapping[str, Any]
#: An account and a device, gpu or cpu.
Pool = tuple[str, str]


@dataclass(frozen=True)
class Try:
    """One try of a job as it was sent; times in seconds since the epoch.

    Attributes
    ----------
    start_s : float or None
        None: it never ran.
    wait_s : float or None
        Time in the queue, of one that ended well; Slurm cuts its times to whole seconds.
    cause : str
        Cause of its failure; empty where it ended well.
    """

    job: str
    rule: str
    pool: Pool
    start_s: float | None
    end_s: float
    wait_s: float | None = None
    cause: str = ""

    @property
    def ran_s(self) -> float:
        """How long it ran, in seconds."""
        return 0.0 if self.start_s is None else self.end_s - self.start_s


@dataclass(frozen=True)
class Run:
    """One run of the workflow on a cluster; times in seconds since the epoch.

    Attributes
    ----------
    number : int
        Its place in the ledger, from 1.
    start_s, end_s : float
        ``end_s`` is the last that the ledger knows of it.
    slots : dict of Pool to int
        Slots counted when the run began, of the devices that its jobs may use.
    tries : tuple of Try
        In the order in which they ended.
    """

    number: int
    start_s: float
    end_s: float
    slots: Mapping[Pool, int]
    tries: tuple[Try, ...]

    @property
    def span_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s


def cluster_runs(events: Iterable[Event]) -> list[Run]:
    """Return the runs of a ledger."""
    return [_run(number, group) for number, group in enumerate(runs_of(events), 1)]


def _run(number: int, events: Sequence[Event]) -> Run:
    tries = [_try(event) for event in events if event["event"] in ("done", "fail")]
    pools = events[0].get("pools", {}).values()
    # empty where the ledger does not say
    kinds = {str(kind) for event in events for kind in event.get("kinds") or ()}
    slots = {(account, kind): n for account, kind, n in pools if not kinds or kind in kinds}
    times = [event["time_s"] for event in events]
    start_s = min([times[0], *(one.start_s for one in tries if one.start_s is not None)])
    return Run(number, start_s, max(times), slots, tuple(tries))


def _try(event: Event) -> Try:
    # squeue's end of a job that still ran is its limit
    start_s, end_s = event.get("start_s"), min(event["time_s"], event.get("end_s", math.inf))
    if start_s is not None and end_s <= start_s:
        start_s, end_s = None if event["event"] == "fail" else start_s, start_s
    sent_s = event.get("sent_s")
    return Try(
        event.get("job", ""), event.get("rule", ""),
        (event.get("account", ""), event.get("kind", "")), start_s, end_s,
        None if start_s is None or sent_s is None else max(0.0, start_s - sent_s),
        event.get("cause", "unknown") if event["event"] == "fail" else "",
    )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Tries of a rule's jobs on an account and device, in all runs.

    Attributes
    ----------
    slots : int
        The most that were counted when a run began.
    utilisation : float or None
        Busy slot-seconds of all rules over slots × length of the runs; None without slots.
    rule : str
        Empty where no job ran on this account and device.
    jobs, failed : int
        Tries, and those of them that failed; a group of Snakemake is one.
    mean_wait_s : float or None
        Time in the queue of jobs that ended well.
    """

    account: str
    device: str
    slots: int
    utilisation: float | None
    rule: str
    jobs: int
    hours: float
    mean_wait_s: float | None
    failed: int
    causes: str


def pools_of(runs: Iterable[Run]) -> list[Pool]:
    """Return accounts and devices, GPUs first, that had slots or tries."""
    found: dict[Pool, None] = {}
    for run in runs:
        found |= dict.fromkeys(pool for pool, slots in run.slots.items() if slots)
        found |= dict.fromkeys(one.pool for one in run.tries)
    return sorted(found, key=lambda pool: pool[1] != "gpu")


def rows_of(runs: Sequence[Run], rules: Iterable[str]) -> list[Row]:
    """Return the rows of the table, in the order of these rules."""
    rows = []
    for pool in pools_of(runs):
        tries = [one for run in runs for one in run.tries if one.pool == pool]
        slots = max(run.slots.get(pool, 0) for run in runs)
        used = utilisation(runs, pool)
        there = {one.rule for one in tries}
        for rule in [rule for rule in rules if rule in there] or [""]:
            own = [one for one in tries if one.rule == rule]
            waits = [one.wait_s for one in own if one.wait_s is not None]
            wait_s = round(sum(waits) / len(waits), 1) if waits else None
            hours = round(sum(one.ran_s for one in own) / 3600, 4)
            causes = Counter(one.cause for one in own if one.cause)
            why = ", ".join(f"{cause} {n}" for cause, n in sorted(causes.items()))
            rows.append(Row(*pool, slots, used, rule, len(own), hours, wait_s, causes.total(), why))
    return rows


def utilisation(runs: Iterable[Run], pool: Pool) -> float | None:
    """Return busy slot-seconds over slots × length of the runs; None where there were no slots."""
    busy, total = 0.0, 0.0
    for run in runs:
        slots = run.slots.get(pool, 0)
        busy += busy_s((one for one in run.tries if one.pool == pool), slots)
        total += slots * run.span_s
    return round(busy / total, 4) if total > 0 else None


def busy_s(tries: Iterable[Try], slots: int) -> float:
    """Return slot-seconds in use: running jobs integrated over time, at most ``slots`` at once."""
    ran = [(one.start_s, one.end_s) for one in tries if one.start_s is not None]
    steps = sorted([*((start_s, 1) for start_s, _ in ran), *((end_s, -1) for _, end_s in ran)])
    total_s, running, last_s = 0.0, 0, 0.0
    for time_s, change in steps:
        total_s += min(running, slots) * (time_s - last_s)
        running, last_s = running + change, time_s
    return total_s


def as_csv(rows: Iterable[Row]) -> str:
    """Return the table as CSV, with the names of :class:`Row` above."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(column.name for column in fields(Row))
    for row in rows:  # spreadsheet programs compute what begins so
        table.writerow(f"'{one}" if str(one)[:1] in {*"=+-@"} else one for one in astuple(row))
    return text.getvalue()
