"""What a failed job gets next, by its cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity
from snakemake_scheduler_plugin_tilewright.placement.failures import (
    memory_limit_mb,
    next_try,
    why_no_retry,
)
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    Fixed,
    Job,
    Past,
    Place,
    Shape,
    Task,
)
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Holder
from snakemake_scheduler_plugin_tilewright.slurm.jobs import Cause
from tests.support.placement_rules import Rules, account, in_partition, partition

JOB = Job("rule_a", "a", ("cpu",), wildcards={})
#: That are nobody's fault.
FREE = ("preempted", "budget", "refused")
CAUSES: tuple[Cause, ...] = get_args(Cause)


def test_memory_and_time_grow_by_their_own_failures_only() -> None:
    once = next_try(Past(), "memory", "OUT_OF_MEMORY", "c1")
    assert (once.past.memory, once.past.time, once.give_up, once.free) == (1, 0, False, False)
    again = next_try(once.past, "time", "TIMEOUT", "c1")
    assert (again.past.memory, again.past.time) == (1, 1)
    thrice = next_try(again.past, "memory", "OUT_OF_MEMORY", "c1")
    assert (thrice.past.memory, thrice.past.time, thrice.give_up) == (2, 1, False)
    assert not thrice.past.nodes


@pytest.mark.parametrize("cause", ["node", "device"])
def test_a_node_that_died_is_avoided(cause: Cause) -> None:
    first = next_try(Past(), cause, "NODE_FAIL", "b1")
    assert (set(first.past.nodes), first.next) == ({"b1"}, "goes elsewhere than b1")
    second = next_try(first.past, cause, "NODE_FAIL", "b2")
    assert second.past.nodes == {"b1", "b2"}
    assert not second.give_up
    unnamed = next_try(first.past, cause, "NODE_FAIL", "")
    assert (set(unnamed.past.nodes), unnamed.next) == ({"b1"}, "goes elsewhere than there")


def test_the_same_error_twice_gives_up_and_another_one_does_not() -> None:
    first = next_try(Past(), "error", "ValueError: no nuclei", "c1")
    assert (first.give_up, first.next) == (False, "is tried again")
    other = next_try(first.past, "error", "OSError: disk full", "c1")
    assert not other.give_up
    again = next_try(other.past, "error", "ValueError: no nuclei", "c2")
    assert again.give_up
    assert "twice in the same way" in again.next
    assert len(again.past.causes) == 3


@given(st.sampled_from(CAUSES), st.text(max_size=9), st.sampled_from(["", "c1"]))
def test_only_errors_of_the_job_itself_give_up(cause: Cause, words: str, node: str) -> None:
    once = next_try(Past(), cause, words, node)
    twice = next_try(once.past, cause, words, node)
    assert not once.give_up
    assert twice.give_up == (cause == "error")
    assert once.free == twice.free == (cause in FREE)
    assert twice.past.causes == (f"{cause}: {words}",) * 2


@pytest.mark.parametrize(("cause", "most"), [("preempted", 10), ("budget", 10), ("refused", 3)])
def test_what_is_nobodys_fault_is_free_for_so_many_times(cause: Cause, most: int) -> None:
    past, free = Past(), []
    for _ in range(12):
        found = next_try(past, cause, "words", "c1")
        free.append(found.free)
        past = found.past
    assert free == [True] * most + [False] * (12 - most)


@given(st.sampled_from(CAUSES), st.integers(0, 3))
def test_a_move_is_free_unless_the_job_failed_by_itself_meanwhile(
    cause: Cause, memory: int
) -> None:
    past = Past(memory, 0, ("error: before",))
    found = next_try(past, cause, "words", "c1", moved=True)
    own = cause in ("cancelled", "unknown")
    assert found.free == (own or cause in FREE)
    assert (found.past == past) == own
    if not own:
        assert found == next_try(past, cause, "words", "c1")


def shape_of(base: Shape, memory: int, mem_mb: Mapping[str, int | None], **job: Any) -> Shape:
    """Return what a job asks for after failures, where accounts have so much memory."""
    limits = {name: {} if n is None else {"mem": n} for name, n in mem_mb.items()}
    accounts = tuple(account(name, limit=limit) for name, limit in limits.items())
    capacity = Capacity(accounts, {}, 1.0, {"gpu": None, "cpu": partition("c")})
    task = Task(replace(JOB, **job), past=Past(memory))
    return Plan(Rules({"a": {"cpu": base}})).estimates.shape_of(task, "cpu", capacity)


def test_a_grown_shape_is_bounded_by_what_there_is() -> None:
    base = Shape(8, 100, 0, 60)
    assert shape_of(base, 1, {"a": 250, "b": 90}) == replace(base, mem_mb=200)
    assert shape_of(base, 2, {"a": 250, "b": 90}) == replace(base, mem_mb=250)
    assert shape_of(replace(base, mem_mb=250), 1, {"a": 250}) == replace(base, mem_mb=250)
    assert shape_of(base, 5, {"a": 250, "b": None}) == replace(base, mem_mb=3200)
    assert shape_of(base, 5, {"a": 250, "b": None}, fixed=Fixed("a")).mem_mb == 250


def test_most_memory_is_that_of_the_accounts_a_job_may_use() -> None:
    small, large = account("a", limit={"mem": 150}), account("b", limit={"mem": 250})
    per_user = account("c", limit={"mem": 900}, of_user={"mem": 130})
    per_job = account("d", limit={"mem": 900}, per_job={"mem": 70})
    assert memory_limit_mb(JOB, [small, large], [None]) == 250
    assert memory_limit_mb(replace(JOB, fixed=Fixed("a")), [small, large], [None]) == 150
    assert memory_limit_mb(JOB, [per_user, per_job], [None]) == 130
    assert memory_limit_mb(JOB, [small, account("e")], [None]) is None
    elsewhere = replace(large, partitions=("turin",))
    assert memory_limit_mb(JOB, [small, elsewhere], [partition("cpu")]) == 150
    bound = in_partition(large, "cpu", Holder("QOS part", {"mem": 40}, {}))
    assert memory_limit_mb(JOB, [bound], [partition("cpu")]) == 40
    wide = in_partition(bound, "big", Holder("QOS big", {"mem": 400}, {}))
    assert memory_limit_mb(JOB, [wide], [partition("cpu"), partition("big")]) == 400


def nothing(cause: Cause, job: Job = JOB, **place: Any) -> str:
    accounts = [account("a", limit={"mem": 250}), account("b", limit={"mem": 150})]
    shape = Shape(1, place.get("mem_mb", 100), 0, place.get("runtime_min", 60))
    at = Place("a", None, "cpu", "cpu", shape, "a_cpu")
    where = replace(partition("cpu"), max_time_min=600)
    return why_no_retry(job, at, cause, accounts, {"cpu": where, "gpu": place.get("gpu")}, {})


def test_a_job_that_had_all_there_is_is_not_tried_again() -> None:
    assert not nothing("memory", mem_mb=249)
    assert "more memory than any account" in nothing("memory", mem_mb=250)
    assert "more memory" in nothing("memory", replace(JOB, fixed=Fixed("b")), mem_mb=150)
    assert "chosen for it" in nothing("memory", replace(JOB, fixed=Fixed(mem_mb=100)))
    assert not nothing("time", runtime_min=599)
    assert "longest" in nothing("time", runtime_min=600)
    assert "chosen for it" in nothing("time", replace(JOB, fixed=Fixed(runtime_min=60)))
    able = replace(JOB, kinds=("gpu", "cpu"))
    assert not nothing("time", able, runtime_min=600, gpu=partition("gpu"))
    assert "longest" in nothing("time", able, runtime_min=600)
    long = replace(partition("gpu"), max_time_min=900)
    assert not nothing("time", able, runtime_min=600, gpu=long)
    assert not nothing("error", mem_mb=9000, runtime_min=9000)


@given(
    st.integers(1, 1000),
    st.integers(0, 6),
    st.dictionaries(
        st.sampled_from("abc"), st.none() | st.integers(0, 9000), min_size=1, max_size=3
    ),
)
def test_a_grown_shape_never_shrinks_below_what_is_stated_nor_passes_every_limit(
    mem_mb: int, memory: int, limits: dict[str, int | None]
) -> None:
    base = Shape(1, mem_mb, 0, 5)
    wanted = base.grown(memory).mem_mb
    most = max(wanted if n is None else n for n in limits.values())
    found = shape_of(base, memory, limits)
    assert found == replace(base, mem_mb=max(mem_mb, min(wanted, most)) if memory else mem_mb)


@given(st.integers(1, 64), st.integers(1, 10**6), st.integers(0, 5), st.integers(0, 5))
def test_each_failure_doubles(cpus: int, mem_mb: int, memory: int, time: int) -> None:
    shape = Shape(cpus, mem_mb, 1, 30)
    assert shape.grown(memory, time) == Shape(cpus, mem_mb * 2**memory, 1, 30 * 2**time)
    one_by_one = shape
    for _ in range(memory):
        one_by_one = one_by_one.grown(memory=1)
    assert one_by_one == shape.grown(memory)
