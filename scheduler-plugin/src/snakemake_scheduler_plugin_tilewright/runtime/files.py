"""Text files written whole or not at all, and what damaged ones may hold."""

import errno
import os
import threading
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import ConfigDict, Field, InstanceOf

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
