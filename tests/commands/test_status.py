"""What ``tilewright-placement status`` says of runs that go on, ended, and were killed."""

import json
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from snakemake_scheduler_plugin_tilewright.commands.status import print_status, show_status
from snakemake_scheduler_plugin_tilewright.runtime.run_state import RunState, write_state
from tests.support.recorded import NO_PROCESS

JOBS, DONE = {"stitch": 4, "report": 1}, {"stitch": 3}


def said(state: RunState, ago_s: float = 20.0) -> str:
    out = StringIO()
    print_status(state, ["failed: x"], state.at_s + ago_s, Console(file=out, width=200))
    return out.getvalue()


def test_a_run_that_goes_on_has_ended_or_was_killed() -> None:
    now_s = time.time()
    running = said(RunState(now_s, now_s + 60.0, JOBS, DONE, 1, 0.5))
    assert running.startswith("running: begun ")
    for words in ("seen 20 s ago", "about 60 s left", "stitch  3/4", "report  0/1", "failed: x"):
        assert words in running
    assert said(RunState(0.0, 60.0, JOBS, DONE, ended=True)).startswith("ended before all was done")
    assert said(RunState(0.0, 60.0, JOBS, JOBS, ended=True)).startswith("complete: begun ")
    killed = RunState(0.0, 60.0, JOBS, DONE, 1, 0.5, pid=NO_PROCESS)
    assert said(killed).startswith("ended without writing its end; it was probably killed")
    elsewhere = RunState(0.0, 60.0, JOBS, DONE, 1, 0.5, host="another", pid=NO_PROCESS)
    assert said(elsewhere).startswith("running: ")
    assert said(elsewhere, 7200.0).startswith("not heard of for 2.0 h; look whether it still runs")


def test_failures_come_from_the_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"in which snakemake was started \(with"):
        show_status(tmp_path)
    folder = tmp_path / "placement"
    write_state(folder / "state.json", RunState(0.0, 60.0, JOBS, DONE))
    fail: dict[str, Any] = {"event": "fail", "cause": "memory", "words": "full", "log": "a.log"}
    events = [{"event": "run"}, {**fail, "job": "a"}, {**fail, "job": "b"}, {**fail, "job": "c"},
              {"event": "done", "job": "b", "pool": "x"}, {"event": "place", "job": "c"},
              {**fail, "job": "of the run before", "time_s": -1.0}]  # fmt: skip
    lines = [json.dumps({"time_s": 1.0, **event}) for event in events]
    (folder / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    show_status(tmp_path)
    out = capsys.readouterr().out
    assert "failed: a on no place: memory, full; log: a.log" in out
    assert out.count("failed: ") == 1
    write_state(folder / "state.json", RunState(0.0, 60.0, JOBS, DONE, ended=True))
    show_status(tmp_path)
    assert capsys.readouterr().out.count("failed: ") == 2
