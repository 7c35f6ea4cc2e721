"""Runs of Snakemake on a workflow of one rule: one at a time, stopped by signals, after a crash."""

import fcntl
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.slurm_cluster import wait_for
from tilewright.errors import ConfigError
from tilewright.follow.runs import Runs, Stop
from tilewright.runtime.json_lines import append_json, read_json_lines

_RULE = """
rule one:
    output: "cycles.txt"
    params: cycles=config.get("cycles")
    shell: "echo {params.cycles} > {output}; touch started; sleep {config[sleep_s]}"
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("Snakefile").write_text(_RULE)
    Path("config.yaml").write_text("sleep_s: 0\n")


@pytest.fixture
def stop() -> Iterator[Stop]:
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Stop() as stop:
            yield stop
    finally:
        signal.signal(signal.SIGINT, heard)


def runs(stop: Stop, options: Sequence[str] = ("--cores", "1", "--quiet", "all")) -> Runs:
    return Runs(Path("Snakefile"), Path("config.yaml"), options, Path("out/follow.jsonl"), stop)


def test_cycles_go_to_the_configuration(stop: Stop) -> None:
    own, said = runs(stop), list[str]()
    assert own.acquire(said.append)
    for cycles, text in (([1, 2], "1 2\n"), (None, "None\n")):
        assert own.run(["one"], cycles) == 0
        assert Path("cycles.txt").read_text() == text
    assert not said
    lines = list(read_json_lines(own.record))
    assert [(line["run"], line.get("cycles"), line.get("status")) for line in lines] == [
        ("began", [1, 2], None),
        ("ended", None, 0),
        ("began", "all", None),
        ("ended", None, 0),
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run(stop: Stop, number: signal.Signals) -> None:
    """Ctrl-C ends a job too; SIGTERM lets it end, as Snakemake does."""
    sleep_s = 600 if number == signal.SIGINT else 3
    Path("config.yaml").write_text(f"sleep_s: {sleep_s}\n")
    own = runs(stop)
    assert own.acquire(print)

    def send() -> None:
        wait_for(Path("started").exists, 100)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    own.run(["one"], None)
    sender.join()
    assert stop.signal == number
    assert stop.wait(600)
    assert not any(Path(".snakemake/locks").glob("*"))


@pytest.mark.parametrize("ends", [True, False])
def test_a_run_of_another_is_waited_for_until_the_end_is_asked_for(stop: Stop, ends: bool) -> None:
    own, said = runs(stop), list[str]()
    own.record.parent.mkdir()
    with own.record.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def say(text: str) -> None:
            said.append(text)
            if ends:
                other.close()
            else:
                os.kill(os.getpid(), signal.SIGINT)

        assert own.acquire(say) == ends
    assert said == [
        "another follow, or a run that it started, is running in out; waiting for it to end"
    ]


@pytest.mark.parametrize(
    ("ended", "ago_s"), [(False, 20), (True, 20), (False, 4000)], ids=["ours", "ended", "later"]
)
def test_the_lock_of_a_killed_run_of_ours_is_taken_away(
    stop: Stop, ended: bool, ago_s: float
) -> None:
    """One that is from after its start is of somebody's own run."""
    own, said = runs(stop), list[str]()
    began = (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat(timespec="seconds")
    append_json(own.record, {"time": began, "run": "began", "cycles": "all"})
    if ended:
        append_json(own.record, {"time": began, "run": "ended", "status": 0})
    killed = not ended and ago_s < 60
    locks = Path(".snakemake/locks")
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text("cycles.txt\n")
    assert own.acquire(said.append)
    assert own.locked() != killed
    if ago_s < 60:
        assert (own.run(["one"], None) == 0) == killed
    assert any(locks.glob("*")) != killed
    assert not said


@pytest.mark.parametrize(
    "options", [["--config", "a=1"], ["-C", "a=1"], ["--config=a=1"], ["-Ca=1"], ["-n"]]
)
def test_options_that_would_hide_cycles_are_refused(stop: Stop, options: list[str]) -> None:
    with pytest.raises(ConfigError, match="after --"):
        runs(stop, options)
