"""Troubles of a real cluster, each beside the same run that is never offered the bad place.

``python -m benchmarks.situations [--only budget] [--repeats 3]``, as root, on a private Slurm
cluster that it brings up. The bar is a ratio of 1.15 with no job in the bad place and none lost.
All nodes share this machine's cores: how long a job took on average tells how much of a difference
between two runs is theirs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import yaml

from tests.on_slurm.labmates import hold_the_gpus_of
from tests.support.cluster_runs import ClusterRun, foreign
from tests.support.site_limits import LIMITS, Limit
from tests.support.slurm_cluster import Cluster

NONE = Limit("")
BAD, GOOD = "clive", "maigan"
#: Two rounds of the slots of GOOD: two on GPUs, one on CPUs. A job takes 6 CPU-seconds to start, so
#: on two cores equal runs differed by half until each job's seconds counted from its start.
JOBS: dict[str, Any] = {
    "jobs": 6,
    "seconds": "60,61",
    "nominal_s": 60,
    "cpu_job": {"cpus": 32, "mem_mb": 48_000},
    "faults": {str(i): "paced" for i in range(6)},
}
SLURM = ("sbatch", "squeue", "scontrol", "sacctmgr", "sacct", "scancel", "sinfo")
#: By then the jobs of ``cut`` pend.
CUT_S = 30.0
#: Every ``{nth}``-th call of a command goes wrong.
NTH = """\
echo >> "{calls}"
if [ $(($(wc -l < "{calls}") % {nth})) -eq 0 ]; then
    {wrong}
fi
exec {real} "$@"
"""
TIMED_OUT = """{real} "$@" > /dev/null
    echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv" >&2
    exit 1"""
UNREACHED = """echo "{name}: error: Unable to contact slurm controller (connect failure)" >&2
    exit 1"""
WARNED = 'echo "warning: | maintenance | on Friday |"\nexec {real} "$@"\n'


@dataclass(frozen=True)
class Situation:
    """What is wrong, how the run goes that meets it, and what 6682145 made of it.

    Attributes
    ----------
    was : str
    limit : Limit
        Set before the run, in both.
    prepare : callable
        Takes cluster, folder and whether the bad place is offered.
    during : callable or None
        Happens while the run goes, in both.
    bad_from_s : float
        Seconds from which the bad account is bad.
    bad : str
        An account, empty where no place is bad.
    """

    was: str
    prepare: Callable[[Cluster, Path, bool], ClusterRun]
    limit: Limit = NONE
    during: Callable[[ClusterRun], None] | None = None
    bad_from_s: float = 0.0
    bad: str = BAD


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    seconds: float
    moves: int
    bad: int
    lost: int
    job_s: float


def sleepers(slurm: Cluster, folder: Path, offered: bool, **of: Any) -> ClusterRun:
    """Return a run of jobs that may use either device, on both accounts or on the good one."""
    site = {"allowed": [BAD, GOOD] if offered else [GOOD], "slowdown": 1.1, **of.pop("site", {})}
    return ClusterRun(slurm, folder).prepare(site=site, **{**JOBS, **of})


def by_default(*targets: str) -> Callable[[Cluster, Path, bool], ClusterRun]:
    """Return runs of targets of ``features`` whose default account is not allowed, or is."""

    def prepare(slurm: Cluster, folder: Path, offered: bool) -> ClusterRun:
        set_default(slurm, BAD if offered else GOOD)
        run = foreign(slurm, folder, "features", {"allowed": [GOOD, "brusko"]})
        run.targets = targets
        return run

    return prepare


def set_default(slurm: Cluster, account: str) -> None:
    """Make an account the one that jobs go to which name none."""
    mine = ["sacctmgr", "-i", "modify", "user", "where", "name=root", "set"]
    slurm.run([*mine, f"defaultaccount={account}"])


def cut(slurm: Cluster, folder: Path, offered: bool) -> ClusterRun:
    """Return a run of three GPU jobs that will pend, and of none for CPUs."""
    hold_the_gpus_of(slurm, GOOD)
    able = {"cpus": 8, "mem_mb": 180_000, "runtime_min": 5}
    return sleepers(slurm, folder, offered, jobs=3, seconds="45,45", gpu_job=able,
                    cpu_job={**able, "cpus": 129}, site={"patience_s": 4})  # fmt: skip


def cut_and_let_go(run: ClusterRun) -> None:
    """Cut the bad account's longest job below those that pend, then end the labmates' jobs."""
    time.sleep(CUT_S)
    run.slurm.set_qos(BAD, "MaxWall=1")
    time.sleep(CUT_S)
    run.slurm.run(["scancel", "-u", "labmate"])


def short_partition(slurm: Cluster, folder: Path, offered: bool) -> ClusterRun:
    """Return a run whose jobs ask for more minutes than the GPU partition takes, or have none."""
    slurm.run(["scontrol", "update", "PartitionName=hpg-b200", "MaxTime=2"])
    gpu = "hpg-b200" if offered else "none"
    return sleepers(slurm, folder, True, site={"partitions": {"gpu": gpu, "cpu": "hpg-default"}})


def moody(text: str, *names: str) -> Callable[[Cluster, Path, bool], ClusterRun]:
    """Return runs that find other texts behind Slurm's commands, or these themselves."""

    def prepare(slurm: Cluster, folder: Path, offered: bool) -> ClusterRun:
        run = sleepers(slurm, folder, True)
        tools = folder / "tools"
        tools.mkdir()
        for name in names if offered else ():
            filled = text.format(name=name, real=shutil.which(name), calls=folder / "calls")
            (tools / name).write_text(f"#!/bin/sh\n{filled}")
            (tools / name).chmod(0o755)
        run.env["PATH"] = f"{tools}:{os.environ['PATH']}"
        return run

    return prepare


