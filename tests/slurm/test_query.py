"""Slurm's programs asked, their answers kept, what they do not say, and what releases say."""

import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.cluster.query import query_cluster
from snakemake_scheduler_plugin_tilewright.cluster.site import Site
from snakemake_scheduler_plugin_tilewright.cluster.state import ClusterState
from snakemake_scheduler_plugin_tilewright.errors import SlurmQueryError
from snakemake_scheduler_plugin_tilewright.slurm.accounts import LimitScope
from snakemake_scheduler_plugin_tilewright.slurm.jobs import cause_of
from snakemake_scheduler_plugin_tilewright.slurm.parse import parse_partitions, parse_sacctmgr
from snakemake_scheduler_plugin_tilewright.slurm.query import (
    _OF_JOBS,
    _OPTION,
    PLACE,
    SlurmClient,
    run_command,
)
from tests.support.manual_pages import input_variables
from tests.support.recorded import (
    PARTITIONS,
    QUESTIONS,
    RELEASES,
    USE,
    Recorded,
    client,
    uid_of_kuser,
)

EACH_RELEASE = pytest.mark.parametrize("release", RELEASES)
DENIED = SlurmQueryError("squeue", "Access/permission denied")


def error_of(ask: Callable[[], object]) -> SlurmQueryError:
    """Return why a question was not answered."""
    with pytest.raises(SlurmQueryError) as caught:
        ask()
    return caught.value


def test_use_is_never_older_than_the_queue(tmp_path: Path) -> None:
    recorded, now = Recorded({"flags=qos": USE, "squeue": ""}), [0.0]
    asking = client(recorded, tmp_path, now)
    asking.queue()
    now[0] = 29.0
    asking.usage("qos", ["clive"])
    now[0] = 31.0
    asking.queue()
    asking.usage("qos", ["clive"])
    assert recorded.asked == ["squeue", "flags=qos"] * 2


def test_runs_on_one_host_share_what_they_were_told(tmp_path: Path) -> None:
    recorded, now = Recorded({"flags=qos": USE, "squeue": ""}), [100.0]
    one, other = (
        replace(client(recorded, tmp_path, now), shared_dir=tmp_path / "answers") for _ in range(2)
    )
    one.queue()
    now[0] += 1
    one.usage("qos", ["clive"])
    now[0] += 5
    assert (other.queue(), other.usage("qos", ["clive"])) == ("", USE)
    assert recorded.asked == ["squeue", "flags=qos"]
    now[0] += 5
    other.forget()  # it has just placed a job: what was said before does not hold
    other.queue()
    other.usage("qos", ["clive"])
    assert recorded.asked == ["squeue", "flags=qos"] * 2
    now[0] += 30
    one.queue()
    one.usage("qos", ["clive"])
    assert recorded.asked == ["squeue", "flags=qos"] * 3


def test_what_another_run_kept_is_read_as_an_answer_is(tmp_path: Path) -> None:
    recorded = Recorded({"squeue": "\n"})
    one, other = (replace(client(recorded, tmp_path), shared_dir=tmp_path) for _ in range(2))
    one.queue()
    (kept,) = tmp_path.glob("*.json")
    kept.write_text(json.dumps([1000.0, "Welcome"]), encoding="utf-8")
    assert other.queue() == "\n"
    assert recorded.asked == ["squeue"] * 2


def test_a_program_that_took_long_to_fail_is_not_asked_again_at_once(tmp_path: Path) -> None:
    now, asked = [0.0], []

    def run(argv: Sequence[str], stdin: str | None = None) -> str:
        asked.append(argv[-1])
        now[0] += 9.0 if argv[-1] == "1" else 0.01
        raise SlurmQueryError(argv[0], "Unable to contact slurm controller")

    asking = SlurmClient("ada", tmp_path, ttl_s=5.0, run=run, clock=lambda: now[0])
    assert error_of(lambda: asking.job(1)).args == error_of(lambda: asking.job(2)).args
    assert asked == ["1"]
    now[0] += 6.0
    for number in (3, 4):  # the last failed at once: it may be about that job alone
        error_of(partial(asking.job, number))
    assert asked == ["1", "3", "4"]


