"""Jobs on a pretended machine: real processes with real leases."""

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support.fake_nvml import FakeDevice
from tests.support.fake_nvml.preload.fake_nvml_library import STATE, install
from tests.support.forked import fork
from tests.support.slurm_cluster import wait_for
from tilewright.devices.lease_folder import lease_root
from tilewright.devices.leases import CONTEXT_B, RESERVE_B, Lease, holders, wait_for_lease
from tilewright.errors import DeviceError

GIB = 2**30


@dataclass(frozen=True)
class Job:
    """A job leases a device and uses all that it may, for a while.

    It is killed ``die_s`` after it asked, where that is not 0.
    """

    folder: Path
    name: str
    gib: int
    hold_s: float = 0.0
    die_s: float = 0.0

    def __call__(self) -> None:
        install()
        if self.die_s:
            killer = threading.Timer(self.die_s, os.kill, (os.getpid(), signal.SIGKILL))
            killer.daemon = True
            killer.start()
        self.say("asks")
        with contextlib.ExitStack() as locks:
            try:
                lease = wait_for_lease(self.name, self.gib * GIB, float("inf"), locks)
            except DeviceError as error:
                sys.exit(str(error))
            self.use(lease)
            self.say("ends")

    def use(self, lease: Lease) -> None:
        """Use the device; note where more of it is used than there is."""
        path = self.folder / "uses" / f"{os.getpid()}"
        path.parent.mkdir(exist_ok=True)
        with path.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            json.dump([lease.uuid, lease.arrays_b + CONTEXT_B], stream)
            stream.flush()
            first, second = living(path.parent), living(path.parent)
            there = [use for use in first if use in second]  # all the time between, hence at once
            for device in json.loads(Path(os.environ[STATE]).read_text())["devices"]:
                used_b = sum(bytes_ for uuid, bytes_ in there if uuid == device["uuid"])
                if used_b + RESERVE_B > device["total_b"]:
                    (self.folder / "broken").write_text(f"{device}: {there}")
            time.sleep(self.hold_s)
            path.unlink()

    def say(self, event: str) -> None:
        with (self.folder / "log").open("a") as log:
            log.write(f"{event} {self.name}\n")


def living(folder: Path) -> list[Any]:
    """Return what living processes use: each holds the lock of its file in a folder."""
    found = []
    for path in sorted(folder.glob("*")):
        with contextlib.suppress(FileNotFoundError), path.open() as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if text := stream.read():
                    found.append(json.loads(text))
    return found


def gpus(*totals_gib: int) -> list[FakeDevice]:
    """Return GPU-a, GPU-b and so on."""
    return [FakeDevice(f"GPU-{'abcd'[k]}", total_b=n * GIB) for k, n in enumerate(totals_gib)]


def said(folder: Path, event: str) -> list[str]:
    """Return the jobs of which something was said, in order."""
    path = folder / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.removeprefix(f"{event} ") for line in lines if line.startswith(f"{event} ")]


def held() -> dict[str, str]:
    """Return the jobs that hold a device, with its last letter."""
    found = [(uuid, text) for uuid, text in holders(lease_root()) if text]  # one may begin now
    return {text.split(",")[0].split()[-1]: uuid[-1] for uuid, text in found}


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join()


def code(process: BaseProcess, limit_s: float = 300.0) -> int | None:
    """Return the exit code of a process once it has ended."""
    process.join(limit_s)
    return process.exitcode


class Jobs:
    """Starts jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[BaseProcess] = []

    def start(self, gib: int, name: str, **more: Any) -> BaseProcess:
        self.started.append(fork(Job(self.folder, name, gib, **more)))
        return self.started[-1]

    def holder(self, gib: int, name: str, **more: Any) -> BaseProcess:
        """Start a job, and return once it has its device."""
        self.start(gib, name, **{"hold_s": 600.0, **more})
        wait_for(lambda: name in held(), 100)
        return self.started[-1]

    def waiter(self, gib: int, name: str, **more: Any) -> BaseProcess:
        """Start a job, and return once it has tried."""
        self.start(gib, name, **more)
        wait_for(lambda: name in said(self.folder, "asks"), 100)
        time.sleep(1.0)
        return self.started[-1]
