"""Slots of accounts: the worked example, every bound, and use by others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.placement.capacity import capacity_now
from snakemake_scheduler_plugin_tilewright.placement.jobs import KINDS, Kind, Shape
from snakemake_scheduler_plugin_tilewright.placement.limits import (
    Pool,
    largest,
    left,
    make_pools,
    pool_name,
    too_big,
    total_slots,
    unknown_use,
)
from snakemake_scheduler_plugin_tilewright.slurm.accounts import (
    Account,
    SiteRules,
    usable_accounts,
)
from snakemake_scheduler_plugin_tilewright.slurm.records import Association, Partition, Qos, Usage
from tests.support.placement_rules import account, in_use

GB = 1024
GPU_JOB = Shape(8, 180 * GB, 1, 240)
CPU_JOB = Shape(8, 48 * GB, 0, 1200)
SHAPES: dict[Kind, Shape] = {"gpu": GPU_JOB, "cpu": CPU_JOB}
QOS = [
    Qos("clive", {"cpu": 104, "mem": 812 * GB, "gres/gpu": 3}),
    Qos("maigan", {"cpu": 80, "mem": 625 * GB, "gres/gpu": 2}),
    Qos("brusko", {"cpu": 32, "mem": 250 * GB, "gres/gpu": 1}),
    Qos("clive-b", {"cpu": 936, "gres/gpu": 0}),
]
ROWS = [
    Association("clive", "ada", "", ("clive-b", "clive"), "clive"),
    Association("clive-b", "ada", "", ("clive-b",), "clive-b"),
    Association("maigan", "ada", "", ("maigan",), ""),
    Association("brusko", "ada", "", ("brusko",), "brusko"),
]
RULES = SiteRules(blocked={"brusko": "kept for interactive work"})


def clive(**limit: object) -> Account:
    """Return the account with the worked example's limits, or with others."""
    if not limit:
        return usable_accounts("ada", ROWS, QOS, RULES)[0][0]
    return account("clive", **limit)  # type: ignore[arg-type]


def live(accounts: list[Association], qos: list[Qos], **use: Usage) -> list[Account]:
    usage = {name.replace("_", " "): one for name, one in use.items()}
    return usable_accounts("ada", accounts, qos, RULES, (), usage)[0]


def slots(accounts: list[Account]) -> dict[str, int]:
    return {p.name: p.slots for p in make_pools(accounts, SHAPES)}


def apart(accounts: list[Account], **options: object) -> list[Pool]:
    """Slots of each device kind, as if it were the only one."""
    found = [make_pools(accounts, {kind: SHAPES[kind]}, **options) for kind in KINDS]  # type: ignore[arg-type]
    return sorted((pool for pools in found for pool in pools), key=lambda pool: pool.account)


def test_the_worked_example() -> None:
    accounts, left_out = usable_accounts("ada", ROWS, QOS, RULES)
    pools = apart(accounts)
    assert {p.name: p.slots for p in pools} == {
        "clive_gpu": 3,
        "clive_cpu": 11,
        "maigan_gpu": 2,
        "maigan_cpu": 8,
    }
    assert (total_slots(pools, "gpu"), total_slots(pools, "cpu"), total_slots(pools)) == (5, 19, 24)
    assert {left.account: left.reason.split(":")[0].split(" (")[0] for left in left_out} == {
        "brusko": "blocked",
        "clive-b": "burst account",
    }


def test_shared_counts_what_gpu_jobs_leave_in_every_tres() -> None:
    assert slots([clive()]) == {"clive_gpu": 3, "clive_cpu": 5}
    no_memory_limit = clive(limit={"cpu": 104, "gres/gpu": 3})
    assert slots([no_memory_limit]) == {"clive_gpu": 3, "clive_cpu": 8}


