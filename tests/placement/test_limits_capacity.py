"""What fits where now: no round of placing ever promises more than there is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity, Claim, capacity_now
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
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
from snakemake_scheduler_plugin_tilewright.placement.round import Round
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from snakemake_scheduler_plugin_tilewright.slurm.accounts import LIMITED, Account, Holder
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.records import JOBS, Partition, Tres
from tests.support.placement_rules import GROUP_REASONS, Rules, account, partition
from tests.support.recorded import cluster_with

REASONS = (*GROUP_REASONS, *("Priority", "Resources", "None", "BeginTime") * 3)
BIG = 10**9
#: Accounts below one that limits them together.
DEPT = "ab"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return cluster_with("", tmp_path_factory.mktemp("cache"))[0]


@dataclass
class Question:
    """All that one round of placing is asked."""

    accounts: list[Account]
    facts: dict[str, Facts]
    dept: Holder
    waiting: list[SlurmJob]
    claims: list[Claim]
    partitions: dict[Kind, Partition | None]
    utilisation: float
    shapes: dict[str, dict[Kind, Shape]]
    ready: list[Task]
    later: list[Task]
    active: list[Task]
    bad_nodes: dict[Kind, set[str]] = field(default_factory=lambda: {"gpu": set(), "cpu": set()})

    @property
    def capacity(self) -> Capacity:
        return capacity_now(
            self.accounts,
            self.waiting,
            self.claims,
            utilisation=self.utilisation,
            partitions=self.partitions,
        )

    def answer(self, cluster: Cluster) -> Round:
        cluster.survey = replace(cluster.survey, partitions=self.partitions)
        plan = Plan(Rules(self.shapes), cluster=cluster)
        tasks = [*self.ready, *self.later, *self.active]
        work = plan.estimates.workload(task.job for task in tasks)
        found = Round(work, plan, self.capacity, self.active, self.bad_nodes, 1000.0)
        found.place(self.ready, self.later, None)
        return found


_tres = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.integers(0, 40),
        "mem": st.integers(0, 400),
        "gres/gpu": st.integers(0, 4),
    },
)
#: A job of 8 CPUs and an hour is charged 480.
_budgets = st.fixed_dictionaries(
    {},
    optional={"cpu/min": st.integers(0, 3000), "gres/gpu/min/running": st.integers(0, 200)},
)
_spent = st.fixed_dictionaries(
    {"cpu/min": st.integers(0, 600), "gres/gpu/min/running": st.integers(0, 60)}
)
_all_tres = st.fixed_dictionaries(
    {"cpu": st.integers(0, 10), "mem": st.integers(0, 100), "gres/gpu": st.integers(0, 1)}
)
_most_jobs = st.fixed_dictionaries({}, optional=dict.fromkeys(JOBS, st.integers(1, 7)))
_jobs = st.fixed_dictionaries(dict.fromkeys(JOBS, st.integers(0, 2)))
_mine = st.builds(dict.__or__, _all_tres, _jobs)
_used = st.builds(dict.__or__, _mine, _spent)
_names = st.sampled_from("abc")


@dataclass
class Facts:
    """What bounds an account, beside what bounds a and b together."""

    limit: Tres
    used: Tres | None
    of_user: Tres
    mine: Tres


@st.composite
def _facts(draw: st.DrawFn) -> Facts:
    return Facts(
        draw(_tres)
        | draw(st.one_of(st.just({}), _budgets))
        | draw(st.one_of(st.just({}), _most_jobs)),
        draw(st.one_of(*[_used] * 6, _tres, st.none())),
        draw(st.one_of(st.just({}), st.just({}), _tres)),
        draw(_mine),
    )


@st.composite
def _shapes(draw: st.DrawFn) -> dict[str, dict[Kind, Shape]]:
    def shape(gpus: int, least: int = 1) -> Shape:
        return Shape(draw(st.integers(least, 12)), draw(st.integers(10, 120)), gpus, 60)

    return {
        "both": {"gpu": shape(draw(st.integers(1, 2))), "cpu": shape(0, 2)},
        "large": {"gpu": shape(1), "cpu": shape(0, 2)},
        "cpu": {"cpu": shape(0, 2)},
        "small": {"cpu": Shape(1, draw(st.integers(10, 60)), 0, 5)},
    }


@st.composite
def questions(draw: st.DrawFn) -> Question:
    shapes = draw(_shapes())

    def job(name: str, **values: Any) -> Job:
        rule = draw(st.sampled_from(sorted(shapes)))
        return Job(name, rule, tuple(shapes[rule]), nominal_s=60.0, wildcards={}, **values)

    def sent(name: str) -> Task:
        made = job(name)
        kind = draw(st.sampled_from(made.kinds))
        where = draw(_names)
        place = Place(where, None, None, kind, shapes[made.rule][kind], f"{where}_{kind}")
        state = draw(st.sampled_from(["PENDING", "RUNNING"]))
        seen = draw(st.none() | st.just(SlurmJob(7, state, start_s=995.0)))
        return Task(made, place, 990.0, seen=seen)

    facts = {name: draw(_facts()) for name in "abc"}
    dept = Holder("account dept", draw(st.one_of(st.just({}), _tres)), draw(_used))
    bound = partition("g", allow_accounts=draw(st.sampled_from([None, ("a", "b")])))
    return Question(
        [
            account(
                name,
                limit=one.limit,
                used=one.used,
                of_user=one.of_user,
                mine=one.mine,
                above=(dept,) if name in DEPT else (),
                partitions=draw(st.sampled_from([(), (), ("c",)])),
            )
            for name, one in facts.items()
        ],
        facts,
        dept,
        [
            SlurmJob(
                n,
                draw(st.sampled_from(["PENDING", "PENDING", "CONFIGURING", "RUNNING"])),
                draw(st.sampled_from("abcz")),
                tres=draw(_tres),
                reason=draw(st.sampled_from(REASONS)),
            )
            for n in range(draw(st.integers(0, 3)))
        ],
        [
            Claim(draw(_names), needs(Shape(draw(st.integers(1, 8)), 20, 0, 5), 1))
            for _ in range(draw(st.integers(0, 2)))
        ],
        {"gpu": bound, "cpu": partition("c")},
        draw(st.sampled_from([0.5, 0.85, 1.0])),
        shapes,
        [
            Task(
                job(
                    f"r{n}",
                    fixed=Fixed(
                        draw(st.sampled_from([None, None, None, "a", "gone"])),
                        cpus=draw(st.sampled_from([None, None, 3])),
                    ),
                ),
                past=Past(draw(st.integers(0, 2)), 0, (), frozenset(draw(st.sets(_names)))),
                left=draw(st.sampled_from([set(), set(), {("a", "gpu"), ("b", "cpu")}])),
            )
            for n in range(draw(st.integers(1, 12)))
        ],
        [Task(job(f"l{n}", needs=("r0",))) for n in range(draw(st.integers(0, 3)))],
        [sent(f"s{n}") for n in range(draw(st.integers(0, 3)))],
        {"gpu": draw(st.sets(st.sampled_from(["g1", "g2"]))), "cpu": {"c1"}},
    )


def limits_of(question: Question, name: str) -> list[Tres]:
    one = question.facts[name]
    return [one.limit, one.of_user, *([question.dept.limit] if name in DEPT else [])]


def counts(question: Question, job: SlurmJob) -> bool:
    """Return whether a job pends on one of the accounts and may start there at some time."""
    return (
        job.account in question.facts
        and job.state in ("PENDING", "CONFIGURING")
        and not any(
            job.tres.get(tres, 0) > most
            for limits in limits_of(question, job.account)
            for tres, most in limits.items()
        )
    )


def promised(question: Question, names: str) -> Counter[str]:
    """Return what pends or was sent on some accounts."""
    total: Counter[str] = Counter()
    for job in question.waiting:
        if job.account in names and counts(question, job):
            total.update({**job.tres, "jobs": 1})
    for claim in question.claims:
        if claim.account in names:
            total.update(claim.tres)
    return total


def rest(limit: Tres, used: Tres | None, tres: str, more: Counter[str]) -> int:
    return max(0, limit.get(tres, BIG) - (used or {}).get(tres, 0) - more[tres])


def closed_kinds(question: Question, name: str) -> set[Kind]:
    one = question.facts[name]
    if any(tres not in (one.used or {}) for tres in one.limit):
        return {"gpu", "cpu"}
    kinds: set[Kind] = set()
    for job in question.waiting:
        if job.account == name and job.reason in GROUP_REASONS and counts(question, job):
            kinds |= {"gpu"} if "GRES" in job.reason else {"gpu", "cpu"}
    return kinds


@settings(max_examples=250)
@given(questions())
def test_starts_never_exceed_any_limit_and_every_ready_job_starts_or_has_a_reason(
    cluster: Cluster, question: Question
) -> None:
    found = question.answer(cluster)
    started = [start.task.name for start in found.placements]
    assert sorted([*started, *found.why]) == sorted(task.name for task in question.ready)
    assert all(found.why.values())
    for names in ("a", "b", "c", DEPT):
        here = [start for start in found.placements if start.place.account in names]
        asked: Counter[str] = Counter()
        for start in here:
            asked.update(needs(start.place.shape, 1))
        more = promised(question, names)
        for tres in LIMITED if here else ():
            if names == DEPT:
                left = rest(question.dept.limit, question.dept.used, tres, more)
            else:
                one = question.facts[names]
                left = min(rest(one.limit, one.used, tres, more),
                           rest(one.of_user, one.mine, tres, more))  # fmt: skip
            assert asked[tres] <= left, (names, tres)
        if names in question.facts:
            kinds = {start.place.kind for start in here}
            assert not kinds & closed_kinds(question, names)
    for start in found.placements:
        task, place = start.task, start.place
        account_ = next(a for a in question.accounts if a.name == place.account)
        where = question.partitions[place.kind]
        assert where is not None
        assert place.kind in task.job.kinds
        assert (place.shape.gpus > 0) == (place.kind == "gpu")
        assert place.kind == "cpu" or not found.plan.estimates.is_small(task.job)
        assert task.job.fixed.account in (None, place.account)
        allowed = {(account, kind) for account, kind, _ in found.places(task)}
        assert (place.account, place.kind) in allowed
        assert place.shape.cpus == task.job.fixed.cpus or task.job.fixed.cpus is None
        assert place.partition == where.name
        assert where.allow_accounts is None or account_.name in where.allow_accounts
        assert not account_.partitions or where.name in account_.partitions
        assert set(place.exclude) == question.bad_nodes[place.kind] | task.past.nodes
        assert start.reason
        assert start.small == (start.task.job.rule == "small")
