"""Places: all accounts, QOS and partitions that a user may use, and which of them jobs take."""

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright.cluster.pools import make_pools
from snakemake_scheduler_plugin_tilewright.cluster.query import query_cluster
from snakemake_scheduler_plugin_tilewright.cluster.request import ResourceRequest, Target
from snakemake_scheduler_plugin_tilewright.cluster.room import Room
from snakemake_scheduler_plugin_tilewright.cluster.site import Site
from snakemake_scheduler_plugin_tilewright.cluster.state import ClusterState
from snakemake_scheduler_plugin_tilewright.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.placement.failures import memory_limit_mb
from snakemake_scheduler_plugin_tilewright.placement.jobs import Assignment, JobState, UserOverrides
from snakemake_scheduler_plugin_tilewright.placement.move import sooner_elsewhere
from snakemake_scheduler_plugin_tilewright.placement.place_history import Backoff
from snakemake_scheduler_plugin_tilewright.placement.reach import check_feasible, note_preemption
from snakemake_scheduler_plugin_tilewright.resources import Placement
from snakemake_scheduler_plugin_tilewright.run import Run
from snakemake_scheduler_plugin_tilewright.slurm.accounts import SiteRules, usable_accounts
from snakemake_scheduler_plugin_tilewright.slurm.jobs import SlurmJob
from snakemake_scheduler_plugin_tilewright.slurm.nodes import Node
from snakemake_scheduler_plugin_tilewright.slurm.partitions import with_preemption
from snakemake_scheduler_plugin_tilewright.slurm.records import Association, Partition, Qos
from tests.placement.dispatched import answer, dispatcher, pending
from tests.support.placement_rules import (
    Rules,
    account,
    in_use,
    open_at,
    partition,
    room,
    round_on,
)
from tests.support.recorded import (
    ANSWERS,
    LIMITS,
    PARTITION,
    PARTITIONS,
    Recorded,
    client,
    details,
)

LONG, SHORT = ResourceRequest(4, 100, 0, 2880, required_min=2880), ResourceRequest(4, 100, 0, 20)
ON_GPU = ResourceRequest(4, 100, 1, 20)
RULES = Rules({"long": {"cpu": LONG}, "short": {"cpu": SHORT}, "gpu": {"gpu": ON_GPU}})
PLACEMENT = Placement(RULES.models)


def ready(rule: str, count: int, **of: Any) -> list[JobState]:
    return [JobState(RULES.job(f"{rule}{k}", rule, **of)) for k in range(count)]


def sent(state: ClusterState, *tasks: JobState) -> Counter[str]:
    """Return how many jobs of each rule start on each QOS and in each partition."""
    found = round_on(state, PLACEMENT, tasks).assignments
    return Counter(
        f"{name.rstrip('0123456789')} {one.target.qos} {one.target.partition}"
        for name, one in found.items()
        if "waits in Slurm's queue" not in one.reason
    )


def node(name: str, *partitions: str, cpus: int = 16, gpus: int = 0, free: bool = True) -> Node:
    total = {"cpu": cpus, "mem": 9000, "gres/gpu": gpus}
    return Node(name, partitions, True, total, total if free else dict.fromkeys(total, 0))


def where(name: str, **values: Any) -> Partition:
    return replace(partition(name, tres={"cpu": 64}, max_time_min=None), default=False, **values)


def on_qos(*names: str, default: str = "", **limits: Qos) -> tuple[Any, ...]:
    """Return an account on some QOS, nothing of which is in use."""
    rows = [Association("lab", "ada", "", names, default)]
    used = {f"QOS {name}": in_use({}) for name in names}
    qos = [limits.get(name, Qos(name)) for name in names]
    return tuple(usable_accounts("ada", rows, qos, SiteRules(), (), used)[0])


# QOS


DEBUG, REGULAR = Qos("debug", {"jobs": 2}, max_wall_min=30), Qos("regular", {"cpu": 40})
CPUS = {"cpu": where("c")}


