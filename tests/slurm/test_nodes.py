"""Nodes as scontrol of Slurm 22.05 shows them, and what fits on them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_scheduler_plugin_tilewright.slurm.nodes import (
    Node,
    before_reservations,
    node_names,
    open_to,
    parse_nodes,
    parse_reservations,
    placed,
)
from snakemake_scheduler_plugin_tilewright.slurm.parse import Unreadable

LINE = (
    "NodeName=b1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=8 CPUEfctv=112 CPUTot=112 CPULoad=0.1"
    " AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:b200:8 NodeAddr=b1 Port=7001"
    " RealMemory=2000000 AllocMem=180000 FreeMem=9 Sockets=112 State={state} ThreadsPerCore=1"
    " Partitions=hpg-b200,hpg-all CfgTRES=cpu=112,mem=2000000M,billing=112{gpus}"
    " AllocTRES=cpu=8,mem=180000M{used} CapWatts=n/a Comment=(null)\n"
)
JOB = {"cpu": 8, "mem": 180_000, "gres/gpu": 1}


def node(state: str = "MIXED") -> Node:
    (found,) = parse_nodes(LINE.format(state=state, gpus=",gres/gpu=8", used=",gres/gpu=1"))
    return found


def test_what_is_free_is_what_nobody_holds() -> None:
    found = node()
    assert (found.name, found.partitions, found.up) == ("b1", ("hpg-b200", "hpg-all"), True)
    assert found.free == {"cpu": 104, "mem": 1_820_000, "billing": 112, "gres/gpu": 7}
    assert found.room(JOB, now=True) == 7
    assert found.room(JOB, now=False) == 8
    assert found.room({"cpu": 50}, now=True) == 2
    assert found.room({"cpu": 113}, now=False) == 0


@pytest.mark.parametrize(
    "state",
    ["DOWN", "DOWN*", "IDLE+DRAIN", "MIXED+DRAIN", "IDLE*", "FAIL", "MAINT", "IDLE+RESERVED",
     "IDLE+MAINTENANCE+RESERVED", "REBOOT_ISSUED", "UNKNOWN", "IDLE+POWERING_DOWN",
     "DOWN+CLOUD+POWERED_DOWN"],
)  # fmt: skip
def test_a_node_that_takes_no_jobs_has_no_room(state: str) -> None:
    assert not node(state).up
    assert (node(state).room(JOB, now=True), node(state).room(JOB, now=False)) == (0, 0)


@pytest.mark.parametrize(
    "state",
    ["IDLE", "MIXED", "ALLOCATED", "IDLE+CLOUD", "COMPLETING", "IDLE+CLOUD+POWERED_DOWN", "IDLE~"],
)
def test_a_node_that_is_up_has(state: str) -> None:
    assert node(state).room(JOB, now=False) == 8


def test_what_a_node_is_and_whose_it_is() -> None:
    line = LINE.replace("ActiveFeatures=(null)", "ActiveFeatures=avx,ib")
    line = line.format(state="MIXED", gpus="", used="").replace(" Port=", " Owner=ada(1001) Port=")
    (found,) = parse_nodes(line)
    assert (found.features, found.gpu_types, found.owner) == (("avx", "ib"), ("b200",), "ada")
    assert open_to("ada", [found]) == [found]
    (closed,) = open_to("ben", [found])
    assert (closed.room(JOB, now=True), closed.room(JOB, now=False)) == (0, 8)
    assert node().owner == ""
    assert open_to("ben", [node()]) == [node()]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("c1", ["c1"]),
        ("c[1-3],b1", ["c1", "c2", "c3", "b1"]),
        ("c[08-10,12]-ib", ["c08-ib", "c09-ib", "c10-ib", "c12-ib"]),
        ("(null)", []),
        ("", []),
    ],
)
def test_the_short_form_of_nodes(text: str, names: list[str]) -> None:
    assert node_names(text) == names


def test_reservations_of_whole_nodes() -> None:
    text = (
        "ReservationName=m StartTime=2026-11-24T20:27:49 EndTime=2026-11-24T21:27:49"
        " Duration=01:00:00 Nodes=c[1-2] NodeCnt=2 CoreCnt=256 Flags=MAINT,SPEC_NODES\n"
    )
    (found,) = parse_reservations(text)
    assert found.nodes == ("c1", "c2")
    assert parse_reservations("No reservations in the system") == []
    c1 = Node("c1", ("c",), True, "IDLE", {}, {})
    (soon,) = before_reservations([c1], [found], found.start_s - 150)
    assert soon.free_min == 2
    assert before_reservations([c1], [found], found.start_s + 1) == [c1]  # its state says so


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
    text = f"ReservationName=r StartTime=2026-11-25T04:30:44 Duration=01:00:00 Nodes=b1 {said}\n"
    (found,) = parse_reservations(text)
    nodes = parse_nodes(LINE.format(state="IDLE", gpus="", used=""))
    (node,) = before_reservations(nodes, [found], found.start_s - 600)
    assert node.free_min == free_min


@given(st.text(alphabet="c[]-,0123456789 ()", max_size=30))
def test_any_text_gives_names_or_nothing(text: str) -> None:
    assert all(node_names(text))
    with contextlib.suppress(Unreadable):
        parse_reservations(text)


def test_gpus_that_slurm_does_not_count_are_all_taken_to_be_free() -> None:
    (found,) = parse_nodes(LINE.format(state="IDLE", gpus="", used=""))
    assert found.total["gres/gpu"] == found.free["gres/gpu"] == 8


def test_lines_that_are_no_nodes_are_not_passed_over() -> None:
    for text in ("", "slurm_load_node error", "NodeName=x State=IDLE", "NodeName=y CfgTRES=cpu=1"):
        with pytest.raises(Unreadable):
            parse_nodes(text)


def test_a_job_goes_to_the_fullest_node_that_holds_it() -> None:
    full, empty = node(), Node("b2", ("hpg-b200",), True, "IDLE", dict(node().total), {**JOB})
    after = placed([full, empty], "hpg-b200", JOB)
    assert [one.room(JOB, now=True) for one in after] == [7, 0]
    assert placed(after, "hpg-b200", {"cpu": 999}) == after
    assert placed(after, None, JOB) == after
    assert [n.room(JOB, now=True) for n in placed(after, "hpg-b200", JOB)] == [6, 0]
    assert placed([full, empty], "hpg-b200", JOB, ["b3"]) == [full, empty]


def test_words_in_a_reason_are_no_fields() -> None:
    line = (
        "NodeName=c1 Gres=(null) State=IDLE+DRAIN Owner=N/A Partitions=cpu CfgTRES=cpu=8,mem=10G "
        "AllocTRES=cpu=2 Reason=set State=IDLE Partitions=gpu CfgTRES=cpu=99 Owner=bob(7) [root@x]"
    )
    (node,) = parse_nodes(line)
    assert (node.state, node.up, node.partitions) == ("IDLE+DRAIN", False, ("cpu",))
    assert node.total["cpu"] == 8
    assert node.owner == ""
