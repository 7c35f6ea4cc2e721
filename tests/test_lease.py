"""Leases between real processes with real locks, on pretended GPUs."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from tests import lease_jobs
from tests.lease_jobs import GIB, RESERVE_B, Machine, read_log, start
from tilewright.devices.budget import PASSES, Request
from tilewright.devices.held import CONTEXT_B
from tilewright.devices.lease import (
    AGAIN_S,
    WAIT_EXIT_CODE,
    LeaseTimeoutError,
    NoDeviceError,
    lease,
    leases,
)
from tilewright.devices.root import LeaseRootError

SPAWN = get_context("spawn")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "machine")
    made.build({"GPU-a": 25})
    return made


@pytest.fixture
def begin(machine: Machine, root: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start jobs that are gone at the end of the test."""
    started: list[subprocess.Popen[bytes]] = []

    def one(gib: float, *, environment: dict[str, str] | None = None, **more: Any) -> Any:
        job = lease_jobs.job(machine, root, gib, **more)
        started.append(start(job, **(environment or {})))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.wait()


def until(fact: Callable[[], object], limit_s: float = 20.0) -> float:
    """Wait for a fact; return how long it took."""
    began_s = time.monotonic()
    while not fact():
        assert time.monotonic() - began_s < limit_s, "it did not happen"
        time.sleep(0.005)
    return time.monotonic() - began_s


def holders(root: Path) -> list[str]:
    return [claim.request.job for claim in leases(root) if claim.uuid]


def waiters(root: Path) -> list[str]:
    return [claim.request.job for claim in leases(root) if not claim.uuid]


def test_the_variables_are_set_within_and_undone_after(
    machine: Machine, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "5")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    request = Request(4 * GIB, "edf", "s1c2")
    evidence = root / "evidence" / "jobs.jsonl"
    with lease(
        request, snapshot=machine.snapshot, root=root, evidence=evidence, reserve_b=RESERVE_B
    ) as held:
        assert held.environment().items() <= os.environ.items()
        assert held.environment() == {
            "CUDA_VISIBLE_DEVICES": "GPU-a",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "TILEWRIGHT_DEVICE": "gpu",
            "CUPY_GPU_MEMORY_LIMIT": str(4 * GIB - CONTEXT_B),
        }
        assert holders(root) == ["edf"]
        held.busy(0.0)
        held.utilisation = 0.25
        held.peak_b, held.splits, held.reason = 3 * GIB, 2, "two tiles halved"
    assert os.environ["CUPY_GPU_MEMORY_LIMIT"] == "5"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert leases(root) == []
    line = json.loads(evidence.read_text())
    assert line.pop("waited_s") < 1
    assert line.pop("held_s") < 1
    assert abs(line.pop("time_s") - time.time()) < 5
    assert line == {
        "job": "edf",
        "group": "s1c2",
        "uuid": "GPU-a",
        "driver": "fake 1",
        "requested_b": 4 * GIB,
        "whole": False,
        "granted_b": 4 * GIB,
        "idle_fraction": 1.0,
        "utilisation": 0.25,
        "peak_b": 3 * GIB,
        "splits": 2,
        "outcome": "done",
        "reason": "two tiles halved",
    }


def test_a_failed_job_gives_back_and_says_why(machine: Machine, root: Path) -> None:
    evidence = root / "jobs.jsonl"
    request = Request(GIB, "edf")
    with (
        pytest.raises(MemoryError),
        lease(request, snapshot=machine.snapshot, root=root, evidence=evidence),
    ):
        raise MemoryError("no room")
    assert leases(root) == []
    line = json.loads(evidence.read_text())
    assert (line["outcome"], line["reason"]) == ("failed", "MemoryError: no room")


def test_what_never_fits_is_an_error_at_once(machine: Machine, root: Path) -> None:
    evidence = root / "jobs.jsonl"
    request = Request(25 * GIB, "stitch")
    with (
        pytest.raises(NoDeviceError, match=r"needs 26843545600 B, more than the 25769803776 B"),
        lease(request, snapshot=machine.snapshot, root=root, evidence=evidence, reserve_b=GIB),
    ):
        pass
    assert leases(root) == []
    assert json.loads(evidence.read_text())["outcome"] == "not granted"


