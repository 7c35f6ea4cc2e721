"""JSON lines: appended by several processes, and read although some are damaged."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from tilewright.runtime.text import count

ValueCheck = Callable[[Any], bool]


def append_json(path: Path, entry: Mapping[str, Any]) -> None:
    """Append one JSON line in a single write, so that lines of several processes do not mix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(entry).encode() + b"\n"
    with path.open("a+b", buffering=0) as stream:
        end = stream.seek(0, os.SEEK_END)
        stream.seek(max(end - 1, 0))
        # a crash may have cut the last line: this one must not be lost with it
        cut = end > 0 and stream.read(1) != b"\n"
        stream.write(b"\n" * cut + line)


class JsonLines(list[dict[str, Any]]):
    """The whole lines of a file; ``note`` says how many are damaged, or that none can be read."""

    note = ""


def read_json_lines(
    path: Path, checks: Mapping[str, ValueCheck] = {}, needed: Iterable[str] = ()
) -> JsonLines:
    """Return the objects of a file of JSON lines, none where there is no file.

    A line that a crash cut short is damaged, and so is one without what is ``needed`` or with a
    value that fails its check.
    """
    found, damaged = JsonLines(), 0
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            for line in filter(str.strip, stream):
                try:
                    entry = json.loads(line)
                except (ValueError, RecursionError):
                    entry = None
                if _fits(entry, checks, needed):
                    found.append(entry)
                else:
                    damaged += 1
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return found
    except (OSError, ValueError) as error:
        found.note = f"{path} cannot be read ({getattr(error, 'strerror', error)}) and is ignored"
    if damaged:
        lines = f"{count(damaged, 'damaged line')} of {path}"
        found.note = f"{lines} {'is' if damaged == 1 else 'are'} ignored"
    return found


def _fits(entry: Any, checks: Mapping[str, ValueCheck], needed: Iterable[str]) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() >= set(needed)
        and all(check(entry[key]) for key, check in checks.items() if key in entry)
    )


def is_text(value: Any) -> bool:
    """Return whether a value is a text."""
    return isinstance(value, str)


def is_number(value: Any, most: float = 1e18) -> bool:
    """Return whether a value is a number of a size that something has."""
    return isinstance(value, int | float) and type(value) is not bool and -most <= value <= most


def is_moment(value: Any) -> bool:
    """Return whether a value is a time as ISO 8601 writes it."""
    try:
        return is_number(datetime.fromisoformat(value).timestamp(), 1e10)
    except (TypeError, ValueError, OverflowError, OSError):
        return False
