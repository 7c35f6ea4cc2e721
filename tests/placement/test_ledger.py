"""The ledger of a run, and what the run says of itself at its end."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.placement.ledger import (
    Ledger,
    last_waiting,
    read_ledger,
    summary_lines,
)
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from snakemake_scheduler_plugin_tilewright.runtime.cause import cause_line
from snakemake_scheduler_plugin_tilewright.runtime.run_state import RunState
from tests.support.placement_rules import Rules
from tests.support.recorded import cluster_with

DONE: dict[str, Any] = {"event": "done", "job": "rule_a", "pool": "clive_cpu"}
FAIL: dict[str, Any] = {
    "event": "fail",
    "job": "rule_a",
    "pool": "clive_gpu",
    "cause": "memory",
    "words": "OUT_OF_MEMORY, exit 0:125",
    "slurm_id": 7,
    "node": "b1",
    "log": "logs/a b.log",
}


def test_events_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "results/ledger.jsonl"
    ledger = Ledger(path, clock=lambda: 12.34567)
    ledger.write("place", job="rule_a", node=None, reason="größte\nKette", cpus=8, exclude=["b1"])
    ledger.write("done", job="rule_a")
    assert list(read_ledger(path)) == [
        {"time_s": 12.346, "event": "place", "job": "rule_a", "reason": "größte\nKette",
         "cpus": 8, "exclude": ["b1"]},
        {"time_s": 12.346, "event": "done", "job": "rule_a"},
    ]  # fmt: skip
    assert list(read_ledger(tmp_path / "none.jsonl")) == []


@given(st.integers(1, 200))
def test_a_ledger_cut_anywhere_loses_its_last_event_only(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = Ledger(path)
    for number in range(3):
        ledger.write("done", job=f"größer_{number}")
    whole = path.read_bytes()
    kept = whole[: max(0, len(whole) - cut)]
    path.write_bytes(kept)
    complete = kept.count(b"\n")
    found = [event["job"] for event in read_ledger(path)]
    # a line that lost nothing but its newline is whole
    assert len(found) in (complete, complete + 1)
    assert found == [f"größer_{number}" for number in range(len(found))]


def test_what_is_no_event_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(
        b'{"time_s": 1, "event": "done"}\n\xff\xfe\n[1]\n3\n{"event": "done"}\n\n{"time_s": 2}\n'
    )
    assert list(read_ledger(path)) == [{"time_s": 1, "event": "done"}]


def test_a_change_is_said_once_and_again_when_it_comes_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    said = [
        ledger.write_change("hold", "slurm", reason="down"),
        ledger.write_change("hold", "slurm", reason="down"),
        ledger.write_change("notes", "survey", notes=["old"]),
        ledger.write_change("room", "slurm", closed={}),
        ledger.write_change("hold", "slurm", reason="down"),
        ledger.write_change("notes", "survey", notes=["old"]),
    ]
    assert said == [True, False, True, True, True, False]
    events = [event["event"] for event in read_ledger(ledger.path)]
    assert events == ["hold", "notes", "room", "hold"]


def test_that_slurm_does_not_answer_is_why_jobs_wait_until_it_does(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.write("run")
    ledger.write("wait", ready=2, why={"no slot is free": 2})
    silent = "squeue did not answer: Unable to contact slurm controller"
    ledger.write_change("hold", "slurm", reason=silent, ready=0)
    waiting = last_waiting(ledger.path)
    assert waiting == {silent: 0}
    assert RunState(0, 1, {"a": 3}, {}, waiting=waiting).line().endswith(f"work; {silent}")
    ledger.write_change("room", "slurm", closed={})
    assert last_waiting(ledger.path) == {"no slot is free": 2}


def test_who_failed_first_and_is_done_then_has_not_failed() -> None:
    lines = summary_lines([FAIL, {"event": "move"}, DONE, {**DONE, "job": "rule_b"}], ["snakemake"])
    assert lines == ["placement: 2 jobs done (clive_cpu 2), 1 moved"]
    assert summary_lines([{"event": "place", "job": "rule_a"}], ["snakemake"]) == []


def test_a_group_is_one_job_and_its_members_are_told() -> None:
    first, *_ = summary_lines([DONE, {**DONE, "job": "group_b", "members": 4}], ["snakemake"])
    assert first == "placement: 2 jobs (5 of Snakemake's, some in groups) done (clive_cpu 2)"


def test_who_failed_is_named_with_node_job_cause_and_log() -> None:
    first, failed, resume = summary_lines([DONE, {**FAIL, "job": "rule_b"}], ["snakemake", "qc"])
    assert first == "placement: 1 job done (clive_cpu 1)"
    assert failed == (
        "failed: rule_b on b1, Slurm job 7: memory, OUT_OF_MEMORY, exit 0:125; log: logs/a b.log"
    )
    assert resume == "resume with: snakemake qc"
    poor = {
        key: value for key, value in FAIL.items() if key not in ("node", "slurm_id", "log", "pool")
    }
    assert summary_lines([poor], ["x"])[1] == (
        "failed: rule_a on no place: memory, OUT_OF_MEMORY, exit 0:125"
    )


@given(st.lists(st.text(max_size=12), max_size=4))
def test_the_command_that_resumes_can_be_pasted_into_a_shell(arguments: list[str]) -> None:
    last = summary_lines([FAIL], ["/opt/bin/snakemake", *arguments])[-1]
    assert shlex.split(last.removeprefix("resume with: ")) == ["snakemake", *arguments]


def test_the_end_speaks_of_the_last_run_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, _ = cluster_with("", tmp_path / "cache")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    plan = Plan(Rules({}), cluster=cluster, ledger=ledger.path)
    plan.at_end(lambda: ledger.write(**DONE))
    ledger.write("run", run="1")
    ledger.write(**FAIL)
    ledger.write("run", run="2")
    plan.estimates.durations.learn("a", "cpu", 1.0, 2.0)
    plan.end()
    assert capsys.readouterr().err == "placement: 1 job done (clive_cpu 1)\n"
    assert cluster.durations_file.is_file()
    Plan(Rules({}), ledger=ledger.path).end()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys, "argv", ["/opt/bin/snakemake", "qc"])
    Plan(Rules({}), ledger=ledger.path).end(failed=True)
    resume = "what is finished is kept; resume with: snakemake qc\n"
    assert capsys.readouterr().err == resume
    old = tmp_path / "logs/stitch/a.log"
    old.parent.mkdir(parents=True)
    old.write_text(f"{cause_line('error', 'ValueError: the run before')}\n")
    os.utime(old, (1, 1))
    failing = Plan(Rules({}), ledger=ledger.path, logs=tmp_path / "logs")
    (tmp_path / "logs/stitch/b.log").write_text("this one did not fail\n")
    new = tmp_path / "logs/register/c.log"
    new.parent.mkdir()
    new.write_text(f"much\n{cause_line('error', 'ValueError: no tissue')}\n")
    failing.end(failed=True)
    assert capsys.readouterr().err == f"failed: ValueError: no tissue; log: {new}\n{resume}"


def test_an_event_after_a_cut_line_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).write("done", job="a")
    with path.open("r+b") as stream:
        stream.seek(0, 2)
        stream.truncate(stream.tell() - 5)
    Ledger(path).write("run")
    assert [event["event"] for event in read_ledger(path)] == ["run"]
