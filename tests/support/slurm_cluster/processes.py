"""Daemons that run in the foreground as our children, and every process that hangs on them."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass
class Daemon:
    """One long-running process, which can be started again after it ended.

    ``log`` takes all it prints; it is up when ``probe`` succeeds, a command, or is listened to, a
    port.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    probe: Sequence[str] | int
    _process: subprocess.Popen[bytes] | None = None

    def answers(self) -> bool:
        """Whether it is up and does its work."""
        if self.pid is None:
            return False
        if isinstance(self.probe, int):
            with socket.socket() as trial:
                trial.settimeout(1)
                return trial.connect_ex(("127.0.0.1", self.probe)) == 0
        try:
            done = subprocess.run(
                self.probe, env=self.env, capture_output=True, timeout=15, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    @property
    def pid(self) -> int | None:
        """The running process, or ``None``; asking also reaps one that ended."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    def start(self) -> None:
        """Start the process where it does not run."""
        if self.pid is not None:
            return
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal of pytest is not for the daemons.
            self._process = subprocess.Popen(
                self.argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def end(self, timeout_s: float = 10) -> None:
        """End the process, with SIGKILL if it has not gone after ``timeout_s``."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout_s)

    def tail(self, lines: int = 5) -> str:
        """The last lines of the log, for messages."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def with_environment(variable: str, value: str) -> set[int]:
    """Return the processes that were started with ``variable=value``."""
    found = psutil.process_iter(["pid", "environ"])
    return {one.pid for one in found if (one.info["environ"] or {}).get(variable) == value}


def with_descendants(pids: Iterable[int]) -> set[int]:
    """Return ``pids`` and every process below them."""
    parents = {one.pid: one.info["ppid"] for one in psutil.process_iter(["ppid"])}
    found = set(pids)
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    return found


def kill_all(pids: Iterable[int], timeout_s: float = 60) -> None:
    """Kill processes at one blow: all are stopped before the first dies, so none can react."""
    doomed = [pid for pid in pids if pid != os.getpid()]
    for sig in (signal.SIGSTOP, signal.SIGKILL):
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)
    limit = time.monotonic() + timeout_s
    while any(map(_running, doomed)) and time.monotonic() < limit:
        time.sleep(0.02)


def _running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})
    return False
