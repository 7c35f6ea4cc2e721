"""What runs of one person tell each other, so that two of them do not fill the same room."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.placement.capacity import Claim
from snakemake_scheduler_plugin_tilewright.placement.submission_lock import SubmissionLock

ONE = Claim("clive", {"cpu": 8, "mem": 100, "gres/gpu": 1, "jobs": 1})
TWO = Claim("maigan", {"cpu": 4})


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


def two(folder: Path) -> tuple[Run, Run, list[float]]:
    now = [1000.0]
    runs = Run(folder, pid=1, now=now), Run(folder, pid=2, now=now)
    with runs[0].alone():
        return *runs, now


def test_runs_see_each_others_claims_and_not_their_own(tmp_path: Path) -> None:
    first, second, _ = two(tmp_path / "cache/claims")
    first.add([ONE, ONE])
    second.add([TWO])
    assert first.others() == [TWO]
    assert second.others() == [ONE, ONE]


def test_a_claim_is_seen_for_15_seconds_and_its_file_vanishes_then(tmp_path: Path) -> None:
    first, second, now = two(tmp_path)
    first.add([ONE])
    now[0] += 10
    first.add([TWO])
    assert second.others() == [ONE, TWO]
    now[0] += 4.9
    assert second.others() == [ONE, TWO]
    now[0] += 0.2
    assert second.others() == [TWO]
    assert len(list(tmp_path.glob("*.json"))) == 1
    now[0] += 10
    assert second.others() == []
    second.add([ONE])
    assert [path.name for path in tmp_path.glob("*.json")] == [second._path.name]


def test_claims_that_are_old_are_not_written_again(tmp_path: Path) -> None:
    first, second, now = two(tmp_path)
    first.add([ONE])
    now[0] += 16
    first.add([TWO])
    (file,) = tmp_path.glob("*.json")
    assert [sent["account"] for sent in json.loads(file.read_text())] == ["maigan"]
    assert second.others() == [TWO]
    assert first.others() == []


@pytest.mark.parametrize("text", ["", "{", "3", "null", '[{"time_s": 1000}]', "[3]", "\x00"])
def test_a_damaged_file_does_not_hide_the_claims_of_the_others(tmp_path: Path, text: str) -> None:
    first, second, _ = two(tmp_path)
    (tmp_path / "aaa.json").write_text(text)
    (tmp_path / "zzz.json").write_bytes(b"\xff\xfe")
    first.add([ONE])
    assert second.others() == [ONE]


@pytest.mark.parametrize("folder", ["file/claims", "file"])
def test_a_folder_that_cannot_be_written_does_not_stop_a_run(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    first = Run(tmp_path / folder, pid=1)
    entered = 0
    with first.alone():
        entered += 1
        first.add([ONE])
    assert entered == 1
    assert first.others() == []


def test_an_error_inside_the_lock_is_not_swallowed_and_frees_it(tmp_path: Path) -> None:
    first, second, _ = two(tmp_path)
    with pytest.raises(OSError, match="own"), first.alone():
        raise OSError("own")
    with second.alone():
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="own"), Run(tmp_path / "file").alone():
        raise OSError("own")


_HOLDER = """
import sys, time
from pathlib import Path
from snakemake_scheduler_plugin_tilewright.placement.capacity import Claim
from snakemake_scheduler_plugin_tilewright.placement.submission_lock import SubmissionLock
claims = SubmissionLock(Path(sys.argv[1]))
print("trying", flush=True)
with claims.alone():
    print(time.monotonic(), flush=True)
    claims.add([Claim("clive", {"cpu": 8})])
    sys.stdin.readline()
    print(time.monotonic(), flush=True)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "trying\n"
    return process


def test_the_lock_keeps_another_process_out_until_it_is_left(tmp_path: Path) -> None:
    with start(tmp_path) as holder:
        assert holder.stdout is not None
        held_s = float(holder.stdout.readline())
        with start(tmp_path) as blocked, start(tmp_path / "other") as free:
            assert free.stdout is not None
            other_s = float(free.stdout.readline())  # another folder is another lock
            time.sleep(0.3)
            left_s = float(holder.communicate("\n")[0])
            entered_s, _ = map(float, blocked.communicate("\n")[0].split())
            free.communicate("\n")
    assert held_s < left_s < entered_s  # no margin
    assert other_s < left_s  # no margin
    assert SubmissionLock(tmp_path).others() == [Claim("clive", {"cpu": 8})] * 2


def test_a_claim_of_a_clock_that_is_ahead_counts_for_no_longer_than_one_that_is_held(
    tmp_path: Path,
) -> None:
    first, second, now = two(tmp_path)
    ahead = Run(tmp_path, pid=3, now=[now[0] + 86_400])
    ahead.add([ONE])
    first.add([], held=[TWO])
    assert second.others() == [TWO]
    second.add([ONE])  # and its file is not kept
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["here-1.json", "here-2.json"]