@pytest.mark.parametrize("default", ["", "debug", "regular"])
def test_each_job_goes_to_a_qos_that_is_long_enough(default: str) -> None:
    """A QOS for each length: long jobs were refused, short ones waited on one of them."""
    accounts = on_qos("debug", "regular", default=default, debug=DEBUG, regular=REGULAR)
    here = room(*accounts, partitions=CPUS)
    both = [*ready("long", 4), *ready("short", 12)]
    check_feasible(both, here, PLACEMENT.estimates)
    found = sent(here, *both)
    assert found["long regular c"] + found["short regular c"] == 10
    assert (found["short debug c"], found.total()) == (2, 12)
    assert found["long regular c"] == 4


def test_without_a_default_jobs_go_to_the_qos_of_the_shortest_jobs_that_takes_them() -> None:
    walls = {"debug": 30, "regular": 1440, "week": 10080}
    limits: Any = {name: Qos(name, {"jobs": 3}, max_wall_min=n) for name, n in walls.items()}
    for names in (("week", "regular", "debug"), ("debug", "week", "regular")):
        here = room(*on_qos(*names, **limits), partitions=CPUS)
        assert sent(here, *ready("short", 4)) == {"short debug c": 3, "short regular c": 1}
        assert sent(here, *ready("long", 1)) == {"long week c": 1}


def test_ties_go_to_the_default_qos_and_the_first_partition() -> None:
    accounts = on_qos("high", "normal", default="normal", normal=Qos("normal", {"jobs": 3}))
    assert [one.qos for one in accounts] == ["normal", "high"]
    here = room(*accounts, partitions={"cpu": (where("c"), where("d"))})
    assert sent(here, *ready("short", 3)) == {"short normal c": 3}
    assert sent(here, *ready("short", 4)) == {"short normal c": 3, "short high c": 1}


def test_a_limit_of_the_account_is_counted_once_for_all_its_qos_and_partitions() -> None:
    rows = [Association("lab", "ada", "", ("a", "b"), "a", tres={"cpu": 20})]
    accounts, _ = usable_accounts(
        "ada", rows, [Qos("a"), Qos("b")], SiteRules(), (),
        {"ada of account lab": in_use({"cpu": 4})},
    )  # fmt: skip
    here = room(*accounts, partitions={"cpu": (where("c"), where("d"))})
    assert sent(here, *ready("short", 9)).total() == 4
    assert sum(pool.slots for pool in make_pools(replace(here, largest_jobs={"cpu": SHORT}))) == 5


def test_a_qos_that_the_rule_names_is_the_only_one() -> None:
    here = room(*on_qos("a", "b", default="a"), partitions=CPUS)
    named = ready("short", 2, overrides=UserOverrides("lab", qos="b"))
    assert sent(here, *named) == {"short b c": 2}
    other = ready("short", 2, overrides=UserOverrides("lab", qos="night"))
    assert sent(here, *other) == {"short a c": 2}


def test_partitions_that_associations_are_bound_to_have_their_own_qos() -> None:
    rows = [
        Association("lab", "ada", "", ("n",), "n"),
        Association("lab", "ada", "g", ("gpu",), "gpu"),
    ]
    accounts, _ = usable_accounts("ada", rows, [Qos("n"), Qos("gpu")], SiteRules())
    assert [(one.qos, one.partitions, one.not_in) for one in accounts] == [
        ("n", (), ("g",)), ("gpu", ("g",), ()),
    ]  # fmt: skip
    here = room(*accounts, partitions={"cpu": (where("g"), where("c"))})
    assert {(one.qos, one.partition) for one in here.targets()} == {("n", "c"), ("gpu", "g")}


# Partitions


def test_a_job_goes_to_a_partition_that_is_long_enough_and_open_to_its_account() -> None:
    """The default one was short, or the one of most GPUs of other accounts: both were refused."""
    short, batch = where("debug", max_time_min=30), where("batch")
    pi = where("pi_x", tres={"cpu": 64, "gres/gpu": 80}, allow_accounts=("x",))
    gpu = where("gpu", tres={"cpu": 64, "gres/gpu": 8})
    lab = account("lab")
    here = room(lab, partitions={"cpu": (short, batch), "gpu": (pi, gpu)})
    jobs = [*ready("long", 1), *ready("short", 1), *ready("gpu", 1)]
    check_feasible(jobs, here, PLACEMENT.estimates)
    assert sent(here, *jobs) == {"long lab batch": 1, "short lab debug": 1, "gpu lab gpu": 1}
    only = room(lab, partitions={"cpu": (), "gpu": (pi,)})
    with pytest.raises(PlacementError, match="account lab may not use partition pi_x"):
        check_feasible(ready("gpu", 1), only, PLACEMENT.estimates)


