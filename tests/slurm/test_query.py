"""Slurm's programs asked, what they do not say, and what releases say."""

import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.placement.accounts import Scope
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.room import Room
from snakemake_scheduler_plugin_tilewright.runtime.errors import SlurmQueryError
from snakemake_scheduler_plugin_tilewright.slurm.parse import QOS_FIELDS, parse_sacctmgr
from snakemake_scheduler_plugin_tilewright.slurm.query import (
    _OF_SLURM,
    _PLACE,
    SlurmClient,
    has_slurm,
    options_in_environment,
    run_command,
)
from snakemake_scheduler_plugin_tilewright.slurm.reasons import cause_of
from tests.support.manual_pages import input_variables
from tests.support.placement_rules import CPU
from tests.support.recorded import (
    ANSWERS,
    QUESTIONS,
    Recorded,
    client,
    cluster_with,
    uid_of_kuser,
)
from tests.support.recorded_texts import RELEASES

EACH_RELEASE = pytest.mark.parametrize("release", RELEASES)


def error_of(ask: Callable[[], object]) -> SlurmQueryError:
    """Return why a question was not answered."""
    with pytest.raises(SlurmQueryError) as caught:
        ask()
    return caught.value


def test_what_can_wait_is_not_asked_more_than_12_times_a_minute() -> None:
    now = [0.0]
    asking = client(Recorded({"sinfo": "cpu|0/256/0/256|(null)|(null)|1|\n"}), now)
    for i in range(12):  # one is left for the queue
        assert (asking.may_ask(11 - i), asking.may_ask(12 - i)) == (i < 12, False)
        asking.idle()  # at 0, 2, … 22 s
        now[0] += 2.0
    for at_s, left in ((59.0, 0), (60.0, 0), (62.0, 1), (64.0, 2), (200.0, 11)):
        now[0] = at_s
        assert (asking.may_ask(left) or not left, asking.may_ask(left + 1)) == (True, False)


def test_a_queue_that_is_asked_often_leaves_others_half_of_the_questions() -> None:
    now = [0.0]
    asking = client(Recorded({"squeue": ""}), now)
    for _ in range(30):
        asking.queue()
        now[0] += 2.0
    assert (asking.may_ask(5), asking.may_ask(6)) == (True, False)


@pytest.mark.parametrize(
    ("said", "number"),
    [("77\n", 77), ("77;cluster2\n", 77), ("Submitted batch job 77\n", 77),
     ("Submitted batch job 77 on cluster x\n", 77), ("Welcome, 3 users!\n5 GB left\n77\n", 77),
     ("12 jobs of 13\nSubmitted batch job 77\nHave a nice day 99!\n", 77)],
)  # fmt: skip
def test_the_number_of_a_job_among_the_words_of_a_site(said: str, number: int) -> None:
    assert SlurmClient("ada", lambda argv, stdin: said).submit(["sbatch"], "x") == number


def test_a_job_without_a_number_is_unknown() -> None:
    for said in ("", "Welcome\n", "job 7 of 12\n"):
        with pytest.raises(SlurmQueryError, match="printed no number of a job"):
            SlurmClient("ada", lambda argv, stdin, said=said: said).submit(["sbatch"], "x")


def test_what_slurm_is_told() -> None:
    told: list[list[str]] = []

    def tell(argv: Sequence[str]) -> str:
        told.append([*argv])
        return ""

    asking = SlurmClient("ada", tell)
    asking.cancel([7, 8])
    asking.cancel([7], pending_only=True)
    asking.move([7, 8], "lab", "", "a,b")
    assert told == [
        ["scancel", "7", "8"], ["scancel", "--state=PENDING", "7"],
        ["scontrol", "update", "JobId=7,8", "Account=lab", "QOS=", "Partition=a,b"],
    ]  # fmt: skip


def test_commands_that_fail_hang_or_are_absent_are_unknown(tmp_path: Path) -> None:
    assert run_command(["sh", "-c", "cat; echo out"], "in\n") == "in\nout\n"
    broken = error_of(lambda: run_command(["sh", "-c", "echo broken >&2; exit 3"]))
    assert broken.args == ("sh", "broken")
    error_of(lambda: run_command(["sh", "-c", "echo 'sacctmgr: error: refused' >&2"]))
    hung = error_of(lambda: run_command(["sleep", "30"], timeout_s=0.2))
    assert hung.args == ("sleep", "no answer within 0.2 s: timed out")
    absent = error_of(lambda: run_command([str(tmp_path / "sacctmgr")]))
    assert "No such file" in absent.reason
    short = error_of(lambda: run_command(["printf", "7|RUNNING\\n8|RUN"]))
    assert str(short) == "printf did not answer: its answer ends early, in '7|RUNNING\\n8|RUN'"


