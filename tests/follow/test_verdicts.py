"""What is told, and what was told before."""

import sys
from pathlib import Path

import pytest

from tilewright.errors import ConfigError
from tilewright.follow.verdicts import Notice, Notifier
from tilewright.quality.results import QcContext, QcResult, resolve_thresholds
from tilewright.runtime.json_lines import read_json_lines


def judged(value: float, cycle: int = 2, channel: str = "1") -> QcResult:
    context = QcContext("tonsil", cycle, "stitch", resolve_thresholds({}), channel, "DAPI")
    return context.evaluate("saturated", value)


def test_a_verdict_is_told_once(tmp_path: Path) -> None:
    record = tmp_path / "results" / "follow.jsonl"
    notifier = Notifier(record)
    assert not notifier.record_verdicts([judged(0.0)])
    (told,) = notifier.record_verdicts([judged(0.5)])
    assert told.verdict == "fail"
    assert told.text.startswith("tonsil cycle 2, DAPI, stitch: ")
    assert not notifier.record_verdicts([judged(0.5)])
    # Another process knows it from the record.
    again = Notifier(record)
    assert not again.record_verdicts([judged(0.5)])
    assert len(again.record_verdicts([judged(0.6), judged(0.6, cycle=3)])) == 2
    (well,) = again.record_verdicts([judged(0.0)])
    assert well.verdict == "pass"
    assert not again.record_verdicts([judged(0.0)])
    lines = list(read_json_lines(record))
    assert [line["verdict"] for line in lines] == ["fail", "fail", "fail", "pass"]
    assert lines[0]["marker"] == "DAPI"
    assert lines[0]["metric"] == "saturated"


def test_the_command_is_called_for_each_cycle(tmp_path: Path) -> None:
    script = tmp_path / "say.py"
    script.write_text("import sys; open(sys.argv[1], 'a').write(sys.argv[2] + '|')")
    out = tmp_path / "out put.txt"
    notifier = Notifier(tmp_path / "r.jsonl", f"{sys.executable} {script} '{out}'")
    told = notifier.record_verdicts([judged(0.5), judged(0.5, channel="2"), judged(0.5, cycle=3)])
    told += [Notice("pass", "is well", "tonsil", 4)]
    assert not list(notifier.notify(told))
    first, second, rest = out.read_text().split("|")
    assert first.count("fail: tonsil cycle 2") == 2
    assert second.startswith("fail: tonsil cycle 3")
    assert not rest


@pytest.mark.parametrize("command", ["false", "sh -c 'kill -9 $$'"])
def test_a_command_that_fails_is_said(tmp_path: Path, command: str) -> None:
    notifier = Notifier(tmp_path / "r.jsonl", command)
    (said,) = notifier.notify([notifier.record_problem(2, "cycle 2 cannot be used")])
    assert said.startswith("--notify failed: ")


def test_what_could_not_be_told_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "say.py"
    script.write_text("import sys; open('there/told', 'a').write(sys.argv[1] + '|')")
    monkeypatch.chdir(tmp_path)
    notifier = Notifier(tmp_path / "r.jsonl", f"{sys.executable} {script}")
    problems = [notifier.record_problem(2, "two"), notifier.record_problem(3, "three")]
    assert len(list(notifier.notify(problems))) == 2
    Path("there").mkdir()
    assert not list(notifier.notify([]))
    assert not Path("there/told").exists()
    monkeypatch.setattr(notifier, "_retry_s", 0.0)  # as after ten minutes
    assert not list(notifier.notify([]))
    assert not list(notifier.notify([notifier.record_problem(2, "more")]))
    assert Path("there/told").read_text() == "fail: two|fail: three|fail: more|"
    Path("there").rename("elsewhere")
    assert len(list(notifier.notify([notifier.record_problem(4, "four")]))) == 1
    (never,) = notifier.notify([], last=True)
    assert never.endswith("see " + str(tmp_path / "r.jsonl"))
    Path("elsewhere").rename("there")
    assert not list(notifier.notify([], last=True))
    assert Path("there/told").read_text().endswith("fail: more|fail: four|")


@pytest.mark.parametrize("command", ["no-such-command here", "'unclosed"])
def test_a_command_that_is_none_is_refused(tmp_path: Path, command: str) -> None:
    with pytest.raises(ConfigError, match="--notify is "):
        Notifier(tmp_path / "r.jsonl", command)
