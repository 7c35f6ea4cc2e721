"""What a failed job gets next, by its cause, and jobs that fit nowhere before they are sent."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.cluster.request import (
    DeviceKind,
    ResourceRequest,
    Target,
)
from snakemake_scheduler_plugin_tilewright.cluster.state import ClusterState
from snakemake_scheduler_plugin_tilewright.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.placement.failures import (
    memory_limit_mb,
    next_try,
    why_no_retry,
)
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    Assignment,
    FailureHistory,
    Job,
    JobState,
    UserOverrides,
)
from snakemake_scheduler_plugin_tilewright.placement.reach import check_feasible
from snakemake_scheduler_plugin_tilewright.resources import Placement
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account, LimitScope
from snakemake_scheduler_plugin_tilewright.slurm.jobs import Cause
from snakemake_scheduler_plugin_tilewright.slurm.nodes import Node
from tests.support.placement_rules import (
    BOTH,
    FREE,
    PLACES,
    Rules,
    account,
    in_partition,
    open_at,
    partition,
    room,
)

JOB = Job("rule_a", "a", ("cpu",), wildcards={})
#: How many failures of these causes, which are nobody's fault, cost no try.
MOST_FREE = {"preempted": 10, "budget": 10, "refused": 10}
CAUSES: tuple[Cause, ...] = get_args(Cause)


def test_memory_and_time_grow_by_their_own_failures_only() -> None:
    past = FailureHistory()
    causes: tuple[Cause, ...] = ("memory", "time", "memory")
    for cause, grown in zip(causes, ((1, 0), (1, 1), (2, 1)), strict=True):
        found = next_try(past, cause, cause.upper(), "c1")
        past = found.history
        assert ((past.memory, past.time), found.give_up, found.free) == (grown, False, False)
    assert not past.nodes


@pytest.mark.parametrize("cause", ["node", "device"])
def test_a_node_that_died_is_avoided(cause: Cause) -> None:
    first = next_try(FailureHistory(), cause, "NODE_FAIL", "b1")
    assert (set(first.history.nodes), first.next) == ({"b1"}, "goes elsewhere than b1")
    second = next_try(first.history, cause, "NODE_FAIL", "b2")
    assert (set(second.history.nodes), second.give_up) == ({"b1", "b2"}, False)
    unnamed = next_try(first.history, cause, "NODE_FAIL", "")
    assert (set(unnamed.history.nodes), unnamed.next) == ({"b1"}, "goes elsewhere than there")


def test_the_same_error_twice_gives_up_and_another_one_does_not() -> None:
    first = next_try(FailureHistory(), "error", "ValueError: no nuclei", "c1")
    assert (first.give_up, first.next) == (False, "is tried again")
    other = next_try(first.history, "error", "OSError: disk full", "c1")
    again = next_try(other.history, "error", "ValueError: no nuclei", "c2")
    assert (other.give_up, again.give_up, len(again.history.causes)) == (False, True, 3)
    assert "twice in the same way" in again.next


@given(st.sampled_from(CAUSES), st.text(max_size=9), st.sampled_from(["", "c1"]))
def test_only_errors_of_the_job_itself_give_up(cause: Cause, words: str, node: str) -> None:
    once = next_try(FailureHistory(), cause, words, node)
    twice = next_try(once.history, cause, words, node)
    assert (once.give_up, twice.give_up) == (False, cause == "error")
    assert once.free == twice.free == (cause in MOST_FREE)
    assert twice.history.causes == (f"{cause}: {words}",) * 2


@pytest.mark.parametrize(("cause", "most"), MOST_FREE.items())
def test_what_is_nobodys_fault_is_free_for_so_many_times(cause: Cause, most: int) -> None:
    past, free = FailureHistory(), []
    for _ in range(12):
        found = next_try(past, cause, "words", "c1")
        free.append(found.free)
        past = found.history
    assert free == [True] * most + [False] * (12 - most)


@given(st.sampled_from(CAUSES), st.integers(0, 3))
def test_a_move_is_free_unless_the_job_failed_meanwhile(cause: Cause, memory: int) -> None:
    past = FailureHistory(memory, 0, ("error: before",))
    found = next_try(past, cause, "words", "c1", moved=True)
    own = cause in ("cancelled", "unknown")
    assert found.free == (own or cause in MOST_FREE)
    assert (found.history == past) == own
    assert own or found == next_try(past, cause, "words", "c1")


@given(
    st.integers(1, 1000),
    st.integers(0, 6),
    st.dictionaries(
        st.sampled_from("abc"), st.none() | st.integers(0, 9000), min_size=1, max_size=3
    ),
)
def test_a_grown_shape_has_bounds(mem_mb: int, memory: int, limits: dict[str, int | None]) -> None:
    base = ResourceRequest(1, mem_mb, 0, 5)
    wanted = base.double(memory).mem_mb
    most = max(wanted if n is None else n for n in limits.values())
    accounts = [account(a, limit={} if n is None else {"mem": n}) for a, n in limits.items()]
    state = ClusterState(tuple(accounts), {"cpu": (partition("c"),)})
    job = Rules({"a": {"cpu": base}}).job("rule_a", "a")
    task = JobState(job, history=FailureHistory(memory))
    found = Placement().estimates.request_of(task, "cpu", state)
    assert found == replace(base, mem_mb=max(mem_mb, min(wanted, most)) if memory else mem_mb)


SMALL, LARGE = account("a", limit={"mem": 150}), account("b", limit={"mem": 250})
BOUND = in_partition(LARGE, "cpu", LimitScope("QOS part", {"mem": 40}, {}))
CPUS = partition("cpu")


@pytest.mark.parametrize(
    ("accounts", "where", "fixed", "most"),
    [
        ([SMALL, LARGE], [None], None, 250),
        ([SMALL, LARGE], [None], "a", 150),
        ([account("c", limit={"mem": 900}, of_user={"mem": 130}),
          account("d", limit={"mem": 900}, per_job={"mem": 70})], [None], None, 130),
        ([SMALL, account("e")], [None], None, None),
        ([SMALL, replace(LARGE, partitions=("turin",))], [CPUS], None, 150),
        ([BOUND], [CPUS], None, 40),
        ([in_partition(BOUND, "big", LimitScope("QOS big", {"mem": 400}, {}))],
         [CPUS, partition("big")], None, 400),
    ],
)  # fmt: skip
def test_most_memory_is_that_of_the_accounts_a_job_may_use(
    accounts: list[Account], where: list[Any], fixed: str | None, most: int | None
) -> None:
    places: dict[DeviceKind, Any] = dict(zip(("cpu", "gpu"), where, strict=False))
    job = replace(JOB, overrides=UserOverrides(fixed), kinds=tuple(places))
    assert memory_limit_mb(job, ClusterState(tuple(accounts), open_at(places))) == most


LONG = replace(partition("gpu"), max_time_min=900)


@pytest.mark.parametrize(
    ("cause", "had", "job", "gpu", "words"),
    [
        ("memory", {"mem_mb": 249}, {}, None, ""),
        ("memory", {"mem_mb": 250}, {}, None, "more memory than any account"),
        ("memory", {"mem_mb": 150}, {"overrides": UserOverrides("b")}, None, "more memory"),
        ("memory", {}, {"overrides": UserOverrides(mem_mb=100)}, None, "set for it"),
        ("time", {"runtime_min": 599}, {}, None, ""),
        ("time", {"runtime_min": 600}, {}, None, "longest"),
        ("time", {}, {"overrides": UserOverrides(runtime_min=60)}, None, "set for it"),
        ("time", {"runtime_min": 600}, {"kinds": BOTH}, partition("gpu"), ""),
        ("time", {"runtime_min": 600}, {"kinds": BOTH}, None, "longest"),
        ("time", {"runtime_min": 600}, {"kinds": BOTH}, LONG, ""),
        ("time", {"runtime_min": 600}, {"overrides": UserOverrides(partition="long")}, None, ""),
        ("error", {"mem_mb": 9000, "runtime_min": 9000}, {}, None, ""),
    ],
)
def test_a_job_that_had_all_there_is_is_not_tried_again(
    cause: Cause, had: dict[str, int], job: dict[str, Any], gpu: Any, words: str
) -> None:
    accounts = account("a", limit={"mem": 250}), account("b", limit={"mem": 150})
    request = replace(ResourceRequest(1, 100, 0, 60), **had)  # type: ignore[arg-type]
    assignment = Assignment(Target("a", "a", "cpu", "cpu"), request)
    places: dict[DeviceKind, Any] = {"cpu": replace(CPUS, max_time_min=600), "gpu": gpu}
    state = ClusterState(accounts, open_at(places), {"long": partition("long", max_time_min=900)})
    said = why_no_retry(replace(JOB, **job), assignment, cause, state)
    assert words in said
    assert bool(said) == bool(words)


# Before anything is submitted

GPU, CPU = ResourceRequest(8, 180, 1, 60), ResourceRequest(8, 48, 0, 60)
SHAPES: dict[DeviceKind, ResourceRequest] = {"gpu": GPU, "cpu": CPU}
Values = Mapping[str, Any]
ON_CPU: Values = {"kinds": ("cpu",)}
MATLAB: Values = {"licences": (("matlab", 2),)}
FOUR, ANY = account("a", limit={"cpu": 4}), account("b")
NO_GPU = {**PLACES, "gpu": None}
WHOLE = {**PLACES, "cpu": replace(partition("c"), whole_nodes=True, whole={"cpu": 96})}
DENIED = {**PLACES, "cpu": replace(partition("c"), deny_accounts=("b",))}
DOWN = (Node("c1", ("c",), False, {"cpu": 8, "mem": 900}, {"cpu": 8, "mem": 900}),)
SPENT = {**FREE, "cpu/min": 900, "cpu/min/spent": 900}


def spent(minutes: int) -> Account:
    return account("a", limit={"cpu/min": 1000}, used={**SPENT, "cpu/min/spent": minutes})


def check(accounts: list[Account], job: Values, of: Values, shape: Values, memory: int = 0) -> None:
    shapes = {kind: replace(one, **shape) for kind, one in SHAPES.items()}
    model = Rules({"work": shapes}).models["work"]
    of_job = {"kinds": BOTH, "wildcards": {}, "model": model, **job}
    made = Job("rule_work_wildcards_a", "work", **of_job)
    check_feasible(
        [JobState(made, history=FailureHistory(memory))],
        room(*accounts, **of),
        Placement().estimates,
    )


def licence(**there: int) -> Values:
    return {"licences": there}


@pytest.mark.parametrize(
    ("accounts", "job", "of", "shape", "message"),
    [
        ([account("c", limit={"cpu": 8, "mem": 48, "gres/gpu": 0}), FOUR], {}, {}, {}, None),
        # there is no room now, or nobody knows, but some day
        ([account("a", limit={"cpu": 8}, used={"cpu": 8, "mem": 0, "gres/gpu": 0})], {}, {}, {},
         None),
        ([FOUR, account("b", limit={"cpu": 99}, used=None)], ON_CPU, {}, {}, None),
        ([account("a", limit={"cpu": 8})], {"overrides": UserOverrides(cpus=9)}, {}, {},
         "asks for cpu=9 and account a has 8"),
        ([account("c", of_user={"cpu": 7})], {}, {}, {}, "cpu=8 and account c has 7"),
        ([FOUR, ANY], {}, {}, {}, None),
        ([FOUR, ANY], {"overrides": UserOverrides("a")}, {}, {},
         "asks for cpu=8 and account a has 4"),
        ([FOUR, ANY], {"overrides": UserOverrides("z")}, {}, {},
         "on account z, which cannot be used; there are a, b"),
        ([ANY], {}, {"partitions": NO_GPU}, {}, None),
        ([ANY], {"kinds": ("gpu",)}, {"partitions": NO_GPU}, {}, "there is no GPU partition"),
        # what the rule states is not cut
        ([account("a", limit={"mem": 400})], ON_CPU, {}, {"mem_mb": 500},
         "mem=500M and account a has 400M"),
        ([ANY], ON_CPU, {"partitions": DENIED}, {}, "account b may not use partition c"),
        ([account("a", limit={"cpu": 48})], ON_CPU, {"partitions": WHOLE}, {},
         "a whole node with cpu=96 and account a has 48"),
        ([ANY], ON_CPU, {"nodes": DOWN}, {}, None),  # it may come up again
        ([ANY], {"overrides": UserOverrides(cpus=9), **ON_CPU}, {"nodes": DOWN}, {},
         "no node of partition c has 9 CPUs, 48 MB"),
        ([ANY], ON_CPU, {"nodes": DOWN}, {"features": ("avx",)}, "8 CPUs, 48 MB, feature avx"),
        ([spent(9)], ON_CPU, {}, {}, None),  # what running jobs may take comes back
        ([spent(900), ANY], ON_CPU, {}, {}, None),
        ([spent(900)], ON_CPU, {}, {}, r"8 CPU-hours and account a has 1\.67 CPU-hours left"),
        ([ANY], ON_CPU, licence(matlab=2), MATLAB, None),
        ([ANY], ON_CPU, {}, MATLAB, None),
        ([ANY], ON_CPU, licence(matlab=1), MATLAB, "2 of licence matlab and there are 1"),
        ([ANY], ON_CPU, licence(), MATLAB, "2 of licence matlab and there are 0"),
    ],
)  # fmt: skip
def test_a_job_that_would_pend_for_ever_is_refused(
    accounts: list[Account], job: Values, of: Values, shape: Values, message: str | None
) -> None:
    if message is None:
        check(accounts, job, of, shape)
        return
    with pytest.raises(PlacementError, match=message):
        check(accounts, job, of, shape)


def test_memory_that_grew_is_cut_to_what_there_is_and_not_refused() -> None:
    check([account("a", limit={"mem": 200})], {}, {}, {}, memory=5)


def test_who_is_refused_is_told_with_all_figures() -> None:
    with pytest.raises(PlacementError) as caught:
        check([FOUR, account("b", limit={"mem": 40})], {}, {}, {})
    assert str(caught.value) == (
        "rule_work_wildcards_a can never start: it asks for cpu=8 and account a has 4; "
        "it asks for mem=180M and account b has 40M; it asks for mem=48M and account b has 40M. "
        "Lower the resources of rule work, or use an account that has more"
    )
