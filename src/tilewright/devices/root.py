"""The folder in which the runs of one user on one machine see each other's device leases."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

#: File systems that other machines see too: their locks and their UUIDs mean other devices.
NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "fhgfs", "gfs2", "glusterfs", "gpfs"),
        *("lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs"),
        *("wekafs", "fuse.beegfs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
    )
)
MOUNTS = Path("/proc/self/mountinfo")
RUNTIMES = Path("/run/user")
TEMPORARY = Path("/tmp")
_MEND = "set TILEWRIGHT_LEASE_ROOT to a folder of your own on a local disk"


class LeaseRootError(RuntimeError):
    """The folder of the leases cannot be used, so no device may be."""


def lease_root(environ: Mapping[str, str] = os.environ, mounts: Path = MOUNTS) -> Path:
    """Return the folder of this user's leases on this machine; it is made where it is absent.

    ``TILEWRIGHT_LEASE_ROOT``, else ``tilewright`` in ``$XDG_RUNTIME_DIR`` or in
    ``/run/user/<uid>``, which is the same where a job of cron lacks the variable, else
    ``/tmp/tilewright-<uid>``. Never one by working directory or ``TMPDIR``, which jobs may have of
    their own: two runs must see each other.

    Parameters
    ----------
    environ : mapping
    mounts : Path
        The kernel's list of mounts.

    Raises
    ------
    LeaseRootError
        It is on a network file system, a link, not ours, open to others, or cannot be written.
    """
    root = _named(environ)
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        found = root.lstat()
        kind = file_system(root, mounts)
    except OSError as error:
        raise _unusable(root, f"cannot be made: {error.strerror or error}", _MEND) from error
    if not stat.S_ISDIR(found.st_mode):
        raise _unusable(root, "is a link or a file, not a folder", f"remove it, or {_MEND}")
    if found.st_uid != os.getuid():
        raise _unusable(root, f"belongs to user {found.st_uid}, not to you", _MEND)
    if found.st_mode & 0o777 != 0o700:  # a folder inherits setgid and sticky bits
        mode = f"has mode {stat.S_IMODE(found.st_mode):04o}, so that others may meddle"
        raise _unusable(root, mode, f"run chmod 700 {root}")
    if kind in NETWORK:
        raise _unusable(root, f"is on a network file system ({kind})", _MEND)
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise _unusable(root, "cannot be written", _MEND)
    return root


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system that holds a path, as the kernel names it."""
    whole = path.resolve()
    best, kind = -1, ""
    for line in mounts.read_bytes().splitlines():
        before, _, after = line.partition(b" - ")
        # blanks and backslashes are written as a backslash and three octal digits
        point = re.sub(rb"\\(\d{3})", lambda found: bytes([int(found[1], 8)]), before.split()[4])
        parts = Path(os.fsdecode(point)).parts
        # a later mount on the same folder hides the earlier one
        if whole.parts[: len(parts)] == parts and len(parts) >= best:
            best, kind = len(parts), os.fsdecode(after.split()[0])
    return kind


def _named(environ: Mapping[str, str]) -> Path:
    if named := environ.get("TILEWRIGHT_LEASE_ROOT"):
        if not Path(named).is_absolute():
            raise _unusable(Path(named), "is relative, so that two runs may miss each other", _MEND)
        return Path(named)
    uid = os.getuid()
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "tilewright"
    session = RUNTIMES / f"{uid}"
    if session.is_dir() and session.stat().st_uid == uid and os.access(session, os.W_OK):
        return session / "tilewright"
    return TEMPORARY / f"tilewright-{uid}"


def _unusable(root: Path, what: str, mend: str) -> LeaseRootError:
    return LeaseRootError(f"the folder of the device leases {root} {what}; {mend}")
