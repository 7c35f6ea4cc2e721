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

from snakemake_scheduler_plugin_tilewright import is_locked, runs_nothing
from tilewright.errors import ConfigError
from tilewright.follow.verdicts import now, read_record
from tilewright.runtime.json_lines import append_json

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Between attempts to lock the record.
_LOCK_S = 1.0
#: Snakemake locks a folder within this time of its start: 30 s for 2,500 jobs.
_START_S = 300.0


class Stop:
    """Signals to end: they are forwarded to the run and end waiting.

    As a context it replaces Python's handlers. A signal that the shell ignores for this process
    (``nohup``) stays ignored.
    """

    def __init__(self) -> None:
        self.signal = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._event = threading.Event()
        self._before: dict[int, object] = {}

    def __enter__(self) -> Stop:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.signal = number
        self._event.set()
        self.forward()

    def forward(self) -> None:
        """Forward the signal to the run; Ctrl-C to its jobs too, as from a terminal."""
        if self.process is None or self.process.poll() is not None:
            return
        if self.signal == signal.SIGINT:
            os.killpg(self.process.pid, self.signal)
        else:
            self.process.send_signal(self.signal)

    def wait(self, seconds: float) -> bool:
        """Wait, and return whether a signal to end came."""
        return self._event.wait(seconds)


@dataclass
class Runs:
    """Starts Snakemake.

    Parameters
    ----------
    options : sequence of str
        Further options of Snakemake.
    record : Path
        The record in the results folder. A follow that runs there holds a lock on it, which its
        Snakemake inherits; its last line about runs shows whether the last one ended.
    """

    snakefile: Path
    configfile: Path
    options: Sequence[str]
    record: Path
    stop: Stop
    _lock_fd: int = field(default=-1, init=False)
    #: Start of the last run if it was killed: Snakemake's lock may remain.
    _killed_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        for word in self.options:
            if word == "--config" or word.startswith(("-C", "--config=")):
                raise ConfigError(f"{word} after -- would replace the cycles; use the config file")
        if runs_nothing(self.options):
            raise ConfigError("with an option after -- snakemake runs nothing; remove it")

    def acquire(self, say: Callable[[str], None]) -> bool:
        """Wait until no other follow runs here; return False if a signal to end comes first."""
        self.record.parent.mkdir(parents=True, exist_ok=True)
        self._lock_fd = os.open(self.record, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        reported = False
        while not self._lock():
            if not reported:
                say(
                    f"another follow, or a run that it started, is running in "
                    f"{self.record.parent}; waiting for it to end"
                )
            reported = True
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
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            # A file system without locks: Snakemake's lock still prevents two runs.
        return True

    def locked(self) -> bool:
        """Return whether another run has locked this folder, or was killed there."""
        return is_locked(Path.cwd()) and not self._is_our_lock()

    def _is_our_lock(self) -> bool:
        """Return whether the lock is of our run that was killed, by the time of its start."""
        if self._killed_s is None:
            return False  # and a run that ends removes its locks meanwhile
        locks = Path(".snakemake/locks").glob("*")
        began = min((lock.stat().st_mtime for lock in locks), default=math.inf)
        return 0 <= began - self._killed_s + 1 < _START_S

    def run(self, targets: Sequence[str], cycles: Sequence[int] | None) -> int:
        """Run Snakemake, and return its status; ``cycles`` None is all of them.

        The lock of a killed run of ours is removed, with the same cycles: the Snakefile checks
        their raw files then too.
        """
        only = [] if cycles is None else ["--config", f"cycles=[{','.join(map(str, cycles))}]"]
        if is_locked(Path.cwd()) and self._is_our_lock():
            self._start(*targets, "--unlock", *only)
        self._killed_s = None
        append_json(self.record, {"time": now(), "run": "began", "cycles": cycles or "all"})
        status = self._start(*targets, "--keep-going", *only)
        append_json(self.record, {"time": now(), "run": "ended", "status": status})
        return status

    def _start(self, *words: str) -> int:
        command = [sys.executable, "-m", "snakemake", *words]
        command += ["--snakefile", str(self.snakefile), "--configfile", str(self.configfile)]
        # Its lines for each job would hide those about cycles; those of a failure remain.
        command += ["--quiet", "rules", "progress", "reason", "host"]
        process = subprocess.Popen(
            [*command, *self.options],
            stdin=subprocess.DEVNULL,
            pass_fds=[self._lock_fd],
            process_group=0,
        )
        self.stop.process = process
        if self.stop.signal:
            self.stop.forward()  # it came before the process existed
        status = process.wait()
        self.stop.process = None
        return status