def named(name: str) -> Limit:
    """Return a limit of the tests."""
    return next(limit for limit in LIMITS if limit.name == name)


SITUATIONS = {
    "checkpoint": Situation(
        "jobs of a checkpoint went to the default account, unplaced",
        by_default("checkpoint/joined.txt"),
    ),
    "groups": Situation(
        "groups and pipes went to the default account",
        by_default("group/x.sorted", "group/y.sorted", "pipe/read.txt"),
    ),
    "budget": Situation("to and fro in the account, then waiting", sleepers, named("budget")),
    "deny-accounts": Situation("jobs pended for ever", sleepers, named("deny-accounts")),
    "exclusive": Situation("jobs pended for ever", sleepers, named("exclusive")),
    "given-up": Situation(
        "a job given up while its other account was busy", cut, NONE, cut_and_let_go, CUT_S
    ),
    "allow-qos": Situation("right", sleepers, named("allow-qos")),
    "job-budget": Situation("right", sleepers, named("job-budget")),
    "short-partition": Situation("right", short_partition, bad=""),
    "timed-out": Situation(
        "right", moody(NTH.replace("{nth}", "3").replace("{wrong}", TIMED_OUT), "sbatch"), bad=""
    ),
    "failing": Situation(
        "right", moody(NTH.replace("{nth}", "5").replace("{wrong}", UNREACHED), *SLURM), bad=""
    ),
    "warnings": Situation("right", moody(WARNED, *SLURM), bad=""),
}


def play(slurm: Cluster, situation: Situation, folder: Path, offered: bool) -> Outcome:
    """Run once and leave the cluster as it was."""
    slurm.repair()
    folder.mkdir()
    situation.limit.set(slurm)
    try:
        run = situation.prepare(slurm, folder, offered)
        began_s, began = time.time(), time.monotonic()
        process = run.start()
        if situation.during:
            situation.during(run)
        run.finish(process, 900)
        return outcome(run, situation, began_s, time.monotonic() - began)
    finally:
        situation.limit.take_back(slurm)
        slurm.run(["scontrol", "update", "PartitionName=hpg-b200", "MaxTime=31-00:00:00"])
        set_default(slurm, BAD)


def outcome(run: ClusterRun, situation: Situation, began_s: float, seconds: float) -> Outcome:
    """Count what a run did."""
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    outputs = run.targets or [f"out/{i}.txt" for i in range(config["jobs"])]
    bad_s = began_s + situation.bad_from_s
    bad = [j for j in run.jobs() if j.account == situation.bad and (j.submit or 0) >= bad_s]
    lost = sum(not (run.folder / path).is_file() for path in outputs)
    lengths = [e["end_s"] - e["start_s"] for e in run.events if e["event"] == "done"]
    return Outcome(seconds, run.moves().total(), len(bad), lost, mean(lengths))


def row(name: str, offered: list[Outcome], never: list[Outcome]) -> str:
    """Return a line of the table: medians of seconds, sums of all that was counted."""
    with_s, without_s = (median(run.seconds for run in runs) for runs in (offered, never))
    job_s = [mean(run.job_s for run in runs) for runs in (offered, never)]
    moves, bad, lost = (
        sum(getattr(run, what) for run in offered) for what in ("moves", "bad", "lost")
    )
    return (
        f"| {name} | {SITUATIONS[name].was} | {with_s:.0f} s | {without_s:.0f} s "
        f"| {with_s / without_s:.2f} | {job_s[0]:.0f}, {job_s[1]:.0f} s | {moves} "
        f"| {bad if SITUATIONS[name].bad else '-'} | {lost} |"
    )


def main() -> None:
    """Run each situation both ways, in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(SITUATIONS), action="append")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for logs and ledgers")
    options = parser.parse_args()
    print("| situation | at 6682145 | offered | never | ratio | a job took | moves "
          "| in the bad place | lost |")  # fmt: skip
    print("|---" * 9 + "|", flush=True)
    with Cluster() as slurm, tempfile.TemporaryDirectory() as scratch:
        for name in options.only or SITUATIONS:
            outcomes: dict[bool, list[Outcome]] = {True: [], False: []}
            for i in range(options.repeats):
                for offered, found in outcomes.items():
                    folder = (options.keep or Path(scratch)) / f"{name}-{i}-{offered}"
                    found.append(play(slurm, SITUATIONS[name], folder, offered))
            print(row(name, outcomes[True], outcomes[False]), flush=True)


if __name__ == "__main__":
    main()
