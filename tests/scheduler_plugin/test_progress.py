"""What a run says of itself, and where."""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.resources import Resources

from snakemake_scheduler_plugin_tilewright.cluster.request import ResourceRequest
from snakemake_scheduler_plugin_tilewright.progress import Progress
from snakemake_scheduler_plugin_tilewright.resources import Placement
from snakemake_scheduler_plugin_tilewright.run import Run
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter as adapter
from snakemake_scheduler_plugin_tilewright.runtime.ledger import LEDGER, STATE
from snakemake_scheduler_plugin_tilewright.runtime.run_state import read_state
from tests.placement.dispatched import dispatcher, pending
from tests.support.placement_rules import Rules
from tests.support.recorded import cluster_with

RESOURCES = Resources.from_mapping({"placement": "work"})


@dataclass(eq=False)
class One:
    """A job of Snakemake."""

    rule: Any = field(default_factory=lambda: SimpleNamespace(name="work", resources=RESOURCES))
    output: tuple[str, ...] = ("x",)
    wildcards: Any = field(default_factory=dict)

    def is_group(self) -> bool:
        return False


def dag_of(folder: Path, jobs: list[One]) -> Any:
    """Return what progress asks of a DAG before Snakemake has made its scheduler."""
    rules = [SimpleNamespace(name="work")]
    workflow = SimpleNamespace(rules=rules, scheduler=None, workdir_init=folder)
    return SimpleNamespace(
        workflow=workflow, needrun_jobs=lambda: jobs, needrun=lambda job: True,
        finished=lambda job: job is jobs[0],
    )  # fmt: skip


def test_a_run_says_that_it_is_active_before_a_job_is_sent_and_then_what_pends_and_runs(
    tmp_path: Path,
) -> None:
    jobs = [One(), One(), One()]
    cluster, _ = cluster_with("", tmp_path)
    ledger, here = tmp_path / "results/placement/ledger.jsonl", tmp_path / LEDGER.with_name(STATE)
    models = Rules({"work": {"cpu": ResourceRequest(1, 1, 0, 1)}}).models
    placement = Placement(models, cluster=cluster, ledger=ledger)
    dag = dag_of(tmp_path, jobs)
    progress = Progress(dag, placement, logging.getLogger("test"), lambda: 1)
    try:
        state = read_state(here)
        assert read_state(ledger.with_name(STATE)) == state
        assert (state.jobs, state.done, state.running) == ({"work": 3}, {"work": 1}, 0)
        assert state.ledger == str(ledger)
        assert not state.ended
        dag.get_job_group = lambda job: None
        dag.workflow.scheduler = SimpleNamespace(running=set(jobs[1:]))
        state = progress.state()
        assert (state.running, state.queued) == (1, 1)
    finally:
        placement.end()
    assert read_state(here).ended


def test_what_was_sent_pends_until_the_queue_says_that_it_runs(tmp_path: Path) -> None:
    sent = dispatcher(pending(1, "Resources"), tmp_path, sent=2, ready=1)
    sent.state()
    assert [task.pending for task in sent.tasks.values()] == [True, True, False]
    first = next(iter(sent.tasks.values()))
    assert first.slurm_job is not None
    first.slurm_job = replace(first.slurm_job, state="RUNNING")
    assert not first.pending


def test_nothing_is_warned_of_a_job_that_was_moved(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = object.__new__(Run)
    run.dag, run.logger, run.jobs = None, logging.getLogger("test"), {"a": None, "b": None}
    tasks = {
        "a": SimpleNamespace(move_reason="clive is free", refused=""),
        "b": SimpleNamespace(move_reason="", refused=""),
    }
    monkeypatch.setattr(run, "_note_ends", lambda: None)
    ends = {name: (f"Slurm job {name} is cancelled", False) for name in tasks}
    dispatcher = SimpleNamespace(
        tasks=tasks,
        move_pending=lambda movable: [],
        explain_pending=lambda movable: [],
        unseen_ends=lambda sent: ends,
    )
    monkeypatch.setattr(run, "dispatcher", dispatcher, raising=False)
    monkeypatch.setattr(adapter, "started", lambda dag: False)
    monkeypatch.setattr(adapter, "slurm_ids", lambda dag: {})
    monkeypatch.setattr(adapter, "end", lambda dag, job, why, success: True)
    run._monitor_once()
    assert caplog.messages == [
        "b: Slurm job b is cancelled, which Snakemake's executor does not see"
    ]
