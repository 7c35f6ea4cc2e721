"""The last line of a failed job's log: its cause, for whoever decides about the next try."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from .files import open_regular

#: ``device``: its GPU did not work, and another node may do. ``error``: anything else.
LogCause = Literal["device", "error"]
#: A line of a log that is longer than this states no cause.
_TAIL_B = 2**20
_MARK = "tilewright-cause "


def cause_line(cause: LogCause, words: str) -> str:
    """Return the line that a job writes last.

    >>> cause_line("error", "ValueError: no nuclei")
    'tilewright-cause {"cause": "error", "words": "ValueError: no nuclei"}'
    """
    return _MARK + json.dumps({"cause": cause, "words": words})


def read_cause(line: str) -> tuple[LogCause, str]:
    """Return the cause and words of the last line of any log, an error where it states none.

    >>> read_cause(cause_line("device", "DeviceError: no CUDA device"))
    ('device', 'DeviceError: no CUDA device')
    >>> read_cause("ValueError: no nuclei")
    ('error', 'ValueError: no nuclei')
    """
    if line.startswith(_MARK):
        try:
            found = json.loads(line.removeprefix(_MARK))
            return ("device" if found["cause"] == "device" else "error"), str(found["words"])
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
    return "error", line


def last_line(log: str) -> str:
    """Return the last line of a job's log: of a traceback, the error."""
    try:
        with open_regular(Path(log)) as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL_B))
            text = stream.read(_TAIL_B).decode(errors="replace")
    except OSError:
        return ""
    return (text.strip().splitlines() or [""])[-1].strip()


def failed_since(folder: Path, since_s: float) -> Iterator[str]:
    """Yield the words of each log in a folder that states a cause, written since a time."""
    for path in sorted(folder.rglob("*.log")):
        line = last_line(str(path))
        if line.startswith(_MARK) and path.stat().st_mtime >= since_s:
            yield f"failed: {read_cause(line)[1]}; log: {path}"
