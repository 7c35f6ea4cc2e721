"""What a ledger says of its runs: tries of jobs, moves and failures."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..runtime.ledger import runs_of
from ..runtime.words import printable

#: Causes of the failure of a job that the workflow itself took back, to place it again.
_BY_MOVE = ("cancelled", "unknown")
_WORDS = 160

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
        Cause of its failure; empty where it ended well or was moved.
    members : int
        Jobs of Snakemake that it is: a group is one try.
    """

    job: str
    rule: str
    pool: Pool
    start_s: float | None
    end_s: float
    wait_s: float | None = None
    cause: str = ""
    members: int = 1

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
    remarks : tuple of (float, str)
        Moves and failures: seconds since the start, and what happened.
    """

    number: int
    start_s: float
    end_s: float
    slots: Mapping[Pool, int]
    tries: tuple[Try, ...]
    remarks: tuple[tuple[float, str], ...] = ()

    @property
    def span_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s


def cluster_runs(events: Iterable[Event]) -> list[Run]:
    """Return the runs of a ledger."""
    return [_run(number, group) for number, group in enumerate(runs_of(events), 1)]


def _run(number: int, events: Sequence[Event]) -> Run:
    moved: set[str] = set()
    tries: list[Try] = []
    remarks_at: list[tuple[float, str]] = []
    for event in events:
        name, job = event["event"], event.get("job", "")
        if name == "move":
            moved.add(job)
            remarks_at.append((event["time_s"], _move(event)))
        elif name in ("done", "fail"):
            was_moved = job in moved and event.get("cause") in _BY_MOVE
            moved.discard(job)
            one = _try(event, failed=name == "fail" and not was_moved)
            if one.start_s is not None or not was_moved:
                tries.append(one)
            if one.cause:
                remarks_at.append((event["time_s"], _failure(event)))
    pools = events[0].get("pools", {}).values()
    # empty where the ledger does not say
    kinds = {str(kind) for event in events for kind in event.get("kinds") or ()}
    slots = {(account, kind): n for account, kind, n in pools if not kinds or kind in kinds}
    times = [event["time_s"] for event in events]
    start_s = min([times[0], *(one.start_s for one in tries if one.start_s is not None)])
    remarks = tuple((max(0.0, time_s - start_s), text) for time_s, text in remarks_at)
    return Run(number, start_s, max(times), slots, tuple(tries), remarks)


def _try(event: Event, failed: bool) -> Try:
    # squeue's end of a job that still ran is its limit
    start_s, end_s = event.get("start_s"), min(event["time_s"], event.get("end_s", math.inf))
    if start_s is not None and end_s <= start_s:
        start_s, end_s = None if event["event"] == "fail" else start_s, start_s
    sent_s = event.get("sent_s")
    return Try(
        event.get("job", ""), event.get("rule", ""),
        (event.get("account", ""), event.get("kind", "")), start_s, end_s,
        None if start_s is None or sent_s is None else max(0.0, start_s - sent_s),
        event.get("cause", "unknown") if failed else "", event.get("members", 1),
    )  # fmt: skip


def _label(event: Event) -> str:
    """Return a job's name for readers, such as stitch tonsil_2_1."""
    job = re.sub(r"^rule_", "", event.get("job", "")).replace("_wildcards_", " ", 1)
    return job or str(event.get("rule", ""))


def _move(event: Event) -> str:
    later = "moved where there is room later" if event.get("later") else "ended"
    sooner = event.get("sooner")
    then = f"moved, sooner on {sooner}" if sooner else later
    return f"{_label(event)}: {then}; it waited, {event.get('reason', '')}"


def _failure(event: Event) -> str:
    where = [event[key] for key in ("pool", "node") if event.get(key)]
    words = printable(event.get("words", ""), _WORDS)
    cause = event.get("cause", "unknown") + f" ({words})" * bool(words)
    who = ", ".join(filter(None, [_label(event), " on ".join(where)]))
    return f"{who}: failed, cause {cause}; {event.get('next', '')}"
