"""The last line of a failed job's log, between a job and whoever decides about the next try."""

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.errors import SlurmQueryError
from snakemake_scheduler_plugin_tilewright.placement.failures import failure_reason
from snakemake_scheduler_plugin_tilewright.runtime.cause import LogCause, cause_line, read_cause
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient
from tests.support.recorded import answer_with, cluster_with, details
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


@given(st.text() | st.text().map(MARK.__add__))
def test_any_other_line_is_an_error_in_its_own_words(line: str) -> None:
    cause, words = read_cause(line)
    assert cause in CAUSES
    if (cause, words) != ("error", line):
        assert read_cause(cause_line(cause, words)) == (cause, words)


@pytest.mark.parametrize(
    "line",
    ["", MARK, f"{MARK}[]", f"{MARK}3", f'{MARK}{{"cause": "device"}}', f'{MARK}{{"words": "x"}}',
     f'{MARK}{{"cause": "device", "wor', f' {MARK}{{"cause": "device", "words": "x"}}'],
)  # fmt: skip
def test_a_line_that_is_not_whole_is_an_error(line: str) -> None:
    assert read_cause(line) == ("error", line)


def test_a_cause_of_a_later_version_is_an_error() -> None:
    line = f'{MARK}{{"cause": "weather", "words": "rain", "more": 1}}'
    assert read_cause(line) == ("error", "rain")


@pytest.mark.parametrize(
    ("error", "cause"), [(DeviceError("no\nGPU"), "device"), (ValueError("no\nGPU"), "error")]
)
def test_a_job_writes_its_cause_last(tmp_path: Path, error: Exception, cause: str) -> None:
    log = tmp_path / "job.log"
    with pytest.raises(type(error)), job_context([str(log)], 1):
        raise error
    last = log.read_text().splitlines()[-1]
    assert read_cause(last) == (cause, f"{type(error).__name__}: no\nGPU")


def client_that_says(said: str | SlurmQueryError, folder: Path) -> SlurmClient:
    client = cluster_with("", folder)[0].client
    client.run = lambda argv, stdin=None: answer_with(said)
    return client


def test_slurms_word_comes_before_that_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"Traceback\n{cause_line('device', 'DeviceError: ' + 'x' * 900)}\n\n")
    job = SlurmJob(7, "FAILED", nodes="b1")
    failed = client_that_says(details("FAILED", "NonZeroExitCode", "1:0", "0:0"), tmp_path)
    cause, words, _, shown = failure_reason(failed, job, str(log))
    assert shown == str(log)
    assert cause == "device"  # also where its words are longer than what is kept
    assert words == ("DeviceError: " + "x" * 900)[:300]
    killed = client_that_says(details("OUT_OF_MEMORY", "None", "0:125", "0:125"), tmp_path)
    assert failure_reason(killed, job, str(log))[0] == "memory"
    assert failure_reason(failed, None, str(log))[:2] == ("unknown", words)
    cause, words, *_ = failure_reason(failed, None, "")
    assert (cause, "see the lines above" in words) == ("refused", True)
    assert failure_reason(failed, None, str(log), log.stat().st_mtime + 1)[0] == "refused"
    silent = client_that_says(SlurmQueryError("scontrol", "no answer within 15 s"), tmp_path)
    assert failure_reason(silent, job, str(log)) == (
        "unknown",
        "scontrol did not answer: no answer within 15 s",
        "b1",
        str(log),
    )
    log.write_text("")
    said = "FAILED, NonZeroExitCode, exit 1:0"
    assert failure_reason(failed, job, "") == ("error", said, "c1", "/data/run/slurm-2.out")
    # srun may have found no slurmctld: two jobs that said nothing did not fail in the same way
    for path in (log, tmp_path / "none"):
        silence = f"{said}; job 7 wrote nothing to its log"
        assert failure_reason(failed, job, str(path))[:2] == ("error", silence)
