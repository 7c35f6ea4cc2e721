"""Words of newer releases, limits that placement does not count, and options in the environment."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.on_slurm.labmates import running
from tests.support.cluster_runs import ClusterRun, dump
from tests.support.slurm_cluster import Cluster
from tests.support.slurm_fixtures import AT_NIGHT

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800), AT_NIGHT]

#: A stand-in that says what Slurm 23.02 and newer say of the users of a QOS.
NEWER = """\
#!/bin/bash
set -o pipefail
{scontrol} "$@" | sed -E 's/(Limits=|\\}}) ([0-9]+)=\\{{/\\1 user(\\2)={{/g'
"""


@pytest.fixture
def limited(quiet_slurm: Cluster) -> Iterator[Cluster]:
    yield quiet_slurm
    quiet_slurm.cancel_all()
    quiet_slurm.restore_limits()


@pytest.mark.parametrize("words", ["own", "newer"])
def test_what_a_user_runs_besides_counts_in_the_words_of_each_release(
    words: str, limited: Cluster, tmp_path: Path
) -> None:
    limited.set_qos("clive", "MaxTRESPerUser=cpu=16", "MaxJobsPerUser=9")
    own = limited.sbatch("root", "-A", "clive", "-c", "16", "--mem=1G", command="sleep 900")
    running(limited, own)
    run = ClusterRun(limited, tmp_path)
    run.prepare(jobs=6, seconds="9,10", site={"patience_s": 20, "slowdown": 1.1})
    if words == "newer":
        standin = tmp_path / "bin/scontrol"
        standin.parent.mkdir()
        standin.write_text(NEWER.format(scontrol=shutil.which("scontrol")))
        standin.chmod(0o755)
        run.env["PATH"] = f"{standin.parent}:{os.environ['PATH']}"
    took_s = run.run()
    run.check_outputs(set(range(6)))
    sys.stderr.write(f"{words} words: {took_s:.0f} s, moves {run.moves().total()}\n")
    placed = [event["account"] for event in run.events if event["event"] == "place"]
    assert Counter(placed) == {"maigan": 6}, dump(run.events)
    assert not run.moves()
    assert "is a lower bound" not in run.log


def test_jobs_that_pend_for_a_limit_that_is_not_counted_go_elsewhere(
    limited: Cluster, tmp_path: Path
) -> None:
    limited.set_qos("clive", "GrpTRES=billing=8")
    run = ClusterRun(limited, tmp_path)
    run.prepare(jobs=6, seconds="9,10", site={"patience_s": 8, "slowdown": 1.1})
    try:
        took_s = run.run()
    finally:
        limited.set_qos("clive", "GrpTRES=billing=-1")
    run.check_outputs(set(range(6)))
    moves = [event for event in run.events if event["event"] == "move"]
    sys.stderr.write(f"billing: {took_s:.0f} s, moves {len(moves)}\n")
    assert moves
    assert {event["reason"].split(" on ")[0] for event in moves} == {"QOSGrpBilling"}
    assert max(run.moves().values()) == 1
    assert "a reservation may be in the way" not in run.log
    assert {job.account for job in run.jobs() if job.state == "COMPLETED"} == {"clive", "maigan"}


def test_options_in_the_environment_change_no_run(limited: Cluster, tmp_path: Path) -> None:
    run = ClusterRun(limited, tmp_path)
    run.env |= {"SBATCH_QOS": "clive-b", "SBATCH_ACCOUNT": "brusko", "SBATCH_TIMELIMIT": "1"}
    run.env |= {"SQUEUE_ACCOUNT": "brusko", "SQUEUE_PARTITION": "none", "SACCT_FORMAT": "User"}
    run.prepare(jobs=8, seconds="3,4")
    took_s = run.run()
    run.check_outputs(set(range(8)))
    sys.stderr.write(f"options: {took_s:.0f} s\n")
    jobs = run.jobs()
    assert {job.qos for job in jobs} <= {"clive", "maigan"}, jobs
    assert all(job.qos == job.account for job in jobs), jobs
    names = "SACCT_FORMAT, SBATCH_ACCOUNT, SBATCH_QOS, SBATCH_TIMELIMIT, SQUEUE_ACCOUNT"
    assert run.log.count(f"this run takes {names}, SQUEUE_PARTITION out of its environment") == 1


def test_rules_of_a_module_are_placed_by_their_sizes(limited: Cluster, tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(
        f"module images:\n    snakefile: '{REPO}/tests/support/sleepers/Snakefile'\n"
        "    config: config\nuse rule * from images as images_*\n"
    )
    run = ClusterRun(limited, tmp_path).prepare(jobs=12, seconds="9,10", site={"slowdown": 1.1})
    run.snakefile, run.targets = tmp_path / "Snakefile", ("images_all",)
    took_s = run.run()
    run.check_outputs(set(range(12)))
    sys.stderr.write(f"module: {took_s:.0f} s, {dict(run.placed())}\n")
    jobs = {job.comment: job for job in run.check_placed({"clive", "maigan"})}
    places = {event["job"]: event for event in run.events if event["event"] == "place"}
    assert places.keys() == {f"rule_images_work_wildcards_{i}" for i in range(12)}
    for name, place in places.items():
        asked = (jobs[name].account, jobs[name].gpus, jobs[name].cpus, jobs[name].mem_mb)
        mem_mb = {"gpu": 180_000, "cpu": 48_000}[place["kind"]]
        assert asked == (place["account"], int(place["kind"] == "gpu"), 8, mem_mb), dump(run.events)
    assert len({place["pool"] for place in places.values()}) > 2
