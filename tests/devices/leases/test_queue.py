"""Who gets a device next, between real processes with real locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.devices.leases.conftest import Own
from tests.devices.leases.lease_jobs import GIB, Jobs, Machine, code, holders, kill, until, waiters
from tilewright.devices.budget import PASSES, Request
from tilewright.devices.lease import leases
from tilewright.errors import NoDeviceError

TWO = {"GPU-a": 25, "GPU-b": 25}


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first in the queue that soon looks for the end of foreign use."""
    monkeypatch.setattr("tilewright.devices.lease.AGAIN_S", 0.05)


def test_first_come_first_served(machine: Machine, root: Path, jobs: Jobs) -> None:
    go = root / "go"
    jobs.holder(20, "0", until=go, hold_s=0)
    for name in "12345":
        jobs.waiter(20, name)
    go.touch()
    until(lambda: len(machine.said("ends")) == 6 and leases(root) == [])
    assert machine.said("holds") == list("012345")
    assert sorted(line["job"] for line in machine.lines()) == list("012345")
    assert all(line["waited_s"] > 0 for line in machine.lines() if line["job"] != "0")


def test_a_whole_device_request_gets_its_turn_among_small_ones(
    machine: Machine, root: Path, jobs: Jobs
) -> None:
    go = root / "go"
    for k in range(4):
        jobs.holder(6, f"early {k}", until=go, hold_s=0)
    every = [jobs.waiter(1, "whole", whole=True, hold_s=0.1)]
    every += [jobs.waiter(6, f"small {k}", hold_s=0.2) for k in range(16)]
    go.touch()
    assert [code(process, 300) for process in every] == [0] * 17
    assert machine.said("holds").index("whole") <= 4 + PASSES
    assert not machine.broken.exists()


def test_foreign_use_appears_and_goes(machine: Machine, root: Path, jobs: Jobs) -> None:
    jobs.holder(4, "early")
    machine.set(foreign_gib={"GPU-a": 10})
    jobs.waiter(14, "large", hold_s=600)
    jobs.holder(4, "small")
    assert (holders(root), waiters(root)) == (["early", "small"], ["large"])
    machine.set(foreign_gib={"GPU-a": 0})
    until(lambda: waiters(root) == [])


def test_runs_that_see_different_devices_share_one_queue(
    machine: Machine, root: Path, jobs: Jobs
) -> None:
    """The first in the queue cannot see the device that the second waits for."""
    machine.set(totals_gib=TWO)
    jobs.holder(20, "a", visible="GPU-a")
    on_b = jobs.holder(20, "b", visible="GPU-b")
    jobs.waiter(20, "next a", visible="GPU-a")
    jobs.waiter(20, "next b", visible="GPU-b", hold_s=600)
    kill(on_b)
    until(lambda: "next b" in holders(root))
    assert waiters(root) == ["next a"]


@pytest.mark.parametrize(
    ("totals_gib", "gib", "avoid", "uuid"),
    [
        (TWO, 1, "GPU-a", "GPU-b"),
        (TWO, 1, "GPU-b", "GPU-a"),
        (TWO, 1, "GPU-a GPU-b", "GPU-a"),  # there is no other
        ({"GPU-a": 25, "GPU-b": 9}, 10, "GPU-a", "GPU-a"),  # the other is too small
        ({"GPU-a": 13, "GPU-b": 25}, 20, "", "GPU-b"),  # only the largest holds it
    ],
)
def test_the_device_of_a_request_that_avoids_some(
    machine: Machine, own: Own, totals_gib: dict[str, int], gib: int, avoid: str, uuid: str
) -> None:
    machine.set(totals_gib=totals_gib)
    with own(Request(gib * GIB, "edf", wait_limit_s=5), avoid=avoid.split()) as held:
        assert held.uuid == uuid


@pytest.mark.usefixtures("hurried")
def test_a_device_quarantined_while_a_job_waits_is_not_granted_to_it(
    machine: Machine, root: Path, own: Own
) -> None:
    """It is not yet as the job begins, and as it first looks."""
    machine.set(foreign_gib={"GPU-a": 24})
    bad = iter([(), ()])
    with (
        pytest.raises(NoDeviceError, match="all are quarantined"),
        own(Request(10 * GIB, "late", wait_limit_s=300), quarantined=lambda: next(bad, ("GPU-a",))),
    ):
        pass
    assert waiters(root) == []
    machine.set(totals_gib=TWO)
    bad = iter([(), ()])
    request = Request(10 * GIB, "late", wait_limit_s=300)
    with own(request, avoid={"GPU-b"}, quarantined=lambda: next(bad, ("GPU-a",))) as held:
        assert held.uuid == "GPU-b"  # which it would rather avoid


def test_a_device_that_a_job_condemned_is_not_handed_on(root: Path, own: Own, jobs: Jobs) -> None:
    bad: list[str] = []
    with own(Request(20 * GIB, "edf"), quarantined=lambda: bad) as held:
        jobs.waiter(20, "next")
        bad.append(held.uuid)
    assert holders(root) == []
