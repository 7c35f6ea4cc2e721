"""Parsers against texts as Slurm 22.05 prints them, and what fits on nodes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.errors import UnreadableError
from snakemake_scheduler_plugin_tilewright.slurm.nodes import (
    Node,
    before_reservations,
    node_names,
    open_to,
    parse_licences,
    parse_nodes,
    parse_reservations,
)
from snakemake_scheduler_plugin_tilewright.slurm.parse import (
    parse_assoc_mgr,
    parse_minutes,
    parse_partitions,
    parse_sacctmgr,
    parse_tres,
    parse_tres_usage,
)
from snakemake_scheduler_plugin_tilewright.slurm.records import WALL
from tests.support.recorded import PARTITION

SACCTMGR = """\
sacctmgr: show associations where user=ada format=account,user,...
clive-b|ada||clive-b|clive-b|||||||||||||
clive|ada|hpg-b200|clive,clive-b|clive|||||||||||||
clive|ada||clive,clive-b|clive||cpu=64|||20|100|||||||
clive|ada||clive,clive-b|clive||cpu=64|||20|100|||||||
sacctmgr: show associations where user= format=account,user,...
plain|||normal||cpu=16,gres/gpu=1,mem=64G||4|||||||gres/gpu=30|||
sacctmgr: show qos format=name,...
normal|||||||||||||||||||||
clive|cpu=104,gres/gpu=3,mem=812G|cpu=64|gres/gpu=2|40|90|10|30|2-00:00:00|DenyOnLimit|cpu=96|8|16|cpu=6000|gres/gpu=90|cpu=480|2-00:00:00|cpu=900|mem=1G|cpu=48,gres/gpu=4||
"""
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
    assert associations[3].tres == {**plain, "gres/gpu/min": 30, "jobs": 4}
    assert [record.name for record in qos] == ["normal", "clive"]
    clive = qos[1]
    assert clive.tres == {
        "cpu": 104, "gres/gpu": 3, "mem": 831_488, "cpu/min": 6000, "gres/gpu/min/running": 90,
        WALL: 2880, "jobs": 40, "submit": 90,
    }  # fmt: skip
    assert clive.tres_per_job == {"cpu": 48, "gres/gpu": 4, "cpu/min": 480}
    assert clive.tres_per_user == {
        "gres/gpu": 2, "jobs": 10, "submit": 30, "cpu/min/running": 900,
    }  # fmt: skip
    assert clive.max_wall_min == 2880
    minutes = {"mem/min/running": 1024}
    assert clive.tres_per_account == {"cpu": 96, "jobs": 8, "submit": 16, **minutes}
    assert qos[0].tres == {}


@pytest.mark.parametrize(
    "echo",
    [  # as TERM and COLUMNS have it: seen on 22.05
        "sacctmgr: \n<name,grptresmins,grptresrunmins,maxtresmins,grpwall\n",
        "sacctmgr: show associations where user=root format=account,user,partition,qos,de\n"
        "faultqos,grptres,maxtres,grpjobs,grpsubmit,maxjobs,maxsubmit,maxwall,cluster,par\n"
        "entname,grptresmins,grptresrunmins,maxtresmins,grpwall\n",
        "\x1b[?2004hsacctmgr: show qos format=name\r\n",
    ],
)
def test_the_echo_of_a_question_is_no_record(echo: str) -> None:
    assert parse_sacctmgr(f"{echo}{SACCTMGR}sacctmgr: \n") == parse_sacctmgr(SACCTMGR)


def test_live_use_of_everybody_and_of_each() -> None:
    found = parse_assoc_mgr(ASSOC_MGR, users={"1001": "ada"})
    assert list(found) == [
        "QOS clive", "user 1002 on QOS clive", "ada on QOS clive", "user others on QOS clive",
        "account clive on QOS clive", "account others on QOS clive",
    ]  # fmt: skip
    clive = found["QOS clive"]
    assert clive.limit == {
        "cpu": 40, "mem": 831_488, "gres/gpu": 3, "cpu/min": 60, WALL: 20, "submit": 50,
    }  # fmt: skip
    assert clive.used == {
        "cpu": 56, "mem": 385_024, "energy": 0, "node": 2, "gres/gpu": 3, "jobs": 4, "submit": 8,
        # what running jobs may still take is among it
        "cpu/min": 66, "cpu/min/spent": 26, "cpu/min/running": 40,
        "mem/min": 0, "mem/min/spent": 0, "mem/min/running": 0, "node/min/running": 5,
        WALL: 6, f"{WALL}/spent": 1, f"{WALL}/running": 5,
    }  # fmt: skip
    of_ada = found["ada on QOS clive"]
    assert of_ada.used == {"cpu": 16, "mem": 98_304, "gres/gpu": 2, "jobs": 2}
    assert of_ada.limit == {"cpu": 64, "gres/gpu": 2, "jobs": 9}
    assert found["user 1002 on QOS clive"].used["jobs"] == 2
    assert found["account clive on QOS clive"].used == {"cpu": 56, "jobs": 4}


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


def test_partitions_and_licences() -> None:
    text = (
        "PartitionName=gpu AllowAccounts=clive,maigan AllowQos=ALL Default=NO QoS=gpu-qos"
        f" MaxTime=2-12:00:00 State=UP TRES=cpu=112,mem=2000000M,node=1,gres/gpu=8{PARTITION}"
        "PartitionName=cpu AllowAccounts=ALL Default=YES QoS=N/A MaxTime=UNLIMITED State=DOWN"
        f" TRES=cpu=256,mem=2T{PARTITION}"
    )
    gpu, cpu = parse_partitions(text)
    assert (gpu.qos, gpu.max_time_min, gpu.tres["gres/gpu"]) == ("gpu-qos", 3600, 8)
    assert (gpu.allow_accounts, gpu.up, gpu.default) == (("clive", "maigan"), True, False)
    assert (cpu.qos, cpu.max_time_min, cpu.up, cpu.default) == (None, None, False, True)
    assert (cpu.allow_accounts, cpu.whole_nodes) == (None, False)
    for old, new in (
        ("OverSubscribe=NO", "OverSubscribe=EXCLUSIVE"),
        ("ExclusiveUser=NO", "Exclusive=NODE"),
    ):  # of 26.05
        assert [p.whole_nodes for p in parse_partitions(text.replace(old, new))] == [True, True]

    text = "LicenseName=matlab Total=4 Used=1 Free=3 Reserved=0 Remote=no\n"
    assert parse_licences(text) == {"matlab": 4}
    assert parse_licences("No licenses configured in Slurm.") == {}


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
    parse_tres_usage(text)
    assert (parse_minutes(text) or 0) >= 0


# Nodes

NODE_LINE = (
    "NodeName=b1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=8 CPUEfctv=112 CPUTot=112 CPULoad=0.1"
    " AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:b200:8 NodeAddr=b1 Port=7001"
    " GresUsed=gpu:b200:3(IDX:0-1,7)"
    " RealMemory=2000000 AllocMem=180000 FreeMem=9 Sockets=112 State={state} ThreadsPerCore=1"
    " Partitions=hpg-b200,hpg-all Owner=N/A CfgTRES=cpu=112,mem=2000000M,billing=112{gpus}"
    " AllocTRES=cpu=8,mem=180000M{used} CapWatts=n/a Comment=(null)\n"
)
JOB = {"cpu": 8, "mem": 180_000, "gres/gpu": 1}


def node(state: str = "MIXED") -> Node:
    (found,) = parse_nodes(NODE_LINE.format(state=state, gpus=",gres/gpu=8", used=",gres/gpu=1"))
    return found


def test_what_is_free_is_what_nobody_holds() -> None:
    found = node()
    assert (found.name, found.partitions, found.up) == ("b1", ("hpg-b200", "hpg-all"), True)
    assert found.free == {"cpu": 104, "mem": 1_820_000, "billing": 112, "gres/gpu": 7}
    assert (found.room(JOB, now=True), found.room(JOB, now=False)) == (7, 8)
    assert (found.room({"cpu": 50}, now=True), found.room({"cpu": 113}, now=False)) == (2, 0)


@pytest.mark.parametrize(
    ("states", "room"),
    [
        ("IDLE MIXED ALLOCATED IDLE+CLOUD COMPLETING IDLE+CLOUD+POWERED_DOWN IDLE~ "
         "MIXED+REBOOT_REQUESTED IDLE+PLANNED", 8),
        ("DOWN DOWN* IDLE+DRAIN MIXED+DRAIN IDLE* FAIL UNKNOWN REBOOT_ISSUED "
         "MIXED+DRAIN+REBOOT_REQUESTED DOWN+CLOUD+POWERED_DOWN", 0),
    ],
)  # fmt: skip
def test_a_node_that_takes_no_jobs_has_no_room(states: str, room: int) -> None:
    for found in map(node, states.split()):
        assert (found.up, found.room(JOB, now=False)) == (room > 0, room), states
        assert bool(found.room(JOB, now=True)) == found.up
        assert not found.reserved
    assert all(node(state).reserved for state in ("MAINT", "IDLE+MAINTENANCE+RESERVED"))
    for state in ("IDLE+POWERING_DOWN", "MIXED+POWER_DOWN", "IDLE+BLOCKED"):
        assert (node(state).room(JOB, now=True), node(state).room(JOB, now=False)) == (0, 8)


def test_what_a_node_is_and_whose_it_is() -> None:
    line = NODE_LINE.replace("ActiveFeatures=(null)", "ActiveFeatures=avx,ib")
    line = line.format(state="MIXED", gpus="", used="").replace(" Port=", " Owner=ada(1001) Port=")
    (found,) = parse_nodes(line)
    assert (found.features, found.gpu_types, found.owner) == (("avx", "ib"), ("b200",), "ada")
    assert open_to("ada", [found]) == [found]
    (closed,) = open_to("ben", [found])
    assert (closed.room(JOB, now=True), closed.room(JOB, now=False)) == (0, 8)
    assert node().owner == ""
    assert open_to("ben", [node()]) == [node()]


def test_gpus_that_slurm_does_not_count_are_known_by_gres() -> None:
    line = NODE_LINE.format(state="MIXED", gpus="", used="")
    (found,) = parse_nodes(line)
    assert (found.total["gres/gpu"], found.free["gres/gpu"]) == (8, 5)
    with pytest.raises(UnreadableError, match="without GresUsed"):
        parse_nodes(line.replace("GresUsed", "Gone"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("c1", "c1"),
        ("c[1-3],b1", "c1 c2 c3 b1"),
        ("c[08-10,12]-ib", "c08-ib c09-ib c10-ib c12-ib"),
        ("(null)", ""),
        ("", ""),
    ],
)
def test_the_short_form_of_nodes(text: str, names: str) -> None:
    assert node_names(text) == names.split()


@pytest.mark.parametrize(
    ("said", "free_min"),
    [  # as Slurm 22.05 shows what was asked for by name, by NodeCnt, and by CoreCnt either way
        ("NodeCnt=1 CoreCnt=112 Features=(null) Flags=SPEC_NODES TRES=cpu=112", 10),
        ("NodeCnt=1 CoreCnt=112 Features=(null) Flags= TRES=cpu=112", 10),
        ("NodeCnt=1 CoreCnt=4 Flags=SPEC_NODES   NodeName=b1 CoreIDs=0-3 TRES=cpu=4", None),
        ("NodeCnt=1 CoreCnt=4 Features=(null) Flags= TRES=cpu=4", None),
    ],
)
def test_a_reservation_counts_where_it_takes_whole_nodes(said: str, free_min: int | None) -> None:
    times = "StartTime=2026-11-25T04:30:44 EndTime=2026-11-25T05:30:44"
    text = f"ReservationName=r {times} Nodes=b1 {said}\n"
    (found,) = parse_reservations(text)
    nodes = parse_nodes(NODE_LINE.format(state="IDLE", gpus="", used=""))
    (node,) = before_reservations(nodes, [found], found.start_s - 600)
    assert node.free_min == free_min
    (begun,) = before_reservations(nodes, [found], found.start_s + 600)
    assert (begun.free_min, begun.reservations) == (None, {"r": (-10, 50)})  # its state says more


@given(st.text(alphabet="c[]-,0123456789 ()", max_size=30))
def test_any_text_gives_names_of_nodes_or_nothing(text: str) -> None:
    assert all(node_names(text))
    with contextlib.suppress(UnreadableError):
        parse_reservations(text)


def test_words_in_a_reason_are_no_fields() -> None:
    line = (
        "NodeName=c1 Gres=(null) State=IDLE+DRAIN Owner=N/A ActiveFeatures=(null) Partitions=cpu "
        "CfgTRES=cpu=8,mem=10G "
        "AllocTRES=cpu=2 Reason=set State=IDLE Partitions=gpu CfgTRES=cpu=99 Owner=bob(7) [root@x]"
    )
    (node,) = parse_nodes(line)
    assert (node.up, node.partitions) == (False, ("cpu",))
    assert node.total["cpu"] == 8
    assert node.owner == ""