def test_jobs_go_on_to_other_partitions_where_nodes_are_full() -> None:
    nodes = (node("c1", "c"), node("d1", "d", "e"), node("e1", "e", free=False))
    here = room(account("lab"), partitions={"cpu": [where(n) for n in "cde"]}, nodes=nodes)
    found = sent(here, *ready("short", 9))
    assert (found["short lab c"], found.total()) == (4, 8)


def test_limits_are_counted_in_each_kind_of_partition() -> None:
    """What an account's limits hold of whole nodes is not what they hold of shared ones."""
    whole = where("whole", whole_nodes=True, whole={"cpu": 16})
    lab = account("lab", limit={"cpu": 8})
    for names in (("whole", "c"), ("c", "whole")):
        both = [whole if name == "whole" else where(name) for name in names]
        nodes = (node("w1", "whole"), node("c1", "c"))
        here = room(lab, partitions={"cpu": both}, nodes=nodes)
        assert sent(here, *ready("short", 3)) == {"short lab c": 2}


def test_cpu_jobs_leave_partitions_with_gpus_where_another_takes_them() -> None:
    gpu = where("g", tres={"cpu": 64, "gres/gpu": 8})
    short = where("debug", max_time_min=30)
    here = room(account("lab"), partitions={"cpu": (short, gpu), "gpu": (gpu,)},
                nodes=(node("g1", "g", gpus=4), node("c1", "debug", cpus=4)))  # fmt: skip
    assert sent(here, *ready("short", 5)) == {"short lab debug": 1}
    assert sent(here, *ready("long", 5)) == {"long lab g": 4}


def test_time_that_nobody_stated_is_cut_only_where_it_is_twice_the_estimate() -> None:
    here = room(account("lab"), partitions={"cpu": [where("debug", max_time_min=30)]})
    unstated = replace(LONG, required_min=0)
    for minutes, place in ((10, "debug"), (60, "batch")):
        rules = Rules({"work": {"cpu": unstated}}, seconds=60.0 * minutes)
        task = JobState(rules.job("work", "work"))
        both = (where("debug", max_time_min=30), where("batch"))
        two = replace(here, partitions=open_at({"cpu": both}))
        (made,) = round_on(two, Placement(rules.models), [task]).assignments.values()
        assert made.target.partition == place
        (made,) = round_on(here, Placement(rules.models), [task]).assignments.values()
        assert made.request.runtime_min == 30  # there is no other


def test_a_job_that_waits_for_its_nodes_goes_to_another_partition() -> None:
    nodes = (node("c1", "c", free=False), node("d1", "d"))
    here = room(account("lab"), partitions={"cpu": (where("c"), where("d"))}, nodes=nodes)
    (task,) = ready("short", 1)
    task.assignment = Assignment(here.target(here.accounts[0], "cpu"), SHORT)
    found = round_on(here, PLACEMENT, [], active=[task])
    every = found.reach.of(task).every().items()
    assert [one.partition for one, at in every if Room(here).fits(one, at)] == ["d"]


# What site.yaml restricts


def look(tmp_path: Path, site: dict[str, Any], **answers: str) -> ClusterState:
    recorded = Recorded({**ANSWERS, **answers})
    return query_cluster(client(recorded, tmp_path), 1001, Site.model_validate(site))


TWO = "".join(
    f"PartitionName={name} MaxTime=7-00:00:00 State=UP TRES=cpu=112,gres/gpu={gpus}{PARTITION}"
    for name, gpus in (("a100", 8), ("v100", 80), ("batch", 0), ("big", 0))
)


