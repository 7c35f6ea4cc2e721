"""JSON lines: appended by several processes, and read although some are damaged."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .files import open_regular
from .words import count

#: Of a line, of which each part beyond is a line of its own.
_LONGEST_B = 2**24


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


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return value


class JsonLines(list[dict[str, Any]]):
    """The whole lines of a file; ``note`` says how many are damaged, or that none can be read."""

    note = ""


def read_json_lines(path: Path, read: Callable[[Any], dict[str, Any]] = _object) -> JsonLines:
    """Return the objects of a file of JSON lines, none where there is no file.

    A line that a crash cut short is damaged, and so is one that cannot be ``read``.
    """
    found, damaged = JsonLines(), 0
    try:
        with open_regular(path) as stream:
            parts = iter(lambda: stream.readline(_LONGEST_B), b"")
            for line in filter(bytes.strip, parts):
                try:
                    found.append(read(json.loads(line.decode(errors="replace"))))
                except (ValueError, RecursionError):
                    damaged += 1
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return found
    except (OSError, ValueError) as error:
        found.note = f"{path} cannot be read ({getattr(error, 'strerror', error)}) and is ignored"
    if damaged:
        lines = f"{count(damaged, 'damaged line')} of {path}"
        found.note = f"{lines} {'is' if damaged == 1 else 'are'} ignored"
    return found
