"""What a run says of itself, and where."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.resources import Resources

from snakemake_scheduler_plugin_tilewright.placement.request import ResourceRequest
from snakemake_scheduler_plugin_tilewright.progress import Progress, progress_line
from snakemake_scheduler_plugin_tilewright.resources import Placement
from snakemake_scheduler_plugin_tilewright.runtime.ledger import LEDGER, STATE
from snakemake_scheduler_plugin_tilewright.runtime.run_state import read_state
from snakemake_scheduler_plugin_tilewright.tasks import Tasks
from tests.support.placement_rules import model
from tests.support.scripted_slurm import ScriptedSlurm, play

RESOURCES = Resources.from_mapping({"placement": "work"})


@dataclass(eq=False)
class One:
    """A job of Snakemake."""

    rule: Any = field(default_factory=lambda: SimpleNamespace(name="work", resources=RESOURCES))
    output: tuple[str, ...] = ("x",)
    wildcards: Any = field(default_factory=dict)
    priority: int = 0

    def is_group(self) -> bool:
        return False


def test_a_run_says_that_it_is_active_before_a_job_is_sent_and_then_what_pends_and_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs, ledger = [One(), One(), One()], tmp_path / "results/placement/ledger.jsonl"
    here, finished = tmp_path / LEDGER.with_name(STATE), {jobs[0]}
    dag = SimpleNamespace(
        needrun_jobs=lambda exclude_finished=True: jobs, finished=finished.__contains__,
        job_dependencies=lambda job: [],
    )  # fmt: skip
    workflow = SimpleNamespace(workdir_init=tmp_path, dag=dag)
    placement = Placement({"work": model(cpu=ResourceRequest(1, 1, 0, 1))}, ledger=ledger)
    played = play(tmp_path, ScriptedSlurm())
    tasks = Tasks(workflow, placement, "", tmp_path / "ends")
    progress = Progress(dag, tasks, played.run, placement, logging.getLogger("test"))
    assert not progress.all_done()
    state = read_state(here)
    assert read_state(ledger.with_name(STATE)) == state
    assert (state.ended, state.life(state.at_s)) == (False, "active")
    assert progress.line() == "1 of 3 jobs done, 33 % of the work, about 0 s left (work 1/3)"
    one, two = played.submit(2)
    played.slurm.start(one.slurm_id)
    played.step()
    with caplog.at_level(logging.INFO, "test"):
        progress.tell()
        progress.tell()  # one line a minute in a log
    (line,) = caplog.messages
    assert "1 of 3 jobs done, 33 % of the work, 1 running, 1 in Slurm's queue" in line
    finished.update(jobs[1:])
    assert progress.line().startswith("3 of 3 jobs done, 100 % of the work, 1 running")
    assert (progress.all_done(), two.pending) == (True, True)
    placement.end()
    assert read_state(here).ended


def test_what_is_said_grows_with_what_is_known() -> None:
    jobs = {"stitch": 4, "report": 1}
    begun = progress_line(jobs, {}, 2, 0, 0.0, 5.0, {})
    assert begun == "0 of 5 jobs done, 0 % of the work, 2 running"
    sent = progress_line(jobs, {}, 1, 1, 0.0, 5.0, {})
    assert sent == "0 of 5 jobs done, 0 % of the work, 1 running, 1 in Slurm's queue"
    half = progress_line(jobs, {"stitch": 3}, 1, 0, 0.5, 60.0, {"no slot": 1, "busy": 3, "full": 0})
    assert half == (
        "3 of 5 jobs done, 50 % of the work, 1 running, about 60 s left (stitch 3/4); "
        "3 wait: busy; 1 waits: no slot; full"
    )
    assert "left" not in progress_line(jobs, {"report": 1}, 1, 0, 0.04, 60.0, {})
    assert progress_line(jobs, jobs, 0, 0, 1.0, 120.0, {}) == (
        "5 of 5 jobs done, 100 % of the work"
    )
