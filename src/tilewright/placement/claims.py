"""What the runs of one person have just sent, so that two of them do not fill the same room.

Live use shows a job some seconds after sbatch took it. For that long each run writes its claims
to a file of its own beside the others', and one lock lets them choose one after the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.placement.capacity import Claim
from tilewright.slurm.query import write_whole

#: Longer than live use is kept and sbatch takes; 12 jobs were submitted within 2 s.
_CLAIM_S = 15.0


@dataclass
class Claims:
    """The claims of all runs that share a folder.

    Attributes
    ----------
    folder : Path
        Shared by the runs of one person on one cluster.
    clock : callable
        Seconds since the epoch.
    """

    folder: Path
    clock: Callable[[], float] = time.time
    _own: list[tuple[float, Claim]] = field(default_factory=list)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep the other runs from choosing meanwhile.

        Where the folder cannot be locked the runs choose at once; Slurm still holds the limits.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            stream = (self.folder / "lock").open("w")
        except OSError:
            yield
            return
        with stream:
            with contextlib.suppress(OSError):
                fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def others(self) -> list[Claim]:
        """Return what other runs sent in the last seconds."""
        found = []
        for path in self.folder.glob("*.json"):
            if path == self._path:
                continue
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                fresh = [
                    sent
                    for sent in json.loads(path.read_text(encoding="utf-8"))
                    if self.clock() - sent["time_s"] < _CLAIM_S
                ]
                found += [Claim(sent["account"], dict(sent["tres"])) for sent in fresh]
                if not fresh:
                    path.unlink()
        return found

    def add(self, claims: list[Claim]) -> None:
        """Write what this run sends now."""
        now_s = self.clock()
        self._own = [own for own in self._own if now_s - own[0] < _CLAIM_S]
        self._own += [(now_s, claim) for claim in claims]
        content = [
            {"time_s": sent_s, "account": claim.account, "tres": dict(claim.tres)}
            for sent_s, claim in self._own
        ]
        with contextlib.suppress(OSError):
            write_whole(self._path, json.dumps(content))

    @property
    def _path(self) -> Path:
        return self.folder / f"{socket.gethostname()}-{os.getpid()}.json"
