"""What a failed job gets next, by its cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.test_capacity import account, partition
from tilewright.placement.failures import judge, most_mb, nothing_more, within
from tilewright.placement.jobs import Fixed, Past, Place, Shape, Task
from tilewright.slurm.jobs import Cause

TASK = Task("rule_a", "a", {}, ("cpu",))
CAUSES: tuple[Cause, ...] = get_args(Cause)


def test_memory_and_time_grow_by_their_own_failures_only() -> None:
    once = judge(Past(), "memory", "OUT_OF_MEMORY", "c1")
    assert (once.past.memory, once.past.time, once.give_up, once.free) == (1, 0, False, False)
    again = judge(once.past, "time", "TIMEOUT", "c1")
    assert (again.past.memory, again.past.time) == (1, 1)
    thrice = judge(again.past, "memory", "OUT_OF_MEMORY", "c1")
    assert (thrice.past.memory, thrice.past.time, thrice.give_up) == (2, 1, False)
    assert not thrice.past.nodes


@pytest.mark.parametrize("cause", ["node", "device"])
def test_a_node_that_died_is_avoided(cause: Cause) -> None:
    first = judge(Past(), cause, "NODE_FAIL", "b1")
    assert (set(first.past.nodes), first.next) == ({"b1"}, "goes elsewhere than b1")
    second = judge(first.past, cause, "NODE_FAIL", "b2")
    assert second.past.nodes == {"b1", "b2"}
    assert not second.give_up
    unnamed = judge(first.past, cause, "NODE_FAIL", "")
    assert (set(unnamed.past.nodes), unnamed.next) == ({"b1"}, "goes elsewhere than there")


def test_the_same_error_twice_gives_up_and_another_one_does_not() -> None:
    first = judge(Past(), "error", "ValueError: no nuclei", "c1")
    assert (first.give_up, first.next) == (False, "is tried again")
    other = judge(first.past, "error", "OSError: disk full", "c1")
    assert not other.give_up
    again = judge(other.past, "error", "ValueError: no nuclei", "c2")
    assert again.give_up
    assert "twice in the same way" in again.next
    assert len(again.past.causes) == 3


@given(st.sampled_from(CAUSES), st.text(max_size=9), st.sampled_from(["", "c1"]))
def test_only_errors_of_the_job_itself_give_up(cause: Cause, words: str, node: str) -> None:
    once = judge(Past(), cause, words, node)
    twice = judge(once.past, cause, words, node)
    assert not once.give_up
    assert twice.give_up == (cause == "error")
    assert not once.free
    assert not twice.free
    assert twice.past.causes == (f"{cause}: {words}",) * 2


@given(st.sampled_from(CAUSES), st.integers(0, 3))
def test_a_move_is_free_unless_the_job_failed_by_itself_meanwhile(
    cause: Cause, memory: int
) -> None:
    past = Past(memory, 0, ("error: before",))
    found = judge(past, cause, "words", "c1", moved=True)
    own = cause in ("cancelled", "unknown")
    assert found.free == own
    assert (found.past == past) == own
    if not own:
        assert found == judge(past, cause, "words", "c1")


def test_a_grown_shape_is_bounded_by_what_there_is() -> None:
    base = Shape(8, 100, 0, 60)
    assert within(base.grown(memory=1), base, 250) == replace(base, mem_mb=200)
    assert within(base.grown(memory=2), base, 250) == replace(base, mem_mb=250)
    last = replace(base, mem_mb=250)
    assert within(last.grown(memory=1), last, 250) is None
    assert within(last, last, 250) == last
    assert within(base.grown(memory=5), base, None) == replace(base, mem_mb=3200)


def test_most_memory_is_that_of_the_accounts_a_job_may_use() -> None:
    small, large = account("a", limit={"mem": 150}), account("b", limit={"mem": 250})
    per_user = replace(account("c", limit={"mem": 900}), limit_per_user={"mem": 130})
    per_job = replace(account("d", limit={"mem": 900}), limit_per_job={"mem": 70})
    assert most_mb(TASK, "cpu", [small, large], None) == 250
    assert most_mb(replace(TASK, fixed=Fixed("a")), "cpu", [small, large], None) == 150
    assert most_mb(TASK, "cpu", [per_user, per_job], None) == 130
    assert most_mb(TASK, "cpu", [small, account("e")], None) is None
    elsewhere = replace(large, partitions=("turin",))
    assert most_mb(TASK, "cpu", [small, elsewhere], partition("cpu")) == 150
    bound = replace(partition("cpu"), limit={"mem": 40}, qos="part")
    assert most_mb(TASK, "cpu", [small, large], bound) == 40


def nothing(cause: Cause, task: Task = TASK, **place: Any) -> str:
    accounts = [account("a", limit={"mem": 250}), account("b", limit={"mem": 150})]
    shape = Shape(1, place.get("mem_mb", 100), 0, place.get("runtime_min", 60))
    at = Place("a", None, "cpu", "cpu", shape, "a_cpu")
    where = replace(partition("cpu"), max_time_min=600)
    return nothing_more(task, at, cause, accounts, {"cpu": where, "gpu": place.get("gpu")})


def test_a_job_that_had_all_there_is_is_not_tried_again() -> None:
    assert not nothing("memory", mem_mb=249)
    assert "more memory than any account" in nothing("memory", mem_mb=250)
    assert "more memory" in nothing("memory", replace(TASK, fixed=Fixed("b")), mem_mb=150)
    assert "chosen for it" in nothing("memory", replace(TASK, fixed=Fixed(mem_mb=100)))
    assert not nothing("time", runtime_min=599)
    assert "longest" in nothing("time", runtime_min=600)
    assert "chosen for it" in nothing("time", replace(TASK, fixed=Fixed(runtime_min=60)))
    able = replace(TASK, kinds=("gpu", "cpu"))
    assert not nothing("time", able, runtime_min=600, gpu=partition("gpu"))
    assert "longest" in nothing("time", able, runtime_min=600)
    assert not nothing("error", mem_mb=9000, runtime_min=9000)


@given(
    st.integers(1, 1000),
    st.integers(0, 6),
    st.lists(st.dictionaries(st.sampled_from(["cpu", "mem"]), st.integers(0, 9000)), max_size=3),
)
def test_within_never_shrinks_what_a_job_had_nor_passes_every_limit(
    mem_mb: int, memory: int, limits: list[dict[str, int]]
) -> None:
    base = Shape(1, mem_mb, 0, 5)
    grown = base.grown(memory)
    most = max((limit.get("mem", grown.mem_mb) for limit in limits), default=grown.mem_mb)
    assume(memory or most >= mem_mb)
    found = within(grown, base, most)
    if found is None:
        assert memory > 0
        assert most <= mem_mb
    else:
        assert found == replace(base, mem_mb=min(grown.mem_mb, most))


@given(st.integers(1, 64), st.integers(1, 10**6), st.integers(0, 5), st.integers(0, 5))
def test_each_failure_doubles(cpus: int, mem_mb: int, memory: int, time: int) -> None:
    shape = Shape(cpus, mem_mb, 1, 30)
    assert shape.grown(memory, time) == Shape(cpus, mem_mb * 2**memory, 1, 30 * 2**time)
    one_by_one = shape
    for _ in range(memory):
        one_by_one = one_by_one.grown(memory=1)
    assert one_by_one == shape.grown(memory)
