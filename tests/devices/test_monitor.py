"""How busy a leased device is, as NVML tells while the job computes."""

import threading
from types import SimpleNamespace

import pytest

from tilewright.devices import monitor as module
from tilewright.devices.device_lease import DeviceLease, Request
from tilewright.devices.inventory import Device, Snapshot
from tilewright.devices.monitor import monitor

REQUEST = Request(1, "job")


def test_busy_seconds_and_mean_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([1.0, 0.0, *[0.5] * 6])
    held, noted, over = DeviceLease(REQUEST, "GPU-a", 1), threading.Event(), threading.Event()
    looks: list[float | None] = []

    def look() -> Snapshot:
        rate = next(rates, None)
        looks.append(rate)
        if rate is None:
            noted.set()
            over.wait(60)
            return Snapshot(())
        return Snapshot((Device("GPU-b", 0, "", 9, 0, 1.0), Device("GPU-a", 1, "", 9, 0, rate)))

    # A second from look to look, however often a thread of another test asks.
    clock = SimpleNamespace(monotonic=lambda: float(len(looks)))
    monkeypatch.setattr(module, "time", clock)
    with monitor(held, look, every_s=0.001):
        assert noted.wait(60)
    assert (held.busy_s, held.utilisation) == (7, 0.5)
    over.set()


def test_what_nvml_does_not_tell_stays_unknown() -> None:
    held, looks = DeviceLease(REQUEST, "GPU-a", 1), threading.Semaphore(0)

    def look() -> Snapshot:
        looks.release()
        return Snapshot((Device("GPU-a", 0, "", 9, 0),))

    with monitor(held, look, every_s=0.001):
        assert all(looks.acquire(timeout=60) for _ in range(3))
    assert (held.busy_s, held.utilisation) == (None, None)


def test_a_driver_that_hangs_does_not_keep_the_lease() -> None:
    hangs, over, answered = (threading.Event() for _ in range(3))

    def look() -> Snapshot:
        hangs.set()
        over.wait(60)
        answered.set()
        return Snapshot(())

    with monitor(DeviceLease(REQUEST, "GPU-a", 1), look, every_s=0.05):
        assert hangs.wait(60)
    assert not answered.is_set()
    over.set()
