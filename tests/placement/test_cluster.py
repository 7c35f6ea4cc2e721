"""What a person may use, from detection to pools, on recorded answers."""

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from snakemake_scheduler_plugin_tilewright.accounts_table import Accounts
from snakemake_scheduler_plugin_tilewright.placement.accounts import Chosen
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.request import KINDS, Place
from snakemake_scheduler_plugin_tilewright.pools import make_pools, summary
from snakemake_scheduler_plugin_tilewright.runtime.errors import PlacementError, SlurmQueryError
from snakemake_scheduler_plugin_tilewright.slurm.records import Partition
from tests.support.placement_rules import CPU, GPU, account, cluster_of
from tests.support.recorded import LIMITS, PARTITIONS, USE, client, cluster_with, qos_line

DENIED = SlurmQueryError("scontrol", "Access/permission denied")
REFUSED = SlurmQueryError("sacctmgr", "Connection refused")
NO_ACCOUNTING = SlurmQueryError(
    "sacctmgr", "You are not running a supported accounting_storage plugin Only "
    "'accounting_storage/slurmdbd' is supported.",
)  # fmt: skip


def slots(found: Cluster) -> dict[str, tuple[int, int | None]]:
    return {f"{one.place.account} {one.place.kind}": (one.slots, one.free)
            for one in make_pools(found)}  # fmt: skip


def text_of(found: Cluster) -> str:
    stream = io.StringIO()
    Accounts(found, 0.85).print(Console(file=stream, width=80))
    return stream.getvalue()


def test_the_worked_example_with_a_labmate() -> None:
    """A lab of 3 GPUs and 104 CPUs, of which others use 40, and one of 2 and 80."""
    found, recorded = cluster_with(chosen=Chosen(leave_out=["*-b", "brusko"]))
    assert recorded.asked == ["partition", "sacctmgr", "use"]  # and squeue, before the first job
    found.look_at_nodes()
    # 112 GB are left on clive: no GPU job of 180 GB, two CPU jobs of 48 GB
    assert slots(found) == {
        "clive gpu": (3, 0), "clive cpu": (11, 2), "maigan gpu": (2, 2), "maigan cpu": (8, 8),
    }  # fmt: skip
    numbers = Accounts(found, 0.85).as_json()
    assert numbers["total"] == {"independent": 24, "shared": 15}
    assert numbers["accounts"][0]["free"] == {
        "cpu": 64, "mem": 114_688, "gres/gpu": 2, "jobs": None,
    }  # fmt: skip
    assert json.dumps(numbers)
    assert found.notes == []
    shown = text_of(found)
    for part in (
        "at once: 5 GPU + 10 CPU = 15 jobs; each kind alone: 5 GPU + 19 CPU = 24 jobs",
        "slots for GPU jobs of 8 CPUs and 180 GB and CPU jobs of 8 CPUs and 48 GB",
        "  brusko   --tilewright-leave-out brusko",
    ):
        assert part in " ".join(shown.split()).replace("brusko --", "  brusko   --")
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown


def test_a_run_says_in_a_few_lines_what_it_found() -> None:
    found, _ = cluster_with()
    assert summary(found, KINDS) == [
        "jobs go to 3 accounts of ada: brusko, clive, maigan",
        "  `tilewright-placement accounts` shows what they may use",
        "  left out: clive-b: --tilewright-leave-out *-b",
        "  partitions: GPU jobs to hpg-b200; CPU jobs to hpg-default",
    ]
    assert summary(found, ["cpu"])[-1] == "  partitions: CPU jobs to hpg-default"


@pytest.mark.parametrize(
    ("chosen", "names", "reasons"),
    [
        (Chosen(), "brusko clive clive:clive-b clive-b maigan maigan:maigan-b", {}),
        (Chosen(["clive*"]), "clive clive:clive-b clive-b",
         dict.fromkeys(("brusko", "maigan"), "not among --tilewright-accounts")),
        (Chosen(["CLIVE"], ["*-b"]), "clive",
         {"brusko": "not among --tilewright-accounts", "clive-b": "--tilewright-leave-out *-b",
          "maigan": "not among --tilewright-accounts"}),
        (Chosen((), ["maigan", "clive"]), "brusko clive:clive-b clive-b",
         {"maigan": "--tilewright-leave-out maigan", "clive": "--tilewright-leave-out clive"}),
    ],
)  # fmt: skip
def test_accounts_are_left_out_by_the_users_lists_alone(
    chosen: Chosen, names: str, reasons: dict[str, str]
) -> None:
    found, _ = cluster_with(chosen=chosen)
    shown = [f"{one.name}:{one.qos}" if one.order else one.name for one in found.accounts]
    kept = [one for one in names.split() if one.partition(":")[0] not in reasons]
    assert shown == kept
    assert {one.account: one.reason for one in found.left_out} == reasons


