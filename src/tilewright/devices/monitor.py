"""How busy a leased device is, as NVML tells while the job computes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from tilewright.devices.device_lease import DeviceLease
from tilewright.devices.inventory import Snapshot

#: NVML averages over up to a second; a look takes 10 ms.
EVERY_S = 1.0


@contextlib.contextmanager
def monitor(
    held: DeviceLease, snapshot: Callable[[], Snapshot], every_s: float = EVERY_S
) -> Iterator[None]:
    """Note how long the held device computes, and its mean utilisation.

    Where NVML does not tell, both stay unknown.

    Parameters
    ----------
    held : DeviceLease
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
                held.busy_s = (held.busy_s or 0.0) + (now_s - last_s if found[0] > 0 else 0.0)
                held.utilisation = sum(rates) / len(rates)
            last_s = now_s

    thread = threading.Thread(target=look, name="tilewright-monitor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(every_s)  # NVML may hang where a driver does: the job's work is done
