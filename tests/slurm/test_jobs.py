"""Jobs as squeue and scontrol of Slurm 22.05 tell them, recorded on a real cluster."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.errors import UnreadableError
from snakemake_scheduler_plugin_tilewright.slurm.jobs import (
    JOB_FIELDS,
    Cause,
    SlurmJob,
    cause_of,
    node_of,
    orphaned_jobs,
    parse_queue,
    usage_of_queue,
)
from snakemake_scheduler_plugin_tilewright.slurm.parse import parse_time_s
from tests.support.recorded import details, queue_line

DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


def padded(*cells: str) -> str:
    """Return a line as squeue pads it."""
    widths = JOB_FIELDS.values()
    parts = zip((cell.encode() for cell in cells), widths, strict=True)
    return b"".join(cell.ljust(w)[:w] + b"|" for cell, w in parts).decode(errors="ignore")


QUEUE = "\n".join([
    padded("8", "PENDING", "maigan", "maigan", "hpg-b200", "kuser",
           "cpu=1,mem=100M,node=1,billing=1,gres/gpu=3", "N/A", "N/A", "", "QOSGrpGRES", "5:00",
           "/data/a|b é \"c\"", "wrap", "(null)"),
    padded("6", "RUNNING", "clive", "clive", "hpg-default", "kuser",
           "cpu=8,mem=48G,node=1,billing=8", "2026-11-21T10:31:26", "2026-11-21T10:41:26", "c1",
           "None", "10:00", "/data/a run", "9e7b9b5b", "rule_work_wildcards_1"),
    padded("11", "NODE_FAIL", "clive", "clive", "hpg-turin", "kuser",
           "cpu=1,mem=100M,node=1,billing=1", "2026-11-21T10:31:26", "2026-11-21T10:31:32", "t1",
           "NodeDown", "1-00:00:00", "/data/run", "wrap", "rule_a|b_wildcards_x"),
    padded("14", "PENDING", "clive", "clive", "hpg-b200,hpg-turin", "kuser", "cpu=1", "N/A", "N/A",
           "", DOWN, "UNLIMITED", "/data/run", "wrap", ""),
])  # fmt: skip


def test_the_queue_with_padded_cells_and_separators_in_the_comment() -> None:
    pending, running, dead, down = parse_queue(f"{QUEUE}\n")
    assert pending == SlurmJob(
        8, "PENDING", "maigan", "maigan", "hpg-b200", "kuser",
        {"cpu": 1, "mem": 100, "node": 1, "billing": 1, "gres/gpu": 3}, None, None, "",
        "QOSGrpGRES", 5, "/data/a|b é \"c\"", "wrap", "(null)",
    )  # fmt: skip
    assert running.start_s == time.mktime((2026, 11, 21, 10, 31, 26, 0, 0, -1))
    assert running.end_s is not None
    assert running.end_s - running.start_s == 600
    assert (running.workdir, running.comment) == ("/data/a run", "rule_work_wildcards_1")
    assert running.tres["mem"] == 48 * 1024
    assert (dead.comment, dead.nodes) == ("rule_a|b_wildcards_x", "t1")
    assert (down.partition, down.comment) == ("hpg-b200,hpg-turin", "")
    assert [job.active for job in (pending, running, dead, down)] == [True, True, False, True]


@pytest.mark.parametrize(
    "text",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "squeue: error: Invalid user: nosuchuser\n\n",
        "|".join(JOB_FIELDS),
        "x" + QUEUE.splitlines()[0],
        "²" + QUEUE.splitlines()[0][1:],
        QUEUE.splitlines()[1].rpartition("|")[0].rpartition("|")[0],
    ],
)
def test_a_line_that_is_no_job_makes_the_queue_unreadable(text: str) -> None:
    for said in (text, f"{text}\n{QUEUE}", f"{QUEUE}\n{text}"):
        with pytest.raises(UnreadableError, match="holds no record in '") as caught:
            parse_queue(said)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("state", ["", "running", "RUNN\x1b", "7", "(null)"])
def test_a_job_without_a_state_makes_the_queue_unreadable(state: str) -> None:
    with pytest.raises(UnreadableError):
        parse_queue(queue_line(JobID="7", State=state))


@pytest.mark.parametrize(
    ("state", "there"),
    [("STOPPED", True), ("STAGE_OUT", True), ("REQUEUE_HOLD", True), ("OF_A_LATER_SLURM", True),
     ("RUNNING", True), ("COMPLETING", True), ("COMPLETED", False), ("TIMEOUT", False)],
)  # fmt: skip
def test_a_job_is_orphaned_unless_it_is_known_to_have_ended(state: str, there: bool) -> None:
    line = queue_line(JobID="7", State=state, WorkDir="/data/run", Comment="rule_a")
    assert bool(orphaned_jobs(parse_queue(line), "/data/run")) == there


def test_no_line_is_an_empty_queue_and_line_breaks_of_a_job_are_its_own() -> None:
    assert parse_queue("") == parse_queue("\n\n") == ()
    cells = [cell.strip() for cell in QUEUE.splitlines()[1].split("|")]
    cells[-3:] = ["na\nme", "rule_a\n|\n7|"]
    job, *rest = parse_queue(f"{padded(*cells)}\n{QUEUE}\n")
    assert (job.name, job.comment) == ("na\nme", "rule_a\n|\n7|")
    assert [one.id for one in rest] == [8, 6, 11, 14]


_pieces = st.lists(
    st.sampled_from([*QUEUE.splitlines(), *QUEUE.split("|"), "|", "||||||||||||||", "\n", "7", "²",
                     "=", ",", "cpu=", "2026-02-30T00:00:00", "(null)", "\x00"]),
    max_size=30,
).map("".join)  # fmt: skip


@given(st.text() | _pieces)
def test_any_text_gives_jobs_or_is_unreadable(text: str) -> None:
    with contextlib.suppress(UnreadableError):
        for job in parse_queue(text):
            assert job.id >= 0
            assert all(value >= 0 for value in job.tres.values())
            assert isinstance(job.active, bool)
    cause, said = cause_of(text)
    assert cause
    assert isinstance(said, str)
    node_of(text)
    parse_time_s(text)


@given(st.integers(2000, 2037), st.integers(1, 31), st.integers(0, 86399))
def test_times_are_local(year: int, day: int, second: int) -> None:
    minute, second = divmod(second, 60)  # no clock is put forward or back in January
    text = f"{year}-01-{day:02}T{minute // 60:02}:{minute % 60:02}:{second:02}"
    found = parse_time_s(text)
    assert found is not None
    assert time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(found)) == text


def test_no_time() -> None:
    texts = ("N/A", "Unknown", "", "2026-11-21", "2026-13-01T00:00:00")
    assert [parse_time_s(text) for text in texts] == [None] * 5


@pytest.mark.parametrize(
    ("state", "reason", "code", "derived", "cause"),
    [
        ("FAILED", "NonZeroExitCode", "1:0", "0:125", "memory"),  # an srun step
        ("OUT_OF_MEMORY", "OutOfMemory", "0:125", "0:0", "memory"),  # the batch script
        ("FAILED", "NonZeroExitCode", "0:9", "0:0", "memory"),  # limit on resident memory
        ("FAILED", "None", "9:0", "0:9", "memory"),
        ("COMPLETING", "TimeLimit", "0:15", "0:9", "time"),
        ("TIMEOUT", "TimeLimit", "0:15", "0:9", "time"),
        ("TIMEOUT", "None", "0:0", "0:0", "time"),
        ("NODE_FAIL", "NodeDown", "0:0", "0:0", "node"),
        ("PENDING", "BadConstraints", "0:0", "0:0", "node"),
        ("CANCELLED", "None", "0:15", "0:15", "cancelled"),  # it ran
        ("CANCELLED", "QOSGrpGRES", "0:0", "0:0", "cancelled"),  # it pended
        ("PREEMPTED", "None", "0:0", "0:15", "preempted"),
        ("FAILED", "NonZeroExitCode", "1:0", "0:0", "error"),
        ("FAILED", "NonZeroExitCode", "3:0", "3:0", "error"),
        ("FAILED", "JobLaunchFailure", "0:11", "0:0", "error"),
        ("RUNNING", "None", "0:0", "0:0", "unknown"),
        ("COMPLETED", "None", "0:0", "0:0", "unknown"),
    ],
)
def test_causes(state: str, reason: str, code: str, derived: str, cause: Cause) -> None:
    found, said = cause_of(details(state, reason, code, derived))
    assert found == cause
    assert said.startswith(state)
    assert ("None" in said) is False
    assert (reason in said) == (reason != "None")
    if derived == "0:125":
        assert said == "FAILED, NonZeroExitCode, exit 0:125"


def test_what_ends_a_job_before_its_own_time_limit_is_a_budget() -> None:
    said = details("TIMEOUT", "TimeLimit", "0:0", "0:0")
    assert cause_of(said)[0] == "time"
    early = said.replace("RunTime=00:10:01", "RunTime=00:00:31")
    assert cause_of(early)[0] == "budget"
    words = "Job_is_at_or_exceeds_QOS_clive's_group_max_TRES(cpu)_minutes_of_1_with_2"
    assert cause_of(said.replace("Reason=TimeLimit", f"Reason={words}"))[0] == "budget"
    assert cause_of(early.replace("JobState=TIMEOUT", "JobState=FAILED"))[0] != "time"


def test_the_node_and_the_cause_of_what_is_not_said() -> None:
    line = details("FAILED", "NonZeroExitCode", "1:0", "0:0")
    for said, node in (("c1", "c1"), ("c[1-2]", "c[1-2]"), ("(null)", ""), ("", "")):
        assert node_of(line.replace(" NodeList=c1", f" NodeList={said}")) == node
    for text in ("", "slurm_load_jobs error: Invalid job id specified"):
        assert (node_of(text), cause_of(text)) == ("", ("unknown", ""))


def test_use_seen_in_the_queue_counts_jobs_of_everybody() -> None:
    jobs = [
        SlurmJob(1, "RUNNING", qos="clive", user="ada", tres={"cpu": 8, "mem": 10, "gres/gpu": 1}),
        SlurmJob(2, "RUNNING", qos="clive", user="ben", tres={"cpu": 4, "mem": 5}),
        SlurmJob(3, "COMPLETING", qos="maigan", user="ben", tres={"cpu": 2}),
        SlurmJob(4, "PENDING", qos="clive", user="ada", tres={"cpu": 99}),
        SlurmJob(5, "COMPLETED", qos="brusko", user="ada", tres={"cpu": 99}),
    ]
    found = usage_of_queue(jobs, lambda job: [job.qos, f"{job.user} on {job.qos}"])
    assert {name: use.used for name, use in found.items()} == {
        "clive": {"cpu": 12, "mem": 15, "gres/gpu": 1, "jobs": 2, "submit": 3},
        "ada on clive": {"cpu": 8, "mem": 10, "gres/gpu": 1, "jobs": 1, "submit": 2},
        "ben on clive": {"cpu": 4, "mem": 5, "jobs": 1, "submit": 1},
        "maigan": {"cpu": 2, "jobs": 1, "submit": 1},
        "ben on maigan": {"cpu": 2, "jobs": 1, "submit": 1},
    }
    assert not any(use.limit for use in found.values())
