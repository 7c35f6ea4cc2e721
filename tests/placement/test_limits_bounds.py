"""Limits of a partition's QOS, of one job and of a user, beside those of the account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from snakemake_scheduler_plugin_tilewright.placement.capacity import Capacity, Claim, capacity_now
from snakemake_scheduler_plugin_tilewright.placement.jobs import Shape
from snakemake_scheduler_plugin_tilewright.placement.limits import (
    Sharing,
    clipped,
    largest,
    left,
    longest_min,
    make_pools,
    may_use,
    sharing,
    too_big,
)
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.records import JOBS, Partition
from tests.support.placement_rules import account, partition

GPU, CPU = Shape(8, 100, 1, 60), Shape(8, 100, 0, 60)
LIMIT = {"cpu": 64, "gres/gpu": 4, "mem": 9000}
FREE = {"cpu": 0, "mem": 0, "gres/gpu": 0}


def bound(name: str, limit: dict[str, int], **values: Any) -> Partition:
    plain = partition(name, tres={"cpu": 999, "gres/gpu": 9 * (name == "gpu")})
    return replace(plain, qos=f"part-{name}", limit=limit, used=FREE, mine=FREE, **values)


GPUS = bound("gpu", {"cpu": 16, "gres/gpu": 4})
CPUS = bound("cpu", {"cpu": 24})


def rooms(*sent: Claim, waiting: Sequence[SlurmJob] = (), **partitions: Partition) -> Capacity:
    both = [account("a", limit=LIMIT), account("b", limit=LIMIT)]
    where: dict[Any, Partition | None] = {"gpu": GPUS, "cpu": CPUS, **partitions}
    return capacity_now(both, waiting, sent, mode="independent", utilisation=1.0, partitions=where)


def test_a_partition_qos_replaces_the_limit_of_the_account() -> None:
    a = account("a", limit=LIMIT)
    assert (left(a, None, "cpu"), left(a, CPUS, "cpu"), left(a, CPUS, "mem")) == (64, 24, 9000)
    over = replace(a, before_partition=True)
    assert (left(over, CPUS, "cpu"), largest(over, CPUS, "cpu")) == (64, 64)
    wider = replace(CPUS, limit={"cpu": 500})
    assert left(a, wider, "cpu") == 500
    capped = replace(a, limit={**LIMIT, "cpu": 10}, limit_from={"cpu": "cap"})
    assert left(capped, wider, "cpu") == 10
    used = replace(CPUS, used={"cpu": 20})
    assert left(a, used, "cpu") == 4
    mine = replace(CPUS, limit_per_user={"cpu": 9}, mine={"cpu": 3})
    assert left(a, mine, "cpu") == 6


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
    a = account("a", limit={**LIMIT, "jobs": 5}, used={**FREE, "jobs": 4}, mine={"jobs": 1})
    a = replace(a, limit_per_user={"jobs": 3})
    plain = replace(CPUS, limit={}, used=FREE, mine=FREE)
    assert left(a, plain, "jobs") == 1
    wider = replace(plain, limit={"jobs": 9}, used={**FREE, "jobs": 2})
    assert left(a, wider, "jobs") == 2  # the user's own limit
    assert left(replace(a, before_partition=True), wider, "jobs") == 1
    user = replace(wider, limit_per_user={"jobs": 8, "submit": 6}, mine={"jobs": 2, "submit": 5})
    assert [left(a, user, name) for name in JOBS] == [6, 1]
    assert [largest(a, user, name) for name in JOBS] == [8, 6]
    each = replace(user, limit_per_account={"jobs": 4}, by_account={"a": {"jobs": 4}})
    assert left(a, each, "jobs") == 0
    assert left(account("b"), each, "jobs") == 4
    assert not rooms(cpu=each).fits("a", "cpu", CPU)
    assert rooms(cpu=each).fits("b", "cpu", CPU)
    assert rooms(cpu=each).fits("a", "gpu", GPU)


def test_jobs_that_were_sent_or_pend_count_on_the_qos_of_a_partition() -> None:
    one = replace(CPUS, limit={"jobs": 2, "submit": 4}, used={**FREE, "jobs": 0, "submit": 1})
    sent = Claim("a", {"cpu": 8, "mem": 1, "jobs": 1, "submit": 1}, "cpu")
    pending = SlurmJob(1, "PENDING", "a", "a", "cpu", tres={"cpu": 8})
    here = rooms(sent, waiting=[pending], cpu=one)
    where = here.partitions["cpu"]
    # squeue shows the one that pends, so Slurm counts it as submitted already
    assert [left(here.accounts[0], where, name) for name in JOBS] == [0, 2]
    assert rooms(sent, cpu=one).fits("b", "cpu", CPU)
    assert not here.fits("b", "cpu", CPU)
    unknown = rooms(cpu=replace(one, used=None))
    assert unknown.closed["a", "cpu"] == "use of jobs, submit is not known"


def test_unknown_use_of_a_partition_qos_closes_its_kind() -> None:
    here = rooms(cpu=replace(CPUS, used=None))
    assert not here.fits("a", "cpu", CPU)
    assert here.fits("a", "gpu", GPU)
    assert here.closed["a", "cpu"] == "use of cpu is not known"


def test_slots_of_a_partition_qos() -> None:
    one = [account("a", limit=LIMIT)]

    def slots(mode: Sharing, **partitions: Partition) -> list[int]:
        where: dict[Any, Partition | None] = {"gpu": GPUS, "cpu": CPUS, **partitions}
        pools = make_pools(one, {"gpu": GPU, "cpu": CPU}, mode=mode, utilisation=1.0,
                           partitions=where)  # fmt: skip
        return [pool.slots for pool in pools]

    assert slots("independent") == [2, 3]
    assert slots("shared") == [2, 3]  # the QOS of the CPU partition counts no GPU job
    plain = partition("cpu", tres={"cpu": 999})
    assert slots("shared", cpu=plain) == [2, 6]
    same = replace(CPUS, qos="part-gpu", limit=GPUS.limit)
    assert slots("shared", cpu=same) == [2]


def test_a_job_bigger_than_one_job_may_be_has_no_slot() -> None:
    a = replace(account("a", limit=LIMIT), limit_per_job={"cpu": 4})
    assert too_big(a, CPU) == "it asks for cpu=8 and account a has 4"
    assert make_pools([a], {"cpu": CPU}) == []
    here = capacity_now([a], (), (), mode="shared", utilisation=1.0, partitions={})
    assert not here.fits("a", "cpu", CPU)
    assert here.fits("a", "cpu", replace(CPU, cpus=4))


def test_the_shortest_wall_holds() -> None:
    a = replace(account("a"), max_wall_min=50)
    assert longest_min(a, partition("cpu", max_time_min=600)) == 50
    assert longest_min(a, partition("cpu", max_time_min=40)) == 40
    assert longest_min(account("a"), None) is None
    assert clipped(CPU, a, None).runtime_min == 50
    assert clipped(replace(CPU, runtime_min=7), a, None).runtime_min == 7


def test_a_partition_may_name_the_qos_it_takes() -> None:
    named = replace(partition("cpu"), allow_qos=("b",))
    assert [may_use(account(name), named) for name in "ab"] == [False, True]


def test_auto_is_independent_only_where_both_partition_qos_limit() -> None:
    assert sharing("auto", {"gpu": GPUS, "cpu": CPUS})[0] == "independent"
    for limit in ({}, {"jobs": 9}):
        assert sharing("auto", {"gpu": GPUS, "cpu": replace(CPUS, limit=limit)})[0] == "shared"
    assert sharing("auto", {"gpu": GPUS, "cpu": replace(CPUS, qos=GPUS.qos)})[0] == "shared"
    assert sharing("auto", {"gpu": GPUS, "cpu": None})[0] == "shared"
    assert sharing("independent", {"gpu": None}) == ("independent", "as configured")
