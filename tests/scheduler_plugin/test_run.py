"""What a run says of jobs between its rounds."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from snakemake_scheduler_plugin_tilewright.run import Run
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter as adapter


def test_nothing_is_warned_of_a_job_that_was_moved(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = object.__new__(Run)
    run.dag, run.logger, run.jobs = None, logging.getLogger("test"), {"a": None, "b": None}
    tasks = {
        "a": SimpleNamespace(moved="clive is free", refused=""),
        "b": SimpleNamespace(moved="", refused=""),
    }
    monkeypatch.setattr(run, "_note_ends", lambda: None)
    lost = {name: (f"Slurm job {name} is cancelled", False) for name in tasks}
    dispatcher = SimpleNamespace(
        tasks=tasks, move_pending=lambda movable: [], explain_pending=list, lost=lambda: lost
    )
    monkeypatch.setattr(run, "dispatcher", dispatcher, raising=False)
    monkeypatch.setattr(adapter, "started", lambda dag: False)
    monkeypatch.setattr(adapter, "end", lambda dag, job, why, success: True)
    run._tend_once()
    assert caplog.messages == [
        "b: Slurm job b is cancelled, which Snakemake's executor does not see"
    ]
