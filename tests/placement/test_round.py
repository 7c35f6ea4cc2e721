"""One round of placing: what starts, in which order, and that it is never more than there is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity, Claim
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.failures import why_no_retry
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    Fixed,
    Job,
    Kind,
    Past,
    Place,
    Shape,
    Task,
)
from snakemake_scheduler_plugin_tilewright.placement.needs import needs
from snakemake_scheduler_plugin_tilewright.placement.preflight import check_sizes
from snakemake_scheduler_plugin_tilewright.placement.resources import Placement
from snakemake_scheduler_plugin_tilewright.placement.round import Round
from snakemake_scheduler_plugin_tilewright.slurm.accounts import LIMITED, Account, Holder
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.nodes import Node
from snakemake_scheduler_plugin_tilewright.slurm.records import JOBS, Partition
from tests.support.placement_rules import (
    BOTH,
    GROUP_REASONS,
    Rules,
    account,
    jobs_of,
    partition,
    room,
    round_on,
)
from tests.support.recorded import cluster_with

#: 20 GB of memory are left.
BUSY = account("clive", limit={"cpu": 400, "mem": 64_000}, used={"cpu": 10, "mem": 44_000})
SHAPE = Shape(2, 10, 0, 120)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return cluster_with("", tmp_path_factory.mktemp("cache"))[0]


def on_cpus(**cpus_and_mem: tuple[int, int]) -> Rules:
    shapes = {n: {"cpu": Shape(cpus, mem, 0, 10)} for n, (cpus, mem) in cpus_and_mem.items()}
    return Rules(shapes, seconds=600)  # type: ignore[arg-type]


def placed(cluster: Cluster, rules: Rules, capacity: Capacity, **of: Any) -> Round:
    """Return a round with one ready job of each rule, but for that of the rule ``later``."""
    placement = Placement(rules.models, cluster=cluster)
    tasks = [Task(job) for job in jobs_of(rules, **of)]
    ready = [task for task in tasks if task.name != "later"]
    return round_on(capacity, placement, ready, [task for task in tasks if task.name == "later"])


def started(found: Round) -> list[str]:
    return [one.task.name for one in found.placements]


@pytest.mark.parametrize("sizes", [1, 6, 40])
def test_jobs_of_many_sizes_that_do_not_fit_hide_none_that_does(
    cluster: Cluster, sizes: int
) -> None:
    rules = on_cpus(**{f"big{n}": (2, n * 1000) for n in range(21, 21 + sizes)}, small=(2, 1000))
    found = placed(cluster, rules, room(BUSY))
    assert started(found) == ["small"]
    assert set(found.why.values()) == {"no slot is free"}


def test_where_memory_follows_the_input_all_that_fits_starts(cluster: Cluster) -> None:
    rules = on_cpus(**{f"of{n}": (2, n * 1000) for n in range(1, 41)})
    found = placed(cluster, rules, room(BUSY))
    used = sum(start.place.shape.mem_mb for start in found.placements)
    assert used + min(rules.shapes[name]["cpu"].mem_mb for name in found.why) > 20_000


def test_jobs_that_fit_on_different_accounts_do_not_hide_each_other(cluster: Cluster) -> None:
    rules = on_cpus(
        **{f"memory{n}": (4, n * 1000) for n in range(11, 41)},
        **{f"cpus{n}": (n, 1000) for n in range(10, 21)},
    )
    clive = account("clive", limit={"cpu": 20, "mem": 1000})
    brusko = account("brusko", limit={"cpu": 4, "mem": 40_000})
    assert started(placed(cluster, rules, room(clive, brusko)))


@pytest.mark.parametrize(
    ("priorities", "first"),
    [({"one": 100.0}, "one"), ({"two": 100.0, "one": 50.0}, "two")],
)
def test_the_last_cpus_go_to_the_job_of_the_higher_priority(
    cluster: Cluster, priorities: dict[str, float], first: str
) -> None:
    here = room(account("clive", limit={"cpu": 40}, used={"cpu": 38}))
    of = {name: {"priority": value} for name, value in priorities.items()}
    assert started(placed(cluster, on_cpus(one=(1, 100), two=(2, 100)), here, **of)) == [first]


def test_all_of_a_cap_is_filled_and_cpus_that_are_kept_free_are_said(cluster: Cluster) -> None:
    capped = room(account("clive", limit={"cpu": 40}, of_cap={"cpu": 8}), utilisation=0.85)
    rules = on_cpus(**{f"r{n}": (4, 100) for n in range(3)})
    assert len(placed(cluster, rules, capped).placements) == 2
    one = room(account("clive", limit={"cpu": 20}, used={"cpu": 15}), utilisation=0.85)
    share = "15 % of an account's CPUs are kept free: utilisation"
    assert placed(cluster, on_cpus(four=(4, 100), eight=(8, 100)), one).why == {
        "four": f"no slot is free ({share})", "eight": "no slot is free",
    }  # fmt: skip


@pytest.mark.parametrize("cpus", [1, 2, 8])
def test_jobs_that_gpu_jobs_wait_for_are_not_kept_out_by_those(cluster: Cluster, cpus: int) -> None:
    both: dict[Kind, Shape] = {"gpu": Shape(8, 100, 1, 10), "cpu": Shape(8, 100, 0, 10)}
    rules = Rules({"first": {"cpu": Shape(cpus, 100, 0, 10)}, "later": both}, seconds=600)
    here = room(account("clive", limit={"cpu": 8, "gres/gpu": 1}))
    assert started(placed(cluster, rules, here)) == ["first"]
    half: dict[Kind, Shape] = {"gpu": Shape(4, 100, 1, 10), "cpu": Shape(4, 100, 0, 10)}
    rules = Rules({"first": {"cpu": Shape(4, 100, 0, 10)}, "later": half}, seconds=600)
    busy = account("clive", limit={"cpu": 8, "gres/gpu": 1}, used={"cpu": 4, "gres/gpu": 0})
    assert started(placed(cluster, rules, room(busy))) == ["first"]


def test_cpu_jobs_leave_room_to_gpu_jobs_that_become_ready_later(cluster: Cluster) -> None:
    rules = on_cpus(one=(4, 100), two=(4, 100), later=(4, 100))
    both = {"gpu": Shape(4, 100, 1, 10), **rules.shapes["later"]}
    rules = replace(rules, shapes={**rules.shapes, "later": both})
    found = placed(cluster, rules, room(account("clive", limit={"cpu": 8, "gres/gpu": 1})))
    assert len(found.placements) == 1


# Jobs whose rule names a partition, or states more minutes than some account allows


def node(name: str, where: str, cpus: int = 8, held: int = 0) -> Node:
    free = {"cpu": cpus - held, "mem": 999}
    return Node(name, (where,), True, "IDLE", {"cpu": cpus, "mem": 999}, free)


def capacity(
    *accounts: Account, nodes: tuple[Node, ...] | None = None, **named: Partition
) -> Capacity:
    named = {"cpu": partition("cpu"), **named}
    where = {"cpu": named["cpu"], "gpu": None}
    return room(*accounts, partitions=where, nodes=nodes, named=named)  # type: ignore[arg-type]


def tasks(count: int, shape: Shape = SHAPE, fixed: Fixed = Fixed()) -> tuple[Placement, list[Task]]:  # noqa: B008
    placement = Placement(Rules({"work": {"cpu": shape}}).models)
    model = placement.models["work"]
    jobs = [Job(f"work{k}", "work", ("cpu",), fixed=fixed, model=model) for k in range(count)]
    return placement, list(map(Task, jobs))


def sent(here: Capacity, placement: Placement, ready: list[Task]) -> Counter[str]:
    """Return how many jobs start at once on each account."""
    placement.place = lambda account, kind, shape: Place(  # type: ignore[method-assign]
        account.name, None, "cpu", kind, SHAPE, f"{account.name}_{kind}"
    )
    found = round_on(here, placement, ready).placements
    return Counter(one.place.account for one in found if "waits in Slurm's queue" not in one.reason)


def test_a_named_partition_is_the_one_that_is_looked_at() -> None:
    lab = account("lab", limit={"cpu": 40})
    full, turin = (node("a", "cpu", held=8), node("b", "turin")), partition("turin")
    here = capacity(lab, nodes=full, turin=turin)
    assert sent(here, *tasks(5, fixed=Fixed(partition="turin"))) == {"lab": 4}
    assert sent(here, *tasks(5)) == {}
    unseen = tasks(5, fixed=Fixed(partition="unseen"))
    assert sent(capacity(lab, nodes=full), *unseen) == {"lab": 5}
    closed = partition("cpu", allow_accounts=("other",))
    small = (node("a", "cpu", cpus=1), node("b", "turin"))
    here = capacity(lab, nodes=small, cpu=closed, turin=turin)
    placement, ready = tasks(1, fixed=Fixed(partition="turin"))
    check_sizes(ready, here, placement.estimates)
    with pytest.raises(PlacementError, match="account lab may not use partition cpu"):
        check_sizes(tasks(1)[1], here, placement.estimates)
    placement, ready = tasks(1, replace(SHAPE, cpus=9), Fixed(partition="turin"))
    with pytest.raises(PlacementError, match="no node of partition turin has 9 CPUs"):
        check_sizes(ready, here, placement.estimates)


def test_a_job_that_ran_out_of_time_may_have_what_its_own_partition_allows() -> None:
    lab, short = account("lab"), partition("cpu", max_time_min=60)
    named = {"long": partition("long", max_time_min=900)}
    job = Job("a", "work", ("cpu",), fixed=Fixed(partition="long"))
    place = Place("lab", None, "long", "cpu", replace(SHAPE, runtime_min=60), "lab_cpu")
    assert not why_no_retry(job, place, "time", [lab], {"cpu": short}, named)
    default = replace(job, fixed=Fixed())
    assert "longest" in why_no_retry(default, place, "time", [lab], {"cpu": short}, named)


def test_no_account_gets_a_job_that_it_gives_too_few_minutes() -> None:
    short, long = (
        account("short", limit={"cpu": 40}, longest_min=60),
        account("long", limit={"cpu": 4}),
    )
    stated = replace(SHAPE, stated_min=120)
    assert sent(capacity(short, long), *tasks(5, stated)) == {"long": 2}
    assert "short" in sent(capacity(short, long), *tasks(5))  # nobody stated these minutes
    placement, ready = tasks(1, stated)
    with pytest.raises(PlacementError, match="asks for 120 min and account short has 60"):
        check_sizes(ready, capacity(short), placement.estimates)
    # shorter jobs go where longer ones may not
    short, long = (
        account("short", limit={"cpu": 4}, longest_min=60),
        account("long", limit={"cpu": 2}),
    )
    rules = Rules(
        {"work": {"cpu": stated}, "brief": {"cpu": replace(SHAPE, runtime_min=50, stated_min=50)}}
    )
    ready = [Task(rules.job(f"{rule}{k}", rule)) for rule in rules.shapes for k in range(3)]
    assert sent(capacity(short, long), Placement(rules.models), ready) == {"long": 1, "short": 2}


# Any round: it never promises more than there is

REASONS = (*GROUP_REASONS, *("Priority", "Resources", "None", "BeginTime") * 3)


def _up_to(required: bool = True, **most: int) -> st.SearchStrategy[dict[str, int]]:
    names = {"gpu": "gres/gpu", "cpu_min": "cpu/min", "gpu_min": "gres/gpu/min/running"}
    found = {names.get(name, name): st.integers(0, top) for name, top in most.items()}
    return st.fixed_dictionaries(found) if required else st.fixed_dictionaries({}, optional=found)


_tres = _up_to(False, cpu=40, mem=400, gpu=4)
_none: st.SearchStrategy[dict[str, int]] = st.just({})
_some_tres = _none | _tres
#: A job of 8 CPUs and an hour is charged 480.
_budgets = _none | _up_to(False, cpu_min=3000, gpu_min=200)
_most_jobs = st.fixed_dictionaries({}, optional=dict.fromkeys(JOBS, st.integers(1, 7)))
_mine = _up_to(cpu=10, mem=100, gpu=1, jobs=2, submit=2)
_used = st.builds(dict.__or__, _mine, _up_to(cpu_min=600, gpu_min=60))
_names = st.sampled_from("abc")


@st.composite
def questions(draw: st.DrawFn) -> SimpleNamespace:
    """All that one round of placing is asked."""

    def one_of(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    def up_to(most: int, least: int = 1) -> int:
        return draw(st.integers(least, most))

    def shape(gpus: int, least: int = 1) -> Shape:
        return Shape(up_to(12, least), up_to(120, 10), gpus, 60)

    shapes: dict[str, dict[Kind, Shape]] = {
        "both": {"gpu": shape(up_to(2)), "cpu": shape(0, 2)},
        "large": {"gpu": shape(1), "cpu": shape(0, 2)},
        "cpu": {"cpu": shape(0, 2)},
        "small": {"cpu": Shape(1, up_to(60, 10), 0, 5)},
    }

    def job(name: str, **values: Any) -> Job:
        rule = one_of(*shapes)
        return Rules(shapes).job(name, rule, **values)

    def sent(name: str) -> Task:
        made, where = job(name), draw(_names)
        kind = one_of(*made.kinds)
        place = Place(where, None, None, kind, shapes[made.rule][kind], f"{where}_{kind}")
        seen = one_of(None, *(SlurmJob(7, s, start_s=4995.0) for s in ("PENDING", "RUNNING")))
        return Task(made, place, 4990.0, seen=seen)

    def ready(name: str) -> Task:
        fixed = Fixed(one_of(None, None, None, "a", "gone"), cpus=one_of(None, None, 3))
        past = Past(up_to(2, 0), 0, (), frozenset(draw(st.sets(_names))))
        left = one_of(frozenset(), frozenset(), frozenset({("a", "gpu"), ("b", "cpu")}))
        return Task(job(name, fixed=fixed), past=past, left=left)

    #: What limits a and b together.
    dept = Holder("account dept", draw(_some_tres), draw(_used))
    return SimpleNamespace(
        accounts=[
            account(
                name,
                limit=draw(_tres) | draw(_budgets) | draw(_none | _most_jobs),
                used=draw(st.one_of(*[_used] * 6, _tres, st.none())),
                of_user=draw(_none | _some_tres),
                mine=draw(_mine),
                above=(dept,) if name in "ab" else (),
                partitions=one_of((), (), ("c",)),
            )
            for name in "abc"
        ],
        waiting=[
            SlurmJob(n, one_of("PENDING", "PENDING", "CONFIGURING", "RUNNING"), one_of(*"abcz"),
                     tres=draw(_tres), reason=one_of(*REASONS))
            for n in range(up_to(3, 0))
        ],
        claims=[
            Claim(draw(_names), needs(Shape(up_to(8), 20, 0, 5), 1)) for _ in range(up_to(2, 0))
        ],
        partitions={
            "gpu": partition("g", allow_accounts=one_of(None, ("a", "b"))),
            "cpu": partition("c"),
        },
        utilisation=one_of(0.5, 0.85, 1.0),
        shapes=shapes,
        ready=[ready(f"r{n}") for n in range(up_to(12))],
        later=[Task(job(f"l{n}", needs=("r0",))) for n in range(up_to(3, 0))],
        active=[sent(f"s{n}") for n in range(up_to(3, 0))],
        bad_nodes={"gpu": draw(st.sets(st.sampled_from(["g1", "g2"]))), "cpu": {"c1"}},
    )  # fmt: skip


def counts(one: Account, job: SlurmJob) -> bool:
    """Return whether a job pends on an account and may start there at some time."""
    return job.account == one.name and job.state != "RUNNING" and all(
        job.tres.get(tres, 0) <= most
        for holder in one.at("").holders for tres, most in holder.limit.items()
    )  # fmt: skip


def promised(question: SimpleNamespace, accounts: list[Account]) -> Counter[str]:
    """Return what pends or was sent on some accounts."""
    total: Counter[str] = Counter()
    for one in accounts:
        for job in question.waiting:
            total.update({**job.tres, "jobs": 1} if counts(one, job) else {})
        for claim in question.claims:
            total.update(claim.tres if claim.account == one.name else {})
    return total


def closed_kinds(question: SimpleNamespace, one: Account) -> set[Kind]:
    if any(holder.limit.keys() - (holder.used or {}) for holder in one.at("").holders):
        return set(BOTH)
    reasons = {job.reason for job in question.waiting if counts(one, job)} & set(GROUP_REASONS)
    return {kind for reason in reasons for kind in BOTH if kind == "gpu" or "GRES" not in reason}


@settings(max_examples=250)
@given(questions())
def test_no_round_exceeds_limits_or_keeps_silent(
    cluster: Cluster, question: SimpleNamespace
) -> None:
    places = question.partitions
    capacity = room(
        *question.accounts,
        waiting=question.waiting,
        sent=question.claims,
        partitions=places,
        utilisation=question.utilisation,
    )
    survey = replace(cluster.survey, partitions=places)
    placement = Placement(Rules(question.shapes).models, cluster=replace(cluster, survey=survey))
    tasks = (question.ready, question.later, question.active)
    found = round_on(capacity, placement, *tasks, bad_nodes=question.bad_nodes)
    started = [start.task.name for start in found.placements]
    assert sorted([*started, *found.why]) == sorted(task.name for task in question.ready)
    assert all(found.why.values())
    accounts = {one.name: one for one in question.accounts}
    holders = {holder.name: holder for one in question.accounts for holder in one.at("").holders}
    for holder in holders.values():
        below = [one for one in accounts.values() if holder in one.at("").holders]
        here = [start for start in found.placements if accounts[start.place.account] in below]
        asked: Counter[str] = Counter()
        for start in here:
            asked.update(needs(start.place.shape, 1))
        more = promised(question, below)
        for tres in holder.limit.keys() & LIMITED if here else ():
            left = holder.limit[tres] - (holder.used or {}).get(tres, 0) - more[tres]
            assert asked[tres] <= max(0, left), (holder.name, tres)
    for start in found.placements:
        task, place = start.task, start.place
        one, where = accounts[place.account], places[place.kind]
        assert place.kind not in closed_kinds(question, one)
        assert place.kind in task.job.kinds
        assert (place.shape.gpus > 0) == (place.kind == "gpu")
        assert task.job.fixed.account in (None, place.account)
        assert place.shape.cpus == task.job.fixed.cpus or task.job.fixed.cpus is None
        assert (place.account, place.kind) in {where[:2] for where in found.places(task)}
        assert place.partition == where.name
        assert where.allow_accounts is None or one.name in where.allow_accounts
        assert not one.partitions or where.name in one.partitions
        assert set(place.exclude) == question.bad_nodes[place.kind] | task.past.nodes
        assert start.reason
