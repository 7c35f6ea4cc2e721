"""One round of placing: what starts beside jobs that do not fit now, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity
from snakemake_scheduler_plugin_tilewright.placement.jobs import Job, Kind, Shape, Task
from snakemake_scheduler_plugin_tilewright.placement.round import Round
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from tests.support.placement_rules import Rules, account, room
from tests.support.recorded import cluster_with


def placed(
    folder: Path,
    shapes: Mapping[str, Mapping[Kind, Shape]],
    capacity: Capacity,
    priorities: Mapping[str, float] | None = None,
) -> Round:
    """Return a round with one ready job of each rule, and what it says."""
    plan = Plan(Rules(shapes, seconds=600), cluster=cluster_with("", folder)[0])
    jobs = [
        Job(rule, rule, tuple(kinds),
            nominal_s=600.0, wildcards={}, priority=(priorities or {}).get(rule, 0.0))
        for rule, kinds in shapes.items()
    ]  # fmt: skip
    work = plan.estimates.workload(jobs)
    found = Round(work, plan, capacity, [], {"gpu": set(), "cpu": set()}, 5000.0)
    found.place([Task(job) for job in jobs], [], None)
    return found


def started(found: Round) -> list[str]:
    return [one.task.name for one in found.placements]


@pytest.mark.parametrize("sizes", [1, 6, 40])
def test_jobs_of_many_sizes_that_do_not_fit_hide_none_that_does(tmp_path: Path, sizes: int) -> None:
    rules: dict[str, dict[Kind, Shape]] = {
        f"big{n}": {"cpu": Shape(2, n * 1000, 0, 10)} for n in range(21, 21 + sizes)
    }
    rules["small"] = {"cpu": Shape(2, 1000, 0, 10)}
    one = account("clive", limit={"cpu": 400, "mem": 64_000}, used={"cpu": 10, "mem": 44_000})
    found = placed(tmp_path, rules, room(one))
    assert started(found) == ["small"]
    assert set(found.why.values()) == {"no slot is free"}


def test_where_memory_follows_the_input_all_that_fits_starts(tmp_path: Path) -> None:
    rules: dict[str, dict[Kind, Shape]] = {
        f"of{n}": {"cpu": Shape(2, n * 1000, 0, 10)} for n in range(1, 41)
    }
    one = account("clive", limit={"cpu": 400, "mem": 64_000}, used={"cpu": 10, "mem": 44_000})
    found = placed(tmp_path, rules, room(one))
    used = sum(start.place.shape.mem_mb for start in found.placements)
    waiting = [rules[name]["cpu"].mem_mb for name in found.why]
    assert used + min(waiting) > 20_000


def test_jobs_that_fit_on_different_accounts_do_not_hide_each_other(tmp_path: Path) -> None:
    rules: dict[str, dict[Kind, Shape]] = {
        f"memory{n}": {"cpu": Shape(4, n * 1000, 0, 10)} for n in range(11, 41)
    }
    rules |= {f"cpus{n}": {"cpu": Shape(n, 1000, 0, 10)} for n in range(10, 21)}
    accounts = [
        account("clive", limit={"cpu": 20, "mem": 1000}),
        account("brusko", limit={"cpu": 4, "mem": 40_000}),
    ]
    assert started(placed(tmp_path, rules, room(*accounts)))


@pytest.mark.parametrize(
    ("priorities", "first"),
    [({"one": 100.0}, "one"), ({"two": 100.0, "one": 50.0}, "two"), ({}, "two")],
)
def test_the_last_cpus_go_to_the_job_of_the_higher_priority(
    tmp_path: Path, priorities: dict[str, float], first: str
) -> None:
    rules: dict[str, dict[Kind, Shape]] = {
        "one": {"cpu": Shape(1, 100, 0, 10)},
        "two": {"cpu": Shape(2, 100, 0, 10)},
    }
    one = account("clive", limit={"cpu": 40}, used={"cpu": 38})
    assert started(placed(tmp_path, rules, room(one), priorities)) == [first]


def test_all_of_a_cap_is_filled(tmp_path: Path) -> None:
    rules: dict[str, dict[Kind, Shape]] = {f"r{n}": {"cpu": Shape(4, 100, 0, 10)} for n in range(3)}
    capped = account("clive", limit={"cpu": 40}, of_cap={"cpu": 8})
    found = placed(tmp_path, rules, replace(room(capped), utilisation=0.85))
    assert len(found.placements) == 2


def test_where_only_the_cpus_that_are_kept_free_are_in_the_way_it_is_said(tmp_path: Path) -> None:
    rules: dict[str, dict[Kind, Shape]] = {
        n: {"cpu": Shape(int(n), 100, 0, 10)} for n in ("4", "8")
    }
    one = account("clive", limit={"cpu": 20}, used={"cpu": 15})
    found = placed(tmp_path, rules, replace(room(one), utilisation=0.85))
    share = "15 % of an account's CPUs are kept free: utilisation"
    assert found.why == {"4": f"no slot is free ({share})", "8": "no slot is free"}


def test_cpu_jobs_leave_room_to_gpu_jobs_that_become_ready_later(tmp_path: Path) -> None:
    rules: dict[str, dict[Kind, Shape]] = {f"r{n}": {"cpu": Shape(4, 100, 0, 10)} for n in range(2)}
    rules["gpu"] = {"gpu": Shape(4, 100, 1, 10), "cpu": Shape(4, 100, 0, 10)}
    plan = Plan(Rules(rules, seconds=600), cluster=cluster_with("", tmp_path)[0])
    jobs = [Job(rule, rule, tuple(kinds), nominal_s=600.0, wildcards={})
            for rule, kinds in rules.items()]  # fmt: skip
    one = account("clive", limit={"cpu": 8, "gres/gpu": 1})
    found = Round(plan.estimates.workload(jobs), plan, room(one), [], {"gpu": set(), "cpu": set()},
                  5000.0)  # fmt: skip
    *ready, later = map(Task, jobs)
    found.place(ready, [later], None)
    assert len(found.placements) == 1