@pytest.mark.parametrize(
    ("site", "gpu", "cpu"),
    [
        ({}, ["v100", "a100"], ["batch", "big"]),
        ({"partitions": {"gpu": "a100"}}, ["a100"], ["batch", "big"]),
        ({"partitions": {"gpu": ["a100", "v100"], "cpu": "big"}}, ["a100", "v100"], ["big"]),
        ({"partitions": {"gpu": "none"}}, [], ["batch", "big"]),
    ],
)
def test_a_site_restricts_partitions(
    tmp_path: Path, site: dict[str, Any], gpu: list[str], cpu: list[str]
) -> None:
    here = look(tmp_path, site, partition=TWO)
    found = here.leaving_gpus(here.targets())
    for kind, names in (("gpu", gpu), ("cpu", cpu)):
        own = dict.fromkeys(one.partition for one in found if one.device == kind)
        assert list(own) == names


def test_a_site_restricts_qos_and_the_kind_of_jobs_of_an_account(tmp_path: Path) -> None:
    here = look(
        tmp_path, {"accounts": {"maigan": "gpu", "brusko": "cpu"}, "qos": ["maigan", "brusko"]}
    )
    assert {(one.account, one.device) for one in here.targets()} == {
        ("maigan", "gpu"), ("brusko", "cpu"),
    }  # fmt: skip
    assert {one.account: one.reason for one in here.left_out}["clive"].startswith("no QOS")


# Preemption, and what partitions and QOS ask for


def test_a_partition_loses_jobs_to_one_of_a_higher_tier_on_its_nodes() -> None:
    tiers = {"low": 1, "high": 2, "alone": 1, "off": 1}
    found = with_preemption(
        [where(name, tier=tier, preempt_mode="OFF" if name == "off" else "REQUEUE")
         for name, tier in tiers.items()],
        [node("n", "low", "high", "off"), node("m", "alone")],
    )  # fmt: skip
    assert [one.name for one in found if one.preemptable] == ["low"]
    unknown = with_preemption(found, None)
    assert [one.name for one in unknown if one.preemptable] == ["low", "alone"]


def test_a_preemptable_partition_or_qos_takes_only_what_nothing_else_does() -> None:
    """The partition of most GPUs was preemptable, and taken without a word."""
    scavenge = where("scavenge", tres={"cpu": 64, "gres/gpu": 80}, preemptable=True)
    gpu = where("gpu", tres={"cpu": 64, "gres/gpu": 2})
    nodes = (node("s1", "scavenge", gpus=8), node("g1", "gpu", gpus=2))
    here = room(account("lab"), partitions={"cpu": (), "gpu": (scavenge, gpu)}, nodes=nodes)
    assert sent(here, *ready("gpu", 2)) == {"gpu lab gpu": 2}
    assert sent(here, *ready("gpu", 3)) == {"gpu lab gpu": 2, "gpu lab scavenge": 1}
    (task,) = ready("gpu", 1)
    task.excluded_targets = frozenset(one for one in here.targets() if one.partition == "scavenge")
    full = replace(here, nodes=(nodes[0], node("g1", "gpu", gpus=2, free=False)))
    assert sent(full, task) == {}
    low, high = on_qos("low", "high", default="low", high=Qos("high", {"jobs": 1}))
    two = room(replace(low, preemptable=True), high, partitions=CPUS)
    assert sent(two, *ready("short", 2)) == {"short high c": 1, "short low c": 1}


def test_a_job_that_was_preempted_twice_goes_elsewhere(tmp_path: Path) -> None:
    run = dispatcher("", tmp_path, sent=1)
    (task,) = run.tasks.values()
    assignment = task.assignment
    for times in (1, 2):
        task.assignment = assignment
        line = pending(1, "").replace("PENDING", "PREEMPTED").replace("20", f"2{times}", 1)
        answer(run, {"squeue": line, "scontrol": details("PREEMPTED", "None", "0:0", "0:0")})
        run.state()
        assert run.failed(task.name).free
        assert bool(task.excluded_targets) == (times == 2)
    answer(run, squeue="")
    (place,) = run.round([task.name], []).values()
    assert place.target.partition != "hpg-b200"


