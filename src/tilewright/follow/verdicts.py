"""New verdicts of the quality checks: recorded, and sent to a command."""

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

from tilewright.config.experiment import Experiment
from tilewright.config.layout import Layout
from tilewright.config.rules import STAGES
from tilewright.errors import ConfigError
from tilewright.quality.evaluate import apply_thresholds, read_qc
from tilewright.quality.results import QcResult
from tilewright.runtime.json_lines import JsonLines, append_json, is_moment, read_json_lines

#: Time limit of the notifying command, and delay of another attempt after it failed.
_NOTIFY_S, _RETRY_S = 60, 600
_KEYS = ("sample", "cycle", "channel", "stage", "metric")


@dataclass(frozen=True)
class Notice:
    """A verdict that is new or changed, or a message about a cycle."""

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


def current_items(experiment: Experiment, layout: Layout) -> Iterator[QcResult]:
    """Yield the quality items of an experiment so far, by its limits and names.

    From the files of the stages: they exist before the summary, and also where it is not made
    because another cycle failed.
    """
    for sample, cycle, stage in product(experiment.samples, experiment.cycles, STAGES):
        if stage == "deconvolve" and not experiment.settings.plane_of_deconvolved:
            continue
        path = Path(layout.qc(stage, "json").format(sample=sample, cycle=cycle))
        if path.is_file():
            quality = read_qc(path)
            yield from apply_thresholds(
                quality, experiment.thresholds(), experiment.channel_table()
            ).items


class Notifier:
    """Records what is new in the results folder, and calls a command.

    Parameters
    ----------
    record : Path
        File of JSON lines; its items are not new.
    command : str
        Called for each cycle with its messages as last argument; empty for none.

    Raises
    ------
    ConfigError
        The command does not exist.
    """

    def __init__(self, record: Path, command: str = "") -> None:
        self._record = record
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise ConfigError(
                f"--notify is {command!r}, which is no shell command: {error}"
            ) from None
        if self._command and shutil.which(self._command[0]) is None:
            raise ConfigError(f"--notify is {command!r}, which does not exist; give its full path")
        self._known = {
            tuple(line.get(key) for key in _KEYS): (line.get("verdict"), line.get("text"))
            for line in read_record(record)
            if "metric" in line
        }
        self._pending: list[Notice] = []
        self._retry_s = 0.0

    def record_verdicts(self, items: Iterable[QcResult]) -> list[Notice]:
        """Record and return new and changed verdicts; a pass only after another verdict."""
        notices = []
        for item in items:
            key = tuple(getattr(item, name) for name in _KEYS)
            current = item.verdict, item.sentence
            before = self._known.get(key, ("pass", ""))
            if before == current or before[0] == item.verdict == "pass":
                continue
            self._known[key] = current
            at = dict(zip(_KEYS, key, strict=True))
            self._write(
                {**at, "marker": item.marker, "verdict": item.verdict, "text": item.sentence}
            )
            where = f"{item.sample} cycle {item.cycle}"
            name = item.marker or item.channel
            text = f"{where}{f', {name}' * bool(name)}, {item.stage}: {item.sentence}"
            notices.append(Notice(item.verdict, text, item.sample, item.cycle))
        return notices

    def record_problem(self, cycle: int | None, text: str, verdict: str = "fail") -> Notice:
        """Record that a cycle waits or cannot be processed."""
        self._write({"cycle": cycle, "verdict": verdict, "text": text})
        return Notice(verdict, text, "", cycle)

    def _write(self, entry: dict[str, Any]) -> None:
        append_json(self._record, {"time": now(), **entry})

    def notify(self, notices: Iterable[Notice], *, last: bool = False) -> Iterator[str]:
        """Call the command for each cycle that warns or fails; yield errors of the command.

        After an error the notices are sent again with the next ones, after some minutes, and at
        the ``last``.
        """
        new = [notice for notice in notices if notice.verdict != "pass"]
        if not self._command or not (new or last or time.monotonic() >= self._retry_s):
            return
        by_cycle: dict[tuple[str, int | None], list[Notice]] = {}
        for notice in self._pending + new:
            by_cycle.setdefault((notice.sample, notice.cycle), []).append(notice)
        self._pending = []
        for of_cycle in by_cycle.values():
            lines = "\n".join(f"{notice.verdict}: {notice.text}" for notice in of_cycle)
            try:
                subprocess.run(
                    [*self._command, lines],
                    stdin=subprocess.DEVNULL,
                    timeout=_NOTIFY_S,
                    check=True,
                )
            except (OSError, subprocess.SubprocessError) as error:
                self._pending += of_cycle
                self._retry_s = time.monotonic() + _RETRY_S
                then = f"see {self._record}" if last else "retrying later"
                yield f"--notify failed: {error}; {then}"
