"""Words of Slurm, of file names and of records are text: no markup, no codes for the terminal."""

import io
import json
import logging
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from snakemake_scheduler_plugin_tilewright import orphaned
from snakemake_scheduler_plugin_tilewright.report.page import write_run_report
from snakemake_scheduler_plugin_tilewright.runtime.words import printable, printable_log
from tests.support.recorded import (
    Recorded,
    client,
    queue_line,
)

CODE = "\x1b[2J\x07"
#: What one word of Slurm or of a file may hold.
WORDS = [f"[/x]{CODE}", f"[bold]:smile:{CODE}", f"\u2028\x9b31m{CODE}", f"\ud800\x00{CODE}"]
EACH = pytest.mark.parametrize("word", WORDS)


def is_clean(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text) and "\\x1b[2J" in text.replace("\n", "")


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=300)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_job_and_a_folder_of_any_name_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / f"[x]{CODE}"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(orphaned, "has_slurm", lambda: True)
    line = queue_line(JobID="7", State="RUNNING", WorkDir=str(folder), Comment=f"rule_a_{CODE}")
    for queue, end in ((line, pytest.raises(SystemExit, match="1")), ("", nullcontext())):
        asking = client(Recorded({"squeue": queue}))
        monkeypatch.setattr(orphaned, "own_client", lambda asking=asking: asking)
        with end:
            orphaned.show_orphaned(cancel=False)
        assert is_clean(capsys.readouterr().out)


@EACH
def test_a_page_of_runs_holds_text(word: str, tmp_path: Path) -> None:
    job = {"job": f"rule_{word}", "rule": word, "account": word, "kind": "gpu", "pool": word}
    events = [
        {"time_s": 1.0, "event": "run", "pools": {word: [word, "gpu", 2]}},
        {"time_s": 9.0, "event": "done", **job, "start_s": 2.0, "end_s": 8.0, "sent_s": 1.0},
        {"time_s": 9.5, "event": "fail", **job, "cause": word, "words": word, "node": word,
         "next": word},
    ]  # fmt: skip
    (tmp_path / "ledger.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in events))
    write_run_report(tmp_path / "ledger.jsonl", tmp_path / "run.html")
    for file in ("run.html", "run.jobs.csv"):
        assert is_clean((tmp_path / file).read_text(encoding="utf-8"))


@EACH
def test_a_line_of_the_log_is_one_line(word: str, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("outside-words")
    with caplog.at_level(logging.INFO, log.name):
        printable_log(printable_log(log)).info("%s\n is placed", word)
        log.info("as it is\n")
        try:
            raise ValueError(word)
        except ValueError:
            printable_log(log).exception("failed")
    first, other, _ = (record.getMessage() for record in caplog.records)
    written = logging.Formatter().format(caplog.records[-1])
    assert written.startswith("failed\nTraceback (most recent call last):\n")
    assert all(map(str.isprintable, written.split("\n")))
    assert is_clean(first)
    assert (first.count("\n"), first.endswith("is placed")) == (0, True)
    assert other == "as it is\n"


@given(st.text(st.characters(codec=None), max_size=30), st.integers(2, 40))
def test_any_text_is_one_line_of_bounded_length(text: str, most: int) -> None:
    line = printable(text, most)
    assert line.isprintable()
    assert len(line) <= most
    line.encode()