def test_the_parent_of_instances_and_the_quarantined_are_not_leased(
    machine: Machine, root: Path
) -> None:
    machine.set(totals_gib={"GPU-a": 80, "MIG-b": 20, "MIG-c": 20}, divided=["GPU-a"])
    request = Request(4 * GIB, "edf")
    with lease(
        request, snapshot=machine.snapshot, root=root, quarantined=lambda: {"MIG-b"}
    ) as held:
        assert held.uuid == "MIG-c"
    with (
        pytest.raises(NoDeviceError, match="no GPU to use: all are quarantined"),
        lease(
            request, snapshot=machine.snapshot, root=root, quarantined=lambda: ("MIG-b", "MIG-c")
        ),
    ):
        pass


def test_the_wait_limit_ends_with_its_own_error(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    begin(20, hold_s=60, name="holder")
    until(lambda: holders(root))
    assert begin(20, wait_limit_s=0.2, name="late").wait(10) == WAIT_EXIT_CODE
    request = Request(20 * GIB, "later", wait_limit_s=0.1)
    with (
        pytest.raises(LeaseTimeoutError, match=r"job later got no device .* within 0.1 s"),
        lease(request, snapshot=machine.snapshot, root=root),
    ):
        pass
    assert waiters(root) == []


def test_a_killed_holder_and_a_killed_waiter_block_nobody_and_are_noted(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    holder = begin(20, hold_s=60, name="holder")
    until(lambda: holders(root))
    first = begin(20, hold_s=60, name="first")
    until(lambda: waiters(root) == ["first"])
    begin(20, hold_s=60, name="second")
    until(lambda: waiters(root) == ["first", "second"])
    first.kill()
    first.wait()
    holder.kill()
    assert until(lambda: holders(root) == ["second"]) < 3
    assert waiters(root) == []
    lines = map(json.loads, (machine.folder / "evidence.jsonl").read_text().splitlines())
    found = {line["job"]: line for line in lines}
    assert {name: (line["outcome"], line["uuid"]) for name, line in found.items()} == {
        "holder": ("failed", "GPU-a"),
        "first": ("not granted", ""),
    }
    killed = found["holder"]
    assert (killed["reason"], killed["held_s"]) == ("its process was killed", None)
    assert (killed["requested_b"], killed["granted_b"]) == (20 * GIB, 20 * GIB)
    assert time.time() - 30 < killed["time_s"] <= time.time()


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


def test_a_folder_that_goes_while_a_job_computes_fails_nothing(
    machine: Machine, tmp_path: Path, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evidence = tmp_path / "jobs.jsonl"
    with lease(Request(GIB, "edf"), snapshot=machine.snapshot, root=root, evidence=evidence):
        shutil.rmtree(root)
    assert json.loads(evidence.read_text())["outcome"] == "done"
    assert "was not handed on" in caplog.text


def test_claims_of_another_version_are_understood(machine: Machine, root: Path) -> None:
    with lease(Request(20 * GIB, "later"), snapshot=machine.snapshot, root=root):
        (path,) = (root / "holding").iterdir()
        told = json.loads(path.read_text())
        told["colour"] = told["request"]["shape"] = "new"
        path.write_text(json.dumps(told).ljust(4096))
        assert holders(root) == ["later"]
        request = Request(20 * GIB, "edf", wait_limit_s=0.2)
        with pytest.raises(LeaseTimeoutError), lease(request, snapshot=machine.snapshot, root=root):
            pass


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
    assert [x["job"] for x in read_log(machine) if x["event"] == "holds"] == list("012345")


def test_a_whole_device_request_gets_its_turn_among_small_ones(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    for k in range(4):
        begin(6, hold_s=0.4 + 0.1 * k, name=f"early {k}")
    until(lambda: len(holders(root)) == 4)
    whole = begin(1, whole=True, hold_s=0.1, name="whole")
    until(lambda: waiters(root) == ["whole"])
    jobs = [begin(6, hold_s=0.3, name=f"small {k}") for k in range(16)]
    assert whole.wait(30) == 0
    assert [job.wait(30) for job in jobs] == [0] * 16
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


def test_a_lease_outlives_its_coordinator(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    go = root / "go"
    job = lease_jobs.job(machine, root, 20, until=go, name="orphan")
    code = f"import sys, time; from tests.lease_jobs import start; start({job!r}); time.sleep(60)"
    repo = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([repo, *filter(None, [os.environ.get("PYTHONPATH")])])
    coordinator = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}
    )
    until(lambda: holders(root) == ["orphan"])
    coordinator.kill()
    coordinator.wait()
    begin(20, name="rerun")
    until(lambda: waiters(root) == ["rerun"])
    time.sleep(0.3)
    assert holders(root) == ["orphan"]
    go.touch()
    until(lambda: leases(root) == [])
    assert [x["job"] for x in read_log(machine) if x["event"] == "ends"] == ["orphan", "rerun"]


def test_a_program_that_the_holder_starts_does_not_keep_the_lease(
    machine: Machine, root: Path
) -> None:
    with lease(Request(20 * GIB, "edf"), snapshot=machine.snapshot, root=root):
        child = subprocess.Popen(["sleep", "60"])
    limited = Request(20 * GIB, "next", wait_limit_s=5)
    with lease(limited, snapshot=machine.snapshot, root=root) as held:
        assert held.waited_s < 1
    child.kill()
    child.wait()


def test_a_folder_that_goes_while_a_job_waits_is_an_error(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    begin(20, hold_s=60, name="holder")
    until(lambda: holders(root))
    late = begin(20, name="late")
    until(lambda: waiters(root))
    root.rename(root.with_name("gone"))
    assert late.wait(10) == 1


def test_an_unusable_root_is_an_error(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_LEASE_ROOT", str(tmp_path / "missing" / "root"))
    with (
        pytest.raises(LeaseRootError, match="cannot be made"),
        lease(Request(GIB, "edf"), snapshot=machine.snapshot),
    ):
        pass


def test_names_that_no_record_holds_are_an_error(machine: Machine, root: Path) -> None:
    request = Request(GIB, "x" * 5000)
    with (
        pytest.raises(ValueError, match="shorten the names"),
        lease(request, snapshot=machine.snapshot, root=root),
    ):
        pass
    assert leases(root) == []


def run_jobs(seed: int, machine: str, root: str, number: int, width: int) -> None:
    """One run: some jobs at a time, every third is killed while it waits or holds."""
    rng, there = random.Random(seed), Machine(Path(machine))
    todo = list(range(number))
    live: dict[int, tuple[subprocess.Popen[bytes], float]] = {}
    while todo or live:
        while todo and len(live) < width:
            k = todo.pop(0)
            kill_s = time.monotonic() + rng.uniform(0.15, 0.9) if k % 3 == 0 else float("inf")
            gib = rng.choice((2, 4, 6, 10, 14, 20))
            described = lease_jobs.job(
                there,
                Path(root),
                gib,
                whole=rng.random() < 0.08,
                import_s=rng.uniform(0, 0.1),
                hold_s=5.0 if k % 6 == 0 else rng.uniform(0.02, 0.25),
                name=f"{seed}.{k}" + (" killed" if k % 3 == 0 else ""),
            )
            live[k] = start(described), kill_s
        for k, (process, kill_s) in list(live.items()):
            if time.monotonic() > kill_s:
                process.send_signal(signal.SIGKILL)
            if process.poll() is not None:
                if k % 3 and process.returncode:
                    there.broken.write_text(f"job {seed}.{k} exited {process.returncode}\n")
                del live[k]
        time.sleep(0.01)


def sample(machine: str, root: str, stop: Any) -> None:
    """Look every 5 ms from outside whether more is used than there is."""
    seen = 0
    while not stop.is_set():
        seen = max(seen, Machine(Path(machine)).check(Path(root) / "holding"))
        time.sleep(0.005)
    (Path(machine) / "sampled").write_text(str(seen))


@pytest.mark.parametrize(("number", "shows_pids"), [(67, True), (20, False)])
def test_three_runs_with_a_third_of_their_jobs_killed(
    tmp_path: Path, root: Path, number: int, shows_pids: bool
) -> None:
    machine = Machine(tmp_path / "machine")
    machine.build({"GPU-a": 25, "GPU-b": 25, "GPU-c": 13, "GPU-d": 25}, shows_pids=shows_pids)
    machine.set(foreign_gib={"GPU-d": 3})
    (root / "holding").mkdir(mode=0o700)
    stop = SPAWN.Event()
    sampler = SPAWN.Process(target=sample, args=(str(machine.folder), str(root), stop))
    runs = [
        SPAWN.Process(target=run_jobs, args=(seed, str(machine.folder), str(root), number, 6))
        for seed in range(3)
    ]
    for process in (sampler, *runs):
        process.start()
    for process in runs:
        process.join(400)
    stop.set()
    sampler.join(10)
    assert [process.exitcode for process in (sampler, *runs)] == [0] * 4, "something never ended"
    assert not machine.broken.exists(), machine.broken.read_text()
    assert int((machine.folder / "sampled").read_text()) > 3
    ended = [line["job"] for line in read_log(machine) if line["event"] == "ends"]
    assert sum("killed" not in job for job in ended) == 3 * sum(k % 3 > 0 for k in range(number))
    assert leases(root) == []
    left = [p.name for folder in ("waiting", "holding", "bells") for p in (root / folder).iterdir()]
    assert left == []
