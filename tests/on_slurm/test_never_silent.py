"""Slurm that is away, changes what it is told, or forgets: no job is lost or runs twice."""

import shutil
import time

import pytest

from tests.support.cluster_runs import AT_NIGHT, ClusterRun, dump
from tests.support.slurm_cluster import wait_for

pytestmark = pytest.mark.slurm

_AWAY = """\
#!/bin/sh
if [ -e {away} ]; then
  echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1
fi
date +%s.%N >> {calls}
exec {squeue} "$@"
"""
#: As wrappers of sites do that print news, and bill by comment and name.
_SITE = """\
#!/bin/sh
echo "Welcome. Maintenance on 2027-01-04."
echo "4711"
exec {sbatch} "$@" --comment="billed to project 12" --job-name=user-job
"""
_FAILS = '#!/bin/sh\necho "{0}: error: not for you" >&2\nexit 1\n'


def test_a_queue_that_is_not_answered_for_20_s_is_unknown(run: ClusterRun) -> None:
    """All jobs end meanwhile; two polls later the run has ended."""
    away, calls = run.folder / "away", run.folder / "looks.txt"
    run.prepare(jobs=4, light=True, seconds="12,12")
    run.stand_in("squeue", _AWAY.format(away=away, calls=calls, squeue=shutil.which("squeue")))
    process = run.start()
    run.wait_running(4)
    away.touch()
    time.sleep(20)
    away.unlink()
    back_s = time.time()
    assert run.finish(process, 60) == 0
    run.check_outputs(*range(4))
    assert not run.causes(), dump(run.events)
    done_s = max(event["time_s"] for event in run.events if event["event"] == "done")
    looks = [at for at in map(float, calls.read_text().split()) if back_s < at < done_s]
    assert len(looks) <= 2, (back_s, done_s, looks)
    assert run.log.count("what runs goes on, and Slurm is asked again") == 1
    assert run.log.count("Slurm answers again") == 1


@AT_NIGHT
def test_slurmctld_and_slurmdbd_are_away_for_100_s(run: ClusterRun) -> None:
    """Jobs end and others are ready meanwhile."""
    process = run.prepare(jobs=20, small=4, light=True, seconds="40,45").start()
    run.wait_running(4)
    for part in ("slurmctld", "slurmdbd"):
        run.slurm.kill_part(part)
    time.sleep(100)
    for part in ("slurmdbd", "slurmctld"):
        run.slurm.start_part(part)
    assert run.finish(process, 300) == 0
    run.check_outputs(*range(20))
    assert not run.causes(), dump(run.events)
    assert run.log.count("Slurm answers again") == 1


def test_jobs_are_known_where_a_site_rewrites_names_and_comments(run: ClusterRun) -> None:
    """Its sbatch prints news with numbers first; the coordinator is killed, and started again."""
    run.prepare(jobs=3, light=True, seconds="0,0", faults=dict.fromkeys("012", "wait"))
    (run.folder / "bin/sbatch").rename(run.folder / "bin/light")
    run.stand_in("sbatch", _SITE.format(sbatch=run.folder / "bin/light"))
    process = run.start()
    run.wait_running(3)
    process.kill()
    process.wait()
    ids = {job.id for job in run.jobs()}
    assert len(ids) == 3
    said = run.orphaned()
    assert said.returncode == 1, said.stderr
    assert all(f"  {number}  " in said.stdout for number in ids), said.stdout
    run.run("--unlock", timeout_s=60)
    run.run(ok=False, timeout_s=60)
    assert "3 jobs of an earlier run may still write into" in run.log
    (run.folder / "go").touch()
    run.wait_orphaned()
    run.run(timeout_s=60)
    run.check_outputs(*range(3))
    assert {job.id for job in run.jobs()} == ids


def test_a_site_without_accounting_commands_whose_queue_forgets(run: ClusterRun) -> None:
    """No sacctmgr, no sacct, no --retries, ended jobs gone at once: jobs note how they ended."""
    run.prepare(jobs=7, light=True, seconds="5,9", faults={"3": "code"})
    for name in ("sacct", "sacctmgr"):
        run.stand_in(name, _FAILS.format(name))
    run.stand_in("squeue", f'#!/bin/sh\nexec {shutil.which("squeue")} "$@" -t PD,R,CG\n')
    run.run("--retries", "0", ok=False)
    run.check_outputs(0, 1, 2, 4, 5, 6)
    (failed,) = [event for event in run.events if event["event"] == "fail"]
    assert failed["job"] == "rule_work_wildcards_3"
    assert (failed["cause"], failed["words"]) == (
        "error",
        "ValueError: the same mistake every time",
    )
    (began,) = [event for event in run.events if event["event"] == "run"]
    assert any("limits are not known: sacctmgr" in note for note in began["notes"]), began
    run.check_limits()


def test_what_sbatch_prints_before_the_number_makes_no_second_job(run: ClusterRun) -> None:
    run.prepare(jobs=2, light=True, seconds="3,3")
    (run.folder / "bin/sbatch").rename(run.folder / "bin/light")
    run.stand_in("sbatch", _SITE.format(sbatch=run.folder / "bin/light"))
    run.run("--retries", "0")
    run.check_outputs(0, 1)
    sent = {event["slurm_id"] for event in run.events if event["event"] == "place"}
    assert sent == {job.id for job in run.jobs()}
    assert len(sent) == 2


def test_a_failing_job_without_keep_going_stops_those_that_were_not_sent(run: ClusterRun) -> None:
    """What Slurm has goes on; what waits here is not sent, and is counted."""
    run.slurm.set_qos("clive", "GrpTRES=cpu=16")
    run.prepare(
        {"accounts": "clive", "gpu-partitions": "none"},
        jobs=20, light=True, seconds="8,8", faults=dict.fromkeys("0123456789", "code"),
    )  # fmt: skip
    run.profile = ("--executor", "tilewright", "--scheduler", "tilewright", "--jobs", "50")
    run.run(ok=False, timeout_s=120)
    sent = {event["slurm_id"] for event in run.events if event["event"] == "place"}
    assert 0 < len(sent) < 20
    (said,) = [line for line in run.log.splitlines() if "that were ready are not sent" in line]
    assert said.startswith(f"{20 - len(sent)} jobs that were ready are not sent, as a job failed")
    wait_for(lambda: {job.id for job in run.jobs() if job.ended} == sent, 30, "accounting")
    done = {event["slurm_id"] for event in run.events if event["event"] in ("done", "fail")}
    assert done == sent, dump(run.events)