def test_where_no_account_is_left_or_a_partition_is_unknown_the_run_is_refused() -> None:
    with pytest.raises(PlacementError, match=r"no account is left to place jobs on \(brusko: not"):
        cluster_with(chosen=Chosen(["nobody"]))
    there = "there is no partition gpu-old; there are hpg-default, hpg-b200"
    with pytest.raises(PlacementError, match=there):
        cluster_with(gpu_partitions=["gpu-old"])
    assert cluster_with(gpu_partitions=["none"])[0].names_of("gpu") == []


@pytest.mark.parametrize(
    ("answers", "note", "accounts"),
    [
        ({"use": DENIED}, "what is in use is not known: scontrol did not", "brusko clive maigan"),
        ({"sacctmgr": REFUSED, "use": DENIED, "assoc": USE.replace("QOS=", "Account=x UserName= "
          "Partition= A="), }, "jobs go to your default account, and limits are not known", ""),
        ({"sacctmgr": REFUSED, "use": "QOS=clive(2) GrpTRES=cpu=1(1)\n",
          "assoc": "Account=clive UserName=ada(1001) Partition= GrpJobs=N(1)\n"},
         "limits are not known: sacctmgr did not answer: Connection refused", "clive"),
        ({"sacctmgr": NO_ACCOUNTING}, "keeps no accounts: its nodes alone bound jobs", ""),
        ({"partition": DENIED}, "partitions are not known, so jobs go to the default one",
         "brusko clive maigan"),
    ],
)  # fmt: skip
def test_what_slurm_does_not_say_is_noted_and_forbids_nothing(
    answers: dict[str, Any], note: str, accounts: str
) -> None:
    found, _ = cluster_with(**answers)
    assert [note in one for one in found.notes] == [True]
    assert [one.name for one in found.accounts] == (accounts.split() or [""])
    places = found.places("cpu", CPU)
    assert len(places) == len(found.accounts)
    assert text_of(found).count("?") >= ("use" in answers and "clive" in accounts)
    assert found.limits_known == ("sacctmgr" not in answers or answers["sacctmgr"] is NO_ACCOUNTING)


def test_accounts_of_other_clusters_are_not_ours() -> None:
    lines = [line for line in LIMITS.splitlines() if line.count("|") == 13]
    here = [line.rpartition("|") for line in lines]
    rows = [f"{name.removesuffix('|')}|{cluster}|{parent}".replace("brusko", brusko)
            for cluster, brusko in (("hpg", "clive"), ("other", "elsewhere"))
            for name, _, parent in here]  # fmt: skip
    rest = [line for line in LIMITS.splitlines() if line not in lines]
    found, _ = cluster_with(sacctmgr="\n".join([*rows, *rest, ""]))
    assert {one.name for one in found.accounts} == {"clive", "maigan"}


def test_limits_of_accounts_above_and_of_users_count_with_live_ones_first() -> None:
    rows = (
        "root|||||||||||||\ndept||||||cpu=64||3|||||root\nclive|||clive|clive|||||||||dept\n"
        "clive|ada||clive|clive|||||4|9|||\n"
    ).replace("dept||||||cpu=64||3|||||root", "dept|||||cpu=64||3||||||root")
    use = (
        "QOS=clive(2) GrpJobs=N(1) GrpSubmitJobs=N(2) GrpTRES=cpu=50(8),mem=N(100)"
        " User Limits=No Users\n"
        "ClusterName=c Account=dept UserName= Partition= GrpJobs=2(1) GrpTRES=cpu=64(60)\n"
        "ClusterName=c Account=clive UserName=ada(1001) Partition= GrpJobs=N(1) "
        "GrpSubmitJobs=N(2) GrpTRES=cpu=N(8)\n"
    )
    qos = qos_line("clive", grptres="cpu=99", maxtrespu="cpu=40", maxwall="1-00:00:00")
    found, _ = cluster_with(sacctmgr=f"{rows}{qos}\n", use=use)
    (clive,) = found.accounts
    assert {one.name: (one.limit, one.used and one.used.get("cpu")) for one in clive.scopes} == {
        "QOS clive": ({"cpu": 50}, 8),  # live: it was changed
        "ada on QOS clive": ({"cpu": 40}, 0),
        "ada of account clive": ({"jobs": 4, "submit": 9}, 8),
        "account dept": ({"jobs": 2}, 60),  # of CPUs the limits of the QOS hold
    }
    assert (clive.limit("cpu"), clive.rest("cpu"), clive.rest("jobs")) == (40, 40, 1)
    assert (clive.longest_min, clive.rest("gres/gpu")) == (1440, None)


