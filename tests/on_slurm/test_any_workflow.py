"""Workflows that are not tilewright's, placed on the private cluster."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.cluster_runs import AT_NIGHT, PLACEMENT, dump, foreign, rule_of
from tests.support.slurm_cluster import Cluster, wait_for

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize(
    "samples", [2, pytest.param(5, marks=pytest.mark.long), pytest.param(20, marks=AT_NIGHT)]
)
def test_a_workflow_that_never_heard_of_placement(
    quiet_slurm: Cluster, tmp_path: Path, samples: int
) -> None:
    """Three jobs a sample, and one whose account is fixed; somebody fills an account in mid-run."""
    # next to so few looks at the queue, live use is asked again
    run = foreign(quiet_slurm, tmp_path, "plain", {"poll-seconds": 8}, samples=samples)
    run.note_calls("sacctmgr", "scontrol", "squeue")
    fixed = ("merge:slurm_account=maigan", "sort_reads:mem_mb=700")
    # eight at a time leave 500 of clive's 812 GB
    process = run.start("--jobs", "8", "--set-resources", *fixed)
    run.wait_running(2)
    hog = quiet_slurm.sbatch("labmate", "-A", "clive", "-p", "hpg-default", "--mem=500G",
                             command="sleep 3600")  # fmt: skip
    wait_for(lambda: "RUNNING" in quiet_slurm.show_job(hog), 60)
    assert run.finish(process, 600) == 0, run.log[-3000:]
    quiet_slurm.run(["scancel", str(hog)])
    quiet_slurm.wait_job(hog, 60)
    called = (tmp_path / "calls/all.vcf").read_text().split()
    assert called == [f"s{i:02d}" for i in range(samples)]
    run.check_limits(quiet_slurm.job(hog))
    free = [job for job in run.jobs() if rule_of(job) != "merge"]
    assert {job.account for job in free} == {"clive", "maigan"}, dump(run.events)
    began = quiet_slurm.job(hog).start or 0
    later = [job for job in free if job.start and job.start > began]
    # beside it clive has fewer slots than maigan
    most = Counter(job.account for job in later)["maigan"]
    assert most >= max(1, samples // 4), dump(run.events)
    placed = [event for event in run.events if event["event"] == "place"]
    assert {e["account"] for e in placed if e["rule"] == "merge"} == {"maigan"}
    assert {job.account for job in run.jobs() if rule_of(job) == "merge"} == {"maigan"}
    assert {e["mem_mb"] for e in placed if e["rule"] == "sort_reads"} == {700}
    run.check_jobs_ask_nothing()
    assert sum(event["event"] == "done" for event in run.events) == 3 * samples + 1
    assert f"placement: {3 * samples + 1} jobs done" in run.log
    ledger, report = next(tmp_path.rglob("ledger.jsonl")), tmp_path / "run.html"
    quiet_slurm.run([*PLACEMENT, "run-report", ledger, "-o", report])
    assert "Where it ran" in report.read_text()


def test_a_rule_that_runs_on_either_device(quiet_slurm: Cluster, tmp_path: Path) -> None:
    """By their minutes three jobs end sooner on the one GPU than on CPUs."""
    for name, gpus in (("clive", 1), ("maigan", 0)):
        quiet_slurm.set_qos(name, f"GrpTRES=gres/gpu={gpus}")
    run = foreign(quiet_slurm, tmp_path, "either")
    run.targets = tuple(f"masks/{i}.txt" for i in range(5))
    run.note_calls("sacctmgr", "scontrol", "squeue")
    run.run()
    run.check_jobs_ask_nothing()
    kinds = {event["job"]: event["kind"] for event in run.events
             if event["event"] == "place" and event["rule"] == "segment"}  # fmt: skip
    assert set(kinds.values()) == {"gpu", "cpu"}, dump(run.events)
    for i in range(5):
        said = (tmp_path / f"masks/{i}.txt").read_text().strip()
        assert said == kinds[f"rule_segment_wildcards_{i}"]
    run.check_limits()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "jobs"),
    [("rna_seq", 20), ("dna_seq", 23), ("nanopore", 20), ("metagenome", 17), ("population", 11)],
)
def test_a_stand_in_of_a_public_workflow_ends_on_allowed_accounts(
    quiet_slurm: Cluster, tmp_path: Path, name: str, jobs: int
) -> None:
    """The user's default account, clive, is none of them; a group is one job."""
    allowed = {"maigan", "brusko"}
    run = foreign(quiet_slurm, tmp_path, name, {"accounts": "maigan,brusko"})
    run.run(timeout_s=600)
    assert len(run.check_placed(allowed)) == jobs, dump(run.events)
    assert not run.causes(), dump(run.events)
    run.check_limits()
