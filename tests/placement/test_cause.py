"""The last line of a failed job's log, between a job and whoever decides about the next try."""

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.placement.ends import Ends
from snakemake_scheduler_plugin_tilewright.placement.jobs import Task
from snakemake_scheduler_plugin_tilewright.runtime.cause import LogCause, cause_line, read_cause
from snakemake_scheduler_plugin_tilewright.runtime.errors import SlurmQueryError
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from tests.support.placement_rules import CPU
from tests.support.recorded import answer_with, client, details
from tilewright.errors import DeviceError
from tilewright.runtime.job import job_context

CAUSES: tuple[LogCause, ...] = get_args(LogCause)
MARK = "tilewright-cause "


@given(st.sampled_from(CAUSES), st.text())
def test_what_a_job_says_is_read_whatever_its_words_hold(cause: LogCause, words: str) -> None:
    line = cause_line(cause, words)
    assert read_cause(line) == (cause, words)
    assert len(line.splitlines()) == 1
    assert line.isascii()
    assert line == line.strip()


@pytest.mark.parametrize(
    "line",
    ["", MARK, f"{MARK}[]", f"{MARK}3", f'{MARK}{{"cause": "device"}}', f'{MARK}{{"words": "x"}}',
     f'{MARK}{{"cause": "device", "wor', f' {MARK}{{"cause": "device", "words": "x"}}'],
)  # fmt: skip
def test_a_line_that_is_not_whole_is_an_error(line: str) -> None:
    assert read_cause(line) == ("error", line)


@pytest.mark.parametrize(
    ("error", "cause"), [(DeviceError("no\nGPU"), "device"), (ValueError("no\nGPU"), "error")]
)
def test_a_job_writes_its_cause_last(tmp_path: Path, error: Exception, cause: str) -> None:
    log = tmp_path / "job.log"
    with pytest.raises(type(error)), job_context([str(log)], 1):
        raise error
    last = log.read_text().splitlines()[-1]
    assert read_cause(last) == (cause, f"{type(error).__name__}: no\nGPU")


def test_slurms_word_comes_before_that_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"Traceback\n{cause_line('device', 'DeviceError: ' + 'x' * 900)}\n\n")
    job = SlurmJob(7, "FAILED", nodes="b1")
    task = Task(object(), "work", "work", {"cpu": CPU}, log=str(log), slurm_id=7)

    def cause(said: str | SlurmQueryError, job: SlurmJob | None = job) -> tuple[str, str, str]:
        asking = client(lambda argv, stdin=None: answer_with(said))
        return Ends(asking, tmp_path).cause_of(task, job)

    failed = details("FAILED", "NonZeroExitCode", "1:0", "0:0")
    # also where its words are longer than what is kept
    assert cause(failed) == ("device", ("DeviceError: " + "x" * 900)[:300], str(log))
    killed = details("OUT_OF_MEMORY", "None", "0:125", "0:125")
    assert cause(killed)[:2] == ("memory", "OUT_OF_MEMORY, exit 0:125")
    forgotten = "Slurm does not know any more how job 7 ended"
    assert cause(failed, None) == ("node", forgotten, str(log))
    silent = SlurmQueryError("scontrol", "no answer within 15 s")
    assert cause(silent)[0] == "device"
    assert cause(silent, SlurmJob(7, "TIMEOUT", reason="TimeLimit"))[:2] == (
        "time", "TIMEOUT, TimeLimit",
    )  # fmt: skip
    said = "FAILED, NonZeroExitCode, exit 1:0"
    # srun may have found no slurmctld: two jobs that said nothing did not fail in the same way
    log.write_text("")
    silence = f"{said}; job 7 wrote nothing to its log"
    assert cause(failed) == ("error", silence, str(log))
    task.log = ""
    assert cause(failed) == ("error", said, "")
    task.slurm_id = 0
    assert cause(failed, None)[0] == "refused"
