"""Runs of Snakemake on some cycles, one at a time in a folder of results, also after a crash."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import FrameType

from snakemake_scheduler_plugin_tilewright.runtime import snakemake_command
from snakemake_scheduler_plugin_tilewright.runtime.files import append_json
from tilewright.errors import ConfigError
from tilewright.follow.verdicts import now, read_record

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Between looks at whether another process has let go of the record.
_LOCK_S = 1.0
#: Snakemake locks a folder so soon after its start: 30 s for 2,500 jobs.
_BEGINS_S = 300.0


class Stop:
    """A signal to end: it is handed on to the run, and ends what waits.

    As a context it takes the place of Python's handlers. A signal that the shell has this process
    ignore (``nohup``) stays ignored.
    """

    def __init__(self) -> None:
        self.signal = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._event = threading.Event()
        self._before: dict[int, object] = {}

    def __enter__(self) -> Stop:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _heard(self, number: int, _: FrameType | None) -> None:
        self.signal = number
        self._event.set()
        self.hand_on()

    def hand_on(self) -> None:
        """Give the run the signal; Ctrl-C goes to its jobs too, as from a terminal."""
        if self.process is None or self.process.poll() is not None:
            return
        if self.signal == signal.SIGINT:
            os.killpg(self.process.pid, self.signal)
        else:
            self.process.send_signal(self.signal)

    def wait(self, seconds: float) -> bool:
        """Wait, and return whether the end was asked for."""
        return self._event.wait(seconds)


@dataclass
class Runs:
    """Starts Snakemake.

    Parameters
    ----------
    options : sequence of str
        What else Snakemake is given.
    record : Path
        The record in the results folder. Who runs there holds a lock on it, which its Snakemake
        inherits, and its last line on runs says whether that came to its end.
    """

    snakefile: Path
    configfile: Path
    options: Sequence[str]
    record: Path
    stop: Stop
    _held: int = field(default=-1, init=False)
    #: When the last run of ours began, if it was killed: it may have left a lock of Snakemake's.
    _killed_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for word in self.options:
            if word == "--config" or word.startswith(("-C", "--config=")):
                raise ConfigError(
                    f"{word} after -- would hide the cycles; write into the config file"
                )
        if snakemake_command.only_looks(self.options):
            raise ConfigError("an option after -- has snakemake run nothing; leave it out")

    def alone(self, say: Callable[[str], None]) -> bool:
        """Wait until nothing else follows here; return False where the end is asked for first."""
        self.record.parent.mkdir(parents=True, exist_ok=True)
        self._held = os.open(self.record, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        said = False
        while not self._lock():
            if not said:
                say(
                    f"another follow, or the run that it left, is at work in {self.record.parent}; "
                    "waiting for its end"
                )
            said = True
            if self.stop.wait(_LOCK_S):
                return False
        record = read_record(self.record)
        if record.note:
            say(record.note)
        lines = [line for line in record if "run" in line]
        if lines and lines[-1]["run"] == "began":
            self._killed_s = datetime.fromisoformat(lines[-1]["time"]).timestamp()
        return True

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            # A file system without locks: Snakemake's own still keeps two runs apart.
        return True

    def locked(self) -> bool:
        """Return whether a run that is not ours works in this folder, or was killed there."""
        return snakemake_command.is_locked(Path.cwd()) and not self._left_locked()

    def _left_locked(self) -> bool:
        """Return whether the lock is of our run that was killed: of the time when it began."""
        if self._killed_s is None:
            return False  # and a run that ends takes its locks away meanwhile
        locks = Path(".snakemake/locks").glob("*")
        began = min((lock.stat().st_mtime for lock in locks), default=math.inf)
        return 0 <= began - self._killed_s + 1 < _BEGINS_S

    def run(self, targets: Sequence[str], cycles: Sequence[int] | None) -> int:
        """Run Snakemake, and return its status; ``cycles`` None is all of them.

        A lock that a killed run of ours has left is taken away, with what is run here: the
        Snakefile checks the raw files of those cycles then too.
        """
        only = [] if cycles is None else ["--config", f"cycles=[{','.join(map(str, cycles))}]"]
        if snakemake_command.is_locked(Path.cwd()) and self._left_locked():
            self._start(*targets, "--unlock", *only)
        self._killed_s = None
        append_json(self.record, {"time": now(), "run": "began", "cycles": cycles or "all"})
        status = self._start(*targets, "--keep-going", *only)
        append_json(self.record, {"time": now(), "run": "ended", "status": status})
        return status

    def _start(self, *words: str) -> int:
        command = [sys.executable, "-m", "snakemake", *words]
        command += ["--snakefile", str(self.snakefile), "--configfile", str(self.configfile)]
        # Its words on each job would drown what follow says of cycles; those of a failure remain.
        command += ["--quiet", "rules", "progress", "reason", "host"]
        process = subprocess.Popen(
            [*command, *self.options],
            stdin=subprocess.DEVNULL,
            pass_fds=[self._held],
            process_group=0,
        )
        self.stop.process = process
        if self.stop.signal:
            self.stop.hand_on()  # it came before there was something to hand it to
        status = process.wait()
        self.stop.process = None
        return status
