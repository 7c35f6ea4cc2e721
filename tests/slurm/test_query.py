"""Slurm's programs asked, their answers kept, and what they do not say."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient, Unknown, run_command
from tests.slurm.test_releases import RELEASES
from tests.support.recorded import USE, Recorded, client


def test_use_is_never_older_than_the_queue(tmp_path: Path) -> None:
    recorded = Recorded({"flags=qos": USE, "squeue": ""})
    now = [0.0]
    asking = client(recorded, tmp_path, now)
    asking.queue()
    now[0] = 29.0
    asking.usage(["clive"])
    now[0] = 31.0
    asking.queue()
    asking.usage(["clive"])
    assert recorded.asked == ["squeue", "flags=qos", "squeue", "flags=qos"]


def test_runs_on_one_host_share_what_they_were_told(tmp_path: Path) -> None:
    now = [100.0]
    recorded = Recorded({"flags=qos": USE, "squeue": "", "sacctmgr": "a|b"})
    one, other = (
        replace(client(recorded, tmp_path, now), shared_dir=tmp_path / "answers") for _ in range(2)
    )
    one.queue()
    now[0] += 1
    one.usage(["clive"])
    now[0] += 5
    assert (other.queue(), other.usage(["clive"])) == ("", USE)
    assert recorded.asked == ["squeue", "flags=qos"]
    now[0] += 5
    other.forget()  # it has just placed a job: what was said before does not hold
    other.queue()
    other.usage(["clive"])
    assert recorded.asked == ["squeue", "flags=qos"] * 2
    now[0] += 30
    one.queue()
    one.usage(["clive"])
    assert recorded.asked == ["squeue", "flags=qos"] * 3


def test_a_program_that_took_long_to_fail_is_not_asked_again_at_once(tmp_path: Path) -> None:
    now, asked = [0.0], []

    def run(argv: Sequence[str], stdin: str | None = None) -> str | Unknown:
        asked.append(argv[-1])
        now[0] += 9.0 if argv[-1] == "1" else 0.01
        return Unknown(argv[0], "Unable to contact slurm controller")

    asking = SlurmClient("ada", tmp_path, ttl_s=5.0, run=run, clock=lambda: now[0])
    assert asking.job(1) == asking.job(2)
    assert asked == ["1"]
    now[0] += 6.0
    asking.job(3)
    asking.job(4)  # the last failed at once: it may be about that job alone
    assert asked == ["1", "3", "4"]


def test_what_has_answered_before_is_asked_once_more(tmp_path: Path) -> None:
    """One of five calls failed: a ready job waited 16 s for the queue."""
    now, asked, failing = [0.0], [], {1, 3, 4}

    def run(argv: Sequence[str], stdin: str | None = None) -> str | Unknown:
        asked.append(argv[0])
        return Unknown(argv[0], "connect failure") if len(asked) in failing else ""

    asking = SlurmClient("ada", tmp_path, ttl_s=5.0, run=run, clock=lambda: now[0])
    said = []
    for _ in range(3):
        said.append(asking.queue())
        now[0] += 6.0
    assert [isinstance(answer, Unknown) for answer in said] == [True, False, True]
    assert len(asked) == 4
    failing.clear()
    asking.queue()
    failing.add(6)
    asking.forget()
    assert asking.queue() == ""
    assert len(asked) == 7


def test_commands_that_fail_hang_or_are_absent_are_unknown(tmp_path: Path) -> None:
    assert run_command(["sh", "-c", "cat; echo out"], "in\n") == "in\nout\n"
    failed = run_command(["sh", "-c", "echo broken >&2; exit 3"])
    assert failed == Unknown("sh", "broken")
    silent = run_command(["sh", "-c", "echo 'sacctmgr: error: refused' >&2"])
    assert isinstance(silent, Unknown)
    hung = run_command(["sleep", "30"], timeout_s=0.2)
    assert hung == Unknown("sleep", "no answer within 0.2 s", refused=False)
    absent = run_command([str(tmp_path / "sacctmgr")])
    assert isinstance(absent, Unknown)
    assert "No such file" in absent.reason


#: What a site's own scripts, a full disk or a bad line put in place of an answer, status 0.
NO_ANSWERS = (
    "Welcome to the cluster! Maintenance on Friday.\n",
    "\x7fELF\x02\x01\x01\x00\n",
    "NodeName=\n",
    "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
    "CLUSTER: other\n",
    "7|RUNNI\n",
)
QUESTIONS: dict[str, Callable[[SlurmClient], object]] = {
    "squeue": lambda one: one.queue(),
    "everybody": lambda one: one.everybodys_queue(),
    "qos": lambda one: one.usage(["clive"]),
    "assoc": lambda one: one.account_usage(["clive"]),
    "partition": lambda one: one.show("partition"),
    "node": lambda one: one.show("node"),
    "reservation": lambda one: one.show("reservation"),
    "licenses": lambda one: one.show("licenses"),
    "config": lambda one: one.show("config"),
    "sacctmgr": lambda one: one.limits(),
    "job": lambda one: one.job(7),
    "sacct": lambda one: one.final_state(7),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("text", NO_ANSWERS)
def test_an_answer_that_is_no_record_is_unknown(question: str, text: str, tmp_path: Path) -> None:
    answers = {"said": text}
    asking = SlurmClient(
        "ada", tmp_path, run=lambda argv, stdin=None: answers["said"], clock=lambda: 1000.0,
        shared_dir=tmp_path / "answers",
    )  # fmt: skip
    said = QUESTIONS[question](asking)
    assert isinstance(said, Unknown)
    assert str(said).isprintable()
    assert len(str(said)) < 200
    assert "holds no record in '" in str(said)
    assert not list((tmp_path / "answers").glob("*"))
    assert not list(tmp_path.glob("limits*"))
    good = RELEASES["22.05.8"].get(question)
    if good is None or question == "job":
        return
    answers["said"] = good
    asking.forget(limits=True)
    assert QUESTIONS[question](asking) == good
    for among in (text + good, good + text):
        asking.forget(limits=True)
        answers["said"] = among
        assert question == "config" or isinstance(QUESTIONS[question](asking), Unknown)


@pytest.mark.parametrize("release", RELEASES)
def test_recorded_answers_are_read(release: str, tmp_path: Path) -> None:
    for question, text in RELEASES[release].items():
        asking = SlurmClient("ada", tmp_path, run=lambda argv, stdin=None, text=text: text)
        assert QUESTIONS[question](asking) == text


def test_what_another_run_kept_is_read_as_an_answer_is(tmp_path: Path) -> None:
    recorded = Recorded({"squeue": "\n"})
    asking = replace(client(recorded, tmp_path), shared_dir=tmp_path)
    asking.queue()
    (kept,) = tmp_path.glob("*.json")
    kept.write_text(json.dumps([1000.0, "Welcome"]), encoding="utf-8")
    other = replace(client(recorded, tmp_path), shared_dir=tmp_path)
    assert other.queue() == "\n"
    assert recorded.asked == ["squeue"] * 2


def test_an_answer_that_ends_early_is_unknown() -> None:
    said = run_command(["printf", "7|RUNNING\\n8|RUN"])
    assert str(said) == "printf did not answer: its answer ends early, in '7|RUNNING\\n8|RUN'"


def test_options_of_the_environment_are_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("SQUEUE_ACCOUNT", "SQUEUE_FORMAT2", "SACCT_LOCAL", "SBATCH_QOS", "SINFO_SORT",
             "SCANCEL_STATE", "SCONTROL_ALL", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")  # fmt: skip
    for name in (*names, "SLURM_CONF", "SBATCHER"):
        monkeypatch.setenv(name, "own")
    said = run_command(["env"])
    assert isinstance(said, str)
    found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    assert found.keys() & set(names) == {"SLURM_TIME_FORMAT"}
    assert found["SLURM_TIME_FORMAT"] == "standard"
    assert (found["SLURM_CONF"], found["SBATCHER"]) == ("own", "own")