def test_preemptable_qos_and_accounts_below_are_read(tmp_path: Path) -> None:
    config = f"{ANSWERS['config']}SLURM_VERSION = 22.05.8\nPreemptType = preempt/qos\n"
    of_maigan, of_clive = f"mem=625G{'|' * 20}", f"clive|||clive,clive-b|clive{'|' * 9}"
    limits = LIMITS.replace(of_maigan, f"{of_maigan}brusko").replace(of_clive, f"{of_clive}dept")
    partitions = PARTITIONS.replace("AllowAccounts=ALL", "AllowAccounts=dept", 1)
    for version, open_ in (("22.05.8", set()), ("24.05.1", {"clive"})):
        here = look(tmp_path / version, {}, config=config.replace("22.05.8", version),
                    sacctmgr=limits, partition=partitions)  # fmt: skip
        found = {one.account for one in here.targets() if one.partition == "hpg-default"}
        assert found == open_
        assert {one.name for one in here.accounts if one.preemptable} == {"brusko"}


def test_jobs_that_ask_for_less_than_a_qos_takes_go_to_another() -> None:
    of_gpus = Qos("gpu", least={"gres/gpu": 1})
    here = room(*on_qos("gpu", "cpu", default="gpu", gpu=of_gpus), partitions=CPUS)
    assert sent(here, *ready("short", 1)) == {"short cpu c": 1}
    only = room(*on_qos("gpu", default="gpu", gpu=of_gpus), partitions=CPUS)
    with pytest.raises(PlacementError, match="gres/gpu=0 and QOS gpu takes jobs from 1 on"):
        check_feasible(ready("short", 1), only, PLACEMENT.estimates)


