"""The queue and the leases as files that their processes lock for life, and the folder they lie in.

A claim is one file, in ``waiting`` or, once a device is granted, in ``holding``; its name is its
ticket. Its process holds an exclusive flock on it: a claim whose lock can be taken is dead, and
whoever sees that removes it. Everything is read and changed under the lock of one file, ``lock``;
the kernel frees both locks when a process is killed. Each waiting process sleeps on a named pipe
of its own in ``pipes``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import select
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from snakemake_scheduler_plugin_tilewright.runtime.files import append_json
from tilewright.devices.budget import LeaseClaim, Request
from tilewright.devices.evidence import Held

#: File systems that other machines see too: their locks and their UUIDs mean other devices.
NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "fhgfs", "gfs2", "glusterfs", "gpfs"),
        *("lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs"),
        *("wekafs", "fuse.beegfs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
    )
)
#: What the kernel says; nobody need keep /etc/mtab up to date.
MOUNTS = Path("/proc/self/mounts")
RUNTIMES = Path("/run/user")
TEMPORARY = Path("/tmp")
_FIX = "set TILEWRIGHT_LEASE_ROOT to a folder of your own on a local disk"
#: One page: the kernel writes it whole or, where the process is killed before, not at all.
RECORD_B = 4096
_CLAIM, _REQUEST = ({field.name for field in fields(kind)} for kind in (LeaseClaim, Request))
#: What a waiting process reads: see whether it was granted; look at the whole queue oneself.
NOTICE, LOOK = b"n", b"l"


class LeaseRootError(RuntimeError):
    """The folder of the leases cannot be used, so no device may be."""


def lease_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user's leases on this machine; it is made where it is absent.

    ``TILEWRIGHT_LEASE_ROOT``, else ``tilewright`` in ``$XDG_RUNTIME_DIR`` or in
    ``/run/user/<uid>``, which is the same where a job of cron lacks the variable, else
    ``/tmp/tilewright-<uid>``. Never one by working directory or ``TMPDIR``, which jobs may have of
    their own: two runs must see each other.

    Raises
    ------
    LeaseRootError
        It is on a network file system, a link, not ours, open to others, or cannot be written.
    """
    root = _named(environ)
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        found = root.lstat()
        kind = file_system(root)
    except OSError as error:
        raise _unusable(root, f"cannot be made: {error.strerror or error}", _FIX) from error
    if not stat.S_ISDIR(found.st_mode):
        raise _unusable(root, "is a link or a file, not a folder", f"remove it, or {_FIX}")
    if found.st_uid != os.getuid():
        raise _unusable(root, f"belongs to user {found.st_uid}, not to you", _FIX)
    if found.st_mode & 0o777 != 0o700:  # a folder inherits setgid and sticky bits
        mode = f"has mode {stat.S_IMODE(found.st_mode):04o}, so that others may meddle"
        raise _unusable(root, mode, f"run chmod 700 {root}")
    if kind in NETWORK:
        raise _unusable(root, f"is on a network file system ({kind})", _FIX)
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise _unusable(root, "cannot be written", _FIX)
    return root


def file_system(path: Path) -> str:
    """Return the type of the file system that holds a path, as the kernel names it."""
    whole, found = path.resolve(), (0, "")
    for line in MOUNTS.read_text("utf-8", errors="surrogateescape").splitlines():
        _, at, kind, *_ = line.split(" ")
        folder = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), at))
        # a later mount on the same folder hides the earlier one
        if whole.is_relative_to(folder) and len(folder.parts) >= found[0]:
            found = len(folder.parts), kind
    return found[1]


def _named(environ: Mapping[str, str]) -> Path:
    if named := environ.get("TILEWRIGHT_LEASE_ROOT"):
        if not Path(named).is_absolute():
            raise _unusable(Path(named), "is relative, so that two runs may miss each other", _FIX)
        return Path(named)
    uid = os.getuid()
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "tilewright"
    session = RUNTIMES / f"{uid}"
    if session.is_dir() and session.stat().st_uid == uid and os.access(session, os.W_OK):
        return session / "tilewright"
    return TEMPORARY / f"tilewright-{uid}"


def _unusable(root: Path, what: str, fix: str) -> LeaseRootError:
    return LeaseRootError(f"the folder of the device leases {root} {what}; {fix}")


@dataclass(slots=True)
class Ticket:
    """The claim of this process.

    Attributes
    ----------
    name : str
        File name in ``waiting`` or ``holding``.
    lock, pipe : int
        File descriptors that end with this process.
    """

    number: int
    name: str
    lock: int
    pipe: int

    def sleep(self, timeout_s: float) -> bytes:
        """Return what others wrote since the last call, nothing after the timeout."""
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        return os.read(self.pipe, 4096) if poll.poll(max(0.0, 1000 * timeout_s)) else b""


