"""Records that are damaged: passed over and counted, never an error and never a hang."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.report.page import run_section, write_run_report
from snakemake_scheduler_plugin_tilewright.runtime.cause import cause_line, last_line, read_cause
from snakemake_scheduler_plugin_tilewright.runtime.ledger import (
    read_ledger,
    runs_of,
    summary_lines,
)
from snakemake_scheduler_plugin_tilewright.runtime.run_state import (
    RunState,
    read_state,
    write_state,
)

T0 = 1_795_252_000.0
JOB = {"job": "rule_a_wildcards_x", "rule": "a", "pool": "lab gpu", "account": "lab", "kind": "gpu"}
LEDGER: list[dict[str, Any]] = [
    {"event": "run", "run": "1", "user": "me", "kinds": ["gpu"],
     "pools": {"lab gpu": ["lab", "gpu", 2]}, "left_out": {"poor": "no"}, "notes": ["a note"]},
    {"event": "room", "about": "slurm", "closed": {"lab gpu": "job 7 holds it"}},
    {"event": "wait", "ready": 2, "why": {"no slot": 2}},
    {"event": "place", **JOB, "reason": "free", "cpus": 2},
    {"event": "hold", "reason": "silent", "ready": 1},
    {"event": "done", **JOB, "start_s": T0 + 3, "end_s": T0 + 9, "sent_s": T0 + 2},
    {"event": "place", **JOB, "reason": "free"},
    {"event": "pend", "job": JOB["job"], "slurm_id": 7, "reason": "Priority", "words": "waits"},
    {"event": "move", "job": JOB["job"], "slurm_id": 7, "reason": "late", "sooner": "x gpu"},
    {"event": "fail", **JOB, "cause": "memory", "words": "full", "node": "n1", "slurm_id": 8,
     "log": "a.log", "next": "is tried again", "start_s": T0 + 10, "end_s": T0 + 30},
]  # fmt: skip
LEDGER = [{"time_s": T0 + 4.0 * k, **event} for k, event in enumerate(LEDGER)]
STATE = RunState(T0, T0 + 60)


def of_ledger(path: Path) -> None:
    events = read_ledger(path)
    for run in runs_of(events):
        summary_lines(run)
    if run_section(path, path.with_name("page.html")):
        write_run_report(path, path.with_name("page.html"))


def of_state(path: Path) -> None:
    try:
        read_state(path)
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017


USES: dict[str, tuple[Callable[[Path], Any], str, list[Any]]] = {
    "ledger": (of_ledger, "ledger.jsonl", LEDGER),
    "state": (of_state, "state.json", [json.loads(json.dumps(STATE.__dict__))]),
}
odd: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 1e308, -1e308, 1e11, float("nan"), float("inf"), 10**400, 2**63, "", "x",
     "\x1b[2J", "[/x]", "\ud800", "\x00", [], [[]], [1], {}, {"x": {}},
     {"x": [1, 2, 3]}, {"": None}, {"lab gpu": -1},
     {"lab gpu": ["a", "b", 10**12]}, {"lab gpu": 1e308}, -5, 4e9, "x" * 5000, 0.5]
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "placement"
    made.mkdir()
    return made


@pytest.mark.parametrize("examples", [150, pytest.param(500, marks=pytest.mark.long)])
def test_every_single_odd_value_is_borne(folder: Path, examples: int) -> None:
    use, file, lines = USES["ledger"]

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, len(lines) - 1), st.integers(0, 20), odd)
    def check(at: int, key: int, value: Any) -> None:
        entry = lines[at]
        changed = {**entry, sorted(entry)[key % len(entry)]: value}
        entries = [*lines[:at], changed, *lines[at + 1 :]]
        (folder / file).write_text("".join(f"{json.dumps(line)}\n" for line in entries))
        use(folder / file)

    check()


@pytest.mark.parametrize(
    ("key", "value"),
    [*(("pid", pid) for pid in (-1, 0, True, 2**70, "1", None)), ("began_s", 1e308),
     *(("at_s", at_s) for at_s in (None, float("nan"), "x", [1])), ("ended", "no"), ("ended", 1),
     ("host", 3), ("host", "a\x1b[2J"), ("folder", 7), ("folder", None), ("more", 1)],
)  # fmt: skip
def test_a_damaged_state_is_named(tmp_path: Path, key: str, value: Any) -> None:
    path = tmp_path / "placement/state.json"
    write_state(path, STATE)
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ValueError, match=r"state\.json does not say whose run it is of; remove it"):
        read_state(path)


def test_what_is_no_file_is_not_waited_for(folder: Path) -> None:
    """A pipe to which nobody writes, and a device that never ends."""
    ledger, state, log = (folder / name for name in ("ledger.jsonl", "state.json", "a.log"))
    for path in (ledger, state, log):
        os.mkfifo(path)
    assert read_ledger(ledger).note == f"{ledger} cannot be read (it is no file) and is ignored"
    assert last_line(str(log)) == ""
    with pytest.raises(OSError, match="it is no file"):
        read_state(state)
    log.unlink()
    log.symlink_to("/dev/zero")
    assert last_line(str(log)) == ""


def test_the_end_of_a_large_log_is_read_alone(folder: Path) -> None:
    log = folder / "a.log"
    with log.open("wb") as stream:
        stream.truncate(2**33)  # a hole
        stream.seek(0, os.SEEK_END)
        stream.write(b"\nno tissue\n\n")
    assert last_line(str(log)) == "no tissue"
    log.write_text(f"{cause_line('error', 'x')[:-1]}\n")
    assert read_cause(last_line(str(log)))[0] == "error"
    assert read_cause(f"tilewright-cause {'[' * 100_000}")[0] == "error"
