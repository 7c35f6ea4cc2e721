"""Parsers against texts as Slurm 22.05 prints them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.runtime.errors import UnreadableError
from snakemake_scheduler_plugin_tilewright.slurm.parse import (
    node_names,
    parse_assoc_mgr,
    parse_associations,
    parse_idle,
    parse_minutes,
    parse_partitions,
    parse_sacctmgr,
    parse_shares,
    parse_tres,
    parse_tres_usage,
)
from snakemake_scheduler_plugin_tilewright.slurm.records import Association
from tests.support.recorded import PARTITION, qos_line

SACCTMGR = "\n".join([
    "sacctmgr: show associations where user=ada format=account,user,...",
    "clive-b|ada||clive-b|clive-b|||||||||",
    "clive|ada|hpg-b200|clive,clive-b|clive|||||||||",
    "clive|ada||clive,clive-b|clive||cpu=64|||20|100|||",
    "clive|ada||clive,clive-b|clive||cpu=64|||20|100|||",
    "sacctmgr: show associations where user= format=account,user,...",
    "plain|||normal||cpu=16,gres/gpu=1,mem=64G||4|||||hpg|root",
    "sacctmgr: show qos format=name,...",
    qos_line("normal"),
    qos_line("clive", grptres="cpu=104,gres/gpu=3,mem=812G", maxtres="cpu=64",
             maxtrespu="gres/gpu=2", grpjobs="40", grpsubmit="90", maxjobspu="10",
             maxsubmitpu="30", maxwall="2-00:00:00", flags="DenyOnLimit", maxtrespa="cpu=96",
             maxjobspa="8", maxsubmitpa="16", maxtrespernode="cpu=48,gres/gpu=4",
             preempt="low,normal"),
    "",
])  # fmt: skip
ASSOC_MGR = (
    "Current Association Manager state\nQOS Records\n"
    "QOS=clive(2) UsageRaw=0.0 GrpJobs=N(4) GrpJobsAccrue=N(4) GrpSubmitJobs=50(8) GrpWall=20(1.67)"
    " GrpTRES=cpu=40(56),mem=831488(385024),energy=N(0),node=N(2),gres/gpu=3(3)"
    " GrpTRESMins=cpu=60(26),mem=N(0) GrpTRESRunMins=cpu=N(40),mem=N(0),node=N(5) MaxWallPJ="
    " Priority=100 Account Limits= clive={MaxJobsPA=N(4)"
    " MaxTRESPA=cpu=N(56)} User Limits= 1002={MaxJobsPU=N(2) MaxTRESPU=cpu=N(40),mem=N(286720),"
    "gres/gpu=N(1)} 1001={MaxJobsPU=9(2) MaxTRESPU=cpu=64(16),mem=N(98304),gres/gpu=2(2)}\n"
)


def test_tres() -> None:
    for text, limits in {
        "cpu=104,gres/gpu=3,mem=812G": {"cpu": 104, "gres/gpu": 3, "mem": 831_488},
        "mem=312.50G": {"mem": 320_000},
        "mem=1T": {"mem": 1_048_576},
        "mem=2097152K": {"mem": 2048},
        "mem=640000": {"mem": 640_000},
        "cpu=N,mem=,node": {},
        "gres/gpu=0": {"gres/gpu": 0},
        "": {},
    }.items():
        assert parse_tres(text) == limits, text
    text = "gres/gpu=8(6),gres/gpu:a100=4(3),gres/gpu:h100=N(1)"
    limits, used = parse_tres_usage(text)
    assert limits == {"gres/gpu": 8, "gres/gpu:a100": 4}
    assert used == {"gres/gpu": 6, "gres/gpu:a100": 3, "gres/gpu:h100": 1}


def test_sacctmgr_tells_tables_apart_and_lists_each_row_once() -> None:
    associations, qos = parse_sacctmgr(SACCTMGR)
    assert [(a.account, a.user, a.partition) for a in associations] == [
        ("clive-b", "ada", ""), ("clive", "ada", "hpg-b200"), ("clive", "ada", ""),
        ("plain", "", ""),
    ]  # fmt: skip
    assert associations[2].qos == ("clive", "clive-b")
    assert associations[2].tres_per_user == {"jobs": 20, "submit": 100}
    plain = {"cpu": 16, "gres/gpu": 1, "mem": 65_536}
    assert associations[3].tres == {**plain, "jobs": 4}
    assert (associations[3].cluster, associations[3].parent) == ("hpg", "root")
    assert [record.name for record in qos] == ["normal", "clive"]
    clive = qos[1]
    assert clive.tres == {
        "cpu": 104, "gres/gpu": 3, "mem": 831_488, "jobs": 40, "submit": 90,
    }  # fmt: skip
    assert clive.tres_per_job == {"cpu": 48, "gres/gpu": 4}  # a job has one node
    assert clive.tres_per_user == {"gres/gpu": 2, "jobs": 10, "submit": 30}
    assert (clive.max_wall_min, clive.preempts) == (2880, ("low", "normal"))
    assert clive.tres_per_account == {"cpu": 96, "jobs": 8, "submit": 16}
    assert qos[0].tres == {}


@pytest.mark.parametrize(
    "echo",
    [  # as TERM and COLUMNS have it: seen on 22.05
        "sacctmgr: \n<name,grptres,maxtres\n",
        "sacctmgr: show associations where user=root format=account,user,partition,qos,de\n"
        "faultqos,grptres,maxtres,grpjobs,grpsubmit,maxjobs,maxsubmit,maxwall,cluster,par\n"
        "entname\n",
        "\x1b[?2004hsacctmgr: show qos format=name\r\n",
    ],
)
def test_the_echo_of_a_question_is_no_record(echo: str) -> None:
    assert parse_sacctmgr(f"{echo}{SACCTMGR}sacctmgr: \n") == parse_sacctmgr(SACCTMGR)


def test_live_use_of_everybody_and_of_each() -> None:
    found = parse_assoc_mgr(ASSOC_MGR, users={"1001": "ada"})
    assert list(found) == [
        "QOS clive", "user 1002 on QOS clive", "ada on QOS clive", "account clive on QOS clive",
    ]  # fmt: skip
    clive = found["QOS clive"]
    assert clive.limit == {"cpu": 40, "mem": 831_488, "gres/gpu": 3, "submit": 50}
    assert clive.used == {
        "cpu": 56, "mem": 385_024, "energy": 0, "node": 2, "gres/gpu": 3, "jobs": 4, "submit": 8,
    }  # fmt: skip
    of_ada = found["ada on QOS clive"]
    assert of_ada.used == {"cpu": 16, "mem": 98_304, "gres/gpu": 2, "jobs": 2}
    assert of_ada.limit == {"cpu": 64, "gres/gpu": 2, "jobs": 9}
    assert found["user 1002 on QOS clive"].used["jobs"] == 2
    assert found["account clive on QOS clive"].used == {"cpu": 56, "jobs": 4}
    assert "ben on QOS clive" not in parse_assoc_mgr(ASSOC_MGR)
    others = parse_assoc_mgr(ASSOC_MGR, users={"7": "ben"})["ben on QOS clive"]
    assert others.used == dict.fromkeys(clive.used, 0)
    unsaid = ASSOC_MGR.partition(" User Limits=")[0]
    assert "ben on QOS clive" not in parse_assoc_mgr(unsaid, users={"7": "ben"})


def test_live_use_of_associations() -> None:
    text = (
        "ClusterName=c Account=plain UserName= Partition= GrpJobs=N(1) GrpSubmitJobs=N(4)"
        " GrpTRES=cpu=16(8),mem=65536(10240),gres/gpu=1(1)\n"
        "ClusterName=c Account=plain UserName=ada(1001) Partition= GrpJobs=N(1)"
        " GrpTRES=cpu=N(8),mem=N(10240)\n"
        "ClusterName=c Account=plain UserName=ada(1001) Partition=gpu GrpTRES=cpu=9(2)\n"
    )
    found = parse_assoc_mgr(text)
    plain = found.pop("account plain")
    assert plain.limit == {"cpu": 16, "mem": 65_536, "gres/gpu": 1}
    assert plain.used["gres/gpu"] == 1
    assert {name: use.used["cpu"] for name, use in found.items()} == {
        "ada of account plain": 8,
        "ada of account plain in partition gpu": 2,
    }


def test_accounts_where_sacctmgr_shows_none() -> None:
    text = "ClusterName=c Account=plain UserName=ada(1001) Partition= GrpJobs=N(1)\n"
    assert parse_associations(text) == [Association("plain", "ada")]
    assert parse_shares("plain|ada|gpu\n||\n") == [Association("plain", "ada", "gpu")]
    with pytest.raises(UnreadableError):
        parse_shares("Welcome")


def test_partitions() -> None:
    text = (
        "PartitionName=gpu AllowAccounts=clive,Maigan DenyQos=a Default=NO Nodes=b[1-2]"
        " MaxTime=2-12:00:00 State=UP TRES=cpu=112,mem=2000000M,node=1,gres/gpu=8"
        f"{PARTITION.replace('Tier=1', 'Tier=2')}"
        "PartitionName=cpu AllowAccounts=ALL Default=YES MaxTime=UNLIMITED State=UP"
        f" TRES=cpu=256,mem=2T{PARTITION}"
    )
    gpu, cpu = parse_partitions(text)
    assert (gpu.max_time_min, gpu.tres["gres/gpu"], gpu.has_gpus) == (3600, 8, True)
    assert (gpu.allow_accounts, gpu.deny_qos, gpu.default) == (("clive", "maigan"), ("a",), False)
    assert (gpu.nodes, gpu.tier, gpu.preempt_mode) == ("b[1-2]", 2, "OFF")
    assert (cpu.max_time_min, cpu.up, cpu.default, cpu.has_gpus) == (None, True, True, False)
    assert (cpu.allow_accounts, cpu.allow_qos) == (None, None)


@pytest.mark.parametrize("state", ["DOWN", "DRAIN", "INACTIVE"])
def test_a_partition_that_is_not_up(state: str) -> None:
    line = f"PartitionName=x MaxTime=1:00:00 State={state} TRES=cpu=1{PARTITION}"
    (found,) = parse_partitions(line)
    assert not found.up


def test_what_is_idle() -> None:
    text = (
        "a  |0/8/0/8  |gpu:b200:2(S:0),shard:4|gpu:b200:1(IDX:1),shard:0|3|\n"
        "a  |8/0/0/8  |gpu:b200:2(S:0)        |gpu:b200:0(IDX:N/A)      |1|\n"  # no CPU is idle
        "all|4/4/8/16 |(null)                 |(null)                   |2|\n"
    )
    assert parse_idle(text) == {
        "a": {"cpu": 8, "gres/gpu": 3}, "all": {"cpu": 4, "gres/gpu": 0},
    }  # fmt: skip
    for wrong in ("Welcome\n", "a|0/8/0|x|x|1|\n", "a|0/8/0/8|x|x|one|\n"):
        with pytest.raises(UnreadableError):
            parse_idle(wrong + text)


def test_minutes() -> None:
    for text, minutes in {
        "31-00:00:00": 44_640, "1-06": 1800, "1-06:30": 1830, "02:30:00": 150, "90": 90,
        "90:30": 90, "UNLIMITED": None, "": None, "INVALID": None,
    }.items():  # fmt: skip
        assert parse_minutes(text) == minutes, text


_pieces = st.lists(
    st.sampled_from([
        "|", "=", ",", "(", ")", "{", "}", "\n", " ", "cpu", "mem", "N", "104", "1.5G", "gres/gpu",
        "QOS=a(1)", "GrpTRES=", "User Limits=", "PartitionName=x", "MaxTime=", "1-", ":", "²", "",
    ]),
    max_size=60,
).map("".join)  # fmt: skip


@given(st.text() | _pieces)
def test_any_text_gives_records_and_no_number_below_zero(text: str) -> None:
    with contextlib.suppress(UnreadableError):
        associations, qos = parse_sacctmgr(text)
        for limits in (*(a.tres for a in associations), *(q.tres for q in qos)):
            assert all(value >= 0 for value in limits.values())
    with contextlib.suppress(UnreadableError):
        for usage in parse_assoc_mgr(text).values():
            assert all(value >= 0 for value in (*usage.used.values(), *usage.limit.values()))
    with contextlib.suppress(UnreadableError):
        parse_partitions(text)
    with contextlib.suppress(UnreadableError):
        assert all(n >= 0 for tres in parse_idle(text).values() for n in tres.values())
    parse_tres_usage(text)
    assert (parse_minutes(text) or 0) >= 0


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("c1", "c1"),
        ("c[1-3],b1", "c1 c2 c3 b1"),
        ("c[08-10,12]-ib", "c08-ib c09-ib c10-ib c12-ib"),
        ("rack[1-2]node[01-02],b1", "rack1node01 rack1node02 rack2node01 rack2node02 b1"),
        ("a[1,3]b[2]c", "a1b2c a3b2c"),
        ("(null)", ""),
        ("", ""),
    ],
)
def test_the_short_form_of_nodes(text: str, names: str) -> None:
    assert node_names(text) == names.split()


@given(st.text(alphabet="c[]-,0123456789 ()", max_size=12))
def test_any_text_gives_names_of_nodes_or_nothing(text: str) -> None:
    assert all(node_names(text))
