"""What Slurm refuses, holds or cannot start here goes elsewhere; and others get their turn."""

import contextlib
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.on_slurm.labmates import running
from tests.support.cluster_runs import ClusterRun, dump
from tests.support.slurm_cluster import Cluster, wait_for

pytestmark = pytest.mark.slurm

_DENIED = """\
#!/bin/sh
case "$*" in *{word}*) echo "{program}: error: Access/permission denied" >&2; exit 1;; esac
exec {real} "$@"
"""


def slurm_ids(run: ClusterRun, event: str) -> dict[int, str]:
    """Return the account of each job of Slurm in events of a kind."""
    return {one["slurm_id"]: one["account"] for one in run.events if one["event"] == event}


@pytest.fixture
def featured(quiet_slurm: Cluster) -> Iterator[Cluster]:
    """Feature rome on a node of a partition for maigan alone, milan where no CPU job goes."""
    quiet_slurm.update("PartitionName=hpg-turin", "AllowAccounts=maigan")
    for node, name in (("t1", "rome"), ("b1", "milan")):
        quiet_slurm.update(f"NodeName={node}", f"AvailableFeatures={name}",
                           f"ActiveFeatures={name}")  # fmt: skip
    yield quiet_slurm
    for node in ("t1", "b1"):
        quiet_slurm.update(f"NodeName={node}", "AvailableFeatures=", "ActiveFeatures=")


def test_what_slurm_refuses_for_its_constraints_goes_to_another_partition(
    featured: Cluster, tmp_path: Path
) -> None:
    """And fails in Slurm's words where none is left, while Snakemake has tries left."""
    run = ClusterRun(featured, tmp_path).prepare(
        {"gpu-partitions": "none", "cpu-partitions": "hpg-default,hpg-turin"},
        jobs=3, small=1, light=True, seconds="2,2",
    )  # fmt: skip
    run.run("--set-resources", "work:constraint='rome|milan'", "small:constraint=milan", ok=False)
    run.check_outputs(*range(3))
    done = [job for job in run.jobs() if job.state == "COMPLETED"]
    assert {(job.account, job.partition) for job in done} == {("maigan", "hpg-turin")}
    # once by an account, by another, and in each of the partitions of that
    tries = Counter(event["rule"] for event in run.events if event["event"] == "refuse")
    assert tries["work"] <= 2, dump(run.events)
    assert tries["small"] <= 4, dump(run.events)
    (failed,) = [event for event in run.events if event["event"] == "fail"]
    assert failed["rule"] == "small"
    assert "no place takes it: " in run.log
    assert "Requested node configuration is not available" in failed["words"]


def test_pending_jobs_are_moved_and_keep_their_numbers(run: ClusterRun) -> None:
    """Both accounts are full with others' jobs; one comes free. No try of Snakemake is used."""
    slurm = run.slurm
    held = {
        name: slurm.sbatch("labmate", "-A", name, "-c", cpus, "--mem=1G", command="sleep 600")
        for name, cpus in (("clive", "104"), ("maigan", "80"))
    }
    running(slurm, *held.values())
    process = run.prepare(
        {"gpu-partitions": "none"}, jobs=8, light=True, seconds="3,3", cpu_seconds=3
    ).start("--retries", "0")
    wait_for(lambda: len(run.pending()) == 8, 60, "four pending jobs at each account")
    sent = slurm_ids(run, "place")
    assert set(sent.values()) == {"clive", "maigan"}
    slurm.run(["scancel", str(held["maigan"])])
    assert run.finish(process, 120) == 0
    slurm.run(["scancel", str(held["clive"])])
    run.check_outputs(*range(8))
    done = slurm_ids(run, "done")
    assert done.keys() == sent.keys() == {job.id for job in run.jobs()}, dump(run.events)
    assert set(done.values()) == {"maigan"}, dump(run.events)
    assert max(run.moves().values()) == 1, dump(run.events)


@pytest.mark.long
def test_all_gpus_of_three_accounts_are_used_where_limits_are_hidden(run: ClusterRun) -> None:
    for program, word in (("sacctmgr", ""), ("scontrol", "assoc_mgr")):
        real = shutil.which(program)
        run.stand_in(program, _DENIED.format(program=program, word=word, real=real))
    run.prepare({"accounts": "clive,maigan,brusko"}, jobs=30, light=True, seconds="9,60",
                cpu_seconds=100, slowdown=10)  # fmt: skip
    run.run()
    run.check_outputs(*range(30))
    run.check_limits()
    gpus = [job for job in run.jobs() if job.gpus]
    at = [sum(one.start <= job.start < one.end for one in gpus if one.start and one.end)
          for job in gpus if job.start]  # fmt: skip
    assert max(at) == 6, dump(run.events)
    assert not run.causes()


