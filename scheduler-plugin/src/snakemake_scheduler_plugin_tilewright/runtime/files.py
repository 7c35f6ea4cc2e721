"""Text files written whole or not at all, and files of one user alone."""

import contextlib
import errno
import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import ConfigDict, Field, InstanceOf

from ..errors import ForeignError

# What values of JSON files that may be damaged have to be: numbers of a size that something has. A
# text may hold a file name that is not UTF-8.
Text = InstanceOf[str]
Count = Annotated[int, Field(ge=0, le=10**9)]
#: Seconds, such as a clock of this age shows.
Time = Annotated[float, Field(ge=-1e10, le=1e10)]
STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def write_text_atomic(path: Path, text: str, mode: int | None = None) -> None:
    """Write a text file that others may read or write meanwhile: whole, or not at all (OSError)."""
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # a file name that is not UTF-8 is written as its escape
        partial.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())  # else power loss may leave it empty
        if mode is not None:
            partial.chmod(mode)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def open_private(path: Path, flags: int) -> Iterator[int]:
    """Open a file or folder that is this user's alone, and close it to others.

    Raises
    ------
    ForeignError
        It cannot be opened, is a link, a pipe or another user's, or others may have changed what is
        to be read.
    """
    try:
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        why = "is a link" if path.is_symlink() else f"cannot be opened ({error.strerror})"
        raise ForeignError(path, why) from None
    try:
        status = os.fstat(opened)
        is_folder = stat.S_ISDIR(status.st_mode)
        if status.st_uid != os.geteuid():
            raise ForeignError(path, f"belongs to user {status.st_uid}, not to you")
        if not is_folder and not stat.S_ISREG(status.st_mode):
            raise ForeignError(path, "is neither a file nor a folder")
        if flags == os.O_RDONLY and status.st_mode & 0o022:
            raise ForeignError(path, "may be changed by others")
        os.fchmod(opened, 0o700 if is_folder else 0o600)
        yield opened
    finally:
        os.close(opened)


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are absent, for this user alone; errors as above."""
    if not folder.parent.exists():
        make_private(folder.parent)
    with contextlib.suppress(OSError):  # else it cannot be opened
        folder.mkdir(mode=0o700)
    with open_private(folder, os.O_DIRECTORY):
        pass


def write_private(path: Path, text: str) -> None:
    """Write a file of this user alone, whatever the umask; errors as above."""
    make_private(path.parent)
    write_text_atomic(path, text, mode=0o600)


def read_private(path: Path) -> Any:
    """Return the JSON of a file that nobody else can have written; errors as above, ValueError."""
    with open_private(path, os.O_RDONLY) as opened, os.fdopen(opened, closefd=False) as stream:
        try:
            return json.load(stream)
        except RecursionError:
            raise ValueError(f"{path} is nested too deep") from None


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it; what is none is an OSError: a pipe may never say anything."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return path.open("rb")
