"""Files that others may read meanwhile: written whole or not at all, and JSON line by line."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """Write a small file that others may read meanwhile: whole, or not at all.

    Raises
    ------
    OSError
        It could not be written; what was there is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def append_json(path: Path, entry: Mapping[str, Any]) -> None:
    """Append one object to a file of JSON lines.

    Raises
    ------
    OSError
        It could not be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as stream:
        # a crash may have cut the last line: this one must not be lost with it
        if stream.seek(0, 2) and (stream.seek(-1, 2), stream.read(1))[1] != b"\n":
            stream.write(b"\n")
        stream.write(json.dumps(entry).encode() + b"\n")


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; a line cut short by a crash is left out."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                yield entry