def test_options_of_the_environment_are_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("SQUEUE_ACCOUNT", "SQUEUE_FORMAT2", "SACCT_LOCAL", "SBATCH_QOS", "SINFO_SORT",
             "SCANCEL_STATE", "SCONTROL_ALL", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")  # fmt: skip
    for name in (*names, "SLURM_CONF", "SBATCHER"):
        monkeypatch.setenv(name, "own")
    shown = run_command(["env"])
    found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    assert {name: found[name] for name in (*names, "SLURM_CONF", "SBATCHER") if name in found} == {
        "SLURM_TIME_FORMAT": "%s", "SLURM_CONF": "own", "SBATCHER": "own",
    }  # fmt: skip
    assert {*names} <= {*options_in_environment()}
    assert not {"SLURM_CONF", "SBATCHER"} & {*options_in_environment()}


def test_all_input_variables_of_the_manual_pages_are_options() -> None:
    named = input_variables()
    assert bool(named) == bool(shutil.which("sbatch"))
    assert {name for name in named if not _OF_SLURM.fullmatch(name)} == set()
    assert {*_PLACE} <= {"SLURM_CONF", "SLURM_JWT"}


#: What a site's own scripts, a full disk or a bad line put in place of an answer, status 0.
NO_ANSWERS = (
    "Welcome to the cluster! Maintenance on Friday.\n",
    "\x7fELF\x02\x01\x01\x00\n",
    "NodeName=\n",
    "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
    "CLUSTER: other\n",
    "7|RUNNI\n",
)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("text", NO_ANSWERS)
def test_an_answer_that_is_no_record_is_unknown(question: str, text: str) -> None:
    answers = {"said": text}
    asking = SlurmClient("ada", lambda argv, stdin=None: answers["said"], lambda: 1000.0)
    good = RELEASES["22.05.8"].get(question)
    for said in (text, *((text + good, good + text) if good and question != "job" else ())):
        answers["said"] = said
        if question == "sacct" or (question == "config" and said != text):
            continue  # what is no state is none; fields are looked for in any text
        why = error_of(lambda: QUESTIONS[question](asking))
        assert (str(why).isprintable(), len(str(why)) < 200) == (True, True)
        assert "holds no record in '" in str(why)


_ODD = st.sampled_from(
    ["9" * 5000, "9" * 17, "1..2", ".", "-", "\x1b[2J", "=", "|", "\n", "(null)", "N/A", "٣",
     "1e400", "[1-999999999]", "[", "", ":", ",", "\ud800"]
)  # fmt: skip


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_damaged_answer_is_read_or_is_unknown(data: st.DataObject) -> None:
    """Never another error, and never late."""
    answers = RELEASES[data.draw(st.sampled_from(sorted(RELEASES)))]
    question = data.draw(st.sampled_from(sorted(answers.keys() & QUESTIONS.keys())))
    text = answers[question][:20_000]
    for _ in range(data.draw(st.integers(1, 3))):
        found = list(re.finditer(data.draw(st.sampled_from([r"[\d.]+", r"\w+", r"."])), text))
        if found:
            one = data.draw(st.sampled_from(found))
            text = text[: one.start()] + data.draw(_ODD) + text[one.end() :]
    asking = SlurmClient("ada", lambda argv, stdin=None: text)
    began_s = time.monotonic()
    with suppress(SlurmQueryError):
        QUESTIONS[question](asking)
    cause_of(text)
    assert time.monotonic() - began_s < 2


@EACH_RELEASE
def test_recorded_answers_are_read(release: str) -> None:
    for question in RELEASES[release].keys() & QUESTIONS.keys():
        text = RELEASES[release][question]
        assert QUESTIONS[question](SlurmClient("ada", lambda argv, stdin=None, text=text: text))


@EACH_RELEASE
def test_limits_of_a_qos_in_each_release(release: str) -> None:
    _, qos = parse_sacctmgr(RELEASES[release]["sacctmgr"])
    (brusko,) = [one for one in qos if one.name == "brusko"]
    assert brusko.tres == {"cpu": 32, "mem": 256_000, "gres/gpu": 1}
    assert brusko.tres_per_job == {"cpu": 24, "gres/gpu": 1}
    assert set(brusko.preempts) == {"clive-b", "maigan-b"}


def look(release: str, user: str, use: str | None = None) -> tuple[Cluster, dict[str, Scope]]:
    """Return the cluster, and what limits maigan for a user."""
    said = RELEASES[release]
    uid = {"root": 0, "kuser": uid_of_kuser(release), "labmate": uid_of_kuser(release) + 1}[user]
    answers: dict[str, str | SlurmQueryError] = {
        **said, "sacctmgr": said["sacctmgr"].replace("|kuser|", f"|{user}|"),
        "use": said["use"] if use is None else use,
    }  # fmt: skip
    found = Cluster(client(Recorded(answers), user=user, uid=uid))
    found.look()
    (maigan,) = [one for one in found.accounts if one.label == "maigan"]
    return found, {scope.name: scope for scope in maigan.scopes}


@EACH_RELEASE
@pytest.mark.parametrize(
    ("user", "used"),
    [
        ("root", {"cpu": 16, "mem": 4096, "gres/gpu": 0, "jobs": 2, "submit": 3}),
        ("kuser", {"cpu": 4, "mem": 1024, "gres/gpu": 0, "jobs": 1, "submit": 1}),
        ("labmate", {"cpu": 0, "mem": 0, "gres/gpu": 0, "jobs": 0, "submit": 0}),
    ],
)
def test_use_in_each_release(release: str, user: str, used: dict[str, int]) -> None:
    found, scopes = look(release, user)
    own, of_account = scopes[f"{user} on QOS maigan"], scopes["account maigan on QOS maigan"]
    assert own.limit == {"cpu": 16, "jobs": 4, "submit": 20}
    assert {tres: (own.used or {}).get(tres) for tres in used} == used
    assert (of_account.limit["cpu"], (of_account.used or {})["cpu"]) == (64, 20)
    assert found.notes == []


#: What of a record is gone or has another name, and whose use of what is then not known.
DAMAGES = {
    "a TRES": (r"(QOS=maigan.*? GrpTRES=)cpu=80\(20\),", r"\1", "QOS maigan", "cpu"),
    "submit": (r"MaxSubmitJobsPU=20\(", "MaxSubmitJobsPU=20[", "kuser on QOS maigan", "submit"),
    "entry": (r"\b(kuser\()?(\d{4})\)?=\{", r"kuser/\2={", "kuser on QOS maigan", "cpu"),
}


@EACH_RELEASE
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_absent_is_unknown(release: str, damage: str) -> None:
    old, new, scope, tres = DAMAGES[damage]
    use, number = re.subn(old, new, RELEASES[release]["use"])
    assert number
    cluster, scopes = look(release, "kuser", use)
    (place,) = [one for one in cluster.places("cpu", CPU) if one.account == "maigan"][:1]
    known = []
    for one in (cluster, look(release, "kuser")[0]):
        room = Room(one.accounts, (), (), 0.85, None, idle_of=lambda place: {"cpu": 99})
        known.append(room.is_known(place))
    assert tres not in (scopes[scope].used or {})
    assert known == [False, True]


def test_percentages_of_a_relative_qos_are_no_numbers() -> None:
    limits = ANSWERS["sacctmgr"]
    line = next(one for one in limits.splitlines() if one.startswith("clive|cpu=104"))
    cells = line.split("|")
    cells[QOS_FIELDS.index("flags")] = "Relative"
    cluster, _ = cluster_with(sacctmgr=limits.replace(line, "|".join(cells)), use="")
    (clive,) = [one for one in cluster.accounts if one.name == "clive"]
    assert clive.scopes == ()


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("fetch_config: DNS SRV lookup failed", False),
        ("fatal: Could not establish a configuration source", False),
        ("slurm_load_ctl_conf error: Unable to contact slurm controller", True),
    ],
)
def test_commands_of_slurm_without_a_cluster_are_no_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, *, wanted: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_slurm()  # no commands
    for name in ("sbatch", "scontrol"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho 'scontrol: {said}' >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    assert has_slurm() == wanted
