"""From the lines of a ledger to its runs.

The ledger is written by placement, which knows nothing of the report, nor this of placement.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from snakemake_scheduler_plugin_tilewright.report.idle import idle_slot_s
from snakemake_scheduler_plugin_tilewright.report.runs import ClusterRun, JobBar, PoolBand, Remark
from snakemake_scheduler_plugin_tilewright.runtime.files import read_ledger as read_events
from snakemake_scheduler_plugin_tilewright.runtime.words import printable

#: Causes of the failure of a job that the workflow itself took back, to place it again.
_BY_MOVE = ("cancelled", "unknown")
_CAUSES = {
    "memory": "ran out of memory",
    "time": "ran out of time",
    "node": "its node failed",
    "cancelled": "was cancelled",
    "device": "the GPU did not work",
    "error": "ended with an error",
    "budget": "the budget of its account could not end it",
    "preempted": "was preempted",
    "refused": "was refused",
    "impossible": "can run nowhere",
    "unknown": "ended for a reason that is not known",
}
_WORDS = 160

__all__ = ["cluster_runs", "job_label", "read_events"]
Event = Mapping[str, Any]


def cluster_runs(events: Iterable[Event]) -> list[ClusterRun]:
    """Return the runs of a ledger; each starts with an event ``run``."""
    groups: list[list[Event]] = []
    for event in events:
        if event["event"] == "run" or not groups:
            groups.append([])
        groups[-1].append(event)
    return [_run(number, group) for number, group in enumerate(groups, 1)]


def job_label(job: str, rule: str) -> str:
    """Return a job's name for readers.

    >>> job_label("rule_stitch_wildcards_tonsil_2_1", "stitch")
    'stitch tonsil_2_1'
    """
    return re.sub(r"^rule_", "", job).replace("_wildcards_", " ", 1) if job else rule


def _run(number: int, events: Sequence[Event]) -> ClusterRun:
    head = events[0] if events[0]["event"] == "run" else {}
    pools = {
        name: PoolBand(name, str(account), str(kind), int(slots))
        for name, (account, kind, slots) in head.get("pools", {}).items()
    }
    placed: dict[str, Event] = {}
    moved: set[str] = set()
    bars: list[JobBar] = []
    remarks: list[Remark] = []
    causes: Counter[str] = Counter()
    for event in events:
        name, job = event["event"], str(event.get("job", ""))
        if name == "place":
            placed[job] = event
        elif name == "withdraw":
            placed.pop(job, None)
        elif name in ("done", "fail"):
            pool = event.get("pool")
            if pool and pool not in pools:
                pools[pool] = PoolBand(
                    pool, event.get("account", pool), event.get("kind", "cpu"), 0
                )
            bars += _bars(event, placed.pop(job, {}))
            was_moved = job in moved and event.get("cause") in _BY_MOVE
            moved.discard(job)
            if was_moved:  # the event before said so
                continue
            if name == "fail":
                causes[event.get("cause", "unknown")] += 1
        elif name == "move":
            moved.add(job)
        remarks += _remarks(event)
    used = {bar.pool for bar in bars}
    # none where the ledger does not say
    kinds = {str(kind) for event in events for kind in event.get("kinds") or ()}
    pools = {name: p for name, p in pools.items() if name in used or not kinds or p.kind in kinds}
    bars.sort(key=lambda bar: (bar.start_s, bar.end_s, bar.job))
    times = [event["time_s"] for event in events]
    unfinished = (job_label(job, event.get("rule", "")) for job, event in placed.items())
    return ClusterRun(
        number, min([times[0], *(bar.start_s for bar in bars)]), max(times), pools, tuple(bars),
        tuple(remarks), dict(causes), tuple(unfinished), head.get("left_out") or {},
        idle_slot_s(events, pools, bars),
    )  # fmt: skip


def _bars(event: Event, place: Event) -> list[JobBar]:
    """Return the bar of a job that ended, none where it never ran."""
    start_s, end_s = event.get("start_s"), event.get("end_s", math.inf)
    failed = event["event"] == "fail"
    if start_s is None or not event.get("pool"):
        return []
    # squeue's end of a job that still ran is its limit
    end_s = min(event["time_s"], end_s)
    if failed and end_s <= start_s:
        return []
    return [
        JobBar(
            str(event.get("job", "")), str(event.get("rule", "")), event["pool"], start_s,
            max(start_s, end_s), event.get("sent_s", place.get("time_s")),
            failed, int(event.get("members", 1)),
        )
    ]  # fmt: skip


def _remarks(event: Event) -> list[Remark]:
    label = job_label(str(event.get("job", "")), str(event.get("rule", "")))
    why = str(event.get("reason", ""))
    what: Literal["move", "fail", "hold"] = "hold"
    match event["event"]:
        case "move":
            what = "move"
            later = "placed again where there is room" if event.get("later") else "ended"
            sooner = event.get("sooner")
            then = f"placed again, sooner on {sooner}" if sooner else later
            texts = [f"{label}: {then}; it waited, {why}"]
        case "pend":
            texts = [f"{label} pends: {event.get('words')} (Slurm: {why})"]
        case "fail":
            what = "fail"
            cause = _CAUSES.get(event.get("cause", ""), str(event.get("cause")))
            words = printable(event.get("words", ""), _WORDS)
            where = " on ".join(str(event[key]) for key in ("pool", "node") if event.get(key))
            said = f" ({words})" if words else ""
            texts = [f"{label}{', ' * bool(where)}{where}: {cause}{said}; {event.get('next', '')}"]
        case "hold":
            texts = [f"nothing was started: {why}"]
        case "forgive":
            nodes = ", ".join(map(str, event.get("nodes", [])))
            texts = [f"nothing else was left, so nodes that failed may be used again: {nodes}"]
        case "cancel":
            jobs = ", ".join(map(str, event.get("slurm_ids", [])))
            texts = [f"jobs of Slurm were cancelled ({why}): {jobs}"]
        case "greedy":
            texts = [f"a round was not planned, jobs started in the order they came: {why}"]
        case "notes":
            texts = [str(note) for note in event.get("notes", [])]
        case "room":
            closed = event.get("closed", {})
            # a number would make the same reason a new one each time
            texts = [
                f"{pool} was closed: {re.sub(r'(your )?job [0-9]+ ', 'a job ', str(reason))}"
                for pool, reason in closed.items()
            ]
        case _:
            texts = []
    return [Remark(event["time_s"], what, text) for text in texts]