def test_slow_answers_are_asked_for_less_often_and_said(tmp_path: Path) -> None:
    now, takes_s, asked = [0.0], [20.0], []

    def run(argv: Sequence[str], stdin: str | None = None) -> str:
        asked.append(now[0])
        now[0] += takes_s[0]
        return ""

    asking = SlurmClient("ada", tmp_path, ttl_s=5.0, run=run, clock=lambda: now[0])
    for at_s, times in ((0.0, 1), (30.0, 1), (79.0, 1), (81.0, 2), (120.0, 2), (182.0, 3)):
        now[0] = at_s
        asking.queue()
        assert len(asked) == times
        takes_s[0] = 24.0
        words = "squeue takes about 20 s to answer, so it is asked at most every 80 s"
        assert asking.slow() == [words]
    takes_s[0], now[0] = 0.1, 300.0
    asking.queue()
    assert asking.slow() == []


def test_what_has_answered_before_is_asked_once_more(tmp_path: Path) -> None:
    """One of five calls failed: a ready job waited 16 s for the queue."""
    now, asked, failing = [0.0], [], {1, 3, 4}

    def run(argv: Sequence[str], stdin: str | None = None) -> str:
        asked.append(argv[0])
        if len(asked) in failing:
            raise SlurmQueryError(argv[0], "connect failure")
        return ""

    asking = SlurmClient("ada", tmp_path, ttl_s=5.0, run=run, clock=lambda: now[0])
    for fails in (True, False, True):
        with pytest.raises(SlurmQueryError) if fails else nullcontext():
            asking.queue()
        now[0] += 6.0
    assert len(asked) == 4
    failing.clear()
    asking.queue()
    failing.add(6)
    asking.forget()
    assert (asking.queue(), len(asked)) == ("", 7)


def test_commands_that_fail_hang_or_are_absent_are_unknown(tmp_path: Path) -> None:
    assert run_command(["sh", "-c", "cat; echo out"], "in\n") == "in\nout\n"
    broken = error_of(lambda: run_command(["sh", "-c", "echo broken >&2; exit 3"]))
    assert broken.args == ("sh", "broken", True)
    error_of(lambda: run_command(["sh", "-c", "echo 'sacctmgr: error: refused' >&2"]))
    hung = error_of(lambda: run_command(["sleep", "30"], timeout_s=0.2))
    assert hung.args == ("sleep", "no answer within 0.2 s", False)
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
        "SLURM_TIME_FORMAT": "standard", "SLURM_CONF": "own", "SBATCHER": "own",
    }  # fmt: skip


def test_all_input_variables_of_the_manual_pages_are_options() -> None:
    named = input_variables()
    assert bool(named) == bool(shutil.which("sbatch"))
    options = {name for name in named if _OPTION.fullmatch(name) or _OF_JOBS.fullmatch(name)}
    # where Slurm is; of `write config`; of a job that srun is called in; as our own calls
    assert named - options <= {*PLACE, "SLURM_CONF_OUT", "SLURM_JOB_ID", "SQUEUE_ALL"}


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
def test_an_answer_that_is_no_record_is_unknown(question: str, text: str, tmp_path: Path) -> None:
    answers = {"said": text}
    asking = SlurmClient(
        "ada", tmp_path, run=lambda argv, stdin=None: answers["said"], clock=lambda: 1000.0,
        shared_dir=tmp_path / "answers",
    )  # fmt: skip
    said = error_of(lambda: QUESTIONS[question](asking))
    assert (str(said).isprintable(), len(str(said)) < 200) == (True, True)
    assert "holds no record in '" in str(said)
    assert not list((tmp_path / "answers").glob("*"))
    good = RELEASES["22.05.8"].get(question)
    if good is None or question == "job":
        return
    answers["said"] = good
    asking.forget(limits=True)
    assert QUESTIONS[question](asking) == good
    for among in (text + good, good + text):
        asking.forget(limits=True)
        answers["said"] = among
        if question not in ("config", "sacctmgr"):  # that has a last good answer
            error_of(lambda: QUESTIONS[question](asking))


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
    asking = SlurmClient("ada", Path(), run=lambda argv, stdin=None: text)
    began_s = time.monotonic()
    with suppress(SlurmQueryError):
        QUESTIONS[question](asking)
    cause_of(text)
    assert time.monotonic() - began_s < 2


def test_odd_weights_are_passed_over() -> None:
    odd = PARTITIONS.replace(
        " MaxNodes", " TRESBillingWeights=CPU=1..2,Mem=.,GRES/gpu=2.5 MaxNodes"
    )
    assert {one.billing for one in parse_partitions(odd)} == {(("cpu", 1.0), ("gres/gpu", 2.5))}


@EACH_RELEASE
def test_recorded_answers_are_read(release: str, tmp_path: Path) -> None:
    for question, text in RELEASES[release].items():
        asking = SlurmClient("ada", tmp_path, run=lambda argv, stdin=None, text=text: text)
        assert QUESTIONS[question](asking) == text


