"""Utilisation of a leased device, by NVML, while the job computes."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from tilewright.devices.device_lease import DeviceLease
from tilewright.devices.inventory import Snapshot

#: NVML averages over up to a second; a query takes 10 ms.
EVERY_S = 1.0


@contextlib.contextmanager
def monitor(
    lease: DeviceLease, snapshot: Callable[[], Snapshot], every_s: float = EVERY_S
) -> Iterator[None]:
    """Measure how long the leased device computes (``busy_s``), and its mean ``utilisation``.

    Where NVML does not report them, both stay unknown.
    """
    end = threading.Event()
    rates: list[float] = []

    def measure() -> None:
        last_s = time.monotonic()
        while not end.wait(every_s):
            own = [d.utilisation for d in snapshot().devices if d.uuid == lease.uuid]
            now_s = time.monotonic()
            if own and own[0] is not None:
                rates.append(own[0])
                lease.busy_s = (lease.busy_s or 0.0) + (now_s - last_s if own[0] > 0 else 0.0)
                lease.utilisation = sum(rates) / len(rates)
            last_s = now_s

    thread = threading.Thread(target=measure, name="tilewright-monitor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(every_s)  # NVML may hang where a driver does: the job's work is done
