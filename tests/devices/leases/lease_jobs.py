"""Jobs on a pretended machine: real processes with real leases."""

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support.fake_nvml import FakeDevice, using
from tests.support.fake_nvml.preload.fake_nvml_library import STATE, install, living
from tests.support.forked import fork
from tests.support.slurm_cluster import wait_for
from tilewright.devices import leases as module
from tilewright.devices.device_lease import Request
from tilewright.devices.lease_folder import lease_root
from tilewright.devices.leases import RESERVE_B, WAIT_EXIT_CODE, lease, leases
from tilewright.errors import LeaseTimeoutError

GIB = 2**30


@dataclass(frozen=True)
class Job:
    """A job leases a device and uses all that it leased, for a while or until a file is there.

    It is killed ``die_s`` after it asked, where that is not 0. With ``repeated`` it is a stream of
    jobs, up to that file.
    """

    folder: Path
    request: Request
    hold_s: float = 0.0
    die_s: float = 0.0
    until: Path | None = None
    visible: str | None = None
    repeated: bool = False
    patience_s: float = module.PATIENCE_S

    def __call__(self) -> None:
        install()
        module.PATIENCE_S = self.patience_s
        if self.visible:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.visible
        if self.die_s:
            killer = threading.Timer(self.die_s, os.kill, (os.getpid(), signal.SIGKILL))
            killer.daemon = True
            killer.start()
        try:
            self.once()
            while self.repeated and self.until and not self.until.exists():
                self.once()
        except LeaseTimeoutError:
            sys.exit(WAIT_EXIT_CODE)

    def once(self) -> None:
        job = self.request.job
        self.say("asks", job)
        with lease(self.request, self.folder / "evidence.jsonl") as held:
            self.say("holds", job)
            with using(held.uuid, held.bytes_, whole=self.request.whole):
                self.check()
                time.sleep(self.hold_s)
                while self.until and not self.repeated and not self.until.exists():
                    time.sleep(0.005)
            self.say("ends", job)

    def say(self, event: str, job: str) -> None:
        with (self.folder / "log").open("a") as log:
            log.write(f"{event} {job}\n")

    def check(self) -> None:
        """Note each device on which more is used than there is, or two use a whole one."""
        state = Path(os.environ[STATE])
        first, second = living(state.with_suffix(".uses")), living(state.with_suffix(".uses"))
        there = [use for use in first if use in second]  # all the time between, hence at once
        number = Counter(use["uuid"] for use in there)
        for device in json.loads(state.read_text())["devices"]:
            uses = [use for use in there if use["uuid"] == device["uuid"]]
            used_b = sum(use["bytes"] for use in uses) + device["used_b"]
            whole = any(use["whole"] for use in uses) and number[device["uuid"]] > 1
            if whole or used_b + RESERVE_B > device["total_b"]:
                (self.folder / "broken").write_text(f"{device}: {uses}")


def gpus(*totals_gib: int) -> list[FakeDevice]:
    """Return GPU-a, GPU-b and so on."""
    return [FakeDevice(f"GPU-{'abcd'[k]}", total_b=n * GIB) for k, n in enumerate(totals_gib)]


def said(folder: Path, event: str) -> list[str]:
    """Return the jobs of which something was said, in order."""
    path = folder / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.removeprefix(f"{event} ") for line in lines if line.startswith(f"{event} ")]


def evidence(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "evidence.jsonl").read_text().splitlines()]


def holders() -> list[str]:
    return sorted(holder.job for holder in leases(lease_root()))


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
        asked = {key: more.pop(key) for key in ("whole", "wait_limit_s") if key in more}
        self.started.append(fork(Job(self.folder, Request(gib * GIB, name, **asked), **more)))
        return self.started[-1]

    def holder(self, gib: int, name: str, **more: Any) -> BaseProcess:
        """Start a job, and return once it has its device."""
        self.start(gib, name, **{"hold_s": 600.0, **more})
        wait_for(lambda: name in holders(), 100)
        return self.started[-1]

    def waiter(self, gib: int, name: str, **more: Any) -> BaseProcess:
        """Start a job, and return once it has tried."""
        self.start(gib, name, **more)
        wait_for(lambda: name in said(self.folder, "asks"), 100)
        time.sleep(1.0)
        return self.started[-1]
