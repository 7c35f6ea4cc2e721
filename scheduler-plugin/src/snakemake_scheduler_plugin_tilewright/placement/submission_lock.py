"""What the runs of one person have just sent, so that two of them do not fill the same slots.

Live use shows a job some seconds after sbatch took it. For that long each run writes its uses
to a file of its own next to the others', and one lock lets them choose one after the other.
"""

import contextlib
import fcntl
import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from ..cluster.pending_use import PendingUse
from ..runtime.files import Time, make_private, open_private, read_private, write_private

#: Beyond the age of live use, for sbatch: 12 jobs were submitted within 2 s, so 10 s are ample.
_SUBMIT_S = 10.0
#: A round takes 0.1 s, and as long as queries that Slurm answers slowly.
_LOCK_S = 60.0
_CLAIMS = TypeAdapter(list[tuple[Time, PendingUse]])


@dataclass
class SubmissionLock:
    """What all runs that share a folder have just sent."""

    folder: Path
    """Shared by the runs of one person on one cluster."""
    ttl_s: float = 5.0
    """How old live use may be that a run counts with."""
    clock: Callable[[], float] = time.time
    _own: list[tuple[float, PendingUse]] = field(default_factory=list)

    @contextlib.contextmanager
    def alone(self) -> Iterator[str]:
        """Keep the other runs from choosing meanwhile, and yield why that was not possible, if so.

        Where the folder cannot be locked, or another run keeps the lock for longer than it needs,
        the runs choose at once; Slurm still holds the limits.
        """
        with contextlib.ExitStack() as held:
            try:
                make_private(self.folder)
                lock = open_private(self.folder / "lock", os.O_RDWR | os.O_CREAT)
                why = self._lock(held.enter_context(lock))
            except OSError as error:
                why = str(error)
            yield why

    def _lock(self, lock: int) -> str:
        limit_s = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return ""
            except BlockingIOError:
                if time.monotonic() > limit_s:
                    return f"one of them holds {self.folder / 'lock'} for {_LOCK_S:.0f} s"
                time.sleep(0.05)

    def others(self, asked_s: float = -math.inf) -> list[PendingUse]:
        """Return what other runs sent, but for what Slurm knew when it was asked."""
        paths = [path for path in self.folder.glob("*.json") if path != self._path]
        return [use for path in paths for use in self._fresh(path, asked_s - _SUBMIT_S)]

    def _fresh(self, path: Path, after_s: float = -math.inf) -> list[PendingUse]:
        """Return the claims of a file; one that is damaged, or of another clock, holds none."""
        with contextlib.suppress(OSError, ValueError):
            return [
                use
                for sent_s, use in _CLAIMS.validate_python(read_private(path))
                if -_SUBMIT_S < self.clock() - sent_s < self.ttl_s + _SUBMIT_S and sent_s > after_s
            ]
        return []

    def add(self, uses: list[PendingUse]) -> None:
        """Write what this run sends now, and remove what ended runs left; only when alone."""
        now_s = self.clock()
        own = [own for own in self._own if now_s - self.ttl_s - _SUBMIT_S < own[0] <= now_s]
        own += [(now_s, use) for use in uses]
        if own == self._own:
            return
        self._own = own
        content = [(sent_s, {**vars(use), "request": None}) for sent_s, use in self._own]
        with contextlib.suppress(OSError):
            for path in self.folder.glob("*.json"):
                if path != self._path and not self._fresh(path):
                    path.unlink(missing_ok=True)
            write_private(self._path, json.dumps(content))

    @property
    def _path(self) -> Path:
        return self.folder / f"{socket.gethostname()}-{os.getpid()}.json"
