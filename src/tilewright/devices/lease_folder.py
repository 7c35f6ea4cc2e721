"""The folder of the device leases of all runs of a user on one machine."""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from tilewright.errors import LeaseError
from tilewright.runtime.json_values import is_number, is_text
from tilewright.runtime.text import printable

_T = TypeVar("_T")

RUNTIMES = Path("/run/user")
TEMPORARY = Path("/tmp")
_FIX = "set TILEWRIGHT_LEASE_ROOT to a folder of your own on a local disk"


def lease_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user's leases on this machine; it is made where it is absent.

    ``TILEWRIGHT_LEASE_ROOT``, else ``tilewright`` in ``$XDG_RUNTIME_DIR`` or in
    ``/run/user/<uid>``, which is the same where a job of cron lacks the variable, else
    ``/tmp/tilewright-<uid>``. Never one by working directory or ``TMPDIR``, which may differ
    between jobs: two runs must see each other's leases.

    Raises
    ------
    LeaseError
        It is a link, not ours, open to others, or cannot be written.
    """
    root = _root(environ)
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
    except OSError as error:
        raise _unusable(root, f"cannot be made: {error.strerror or error}", _FIX) from error
    if not stat.S_ISDIR(status.st_mode):
        raise _unusable(root, "is a link or a file, not a folder", f"remove it, or {_FIX}")
    if status.st_uid != os.getuid():
        raise _unusable(root, f"belongs to user {status.st_uid}, not to you", _FIX)
    if status.st_mode & 0o777 != 0o700:  # a folder inherits setgid and sticky bits
        mode = f"has mode {stat.S_IMODE(status.st_mode):04o}, so that others can change it"
        raise _unusable(root, mode, f"run chmod 700 {root}")
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise _unusable(root, "cannot be written", _FIX)
    return root


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Lock the folder for some milliseconds; the kernel unlocks it when this process dies."""
    with contextlib.ExitStack() as opened:
        try:
            lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            opened.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:  # it was removed, or its file system, of a network, has no locks
            raise _unusable(root, f"has no locks: {error.strerror or error}", _FIX) from error
        yield


def read_records(path: Path, kind: type[_T]) -> list[_T]:
    """Return the record, or list of records, of texts and numbers in a file; none without one.

    Raises
    ------
    LeaseError
        It cannot be read, or one lacks a value; another version's may have more.
    """

    def record(entry: Any) -> _T:
        values = {each.name: entry[each.name] for each in fields(kind)}  # type: ignore[arg-type]
        for each in fields(kind):  # type: ignore[arg-type]
            fits = is_number if each.type in (int, float) else is_text
            if not fits(values[each.name]):
                raise ValueError(f"{each.name} is {values[each.name]!r}")
        return kind(**values)

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [record(entry) for entry in (content if isinstance(content, list) else [content])]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        why = printable(error, 200)
        raise LeaseError(f"{path} cannot be read ({why}); delete it when no job runs") from None


def _root(environ: Mapping[str, str]) -> Path:
    if root := environ.get("TILEWRIGHT_LEASE_ROOT"):
        if not Path(root).is_absolute():
            raise _unusable(Path(root), "is relative, so that two runs may miss each other", _FIX)
        return Path(root)
    uid = os.getuid()
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "tilewright"
    session = RUNTIMES / f"{uid}"
    if session.is_dir() and session.stat().st_uid == uid and os.access(session, os.W_OK):
        return session / "tilewright"
    return TEMPORARY / f"tilewright-{uid}"


def _unusable(root: Path, what: str, fix: str) -> LeaseError:
    return LeaseError(f"the folder of the device leases {root} {what}; {fix}")
