"""The scheduler and the executor in real runs of Snakemake."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_scheduler_plugins.tests import TestSchedulerBase

from snakemake_scheduler_plugin_tilewright.local import first_fit
from snakemake_scheduler_plugin_tilewright.scheduler import (
    Scheduler,
    SchedulerSettings,
    refused_folders,
)
from tests.support.scribe import default_target, events, rule
from tests.support.small_slurm import run, sent


class TestOurScheduler(TestSchedulerBase):  # type: ignore[misc]
    """Snakemake's own test of a scheduler, where no profile named a cluster."""

    __test__ = True

    def get_scheduler_cls(self) -> type[Scheduler]:
        return Scheduler

    def get_scheduler_settings(self) -> None:
        return None


@dataclass(frozen=True)
class Asking:
    """A job that asks for resources."""

    priority: int
    scheduler_resources: Mapping[str, int | str]


_asked = st.dictionaries(st.sampled_from(["_cores", "mem_mb", "x"]), st.integers(0, 9))


@given(st.lists(st.builds(Asking, st.integers(0, 3), _asked), max_size=8), _asked)
def test_jobs_as_they_come_never_take_more_than_there_is(
    jobs: list[Asking], available: dict[str, int]
) -> None:
    chosen = first_fit(jobs, {**available, "text": "some"})
    left = dict(available)
    for job in chosen:
        for name, n in job.scheduler_resources.items():
            if name in left:
                left[name] -= int(n)
    assert all(n >= 0 for n in left.values())
    for job in jobs:
        if not any(job is one for one in chosen):
            asked = job.scheduler_resources
            assert any(0 < int(asked.get(name, 0)) > n for name, n in left.items())
    assert [job.priority for job in chosen] == sorted((j.priority for j in chosen), reverse=True)


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text("rule all:\n    shell: 'true'\n")
    (tmp_path / "cache").touch()
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "-c1", "--scheduler", "tilewright"],
        cwd=tmp_path, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot be written (Not a directory); make room there" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_cache_and_a_closed_tmpdir_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TMPDIR", raising=False)
    assert [*refused_folders()] == []
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    cache, temporary = refused_folders()
    assert cache.startswith(f"Snakemake's cache {tmp_path}/file/snakemake cannot be written (")
    assert "; make room there, or set XDG_CACHE_HOME to a folder" in cache
    assert temporary.startswith(f"TMPDIR={tmp_path}/absent cannot be written (")


def test_a_job_on_a_node_without_the_coordinators_tmpdir_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    monkeypatch.setattr(sys, "argv", ["snakemake", "--mode", "remote"])
    SchedulerSettings()
    monkeypatch.setattr(sys, "argv", ["snakemake", "qc"])
    with pytest.raises(WorkflowError, match="TMPDIR="):
        SchedulerSettings()


#: SIGTERM arrives while jobs are handed over, and Snakemake holds the lock that its handler takes.
_TERMINATED = """
import os
import signal
from snakemake_scheduler_plugin_tilewright.executor import Executor

def submit(executor, jobs, own=Executor.run_jobs):
    own(executor, jobs)
    os.kill(os.getpid(), signal.SIGTERM)

Executor.run_jobs = submit
"""


def test_a_run_that_is_terminated_while_it_selects_jobs_ends(tmp_path: Path) -> None:
    rules = [default_target("first.txt", "second.txt"), rule("first", output="first.txt"),
             rule("second", output="second.txt")]  # fmt: skip
    done = run(tmp_path, _TERMINATED + "".join(rules))
    said = done.stdout + done.stderr
    assert "Will exit after finishing currently running jobs" in said
    assert done.returncode == 1
    assert len(sent(tmp_path)) + said.count("not sent, as the run was asked to stop") >= 1


def test_the_last_job_is_noted_where_the_snakefile_does_not_end_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, default_target("a.txt") + rule("a", output="a.txt"))
    assert done.returncode == 0, done.stderr
    names = [name for name in ("run", "place", "done") for _ in events(tmp_path, name)]
    assert names == ["run", "place", "done"]
    assert done.stderr.count("placement: 1 job done") == 1


#: SIGTERM arrives while Snakemake holds the lock that its handler takes, on one machine. Like that
#: of `tilewright init`, the Snakefile says nothing of the end of a run.
_TERMINATED_HERE = """
import os
import signal
from snakemake_scheduler_plugin_tilewright import detect
from snakemake_scheduler_plugin_tilewright.scheduler import Scheduler

workflow.placement = detect(workflow)

def select(scheduler, *given, own=Scheduler.select_jobs):
    jobs = own(scheduler, *given)
    if not os.path.exists("one"):
        os.kill(os.getpid(), signal.SIGTERM)
    return jobs

Scheduler.select_jobs = select

rule two:
    input: "one"
    output: "two"
    shell: "touch two"

rule one:
    output: "one"
    shell: "touch one"
"""


def test_a_run_of_one_machine_that_is_terminated_while_it_selects_jobs_ends(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(_TERMINATED_HERE)
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "-c1", "--scheduler", "tilewright"],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert "Will exit after finishing currently running jobs" in done.stderr
    assert done.returncode == 1
    resume = "what is finished stays; resume with: snakemake -c1 --scheduler tilewright"
    assert done.stderr.splitlines()[-1] == resume
    assert not [*(tmp_path / ".snakemake/locks").glob("*")]
    again = subprocess.run(done.args, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "what is finished stays" not in again.stderr
    assert (tmp_path / "two").exists()


def test_a_second_run_does_not_begin_beside_jobs_of_the_first(tmp_path: Path) -> None:
    snakefile = default_target("a.txt", "b.txt") + rule("{x}", output="{x}.txt").replace(
        "rule {x}:", "rule each:"
    )
    assert run(tmp_path, snakefile).returncode == 0
    (job,) = sent(tmp_path, "rule_each_wildcards_a")
    path = tmp_path / f"slurm/jobs/{job['id']:04}"
    path.write_text(json.dumps({**job, "state": "RUNNING"}))
    (tmp_path / "a.txt").unlink()
    again = run(tmp_path, snakefile)
    said = again.stdout + again.stderr
    assert (again.returncode, "Traceback" in said) == (1, False)
    assert f"1 job of an earlier run may still write into {tmp_path}" in said
    assert len(sent(tmp_path)) == 2
