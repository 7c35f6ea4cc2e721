"""Nodes as scontrol of Slurm 22.05 shows them, and what fits on them."""

from __future__ import annotations

import pytest

from tilewright.slurm.nodes import Node, parse_nodes, placed

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
     "IDLE+MAINTENANCE+RESERVED", "REBOOT_ISSUED", "UNKNOWN"],
)  # fmt: skip
def test_a_node_that_takes_no_jobs_has_no_room(state: str) -> None:
    assert not node(state).up
    assert (node(state).room(JOB, now=True), node(state).room(JOB, now=False)) == (0, 0)


@pytest.mark.parametrize("state", ["IDLE", "MIXED", "ALLOCATED", "IDLE+CLOUD", "COMPLETING"])
def test_a_node_that_is_up_has(state: str) -> None:
    assert node(state).room(JOB, now=False) == 8


def test_gpus_that_slurm_does_not_count_are_all_taken_to_be_free() -> None:
    (found,) = parse_nodes(LINE.format(state="IDLE", gpus="", used=""))
    assert found.total["gres/gpu"] == found.free["gres/gpu"] == 8


def test_lines_that_are_no_nodes_are_left_out() -> None:
    assert parse_nodes("") == parse_nodes("slurm_load_node error\nNodeName=x State=IDLE") == []


def test_a_job_goes_to_the_fullest_node_that_holds_it() -> None:
    full, empty = node(), Node("b2", ("hpg-b200",), True, "IDLE", dict(node().total), {**JOB})
    after = placed([full, empty], "hpg-b200", JOB)
    assert [one.room(JOB, now=True) for one in after] == [7, 0]
    assert placed(after, "hpg-b200", {"cpu": 999}) == after
    assert placed(after, None, JOB) == after
    assert [n.room(JOB, now=True) for n in placed(after, "hpg-b200", JOB)] == [6, 0]
