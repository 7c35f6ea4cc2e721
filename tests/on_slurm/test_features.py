"""What a workflow may hold and a command may ask for: each is placed, on a real cluster.

The user's default account, clive, is not allowed: a job that placement misses would go there.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.on_slurm.labmates import running
from tests.support.cluster_runs import dump, foreign, rule_of
from tests.support.features import FEATURES
from tests.support.slurm_cluster import Cluster, Job, wait_for

pytestmark = pytest.mark.slurm

ALLOWED = {"maigan", "brusko"}
SETTINGS: dict[str, object] = {"accounts": ",".join(sorted(ALLOWED))}
JOBS = {rule: jobs for feature in FEATURES for rule, jobs in feature.jobs.items()}


@pytest.fixture
def featured(quiet_slurm: Cluster) -> Iterator[Cluster]:
    """The cluster with a node that has a feature."""
    quiet_slurm.update("NodeName=c2", "AvailableFeatures=big", "ActiveFeatures=big")
    yield quiet_slurm
    quiet_slurm.update("NodeName=c2", "AvailableFeatures=", "ActiveFeatures=")


def rules(jobs: list[Job]) -> Counter[str]:
    return Counter(map(rule_of, jobs))


def test_checkpoints_groups_pipes_and_gpus(quiet_slurm: Cluster, tmp_path: Path) -> None:
    run = foreign(quiet_slurm, tmp_path, "features", SETTINGS)
    run.targets = ("checkpoint/joined.txt", "group/x.sorted", "pipe/read.txt", "gpu/gpu.txt")
    run.run(timeout_s=600)
    some = ("parts", "part", "joined", "alignment_mapped_sorted", "read_write", "gpu")
    jobs = run.check_placed(ALLOWED)
    assert rules(jobs) == {rule: JOBS[rule] for rule in some}, dump(run.events)
    assert {job.partition for job in jobs if job.gpus} == {"hpg-b200"}


@pytest.mark.long
def test_what_a_workflow_may_hold(featured: Cluster, tmp_path: Path) -> None:
    run = foreign(featured, tmp_path, "features", SETTINGS)
    groups = ["--groups", "included=loose", "other_greeting=loose", "--group-components"]
    run.run(*groups, "alignment=2", "loose=2", timeout_s=600)
    jobs = run.check_placed(ALLOWED)
    assert rules(jobs) == JOBS, dump(run.events)
    by_rule = {rule_of(job): job for job in jobs}

    def asked(rule: str) -> tuple[int, int]:
        return by_rule[rule].cpus, by_rule[rule].mem_mb

    joined = (tmp_path / "checkpoint/joined.txt").read_text().split()
    assert sorted(joined) == ["one", "two"]  # as the file system lists them
    assert asked("alignment_mapped_sorted") == (8, 5000)  # two chains beside each other
    assert (tmp_path / "group/x.sorted").read_text() == "x\n"
    assert asked("loose_included_other_greeting") == (2, 1000)
    assert (tmp_path / "module/greeting.txt").read_text() == "hello\n"
    assert asked("read_write") == (2, 1300)
    assert (tmp_path / "pipe/read.txt").read_text() == "100\n"
    assert (tmp_path / "service/x.txt").read_text() == "3\n"
    assert (tmp_path / "scatter/gathered.txt").read_text() == "begin\n" * 2
    assert (tmp_path / "attempt.txt").read_text() == "2\n"
    assert asked("attempt") == (1, 1200)
    assert (tmp_path / "retried.txt").read_text() == "2\n"  # in the same job of Slurm
    sizes = {job.comment: (job.cpus, job.mem_mb) for job in jobs if rule_of(job) == "wildcard"}
    assert sizes == {
        "rule_wildcard_wildcards_short": (1, 760),
        "rule_wildcard_wildcards_long": (3, 760),
    }
    assert not (tmp_path / "wildcards/long.txt").stat().st_mode & 0o222
    assert not (tmp_path / "temp/made.txt").exists()
    assert (tmp_path / "temp/kept.txt").read_text() == "made\n"
    assert by_rule["account"].account == "brusko"
    assert by_rule["partition"].partition == "hpg-turin"
    assert (by_rule["qos"].qos, by_rule["qos"].account) == ("brusko", "brusko")
    assert (tmp_path / "fixed/constraint.txt").read_text() == "c2\n"
    assert (tmp_path / "fixed/extra.txt").read_text() == "Nice=7\n"
    assert asked("mpi")[0] == 2
    assert (tmp_path / "mpi.txt").read_text() == "rank\n" * 2
    for how in ("gpu", "gres", "model"):
        assert (by_rule[how].gpus, by_rule[how].partition) == (1, "hpg-b200")
        kinds = {e["kind"] for e in run.events if e.get("job") == f"rule_{how}" and "kind" in e}
        assert kinds == {"gpu"}
    assert run.causes() == {"error"}, dump(run.events)  # the first attempt


@pytest.mark.long
def test_a_rule_keeps_its_partition_and_its_minutes(quiet_slurm: Cluster, tmp_path: Path) -> None:
    """One account may not use the default partition, and gives its jobs 30 minutes."""
    quiet_slurm.update("PartitionName=hpg-default", "AllowAccounts=maigan")
    quiet_slurm.set_qos("brusko", "MaxWall=30")
    quiet_slurm.set_qos("maigan", "GrpTRES=cpu=8")
    run = foreign(quiet_slurm, tmp_path, "named", SETTINGS)
    run.run("--retries", "2")
    found: dict[str, set[tuple[str, str]]] = {}
    for job in run.jobs():
        assert job.state == "COMPLETED"
        found.setdefault(rule_of(job), set()).add((job.account, job.partition))
    assert found["long"] == {("maigan", "hpg-default")}, dump(run.events)
    assert ("brusko", "hpg-turin") in found["turin"], dump(run.events)
    assert {partition for _, partition in found["turin"]} == {"hpg-turin"}
    run.check_calm()


@pytest.mark.long
def test_a_group_that_pends_in_vain_is_moved_whole(quiet_slurm: Cluster, tmp_path: Path) -> None:
    """Both accounts are full with others' jobs; that which a group does not wait for falls free."""
    theirs = {
        name: quiet_slurm.sbatch("labmate", "-A", name, "-c", cpus, "--mem=1G", command="sleep 900")
        for name, cpus in (("clive", "104"), ("brusko", "32"))
    }
    running(quiet_slurm, *theirs.values())
    # limits are asked again next to so few looks at the queue
    settings: dict[str, object] = {"accounts": "brusko,clive", "poll-seconds": 8}
    run = foreign(quiet_slurm, tmp_path, "features", settings)
    run.targets = ("group/x.sorted", "group/y.sorted")
    process = run.start("--retries", "0")
    wait_for(lambda: len(run.pending()) == 2, 90, "two groups")
    at, *_ = [event["account"] for event in run.events if event["event"] == "place"]
    (other,) = theirs.keys() - {at}
    quiet_slurm.run(["scancel", str(theirs[other])])
    assert run.finish(process) == 0, run.log[-6000:]
    quiet_slurm.run(["scancel", str(theirs[at])])
    assert run.moves(), dump(run.events)
    ended = {(job.account, job.state, job.cpus) for job in run.jobs()}
    assert ended == {(other, "COMPLETED", 4)}, dump(run.events)
    assert {path.read_text() for path in (tmp_path / "group").glob("*.sorted")} == {"x\n", "y\n"}