class LeaseQueue:
    """Reads and changes the claims in one folder.

    Parameters
    ----------
    root : Path
        As :func:`~tilewright.devices.lease_queue.lease_root` returns it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.waiting, self.holding = root / "waiting", root / "holding"
        self._pipes = root / "pipes"
        for folder in (self.waiting, self.holding, self._pipes):
            folder.mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all others out for some milliseconds; every method but ``look_due`` needs it."""
        try:
            lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError as error:
            raise LeaseRootError(
                f"the folder of the device leases {self.root} was removed while in use; "
                "set TILEWRIGHT_LEASE_ROOT to one that stays"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def join(
        self, request: Request, allowed: Iterable[str], evidence: Path | None = None
    ) -> Ticket:
        """Enter the queue at its end."""
        taken = [*_names(self.waiting), *_names(self.holding)]
        number = 1 + max(map(int, taken), default=0)
        claim = LeaseClaim(
            number, os.getpid(), request, tuple(allowed), time.time(),
            evidence=str(evidence.absolute()) if evidence else "",
        )  # fmt: skip
        record, name = _packed(claim), f"{number:09d}"
        for left in (self._pipes / name, self.root / "new"):
            left.unlink(missing_ok=True)  # of one that was killed right here
        os.mkfifo(self._pipes / name, 0o600)
        pipe = os.open(self._pipes / name, os.O_RDWR | os.O_NONBLOCK)
        # descriptors of Python close on exec: a program that the holder starts does not keep them
        lock = os.open(self.root / "new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.pwrite(lock, record, 0)
        (self.root / "new").rename(self.waiting / name)
        return Ticket(number, name, lock, pipe)

    def leave(self, ticket: Ticket) -> None:
        """Leave the queue, or give the lease back."""
        for folder in (self.waiting, self.holding, self._pipes):
            (folder / ticket.name).unlink(missing_ok=True)
        os.close(ticket.lock)
        os.close(ticket.pipe)

    def claims(self) -> list[LeaseClaim]:
        """Return the claims of living processes; those of dead ones are noted and removed."""
        living = []
        for folder in (self.waiting, self.holding):
            for name in sorted(_names(folder)):
                record = _living(f"{folder}/{name}")
                if record is not None:
                    claim = _unpacked(record)
                    # killed between the record and its move, a granter has granted nothing
                    if folder == self.waiting:
                        claim = replace(claim, uuid="", granted_b=0, foreign_b=0)
                    living.append(claim)
                else:
                    _note_killed(folder / name, granted=folder == self.holding)
                    (folder / name).unlink(missing_ok=True)
                    (self._pipes / name).unlink(missing_ok=True)
        return living

    def save(self, claim: LeaseClaim) -> None:
        """Write a changed claim; one with a device is granted by the move of its file."""
        name = f"{claim.ticket:09d}"
        stream = os.open(self.waiting / name, os.O_WRONLY)
        try:
            os.pwrite(stream, _packed(claim), 0)
        finally:
            os.close(stream)
        if claim.uuid:
            (self.waiting / name).rename(self.holding / name)

    def own(self, folder: Path, ticket: Ticket) -> LeaseClaim | None:
        """Return the claim of this process if it is in ``waiting`` or in ``holding``."""
        if not (folder / ticket.name).exists():
            return None
        return _unpacked(os.pread(ticket.lock, RECORD_B, 0))

    def wake(self, number: int, kind: bytes) -> None:
        """Wake the process that waits with this ticket."""
        try:
            pipe = os.open(self._pipes / f"{number:09d}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            # killed this moment: nobody reads the pipe
            if error.errno not in (errno.ENXIO, errno.ENOENT):
                raise
            return
        # so full that its reader is awake already, or killed since the pipe was opened
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(pipe, kind)
        os.close(pipe)

    def look_due(self, ticket: Ticket) -> tuple[int, bool]:
        """Return how many wait (0: this process is the first), and whether a look is due.

        The first watches the holders, all others the first; no lock is needed.
        """
        try:
            queue, holders = _names(self.waiting), _names(self.holding)
        except FileNotFoundError:
            return 0, True  # the look finds out that the folder is gone
        first = min(queue, default=ticket.name)
        if first != ticket.name:
            return len(queue), _living(f"{self.waiting}/{first}") is None
        return 0, any(_living(f"{self.holding}/{name}") is None for name in holders)


def _note_killed(path: Path, *, granted: bool) -> None:
    """Write the line of evidence that a killed process could not; how long it held is unknown."""
    # a machine that crashed may leave an empty record, and results may be gone
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        claim = _unpacked(path.read_bytes())
        if not claim.evidence or not Path(claim.evidence).parent.is_dir():
            return
        end_s = claim.granted_s if granted else time.time()
        held = Held(
            claim.uuid, claim.granted_b, max(0.0, end_s - claim.since_s),
            reason="its process was killed",
        )  # fmt: skip
        line = held.evidence(claim.request, "failed" if granted else "not granted")
        append_json(Path(claim.evidence), line | {"time_s": round(end_s, 3), "held_s": None})


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _living(path: str) -> bytes | None:
    """Return the record of a claim; None: its process has ended."""
    try:
        stream = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # shared: two that look at once do not take each other for the owner
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(stream, RECORD_B, 0)
    finally:
        os.close(stream)
    return None


def _packed(claim: LeaseClaim) -> bytes:
    record = json.dumps(asdict(claim)).encode()
    if len(record) > RECORD_B:
        raise ValueError(
            f"the claim of job {claim.request.job[:60]} needs {len(record)} B, more than "
            f"{RECORD_B}; shorten its name"
        )
    return record.ljust(RECORD_B)


def _unpacked(record: bytes) -> LeaseClaim:
    """Return a claim; of another version's what this one knows of it."""
    told = json.loads(record)
    request = Request(**{k: v for k, v in told["request"].items() if k in _REQUEST})
    own = {k: v for k, v in told.items() if k in _CLAIM}
    return LeaseClaim(**own | {"request": request, "allowed": tuple(told["allowed"])})
