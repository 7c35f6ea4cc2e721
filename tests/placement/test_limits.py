"""What accounts, their QOS, associations and partitions allow, and slots of it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.cluster.limits import (
    largest,
    longest_min,
    may_use,
    remaining,
    too_big,
    unknown_use,
)
from snakemake_scheduler_plugin_tilewright.cluster.pending_use import PendingUse
from snakemake_scheduler_plugin_tilewright.cluster.request import (
    KINDS,
    DeviceKind,
    ResourceRequest,
    pool_name,
)
from snakemake_scheduler_plugin_tilewright.cluster.state import ClusterState
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Account, SiteRules, usable_accounts
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.records import (
    JOBS,
    Association,
    Partition,
    Qos,
    Usage,
)
from tests.support.placement_rules import (
    account,
    at,
    fits,
    idle,
    in_use,
    partition,
    room,
    slots_of,
    take,
)

GB = 1024
SHAPES: dict[DeviceKind, ResourceRequest] = {
    "gpu": ResourceRequest(8, 180 * GB, 1, 240),
    "cpu": ResourceRequest(8, 48 * GB, 0, 1200),
}
GPU, CPU = ResourceRequest(8, 100, 1, 60), ResourceRequest(8, 100, 0, 60)
LIMIT = {"cpu": 64, "gres/gpu": 4, "mem": 9000}
GPUS = replace(partition("gpu", tres={"cpu": 999, "gres/gpu": 9}), qos="part-gpu")
CPUS = replace(partition("cpu", tres={"cpu": 999}), qos="part-cpu")
PLACES: dict[DeviceKind, Partition | None] = {"gpu": GPUS, "cpu": CPUS}
PARTS = (Qos("part-gpu", {"cpu": 16, "gres/gpu": 4}), Qos("part-cpu", {"cpu": 24}))
NORMAL = [Qos("normal")]
Used = Mapping[str, Mapping[str, int]]
UNUSED: Used = {}


def usable(
    rows: Iterable[Association],
    qos: Iterable[Qos],
    used: Mapping[str, Mapping[str, int] | Usage],
    partitions: Iterable[Partition] = (),
    rules: SiteRules = SiteRules(),  # noqa: B008
) -> list[Account]:
    usage = {n: use if isinstance(use, Usage) else in_use(use) for n, use in used.items()}
    return usable_accounts("ada", list(rows), list(qos), rules, list(partitions), usage)[0]


def on_two_qos(
    *parts: Qos, own: Mapping[str, Any] = {}, caps: Used = UNUSED, used: Used = UNUSED
) -> list[Account]:
    """Return accounts a and b, each on its QOS, with partitions whose QOS may be ``parts``."""
    rules = SiteRules(caps={name: dict(cap) for name, cap in caps.items()})
    rows = [Association(name, "ada", "", (name,), name) for name in "ab"]
    qos = [*(Qos(name, LIMIT, **own) for name in "ab"), *parts]
    return usable(rows, qos, {**idle(*(one.name for one in qos)), **used}, [GPUS, CPUS], rules)


def row(account: str, **of: Any) -> Association:
    return Association(account, "ada", **{"qos": ("normal",), "default_qos": "normal", **of})


def of_rows(*rows: Association, qos: Qos = NORMAL[0], used: Used = UNUSED) -> list[Account]:
    plain = [partition("gpu", tres={}), partition("cpu", tres={})]
    return usable(rows, [qos], {**idle("normal"), **used}, plain)


def rooms(
    *sent: PendingUse, parts: Iterable[Qos] = PARTS, used: Used = UNUSED, **of: Any
) -> ClusterState:
    return room(*on_two_qos(*parts, used=used), sent=sent, partitions=PLACES, **of)


@pytest.mark.parametrize(
    ("limits", "slots", "bound"),
    [
        ({"limit": {"cpu": 104, "mem": 400 * GB, "gres/gpu": 3}}, {"gpu": 2, "cpu": 8}, "mem"),
        ({"limit": {"jobs": 2}}, {"gpu": 2, "cpu": 2}, "jobs"),
        ({"limit": {"cpu": 104}, "of_user": {"gres/gpu": 1}}, {"gpu": 1, "cpu": 11}, "gres/gpu"),
        ({"of_user": {"cpu": 16}}, {"gpu": 2, "cpu": 1}, "cpu"),
        ({"limit": {"submit": 1}}, {"gpu": 1, "cpu": 1}, "submit"),
        ({"limit": {"cpu": 104, "gres/gpu": 0}}, {"cpu": 11}, "cpu"),
        ({"limit": {"cpu": 4, "gres/gpu": 3}}, {}, None),
    ],
)
def test_a_limit_bounds(limits: dict[str, Any], slots: dict[str, int], bound: str | None) -> None:
    one = account("clive", **limits)
    pools = [pool for kind in KINDS for pool in slots_of([one], {kind: SHAPES[kind]})]
    assert {pool.kind: pool.slots for pool in pools} == slots
    assert [pool.bound for pool in pools[:1]] == [bound] * bool(slots)


_tres = {
    "cpu": st.integers(0, 300),
    "mem": st.integers(0, 2000 * GB),
    "gres/gpu": st.integers(0, 9),
}


@given(st.fixed_dictionaries({}, optional=_tres), st.fixed_dictionaries(_tres))
def test_pools_never_promise_too_much(limit: dict[str, int], used: dict[str, int]) -> None:
    place = partition("p", tres={"cpu": 512, "gres/gpu": 8})
    one = account("clive", limit=limit, used=used)
    pools = slots_of([one], SHAPES, partitions={"gpu": place, "cpu": place})
    count = {pool.kind: pool.slots for pool in pools}
    free = {pool.kind: pool.free for pool in pools}
    needs = {"cpu": (8, 8), "mem": (180 * GB, 48 * GB), "gres/gpu": (1, 0)}
    for tres, (gpu, cpu) in needs.items():
        top = limit.get(tres, {"cpu": 512, "gres/gpu": 8}.get(tres, 10**9))
        assert gpu * count.get("gpu", 0) + cpu * count.get("cpu", 0) <= top
        asked = gpu * free.get("gpu", 0) + cpu * free.get("cpu", 0)
        assert not asked or tres not in limit or asked + used[tres] <= top
    assert all(0 <= pool.free <= pool.slots and pool.slots > 0 for pool in pools)


def test_a_throttled_qos_counts_at_once() -> None:
    throttled = Usage({"cpu": 40, "gres/gpu": 1}, {"cpu": 56, "gres/gpu": 3})
    (now,) = usable([row("lab")], [Qos("normal", LIMIT)], {"QOS normal": throttled})
    assert largest(now, None, "gres/gpu") == 1
    assert (remaining(now, None, "cpu"), remaining(now, None, "gres/gpu")) == (0, 0)


def test_caps_and_the_list_of_allowed_accounts() -> None:
    rows = [row("a", qos=("a-b", "a"), default_qos=""), row("a-b"), row("b"), row("c")]
    qos = [Qos("a", LIMIT), *NORMAL]
    rules = SiteRules(allowed=["a", "c"], blocked={"c": "ours"}, caps={"a": {"gres/gpu": 1}})
    (capped,), out = usable_accounts("ada", rows, qos, rules, (), idle("a"))
    assert capped.qos == "a"
    assert [remaining(capped, None, tres) for tres in ("gres/gpu", "cpu")] == [1, 64]
    assert {one.account: one.reason for one in out} == {
        "a-b": "burst account (its name matches -b$)",
        "b": "not in the list of allowed accounts",
        "c": "blocked: ours",
    }


def test_pools_of_any_account_have_a_name_of_their_own() -> None:
    names = ["12345", "lab-x", "lab.x", "lab_x", "Lab_x", "a@b", "9", "x" * 40]
    pools = {pool_name(name, "gpu") for name in names}
    assert len(pools) == len(names)
    assert all(name.isidentifier() for name in pools)


# Partitions and their QOS


def test_a_partition_qos_replaces_the_limit_of_the_account() -> None:
    a, _ = on_two_qos(*PARTS)
    asked = (None, "cpu"), (CPUS, "cpu"), (CPUS, "mem")
    assert [remaining(a, *one) for one in asked] == [64, 24, 9000]
    over, _ = on_two_qos(*PARTS, own={"flags": ("OverPartQOS",)})
    assert (remaining(over, CPUS, "cpu"), largest(over, CPUS, "cpu")) == (64, 64)
    wider, _ = on_two_qos(Qos("part-cpu", {"cpu": 500}))
    assert remaining(wider, CPUS, "cpu") == 500
    used, _ = on_two_qos(*PARTS, used={"QOS part-cpu": {"cpu": 20}})
    assert remaining(used, CPUS, "cpu") == 4
    own = Qos("part-cpu", {"cpu": 24}, tres_per_user={"cpu": 9})
    mine, _ = on_two_qos(own, used={"ada on QOS part-cpu": {"cpu": 3}})
    assert remaining(mine, CPUS, "cpu") == 6


def test_a_cap_holds_beside_all_limits_and_counts_the_jobs_of_its_account() -> None:
    caps = {"a": {"cpu": 40}}
    used = {"QOS a": {"cpu": 40}, "account a on QOS a": {"cpu": 30}}
    a, _ = on_two_qos(Qos("part-cpu", {"cpu": 500}), caps=caps, used=used)
    assert (remaining(a, CPUS, "cpu"), remaining(a, None, "cpu")) == (10, 10)
    full, _ = on_two_qos(caps=caps, used={"QOS a": {"cpu": 60}})
    assert remaining(full, None, "cpu") == 4
    here = room(a, sent=[PendingUse("a", {"cpu": 8}, "cpu")], partitions={"cpu": CPUS})
    assert remaining(here.accounts[0], CPUS, "cpu") == 2


def test_jobs_of_two_accounts_share_the_room_of_a_partition_qos() -> None:
    here = rooms()
    for name in "aba":
        assert fits(here, name, "cpu", CPU)
        here = take(here, name, "cpu", CPU)
    assert [fits(here, name, "cpu", CPU) for name in "ab"] == [False, False]
    assert fits(here, "b", "gpu", GPU)
    assert not fits(take(take(here, "b", "gpu", GPU), "a", "gpu", GPU), "b", "gpu", GPU)


def test_what_was_sent_or_pends_in_a_partition_counts_on_its_qos() -> None:
    sent = PendingUse("a", {"cpu": 16, "mem": 1, "jobs": 1}, "cpu")
    pending = SlurmJob(1, "PENDING", "a", "a", "cpu", tres={"cpu": 24})
    assert fits(rooms(sent), "b", "cpu", CPU)
    assert fits(rooms(replace(sent, partition="gpu"), sent), "b", "cpu", CPU)
    for full in (rooms(sent, sent), rooms(waiting=[pending])):
        assert not fits(full, "b", "cpu", CPU)
    counted: dict[str, Any] = {
        "parts": [Qos("part-cpu", {"jobs": 2, "submit": 4})],
        "used": {"QOS part-cpu": {"jobs": 0, "submit": 1}},
    }
    sent = PendingUse("a", {"cpu": 8, "mem": 1, "jobs": 1, "submit": 1}, "cpu")
    pending = replace(pending, tres={"cpu": 8})
    here = rooms(sent, waiting=[pending], **counted)
    # squeue shows the one that pends, so Slurm counts it as submitted already
    assert [remaining(here.accounts[0], CPUS, name) for name in JOBS] == [0, 2]
    assert fits(rooms(sent, **counted), "b", "cpu", CPU)
    assert not fits(here, "b", "cpu", CPU)


def test_unknown_use_of_a_partition_qos_closes_its_kind() -> None:
    rows = [Association("a", "ada", "", ("a",), "a")]
    found = usable(rows, [Qos("a"), *PARTS], idle("a", "part-gpu"), [GPUS, CPUS])
    here = room(*found, partitions=PLACES)
    assert fits(here, "a", "gpu", GPU)
    assert not fits(here, "a", "cpu", CPU)
    assert here.closed[at(here, "a", "cpu")] == "use of cpu on QOS part-cpu is not known"


@pytest.mark.parametrize(
    ("parts", "cpu", "slots"),
    [
        (PARTS, CPUS, [2, 3]),  # the QOS of the CPU partition counts no GPU job
        (PARTS[:1], CPUS, [2, 6]),
        (PARTS[:1], GPUS, [2]),
    ],
)
def test_slots_of_a_partition_qos(parts: list[Qos], cpu: Partition, slots: list[int]) -> None:
    one = on_two_qos(*parts)[:1]
    where: dict[DeviceKind, Partition | None] = {"gpu": GPUS, "cpu": cpu}
    pools = slots_of(one, {"gpu": GPU, "cpu": CPU}, utilisation=1.0, partitions=where)
    assert [pool.slots for pool in pools] == slots


def test_a_job_bigger_than_one_job_may_be_has_no_slot() -> None:
    a = account("a", limit=LIMIT, per_job={"cpu": 4})
    assert too_big(a, CPU) == "it asks for cpu=8 and account a has 4"
    assert slots_of([a], {"cpu": CPU}) == []
    here = room(a, partitions={})
    assert not fits(here, "a", "cpu", CPU)
    assert fits(here, "a", "cpu", replace(CPU, cpus=4))


def test_the_shortest_wall_holds() -> None:
    a = account("a", longest_min=50)
    assert [longest_min(a, partition("cpu", max_time_min=most)) for most in (600, 40)] == [50, 40]
    beyond = replace(a, limits={"": replace(a.limits[""], beyond_partition=True)})
    assert longest_min(beyond, partition("cpu", max_time_min=40)) == 50


def test_accounts_and_qos_that_a_partition_takes_or_denies() -> None:
    one, plain = account("a"), partition("c")
    assert may_use(one, plain)
    for refused in ({"allow_qos": ("b",)}, {"deny_accounts": ("b", "a")}, {"deny_qos": ("a",)}):
        assert not may_use(one, replace(plain, **refused))
    assert may_use(one, replace(plain, allow_qos=("b", "a"), deny_accounts=("b",)))


# Associations


LAB, OTHER = row("lab"), row("other")
THREE, OWN = row("lab", tres_per_user={"jobs": 3}), row("lab", tres={"cpu": 32})
NINE = {"jobs": 9}
OF_EACH = [Association(name, tres={"cpu": 32, "jobs": 3}) for name in ("lab", "other")]


@pytest.mark.parametrize(
    ("rows", "qos", "used", "rest"),
    [
        # a limit of each account counts that account alone
        ([LAB, OTHER], {"tres_per_account": {"cpu": 40, "gres/gpu": 2, "jobs": 6}},
         {"QOS normal": {"cpu": 56, "gres/gpu": 2, "jobs": 5},
          "account lab on QOS normal": {"cpu": 16, "gres/gpu": 1, "jobs": 2},
          "account third on QOS normal": {"cpu": 40, "jobs": 3}},
         {"cpu": [24, 40], "gres/gpu": [1, 2], "jobs": [4, 6]}),
        # one of an association its own jobs, though others share its QOS, whose limit wins
        ([LAB, OTHER, *OF_EACH], {},
         {"QOS normal": {"cpu": 24, "jobs": 3}, "account lab": {"cpu": 16, "jobs": 2},
          "account other": {"cpu": 8, "jobs": 1}}, {"cpu": [16, 24], "jobs": [1, 2]}),
        ([LAB, OTHER, *OF_EACH], {"tres": {"jobs": 5}}, {"QOS normal": {"jobs": 3}},
         {"jobs": [2, 2]}),
        ([Association("lab", tres={"cpu": 16, "mem": 64, "gres/gpu": 1}), LAB],
         {"tres": {"cpu": 200}},
         {"QOS normal": {"cpu": 150, "mem": 900, "gres/gpu": 9},
          "account lab": {"cpu": 8, "mem": 10, "gres/gpu": 1}},
         {"cpu": [50], "mem": [54], "gres/gpu": [0]}),
        # a number of jobs of the user's row that user's, where it has none that of the account's
        ([THREE, OTHER], {}, {"ada of account lab": {"jobs": 1}}, {"jobs": [2, None]}),
        ([Association("lab", tres_per_user={"jobs": 5}), LAB], {},
         {"ada of account lab": {"jobs": 1}}, {"jobs": [4]}),
        ([THREE], {"tres_per_user": NINE}, {}, {"jobs": [9]}),
        ([THREE], {"tres_per_account": NINE}, {}, {"jobs": [9]}),
        # a group limit of the user's row that user's jobs
        ([Association("lab", tres={"cpu": 100}), OWN], {},
         {"account lab": {"cpu": 80}, "ada of account lab": {"cpu": 8}}, {"cpu": [20]}),
        ([OWN], {}, {"account lab": {"cpu": 80}, "ada of account lab": {"cpu": 8}}, {"cpu": [24]}),
    ],
)  # fmt: skip
def test_what_rows_of_associations_and_their_qos_leave(
    rows: list[Association], qos: dict[str, Any], used: Used, rest: dict[str, list[int | None]]
) -> None:
    found = of_rows(*rows, qos=Qos("normal", **qos), used=used)
    assert {tres: [remaining(one, None, tres) for one in found] for tres in rest} == rest


@pytest.mark.parametrize(
    ("of_qos", "of_college", "used", "scopes", "pools"),
    [
        ({"gres/gpu": 2}, {"cpu": 64, "gres/gpu": 4}, {"cpu": 48, "gres/gpu": 3},
         {"QOS normal": {"gres/gpu": 2}, "account college": {"cpu": 64}},  # the QOS wins
         {"gpu": (2, 2), "cpu": (4, 0)}),
        ({"submit": 5}, {"jobs": 3, "submit": 9}, {"jobs": 2, "submit": 2},
         {"QOS normal": {"submit": 5}, "account college": {"jobs": 3}}, {"gpu": (3, 1)}),
    ],
    ids=["TRES", "numbers of jobs"],
)  # fmt: skip
def test_limits_of_accounts_above_bound_all_that_is_below_them(
    of_qos: dict[str, int], of_college: dict[str, int], used: dict[str, int],
    scopes: dict[str, Any], pools: dict[str, tuple[int, int]],
) -> None:  # fmt: skip
    rows = [Association("root"), Association("college", tres=of_college, parent="root"),
            Association("lab", parent="college"), row("lab")]  # fmt: skip
    qos = [Qos("normal", of_qos)]
    (seen,) = usable(rows, qos, {"QOS normal": {}, "account college": used})
    assert {one.name: one.limit for one in seen.at("").scopes} == scopes
    assert {p.kind: (p.slots, p.free) for p in slots_of([seen], SHAPES)} == pools
    (hidden,) = usable(rows, qos, {"QOS normal": {}})
    assert unknown_use(hidden) == {"account college": list(scopes["account college"])}


def test_of_one_job_the_nearest_row_holds_and_the_qos_before_it() -> None:
    rows = [
        Association("lab", "", "", (), "", {}, {"cpu": 4, "mem": 9}, {"jobs": 1}, 60),
        Association("lab", "ada", "", ("normal",), "normal", {}, {"cpu": 16}, {"jobs": 3}, 600),
    ]
    wins = Qos("normal", tres_per_job={"cpu": 64}, tres_per_user={"jobs": 5}, max_wall_min=900)
    for qos, cpus, longest, scope, jobs in (
        (NORMAL[0], 16, 600, "ada of account lab", 3),
        (wins, 64, 900, "ada on QOS normal", 5),
    ):
        found = usable(rows, [qos], {})[0].at("")
        assert (found.per_job, found.longest_min) == ({"cpu": cpus, "mem": 9}, longest)
        assert {one.name: one.limit for one in found.scopes} == {scope: {"jobs": jobs}}


def test_what_a_user_may_run_is_counted_over_both_partitions() -> None:
    qos = [Qos("normal", tres_per_user={"jobs": 3}), Qos("part-cpu", {"jobs": 100})]
    accounts = usable([row("lab")], qos, {}, [GPUS, CPUS])
    pools = slots_of(accounts, SHAPES, partitions=PLACES)
    assert sum(pool.slots for pool in pools) == 3


def test_limits_of_a_row_that_is_bound_to_a_partition_hold_there() -> None:
    bound = row("lab", partition="gpu", tres={"cpu": 16}, tres_per_job={"cpu": 4},
                max_wall_min=30)  # fmt: skip
    used = {"ada of account lab": {"cpu": 4}, "ada of account lab in partition gpu": {"cpu": 10}}
    (lab,) = of_rows(bound, row("lab", tres={"cpu": 64}), used=used)
    gpu, cpu = partition("gpu"), partition("cpu")
    assert (remaining(lab, gpu, "cpu"), largest(lab, gpu, "cpu")) == (6, 4)
    assert longest_min(lab, gpu) == 30
    assert (remaining(lab, cpu, "cpu"), largest(lab, cpu, "cpu")) == (60, 64)
    (only,) = of_rows(bound)
    assert (lab.partitions, only.partitions) == ((), ("gpu",))


def test_what_an_account_whose_qos_wins_takes_counts_for_others_below_the_same_account() -> None:
    rows = [
        Association("dept", tres={"cpu": 24}),
        Association("rich", parent="dept"), Association("poor", parent="dept"),
        row("rich", qos=("gold",), default_qos="gold"), row("poor"),
    ]  # fmt: skip
    qos = [Qos("gold", {"cpu": 100}), *NORMAL]
    here = room(*usable(rows, qos, {**idle("gold", "normal"), "account dept": {}}), partitions={})
    assert fits(here, "poor", "cpu", CPU)
    for _ in range(3):
        here = take(here, "rich", "cpu", CPU)
    assert fits(here, "rich", "cpu", CPU)
    assert not fits(here, "poor", "cpu", CPU)


def test_a_job_that_pends_on_another_qos_counts_on_the_association() -> None:
    pending = SlurmJob(1, "PENDING", "lab", "night", "cpu", tres={"cpu": 8})
    lab, _ = of_rows(row("lab", qos=("normal", "night"), tres={"cpu": 16}),
                     qos=Qos("normal", {"jobs": 1}), used={"ada of account lab": {}})  # fmt: skip
    (found,) = room(lab, waiting=[pending], partitions={}).accounts
    assert (remaining(found, None, "cpu"), remaining(found, None, "jobs")) == (8, 1)


def test_slots_of_accounts_that_share_a_limit_are_counted_once_together() -> None:
    above = [Association(name, parent="dept") for name in ("lab", "other")]
    both = of_rows(Association("dept", tres={"cpu": 40}), *above, row("lab"), row("other"),
                   used={"account dept": {"cpu": 8}})  # fmt: skip
    for together, accounts in ((False, 2), (True, 1)):
        pools = slots_of(both, {"cpu": CPU}, utilisation=1.0, together=together)
        assert [(pool.slots, pool.free) for pool in pools] == [(5, 4)] * accounts