@pytest.mark.parametrize(
    ("changes", "gpu", "cpu", "bound"),
    [
        ({"limit": {"cpu": 104, "mem": 400 * GB, "gres/gpu": 3}}, 2, 8, "mem"),
        ({"limit": {"jobs": 2}}, 2, 2, "jobs"),
        ({"limit": {"cpu": 104}, "of_user": {"gres/gpu": 1}}, 1, 11, "gres/gpu"),
        ({"of_user": {"cpu": 16}}, 2, 1, "cpu"),
        ({"limit": {"submit": 1}}, 1, 1, "submit"),
    ],
)
def test_every_limit_bounds(changes: dict[str, object], gpu: int, cpu: int, bound: str) -> None:
    pools = apart([clive(**changes)])
    assert [pool.slots for pool in pools] == [gpu, cpu]
    assert pools[0].bound == bound


def test_no_pool_without_slots() -> None:
    assert slots([clive(limit={"cpu": 104, "gres/gpu": 0})]) == {"clive_cpu": 11}
    assert slots([clive(limit={"cpu": 4, "gres/gpu": 3})]) == {}


def test_partitions_bound_what_no_account_does() -> None:
    places: dict[Kind, Partition | None] = {
        "gpu": Partition("g", None, None, {"gres/gpu": 4, "cpu": 64}, True, False, None, None),
        "cpu": Partition("c", None, None, {"cpu": 256}, True, True, None, None),
    }
    pools = apart([clive(limit={})], partitions=places)
    assert [(p.kind, p.slots) for p in pools] == [("gpu", 4), ("cpu", 27)]


def test_a_labmate_takes_room_now_and_not_the_limit() -> None:
    busy = Usage(
        {"cpu": 104, "mem": 812 * GB, "gres/gpu": 3},
        {"cpu": 32, "mem": 700 * GB, "gres/gpu": 1},
    )
    found = live(ROWS, QOS, QOS_clive=busy)
    free = {p.name: (p.slots, p.free) for p in apart(found)}
    assert free["clive_gpu"] == (3, 0)
    assert free["clive_cpu"] == (11, 2)
    assert unknown_use(found[1]) == {"QOS maigan": ["cpu", "mem", "gres/gpu"]}


def test_a_limit_of_each_account_counts_that_account_alone() -> None:
    shared = Qos("normal", tres_per_account={"cpu": 40, "gres/gpu": 2, "jobs": 6})
    rows = [Association(name, "ada", "", ("normal",), "normal") for name in ("lab", "other")]
    lab, other = live(
        rows,
        [shared],
        QOS_normal=Usage({}, {"cpu": 56, "mem": 0, "gres/gpu": 2, "jobs": 5}),
        account_lab_on_QOS_normal=Usage({}, {"cpu": 16, "gres/gpu": 1, "jobs": 2}),
        account_third_on_QOS_normal=Usage({}, {"cpu": 40, "jobs": 3}),
        account_others_on_QOS_normal=in_use({}),
    )
    assert [left(a, None, "cpu") for a in (lab, other)] == [24, 40]
    assert left(lab, None, "gres/gpu") == 1
    assert [left(a, None, "jobs") for a in (lab, other)] == [4, 6]
    found = {p.name: (p.slots, p.free) for p in make_pools([lab, other], SHAPES)}
    assert found == {
        "lab_gpu": (2, 1), "lab_cpu": (2, 1), "other_gpu": (2, 2), "other_cpu": (2, 2),
    }  # fmt: skip


def test_limits_of_an_association_count_its_own_jobs_though_others_share_its_qos() -> None:
    rows = [Association(name, "ada", "", ("normal",), "normal") for name in ("lab", "other")]
    rows += [Association(name, tres={"cpu": 32, "jobs": 3}) for name in ("lab", "other")]
    use = {
        "QOS_normal": Usage({}, {"cpu": 24, "jobs": 3}),
        "account_lab": Usage({}, {"cpu": 16, "jobs": 2}),
        "account_other": Usage({}, {"cpu": 8, "jobs": 1}),
    }
    both = live(rows, [Qos("normal")], **use)
    assert [left(a, None, "jobs") for a in both] == [1, 2]
    here = capacity_now(both, (), (), utilisation=1.0, partitions={})
    job = Shape(8, 100, 0, 60)
    here = here.take("lab", "cpu", job)
    assert not here.fits("lab", "cpu", job)
    assert here.fits("other", "cpu", job)
    assert here.take("other", "cpu", job).fits("other", "cpu", job)
    # a limit of the QOS wins, and counts all
    both = live(rows, [Qos("normal", {"jobs": 5})], **use)
    assert [left(a, None, "jobs") for a in both] == [2, 2]


