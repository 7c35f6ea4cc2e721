"""Reading files of results: JSON, and one error for damaged files."""

import contextlib
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import ResultFileError
from tilewright.io.formats.common import DAMAGE_ERRORS


@contextlib.contextmanager
def result_file_errors(path: str | Path, what: str) -> Iterator[None]:
    """Raise what unexpected content causes as ResultFileError that names the file.

    ``what`` the file should be follows "is no".

    Raises
    ------
    ResultFileError
        Its content is not as expected.
    """
    try:
        yield
    except OSError:
        raise  # absent or not readable: its content is unknown
    except (*DAMAGE_ERRORS, zipfile.BadZipFile, zlib.error) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise ResultFileError(
            f"{path} is no {what} ({reason}); delete it to have it made again"
        ) from error


def checked_rows(rows: Iterable[Any], of: str, keys: Sequence[str]) -> list[Any]:
    """Return the rows of a file, which must all have ``keys``; ``of`` names what they belong to.

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