@pytest.mark.parametrize("requeue", ["", pytest.param("--requeue", marks=pytest.mark.long)])
def test_a_job_whose_prolog_fails_is_placed_elsewhere(run: ClusterRun, requeue: str) -> None:
    """Slurm drains the node and cancels the job, or holds it where it may be requeued."""
    extra = ("--set-resources", f"work:slurm_extra='{requeue}'") if requeue else ()
    with prolog(run.slurm, '[ "$SLURMD_NODENAME" != b1 ]'):
        run.prepare(jobs=2, light=True, seconds="2,2").run("--retries", "0", *extra)
    run.check_outputs(0, 1)
    assert [run.traces(i)[-1].split()[0] for i in (0, 1)] == ["cpu", "cpu"]
    assert run.causes() == (set() if requeue else {"node"}), dump(run.events)
    reasons = {event["reason"] for event in run.events if event["event"] == "move"}
    assert ("Slurm does not start it there" in reasons) == bool(requeue), dump(run.events)


@contextlib.contextmanager
def prolog(slurm: Cluster, condition: str) -> Iterator[None]:
    """Have jobs start only on nodes where a condition of the shell holds."""
    path, before = slurm.folder / "etc/prolog", slurm.slurm_conf.read_text()
    path.write_text(f"#!/bin/sh\n{condition}\n")
    path.chmod(0o755)
    slurm.slurm_conf.write_text(f"{before}Prolog={path}\n")
    slurm.run(["scontrol", "reconfigure"])
    try:
        yield
    finally:
        slurm.cancel_all()
        slurm.slurm_conf.write_text(before)
        slurm.run(["scontrol", "reconfigure"])


def test_a_resource_of_the_user_holds_back_its_own_jobs_alone(run: ClusterRun) -> None:
    run.prepare(jobs=3, beside=3, light=True, seconds="5,5")
    run.run("--resources", "io=1", "--set-resources", "work:io=1")
    run.check_outputs(*range(3))
    assert len([*run.folder.glob("beside/*.txt")]) == 3
    events = [(e["event"], e["rule"]) for e in run.events if e["event"] in ("place", "done")]
    works = [event for event, rule in events if rule == "work"]
    assert works == ["place", "done"] * 3, dump(run.events)
    first = events.index(("done", "work"))
    assert events[:first].count(("place", "beside")) == 3, dump(run.events)
    assert len(run.events) <= 2 * 6 + 10, dump(run.events)


@pytest.mark.long
def test_few_jobs_pend_at_a_place_and_slurm_is_asked_seldom(run: ClusterRun) -> None:
    """At most 4 or half of what runs there, 4 questions before the first job, 12 a minute."""
    programs = ("squeue", "scontrol", "sacctmgr", "sinfo", "sshare", "sacct")
    calls = run.note_calls(*programs)
    run.prepare({"poll-seconds": None}, jobs=55, light=True, seconds="6,9", cpu_seconds=30)
    process = run.start()
    samples: list[Counter[tuple[str, ...]]] = []

    def look() -> None:
        while process.poll() is None:
            said = run.slurm.run(["squeue", "-h", "-u", "root", "-o", "%a %q %P %t"]).stdout
            samples.append(Counter(tuple(line.split()) for line in said.splitlines()))
            time.sleep(1)

    thread = threading.Thread(target=look)
    thread.start()
    assert run.finish(process) == 0
    thread.join()
    run.check_outputs(*range(55))
    first_s = min(event["time_s"] for event in run.events if event["event"] == "place")
    asked = [float(line.split()[0]) for line in calls.read_text().splitlines()
             if line.split()[2] == "none" and not line.endswith("show config")
             and " update " not in line]  # fmt: skip
    assert sum(at < int(first_s) for at in asked) <= 4, calls.read_text()
    assert max(sum(0 <= at - begin < 60 for at in asked) for begin in asked) <= 13
    for before, now in pairwise(samples):
        for (*place, state), count in now.items():
            runs = max(one[*place, "R"] for one in (before, now))
            assert state != "PD" or count <= max(4, runs // 2) + 1, (place, before, now)
