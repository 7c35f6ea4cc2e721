"""How far a run is, in words and in its file."""

import os
import time
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.runtime.run_state import (
    RunState,
    read_state,
    write_state,
)

JOBS = {"stitch": 4, "report": 1}


def test_what_is_said_grows_with_what_is_known() -> None:
    begun = RunState(100.0, 105.0, JOBS, {}, running=2)
    assert begun.line() == "0 of 5 jobs done, 0 % of the work, 2 running"
    sent = RunState(100.0, 105.0, JOBS, {}, running=1, queued=1)
    assert sent.line() == "0 of 5 jobs done, 0 % of the work, 1 running, 1 in Slurm's queue"
    half = RunState(100.0, 160.0, JOBS, {"stitch": 3}, 1, 0.5, {"no slot": 1, "busy": 3})
    assert half.line() == (
        "3 of 5 jobs done, 50 % of the work, 1 running, about 60 s left (stitch 3/4); "
        "3 wait: busy; 1 waits: no slot"
    )
    assert not half.complete
    done = RunState(100.0, 220.0, JOBS, JOBS, 0, 1.0, ended=True)
    assert done.complete
    assert done.line() == "5 of 5 jobs done, 100 % of the work"


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "placement/state.json"
    state = RunState(1.0, 2.0, JOBS, {"report": 1}, 2, 0.25, {"no slot": 1})
    write_state(path, state)
    assert read_state(path) == state
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"state\.json does not say how far a run is"):
        read_state(path)


def test_a_number_that_another_process_has_by_now_is_not_the_run() -> None:
    now_s = time.time()
    assert RunState(now_s, now_s, JOBS, {}).life(now_s) == "active"
    before = RunState(0.0, 60.0, JOBS, {}, pid=os.getpid())  # began before this process did
    assert before.life(now_s) == "killed"