def test_an_account_with_associations_of_partitions_is_bound_to_them() -> None:
    rows = LIMITS.replace("clive|ada||", "clive|ada|hpg-b200|")
    found, _ = cluster_with(sacctmgr=rows)
    bound = {one.name: one.partitions for one in found.accounts}
    assert bound == {"brusko": (), "clive": ("hpg-b200",), "maigan": ()}
    assert "clive" not in {one.account for one in found.places("cpu", CPU)}


@pytest.mark.parametrize(
    ("change", "gpu", "cpu"),
    [
        ({}, "gpu", "cpu"),
        ({"gpu_partitions": ["none"]}, "", "cpu"),
        ({"cpu_partitions": ["gpu"]}, "gpu", "gpu"),
        ({"partitions": [Partition("all", tres={"cpu": 9})]}, "all", "all"),
        ({"partitions": [Partition("all", tres={"cpu": 9, "gres/gpu": 1})]}, "all", "all"),
        ({"partitions": [Partition("a", tres={"cpu": 9}), Partition("b", tres={"cpu": 99}),
                         Partition("c", tres={"cpu": 1}, default=True)]}, "c,b,a", "c,b,a"),
        ({"partitions": [Partition("down", up=False), Partition("a")]}, "a", "a"),
        ({"partitions": [Partition("a", deny_accounts=("lab",)), Partition("b")]}, "b", "b"),
        ({"partitions": [Partition("a", allow_accounts=("x",)), Partition("b")]}, "b", "b"),
        ({"partitions": [Partition("a", allow_qos=("x",)), Partition("b")]}, "b", "b"),
        ({"partitions": [Partition("a", deny_qos=("lab",)), Partition("b")]}, "b", "b"),
        ({"partitions": []}, "", ""),
    ],
)  # fmt: skip
def test_which_partitions_a_job_goes_to(change: dict[str, Any], gpu: str, cpu: str) -> None:
    found = cluster_of([account("lab")], **change)
    for kind, request, names in (("gpu", GPU, gpu), ("cpu", CPU, cpu)):
        places = found.places(kind, request)  # type: ignore[arg-type]
        assert [",".join(one.partitions) for one in places] == (
            [names] if names or not found.partitions else []
        )


def test_what_is_idle_counts_nodes_of_several_partitions_once() -> None:
    nodes = [Partition("a", nodes="c[1-2]"), Partition("b", nodes="c[1-2]"),
             Partition("c", nodes="d1")]  # fmt: skip
    found = cluster_of([account("lab")], nodes, idle={n: {"cpu": 4} for n in "abc"})
    places = [Place("lab", "lab", names, "cpu") for names in (("a", "b"), ("a", "c"), ("x",), ())]
    assert [found.idle_of(one) for one in places] == [{"cpu": 4}, {"cpu": 8}, None, None]
    found.client = client(lambda argv, stdin=None: "Welcome\n")
    found.look_at_nodes()
    assert (found.idle, found.idle_of(places[0])) == (None, None)


def test_other_peoples_accounts_are_asked_for_by_their_own_number() -> None:
    each = "User Limits= 1001={MaxTRESPU=cpu=16(4)} 1002={MaxTRESPU=cpu=16(9)}"
    use = f"QOS=clive(2) GrpTRES=cpu=104(13) {each}\n"
    for uid, used in ((1001, 4), (1002, 9), (1003, 0)):
        _, recorded = cluster_with(use=use)
        found = Cluster(client(recorded, uid=uid))
        found.client.user = "ada"
        recorded.answers["sacctmgr"] = LIMITS.replace(
            qos_line("clive", grptres="cpu=104,gres/gpu=3,mem=812G"),
            qos_line("clive", maxtrespu="cpu=16"),
        )
        found.look()
        clive = next(one for one in found.accounts if one.label == "clive")
        assert {one.name: one.used for one in clive.scopes}["ada on QOS clive"] == {"cpu": used}


def test_a_partition_limit_bounds_the_time_of_a_job() -> None:
    found = cluster_of([account("lab", longest_min=90)], [Partition("a", 30), Partition("b", 60)])
    for names, longest in ((("a",), 30), (("a", "b"), 60), (("hidden",), 90), ((), 90)):
        assert found.longest_min(Place("lab", "lab", names, "cpu")) == longest
    free = cluster_of([account("lab")], [Partition("a", 30), Partition("b")])
    assert free.longest_min(Place("lab", "lab", ("a", "b"), "cpu")) is None
    assert "hpg-b200" in PARTITIONS


def test_a_place_that_allows_less_time_is_used_where_no_other_allows_it() -> None:
    short = replace(account("lab", order=1), qos="short", longest_min=2)
    found = cluster_of([account("lab"), short])
    hour = replace(CPU, runtime_min=60)
    assert [place.rank for place in found.able_places("cpu", hour)] == [0]
    assert len(found.able_places("cpu", replace(CPU, runtime_min=2))) == 2
    assert len(cluster_of([short]).able_places("cpu", hour)) == 1
