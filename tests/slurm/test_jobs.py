"""Jobs as squeue and scontrol of Slurm 22.05 tell them, recorded on a real cluster."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.runtime.errors import UnreadableError
from snakemake_scheduler_plugin_tilewright.slurm.jobs import JOB_FIELDS, SlurmJob, parse_queue
from snakemake_scheduler_plugin_tilewright.slurm.reasons import Cause, cause_of
from tests.support.recorded import details, queue_line

DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


def padded(*cells: str) -> str:
    """Return a line as squeue pads it."""
    widths = JOB_FIELDS.values()
    parts = zip((cell.encode() for cell in cells), widths, strict=True)
    return b"".join(cell.ljust(w)[:w] + b"|" for cell, w in parts).decode(errors="ignore")


QUEUE = "\n".join([
    padded("8", "PENDING", "maigan", "maigan", "hpg-b200", "N/A", "N/A", "", "QOSGrpGRES",
           "/data/a|b é \"c\"", "wrap", "(null)"),
    padded("6", "RUNNING", "clive", "clive", "hpg-default", "1795257086", "1795257686", "c1",
           "None", "/data/a run", "9e7b9b5b", "rule_work_wildcards_1"),
    padded("11", "NODE_FAIL", "clive", "clive", "hpg-turin", "1795257086", "1795257092", "t1",
           "NodeDown", "/data/run", "wrap", "rule_a|b_wildcards_x"),
    padded("14", "PENDING", "clive", "clive", "hpg-b200,hpg-turin", "N/A", "N/A", "", DOWN,
           "/data/run", "wrap", ""),
])  # fmt: skip


def test_the_queue_with_padded_cells_and_separators_in_the_comment() -> None:
    pending, running, dead, down = parse_queue(f"{QUEUE}\n")
    assert pending == SlurmJob(
        8, "PENDING", "maigan", "maigan", "hpg-b200", None, None, "", "QOSGrpGRES",
        "/data/a|b é \"c\"", "wrap", "(null)",
    )  # fmt: skip
    assert (running.start_s, running.end_s) == (1795257086, 1795257686)
    assert (running.workdir, running.comment) == ("/data/a run", "rule_work_wildcards_1")
    assert (dead.comment, dead.nodes) == ("rule_a|b_wildcards_x", "t1")
    assert (down.partition, down.comment, down.waiting.obstacle) == (
        "hpg-b200,hpg-turin", "", "nodes",
    )  # fmt: skip
    jobs = (pending, running, dead, down)
    assert [job.active for job in jobs] == [True, True, False, True]
    assert [job.pending for job in jobs] == [True, False, False, True]


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
def test_a_job_is_active_unless_it_is_known_to_have_ended(state: str, there: bool) -> None:
    (job,) = parse_queue(queue_line(JobID="7", State=state))
    assert job.active == there


def test_no_line_is_an_empty_queue_and_line_breaks_of_a_job_are_its_own() -> None:
    assert parse_queue("") == parse_queue("\n\n") == []
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
            assert isinstance(job.active, bool)
    cause, said = cause_of(text)
    assert cause
    assert isinstance(said, str)


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
        ("PENDING", "BadConstraints", "0:0", "0:0", "refused"),
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


def test_the_cause_of_what_is_not_said() -> None:
    for text in ("", "slurm_load_jobs error: Invalid job id specified"):
        assert cause_of(text) == ("unknown", "")
    assert cause_of("JobId=7 JobState=FAILED Reason=None") == ("error", "FAILED")
