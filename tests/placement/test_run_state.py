"""That a run is active, in its file."""

import os
import time
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.runtime.run_state import (
    RunState,
    read_state,
    write_state,
)


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "placement/state.json"
    state = RunState(1.0, 2.0, True, "node", 7, "/data/\udcff")
    write_state(path, state)
    assert read_state(path) == state
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"state\.json does not say whose run it is of; remove it"):
        read_state(path)


def test_a_number_that_another_process_has_by_now_is_not_the_run() -> None:
    now_s = time.time()
    assert RunState(now_s, now_s).life(now_s) == "active"
    before = RunState(0.0, 60.0, pid=os.getpid())  # began before this process did
    assert before.life(now_s) == "killed"