@EACH_RELEASE
def test_limits_of_a_qos_in_each_release(release: str) -> None:
    _, qos = parse_sacctmgr(RELEASES[release]["sacctmgr"])
    (brusko,) = [one for one in qos if one.name == "brusko"]
    assert brusko.tres == {"cpu": 32, "mem": 256_000, "gres/gpu": 1}
    assert brusko.tres_per_job == {"cpu": 24, "gres/gpu": 1}
    assert brusko.tres_per_user == {"cpu/min/running": 9000}
    assert brusko.tres_per_account == {"mem/min/running": 900_000}
    assert brusko.least == {"cpu": 2, "mem": 1024}
    assert set(brusko.preempts) == {"clive-b", "maigan-b"}


def look(
    release: str,
    user: str,
    folder: Path,
    use: str | None = None,
    queue: SlurmQueryError | None = None,
) -> tuple[dict[str, LimitScope], list[str]]:
    """Return what limits maigan for a user, and what is noted of the use."""
    said = RELEASES[release]
    answers: dict[str, str | SlurmQueryError] = {
        **said, "sacctmgr": said["sacctmgr"].replace("|kuser|", f"|{user}|"),
        "flags=assoc": said["assoc"], "flags=qos": said["qos"] if use is None else use,
    }  # fmt: skip
    answers |= {"squeue": queue} if queue else {}
    uid = {"root": 0, "kuser": uid_of_kuser(release), "labmate": uid_of_kuser(release) + 1}[user]
    found: ClusterState = query_cluster(
        SlurmClient(user, folder, run=Recorded(answers)), uid, Site()
    )
    (maigan,) = [account for account in found.accounts if account.name == "maigan"]
    scopes = {scope.name: scope for scope in maigan.at("").scopes}
    return scopes, [str(note) for note in found.notes if note.about == "use"]


@EACH_RELEASE
@pytest.mark.parametrize(
    ("user", "used"),
    [
        ("root", {"cpu": 16, "mem": 4096, "gres/gpu": 0, "jobs": 2, "submit": 3}),
        ("kuser", {"cpu": 4, "mem": 1024, "gres/gpu": 0, "jobs": 1, "submit": 1}),
        ("labmate", {"cpu": 0, "mem": 0, "gres/gpu": 0, "jobs": 0, "submit": 0}),
    ],
)
def test_use_in_each_release(release: str, user: str, used: dict[str, int], tmp_path: Path) -> None:
    scopes, notes = look(release, user, tmp_path)
    own, of_account = scopes[f"{user} on QOS maigan"], scopes["account maigan on QOS maigan"]
    assert own.limit == {"cpu": 16, "jobs": 4, "submit": 20}
    assert {tres: (own.used or {}).get(tres) for tres in used} == used
    assert (of_account.limit["cpu"], (of_account.used or {})["cpu"]) == (64, 20)
    assert notes == []


#: What of a record is gone or has another name, and whose use of what is then not known.
DAMAGES = {
    "a TRES": (r"(QOS=maigan.*? GrpTRES=)cpu=80\(20\),", r"\1", "QOS maigan", "cpu"),
    "submit": (r"MaxSubmitJobsPU=20\(", "MaxSubmitJobsPU=20[", "kuser on QOS maigan", "submit"),
    "entry": (r"\b(kuser\()?(\d{4})\)?=\{", r"kuser/\2={", "kuser on QOS maigan", "cpu"),
}


@EACH_RELEASE
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_absent_is_unknown(release: str, damage: str, tmp_path: Path) -> None:
    old, new, scope, tres = DAMAGES[damage]
    use, number = re.subn(old, new, RELEASES[release]["qos"])
    assert number
    scopes, (note,) = look(release, "kuser", tmp_path, use, DENIED)
    assert tres not in (scopes[scope].used or {})
    assert re.search(rf"\b{scope}\b.* not known: ", note)
    if tres in ("cpu", "jobs", "submit"):  # what squeue shows is a lower bound
        scopes, (note,) = look(release, "kuser", tmp_path, use)
        assert (scopes[scope].used or {})[tres] > 0
        assert scope in note
        assert "a lower bound" in note


@EACH_RELEASE
def test_an_entry_that_cannot_be_read_may_be_ones_own(release: str, tmp_path: Path) -> None:
    use = re.sub(r"(root\()?\b0\)?=\{", "root?={", RELEASES[release]["qos"])
    for user, known in (("labmate", False), ("kuser", True)):
        scopes, _ = look(release, user, tmp_path, use, DENIED)
        assert bool(scopes[f"{user} on QOS maigan"].used) == known
