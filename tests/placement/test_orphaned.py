"""Jobs that write into a folder before a run begins there: whose they are, and what is done."""

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright.orphaned import (
    before_run,
    cancel_orphaned,
    find_orphaned,
    note_submission,
    refuse_second_run,
    sender_of,
)
from snakemake_scheduler_plugin_tilewright.runtime.errors import PlacementError, SlurmQueryError
from snakemake_scheduler_plugin_tilewright.runtime.ledger import LEDGER, STATE
from snakemake_scheduler_plugin_tilewright.runtime.run_state import RunState, write_state
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient
from tests.support.recorded import (
    HERE,
    NO_PROCESS,
    OTHERS,
    Queue,
    answer_with,
    client,
    queue_line,
)

PENDING = queue_line(JobID="5", State="PENDING", WorkDir="/data/run", Comment="group_b")
AWAY = SlurmQueryError("squeue", "Unable to contact slurm controller")


@dataclass
class Slurm:
    """What squeue answers, and what was cancelled."""

    queue: str | SlurmQueryError
    cancelling: str | SlurmQueryError = ""
    cancelled: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], stdin: str | None = None) -> str:
        if argv[0] == "scancel":
            self.cancelled.append(tuple(argv[1:]))
            return answer_with(self.cancelling)
        return answer_with(self.queue)

    def cancel(self, folder: str = "/data/run") -> None:
        """Cancel what was left in a folder."""
        jobs = find_orphaned(client(self), folder)
        cancel_orphaned(client(self), jobs, sender_of(Path(folder)))


def asking(queue: str | SlurmQueryError) -> SlurmClient:
    """Return what asks for a queue."""
    return client(Queue({"squeue": queue}))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmClient:
    """Return what asks for a queue with a job that runs in the working directory."""
    monkeypatch.chdir(tmp_path)
    return asking(job_in(Path.cwd()))


def job_in(folder: Path) -> str:
    return queue_line(JobID="7", State="RUNNING", WorkDir=str(folder), Comment="rule_a")


def said_here(folder: Path, **values: Any) -> RunState:
    """Write what a run of another process says in its working directory."""
    state = RunState(time.time() - 60, time.time() - 20, **values)
    write_state(folder / LEDGER.with_name(STATE), state)
    return state


def locked(folder: Path) -> None:
    lock = folder / ".snakemake/locks/0.output.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()


def test_those_of_a_folder_alone_are_found_and_no_queue_is_not_an_empty_one() -> None:
    assert find_orphaned(asking("\n".join(OTHERS)), "/data/run") == []
    found = find_orphaned(asking("\n".join([HERE, *OTHERS, PENDING])), "/data/run")
    assert [job.id for job in found] == [7, 5]
    with pytest.raises(PlacementError, match="is not known: squeue did not answer: Unable"):
        find_orphaned(asking(AWAY), "/data/run")


def test_those_that_were_left_are_cancelled() -> None:
    slurm = Slurm("\n".join([HERE, *OTHERS, PENDING]))
    slurm.cancel()
    assert slurm.cancelled == [("7", "5")]
    slurm = Slurm(HERE, cancelling=SlurmQueryError("scancel", "Invalid user"))
    with pytest.raises(PlacementError, match=r"could not be cancelled: scancel .* Invalid user"):
        slurm.cancel()


def test_a_run_refuses_beside_the_jobs_of_another_and_names_the_fix(
    here: SlurmClient, tmp_path: Path
) -> None:
    with pytest.raises(PlacementError) as caught:
        before_run(here, tmp_path)
    first, job, fix = str(caught.value).splitlines()
    assert first == f"1 job of an earlier run may still write into {tmp_path}:"
    assert job == "  7  RUNNING    rule_a"
    assert all(part in fix for part in ("`tilewright-placement orphaned --cancel`", "--unlock"))
    locked(tmp_path)
    with pytest.raises(PlacementError, match="of an earlier run"):
        before_run(here, tmp_path)
    said_here(tmp_path, pid=os.getppid())
    with pytest.raises(PlacementError, match="of the run that is active now") as caught:
        before_run(here, tmp_path)
    assert "--cancel" not in str(caught.value)
    assert isinstance(here.run, Queue)
    assert not any(word.startswith("scancel") for word in here.run.asked)


@pytest.mark.parametrize("state", ["COMPLETING", "SUSPENDED", "STOPPED", "OF_A_LATER_SLURM"])
def test_jobs_that_may_still_write_keep_a_run_away(tmp_path: Path, state: str) -> None:
    line = queue_line(JobID="7", State=state, WorkDir=str(tmp_path), Comment="rule_a")
    with pytest.raises(PlacementError, match="still write into"):
        before_run(asking(line), tmp_path)


