"""Placement and its faults on a real Slurm, with real Snakemake runs of sleeping jobs."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cluster_runs import PLACEMENT, ClusterRun, dump
from tests.support.runs import REPO, TINY, Run, digests, make_run
from tests.support.slurm_cluster import Cluster, wait_for
from tilewright.init.write import FILES

pytestmark = pytest.mark.slurm
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")


def independent(slurm: Cluster, folder: Path) -> tuple[dict[str, Any], list[tuple[str, str, int]]]:
    """What ``accounts`` says, and account, kind and slots of each pool on its own.

    By the profile of a site, without the account of administrators.
    """
    site = yaml.safe_load((REPO / "profiles/hipergator/config.yaml").read_text())
    site["tilewright-leave-out"] += ", root"
    (folder / "config.yaml").write_text(yaml.safe_dump(site))
    done = slurm.run([*PLACEMENT, "accounts", "--json", "--profile", folder])
    found = dict(json.loads(done.stdout))
    return found, [(p["account"], p["kind"], p["slots"]) for p in found["pools"]["independent"]]


def test_worked_example_and_limits_of_each_account(quiet_slurm: Cluster, tmp_path: Path) -> None:
    found, pools = independent(quiet_slurm, tmp_path)
    assert pools == [("clive", "gpu", 3), ("clive", "cpu", 11), ("maigan", "gpu", 2),
                     ("maigan", "cpu", 8)]  # fmt: skip
    assert found["total"] == {"independent": 24, "shared": 15}
    left = found["left_out"]
    assert set(left) == {"brusko", "brusko-b", "clive-b", "maigan-b", "root"}
    assert left["brusko"] == "--tilewright-leave-out brusko"
    quiet_slurm.set_qos("clive", "MaxTRESPerAccount=cpu=40", "MaxJobsPerAccount=2")
    _, pools = independent(quiet_slurm, tmp_path)
    assert pools == [("clive", "gpu", 2), ("clive", "cpu", 2), ("maigan", "gpu", 2),
                     ("maigan", "cpu", 8)]  # fmt: skip


def test_every_kind_of_both_accounts(run: ClusterRun) -> None:
    """One GPU each: of jobs of 7 and 20 s by their estimate, more than 8 are sooner on CPUs."""
    for name in ("clive", "maigan"):
        run.slurm.set_qos(name, "GrpTRES=gres/gpu=1")
    run.prepare(jobs=26, small=1, seconds="3,6", light=True).run()
    run.check_outputs(*range(26))
    run.check_limits()
    assert set(run.placed()) == {"clive_gpu", "clive_cpu", "maigan_gpu", "maigan_cpu"}
    devices = {event["job"].rpartition("_")[2]: event["kind"] for event in run.events
               if event["event"] == "place" and event["rule"] == "work"}  # fmt: skip
    for name, kind in devices.items():
        assert run.traces(int(name))[-1].split()[0] == kind
    assert f"placement: {26 + 1} jobs done" in run.log


def test_a_dry_run_asks_nothing_and_greedy_with_slurm_names_places_too(run: ClusterRun) -> None:
    run.prepare(jobs=2, seconds="1,2").note_calls("sacctmgr", "scontrol", "squeue", "sinfo")
    run.run("-n")
    assert not run.questions()
    soon = ("--slurm-init-seconds-before-status-checks", "3")
    run.run("--executor", "slurm", "--scheduler", "greedy", *soon)
    run.check_outputs(0, 1)
    run.check_limits()
    run.check_jobs_ask_nothing()
    assert len({job.account for job in run.jobs()}) > 1, run.jobs()


@pytest.mark.long
def test_retries_by_cause(run: ClusterRun) -> None:
    faults = {"0": "memory", "1": "code", "2": "once", "3": "device", "4": "long"}
    # beside other work the Snakemake in a job took 50 s to start
    little = {"cpus": 1, "mem_mb": 400, "runtime_min": 2}
    run.prepare(
        jobs=5,  # as many as there are GPUs: all begin on one
        faults=faults,
        gpu_job=little,
        cpu_job=little,
    ).run(ok=False)
    run.check_outputs(0, 2, 3, 4)
    assert [len(run.traces(i)) for i in range(5)] == [2] * 5, dump(run.events)
    causes = {e["job"][-1]: e["cause"] for e in run.events if e["event"] == "fail"}
    assert causes == {"0": "memory", "1": "error", "2": "error", "3": "device", "4": "time"}
    sizes = [e["mem_mb"] for e in run.events if e["event"] == "place" and e["job"].endswith("_0")]
    assert sizes == [400, 800]
    assert [line.split()[0] for line in run.traces(3)] == ["gpu", "cpu"]
    (said,) = [line for line in run.log.splitlines() if line.startswith("failed: ")]
    assert "rule_work_wildcards_1" in said
    assert "the same mistake every time" in said
    assert "resume with: snakemake" in run.log


@pytest.mark.long
def test_node_crash_and_job_cancelled_from_outside(run: ClusterRun) -> None:
    process = run.prepare(jobs=6, seconds="60,15").start()
    run.wait_running(5)
    slurm = run.slurm
    numbers = slurm.run(["squeue", "-h", "-w", "b1", "-o", "%A"]).stdout.split()
    slurm.run(["scancel", numbers[0]])
    # a node that crashes before takes with it how the job ended
    gone = ["squeue", "-h", "-j", numbers[0]]
    wait_for(lambda: not slurm.run(gone, check=False).stdout, 30, "the end of the job")
    slurm.crash_node("b1")
    assert run.finish(process) == 0
    slurm.revive_node("b1")
    run.check_outputs(*range(6))
    assert run.causes() == {"node", "cancelled"}, dump(run.events)


@pytest.mark.long
def test_a_steady_run_keeps_to_its_calls_and_its_ledger_is_in_time(run: ClusterRun) -> None:
    """19 jobs of two minutes: of 12 calls a minute few are lost, and an end is noted soon."""
    calls = run.note_calls("squeue", "scontrol", "sacctmgr", "sacct", "sinfo")
    run.prepare(
        {"poll-seconds": None}, light=True, jobs=19, seconds="115,125", cpu_seconds=125, slowdown=1
    )
    process = run.start()
    run.wait_running(12)
    began_s = time.time()
    time.sleep(90)
    steady_s = time.time() - began_s
    assert run.finish(process) == 0
    lines = [line.split() for line in calls.read_text().splitlines()]
    # jobs ask for Slurm's config as they start
    steady = [at for at, parent, *_ in lines
              if 0 <= float(at) - began_s < steady_s and int(parent) == process.pid]  # fmt: skip
    run.check_outputs(*range(19))
    assert steady, lines[-20:]
    assert len(steady) <= 12 * (steady_s / 60 + 1), steady
    looks = [float(at) for at, _, _, program, *_ in lines if program == "squeue"]
    late = [sum(event["end_s"] < at <= event["time_s"] for at in looks)
            for event in run.events if event["event"] == "done"]  # fmt: skip
    assert max(late) <= 4, late


@pytest.mark.long
def test_slurmdbd_and_slurmctld_down_for_30_s_each(run: ClusterRun) -> None:
    process = run.prepare(jobs=6, seconds="6,30").start()
    run.wait_running(4)
    for part in ("slurmdbd", "slurmctld"):
        run.slurm.kill_part(part)
        time.sleep(30)
        run.slurm.start_part(part)
    assert run.finish(process) == 0
    run.check_outputs(*range(6))
    run.check_limits()


@pytest.mark.long
def test_coordinators_killed_and_restarted(run: ClusterRun) -> None:
    """Four runs, each ended by another signal and started again."""
    runs = {name: ClusterRun(run.slurm, run.folder / name) for name in _SIGNALS}
    processes = {}

    def end(name: str) -> None:
        one = runs[name]
        one.folder.mkdir()
        processes[name] = one.prepare(jobs=2, seconds="40,45").start()
        one.wait_running(1)
        processes[name].send_signal(getattr(signal, name))

    for name in ("SIGHUP", "SIGKILL"):
        end(name)
        one = runs[name]
        one.finish(processes[name])
        one.run("--unlock", timeout_s=90)
        one.run(ok=False, timeout_s=90)
        assert "of an earlier run may still write into" in one.log
    for name in ("SIGINT", "SIGTERM"):
        end(name)
    for name in ("SIGINT", "SIGTERM"):
        assert runs[name].finish(processes[name]) != 0
    interrupted = runs["SIGINT"]
    assert "what is finished stays; resume with: snakemake" in interrupted.log
    wait_for(lambda: all(job.ended for job in interrupted.jobs()), 30, "the jobs")
    assert {job.state for job in interrupted.jobs()} == {"CANCELLED"}
    assert runs["SIGKILL"].orphaned("--cancel").returncode == 0
    for name in ("SIGKILL", "SIGHUP"):
        runs[name].wait_orphaned()
    again = {name: one.start() for name, one in runs.items()}
    assert {name: one.finish(again[name]) for name, one in runs.items()} == dict.fromkeys(runs, 0)
    for one in runs.values():
        one.check_outputs(*range(2))


def test_refused_before_or_at_submission(run: ClusterRun) -> None:
    large = {"cpus": 200, "mem_mb": 1000}
    run.prepare(jobs=1, gpu_job=large, cpu_job=large).run(ok=False, timeout_s=60)
    assert "no place takes it: QOS clive allows 104 of cpu, and it asks for 200" in run.log
    run.prepare({"accounts": "klive"}, jobs=1).run(ok=False, timeout_s=60)
    assert "no account is left to place jobs on (" in run.log
    assert "clive" in run.log
    run.prepare({"cpu-partitions": "hpg-defualt"}, jobs=1).run(ok=False, timeout_s=60)
    assert "there is no partition hpg-defualt; there are hpg-default, " in run.log
    run.prepare(jobs=1)
    run.run("--set-resources", "work:slurm_account=klive", ok=False, timeout_s=60)
    assert "Invalid account or account/partition combination specified" in run.log
    assert run.jobs() == []


@pytest.mark.parametrize(
    ("cycles", "targets", "folder"),
    [
        ([1], ("edf",), "edf"),
        pytest.param("auto", ("registration", "qc"), "registration", marks=pytest.mark.long),
    ],
)
def test_image_rules_give_the_same_bytes_as_on_one_machine(
    quiet_slurm: Cluster,
    tmp_path: Path,
    tiny_raw: Path,
    tiny_run: Run,
    cycles: object,
    targets: tuple[str, ...],
    folder: str,
) -> None:
    """CPU and GPU jobs of both accounts; the GPUs are pretended, with NumPy in CuPy's clothes.

    There the workflow is a module, in the Snakefile that `tilewright init` writes.
    """
    there = make_run(tmp_path / "there", tiny_raw, **TINY)
    # so few jobs would all take the GPUs
    there.edit(cycles=cycles, resources={"edf_plane": {"device": "cpu"}})
    (there.folder / "Snakefile").write_text((FILES / "Snakefile").read_text())
    run = ClusterRun(quiet_slurm, there.folder, there.folder / "Snakefile", targets).prepare()
    quiet_slurm.set_qos("clive", "GrpTRES=cpu=4,gres/gpu=1")
    quiet_slurm.set_qos("maigan", "GrpTRES=cpu=4,gres/gpu=1")
    run.run(timeout_s=600)
    placed = [pool.split("_") for pool in run.placed()]
    assert {account for account, _ in placed} == {"clive", "maigan"}
    assert {kind for _, kind in placed} == {"gpu", "cpu"}
    expected, made = digests(tiny_run.sample / folder), digests(there.sample / folder)
    if cycles == [1]:
        expected = {
            path: one for path, one in expected.items() if path.lstrip(".").startswith("cycle1")
        }
    assert made == expected
    if "qc" in targets:
        assert "Where it ran" in (there.results / "report.html").read_text()
