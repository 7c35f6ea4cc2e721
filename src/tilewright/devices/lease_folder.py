"""The folder of the device leases of all runs of a user on one machine."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from tilewright.errors import LeaseError

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
