"""How busy a leased device is, as NVML tells while the job computes."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from tilewright.devices.evidence import Held, watched
from tilewright.devices.inventory import Device, Snapshot


def test_busy_seconds_and_mean_utilisation() -> None:
    rates = itertools.chain([1.0, 0.0, 0.5], itertools.repeat(0.5))
    held, enough = Held("GPU-a", 1), threading.Event()

    def look() -> Snapshot:
        rate = next(rates)
        enough_seen.append(rate)
        if len(enough_seen) >= 8:
            enough.set()
        return Snapshot((Device("GPU-b", 0, "", 9, 0, 1.0), Device("GPU-a", 1, "", 9, 0, rate)))

    enough_seen: list[float] = []
    with watched(held, look, every_s=0.02):
        began_s = time.monotonic()
        assert enough.wait(10)
        time.sleep(0.01)
        took_s = time.monotonic() - began_s
    assert held.utilisation == pytest.approx(sum(enough_seen) / len(enough_seen))
    assert held.busy_s is not None
    assert 0.4 * took_s < held.busy_s < took_s  # one look of eight found it idle


def test_what_nvml_does_not_tell_stays_unknown() -> None:
    held = Held("GPU-a", 1)
    with watched(held, lambda: Snapshot((Device("GPU-a", 0, "", 9, 0),)), every_s=0.01):
        time.sleep(0.1)
    assert (held.busy_s, held.utilisation) == (None, None)


def test_a_driver_that_hangs_does_not_keep_the_lease() -> None:
    hangs = threading.Event()

    def look() -> Snapshot:
        hangs.wait(30)
        return Snapshot(())

    began_s = time.monotonic()
    with watched(Held("GPU-a", 1), look, every_s=0.05):
        time.sleep(0.2)
    assert time.monotonic() - began_s < 5
    hangs.set()
