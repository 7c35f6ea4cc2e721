"""What a job holds, how busy it keeps it, and the line of evidence that it leaves."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.devices.budget import Request
from tilewright.devices.inventory import Snapshot

#: CUDA's context and the kernels and plans that libraries load, which no pool's limit counts.
CONTEXT_B = 512 * 2**20
#: NVML averages over up to a second; a look takes 10 ms.
EVERY_S = 1.0


@dataclass
class Held:
    """A device that a job holds.

    Attributes
    ----------
    bytes_ : int
        Device memory that it may use; 0 where it is not known.
    busy_s, peak_b, splits, reason : float, int, int, str
        What the job says of itself for the evidence: seconds in which the device computed (None:
        not measured), peak use, tiles that were halved, and why it went as it did.
    utilisation : float or None
        Mean share of time in which the device computed, by NVML.
    visible : str or None
        ``CUDA_VISIBLE_DEVICES`` as Slurm set it; it stays.
    """

    uuid: str
    bytes_: int
    waited_s: float = 0.0
    driver: str = ""
    busy_s: float | None = None
    peak_b: int | None = None
    splits: int = 0
    reason: str = ""
    visible: str | None = None
    utilisation: float | None = None
    _since_s: float = field(default_factory=time.monotonic)

    def busy(self, seconds: float) -> None:
        """Add seconds in which the device computed."""
        self.busy_s = (self.busy_s or 0.0) + seconds

    def environment(self) -> dict[str, str]:
        """Return the variables that make the device that of this process."""
        arrays_b = self.bytes_ - CONTEXT_B
        limit = {"CUPY_GPU_MEMORY_LIMIT": str(max(arrays_b, 2**26))} if self.bytes_ else {}
        return {
            "CUDA_VISIBLE_DEVICES": self.visible or self.uuid,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "TILEWRIGHT_DEVICE": "gpu",
            **limit,
        }

    def evidence(self, request: Request, outcome: str) -> dict[str, object]:
        """Return the line of evidence at the end of the lease."""
        held_s = time.monotonic() - self._since_s
        busy_s = self.busy_s if held_s > 0 else None
        idle = None if busy_s is None else round(max(0.0, 1 - busy_s / held_s), 3)
        return {
            "time_s": round(time.time() - held_s, 3),
            "job": request.job,
            "uuid": self.uuid,
            "driver": self.driver,
            "requested_b": request.bytes_,
            "whole": request.whole,
            "granted_b": self.bytes_,
            "waited_s": round(self.waited_s, 3),
            "held_s": round(held_s, 3),
            "idle_fraction": idle,
            "utilisation": None if self.utilisation is None else round(self.utilisation, 3),
            "peak_b": self.peak_b,
            "splits": self.splits,
            "outcome": outcome,
            "reason": self.reason,
        }


@contextlib.contextmanager
def variables_set(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process for a while."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextlib.contextmanager
def watched(
    held: Held, snapshot: Callable[[], Snapshot], every_s: float = EVERY_S
) -> Iterator[None]:
    """Note how long the held device computes, and its mean utilisation.

    Where NVML does not tell, both stay unknown.

    Parameters
    ----------
    held : Held
        Gets ``busy_s`` and ``utilisation``.
    snapshot : callable
        Returns what NVML sees now.
    """
    end = threading.Event()
    rates: list[float] = []

    def look() -> None:
        last_s = time.monotonic()
        while not end.wait(every_s):
            found = [d.utilisation for d in snapshot().devices if d.uuid == held.uuid]
            now_s = time.monotonic()
            if found and found[0] is not None:
                rates.append(found[0])
                held.busy(now_s - last_s if found[0] > 0 else 0.0)
                held.utilisation = sum(rates) / len(rates)
            last_s = now_s

    thread = threading.Thread(target=look, name="tilewright-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(every_s)  # NVML may hang where a driver does: the job's work is done