def test_jobs_are_known_by_number_name_or_comment_whatever_a_site_rewrites(tmp_path: Path) -> None:
    name = "tw-0123abcd.7"
    note_submission(tmp_path / LEDGER.parent, 7, name)
    for values, found in (
        ({"JobID": "7", "Name": "site-1", "Comment": "billed"}, True),
        ({"JobID": "8", "Name": "site-1", "Comment": "billed"}, False),
        ({"JobID": "8", "Name": name, "Comment": "billed"}, True),
        ({"JobID": "8", "Name": "my own", "Comment": "rule_a_wildcards_x"}, True),
        ({"JobID": "8", "Name": "my own", "Comment": "group_b"}, True),
        ({"JobID": "8", "Name": f"{name} of mine", "Comment": "my rule_"}, False),
        ({"JobID": "7", "WorkDir": "/data/other"}, False),
        ({"JobID": "7", "State": "COMPLETED"}, False),
    ):
        line = queue_line(**{"State": "PENDING", "WorkDir": str(tmp_path), **values})
        assert bool(find_orphaned(asking(line), str(tmp_path))) == found, values
    before_run(asking(""), tmp_path)  # Slurm counts its jobs anew one day
    line = queue_line(JobID="7", State="RUNNING", WorkDir=str(tmp_path), Comment="mine")
    assert find_orphaned(asking(line), str(tmp_path)) == []


@pytest.mark.parametrize("life", ["active", "silent", "killed", "ended", "damaged", "earlier"])
def test_a_run_of_another_working_folder_keeps_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, life: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger, other, now_s = Path("results/placement/ledger.jsonl"), "/data/other", time.time()
    state = RunState(now_s, now_s, pid=os.getppid(), folder=other)
    if life == "silent":
        state = replace(state, host="node9", at_s=now_s - 700)
    elif life == "killed":
        state = replace(state, pid=NO_PROCESS)
    path = ledger.absolute().with_name(STATE)
    write_state(path, replace(state, ended=life == "ended"))
    if life == "damaged":
        path.write_text("{")
    if life == "earlier":
        path.write_text(json.dumps({**json.loads(path.read_text()), "jobs": {}, "done": {}}))
    left = queue_line(JobID="7", State="RUNNING", WorkDir=other, Comment="rule_a")
    with pytest.raises(PlacementError) as caught:
        before_run(asking(left), tmp_path, ledger)
    said = str(caught.value)
    assert {
        # what is ago depends on the load of this machine
        "active": f"a run in {other} (process {state.pid} on {state.host}, seen N s ago) writes",
        "silent": "seen N min ago, and cannot be seen from here) writes the same results",
        "killed": f"1 job of an earlier run may still write into {other}:",
        "ended": f"these commands are for the folder {other}",
        "damaged": f"{path} does not say whose run it is of; remove it if no run is active",
        "earlier": f"{path} does not say whose run it is of; remove it if no run is active",
    }[life] in re.sub(r"seen [0-9.]+ ", "seen N ", said)
    if life in ("killed", "ended"):
        before_run(asking(""), tmp_path, ledger)
    monkeypatch.chdir("/")
    write_state(path, replace(state, folder="/"))
    assert refuse_second_run(path.with_name("ledger.jsonl")) == ""


def test_a_folder_with_a_line_break_stops(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match="has a line break in its name"):
        before_run(asking(""), tmp_path / "a\nb")


def test_a_run_says_itself_that_it_is_active_and_the_lock_says_less(tmp_path: Path) -> None:
    assert sender_of(tmp_path).active is False
    locked(tmp_path)
    assert sender_of(tmp_path).active is None
    assert sender_of(tmp_path, has_lock=True).active is False
    state = said_here(tmp_path, pid=os.getppid())
    active = sender_of(tmp_path, has_lock=True)
    assert active.active is True
    assert re.fullmatch(
        rf"of the run that is active now \(process {state.pid} on {state.host}, seen \d+ s ago\)",
        active.words,
    )
    assert f"`kill -INT {state.pid}` on {state.host}" in active.advice
    said_here(tmp_path, pid=NO_PROCESS)
    assert sender_of(tmp_path).active is False
    said_here(tmp_path, pid=os.getppid(), ended=True)
    assert sender_of(tmp_path).active is None
    said_here(tmp_path, pid=os.getpid())
    assert sender_of(tmp_path, has_lock=True).active is False


def test_a_run_on_another_machine_is_active_while_it_writes(tmp_path: Path) -> None:
    state = said_here(tmp_path, host="another", pid=7)
    assert sender_of(tmp_path).active is True
    path = tmp_path / LEDGER.with_name(STATE)
    write_state(path, replace(state, at_s=time.time() - 7200))
    silent = sender_of(tmp_path)
    assert silent.active is None
    assert "process 7 on another was last heard of 2.0 h ago" in silent.words
    assert "only where that run is not active" in silent.advice
    path.write_text("{")  # damaged
    assert sender_of(tmp_path).active is False


def test_the_jobs_of_an_active_run_are_not_cancelled(tmp_path: Path) -> None:
    slurm = Slurm(job_in(tmp_path))
    said_here(tmp_path, pid=os.getppid())
    with pytest.raises(PlacementError, match="while that run is active; stop it first: Ctrl-C"):
        slurm.cancel(str(tmp_path))
    assert slurm.cancelled == []


def test_jobs_of_a_run_that_may_be_active_are_cancelled(tmp_path: Path) -> None:
    locked(tmp_path)
    slurm = Slurm(job_in(tmp_path))
    slurm.cancel(str(tmp_path))
    assert slurm.cancelled == [("7",)]
    found = find_orphaned(client(slurm), str(tmp_path))
    listed = sender_of(tmp_path).listed(found, str(tmp_path))
    assert listed.startswith("1 job of a run that may be active (the folder is locked; the run")
