"""The ledger: one JSON line for every decision of a run and for how each job ended."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Ledger:
    """Appends events to a file of JSON lines; every run of an experiment goes to the same file.

    Attributes
    ----------
    path : Path
    clock : callable
        Seconds since the epoch.
    """

    path: Path
    clock: Callable[[], float] = time.time
    _said: dict[str, str] = field(default_factory=dict)

    def write(self, event: str, **values: Any) -> None:
        """Append one event; values that are None are left out."""
        entry = {"time_s": round(self.clock(), 3), "event": event}
        entry |= {key: value for key, value in values.items() if value is not None}
        with contextlib.suppress(OSError):  # a full disk must not end the run
            self._append(entry)

    def _append(self, entry: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as stream:
            # a crash may have cut the last line: this one must not be lost with it
            if stream.seek(0, 2) and (stream.seek(-1, 2), stream.read(1))[1] != b"\n":
                stream.write(b"\n")
            stream.write(json.dumps(entry).encode() + b"\n")

    def write_change(self, event: str, about: str, **values: Any) -> bool:
        """Append an event only where it differs from the last one about the same thing."""
        said = json.dumps([event, values], sort_keys=True, default=str)
        if self._said.get(about) == said:
            return False
        self._said[about] = said
        self.write(event, about=about, **values)
        return True


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a ledger; a last line cut short by a crash is left out."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and "event" in entry and "time_s" in entry:
                yield entry
