"""Killed holders, waiters and coordinators, folders that go: real processes, real locks."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.devices.leases.conftest import Own
from tests.devices.leases.lease_jobs import (
    GIB,
    Job,
    Jobs,
    Machine,
    code,
    holders,
    kill,
    until,
    waiters,
)
from tests.support.forked import fork
from tilewright.devices.budget import Request
from tilewright.devices.lease import LeaseTimeoutError, lease, leases


def test_a_killed_holder_and_a_killed_waiter_block_nobody_and_are_noted(
    machine: Machine, root: Path, jobs: Jobs
) -> None:
    began_s = time.time()
    holder, first = jobs.holder(20, "holder"), jobs.waiter(20, "first")
    jobs.waiter(20, "second", hold_s=600)
    kill(first)
    kill(holder)
    # by the log: to ask for the leases would remove those of the dead
    until(lambda: "second" in machine.said("holds"))
    assert (holders(root), waiters(root)) == (["second"], [])
    found = {line["job"]: line for line in machine.lines()}
    assert {name: (line["outcome"], line["uuid"]) for name, line in found.items()} == {
        "holder": ("failed", "GPU-a"),
        "first": ("not granted", ""),
    }
    killed = found["holder"]
    assert (killed["reason"], killed["held_s"]) == ("its process was killed", None)
    assert (killed["requested_b"], killed["granted_b"]) == (20 * GIB, 20 * GIB)
    assert began_s <= killed["time_s"] <= time.time()


def test_a_folder_that_goes_while_a_job_computes_fails_nothing(
    machine: Machine, root: Path, own: Own, caplog: pytest.LogCaptureFixture
) -> None:
    with own(Request(GIB, "edf"), evidence=machine.evidence):
        shutil.rmtree(root)
    assert machine.lines()[0]["outcome"] == "done"
    assert "was not handed on" in caplog.text


def test_claims_of_another_version_are_understood(root: Path, own: Own) -> None:
    with own(Request(20 * GIB, "later")):
        (path,) = (root / "holding").iterdir()
        told = json.loads(path.read_text())
        told["colour"] = told["request"]["shape"] = "new"
        path.write_text(json.dumps(told).ljust(4096))
        assert holders(root) == ["later"]
        with pytest.raises(LeaseTimeoutError), own(Request(20 * GIB, "edf", wait_limit_s=0.2)):
            pass


def test_only_the_lock_tells_whether_a_claim_lives(root: Path, own: Own) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    with own(Request(GIB, "edf")):
        (path,) = (root / "holding").iterdir()
        record = path.read_text()
        old = {**json.loads(record), "pid": dead.pid, "since_s": 0.0}
        path.write_text(json.dumps(old).ljust(len(record)))
        assert holders(root) == ["edf"]
    path.write_text(record)
    assert leases(root) == []
    assert not path.exists()


def test_a_granter_that_is_killed_before_the_move_has_granted_nothing(
    root: Path, jobs: Jobs
) -> None:
    holder = jobs.holder(20, "holder")
    jobs.waiter(20, "late", hold_s=600)
    (path,) = (root / "waiting").iterdir()
    record = path.read_text()
    path.write_text(json.dumps({**json.loads(record), "uuid": "GPU-a"}).ljust(len(record)))
    assert (holders(root), waiters(root)) == (["holder"], ["late"])
    kill(holder)
    until(lambda: holders(root) == ["late"])


def coordinate(job: Job) -> None:
    """Let another process run a job, and wait for nothing."""
    if os.fork() == 0:
        job()
        os._exit(0)
    signal.pause()


def test_a_lease_outlives_its_coordinator(machine: Machine, root: Path, jobs: Jobs) -> None:
    go = root / "go"
    coordinator = fork(coordinate, Job(machine, root, Request(20 * GIB, "orphan"), until=go))
    until(lambda: holders(root) == ["orphan"])
    kill(coordinator)
    jobs.waiter(20, "rerun")
    assert code(jobs.start(2, "small")) == 0  # so all claims were looked at
    assert (holders(root), waiters(root)) == (["orphan"], ["rerun"])
    go.touch()
    until(lambda: leases(root) == [])
    assert machine.said("ends") == ["small", "orphan", "rerun"]


def hold_beside_a_program(machine: Machine, root: Path) -> None:
    """Hold, and start a program that gets all descriptors."""
    with lease(Request(20 * GIB, "edf"), snapshot=machine.snapshot, root=root):
        machine.say("started", str(subprocess.Popen(["sleep", "600"], close_fds=False).pid))
        signal.pause()


def test_a_program_that_a_killed_holder_started_does_not_keep_the_lease(
    machine: Machine, root: Path, own: Own
) -> None:
    holder = fork(hold_beside_a_program, machine, root)
    until(lambda: machine.said("started"))
    assert holders(root) == ["edf"]
    kill(holder)
    program = int(machine.said("started")[0])
    try:
        with own(Request(20 * GIB, "next", wait_limit_s=300)):
            os.kill(program, 0)  # it lives
    finally:
        os.kill(program, signal.SIGKILL)


def test_a_waiter_killed_while_it_is_woken_fails_nobody(
    root: Path, jobs: Jobs, own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies between the opening of its pipe and the writing."""
    opened = os.open
    late: list[BaseProcess] = []

    def open_and_kill(path: str | Path, flags: int, mode: int = 0o777) -> int:
        descriptor = opened(path, flags, mode)
        if Path(path).parent == root / "pipes" and flags & os.O_WRONLY and late:
            kill(late.pop())
        return descriptor

    with own(Request(20 * GIB, "holder")):
        late.append(jobs.waiter(20, "late"))
        monkeypatch.setattr(os, "open", open_and_kill)
        with own(Request(GIB, "small")):
            pass
    monkeypatch.undo()
    assert (holders(root), waiters(root), late) == ([], [], [])


