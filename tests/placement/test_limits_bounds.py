"""Limits of a partition's QOS, of one job, of a user and of associations beside the account's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity, Claim, capacity_now
from snakemake_scheduler_plugin_tilewright.placement.jobs import Shape
from snakemake_scheduler_plugin_tilewright.placement.limits import (
    clipped,
    largest,
    left,
    longest_min,
    make_pools,
    may_use,
    too_big,
)
from snakemake_scheduler_plugin_tilewright.slurm.accounts import (
    Account,
    SiteRules,
    usable_accounts,
)
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.records import (
    JOBS,
    Association,
    Partition,
    Qos,
    Tres,
)
from tests.support.placement_rules import account, idle, in_use, partition

GPU, CPU = Shape(8, 100, 1, 60), Shape(8, 100, 0, 60)
LIMIT = {"cpu": 64, "gres/gpu": 4, "mem": 9000}
GPUS = replace(partition("gpu", tres={"cpu": 999, "gres/gpu": 9}), qos="part-gpu")
CPUS = replace(partition("cpu", tres={"cpu": 999}), qos="part-cpu")
PARTS = (Qos("part-gpu", {"cpu": 16, "gres/gpu": 4}), Qos("part-cpu", {"cpu": 24}))


def accounts_of(
    *parts: Qos, own: Mapping[str, Any] | None = None, rules: SiteRules | None = None, **used: Any
) -> list[Account]:
    """Return accounts a and b, each on its QOS, with partitions whose QOS may be ``parts``.

    Use is by name, with _ for a blank and 0 for a hyphen.
    """
    rows = [Association(name, "ada", "", (name,), name) for name in "ab"]
    qos = [Qos(name, LIMIT, **(own or {})) for name in "ab"]
    usage = idle("a", "b", *(part.name for part in parts))
    usage |= {name.replace("_", " ").replace("0", "-"): in_use(use) for name, use in used.items()}
    given = rules or SiteRules()
    return usable_accounts("ada", rows, [*qos, *parts], given, [GPUS, CPUS], usage)[0]


def rooms(
    *sent: Claim, waiting: Sequence[SlurmJob] = (), parts: Sequence[Qos] = PARTS, **used: Any
) -> Capacity:
    return capacity_now(accounts_of(*parts, **used), waiting, sent,
                        utilisation=1.0, partitions={"gpu": GPUS, "cpu": CPUS})  # fmt: skip


def test_a_partition_qos_replaces_the_limit_of_the_account() -> None:
    a, _ = accounts_of(*PARTS)
    assert (left(a, None, "cpu"), left(a, CPUS, "cpu"), left(a, CPUS, "mem")) == (64, 24, 9000)
    over, _ = accounts_of(*PARTS, own={"flags": ("OverPartQOS",)})
    assert (left(over, CPUS, "cpu"), largest(over, CPUS, "cpu")) == (64, 64)
    wider = Qos("part-cpu", {"cpu": 500})
    assert left(accounts_of(wider)[0], CPUS, "cpu") == 500
    used, _ = accounts_of(*PARTS, QOS_part0cpu={"cpu": 20})
    assert left(used, CPUS, "cpu") == 4
    mine, _ = accounts_of(Qos("part-cpu", {"cpu": 24}, tres_per_user={"cpu": 9}),
                          ada_on_QOS_part0cpu={"cpu": 3})  # fmt: skip
    assert left(mine, CPUS, "cpu") == 6


def test_a_cap_holds_beside_all_limits_and_counts_the_jobs_of_its_account() -> None:
    capped = SiteRules(caps={"a": {"cpu": 40}})
    used: dict[str, Any] = {"QOS_a": {"cpu": 40}, "account_a_on_QOS_a": {"cpu": 30}}
    a, _ = accounts_of(Qos("part-cpu", {"cpu": 500}), rules=capped, **used)
    assert left(a, CPUS, "cpu") == 10
    assert left(a, None, "cpu") == 10
    assert left(accounts_of(rules=capped, QOS_a={"cpu": 60})[0], None, "cpu") == 4
    sent = Claim("a", {"cpu": 8}, "cpu")
    here = capacity_now([a], [], [sent], utilisation=1.0, partitions={"cpu": CPUS})
    assert left(here.accounts[0], CPUS, "cpu") == 2


def test_jobs_of_two_accounts_share_the_room_of_a_partition_qos() -> None:
    here = rooms()
    for name in "aba":
        assert here.fits(name, "cpu", CPU)
        here = here.take(name, "cpu", CPU)
    assert not here.fits("a", "cpu", CPU)
    assert not here.fits("b", "cpu", CPU)
    assert here.fits("b", "gpu", GPU)
    here = here.take("b", "gpu", GPU).take("a", "gpu", GPU)
    assert not here.fits("b", "gpu", GPU)


def test_what_was_sent_or_pends_in_a_partition_counts_on_its_qos() -> None:
    sent = Claim("a", {"cpu": 16, "mem": 1, "jobs": 1}, "cpu")
    assert rooms(sent).fits("b", "cpu", CPU)
    assert not rooms(sent, sent).fits("b", "cpu", CPU)
    assert rooms(replace(sent, partition="gpu"), sent).fits("b", "cpu", CPU)
    pending = SlurmJob(1, "PENDING", "a", "a", "cpu", tres={"cpu": 24})
    assert not rooms(waiting=[pending]).fits("b", "cpu", CPU)


def test_jobs_are_counted_on_the_qos_of_the_partition() -> None:
    """Of everybody, of the user and of each account; the account's own limits stay elsewhere."""
    own = {"tres_per_user": {"jobs": 3}}
    used: dict[str, Any] = {"QOS_a": {"jobs": 4}, "ada_on_QOS_a": {"jobs": 1}}

    def of(*parts: Qos, **more: Any) -> Account:
        return accounts_of(*parts, own=own, **used, **more)[0]

    assert left(of(Qos("part-cpu")), CPUS, "jobs") == 2  # the user's own limit
    wider = Qos("part-cpu", {"jobs": 9})
    assert left(of(wider, QOS_part0cpu={"jobs": 8}), CPUS, "jobs") == 1
    user = Qos("part-cpu", {"jobs": 9}, tres_per_user={"jobs": 8, "submit": 6})
    mine = of(user, ada_on_QOS_part0cpu={"jobs": 2, "submit": 5})
    assert [left(mine, CPUS, name) for name in JOBS] == [6, 1]
    assert [largest(mine, CPUS, name) for name in JOBS] == [8, 6]
    each = Qos("part-cpu", tres_per_account={"jobs": 4})
    four: dict[str, Any] = {"account_a_on_QOS_part0cpu": {"jobs": 4}}
    a, b = accounts_of(each, **four)
    assert (left(a, CPUS, "jobs"), left(b, CPUS, "jobs")) == (0, 4)
    here = rooms(parts=[each], **four)
    assert not here.fits("a", "cpu", CPU)
    assert here.fits("b", "cpu", CPU)
    assert here.fits("a", "gpu", GPU)