def test_a_throttled_qos_counts_at_once() -> None:
    throttled = Usage(
        {"cpu": 40, "mem": 320_000, "gres/gpu": 1},
        {"cpu": 56, "mem": 385_024, "gres/gpu": 3},
    )
    now = live(ROWS, QOS, QOS_clive=throttled)[0]
    assert largest(now, None, "gres/gpu") == 1
    assert (left(now, None, "cpu"), left(now, None, "gres/gpu")) == (0, 0)


def test_limits_on_the_association_hold_where_the_qos_has_none() -> None:
    rows = [
        Association("plain", "", "", ("normal",), "", {"cpu": 16, "mem": 64 * GB, "gres/gpu": 1}),
        Association("plain", "ada", "", ("normal",), ""),
    ]
    qos = [Qos("normal", {"cpu": 200})]
    normal = Usage({"cpu": 200}, {"cpu": 150, "mem": 900 * GB, "gres/gpu": 9})
    own = Usage({"gres/gpu": 1}, {"cpu": 8, "mem": 10 * GB, "gres/gpu": 1})
    (seen,) = live(rows, qos, QOS_normal=normal, account_plain=own)
    assert {holder.name: holder.limit for holder in seen.at("").holders} == {
        "QOS normal": {"cpu": 200},
        "account plain": {"mem": 64 * GB, "gres/gpu": 1},
    }
    free = [left(seen, None, tres) for tres in ("cpu", "mem", "gres/gpu")]
    assert free == [50, 54 * GB, 0]
    (hidden,) = live(rows, qos, QOS_normal=normal)
    assert unknown_use(hidden) == {"account plain": ["mem", "gres/gpu"]}


def test_caps_and_the_list_of_allowed_accounts() -> None:
    rules = SiteRules(allowed=["clive"], caps={"clive": {"gres/gpu": 1}})
    (capped,), left_out = usable_accounts("ada", ROWS, QOS, rules)
    assert slots([capped])["clive_gpu"] == 1
    assert [left.account for left in left_out] == ["brusko", "clive-b", "maigan"]


def test_a_job_that_would_pend_for_ever_is_named() -> None:
    assert too_big(clive(), GPU_JOB) is None
    assert too_big(clive(), Shape(120, GB, 0, 10)) == (
        "it asks for cpu=120 and account clive has 104"
    )


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "cpu": st.integers(0, 300),
            "mem": st.integers(0, 2000 * GB),
            "gres/gpu": st.integers(0, 9),
        },
    ),
    st.fixed_dictionaries(
        {"cpu": st.integers(0, 300), "mem": st.integers(0, 999_999), "gres/gpu": st.integers(0, 9)}
    ),
)
def test_shared_pools_never_promise_more_than_the_limits(
    limit: dict[str, int], used: dict[str, int]
) -> None:
    place = Partition("p", None, None, {"cpu": 512, "gres/gpu": 8}, True, True, None, None)
    pools = make_pools(
        [clive(limit=limit, used=used)],
        SHAPES,
        partitions={"gpu": place, "cpu": place},
    )
    count = {pool.kind: pool.slots for pool in pools}
    free = {pool.kind: pool.free for pool in pools}
    needs = {"cpu": (8, 8), "mem": (180 * GB, 48 * GB), "gres/gpu": (1, 0)}
    for tres, (gpu, cpu) in needs.items():
        top = limit.get(tres, {"cpu": 512, "gres/gpu": 8}.get(tres, 10**9))
        assert gpu * count.get("gpu", 0) + cpu * count.get("cpu", 0) <= top
        asked = gpu * free.get("gpu", 0) + cpu * free.get("cpu", 0)
        assert not asked or tres not in limit or asked + used[tres] <= top or asked == 0
    assert all(0 <= pool.free <= pool.slots and pool.slots > 0 for pool in pools)


