"""Running jobs that begin anew on GPUs, on recorded answers of Slurm."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tilewright.placement.anew import begin_anew

from tests.test_capacity import Rules
from tests.test_slurm_jobs import details
from tests.test_stale import queue_line
from tests.test_survey import PARTITIONS, Recorded, client
from tilewright.placement.cluster import Cluster, survey
from tilewright.placement.dispatcher import Dispatcher
from tilewright.placement.jobs import Past, Place, Shape, Task
from tilewright.placement.ledger import Ledger, read_ledger
from tilewright.placement.routing import Plan
from tilewright.placement.site import Site
from tilewright.slurm.query import Unknown

NOON_S = time.mktime(time.strptime("2026-11-21T12:00:00", "%Y-%m-%dT%H:%M:%S"))
GPU, CPU = Shape(8, 100, 1, 6000), Shape(8, 50, 0, 6000)
LIMITS = """\
clive|ada||clive|clive||||||||
clive|cpu=104,gres/gpu=1,mem=812G||||||||
"""
USE = (
    "QOS=clive(2) GrpJobs=N(4) GrpSubmitJobs=N(4) GrpTRES=cpu=104(32),mem=831488(200),gres/gpu=1(0)"
    " User Limits= 1001={MaxJobsPU=N(4) MaxTRESPU=cpu=N(32),mem=N(200),gres/gpu=N(0)}\n"
)


class Four(Recorded):
    """Four jobs run on CPUs since five minutes; those that are cancelled have ended."""

    start = "2026-11-21T12:00:30"
    pending = ""

    def __call__(self, argv: Sequence[str], stdin: str | None = None) -> str | Unknown:
        if argv[0] == "scancel":
            self.asked += [word for word in argv if word.isdigit()]
            return ""
        if argv[0] == "sbatch":
            self.asked.append(" ".join(argv))
            return f"sbatch: Job 31 to start at {self.start} using 8 processors on nodes g1\n"
        if "job" in argv:
            return details("CANCELLED", "None", "0:15", "0:0")
        lines = "\n".join(
            queue_line(
                JobID=str(20 + i),
                State="CANCELLED" if str(20 + i) in self.asked else "RUNNING",
                Account="clive",
                QOS="clive",
                Partition="hpg-default",
                WorkDir="/data/run",
                Comment=f"rule_work_wildcards_{i}",
                StartTime="2026-11-21T11:55:00",
            )
            for i in range(4)
        )
        self.answers["squeue"] = lines + self.pending
        return super().__call__(argv, stdin)


class Watched:
    """A run with those jobs, one free GPU, and a clock."""

    def __init__(self, folder: Path, site: Site = Site()) -> None:  # noqa: B008
        self.now_s = NOON_S
        self.slurm = Four({"sacctmgr": LIMITS, "flags=qos": USE, "partition": PARTITIONS})
        asking = replace(client(self.slurm, folder), run=self.slurm, clock=lambda: self.now_s)
        cluster = Cluster(site, asking, 1001, survey(asking, 1001, site))
        self.ledger = folder / "ledger.jsonl"
        rules = Rules({"work": {"gpu": GPU, "cpu": CPU}}, seconds=20_000.0)
        plan = Plan(rules, cluster=cluster, ledger=self.ledger)
        self.run = Dispatcher(
            cluster, plan, Ledger(self.ledger), "/data/run", clock=lambda: self.now_s
        )
        self.run.load(
            Task(f"rule_work_wildcards_{i}", "work", {"i": i}, ("gpu", "cpu"), nominal_s=20_000.0)
            for i in range(4)
        )
        plan.durations.learn("work", "gpu", 20_000, 4000)
        for task in self.run.tasks.values():
            task.place = Place("clive", None, "hpg-default", "cpu", CPU, "clive_cpu")
            task.sent_s = NOON_S - 300

    def look(self, seconds: float) -> list[str]:
        self.now_s += seconds
        return begin_anew(self.run)


def test_one_gpu_is_for_one_job_until_that_has_begun_anew(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    (moved,) = watched.look(0)
    assert [watched.look(30) for _ in range(3)] == [[], [], []]
    number = moved[-1]
    assert [word for word in watched.slurm.asked if word.isdigit()] == [f"2{number}"]
    (asked,) = (line for line in watched.slurm.asked if line.startswith("sbatch"))
    for option in ("--account=clive", "--ntasks=1", "--cpus-per-task=8", "--mem-per-gpu=100M"):
        assert option in asked
    (line,) = (event for event in read_ledger(watched.ledger) if event["event"] == "move")
    assert (line["job"], line["slurm_id"], line["sooner"]) == (
        moved,
        int(f"2{number}"),
        "clive_gpu",
    )
    assert watched.run.failed(moved).free


def test_what_failed_before_or_waits_for_the_gpu_keeps_running_jobs_where_they_are(
    tmp_path: Path,
) -> None:
    watched = Watched(tmp_path)
    for task in watched.run.tasks.values():
        task.past = Past(causes=("error: DeviceMemoryError: out of memory on the GPU",))
    assert watched.look(0) == []
    for task in watched.run.tasks.values():
        task.past = Past()
    watched.run.load([Task("next", "work", {"i": 9}, ("gpu", "cpu"), nominal_s=20_000.0)])
    watched.run.why_waiting = {"next": "no slot is free"}
    assert watched.look(30) == []
    watched.run.why_waiting = {}
    assert len(watched.look(30)) == 1


@pytest.mark.parametrize("start", ["2026-11-21T15:00:00", "Unknown"])
def test_room_in_an_account_is_no_idle_gpu(tmp_path: Path, start: str) -> None:
    watched = Watched(tmp_path)
    watched.slurm.start = start
    assert watched.look(0) == []
    assert any(line.startswith("sbatch") for line in watched.slurm.asked)


def test_nothing_is_moved_while_an_own_job_pends_for_a_gpu(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    first = watched.run.tasks["rule_work_wildcards_0"]
    first.place = Place("clive", None, "hpg-b200", "gpu", GPU, "clive_gpu")
    watched.slurm.pending = "\n" + queue_line(
        JobID="90", State="PENDING", WorkDir="/data/run", Comment=first.name, Reason="Priority"
    )
    assert watched.look(0) == []


def test_nothing_is_moved_on_a_guess_of_how_long_a_gpu_takes(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.run.plan.durations._seen.clear()
    assert watched.look(0) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_a_site_may_keep_running_jobs(tmp_path: Path, *, restarts: bool) -> None:
    assert bool(Watched(tmp_path, Site(restarts=restarts)).look(0)) == restarts
