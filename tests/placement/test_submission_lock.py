"""What runs of one person tell each other, so that two of them do not fill the same room."""

import time
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.cluster.pending_use import PendingUse
from snakemake_scheduler_plugin_tilewright.placement.submission_lock import SubmissionLock
from tests.support.forked import fork

ONE = PendingUse("clive", {"cpu": 8, "mem": 100, "gres/gpu": 1, "jobs": 1})
TWO = PendingUse("maigan", {"cpu": 4})


@dataclass
class Run(SubmissionLock):
    """Claims of a run with another process number, since two runs are two processes."""

    pid: int = 0
    now: list[float] = field(default_factory=lambda: [1000.0])

    def __post_init__(self) -> None:
        self.clock = lambda: self.now[0]

    @property
    def _path(self) -> Path:
        return self.folder / f"here-{self.pid}.json"


Two = tuple[Run, Run, list[float]]


@pytest.fixture
def runs(tmp_path: Path) -> Two:
    now = [1000.0]
    first, second = (Run(tmp_path / "cache/claims", pid=pid, now=now) for pid in (1, 2))
    with first.alone():
        return first, second, now


def files(run: Run) -> list[str]:
    return sorted(path.name for path in run.folder.glob("*.json"))


def test_a_claim_is_seen_by_others_for_15_seconds_and_its_file_vanishes_then(runs: Two) -> None:
    first, second, now = runs
    first.add([ONE, ONE])
    now[0] += 10
    first.add([TWO])
    assert (first.others(), second.others()) == ([], [ONE, ONE, TWO])
    now[0] += 4.9
    assert second.others() == [ONE, ONE, TWO]
    now[0] += 0.2
    assert second.others() == [TWO]
    first.add([TWO])
    assert "clive" not in (first.folder / "here-1.json").read_text()
    assert files(first) == ["here-1.json"]
    now[0] += 20
    assert second.others() == []
    second.add([ONE])
    assert files(first) == ["here-2.json"]
    assert first.others() == [ONE]


def test_a_claim_of_a_clock_that_is_ahead_does_not_count(runs: Two) -> None:
    first, second, now = runs
    Run(first.folder, pid=3, now=[now[0] + 86_400]).add([ONE])
    first.add([TWO])
    assert second.others() == [TWO]
    second.add([ONE])  # and its file is not kept
    assert files(first) == ["here-1.json", "here-2.json"]


@pytest.mark.parametrize("text", ["", "{", "3", "null", '[{"time_s": 1000}]', "[3]", "\x00"])
def test_a_damaged_file_does_not_hide_the_claims_of_the_others(runs: Two, text: str) -> None:
    first, second, _ = runs
    (first.folder / "aaa.json").write_text(text)
    (first.folder / "zzz.json").write_bytes(b"\xff\xfe")
    first.add([ONE])
    assert second.others() == [ONE]


@pytest.mark.parametrize("folder", ["file/claims", "file", "cache/claims"])
def test_neither_a_bad_folder_nor_an_error_holds_the_lock(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "cache/claims").mkdir(parents=True)
    first = Run(tmp_path / folder, pid=1)
    first.add([ONE])
    with pytest.raises(OSError, match="own"), first.alone():
        raise OSError("own")
    assert first.others() == []
    entered = 0
    with Run(tmp_path / folder, pid=2).alone():
        entered += 1
    assert entered == 1


def hold(folder: Path, said: Connection) -> None:
    """Say when the lock is had and when it is given back, which is where the other side says so."""
    lock = SubmissionLock(folder)
    said.send("tries")
    with lock.alone():
        said.send(time.monotonic())
        lock.add([PendingUse("clive", {"cpu": 8})])
        said.recv()
        said.send(time.monotonic())


def start(folder: Path) -> Connection:
    here, there = Pipe()
    fork(hold, folder, there)
    assert here.recv() == "tries"
    return here


def test_the_lock_keeps_another_process_out_until_it_is_left(tmp_path: Path) -> None:
    first = start(tmp_path)
    held_s = first.recv()
    blocked, free = start(tmp_path), start(tmp_path / "other")
    other_s = free.recv()  # another folder is another lock
    assert not blocked.poll(0.3)
    for one in (first, blocked, free):
        one.send("leave")
    left_s, entered_s, _ = first.recv(), blocked.recv(), blocked.recv()
    assert held_s < left_s < entered_s
    assert other_s < left_s
    assert SubmissionLock(tmp_path).others() == [PendingUse("clive", {"cpu": 8})] * 2