def test_jobs_that_were_sent_or_pend_count_on_the_qos_of_a_partition() -> None:
    one = [Qos("part-cpu", {"jobs": 2, "submit": 4})]
    used: dict[str, Any] = {"QOS_part0cpu": {"jobs": 0, "submit": 1}}
    sent = Claim("a", {"cpu": 8, "mem": 1, "jobs": 1, "submit": 1}, "cpu")
    pending = SlurmJob(1, "PENDING", "a", "a", "cpu", tres={"cpu": 8})
    here = rooms(sent, waiting=[pending], parts=one, **used)
    # squeue shows the one that pends, so Slurm counts it as submitted already
    assert [left(here.accounts[0], CPUS, name) for name in JOBS] == [0, 2]
    assert rooms(sent, parts=one, **used).fits("b", "cpu", CPU)
    assert not here.fits("b", "cpu", CPU)


def test_unknown_use_of_a_partition_qos_closes_its_kind() -> None:
    rows = [Association("a", "ada", "", ("a",), "a")]
    usage = idle("a", "part-gpu")
    found, _ = usable_accounts("ada", rows, [Qos("a"), *PARTS], SiteRules(), [GPUS, CPUS], usage)
    here = capacity_now(found, [], [], utilisation=1.0,
                        partitions={"gpu": GPUS, "cpu": CPUS})  # fmt: skip
    assert not here.fits("a", "cpu", CPU)
    assert here.fits("a", "gpu", GPU)
    assert here.closed["a", "cpu"] == "use of cpu on QOS part-cpu is not known"


