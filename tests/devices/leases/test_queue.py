"""Who gets a device next, between real processes with real locks."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.devices.leases.lease_jobs import GIB, Machine, holders, read_log, until, waiters
from tilewright.devices.budget import PASSES, Request
from tilewright.devices.lease import (
    AGAIN_S,
    NoDeviceError,
    lease,
)


def test_first_come_first_served(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    go = root / "go"
    begin(20, until=go, name="0")
    until(lambda: holders(root))
    for k in range(1, 6):
        begin(20, name=str(k))
        until(lambda k=k: len(waiters(root)) == k)  # type: ignore[misc]
    go.touch()
    until(lambda: sum(line["event"] == "ends" for line in read_log(machine)) == 6)
    held = [x for x in read_log(machine) if x["event"] == "holds"]
    assert [x["job"] for x in held] == list("012345")
    lines = [json.loads(x) for x in (machine.folder / "evidence.jsonl").read_text().splitlines()]
    assert sorted(x["job"] for x in lines) == list("012345")
    assert all(x["waited_s"] > 0 for x in lines if x["job"] != "0")


def test_a_whole_device_request_gets_its_turn_among_small_ones(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    go = root / "go"
    for k in range(4):
        begin(6, until=go, name=f"early {k}")
    until(lambda: len(holders(root)) == 4)
    whole = begin(1, whole=True, hold_s=0.1, name="whole")
    until(lambda: waiters(root) == ["whole"])
    jobs = [begin(6, hold_s=0.2, name=f"small {k}") for k in range(16)]
    until(lambda: len(waiters(root)) == 17)
    go.touch()
    assert whole.wait(300) == 0
    assert [job.wait(300) for job in jobs] == [0] * 16
    order = [line for line in read_log(machine) if line["event"] == "holds"]
    place = next(k for k, line in enumerate(order) if line["job"] == "whole")
    assert place <= 4 + PASSES
    assert not machine.broken.exists()


def test_foreign_use_appears_and_goes(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    begin(4, hold_s=60, name="early")
    until(lambda: holders(root) == ["early"])
    machine.set(foreign_gib={"GPU-a": 10})
    begin(14, hold_s=60, name="large")
    until(lambda: waiters(root) == ["large"])
    begin(4, hold_s=60, name="small")
    until(lambda: holders(root) == ["early", "small"])
    assert waiters(root) == ["large"]
    machine.set(foreign_gib={"GPU-a": 0})
    assert until(lambda: waiters(root) == []) < 2 + AGAIN_S


def test_runs_that_see_different_devices_share_one_queue(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """The first in the queue cannot see the device that the second waits for."""
    machine.set(totals_gib={"GPU-a": 25, "GPU-b": 25})
    a, b = {"CUDA_VISIBLE_DEVICES": "GPU-a"}, {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    begin(20, hold_s=60, name="a", environment=a)
    on_b = begin(20, hold_s=60, name="b", environment=b)
    until(lambda: len(holders(root)) == 2)
    begin(20, hold_s=60, name="next a", environment=a)
    until(lambda: waiters(root) == ["next a"])
    begin(20, hold_s=60, name="next b", environment=b)
    until(lambda: waiters(root) == ["next a", "next b"])
    on_b.kill()
    on_b.wait()
    assert until(lambda: "next b" in holders(root)) < 3
    assert waiters(root) == ["next a"]


def test_a_device_to_avoid_is_taken_only_where_there_is_no_other(
    machine: Machine, root: Path
) -> None:
    machine.set(totals_gib={"GPU-a": 25, "GPU-b": 25})
    request = Request(GIB, "edf", wait_limit_s=5)
    for avoid, uuid in (("GPU-a", "GPU-b"), ("GPU-b", "GPU-a"), ("GPU-a GPU-b", "GPU-a")):
        with lease(request, snapshot=machine.snapshot, root=root, avoid=avoid.split()) as held:
            assert held.uuid == uuid


def test_a_request_that_only_the_largest_device_holds_waits_for_it(
    machine: Machine, root: Path
) -> None:
    machine.set(totals_gib={"GPU-a": 13, "GPU-b": 25})
    with lease(Request(20 * GIB, "edf"), snapshot=machine.snapshot, root=root) as held:
        assert held.uuid == "GPU-b"


def test_a_device_quarantined_while_a_job_waits_is_not_granted_to_it(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    begin(20, hold_s=60)
    until(lambda: holders(root))
    told: Iterator[tuple[str, ...]] = iter([()])
    request = Request(20 * GIB, "late", wait_limit_s=10)
    with (
        pytest.raises(NoDeviceError, match="all are quarantined"),
        lease(
            request,
            snapshot=machine.snapshot,
            root=root,
            quarantined=lambda: next(told, ("GPU-a",)),
        ),
    ):
        pass
    assert waiters(root) == []


def test_a_device_to_avoid_is_used_where_the_others_are_too_small(
    machine: Machine, root: Path
) -> None:
    machine.set(totals_gib={"GPU-a": 25, "GPU-b": 9})
    request = Request(10 * GIB, "edf", wait_limit_s=5)
    with lease(request, snapshot=machine.snapshot, root=root, avoid={"GPU-a"}) as held:
        assert held.uuid == "GPU-a"


def test_a_device_to_avoid_is_used_once_the_others_are_quarantined(
    machine: Machine, root: Path
) -> None:
    machine.set(totals_gib={"GPU-a": 25, "GPU-b": 25}, foreign_gib={"GPU-a": 24})
    began_s = time.monotonic()

    def bad() -> set[str]:
        return {"GPU-a"} if time.monotonic() > began_s + 0.5 else set()

    request = Request(10 * GIB, "edf", wait_limit_s=4 * AGAIN_S)
    with lease(
        request, snapshot=machine.snapshot, root=root, avoid={"GPU-b"}, quarantined=bad
    ) as held:
        assert held.uuid == "GPU-b"


def test_a_device_that_a_job_condemned_is_not_handed_on(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    bad: list[str] = []
    with lease(
        Request(20 * GIB, "edf"), snapshot=machine.snapshot, root=root, quarantined=lambda: bad
    ) as held:
        begin(20, hold_s=60, name="next")
        until(lambda: waiters(root))
        bad.append(held.uuid)
    assert holders(root) == []
