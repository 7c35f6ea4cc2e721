"""What a run says of itself, and where."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.resources import Resources

from snakemake_scheduler_plugin_tilewright.placement.request import ResourceRequest
from snakemake_scheduler_plugin_tilewright.progress import Progress
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
    assert (state.jobs, state.done, state.running) == ({"work": 3}, {"work": 1}, 0)
    assert (state.ledger, state.ended) == (str(ledger), False)
    one, two = played.submit(2)
    played.slurm.start(one.slurm_id)
    played.step()
    state = progress.state()
    assert (state.running, state.queued) == (1, 1)
    with caplog.at_level(logging.INFO, "test"):
        progress.tell()
        progress.tell()  # one line a minute in a log
    (line,) = caplog.messages
    assert "1 of 3 jobs done, 33 % of the work, 1 running, 1 in Slurm's queue" in line
    finished.update(jobs[1:])
    state = progress.state()
    assert (state.jobs, state.done, state.complete) == ({"work": 3}, {"work": 3}, True)
    assert (progress.all_done(), two.pending) == (True, True)
    placement.end()
    assert read_state(here).ended
