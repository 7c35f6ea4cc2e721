"""Text files written whole or not at all, and JSON lines."""

import contextlib
import errno
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import ConfigDict, Field, InstanceOf, TypeAdapter

from ..errors import ForeignError
from ..words import count

# What values of JSON files that may be damaged have to be: numbers of a size that something has. A
# text may hold a file name that is not UTF-8.
Text = InstanceOf[str]
Count = Annotated[int, Field(ge=0, le=10**9)]
#: Seconds, such as a clock of this age shows.
Time = Annotated[float, Field(ge=-1e10, le=1e10)]
STRICT = ConfigDict(strict=True, allow_inf_nan=False)
#: Of a line, of which each part beyond is a line of its own.
_LONGEST_B = 2**24
_OBJECT: TypeAdapter[Any] = TypeAdapter(dict[str, Any])


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
    path: Path, read: Callable[[Any], dict[str, Any]] = _OBJECT.validate_python
) -> JsonLines:
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
