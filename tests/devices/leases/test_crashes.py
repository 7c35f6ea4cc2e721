"""Killed holders, waiters and coordinators, folders that go: real processes, real locks."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.devices.leases import lease_jobs
from tests.devices.leases.lease_jobs import (
    GIB,
    Machine,
    holders,
    read_log,
    sample,
    start,
    until,
    waiters,
)
from tilewright.devices.budget import Request
from tilewright.devices.lease import (
    LeaseTimeoutError,
    lease,
    leases,
)

SPAWN = get_context("spawn")
#: For programs that import this project's tests.
PATH = os.pathsep.join([str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])])


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
    # by the log: to ask for the leases would remove those of the dead
    until(lambda: read_log(machine)[-1]["event"] == "holds")
    assert holders(root) == ["second"]
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
    assert time.time() - 30 < killed["time_s"] <= time.time()  # no margin


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


def test_only_the_lock_tells_whether_a_claim_lives(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    with lease(Request(GIB, "edf"), snapshot=machine.snapshot, root=root):
        (path,) = (root / "holding").iterdir()
        record = path.read_text()
        old = {**json.loads(record), "pid": dead.pid, "since_s": 0.0}
        path.write_text(json.dumps(old).ljust(len(record)))
        assert holders(root) == ["edf"]
    path.write_text(record)
    assert leases(root) == []
    assert not path.exists()


def test_a_granter_that_is_killed_before_the_move_has_granted_nothing(
    root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    holder = begin(20, hold_s=60, name="holder")
    until(lambda: holders(root))
    begin(20, hold_s=60, name="late")
    until(lambda: waiters(root))
    (path,) = (root / "waiting").iterdir()
    record = path.read_text()
    path.write_text(json.dumps({**json.loads(record), "uuid": "GPU-a"}).ljust(len(record)))
    assert (holders(root), waiters(root)) == (["holder"], ["late"])
    holder.kill()
    holder.wait()
    until(lambda: holders(root) == ["late"])


def test_a_lease_outlives_its_coordinator(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    go = root / "go"
    job = lease_jobs.job(machine, root, 20, until=go, name="orphan")
    code = "import sys, time; from tests.devices.leases.lease_jobs import start; "
    code += f"start({job!r}); time.sleep(60)"
    coordinator = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": PATH}
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


def test_a_program_that_a_killed_holder_started_does_not_keep_the_lease(
    machine: Machine, root: Path
) -> None:
    code = (
        "import subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from tests.devices.leases.lease_jobs import GIB, Machine\n"
        "from tilewright.devices.budget import Request\n"
        "from tilewright.devices.lease import lease\n"
        "machine, root = map(Path, sys.argv[1:])\n"
        "with lease(Request(20 * GIB, 'edf'), snapshot=Machine(machine).snapshot, root=root):\n"
        "    print(subprocess.Popen(['sleep', '60'], close_fds=False).pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(machine.folder), str(root)],
        env={**os.environ, "PYTHONPATH": PATH},
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    with holder.stdout:
        program = int(holder.stdout.readline())
    assert holders(root) == ["edf"]
    holder.kill()
    holder.wait()
    limited = Request(20 * GIB, "next", wait_limit_s=50)
    try:
        with lease(limited, snapshot=machine.snapshot, root=root):
            os.kill(program, 0)  # it lives
    finally:
        os.kill(program, signal.SIGKILL)


def waiting_job(
    root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> subprocess.Popen[bytes]:
    """Return a job that waits for another's device."""
    begin(20, hold_s=60, name="holder")
    until(lambda: holders(root))
    late = begin(20, name="late")
    until(lambda: waiters(root))
    return late


def test_a_folder_that_goes_while_a_job_waits_is_an_error(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    late = waiting_job(root, begin)
    root.rename(root.with_name("gone"))
    assert late.wait(50) == 1


def test_a_claim_that_is_removed_while_its_job_waits_is_an_error(
    machine: Machine, root: Path, begin: Callable[..., subprocess.Popen[bytes]]
) -> None:
    late = waiting_job(root, begin)
    (path,) = (root / "waiting").iterdir()
    path.unlink()
    assert late.wait(50) == 1


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
    left = [p.name for folder in ("waiting", "holding", "pipes") for p in (root / folder).iterdir()]
    assert left == []