def test_slots_of_a_partition_qos() -> None:
    def slots(*parts: Qos, cpu: Partition = CPUS) -> list[int]:
        one = accounts_of(*parts)[:1]
        pools = make_pools(one, {"gpu": GPU, "cpu": CPU}, utilisation=1.0,
                           partitions={"gpu": GPUS, "cpu": cpu})  # fmt: skip
        return [pool.slots for pool in pools]

    assert slots(*PARTS) == [2, 3]  # the QOS of the CPU partition counts no GPU job
    assert slots(PARTS[0]) == [2, 6]
    assert slots(PARTS[0], cpu=GPUS) == [2]


def test_a_job_bigger_than_one_job_may_be_has_no_slot() -> None:
    a = account("a", limit=LIMIT, per_job={"cpu": 4})
    assert too_big(a, CPU) == "it asks for cpu=8 and account a has 4"
    assert make_pools([a], {"cpu": CPU}) == []
    here = capacity_now([a], (), (), utilisation=1.0, partitions={})
    assert not here.fits("a", "cpu", CPU)
    assert here.fits("a", "cpu", replace(CPU, cpus=4))


def test_the_shortest_wall_holds() -> None:
    a = account("a", longest_min=50)
    assert longest_min(a, partition("cpu", max_time_min=600)) == 50
    assert longest_min(a, partition("cpu", max_time_min=40)) == 40
    assert longest_min(account("a"), None) is None
    assert clipped(CPU, a, None).runtime_min == 50
    assert clipped(replace(CPU, runtime_min=7), a, None).runtime_min == 7


def test_a_partition_may_name_the_qos_it_takes() -> None:
    named = replace(partition("cpu"), allow_qos=("b",))
    assert [may_use(account(name), named) for name in "ab"] == [False, True]


# Associations


def of_rows(*rows: Association, qos: Qos | None = None, **used: Tres) -> list[Account]:
    """Return the accounts of rows; use is by name, with _ for a blank."""
    usage = idle("normal")
    usage |= {name.replace("_", " "): in_use(use) for name, use in used.items()}
    plain = [partition("gpu", tres={}), partition("cpu", tres={})]
    return usable_accounts("ada", rows, [qos or Qos("normal")], SiteRules(), plain, usage)[0]


def row(account: str, **of: Any) -> Association:
    return Association(account, "ada", **{"qos": ("normal",), "default_qos": "normal", **of})


def test_numbers_of_jobs_of_an_association_count_that_association_alone() -> None:
    lab, other = of_rows(
        row("lab", tres_per_user={"jobs": 3}), row("other"),
        QOS_normal={"jobs": 7}, ada_on_QOS_normal={"jobs": 7}, ada_of_account_lab={"jobs": 1},
    )  # fmt: skip
    assert left(lab, None, "jobs") == 2
    assert left(other, None, "jobs") is None
    (of_account,) = of_rows(Association("lab", tres_per_user={"jobs": 5}), row("lab"),
                            ada_of_account_lab={"jobs": 1})  # fmt: skip
    assert left(of_account, None, "jobs") == 4  # the account's, where the user's row has none
    nine = {"jobs": 9}
    for qos in (Qos("normal", tres_per_user=nine), Qos("normal", tres_per_account=nine)):
        (wins,) = of_rows(row("lab", tres_per_user={"jobs": 3}), qos=qos)
        assert left(wins, None, "jobs") == 9


