"""Idle slots are told apart by why no ready job was in them."""

from __future__ import annotations

from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright.report.idle import HELD, ON_THE_WAY
from snakemake_scheduler_plugin_tilewright.report.ledger import cluster_runs

POOLS = {"lab_gpu": ["lab", "gpu", 2], "lab_cpu": ["lab", "cpu", 3]}
GPU_SOON = "a GPU slot falls free in time to finish it sooner"


def event(at_s: float, name: str, **values: Any) -> dict[str, Any]:
    return {"time_s": 1000.0 + at_s, "event": name, **values}


def done(name: str, pool: str, sent_s: float, start_s: float, end_s: float) -> list[dict[str, Any]]:
    times = {"start_s": 1000.0 + start_s, "end_s": 1000.0 + end_s}
    return [
        event(sent_s, "place", job=name, pool=pool),
        event(end_s, "done", job=name, pool=pool, kind=pool[-3:], account="lab", **times),
    ]


def idle(*events: dict[str, Any]) -> dict[str, float]:
    ordered = sorted([event(0, "run", pools=POOLS), *events], key=lambda e: e["time_s"])
    (run,) = cluster_runs(ordered)
    return dict(run.idle_slot_s)


def test_each_second_of_a_slot_has_its_reason() -> None:
    found = idle(
        *done("a", "lab_gpu", 0, 10, 100),  # 10 s on its way
        *done("b", "lab_gpu", 0, 0, 60),
        # of three CPU slots a labmate holds two, and the third could be filled
        event(0, "wait", ready=4, why={GPU_SOON: 3, "no slot is free": 1}, free={"lab_cpu": 1}),
        event(20, "room", closed={"lab cpu": "job 7 pends there: limit"}),
        event(40, "room", closed={}),
        event(70, "wait", ready=0, why={}, free={}),
    )
    assert found == pytest.approx(
        {
            ON_THE_WAY: 10,
            GPU_SOON: (20 + 30) * 1,
            f"lab_cpu: {HELD}": (20 + 30) * 2,
            "lab_cpu: job 7 pends there: limit": 20 * 3,
            f"lab_gpu: {HELD}": 10,  # after b ended, until nothing was ready any more
        }
    )


def test_nothing_ready_is_no_idle_time_and_full_slots_are_none() -> None:
    assert idle(event(0, "wait", ready=0, why={}, free={}), event(50, "room", closed={})) == {}


def test_a_job_that_was_moved_was_on_its_way_until_then() -> None:
    found = idle(
        event(0, "place", job="a", pool="lab_gpu"),
        event(30, "move", job="a", reason="QOSGrpGRES"),
        event(40, "room", closed={}),
    )
    assert found == {ON_THE_WAY: 30}


def test_a_silent_slurm_is_the_reason_until_its_next_word() -> None:
    silent = "nothing was started: squeue did not answer"
    found = idle(event(0, "hold", reason="squeue did not answer"), event(10, "room", closed={}))
    assert found == {silent: 50}
    wait = event(0, "wait", ready=1, why={"no slot is free": 1}, free={})
    found = idle(
        wait,
        event(10, "hold", reason="squeue did not answer", ready=1),
        event(20, "room", closed={}),
        event(60, "room", closed={"lab gpu": "full"}),
    )
    assert found[silent] == 5 * 10
    nobody = idle(event(0, "hold", reason="silent", ready=0), event(20, "room", closed={}))
    assert nobody == {}


def test_a_start_that_slurm_cut_to_a_second_ends_the_way() -> None:
    assert idle(*done("a", "lab_gpu", 0.4, 0, 60)) == {}
