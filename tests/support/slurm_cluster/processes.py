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

_PROC = Path("/proc")


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


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:  # it ended in between
        return b""


def _pids() -> list[int]:
    return [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]


def with_environment(variable: str, value: str) -> set[int]:
    """Return the processes that were started with ``variable=value``."""
    wanted = f"{variable}={value}".encode()
    return {pid for pid in _pids() if wanted in _read(pid, "environ").split(b"\0")}


def with_descendants(pids: Iterable[int]) -> set[int]:
    """Return ``pids`` and every process below them."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        # The command's name, in brackets, may itself hold blanks and brackets.
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        if len(fields) > 1:
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, []))
    return found


def kill_all(pids: Iterable[int], timeout_s: float = 60) -> None:
    """Kill processes at one blow: all are stopped before the first dies, so none can react."""
    doomed = [pid for pid in pids if pid != os.getpid()]
    for sig in (signal.SIGSTOP, signal.SIGKILL):
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)
    limit = time.monotonic() + timeout_s
    while any(_running(pid) for pid in doomed) and time.monotonic() < limit:
        time.sleep(0.02)


def _running(pid: int) -> bool:
    state = _read(pid, "stat").rpartition(b")")[2].split()
    return bool(state) and state[0] not in {b"Z", b"X"}