def test_group_limits_of_the_users_own_row_count_that_users_jobs() -> None:
    (lab,) = of_rows(
        Association("lab", tres={"cpu": 100}), row("lab", tres={"cpu": 32}),
        account_lab={"cpu": 80}, ada_of_account_lab={"cpu": 8},
    )  # fmt: skip
    assert left(lab, None, "cpu") == 20
    (alone,) = of_rows(row("lab", tres={"cpu": 32}), account_lab={"cpu": 80},
                       ada_of_account_lab={"cpu": 8})  # fmt: skip
    assert left(alone, None, "cpu") == 24


def test_limits_of_a_row_that_is_bound_to_a_partition_hold_there() -> None:
    bound = row("lab", partition="gpu", tres={"cpu": 16}, tres_per_job={"cpu": 4},
                max_wall_min=30)  # fmt: skip
    (lab,) = of_rows(bound, row("lab", tres={"cpu": 64}), ada_of_account_lab={"cpu": 4},
                     ada_of_account_lab_in_partition_gpu={"cpu": 10})  # fmt: skip
    gpu, cpu = partition("gpu"), partition("cpu")
    assert (left(lab, gpu, "cpu"), largest(lab, gpu, "cpu"), longest_min(lab, gpu)) == (6, 4, 30)
    assert (left(lab, cpu, "cpu"), largest(lab, cpu, "cpu")) == (60, 64)
    assert lab.partitions == ()
    (only,) = of_rows(bound)
    assert only.partitions == ("gpu",)


def test_what_an_account_whose_qos_wins_takes_counts_for_others_below_the_same_account() -> None:
    rows = [
        Association("dept", tres={"cpu": 24}),
        Association("rich", parent="dept"), Association("poor", parent="dept"),
        row("rich", qos=("gold",), default_qos="gold"), row("poor"),
    ]  # fmt: skip
    usage = {**idle("gold", "normal"), "account dept": in_use({})}
    qos = [Qos("gold", {"cpu": 100}), Qos("normal")]
    both, _ = usable_accounts("ada", rows, qos, SiteRules(), (), usage)
    here = capacity_now(both, [], [], utilisation=1.0, partitions={})
    assert here.fits("poor", "cpu", CPU)
    for _ in range(3):
        here = here.take("rich", "cpu", CPU)
    assert here.fits("rich", "cpu", CPU)
    assert not here.fits("poor", "cpu", CPU)


def test_a_job_that_pends_on_another_qos_counts_on_the_association() -> None:
    pending = SlurmJob(1, "PENDING", "lab", "night", "cpu", tres={"cpu": 8})
    (lab,) = of_rows(row("lab", qos=("normal", "night"), tres={"cpu": 16}),
                     qos=Qos("normal", {"jobs": 1}), ada_of_account_lab={})  # fmt: skip
    here = capacity_now([lab], [pending], [], utilisation=1.0, partitions={})
    assert left(here.accounts[0], None, "cpu") == 8
    assert left(here.accounts[0], None, "jobs") == 1


def test_slots_of_accounts_that_share_a_limit_are_counted_once_together() -> None:
    both = of_rows(
        Association("dept", tres={"cpu": 40}),
        *(Association(name, parent="dept") for name in ("lab", "other")), row("lab"), row("other"),
        account_dept={"cpu": 8},
    )  # fmt: skip
    alone = make_pools(both, {"cpu": CPU}, utilisation=1.0)
    assert [(pool.slots, pool.free) for pool in alone] == [(5, 4), (5, 4)]
    together = make_pools(both, {"cpu": CPU}, utilisation=1.0, together=True)
    assert [(pool.slots, pool.free) for pool in together] == [(5, 4)]
