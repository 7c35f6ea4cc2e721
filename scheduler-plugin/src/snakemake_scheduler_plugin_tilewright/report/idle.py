"""Why slots idled while jobs were ready, from the events of one run (pure)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from snakemake_scheduler_plugin_tilewright.report.runs import JobBar, PoolBand

Event = Mapping[str, Any]

ON_THE_WAY = "the job for it was chosen and had not started yet"
NO_REASON = "the ledger does not say why"
HELD = "others held it, or a limit did"
#: Slurm cuts its times to whole seconds.
_CUT_S = 1.0
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
    found: dict[str, float] = {}
    running: Counter[str] = Counter()
    coming: Counter[str] = Counter()
    said = _Said()
    steps = sorted(_steps(events, bars), key=lambda step: step[0])
    for (start_s, what), (end_s, _) in itertools.pairwise([*steps, (events[-1]["time_s"], None)]):
        if isinstance(what, _Change):
            (running if what.runs else coming)[what.pool] += what.by
        elif what is not None:
            said = said.after(what)
        if end_s <= start_s:
            continue
        for pool in pools.values():
            idle = max(0, pool.slots - running[pool.name])
            for reason, slots in said.reasons(pool, idle, coming[pool.name]):
                found[reason] = found.get(reason, 0.0) + slots * (end_s - start_s)
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return {reason: seconds for reason, seconds in ordered if seconds >= 1}


class _Change(NamedTuple):
    """One job more, or one less, in the slots of a pool or on its way to them."""

    pool: str
    runs: bool
    by: int


def _steps(
    events: Sequence[Event], bars: Sequence[JobBar]
) -> Iterator[tuple[float, _Change | Event]]:
    """Yield what changes, and when."""
    spans = [(bar.pool, True, bar.start_s, bar.end_s) for bar in bars]
    spans += [(pool, False, start_s, end_s) for pool, start_s, end_s in _ways(events, bars)]
    for pool, runs, start_s, end_s in spans:
        yield start_s, _Change(pool, runs, 1)
        yield end_s, _Change(pool, runs, -1)
    for event in events:
        if event["event"] in ("wait", "room", "hold"):
            yield event["time_s"], event


def _ways(events: Sequence[Event], bars: Sequence[JobBar]) -> list[tuple[str, float, float]]:
    """Return when jobs were on their way to slots of a pool: from choice to start."""
    starts: dict[str, list[float]] = {}
    for bar in bars:
        starts.setdefault(bar.job, []).append(bar.start_s)
    placed: dict[str, Event] = {}
    ways: list[tuple[str, float, float]] = []

    def close(job: str, until_s: float) -> None:
        place = placed.pop(job)
        sent_s = place["time_s"]
        begun = [s for s in starts.get(job, ()) if sent_s - _CUT_S <= s <= until_s]
        ways.append((place.get("pool", ""), sent_s, max(sent_s, min([*begun, until_s]))))

    for event in events:
        job = str(event.get("job", ""))
        if event["event"] == "place":
            placed[job] = event
        elif event["event"] in _ENDS and job in placed:
            close(job, event["time_s"])
    for job in list(placed):
        close(job, events[-1]["time_s"])
    return ways


@dataclass(frozen=True)
class _Said:
    """What the ledger last said: who waits and why, what is closed, and that Slurm is silent."""

    wait: Event = field(default_factory=dict)
    closed: Mapping[str, str] = field(default_factory=dict)
    silent: str = ""

    def after(self, event: Event) -> _Said:
        """Return what is said from an event on; any word of Slurm's ends its silence."""
        match event["event"]:
            case "hold":
                return replace(
                    self, silent=event.get("reason", NO_REASON) if event.get("ready", 1) else ""
                )
            case "room":
                return replace(self, closed=event.get("closed", {}), silent="")
            case _:
                return replace(self, wait=event, silent="")

    def reasons(self, pool: PoolBand, idle: int, coming: int) -> list[tuple[str, int]]:
        """Return why slots of a pool are idle now, and how many for each reason."""
        on_the_way = min(idle, coming)
        found, idle = [(ON_THE_WAY, on_the_way)], idle - on_the_way
        if self.silent:
            return [*found, (f"nothing was started: {self.silent}", idle)]
        if not self.wait.get("ready"):
            return found
        why = self.closed.get(f"{pool.account} {pool.kind}")
        if why is not None:
            return [*found, (f"{pool.name}: {why}", idle)]
        free = min(idle, int(self.wait.get("free", {}).get(pool.name, 0)))
        return [*found, (self._first(), free), (f"{pool.name}: {HELD}", idle - free)]

    def _first(self) -> str:
        """Return the reason that most ready jobs waited for."""
        why: Mapping[str, int] = self.wait.get("why", {})
        return max(why, key=lambda reason: (why[reason], reason), default=NO_REASON)