def test_that_a_job_may_be_preempted_is_said_once_for_each_partition(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scavenge = where("scavenge", tres={"cpu": 64, "gres/gpu": 80}, preemptable=True)
    here = room(account("lab"), partitions={"cpu": (), "gpu": (scavenge,)})
    run: Any = SimpleNamespace(
        dispatcher=SimpleNamespace(cluster=SimpleNamespace(state=here)),
        _preemptable=set(), logger=logging.getLogger("test"),
    )  # fmt: skip
    for target in here.targets():
        for name in "ab":
            Run._say_preemptable(run, name, Assignment(target, ON_GPU))
    (said,) = caplog.messages
    assert said.startswith("a goes to partition scavenge, where others may preempt it: nothing")


# Counting


def test_the_share_of_cpus_that_is_kept_free_holds_for_all_jobs_of_a_round() -> None:
    lab = account("lab", limit={"cpu": 104})
    wide = Rules({"short": {"cpu": replace(SHORT, cpus=8)}})
    tasks = [JobState(wide.job(f"short{k}", "short")) for k in range(20)]
    large = [where(name, tres={"cpu": 999}) for name in "cd"]
    for partitions in (large, large[:1]):
        here = room(lab, partitions={"cpu": partitions}, utilisation=0.85)
        assert len(round_on(here, Placement(wide.models), tasks).assignments) == 11


def test_a_cap_holds_for_all_qos_of_an_account_together() -> None:
    rows = [Association("lab", "ada", "", ("a", "b"), "a")]
    used = {f"account lab on QOS {name}": in_use({"cpu": 2}) for name in "ab"}
    used |= {f"QOS {name}": in_use({"cpu": 2}) for name in "ab"}
    rules = SiteRules(caps={"lab": {"cpu": 20}})
    accounts, _ = usable_accounts("ada", rows, [Qos("a"), Qos("b")], rules, (), used)
    assert sent(room(*accounts, partitions=CPUS), *ready("short", 9)).total() == 4


def test_limits_of_a_gpu_type_count_in_partitions_of_that_type_alone() -> None:
    limit = {"gres/gpu:a100": 2}
    lab = account("lab", limit=limit, used=dict.fromkeys(limit, 0))
    types = {"a": {"gres/gpu:a100": 8}, "b": {"gres/gpu:v100": 8}}
    parts = [where(n, tres={"cpu": 64, "gres/gpu": 8, **own}) for n, own in types.items()]
    for order in (parts, parts[::-1]):
        here = room(lab, partitions={"cpu": (), "gpu": order})
        found = sent(here, *ready("gpu", 10))
        assert (found["gpu lab a"], found["gpu lab b"]) == (2, 8)


def test_a_reservation_whose_nodes_are_full_has_no_room_elsewhere() -> None:
    own = {"course": (-5.0, 600.0)}
    nodes = (replace(node("c1", "c", free=False), reservations=own), node("c2", "c"))
    here = room(account("lab"), partitions=CPUS, nodes=nodes)
    named = UserOverrides(options=(("reservation", "course"),))
    assert sent(here, *ready("short", 2, overrides=named)) == {}


def test_a_pending_job_moves_to_another_partition_of_its_account(tmp_path: Path) -> None:
    """What it holds of the account's limit itself is not in its way."""
    lab = account("lab", limit={"gres/gpu": 2})
    parts = [where(n, tres={"cpu": 64, "gres/gpu": 8}) for n in "ab"]
    tasks = ready("gpu", 2)
    for number, task in enumerate(tasks):
        task.assignment = Assignment(Target("lab", "lab", "a", "gpu"), ON_GPU)
        tres = {"cpu": 4, "mem": 100, "gres/gpu": 1}
        task.slurm_job = SlurmJob(number, "PENDING", "lab", "lab", "a", tres=tres)
    here = room(lab, waiting=[task.slurm_job for task in tasks if task.slurm_job],
                partitions={"cpu": (), "gpu": parts})  # fmt: skip
    found = sooner_elsewhere(round_on(here, PLACEMENT, [], active=tasks), tasks[0], 9999.0)
    assert found is not None
    assert found[0].partition == "b"


def test_what_was_preempted_twice_is_known_after_other_failures() -> None:
    here = room(account("lab"), partitions=CPUS)
    (task,) = ready("short", 1)
    (target,) = here.targets({"cpu": ""})
    for place in (target, target, None):
        task.excluded_targets = frozenset()
        note_preemption(task, place, here)
    assert task.excluded_targets & {*here.targets()} == {target}


def test_a_place_that_was_avoided_for_less_is_closed() -> None:
    known, target = Backoff(60.0), Target("lab", "lab", "c", "cpu")
    assert known.avoid(target, "busy", 0.0, for_all=False)
    assert not known.avoid(target, "busy", 1.0, for_all=False)
    assert known.avoid(target, "QOSGrpCpuLimit", 2.0, for_all=True)
    assert not known.avoid(target, "busy", 3.0, for_all=False)
    assert known[target].why == "QOSGrpCpuLimit"


@pytest.mark.parametrize(("submitted", "queued"), [(3, 0), (9, 4)])
def test_where_jobs_of_others_wait_for_full_accounts_some_wait_with_them(
    submitted: int, queued: int
) -> None:
    """A labmate's later jobs started first, for ever."""
    used = {"cpu": 40, "jobs": 3, "submit": submitted}
    labs = [account(name, limit={"cpu": 40}, used=used) for name in ("a", "b")]
    found = round_on(room(*labs, partitions=CPUS), PLACEMENT, ready("short", 9))
    reasons = [one.reason for one in found.assignments.values()]
    assert len(reasons) == queued
    assert set(reasons) <= {"other jobs wait for the same account, so it waits in Slurm's queue"}
    assert {one.target.account for one in found.assignments.values()} <= {"a", "b"}


def test_a_name_of_other_sites_keeps_out_no_only_account() -> None:
    rows = [Association("chem-b", "ada", "", ("chem-b",), "chem-b")]
    accounts, left_out = usable_accounts("ada", rows, [Qos("chem-b")], SiteRules())
    assert ([one.name for one in accounts], left_out) == (["chem-b"], [])
    two = [*rows, Association("chem", "ada", "", ("chem",), "chem")]
    accounts, left_out = usable_accounts("ada", two, [Qos("chem")], SiteRules())
    assert ([one.name for one in accounts], len(left_out)) == (["chem"], 1)


def test_no_job_starts_where_snakemake_runs_no_more() -> None:
    found = round_on(room(account("lab"), partitions=CPUS), PLACEMENT, ready("short", 2), most=0)
    assert not found.assignments
    assert set(found.why.values()) == {"Snakemake runs no more jobs at once (--jobs)"}


def test_memory_that_grew_is_cut_to_the_largest_node() -> None:
    here = room(account("lab"), partitions=CPUS, nodes=(node("c1", "c"),))
    assert memory_limit_mb(ready("short", 1)[0].job, here) == 9000
