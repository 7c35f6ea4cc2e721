"""The ledger: one JSON line for every decision of a run and for how each job ended."""

import contextlib
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Strict, create_model

from .files import STRICT, Count, JsonLines, Text, Time, append_json, read_json_lines
from .words import count, printable

#: Where decisions are written, below the working directory, unless the workflow says otherwise.
LEDGER = Path(".snakemake/tilewright/ledger.jsonl")
#: The file next to it that says how far the run is; there is one in the working directory always.
STATE = "state.json"

_Line = Annotated[Text, AfterValidator(printable)]
_Pool = Annotated[tuple[_Line, _Line, Count], Strict(False)]  # JSON has it as a list
_VALUES: dict[str, Any] = {
    **dict.fromkeys(("start_s", "end_s", "sent_s"), (Time, 0.0)),
    **dict.fromkeys(("job", "rule", "pool", "account", "kind", "node", "cause"), (_Line, "")),
    **dict.fromkeys(("words", "reason", "next", "log", "sooner"), (_Line, "")),
    "kinds": (list[Any], []),
    "pools": (dict[_Line, _Pool], {}),
}

#: The values of a ledger's events that are read again; other ones may be anything.
_EVENT = create_model(
    "Event", __config__={**STRICT, "extra": "allow"}, event=_Line, time_s=Time, **_VALUES
)


@dataclass
class Ledger:
    """Appends events to a file of JSON lines; every run of an experiment goes to the same file."""

    path: Path

    def write(self, event: str, **values: Any) -> None:
        """Append one event; values that are None are left out."""
        entry = {"time_s": round(time.time(), 3), "event": event}
        entry |= {key: value for key, value in values.items() if value is not None}
        with contextlib.suppress(OSError):  # a full disk must not end the run
            append_json(self.path, entry)


def read_ledger(path: Path) -> JsonLines:
    """Return the events of a ledger; the words in them are printable."""
    return read_json_lines(
        path, lambda one: _EVENT.model_validate(one).model_dump(exclude_unset=True)
    )


def runs_of(events: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the events of each run of a ledger; a run starts with an event ``run``."""
    found: list[list[Mapping[str, Any]]] = []
    for event in events:
        if event["event"] == "run" or not found:
            found.append([])
        found[-1].append(event)
    return found


def summary_lines(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how the jobs of one run ended, from its events (pure).

    Parameters
    ----------
    events : sequence of mapping
        From the run's start on.
    """
    ended = [event for event in events if event["event"] == "done"]
    done = Counter(event.get("pool", "a pool that is not known") for event in ended)
    moved = sum(event["event"] == "move" for event in events)
    failed = failure_lines(events)
    if not done and not failed:
        return []
    pools = ", ".join(f"{pool} {n}" for pool, n in sorted(done.items()))
    total = f"placement: {count(done.total(), 'job')} done" + f" ({pools})" * bool(pools)
    return [total + f", {moved} moved" * (moved > 0), *failed]


def failure_lines(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each job of a run that failed: where, why, and its log."""
    failed: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event["event"] == "fail":
            failed[event.get("job", "a job")] = event
        elif event["event"] == "done":
            failed.pop(event.get("job", "a job"), None)
    lines = []
    for name, event in sorted(failed.items()):
        where = event.get("node") or event.get("pool") or "no place"
        job = f", Slurm job {event['slurm_id']}" if "slurm_id" in event else ""
        log = f"; log: {event['log']}" if "log" in event else ""
        why = ", ".join(event[key] for key in ("cause", "words") if key in event)
        lines.append(printable(f"failed: {name} on {where}{job}: {why or 'not known'}{log}"))
    return lines


def resume_line(argv: Sequence[str]) -> str:
    """Return the command that resumes a run."""
    return f"resume with: {shlex.join(['snakemake', *argv[1:]])}"
