"""Files written whole or not at all, JSON lines, and tables as text."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from snakemake_scheduler_plugin_tilewright.runtime.records import EVENT, Check, fits
from snakemake_scheduler_plugin_tilewright.runtime.words import count


@contextlib.contextmanager
def whole_or_nothing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Give a temporary sibling of ``path`` that becomes ``path`` if the block succeeds.

    Works for a file and for a folder, whose parents are made. After an error nothing is left
    behind, and whatever was at ``path`` before is still there.

    Parameters
    ----------
    shared : bool
        Others may write the same file at this moment: the sibling has a name of its own. Else a
        sibling that a killed process left is removed.
    """
    mark = f".{os.getpid()}-{threading.get_ident()}" if shared else ""
    partial = path.with_name(f".{path.name}{mark}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove(partial)
    try:
        yield partial
        # A folder cannot replace one that is not empty, so the old one leaves first.
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        partial.replace(path)
    finally:
        _remove(partial)


@contextlib.contextmanager
def scratch_beside(path: Path) -> Iterator[Path]:
    """Give an empty folder beside ``path`` that is gone after the block.

    One that a killed process left there is emptied.
    """
    folder = path.with_name(f".{path.name}.scratch")
    _remove(folder)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file that others may read or write meanwhile: whole, or not at all.

    Lines end as they do in ``text``.

    Raises
    ------
    OSError
        It could not be written; what was there is still there.
    """
    with whole_or_nothing(path, shared=True) as partial:
        # what a name holds that is not UTF-8 is written as its escape
        partial.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


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
    path: Path, checks: Mapping[str, Check] = {}, needed: Iterable[str] = ()
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
                if fits(entry, checks, needed):
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


def read_ledger(path: Path) -> JsonLines:
    """Return the events of a ledger."""
    return read_json_lines(path, EVENT, ("event", "time_s"))


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table as CSV: what a row lacks is empty, what is no column an error."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
