"""How busy a leased device is while a job holds it, by NVML, once a second."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from tilewright.devices.held import Held
from tilewright.devices.records import Snapshot

#: NVML averages over up to a second; a look takes 10 ms.
EVERY_S = 1.0


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
    every_s : float
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