@pytest.mark.parametrize("goes", ["the folder", "the claim"])
def test_what_goes_while_a_job_waits_is_its_error(root: Path, jobs: Jobs, goes: str) -> None:
    jobs.holder(20, "holder")
    late = jobs.waiter(20, "late")
    if goes == "the folder":
        root.rename(root.with_name("gone"))
    else:
        next((root / "waiting").iterdir()).unlink()
    assert code(late) == 1


@pytest.mark.parametrize(
    ("number", "shows_pids"),
    [(60, True), (60, False), pytest.param(201, True, marks=pytest.mark.long)],
)
def test_of_many_jobs_a_third_is_killed(
    tmp_path: Path, root: Path, number: int, shows_pids: bool
) -> None:
    """18 at a time; those killed wait then, hold, or are on the way."""
    totals = {"GPU-a": 25, "GPU-b": 25, "GPU-c": 13, "GPU-d": 25}
    machine, rng = Machine(tmp_path / "machine", totals, shows_pids=shows_pids), random.Random(1)
    machine.set(foreign_gib={"GPU-d": 3})
    (root / "holding").mkdir(mode=0o700)
    over, most = tmp_path / "over", tmp_path / "most"
    sampler, begun = fork(machine.sample, root, over, most), list[BaseProcess]()
    for k in range(number):
        until(lambda: sum(process.is_alive() for process in begun) < 18)
        job = Job(
            machine,
            root,
            Request(rng.choice((2, 4, 6, 10, 14, 20)) * GIB, f"{k}", rng.random() < 0.08),
            hold_s=5.0 if k % 6 == 0 else rng.uniform(0.02, 0.25),
            import_s=rng.uniform(0, 0.1),
            die_s=0.0 if k % 3 else rng.uniform(0.001, 0.8),
        )
        begun.append(fork(job))
    codes = [code(process, 400) for process in begun]
    over.touch()
    assert code(sampler) == 0
    assert [found for k, found in enumerate(codes) if k % 3] == [0] * (number * 2 // 3)
    assert set(codes[::3]) <= {0, -signal.SIGALRM}
    assert {*codes[::6]} == {-signal.SIGALRM}
    assert not machine.broken.exists(), machine.broken.read_text()
    assert int(most.read_text()) > 3
    assert {str(k) for k in range(number) if k % 3} <= {*machine.said("ends")}
    assert leases(root) == []
    assert not [p for name in ("waiting", "holding", "pipes") for p in (root / name).iterdir()]
    # one that is killed as it gets its device has a line and never said that it held
    held = {*machine.said("holds")}
    noted = Counter(line["job"] for line in machine.lines() if line["outcome"] != "not granted")
    assert {noted[str(k)] for k in range(number) if k % 3} == {1}
    assert max(noted[str(k)] for k in range(0, number, 6)) <= 1
    assert held <= {*noted} <= held | {str(k) for k in range(0, number, 3)}
