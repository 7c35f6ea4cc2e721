"""A night's run in small: everything that a shared cluster does, in one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.report.idle import NO_REASON
from snakemake_scheduler_plugin_tilewright.report.ledger import cluster_runs, read_events
from tests.support.cluster_runs import ClusterRun, dump
from tests.support.night import SIZES, Night
from tests.support.slurm_cluster import Cluster
from tests.support.slurm_fixtures import AT_NIGHT

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800), AT_NIGHT]
_JOBS = 60


def test_a_night(quiet_slurm: Cluster, tmp_path: Path) -> None:
    run = ClusterRun(quiet_slurm, tmp_path)
    run.prepare(jobs=_JOBS, site={"stale": "wait"}, **SIZES)
    night = Night(run, _JOBS)
    night.play()
    assert night.complete == _JOBS, run.log[-6000:]
    # a job may be preempted between its output and its end, which is long on a busy machine
    ended = {event["job"] for event in run.events if event.get("cause") == "preempted"}
    assert night.twice <= len(ended), dump(run.events)
    run.check_outputs(set(range(_JOBS)), once=False)
    run.check_limits()
    moves = [event["job"] for event in run.events if event["event"] == "move"]
    assert len(moves) <= _JOBS / 4, dump(run.events)
    runs = cluster_runs(read_events(tmp_path / "ledger.jsonl"))
    assert len(runs) == 2
    assert not any(NO_REASON in one.idle_slot_s for one in runs)
