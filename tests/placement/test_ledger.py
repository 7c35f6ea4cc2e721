"""The ledger of a run, and what the run says of itself at its end."""

import json
import os
import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright import append_json, read_json_lines
from snakemake_scheduler_plugin_tilewright.resources import Placement
from snakemake_scheduler_plugin_tilewright.runtime.cause import cause_line
from snakemake_scheduler_plugin_tilewright.runtime.ledger import (
    Ledger,
    read_ledger,
    resume_line,
    summary_lines,
)

DONE: dict[str, Any] = {"event": "done", "job": "rule_a", "pool": "clive_cpu"}
POOR: dict[str, Any] = {
    "event": "fail",
    "job": "rule_a",
    "cause": "memory",
    "words": "OUT_OF_MEMORY, exit 0:125",
}
FAIL = {**POOR, "pool": "clive_gpu", "slurm_id": 7, "node": "b1", "log": "logs/a b.log"}


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(time, "time", lambda: 12.34567)
    return Ledger(tmp_path / "results/ledger.jsonl")


def test_events_come_back_as_they_were_written(ledger: Ledger) -> None:
    assert list(read_ledger(ledger.path)) == []
    ledger.write("place", job="rule_a", node=None, reason="größte Kette", cpus=8, exclude=["b1"])
    ledger.write("done", job="rule_a")
    assert list(read_ledger(ledger.path)) == [
        {"time_s": 12.346, "event": "place", "job": "rule_a", "reason": "größte Kette",
         "cpus": 8, "exclude": ["b1"]},
        {"time_s": 12.346, "event": "done", "job": "rule_a"},
    ]  # fmt: skip
    ledger.path.write_bytes(
        b'{"time_s": 1, "event": "done"}\n\xff\xfe\n[1]\n3\n{"event": "done"}\n\n{"time_s": 2}\n'
    )
    assert list(read_ledger(ledger.path)) == [{"time_s": 1, "event": "done"}]


@pytest.mark.parametrize(
    ("events", "lines"),
    [
        ([FAIL, {"event": "move"}, DONE, {**DONE, "job": "rule_b"}],
         ["placement: 2 jobs done (clive_cpu 2), 1 moved"]),
        ([{"event": "place", "job": "rule_a"}], []),
        ([DONE, {**FAIL, "job": "group_b"}, {"event": "place", "job": "group_b"},
          {**DONE, "job": "group_b"}],
         ["placement: 2 jobs done (clive_cpu 2)"]),
        ([DONE, {**FAIL, "job": "rule_b"}],
         ["placement: 1 job done (clive_cpu 1)", "failed: rule_b on b1, Slurm job 7: memory, "
          "OUT_OF_MEMORY, exit 0:125; log: logs/a b.log"]),
        ([DONE, {**POOR, "job": "rule_b"}],
         ["placement: 1 job done (clive_cpu 1)",
          "failed: rule_b on no place: memory, OUT_OF_MEMORY, exit 0:125"]),
    ],
    ids=["failed first and done then", "none ended", "placed again", "failed", "nothing known"],
)  # fmt: skip
def test_the_end_says_who_failed_where(events: list[dict[str, Any]], lines: list[str]) -> None:
    assert summary_lines(events) == lines


@given(st.lists(st.text(max_size=12), max_size=4))
def test_the_command_that_resumes_can_be_pasted_into_a_shell(arguments: list[str]) -> None:
    line = resume_line(["/opt/bin/snakemake", *arguments])
    assert shlex.split(line.removeprefix("resume with: ")) == ["snakemake", *arguments]


def test_the_end_speaks_of_the_last_run_only(
    ledger: Ledger,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placement = Placement(on_cluster=True, ledger=ledger.path, _began_s=12.0)
    placement.at_end(lambda: ledger.write(**DONE))
    ledger.write("run", run="1")
    ledger.write(**FAIL)
    ledger.write("run", run="2")
    placement.end()
    assert capsys.readouterr().err == "placement: 1 job done (clive_cpu 1)\n"
    placement.end()
    assert capsys.readouterr().err == ""  # once
    Placement(ledger=ledger.path).end()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys, "argv", ["/opt/bin/snakemake", "qc"])
    ledger.write("run", run="3")  # stopped before any job ended
    Placement(on_cluster=True, ledger=ledger.path).end(failed=True)
    assert capsys.readouterr().err == "what is finished stays; resume with: snakemake qc\n"
    Placement(ledger=ledger.path).end(failed=True)
    resume = "what is finished stays; resume with: snakemake qc\n"
    assert capsys.readouterr().err == resume
    old, well, new = (tmp_path / f"logs/{name}.log" for name in ("a/a", "a/b", "c/c"))
    for folder in (old.parent, new.parent):
        folder.mkdir(parents=True)
    old.write_text(f"{cause_line('error', 'ValueError: the run before')}\n")
    os.utime(old, (1, 1))
    failing = Placement(ledger=ledger.path, logs=tmp_path / "logs")
    well.write_text("this one did not fail\n")
    new.write_text(f"much\n{cause_line('error', 'ValueError: no tissue')}\n")
    failing.end(failed=True)
    assert capsys.readouterr().err == f"failed: ValueError: no tissue; log: {new}\n{resume}"


def test_lines_of_two_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"

    def write(name: str) -> None:
        for k in range(200):
            append_json(path, {"who": name, "k": k, "long": "x" * 500})

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, "ab"))
    assert all(json.loads(line) for line in path.read_text().splitlines() if line)
    found = list(read_json_lines(path))
    assert len(found) == 400
    for name in "ab":
        assert [entry["k"] for entry in found if entry["who"] == name] == list(range(200))
