"""One round: which jobs are sent, where to, and which ones wait."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright.placement.jobs import History
from snakemake_scheduler_plugin_tilewright.placement.request import Place, ResourceRequest
from snakemake_scheduler_plugin_tilewright.placement.round import NO_ROOM, WAITS_FOR_GPU
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.records import Partition
from tests.support.placement_rules import (
    CPU,
    GPU,
    NOW_S,
    PARTITIONS,
    Given,
    account,
    cluster_of,
    sent_to,
    tasks,
)

LIMITED = SlurmJob(7, "PENDING", reason="QOSGrpCpuLimit")
JOBS_OPTION = "Snakemake runs no more jobs at once (--jobs)"


@pytest.mark.parametrize(
    ("limit", "used", "sends"),
    [
        ({"cpu": 40}, None, 4),  # 85 % are 34 CPUs
        ({"cpu": 40}, {"cpu": 10}, 3),
        ({"cpu": 40}, {"cpu": 10, "jobs": 1, "submit": 2}, 3),
        ({"cpu": 400}, None, 42),
        ({"mem": 120}, None, 2),
        ({"jobs": 7}, {"jobs": 2}, 5),
        ({"jobs": 7, "energy": 5}, {"jobs": 2}, 5),  # of what is not counted, Slurm tells
    ],
)
def test_where_limits_are_known_as_many_jobs_are_sent_as_fit(
    limit: dict[str, int], used: dict[str, int] | None, sends: int
) -> None:
    given = Given(cluster_of([account("lab", limit, used)]))
    choice = given.choose(tasks(100))
    # where others wait, a few pend
    few = max(sends, 4) if used and "submit" in used else sends
    assert sent_to(choice) == {"lab cpu": few}
    assert choice.waiting == {NO_ROOM: 100 - few}


@pytest.mark.parametrize(
    ("running", "pending", "full", "sends"),
    [(0, 0, False, 4), (3, 0, False, 4), (10, 0, False, 10), (10, 7, False, 3), (10, 12, False, 0),
     (0, 0, True, 4), (8, 0, True, 4), (12, 0, True, 6), (12, 5, True, 1), (12, 9, True, 0)],
)  # fmt: skip
@pytest.mark.parametrize("known", ["limits hidden", "no use", "no nodes", "wrong"])
def test_where_they_are_not_a_few_are_sent_and_then_as_many_as_run(
    running: int, pending: int, full: bool, sends: int, known: str
) -> None:
    """At a full place at most 4, or half of those that run, pend."""
    own = account("lab", {"cpu": 4000}, {} if known == "no use" else None)
    given = Given(cluster_of([own], limits_known=known != "limits hidden"))
    given.cluster.idle = None if known == "no nodes" else given.cluster.idle
    place = given.at("lab", running=running, pending=pending, full=full)
    given.wrong = {place} if known == "wrong" else set()
    assert sum(sent_to(given.choose(tasks(30))).values()) == sends


def test_a_place_that_slurm_calls_full_is_full_although_its_limits_have_room() -> None:
    given = Given(cluster_of([account("a", {"cpu": 400}), account("b", {"cpu": 40})]))
    given.at("a", full=True, pending=2)
    assert sent_to(given.choose(tasks(30))) == {"b cpu": 4, "a cpu": 2}


@pytest.mark.parametrize("others", [0, 3], ids=["nobody else waits", "others wait"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_job_waits_for_a_gpu_that_ends_it_sooner_and_goes_to_cpus_where_none_does(
    gpus: int, others: int
) -> None:
    """On GPUs a job takes 120 s, on CPUs 600 s and a margin of 40 %.

    Where others wait, a few pend at the full place; else one is sent when a slot falls free.
    """
    limit, cpus = {"gres/gpu": gpus, "cpu": 2000 + 8 * gpus}, 100
    used = {"gres/gpu": 0, "cpu": 1700 - 8 * cpus, "jobs": 1, "submit": 1 + others}
    given = Given(cluster_of([account("lab", limit, used)]), cpu_share=1700 / limit["cpu"])
    place = given.at("lab", "gpu", running=gpus)
    given.held = [(place, GPU)] * gpus
    given.ends_s = {"gpu": [(NOW_S + 10, place)] * gpus}
    choice = given.choose(tasks(40, ("gpu", "cpu")))
    waits, pend = 6 * gpus, 4 * bool(others)  # 10 s + 6 × 120 s < 842 s
    assert sent_to(choice) == ({"lab gpu": pend} if pend else {}) | {"lab cpu": 40 - waits}
    assert choice.waiting[WAITS_FOR_GPU] == waits - pend
    assert [task.name for task, place, _ in choice.starts if place.kind == "gpu"] == [
        f"work_{i}" for i in range(pend)
    ]
    full = Given(cluster_of([account("lab", limit, {**used, "cpu": limit["cpu"] - 8 * gpus})]))
    full.ends_s, full.held = given.ends_s, given.held
    full.at("lab", "gpu", running=gpus)
    choice = full.choose(tasks(40, ("gpu", "cpu")))
    assert (sum(sent_to(choice).values()), choice.waiting) == (pend, {NO_ROOM: 40 - pend})


def test_a_free_gpu_is_taken_before_cpus_and_what_was_learned_counts() -> None:
    given = Given(cluster_of([account("lab", {"gres/gpu": 2, "cpu": 400})]))
    assert sent_to(given.choose(tasks(5, ("gpu", "cpu")))) == {"lab gpu": 2}
    for _ in range(9):  # as long on either
        given.durations.learn("work", "cpu", 600, 600)
        given.durations.learn("work", "gpu", 600, 590)
    given.spots.clear()
    assert sent_to(given.choose(tasks(5, ("gpu", "cpu")))) == {"lab gpu": 2, "lab cpu": 3}


def test_the_longest_chain_goes_first_after_what_the_user_prefers() -> None:
    given = Given(cluster_of([account("lab", {"jobs": 4})]))
    short = tasks(2, rule="short", order=(0.0, -10.0))
    long = tasks(2, rule="long", order=(0.0, -90.0))
    preferred = tasks(2, rule="preferred", order=(-1.0, -1.0))
    choice = given.choose([*short, *long, *preferred])
    assert [task.name for task, _, _ in choice.starts] == [
        "preferred_0", "preferred_1", "long_0", "long_1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("for_gpus", "used", "sends"), [(None, 0, 21), (GPU, 0, 13), (GPU, 6, 19), (GPU, 8, 21)]
)
def test_cpu_jobs_leave_a_gpu_job_its_cpus_for_each_free_gpu(
    for_gpus: ResourceRequest | None, used: int, sends: int
) -> None:
    limit = {"cpu": 200, "gres/gpu": 12}
    given = Given(cluster_of([account("lab", limit, {"cpu": 0, "gres/gpu": used})]), for_gpus)
    sent = sent_to(given.choose(tasks(50)))
    assert sent["lab cpu"] == min(21, (200 - 8 * (12 - used) * bool(for_gpus)) // 8)
    assert sent["lab cpu"] == sends


def test_places_where_others_end_jobs_and_qos_other_than_the_default_are_last() -> None:
    preempted = Partition("cpu", 600, {"cpu": 99}, default=True, nodes="c[1-4]", tier=1,
                          preempt_mode="REQUEUE")  # fmt: skip
    above = Partition("own", 600, {"cpu": 99}, nodes="c4", tier=2)
    limit = {"jobs": 6}
    accounts = [account("a", limit, preemptable=True), account("b", limit, order=1),
                account("c", limit)]  # fmt: skip
    given = Given(cluster_of(accounts))
    assert sent_to(given.choose(tasks(8))) == {"c cpu": 6, "b cpu": 2}
    ranks = {f"{one.account} {one.partitions[0]}": one.rank
             for one in cluster_of(accounts, (preempted, above)).places("cpu", CPU)}  # fmt: skip
    assert ranks == {"c own": 0, "b own": 1, "a own": 1000, "a cpu": 1000, "c cpu": 1000,
                     "b cpu": 1001}  # fmt: skip
    sums = [account("a", {"jobs": 20}), account("b", {"jobs": 10})]
    assert sent_to(Given(cluster_of(sums)).choose(tasks(14))) == {"a cpu": 12, "b cpu": 2}


def test_after_a_list_is_refused_its_partitions_are_tried_alone_and_then_slurms_words_said() -> (
    None
):
    pair = (*PARTITIONS, Partition("more", 600, {"cpu": 9}))
    given = Given(cluster_of([account("lab")], pair))
    whole = Place("lab", "lab", ("cpu", "more"), "cpu")
    alone = [Place("lab", "lab", (one,), "cpu") for one in whole.partitions]
    seen = []
    for excluded in ([], [whole], [whole, alone[0]], [whole, *alone]):
        (task,) = tasks(1, history=History(excluded=frozenset(excluded), words=["no such node"]))
        choice = given.choose([task])
        seen.append([place.partitions for _, place, _ in choice.starts])
    assert seen == [[("cpu", "more")], [("cpu",)], [("more",)], []]
    assert choice.impossible == [(task, "no such node")]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (account("lab", {"cpu": 4}), "QOS lab allows 4 of cpu, and it asks for 8"),
        (account("lab", {"gres/gpu": 0}), ""),
        (account("lab", per_job={"mem": 9}), "one job of lab allows 9 of mem, and it asks for 50"),
        (account("lab", partitions=("gone",)), "there is no partition for it"),
    ],
)  # fmt: skip
def test_a_job_that_is_larger_than_all_limits_is_given_up_with_the_figures(
    own: Any, words: str
) -> None:
    ready = tasks(3)
    choice = Given(cluster_of([own])).choose(ready)
    assert choice.impossible == ([(task, words) for task in ready] if words else [])
    other = Given(cluster_of([own, account("other")])).choose(tasks(3))
    assert (sent_to(other), other.impossible) == ({f"{'other' if words else 'lab'} cpu": 3}, [])


def test_what_the_user_chose_is_not_questioned() -> None:
    accounts = [account("a"), account("b")]
    cluster = cluster_of(accounts)

    def places(request: ResourceRequest = CPU, account: str = "", qos: str = "") -> set[str]:
        return {str(one) for one in cluster.places("cpu", request, fixed=(account, qos))}

    assert places() == {"a a cpu", "b b cpu"}
    assert places(account="b") == {"b b cpu"}
    assert places(account="b", qos="night") == {"b night cpu"}
    assert places(qos="night") == {"a night cpu", "b night cpu"}
    assert places(account="other", qos="night") == {"other night cpu"}
    at = ResourceRequest(8, 50, 0, 60, partition="gpu,hidden")
    assert places(at) == {"a a gpu,hidden", "b b gpu,hidden"}
    assert places(ResourceRequest(8, 50, 0, 60, required_min=601)) == set()
    typed = Partition("h", 600, {"gres/gpu": 2, "gres/gpu:h100": 2})
    other = Partition("a", 600, {"gres/gpu": 2, "gres/gpu:a100": 2})
    gpus = cluster_of([account("lab")], (typed, other))
    asks = ResourceRequest(1, 1, 1, 60, gpu_type="a100")
    assert [one.partitions for one in gpus.places("gpu", asks)] == [("a",)]
    assert [one.partitions for one in gpus.places("gpu", GPU)] == [("h", "a")]


def test_a_job_asks_for_no_more_time_than_its_place_gives_unless_the_user_set_it() -> None:
    short = Partition("cpu", 30, {"cpu": 256}, default=True)
    given = Given(cluster_of([account("lab", longest_min=20)], (short,)))
    ((_, _, request),) = given.choose(tasks(1)).starts
    assert request.runtime_min == 20
    given = Given(cluster_of([account("lab", longest_min=20)], PARTITIONS))
    set_by_user = {"cpu": ResourceRequest(8, 50, 0, 60, required_min=60)}
    ((_, _, request),) = given.choose(tasks(1, requests=set_by_user)).starts
    assert request.runtime_min == 60


def test_a_closed_place_gets_nothing_and_its_words_are_said() -> None:
    given = Given(cluster_of([account("a"), account("b")]))
    given.at("a", closed="its nodes are down")
    assert sent_to(given.choose(tasks(9))) == {"b cpu": 9}
    given.at("b", closed="its nodes are down")
    choice = given.choose(tasks(9))
    assert (choice.starts, choice.impossible) == ([], [])
    assert choice.waiting == {"its nodes are down": 9}


def test_pending_jobs_go_where_there_is_room_and_to_the_other_kind_by_a_new_submission() -> None:
    given = Given(cluster_of([account("a", {"jobs": 9}, {"jobs": 9}), account("b", {"jobs": 3})]))
    at_a = given.at("a", full=True, pending=4)
    movable = tasks(4, place=at_a, slurm_job=LIMITED, waits_since_s=NOW_S - 100)
    choice = given.choose(tasks(1, rule="ready"), movable)
    ((place, moved),) = choice.moves.items()
    assert (place.account, moved, choice.switches) == ("b", movable[:2], [])
    assert sent_to(choice) == {"b cpu": 1}
    assert given.spots[at_a].pending == 2


@pytest.mark.parametrize(("switches", "goes"), [(0, True), (2, True), (3, False)])
def test_a_pending_job_changes_its_device_kind_three_times_at_most(
    switches: int, goes: bool
) -> None:
    given = Given(cluster_of([account("lab", {"gres/gpu": 1})]))
    on_cpus = given.at("lab", full=True, pending=1)
    (task,) = tasks(1, ("gpu", "cpu"), place=on_cpus, switches=switches)
    choice = given.choose([], [task])
    assert (choice.switches, choice.moves, choice.starts) == ([task] * goes, {}, [])


def test_a_pending_job_for_which_nothing_is_better_stays_where_it_is() -> None:
    given = Given(cluster_of([account("lab", {"jobs": 2}, {"jobs": 2})]))
    (task,) = tasks(1, place=given.at("lab", full=True, pending=1))
    choice = given.choose([], [task])
    assert (choice.moves, choice.switches, choice.waiting) == ({}, [], {})


@pytest.mark.parametrize(("sent_s", "goes"), [(NOW_S - 50, True), (NOW_S - 90, False)])
def test_a_job_that_waits_for_nodes_follows_one_that_was_sent_later_and_has_started(
    sent_s: float, goes: bool
) -> None:
    given = Given(cluster_of([account("a"), account("b"), account("c")]))
    at_a = given.at("a", full=True, pending=1)
    given.at("b", full=True, started_s=NOW_S - 100)
    at_c = given.at("c", full=True, started_s=sent_s)
    waits = SlurmJob(7, "PENDING", reason="Priority")
    (task,) = tasks(1, place=at_a, slurm_job=waits, waits_since_s=NOW_S - 80)
    assert given.choose([], [task]).moves == ({at_c: [task]} if goes else {})


def test_a_job_that_was_cancelled_for_the_other_kind_pends_for_that_only() -> None:
    given = Given(cluster_of([account("lab", {"gres/gpu": 9})]))
    given.at("lab", "gpu", full=True)
    given.at("lab", "cpu", full=True, pending=4)
    (free,) = tasks(1, ("gpu", "cpu"))
    (bound,) = tasks(1, ("gpu", "cpu"), bound="cpu")
    assert sent_to(given.choose([free])) == {"lab gpu": 1}
    choice = given.choose([bound])
    assert (choice.starts, choice.waiting) == ([], {NO_ROOM: 1})


def test_no_more_jobs_are_sent_than_snakemake_may_run() -> None:
    given = Given(cluster_of([account("lab")]), most=2)
    choice = given.choose(tasks(5))
    assert sent_to(choice) == {"lab cpu": 2}
    assert choice.waiting == {JOBS_OPTION: 3}


def calls_of(function: Callable[[], Any]) -> int:
    """Return how many functions of Python are called."""
    counted = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counted


def test_a_round_over_10000_jobs_and_240_places_takes_few_steps() -> None:
    """A call with what it does takes about 0.5 µs; the bounds are twice what was counted."""
    accounts = [
        account(f"lab{i}", {"cpu": 104, "gres/gpu": 3, "jobs": 50}, order=order)
        for i in range(60)
        for order in range(2)
    ]
    given = Given(cluster_of(accounts), GPU)
    ready = [task for rule in "abcdefgh"
             for task in tasks(1250, ("gpu", "cpu"), rule=rule)]  # fmt: skip
    free = calls_of(lambda: given.choose(ready))
    for spot in given.spots.values():
        spot.full = True
    full = calls_of(lambda: given.choose(ready))
    assert free < 500_000
    assert full < 340_000
