"""A pretended machine with GPUs, and jobs on it: real processes with real leases.

The machine is a folder: ``gpus.json`` says what there is, and each job locks a file of its own in
``uses`` and writes there what it uses, so that over-commit is seen without asking the leases.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support.forked import fork
from tilewright.devices.budget import RESERVE_B, Request
from tilewright.devices.inventory import Device, Snapshot
from tilewright.devices.lease import WAIT_EXIT_CODE, lease, leases
from tilewright.errors import LeaseTimeoutError

GIB = 2**30
FOREIGN_PID = 1


class Machine:
    """The pretended machine in a folder, and a log of what its jobs did."""

    def __init__(self, folder: Path, totals_gib: dict[str, int], *, shows_pids: bool = True):
        self.folder, self.uses, self.broken = folder, folder / "uses", folder / "overcommitted"
        self.evidence = folder / "evidence.jsonl"
        self.uses.mkdir(parents=True)
        self.set(totals_gib=totals_gib, foreign_gib={}, shows_pids=shows_pids, divided=[])

    def set(self, **changes: Any) -> None:
        path = self.folder / "gpus.json"
        before = self.facts() if path.exists() else {}
        path.with_suffix(".new").write_text(json.dumps({**before, **changes}))
        path.with_suffix(".new").replace(path)

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.folder / "gpus.json").read_bytes())
        return facts

    def living(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Return the records of the files that a process holds locked."""
        found = {}
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
                try:
                    fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    if text := stream.read():
                        found[path.name] = json.loads(text)
        return found

    def snapshot(self) -> Snapshot:
        """Return what NVML would say, as far as CUDA_VISIBLE_DEVICES lets it be seen."""
        facts, uses = self.facts(), self.living(self.uses).values()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = []
        for index, (uuid, total) in enumerate(facts["totals_gib"].items()):
            if visible is not None and uuid not in visible.split(","):
                continue
            foreign = int(facts["foreign_gib"].get(uuid, 0) * GIB)
            own = [(use["pid"], use["bytes"]) for use in uses if use["uuid"] == uuid]
            shown = (*own, (FOREIGN_PID, foreign)) if facts["shows_pids"] else ()
            used, divided = foreign + sum(bytes_ for _, bytes_ in own), uuid in facts["divided"]
            devices.append(
                Device(uuid, index, "fake", total * GIB, used, None, shown, None, divided)
            )
        return Snapshot(tuple(devices), driver="fake 1")

    def check(self, root: Path) -> int:
        """Note each device on which more is used, or leased, than there is; count the holders.

        What is seen in two passes was there all the time between them, hence at once.
        """
        facts, seen = self.facts(), dict[str, dict[str, Any]]()
        for folder, field in ((self.uses, "bytes"), (root / "holding", "granted_b")):
            seen = self.living(folder)
            sums: Counter[str] = Counter()
            for name in seen.keys() & self.living(folder):
                sums[seen[name]["uuid"]] += seen[name][field]
            for uuid, bytes_ in sums.items():
                foreign = int(facts["foreign_gib"].get(uuid, 0) * GIB)
                if bytes_ + foreign + RESERVE_B > facts["totals_gib"][uuid] * GIB:
                    self.broken.write_text(f"{uuid}: {field} {bytes_} + {foreign} foreign\n")
        return len(seen)

    def sample(self, root: Path, over: Path, most: Path) -> None:
        """Look every 5 ms from outside until it is over; write how many held at once."""
        seen = 0
        while not over.exists():
            seen = max(seen, self.check(root))
            time.sleep(0.005)
        most.write_text(str(seen))

    @contextlib.contextmanager
    def using(self, uuid: str, bytes_: int) -> Iterator[None]:
        """Use device memory for as long as this process lives, at most."""
        path = self.uses / f"{os.getpid()}"
        with path.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            json.dump({"uuid": uuid, "bytes": bytes_, "pid": os.getpid()}, stream)
            stream.flush()
            yield
            path.unlink()

    def say(self, event: str, job: str) -> None:
        with (self.folder / "log").open("a") as log:
            log.write(f"{event} {job}\n")

    def said(self, event: str) -> list[str]:
        """Return the jobs of which something was said, in order."""
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.removeprefix(f"{event} ") for line in lines if line.startswith(f"{event} ")]

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of evidence."""
        return [json.loads(line) for line in self.evidence.read_text().splitlines()]


@dataclass(frozen=True)
class Job:
    """A job leases, imports, and uses all that it leased, so long or until a file is there.

    It is killed ``die_s`` after it asked, where that is not 0.
    """

    machine: Machine
    root: Path
    request: Request
    hold_s: float = 0.0
    import_s: float = 0.0
    die_s: float = 0.0
    until: Path | None = None
    visible: str | None = None

    def __call__(self) -> None:
        machine, name = self.machine, self.request.job
        if self.visible:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.visible
        signal.setitimer(signal.ITIMER_REAL, self.die_s)  # nothing handles SIGALRM: it kills
        own = partial(lease, snapshot=machine.snapshot, root=self.root, evidence=machine.evidence)
        try:
            with own(self.request) as held:
                machine.say("holds", name)
                time.sleep(self.import_s)
                with machine.using(held.uuid, held.bytes_):
                    machine.check(self.root)
                    time.sleep(self.hold_s)
                    while self.until and not self.until.exists():
                        time.sleep(0.005)
                machine.say("ends", name)
        except LeaseTimeoutError:
            sys.exit(WAIT_EXIT_CODE)


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join()


def code(process: BaseProcess, limit_s: float = 300.0) -> int | None:
    """Return the exit code of a process once it has ended."""
    process.join(limit_s)
    return process.exitcode


def until(fact: Callable[[], object], limit_s: float = 300.0) -> None:
    """Wait for a fact, less than a holder holds."""
    began_s = time.monotonic()
    while not fact():
        assert time.monotonic() - began_s < limit_s, "it did not happen"
        time.sleep(0.005)


def holders(root: Path) -> list[str]:
    return [claim.request.job for claim in leases(root) if claim.uuid]


def waiters(root: Path) -> list[str]:
    return [claim.request.job for claim in leases(root) if not claim.uuid]


class Jobs:
    """Starts jobs on a machine."""

    def __init__(self, machine: Machine, root: Path) -> None:
        self.machine, self.root = machine, root
        self.started: list[BaseProcess] = []

    def start(self, gib: int, name: str, **more: Any) -> BaseProcess:
        asked = {key: more.pop(key) for key in ("whole", "wait_limit_s") if key in more}
        request = Request(gib * GIB, name, **asked)
        self.started.append(fork(Job(self.machine, self.root, request, **more)))
        return self.started[-1]

    def holder(self, gib: int, name: str, hold_s: float = 600.0, **more: Any) -> BaseProcess:
        """Start a job, and return once it has its device."""
        self.start(gib, name, hold_s=hold_s, **more)
        until(lambda: name in holders(self.root))
        return self.started[-1]

    def waiter(self, gib: int, name: str, **more: Any) -> BaseProcess:
        """Start a job, and return once it is in the queue."""
        self.start(gib, name, **more)
        until(lambda: name in waiters(self.root))
        return self.started[-1]
