"""What the quality checks say that was not told yet."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from snakemake_scheduler_plugin_tilewright.runtime.files import (
    JsonLines,
    append_json,
    read_json_lines,
)
from snakemake_scheduler_plugin_tilewright.runtime.records import is_moment
from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.rules import STAGES
from tilewright.errors import ConfigError
from tilewright.report.judge import judge_again, read_quality
from tilewright.report.verdict import Item

#: A command that notifies may take so long, and is called again so long after it failed.
_NOTIFY_S, _AGAIN_S = 60, 600
_KEYS = ("sample", "cycle", "channel", "stage", "metric")


@dataclass(frozen=True)
class Told:
    """A verdict that is new or changed, or what is said of a cycle as a whole."""

    verdict: str
    text: str
    sample: str
    cycle: int | None


def read_record(path: Path) -> JsonLines:
    """Return the lines of the record of a results folder."""
    token = dict.fromkeys((*_KEYS, "run"), lambda value: isinstance(value, str | int | None))
    return read_json_lines(path, {"time": is_moment, **token}, ("time",))


def now() -> str:
    """Return the time for a line of the record."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def judged_items(experiment: Experiment, layout: Layout) -> Iterator[Item]:
    """Yield what is judged of the cycles of an experiment so far, by its limits and names.

    From the files of the stages: they are there before the summary, and also where it is not made
    because another cycle failed.
    """
    for sample, cycle, stage in product(experiment.samples, experiment.cycles, STAGES):
        if stage == "deconvolve" and not experiment.settings.plane_of_deconvolved:
            continue
        path = Path(layout.qc(stage, "json").format(sample=sample, cycle=cycle))
        if path.is_file():
            found = read_quality(path)
            yield from judge_again(found, experiment.thresholds(), experiment.channel_table()).items


class Teller:
    """Says what is new: a line in the record of the results folder, and a command.

    Parameters
    ----------
    record : Path
        File of JSON lines; what it holds was told.
    command : str
        Called for each cycle with its lines as last argument; empty for none.

    Raises
    ------
    ConfigError
        There is no such command.
    """

    def __init__(self, record: Path, command: str = "") -> None:
        self._record = record
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"--notify is {command!r}, which no shell reads: {error}") from None
        if self._command and shutil.which(self._command[0]) is None:
            raise ConfigError(f"--notify is {command!r}, which is no command; give its whole path")
        self._known = {
            tuple(line.get(key) for key in _KEYS): (line.get("verdict"), line.get("text"))
            for line in read_record(record)
            if "metric" in line
        }
        self._untold: list[Told] = []
        self._again_s = 0.0

    def verdicts(self, items: Iterable[Item]) -> list[Told]:
        """Record the verdicts that are not as they were told; a pass only where it was none."""
        told = []
        for item in items:
            key = tuple(getattr(item, name) for name in _KEYS)
            said = item.verdict, item.sentence
            before = self._known.get(key, ("pass", ""))
            if before == said or before[0] == item.verdict == "pass":
                continue
            self._known[key] = said
            at = dict(zip(_KEYS, key, strict=True))
            self._write({**at, "marker": item.marker, "verdict": said[0], "text": said[1]})
            where = f"{item.sample} cycle {item.cycle}"
            name = item.marker or item.channel
            text = f"{where}{f', {name}' * bool(name)}, {item.stage}: {item.sentence}"
            told.append(Told(item.verdict, text, item.sample, item.cycle))
        return told

    def trouble(self, cycle: int | None, text: str, verdict: str = "fail") -> Told:
        """Record what is no verdict of a check: a cycle that waits, or cannot be processed."""
        self._write({"cycle": cycle, "verdict": verdict, "text": text})
        return Told(verdict, text, "", cycle)

    def _write(self, entry: dict[str, Any]) -> None:
        append_json(self._record, {"time": now(), **entry})

    def notify(self, told: Iterable[Told], *, last: bool = False) -> Iterator[str]:
        """Call the command for each cycle that warns or fails; yield what went wrong with it.

        What it could not tell is told again with what comes next, when some minutes have passed,
        and at the ``last``.
        """
        news = [one for one in told if one.verdict != "pass"]
        if not self._command or not (news or last or time.monotonic() >= self._again_s):
            return
        by_cycle: dict[tuple[str, int | None], list[Told]] = {}
        for one in self._untold + news:
            by_cycle.setdefault((one.sample, one.cycle), []).append(one)
        self._untold = []
        for ones in by_cycle.values():
            lines = "\n".join(f"{one.verdict}: {one.text}" for one in ones)
            try:
                subprocess.run(
                    [*self._command, lines],
                    stdin=subprocess.DEVNULL,
                    timeout=_NOTIFY_S,
                    check=True,
                )
            except (OSError, subprocess.SubprocessError) as error:
                self._untold += ones
                self._again_s = time.monotonic() + _AGAIN_S
                then = f"it is in {self._record}" if last else "it is tried again"
                yield f"--notify could not tell it: {error}; {then}"
