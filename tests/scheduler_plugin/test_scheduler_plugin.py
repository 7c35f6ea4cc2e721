"""The scheduler plugin in real runs of Snakemake, whose executor writes down what it was given.

Canaries: placement at dispatch time rests on behaviour of Snakemake that no contract promises.
"""

import inspect
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake_executor_plugin_slurm import Executor as SlurmExecutor  # type: ignore[import-untyped]
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_scheduler_plugins.tests import TestSchedulerBase

from snakemake_scheduler_plugin_tilewright.fit import first_fit
from snakemake_scheduler_plugin_tilewright.runtime.ledger import read_ledger
from snakemake_scheduler_plugin_tilewright.scheduler import Scheduler, SchedulerSettings
from tests.support.scribe import Code, default_target, dispatched, rule, run


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


def test_the_executor_waits_as_long_as_it_is_told() -> None:
    class Waiting(RemoteExecutor):  # type: ignore[misc]
        def __init__(self) -> None:
            self.next_seconds_between_status_checks = 7

    Waiting.__abstractmethods__ = frozenset()
    assert Waiting().next_seconds_between_status_checks == 7
    assert "self.next_seconds_between_status_checks" in inspect.getsource(RemoteExecutor.sleep)
    # it grows by 10 s after each idle round, which Run holds down
    assert "self.next_seconds_between_status_checks + 10" in inspect.getsource(SlurmExecutor)


HEAD = """
from pathlib import Path
from tests.support.failing_slurm import RULES, recorded_cluster
from snakemake_scheduler_plugin_tilewright.resources import Placement

placement = workflow.placement = Placement(
    RULES.models, cluster=recorded_cluster(), ledger=Path("ledger.jsonl"))

"""


def routed(name: str, **stated: str) -> str:
    """Return a rule that asks placement where each of its jobs runs."""
    own = {
        "threads": Code(f'placement.threads("{name}")'),
        "resources": f'**placement.resources("{name}")',
    }
    return rule(name, **stated, **own)


GOOD = routed("good", output="out/{i}.txt")


def test_a_node_that_died_under_a_job_is_left_out(tmp_path: Path) -> None:
    options = ("--set-resources", "gone:slurm_extra='--nice=5'", "--retries", "1")
    rules = [routed(name, output=f"{name}.txt", log=f"{name}.log") for name in ("lost", "gone")]
    wanted = default_target("lost.txt", "gone.txt")
    done = run(tmp_path, "".join([HEAD, wanted, *rules]), "tilewright", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "placement failed" not in done.stderr
    # beside what the user asks
    extras = {name: [given_.get("slurm_extra") for _, given_ in dispatched(tmp_path, name)]
              for name in ("lost", "gone")}  # fmt: skip
    assert extras == {"lost": [None, "--exclude=c1"], "gone": ["--nice=5", "--nice=5 --exclude=c1"]}


def test_the_last_job_is_noted_where_the_snakefile_does_not_end_the_plan(tmp_path: Path) -> None:
    # Snakemake asks for no round after it, and it ends before the other thread looks, after 5 s
    done = run(tmp_path, HEAD + GOOD, "tilewright", "out/1.txt")
    assert done.returncode == 0, done.stderr
    events = [event["event"] for event in read_ledger(tmp_path / "ledger.jsonl")]
    assert events.count("done") == events.count("place") == 1
    assert done.stderr.count("placement: 1 job done") == 1


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text("rule all:\n    shell: 'true'\n")
    (tmp_path / "cache").touch()
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "-c1", "--scheduler", "tilewright"],
        cwd=tmp_path, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot be written (Not a directory); make room there" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_on_a_node_without_the_coordinators_tmpdir_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    monkeypatch.setattr(sys, "argv", ["snakemake", "--mode", "remote"])
    SchedulerSettings()
    monkeypatch.setattr(sys, "argv", ["snakemake", "qc"])
    with pytest.raises(WorkflowError, match="TMPDIR="):
        SchedulerSettings()


#: SIGTERM arrives while jobs are selected, and Snakemake holds the lock that its handler takes.
_TERMINATED_WHILE_SELECTING = """
import os
import signal
from snakemake_scheduler_plugin_tilewright import scheduler

class Scheduler(scheduler.Scheduler):
    def select_jobs(self, *args):
        chosen = super().select_jobs(*args)
        os.kill(os.getpid(), signal.SIGTERM)
        return chosen
"""


def test_a_run_that_is_terminated_while_it_selects_jobs_ends(tmp_path: Path) -> None:
    snakefile = default_target("first.txt", "second.txt")
    snakefile += rule("first", output="first.txt") + rule("second", output="second.txt")
    plugins = {"scheduler_plugin_terminated": _TERMINATED_WHILE_SELECTING}
    done = run(tmp_path, snakefile, "terminated", plugins=plugins)
    assert "Will exit after finishing currently running jobs" in done.stderr
    assert done.returncode == 1
    assert [dispatched(tmp_path, name)[0][0] for name in ("first", "second")] == [{}, {}]
