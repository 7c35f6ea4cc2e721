"""How long a rule takes on a device: configured first, then learned from finished jobs."""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from tilewright.placement.jobs import Kind
from tilewright.slurm.query import write_whole

#: Finished jobs that are remembered for each rule and device.
_KEPT = 30


@dataclass
class Durations:
    """Factors from nominal seconds (one CPU job as configured) to seconds on a device.

    Attributes
    ----------
    path : Path or None
        Where factors are kept from run to run.
    slowdown : float
        How much longer a CPU job takes than a GPU job, until it is learned.
    slowdowns : mapping
        The same for single rules.
    """

    path: Path | None = None
    slowdown: float = 5.0
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    _seen: dict[str, list[float]] = field(default_factory=dict)
    _new: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seen = _read(self.path)

    def factor(self, rule: str, kind: Kind) -> float:
        """Return seconds on a device per nominal second: the median of the last jobs, if any.

        A device that never ran the rule is estimated from the one that did.
        """
        own, other = self._median(rule, kind), self._median(rule, "cpu" if kind == "gpu" else "gpu")
        if own is not None:
            return own
        slowdown = self.slowdowns.get(rule, self.slowdown)
        if other is not None:
            return other / slowdown if kind == "gpu" else other * slowdown
        return 1 / slowdown if kind == "gpu" else 1.0

    def learned(self, rule: str, kind: Kind) -> bool:
        """Return whether a job of the rule was seen to end on a device."""
        return bool(self._seen.get(f"{rule} {kind}"))

    def learn(self, rule: str, kind: Kind, nominal_s: float, took_s: float) -> None:
        """Remember a finished job."""
        if nominal_s > 0 and took_s > 0:
            for kept in (self._seen, self._new):
                values = kept.setdefault(f"{rule} {kind}", [])
                values.append(round(took_s / nominal_s, 6))
                del values[:-_KEPT]

    def save(self) -> None:
        """Add what was learned to the file; another run may have written it meanwhile."""
        if self.path is None or not self._new:
            return
        kept = _read(self.path)
        for key, values in self._new.items():
            kept[key] = [*kept.get(key, []), *values][-_KEPT:]
        with contextlib.suppress(OSError):  # a full home must not end the run
            write_whole(self.path, json.dumps(kept, indent=1, sort_keys=True))
            self._new.clear()

    def _median(self, rule: str, kind: Kind) -> float | None:
        values = self._seen.get(f"{rule} {kind}")
        return statistics.median(values) if values else None


def local_durations() -> Path:
    """Return the file of what was learned on this machine."""
    return platformdirs.user_cache_path("tilewright") / f"durations-{socket.gethostname()}.json"


def _read(path: Path | None) -> dict[str, list[float]]:
    """Return the factors of a file; one that is absent or damaged holds none."""
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {
        str(key): [float(v) for v in values if isinstance(v, int | float) and v > 0]
        for key, values in content.items()
        if isinstance(values, list)
    }
