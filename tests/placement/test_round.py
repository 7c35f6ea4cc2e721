"""One round of placing: what starts, in which order, and that it is never more than there is."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.cluster.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.cluster.pending_use import PendingUse
from snakemake_scheduler_plugin_tilewright.cluster.request import (
    DeviceKind,
    ResourceRequest,
    Target,
)
from snakemake_scheduler_plugin_tilewright.cluster.state import ClusterState
from snakemake_scheduler_plugin_tilewright.cluster.tres import tres_of
from snakemake_scheduler_plugin_tilewright.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.placement.jobs import (
    Assignment,
    FailureHistory,
    Job,
    JobState,
    UserOverrides,
)
from snakemake_scheduler_plugin_tilewright.placement.reach import check_feasible
from snakemake_scheduler_plugin_tilewright.placement.round import Round
from snakemake_scheduler_plugin_tilewright.resources import Placement
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account, LimitScope
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.nodes import Node
from snakemake_scheduler_plugin_tilewright.slurm.records import JOBS, Partition
from tests.support.placement_rules import (
    BOTH,
    GROUP_REASONS,
    Rules,
    account,
    open_at,
    partition,
    room,
    round_on,
)
from tests.support.recorded import cluster_with

#: 20 GB of memory are left.
BUSY = account("clive", limit={"cpu": 400, "mem": 64_000}, used={"cpu": 10, "mem": 44_000})
SHAPE = ResourceRequest(2, 10, 0, 120)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return cluster_with("", tmp_path_factory.mktemp("cache"))[0]


def on_cpus(**cpus_and_mem: tuple[int, int]) -> Rules:
    shapes = {
        n: {"cpu": ResourceRequest(cpus, mem, 0, 10)} for n, (cpus, mem) in cpus_and_mem.items()
    }
    return Rules(shapes, seconds=600)  # type: ignore[arg-type]


def placed(cluster: Cluster, rules: Rules, capacity: ClusterState, **of: Any) -> Round:
    """Return a round with one ready job of each rule, but for that of the rule ``later``."""
    placement = Placement(rules.models, cluster=cluster)
    tasks = [JobState(rules.job(rule, rule, **of.get(rule, {}))) for rule in rules.models]
    ready = [task for task in tasks if task.name != "later"]
    return round_on(capacity, placement, ready, [task for task in tasks if task.name == "later"])


def started(found: Round) -> list[str]:
    return list(found.assignments)


def test_where_memory_follows_the_input_all_that_fits_starts(cluster: Cluster) -> None:
    rules = on_cpus(**{f"of{n}": (2, n * 1000) for n in range(1, 41)})
    found = placed(cluster, rules, room(BUSY))
    used = sum(one.request.mem_mb for one in found.assignments.values())
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
    assert len(placed(cluster, rules, capped).assignments) == 2
    one = room(account("clive", limit={"cpu": 20}, used={"cpu": 15}), utilisation=0.85)
    share = "15 % of an account's CPUs are kept free: utilisation"
    assert placed(cluster, on_cpus(four=(4, 100), eight=(8, 100)), one).why == {
        "four": f"no slot is free ({share})", "eight": "no slot is free",
    }  # fmt: skip


@pytest.mark.parametrize(("cpus", "of_later", "used"), [(1, 8, 0), (2, 8, 0), (8, 8, 0), (4, 4, 4)])
def test_jobs_that_gpu_jobs_wait_for_are_not_kept_out_by_those(
    cluster: Cluster, cpus: int, of_later: int, used: int
) -> None:
    later: dict[DeviceKind, ResourceRequest] = {
        "gpu": ResourceRequest(of_later, 100, 1, 10),
        "cpu": ResourceRequest(of_later, 100, 0, 10),
    }
    first = {"cpu": ResourceRequest(cpus, 100, 0, 10)}
    rules = Rules({"first": first, "later": later}, seconds=600)  # type: ignore[dict-item]
    limit = {"cpu": 8, "gres/gpu": 1}
    here = room(account("clive", limit=limit, used={"cpu": used, "gres/gpu": 0}))
    assert started(placed(cluster, rules, here)) == ["first"]


def test_cpu_jobs_leave_room_to_gpu_jobs_that_become_ready_later(cluster: Cluster) -> None:
    rules = on_cpus(one=(4, 100), two=(4, 100), later=(4, 100))
    both = {"gpu": ResourceRequest(4, 100, 1, 10), **rules.shapes["later"]}
    rules = replace(rules, shapes={**rules.shapes, "later": both})
    found = placed(cluster, rules, room(account("clive", limit={"cpu": 8, "gres/gpu": 1})))
    assert len(found.assignments) == 1


# Jobs whose rule names a partition, or states more minutes than some account allows


def node(name: str, where: str, cpus: int = 8, held: int = 0) -> Node:
    free = {"cpu": cpus - held, "mem": 999}
    return Node(name, (where,), True, {"cpu": cpus, "mem": 999}, free)


def capacity(
    *accounts: Account, nodes: tuple[Node, ...] | None = None, **named: Partition
) -> ClusterState:
    named = {"cpu": partition("cpu"), **named}
    where = {"cpu": named["cpu"], "gpu": None}
    return room(*accounts, partitions=where, nodes=nodes, named=named)


def tasks(
    count: int,
    shape: ResourceRequest = SHAPE,
    overrides: UserOverrides = UserOverrides(),  # noqa: B008
) -> tuple[Placement, list[JobState]]:
    placement = Placement(Rules({"work": {"cpu": shape}}).models)
    model = placement.models["work"]
    names = [f"work{k}" for k in range(count)]
    jobs = (Job(name, "work", ("cpu",), overrides=overrides, model=model) for name in names)
    return placement, list(map(JobState, jobs))


def sent(here: ClusterState, placement: Placement, ready: list[JobState]) -> Counter[str]:
    """Return how many jobs start at once on each account."""
    found = round_on(here, placement, ready).assignments.values()
    return Counter(
        one.target.account for one in found if "waits in Slurm's queue" not in one.reason
    )


def test_a_named_partition_is_the_one_that_is_looked_at() -> None:
    lab = account("lab", limit={"cpu": 40})
    full, turin = (node("a", "cpu", held=8), node("b", "turin")), partition("turin")
    here = capacity(lab, nodes=full, turin=turin)
    assert sent(here, *tasks(5, overrides=UserOverrides(partition="turin"))) == {"lab": 4}
    assert sent(here, *tasks(5)) == {}
    unseen = tasks(5, overrides=UserOverrides(partition="unseen"))
    assert sent(capacity(lab, nodes=full), *unseen) == {"lab": 5}
    closed = partition("cpu", allow_accounts=("other",))
    small = (node("a", "cpu", cpus=1), node("b", "turin"))
    here = capacity(lab, nodes=small, cpu=closed, turin=turin)
    placement, ready = tasks(1, overrides=UserOverrides(partition="turin"))
    check_feasible(ready, here, placement.estimates)
    with pytest.raises(PlacementError, match="account lab may not use partition cpu"):
        check_feasible(tasks(1)[1], here, placement.estimates)
    placement, ready = tasks(1, replace(SHAPE, cpus=9), UserOverrides(partition="turin"))
    with pytest.raises(PlacementError, match="no node of partition turin has 9 CPUs"):
        check_feasible(ready, here, placement.estimates)


@pytest.mark.parametrize(
    ("begins", "ends", "own", "others"),
    [
        (-5, 60, 4, 0),
        (-5, 10, 0, 0),  # it would not end in it
        (10, 600, 0, 4),  # it has yet to begin, and the others' jobs end before
        (float("-inf"), float("inf"), 4, 0),
    ],
)
def test_nodes_of_a_reservation_are_room_for_its_jobs_alone(
    begins: float, ends: float, own: int, others: int
) -> None:
    lab = account("lab", limit={"cpu": 40})
    course = replace(node("a", "cpu"), reservations={"course": (begins, ends)},
                     reserved=begins < 0, free_min=30)  # fmt: skip
    here = capacity(lab, nodes=(course, node("b", "cpu", held=8)))
    shape = replace(SHAPE, runtime_min=20)
    named = UserOverrides(options=(("reservation", "course"),))
    assert sent(here, *tasks(5, shape, named))["lab"] == own
    assert sent(here, *tasks(5, shape))["lab"] == others
    unknown = UserOverrides(options=(("reservation", "hidden"),))
    assert sent(here, *tasks(5, shape, unknown))["lab"] == 4
    elsewhere = UserOverrides(options=(("reservation", "course"), ("not_nodes", ("a",))))
    assert sent(here, *tasks(5, shape, elsewhere))["lab"] == 0


def test_no_account_gets_a_job_that_it_gives_too_few_minutes() -> None:
    short, long = (
        account("short", limit={"cpu": 40}, longest_min=60),
        account("long", limit={"cpu": 4}),
    )
    stated = replace(SHAPE, required_min=120)
    assert sent(capacity(short, long), *tasks(5, stated)) == {"long": 2}
    assert "short" in sent(capacity(short, long), *tasks(5))  # nobody stated these minutes
    placement, ready = tasks(1, stated)
    with pytest.raises(PlacementError, match="asks for 120 min and account short has 60"):
        check_feasible(ready, capacity(short), placement.estimates)
    # shorter jobs go where longer ones may not
    short, long = (
        account("short", limit={"cpu": 4}, longest_min=60),
        account("long", limit={"cpu": 2}),
    )
    rules = Rules(
        {"work": {"cpu": stated}, "brief": {"cpu": replace(SHAPE, runtime_min=50, required_min=50)}}
    )
    ready = [JobState(rules.job(f"{rule}{k}", rule)) for rule in rules.shapes for k in range(3)]
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

    def shape(gpus: int, least: int = 1) -> ResourceRequest:
        return ResourceRequest(up_to(12, least), up_to(120, 10), gpus, 60)

    shapes: dict[str, dict[DeviceKind, ResourceRequest]] = {
        "both": {"gpu": shape(up_to(2)), "cpu": shape(0, 2)},
        "large": {"gpu": shape(1), "cpu": shape(0, 2)},
        "cpu": {"cpu": shape(0, 2)},
        "small": {"cpu": ResourceRequest(1, up_to(60, 10), 0, 5)},
    }

    def job(name: str, **values: Any) -> Job:
        rule = one_of(*shapes)
        return Rules(shapes).job(name, rule, **values)

    def sent(name: str) -> JobState:
        made, where = job(name), draw(_names)
        kind = one_of(*made.kinds)
        assignment = Assignment(Target(where, where, kind[0], kind), shapes[made.rule][kind])
        there = (SlurmJob(7, state, start_s=4995.0) for state in ("PENDING", "RUNNING"))
        return JobState(made, assignment, 4990.0, slurm_job=one_of(None, *there))

    def ready(name: str) -> JobState:
        fixed = UserOverrides(one_of(None, None, None, "a", "gone"), cpus=one_of(None, None, 3))
        past = FailureHistory(up_to(2, 0), 0, (), frozenset(draw(st.sets(_names))))
        both = frozenset({Target("a", "a", "g", "gpu"), Target("b", "b", "c", "cpu")})
        excluded = one_of(frozenset(), frozenset(), both)
        return JobState(job(name, overrides=fixed), history=past, excluded_targets=excluded)

    #: What limits a and b together.
    dept = LimitScope("account dept", draw(_some_tres), draw(_used))
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
            PendingUse(draw(_names), tres_of(ResourceRequest(up_to(8), 20, 0, 5)))
            for _ in range(up_to(2, 0))
        ],
        partitions={
            "gpu": partition("g", allow_accounts=one_of(None, ("a", "b"))),
            "cpu": partition("c"),
        },
        utilisation=one_of(0.5, 0.85, 1.0),
        shapes=shapes,
        ready=[ready(f"r{n}") for n in range(up_to(12))],
        later=[JobState(job(f"l{n}", needs=("r0",))) for n in range(up_to(3, 0))],
        active=[sent(f"s{n}") for n in range(up_to(3, 0))],
        bad_nodes={"gpu": draw(st.sets(st.sampled_from(["g1", "g2"]))), "cpu": {"c1"}},
    )  # fmt: skip


def counts(one: Account, job: SlurmJob) -> bool:
    """Return whether a job pends on an account and may start there at some time."""
    return job.account == one.name and job.state == "PENDING" and all(
        job.tres.get(tres, 0) <= most
        for scope in one.at("").scopes for tres, most in scope.limit.items()
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


def closed_kinds(question: SimpleNamespace, one: Account) -> set[DeviceKind]:
    if any(scope.limit.keys() - (scope.used or {}) for scope in one.at("").scopes):
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
    of_run = replace(cluster, state=replace(cluster.state, partitions=open_at(places)))
    placement = Placement(Rules(question.shapes).models, cluster=of_run)
    tasks = (question.ready, question.later, question.active)
    found = round_on(capacity, placement, *tasks, bad_nodes=question.bad_nodes)
    started = {name: one for name, one in found.assignments.items()
               if "waits in Slurm's queue" not in one.reason}  # fmt: skip
    assert sorted([*found.assignments, *found.why]) == sorted(task.name for task in question.ready)
    assert all(found.why.values())
    accounts = {one.name: one for one in question.accounts}
    scopes = {scope.name: scope for one in question.accounts for scope in one.at("").scopes}
    for scope in scopes.values():
        below = [one for one in accounts.values() if scope in one.at("").scopes]
        here = [one for one in started.values() if accounts[one.target.account] in below]
        asked: Counter[str] = Counter()
        for start in here:
            asked.update(tres_of(start.request))
        more = promised(question, below)
        for tres in scope.limit.keys() & asked.keys():
            rest = scope.limit[tres] - (scope.used or {}).get(tres, 0) - more[tres]
            assert asked[tres] <= max(0, rest), (scope.name, tres)
    by_name = {task.name: task for task in question.ready}
    for name, start in started.items():
        task, target, request = by_name[name], start.target, start.request
        one, where = accounts[target.account], places[target.device]
        assert target.device not in closed_kinds(question, one)
        assert target.device in task.job.kinds
        assert (request.gpus > 0) == (target.device == "gpu")
        assert task.job.overrides.account in (None, target.account)
        assert request.cpus == task.job.overrides.cpus or task.job.overrides.cpus is None
        assert (target, request) in found.reach.of(task).every().items()
        assert target.partition == where.name
        assert where.allow_accounts is None or one.name in where.allow_accounts
        assert not one.partitions or where.name in one.partitions
        assert set(start.exclude) == question.bad_nodes[target.device] | task.history.nodes
        assert start.reason
