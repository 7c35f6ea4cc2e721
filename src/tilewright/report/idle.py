"""Why slots idled while jobs were ready, from the events of one run (pure)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.report.gantt import JobBar, PoolBand

Event = Mapping[str, Any]

ON_THE_WAY = "the job for it was chosen and had not started yet"
NO_REASON = "the ledger does not say why"
HELD = "others held it, or a limit did"
_ENDS = ("done", "fail", "move", "withdraw")


def idle_slot_s(
    events: Sequence[Event], pools: Mapping[str, PoolBand], bars: Sequence[JobBar]
) -> dict[str, float]:
    """Return slot-seconds that idled while jobs were ready, by reason, the longest first.

    Parameters
    ----------
    events : sequence of mapping
        Those of one run, in the order of time.
    pools : mapping
        Name to pool, with the slots counted when the run began.
    bars : sequence of JobBar
        The jobs that ran.
    """
    ways = _ways(events, bars)
    steps = sorted(
        {event["time_s"] for event in events}
        | {time_s for bar in bars for time_s in (bar.start_s, bar.end_s)}
        | {time_s for spans in ways.values() for span in spans for time_s in span}
    )
    said = iter([*(e for e in events if e["event"] in ("wait", "room", "hold")), None])
    coming = next(said)
    wait: Event = {}
    closed: Mapping[str, str] = {}
    found: dict[str, float] = {}
    for start_s, end_s in itertools.pairwise(steps):
        while coming is not None and coming["time_s"] <= start_s:
            if coming["event"] == "room":
                closed = coming.get("closed", {})
            else:
                wait = coming
            coming = next(said)
        for pool in pools.values():
            running = sum(
                bar.pool == pool.name and not bar.small and bar.start_s <= start_s < bar.end_s
                for bar in bars
            )
            coming_up = sum(one <= start_s < other for one, other in ways.get(pool.name, ()))
            idle = max(0, pool.slots - running)
            for reason, slots in _reasons(pool, idle, coming_up, wait, closed):
                found[reason] = found.get(reason, 0.0) + slots * (end_s - start_s)
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return {reason: seconds for reason, seconds in ordered if seconds >= 1}


def _ways(events: Sequence[Event], bars: Sequence[JobBar]) -> dict[str, list[tuple[float, float]]]:
    """Return for each pool when jobs were on their way to its slots: from choice to start."""
    starts: dict[str, list[float]] = {}
    for bar in bars:
        starts.setdefault(bar.job, []).append(bar.start_s)
    placed: dict[str, Event] = {}
    ways: dict[str, list[tuple[float, float]]] = {}

    def close(job: str, until_s: float) -> None:
        place = placed.pop(job)
        begun = [s for s in starts.get(job, ()) if place["time_s"] <= s <= until_s]
        ways.setdefault(str(place["pool"]), []).append((place["time_s"], min([*begun, until_s])))

    for event in events:
        job = str(event.get("job", ""))
        if event["event"] == "place" and not event.get("small"):
            placed[job] = event
        elif event["event"] in _ENDS and job in placed:
            close(job, event["time_s"])
    for job in list(placed):
        close(job, events[-1]["time_s"])
    return ways


def _reasons(
    pool: PoolBand, idle: int, coming_up: int, wait: Event, closed: Mapping[str, str]
) -> list[tuple[str, int]]:
    """Return why slots of a pool are idle at one time, and how many for each reason."""
    on_the_way = min(idle, coming_up)
    found, idle = [(ON_THE_WAY, on_the_way)], idle - on_the_way
    if wait.get("event") == "hold":
        return [*found, (f"nothing was started: {wait.get('reason', '')}", idle)]
    if not wait.get("ready"):
        return found
    why = closed.get(f"{pool.account} {pool.kind}")
    if why is not None:
        return [*found, (f"{pool.name}: {why}", idle)]
    free = min(idle, int(wait.get("free", {}).get(pool.name, 0)))
    return [*found, (_first(wait), free), (f"{pool.name}: {HELD}", idle - free)]


def _first(wait: Event) -> str:
    """Return the reason that most ready jobs waited for."""
    why: Mapping[str, int] = wait.get("why", {})
    return max(why, key=lambda reason: (why[reason], reason), default=NO_REASON)
