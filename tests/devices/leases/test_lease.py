"""A lease: what it sets, what ends it, which device it is of, and when there is none."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.devices.leases.lease_jobs import GIB, Jobs, code, evidence, gpus, holders, kill
from tests.support.fake_nvml import FakeDevice, FakeMachine, using
from tests.support.slurm_cluster import wait_for
from tilewright.devices.device_lease import CONTEXT_B, Request
from tilewright.devices.health import record_failure
from tilewright.devices.inventory import Device
from tilewright.devices.leases import (
    RESERVE_B,
    SLOTS,
    WAIT_EXIT_CODE,
    Holder,
    lease,
    leases,
    room_b,
)
from tilewright.errors import LeaseTimeoutError, NoDeviceError


@pytest.mark.usefixtures("machine")
def test_the_variables_are_set_within_and_undone_after(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "5")
    began_s = time.time()
    with lease(Request(4 * GIB, "edf"), tmp_path / "made" / "evidence.jsonl") as held:
        assert held.environment().items() <= os.environ.items()
        assert held.environment() == {
            "CUDA_VISIBLE_DEVICES": "GPU-a",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "TILEWRIGHT_DEVICE": "gpu",
            "CUPY_GPU_MEMORY_LIMIT": str(4 * GIB - CONTEXT_B),
        }
        (holder,) = leases(root)
        assert (holder.uuid, holder.job, holder.pid) == ("GPU-a", "edf", os.getpid())
        held.busy_s, held.utilisation = 0.0, 0.25
        held.peak_b, held.splits, held.reason = 3 * GIB, 2, "two tiles halved"
    assert os.environ["CUPY_GPU_MEMORY_LIMIT"] == "5"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert leases(root) == []
    (line,) = evidence(tmp_path / "made")
    assert began_s <= line.pop("time_s") <= time.time()
    assert min(line.pop("waited_s"), line.pop("held_s")) >= 0
    asked = {"job": "edf", "requested_b": 4 * GIB, "whole": False, "granted_b": 4 * GIB}
    used = {"idle_fraction": 1.0, "utilisation": 0.25, "peak_b": 3 * GIB, "splits": 2}
    ended = {"outcome": "done", "reason": "two tiles halved"}
    assert line == {"uuid": "GPU-a", "driver": "550.54.15", **asked, **used, **ended}


@pytest.mark.usefixtures("machine")
def test_a_failed_job_gives_back_and_says_why(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "evidence.jsonl"
    with pytest.raises(KeyboardInterrupt), lease(Request(GIB, "edf"), file):
        raise KeyboardInterrupt("enough")
    assert leases(root) == []
    (line,) = evidence(tmp_path)
    assert (line["outcome"], line["reason"]) == ("failed", "KeyboardInterrupt: enough")
    assert (line["idle_fraction"], line["utilisation"], line["peak_b"]) == (None, None, None)


@pytest.mark.usefixtures("machine")
def test_what_never_fits_is_an_error_at_once(tmp_path: Path) -> None:
    """Something is left free on a device."""
    words = r"needs 26843545600 B, more than the 26306674688 B"
    with (
        pytest.raises(NoDeviceError, match=words),
        lease(Request(25 * GIB, "stitch"), tmp_path / "evidence.jsonl"),
    ):
        pass
    assert evidence(tmp_path)[0]["outcome"] == "not granted"


def test_the_parent_of_instances_and_the_quarantined_are_not_leased(
    machine: FakeMachine, root: Path
) -> None:
    parts = [FakeDevice(f"MIG-GPU-a/1/{k}", total_b=20 * GIB) for k in (0, 1)]  # older drivers
    machine.devices[0].mig, machine.devices[0].instances = True, [*parts]
    machine.write()
    record_failure(root, parts[0].uuid, "other", "hardware", "ECC")
    with lease(Request(4 * GIB, "edf")) as held:
        assert held.uuid == parts[1].uuid == leases(root)[0].uuid
    record_failure(root, parts[1].uuid, "other", "hardware", "ECC")
    with (
        pytest.raises(NoDeviceError, match="no GPU to use: all are quarantined"),
        lease(Request(4 * GIB, "edf")),
    ):
        pass


def test_the_wait_limit_ends_with_its_own_error(jobs: Jobs) -> None:
    jobs.holder(20, "holder")
    assert code(jobs.start(20, "late", wait_limit_s=0.2)) == WAIT_EXIT_CODE
    with (
        pytest.raises(LeaseTimeoutError, match=r"job later got no device .* within 0.1 s"),
        lease(Request(20 * GIB, "later", wait_limit_s=0.1)),
    ):
        pass
    assert holders() == ["holder"]


@pytest.mark.usefixtures("machine")
def test_what_another_version_wrote_is_understood(root: Path) -> None:
    with lease(Request(20 * GIB, "later")):
        path = root / "GPU-a.0"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": "new"}))
        assert holders() == ["later"]


@pytest.mark.parametrize(
    ("totals_gib", "used_gib", "gib", "failed_on", "uuid"),
    [
        ((25, 25), 0, 1, "a", "b"),
        ((25, 25), 0, 1, "ab", "a"),  # there is no other
        ((25, 9), 0, 10, "a", "a"),  # the other is too small
        ((13, 25), 0, 20, "", "b"),  # only the largest holds it
        ((13, 25), 0, 1, "", "b"),  # the emptiest
        ((25, 25), 3, 1, "", "b"),
        ((25, 13), 20, 10, "", "b"),
    ],
)
def test_which_device_a_job_gets(
    machine: FakeMachine, root: Path,
    totals_gib: tuple[int, ...], used_gib: int, gib: int, failed_on: str, uuid: str,
) -> None:  # fmt: skip
    machine.devices = gpus(*totals_gib)
    machine.devices[0].used_b = used_gib * GIB
    machine.write()
    for letter in failed_on:
        record_failure(root, f"GPU-{letter}", "this", "sticky", "illegal")
    request = Request(gib * GIB, "edf", wait_limit_s=5, job_id="this")
    with lease(request) as held:
        assert held.uuid == f"GPU-{uuid}"


def test_jobs_spread_then_share_by_memory_and_a_whole_device_is_shared_with_none(
    machine: FakeMachine, root: Path, jobs: Jobs
) -> None:
    machine.devices = gpus(25, 60)
    machine.write()
    for name in "123":
        jobs.holder(10, name)
    assert [holder.uuid[-1] for holder in leases(root)] == ["a", "b", "b"]
    with pytest.raises(LeaseTimeoutError), lease(Request(GIB, "all", True, 0.1)):
        pass
    for process in jobs.started:
        kill(process)
    with lease(Request(GIB, "all", whole=True)) as held:
        assert (held.uuid, held.bytes_) == ("GPU-b", 60 * GIB - RESERVE_B)
        assert holders() == ["all"]
        assert code(jobs.start(26, "late", wait_limit_s=0.1)) == WAIT_EXIT_CODE


def test_slots_bound_the_jobs_on_a_device(jobs: Jobs) -> None:
    for number in range(SLOTS):
        jobs.holder(1, f"{number}")
    assert code(jobs.start(1, "late", wait_limit_s=0.1)) == WAIT_EXIT_CODE
    kill(jobs.started[3])
    jobs.holder(1, "next")


@pytest.mark.parametrize(
    ("used_gib", "holders", "room"),
    [
        (0, [], 25),
        (10, [], 15),  # of others
        (0, [(8, 0)], 17),  # the holder has not allocated
        (8, [(8, 0)], 17),
        (11, [(8, 0)], 14),  # it uses 3 more than it leased, or others do
        (10, [(8, 10)], 7),  # the others' that was seen when it began
        (18, [(8, 10)], 7),
        (6, [(8, 10)], 11),  # less than was seen: all of it may be the others'
        (12, [(8, 2), (4, 0)], 11),
    ],
)
def test_room_beside_leases_and_the_use_of_others(
    used_gib: int, holders: list[tuple[int, int]], room: int
) -> None:
    held = [Holder("a", "job", 1, 0.0, bytes_ * GIB, seen * GIB) for bytes_, seen in holders]
    other = Holder("b", "job", 1, 0.0, 9 * GIB, 0)
    device = Device("a", 0, "fake", 25 * GIB, used_gib * GIB)
    assert room_b(device, [*held, other]) == room * GIB - RESERVE_B


def test_the_use_of_others_is_waited_for(machine: FakeMachine, jobs: Jobs, tmp_path: Path) -> None:
    """As of another user, whose leases are in another folder."""
    jobs.holder(4, "early")
    with using("GPU-a", 10 * GIB, whole=False):
        late = jobs.waiter(14, "large")
        jobs.holder(4, "small")
        assert holders() == ["early", "small"]
    kill(jobs.started[-1])
    assert code(late) == 0


def test_runs_that_see_different_devices_share_one_folder(machine: FakeMachine, jobs: Jobs) -> None:
    machine.devices = gpus(25, 25)
    machine.write()
    jobs.holder(20, "a", visible="GPU-a")
    on_b = jobs.holder(20, "b", visible="GPU-b")
    jobs.waiter(20, "next a", visible="GPU-a")
    jobs.waiter(20, "next b", visible="GPU-b", hold_s=600)
    kill(on_b)
    wait_for(lambda: "next b" in holders(), 100)
    assert holders() == ["a", "next b"]


def test_a_device_quarantined_while_a_job_waits_is_not_granted_to_it(
    machine: FakeMachine, root: Path, jobs: Jobs, tmp_path: Path
) -> None:
    machine.devices = gpus(25, 25)
    machine.write()
    first, second = jobs.holder(20, "1"), jobs.holder(20, "2")
    late = jobs.waiter(20, "late", hold_s=600)
    record_failure(root, "GPU-a", "other", "hardware", "ECC")
    kill(first)
    time.sleep(1.5)
    assert holders() == ["2"]
    kill(second)
    wait_for(lambda: holders() == ["late"], 100)
    assert leases(root)[0].uuid == "GPU-b"
    last = jobs.waiter(20, "last")
    record_failure(root, "GPU-b", "other", "hardware", "ECC")
    assert code(last) == 1
    assert "all are quarantined" in evidence(tmp_path)[-1]["reason"]
    kill(late)
