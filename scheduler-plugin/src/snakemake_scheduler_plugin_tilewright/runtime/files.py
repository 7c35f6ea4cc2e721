"""Text files written whole or not at all, and JSON lines of several processes; damage is noted."""

import errno
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import ConfigDict, Field, InstanceOf

from .words import count

# What values of JSON files that may be damaged have to be: numbers of a size that something has. A
# text may hold a file name that is not UTF-8.
Text = InstanceOf[str]
Count = Annotated[int, Field(ge=0, le=10**9)]
#: Seconds, such as a clock of this age shows.
Time = Annotated[float, Field(ge=-1e10, le=1e10)]
STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def write_text_atomic(path: Path, text: str) -> None:
    """Write a text file that others may read or write meanwhile: whole, or not at all (OSError)."""
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # a file name that is not UTF-8 is written as its escape
        partial.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())  # else power loss may leave it empty
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it; what is none is an OSError: a pipe may never say anything."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return path.open("rb")


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