@pytest.mark.long
def test_what_a_command_may_ask_for(quiet_slurm: Cluster, tmp_path: Path) -> None:
    """Parts of the workflow one after the other, in one folder."""
    run = foreign(quiet_slurm, tmp_path, "plain", SETTINGS, samples=2, seconds=2)
    run.run("--dry-run")
    assert "map_reads" in run.log
    assert not run.jobs()
    assert not run.events
    given = ["--set-resources", "map_reads:mem_mb=900", "map_reads:runtime=4"]
    given += ["--set-threads", "map_reads=3"]
    given += ["--default-resources", "mem_mb=800", "slurm_extra='--nice=3'"]
    run.run("--until", "map_reads", "--jobs", "unlimited", *given)
    jobs = run.check_placed(ALLOWED)
    assert rules(jobs) == {"map_reads": 2}
    assert {(job.cpus, job.mem_mb) for job in jobs} == {(3, 900)}
    placed = [event for event in run.events if event["event"] == "place"]
    assert {(e["cpus"], e["mem_mb"], e["runtime_min"]) for e in placed} == {(3, 900, 4)}
    assert all("Nice=3" in quiet_slurm.show_job(job.id) for job in jobs)
    run.run("--batch", "merge=1/2")
    jobs = run.check_placed(ALLOWED)
    assert rules(jobs) == {"map_reads": 2, "sort_reads": 1, "call_variants": 1}
    run.run("--omit-from", "merge")
    jobs = run.check_placed(ALLOWED)
    assert rules(jobs) == {"map_reads": 2, "sort_reads": 2, "call_variants": 2}
    run.run("--executor", "local", "--cores", "2")
    assert (tmp_path / "calls/all.vcf").read_text().split() == ["s00", "s01"]
    assert run.check_placed(ALLOWED) == jobs


@pytest.mark.long
def test_environments_and_containers(quiet_slurm: Cluster, tmp_path: Path) -> None:
    prefix, image = tmp_path / "prefix", tmp_path / "image.sif"
    (prefix / "conda-meta").mkdir(parents=True)
    image.touch()
    run = foreign(
        quiet_slurm, tmp_path, "deployment", SETTINGS, prefix=str(prefix), image=str(image)
    )
    run.env["PATH"] = f"{run.snakefile.parent / 'bin'}:{os.environ['PATH']}"
    run.run("--software-deployment-method", "conda", "apptainer")
    assert (tmp_path / "conda.txt").read_text().strip() == str(prefix)
    assert (tmp_path / "container.txt").read_text().strip() == str(image)
    assert rules(run.check_placed(ALLOWED)) == {"conda": 1, "container": 1}
