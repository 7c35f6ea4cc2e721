"""The folder that all runs of a user on a machine share: locks of leases, failures of GPUs."""

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from tilewright.errors import LeaseError


def lease_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user's leases on this machine; it is made where it is absent.

    ``TILEWRIGHT_LEASE_ROOT``, else ``/tmp/tilewright-<uid>``. Never one by session, working
    directory or ``TMPDIR``, which may differ between jobs: two runs must see each other's leases.

    Raises
    ------
    LeaseError
        It is relative, a link, not ours or open to others, or it cannot be made.
    """
    root = Path(environ.get("TILEWRIGHT_LEASE_ROOT") or f"/tmp/tilewright-{os.getuid()}")
    if not root.is_absolute():
        raise _unusable(root, "is relative, so that two runs may miss each other")
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
    except OSError as error:
        raise _unusable(root, f"cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise _unusable(root, "is a link, a file or another user's folder")
    if status.st_mode & 0o777 != 0o700:  # a folder inherits setgid and sticky bits
        raise _unusable(root, f"can be changed by others: run chmod 700 {root}")
    return root


def lock(path: Path, held: contextlib.ExitStack) -> bool:
    """Lock a file until ``held`` is closed or this process ends; return whether it was free.

    The kernel unlocks it with the process, also where that is killed.

    Raises
    ------
    LeaseError
        It cannot be opened, or its file system has no locks.
    """
    try:
        # descriptors of Python close on exec: a program that this job starts does not inherit them
        stream = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        held.callback(os.close, stream)
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _unusable(path.parent, f"has no locks: {error.strerror}") from error
    return True


def _unusable(root: Path, why: str) -> LeaseError:
    fix = "set TILEWRIGHT_LEASE_ROOT to a folder of your own on a local disk"
    return LeaseError(f"the folder of the device leases {root} {why}; {fix}")


# Letters of CUDA's names (cudaErrorX and CUDA_ERROR_X alike) and sentences, without the rest.
_DEVICE = (
    "eccuncorrectable", "uncorrectableecc", "nvlinkuncorrectable",
    "cudaerrorcontained", "fallenoffthebus", "gpuislost", "gpurequiresrestart", "illegaladdress",
    "illegalmemoryaccess", "illegalinstruction", "invalidaddressspace", "cudaerrorinvalidpc",
    "misalignedaddress", "hardwarestackerror", "launchfailure", "launchfailed", "launchtimeout",
    "deviceassert", "cudaerrorassert", "cudaerrorunknown", "cudaerrornodevice",
    "cudaerrorinitializationerror", "cudaerrornotinitialized", "execfailed", "executionfailed",
)  # fmt: skip


def is_fault_of_device(text: str) -> bool:
    """Return whether a process cannot use its device any more, by an error's type and message.

    It is defective, or a program of ours; not where memory ran out or others use it (CUDA's "busy
    or unavailable").

    >>> is_fault_of_device("CUDARuntimeError: cudaErrorIllegalAddress: an illegal memory access")
    True
    """
    letters = re.sub("[^a-z]", "", text.lower())
    return any(mark in letters for mark in _DEVICE)


def record_failure(root: Path, uuid: str, job: str, message: str) -> None:
    """Record that CUDA failed on a device, which gets no jobs from then on (OSError)."""
    text = f"{datetime.now():%Y-%m-%d %H:%M} in {job}: {message}"
    (root / f"{uuid}.failed").write_text(text, encoding="utf-8")


def failures(root: Path) -> dict[str, str]:
    """Return the devices that get no jobs, by UUID: when, in which job and how CUDA failed.

    A start of the machine resets its GPUs, so failures before it do not count.
    """
    found = {}
    for path in root.glob("*.failed"):
        with contextlib.suppress(FileNotFoundError):  # `clear` in another process
            if path.stat().st_mtime > time.time() - time.clock_gettime(time.CLOCK_BOOTTIME):
                found[path.stem] = path.read_text(encoding="utf-8", errors="replace")
    return found


def clear(root: Path, uuid: str) -> None:
    """Remove the failure of a device: it gets jobs again."""
    (root / f"{uuid}.failed").unlink(missing_ok=True)
