"""Files of results that are read again: JSON, and one error for those that are damaged."""

from __future__ import annotations

import contextlib
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import ResultFileError
from tilewright.io.conventions.common import DAMAGED


@contextlib.contextmanager
def reading(path: str | Path, what: str) -> Iterator[None]:
    """Name the file in what its content raises; ``what`` it should be follows "is no".

    Raises
    ------
    ResultFileError
        Its content is not as expected.
    """
    try:
        yield
    except OSError:
        raise  # absent, or not to be opened: its content is not known
    except (*DAMAGED, zipfile.BadZipFile, zlib.error) as error:
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise ResultFileError(
            f"{path} is no {what} ({why}); delete it to have it made again"
        ) from error


def checked_rows(rows: Iterable[Any], of: str, keys: Sequence[str]) -> list[Any]:
    """Return the rows of a file, which all have some keys; ``of`` says what they are rows of.

    Raises
    ------
    ValueError
        A row lacks a key; the message names both.
    """
    rows = list(rows)
    for number, row in enumerate(rows, 1):
        for key in keys:
            if key not in row:
                raise ValueError(f"row {number} of {of} has no '{key}'")
    return rows


def read_json(path: str | Path) -> dict[str, Any]:
    """Return the object that a file of JSON holds."""
    content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return content