def test_limits_of_accounts_above_bound_all_that_is_below_them() -> None:
    rows = [
        Association("root"),
        Association("college", tres={"cpu": 64, "gres/gpu": 4}, parent="root"),
        Association("lab", parent="college"),
        Association("lab", "ada", "", ("normal",), "normal"),
    ]
    qos = [Qos("normal", {"gres/gpu": 2})]
    others = Usage({"cpu": 64}, {"cpu": 48, "mem": 0, "gres/gpu": 3})
    (seen,) = live(rows, qos, QOS_normal=in_use({}), account_college=others)
    assert [(one.name, one.limit) for one in seen.at("").holders] == [
        ("QOS normal", {"gres/gpu": 2}),  # it wins
        ("account college", {"cpu": 64}),
    ]
    found = {pool.kind: (pool.slots, pool.free) for pool in make_pools([seen], SHAPES)}
    assert found == {"gpu": (2, 2), "cpu": (4, 0)}
    (hidden,) = live(rows, qos, QOS_normal=in_use({}))
    assert unknown_use(hidden) == {"account college": ["cpu"]}


def test_numbers_of_jobs_of_accounts_above_bound_all_that_is_below_them() -> None:
    rows = [
        Association("college", tres={"jobs": 3, "submit": 9}),
        Association("lab", parent="college"),
        Association("lab", "ada", "", ("normal",), "normal"),
    ]
    qos = [Qos("normal", {"submit": 5})]
    others = Usage({}, {"jobs": 2, "submit": 2})
    (seen,) = live(rows, qos, QOS_normal=in_use({}), account_college=others)
    assert sum(pool.free for pool in make_pools([seen], SHAPES)) == 1
    assert sum(pool.slots for pool in make_pools([seen], SHAPES)) == 3
    (hidden,) = live(rows, qos, QOS_normal=in_use({}))
    assert unknown_use(hidden) == {"account college": ["jobs"]}


def test_of_one_job_the_nearest_row_holds_and_the_qos_before_it() -> None:
    rows = [
        Association("lab", "", "", (), "", {}, {"cpu": 4, "mem": 9}, {"jobs": 1}, 60),
        Association("lab", "ada", "", ("normal",), "normal", {}, {"cpu": 16}, {"jobs": 3}, 600),
    ]
    own = live(rows, [Qos("normal")])[0].at("")
    assert (own.per_job, own.longest_min) == ({"cpu": 16, "mem": 9}, 600)
    assert {holder.name: holder.limit for holder in own.holders} == {
        "ada of account lab": {"jobs": 3}
    }
    wins = Qos("normal", tres_per_job={"cpu": 64}, tres_per_user={"jobs": 5}, max_wall_min=900)
    of_qos = live(rows, [wins])[0].at("")
    assert (of_qos.per_job, of_qos.longest_min) == ({"cpu": 64, "mem": 9}, 900)
    assert {holder.name: holder.limit for holder in of_qos.holders} == {
        "ada on QOS normal": {"jobs": 5}
    }


def test_what_a_user_may_run_is_counted_over_both_partitions() -> None:
    places: dict[Kind, Partition | None] = {
        "gpu": Partition("g", None, None, {"gres/gpu": 9, "cpu": 999}, True, False, None, None),
        "cpu": Partition("c", "q", None, {"cpu": 999}, True, True, None, None),
    }
    rows = [Association("lab", "ada", "", ("normal",), "normal")]
    qos = [Qos("normal", tres_per_user={"jobs": 3}), Qos("q", {"jobs": 100})]
    wheres = [where for where in places.values() if where]
    accounts, _ = usable_accounts("ada", rows, qos, RULES, wheres)
    pools = make_pools(accounts, SHAPES, partitions=places)
    assert sum(pool.slots for pool in pools) == 3


def test_pools_of_any_account_have_a_name_of_their_own() -> None:
    names = ["12345", "lab-x", "lab.x", "lab_x", "Lab_x", "a@b", "9", "x" * 40]
    pools = {pool_name(name, "gpu") for name in names}
    assert len(pools) == len(names)
    assert all(name.isidentifier() for name in pools)
