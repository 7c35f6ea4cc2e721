"""Jobs on a pretended machine: real processes with real leases."""

import contextlib
import sys
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support.fake_nvml import FakeDevice
from tests.support.fake_nvml.preload.fake_nvml_library import install
from tests.support.forked import fork
from tests.support.slurm_cluster import wait_for
from tilewright.devices.lease_folder import lease_root
from tilewright.devices.leases import holders, wait_for_lease
from tilewright.errors import DeviceError

GIB = 2**30


@dataclass(frozen=True)
class Job:
    """A job leases a device for a while."""

    folder: Path
    name: str
    gib: int
    hold_s: float = 0.0

    def __call__(self) -> None:
        install()
        (self.folder / f"{self.name} asks").touch()
        with contextlib.ExitStack() as locks:
            try:
                wait_for_lease(self.name, self.gib * GIB, float("inf"), locks)
            except DeviceError as error:
                sys.exit(str(error))
            time.sleep(self.hold_s)


def gpus(*totals_gib: int) -> list[FakeDevice]:
    """Return GPU-a, GPU-b and so on."""
    return [FakeDevice(f"GPU-{'abcd'[k]}", total_b=n * GIB) for k, n in enumerate(totals_gib)]


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
        wait_for((self.folder / f"{name} asks").exists, 100)
        time.sleep(1.0)
        return self.started[-1]
