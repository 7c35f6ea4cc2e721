"""The cluster that other tests rely on does what it says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.support.slurm_cluster import (
    Cluster,
    Job,
    Unavailable,
    host,
    peak_use,
)
from tests.support.slurm_cluster.client import wait_for
from tests.support.slurm_cluster.records import DELIMITER, FIELDS, parse_jobs

INSTALL = REPO / "tests" / "install_packages"
#: b1 has the GPUs that the account clive may use.
ON_B1 = ("--account=clive", "--partition=hpg-b200", "--gpus=1", "--mem=1G")


def job(**changes: object) -> Job:
    fields: dict[str, object] = dict.fromkeys(
        ("user", "partition", "exit_code", "derived_exit_code", "comment", "name", "workdir"), ""
    )
    fields |= {"id": 1, "account": "clive", "qos": "clive", "state": "COMPLETED", "node": "b1"}
    fields |= {"submit": 0, "start": 0, "end": 10, "cpus": 4, "mem_mb": 1000, "gpus": 1}
    return Job(**(fields | changes))  # type: ignore[arg-type]


def row(**values: str) -> str:
    return DELIMITER.join(values.get(name, "") for name in FIELDS)


def test_sacct_rows_become_jobs_with_their_steps() -> None:
    text = "\n".join(
        [
            row(
                JobIDRaw="7", State="NODE_FAIL", Start="100", End="130", AllocTRES="cpu=8,mem=1.5G"
            ),
            row(JobIDRaw="7.batch", State="CANCELLED", ExitCode="0:15"),
            row(JobIDRaw="7", State="CANCELLED by 1001", Start="Unknown", ReqTRES="gres/gpu=2"),
        ]
    )
    first, second = parse_jobs(text)
    assert (first.state, first.start, first.end, first.cpus, first.mem_mb) == (
        *("NODE_FAIL", 100, 130, 8, 1536),
    )
    assert first.steps["batch"].exit_code == "0:15"
    assert (second.state, second.start, second.gpus, second.steps) == ("CANCELLED", None, 2, {})
    assert second.ended


def test_peak_use_counts_jobs_that_overlap() -> None:
    jobs = [
        job(start=0, end=10, cpus=4),
        job(start=5, end=8, cpus=8, gpus=0),
        job(start=10, end=None, cpus=10),  # begins in the second in which the first ended
        job(start=5, end=5, cpus=100),  # cancelled before it ran
        job(start=None, cpus=100),
        job(start=0, account="maigan", cpus=100),
        job(start=20, end=30, qos="clive-b", cpus=50, gpus=0),
    ]
    assert peak_use(jobs, "clive") == {"cpu": 60, "mem_mb": 2000, "gpus": 1}
    assert peak_use(jobs, "clive", qos="clive") == {"cpu": 12, "mem_mb": 2000, "gpus": 1}
    assert peak_use(jobs, "nobody") == {"cpu": 0, "mem_mb": 0, "gpus": 0}


def test_reason_of_a_machine_that_cannot_have_a_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="needs root"):
        Cluster().start()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(host, "search_path", lambda: str(tmp_path))
    with pytest.raises(
        Unavailable, match="not installed: mariadb-server, munge, slurm-wlm, slurmdbd"
    ):
        Cluster().start()
    monkeypatch.setattr(host, "_COMMANDS", {})
    real = tmp_path / "slurm.conf"
    real.write_text("ClusterName=real\n")
    monkeypatch.setattr(host, "DEFAULT_CONF", real)
    with pytest.raises(Unavailable, match=r"slurm\.conf exists"):
        Cluster().start()
    assert real.read_text() == "ClusterName=real\n"


@pytest.mark.parametrize(
    ("without", "reason"),
    [("apt-get", "no apt-get"), ("root", "not root"), ("network", "apt-get")],
)
def test_install_packages_says_in_one_line_why_it_cannot(
    tmp_path: Path, without: str, reason: str
) -> None:
    commands = {
        "id": "echo 1000" if without == "root" else "echo 0",
        "dpkg-query": "exit 1",
        "apt-get": "echo 'could not resolve host' >&2; exit 100",
    }
    if without == "apt-get":
        del commands["apt-get"]
    for name, body in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("chmod", "mktemp", "rm", "tail"):
        (tmp_path / name).symlink_to(Path("/bin") / name)
    done = subprocess.run(
        [INSTALL, "Slurm", "slurm-wlm", "munge"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert reason in done.stdout
    assert done.stdout.count("\n") == 1


def test_job_is_seen_with_its_account_and_devices(quiet_slurm: Cluster) -> None:
    number = quiet_slurm.sbatch(
        "kuser",
        *ON_B1,
        "--cpus-per-task=8",
        "--comment=a b|c",
        command="echo $CUDA_VISIBLE_DEVICES; sleep 1.2",
    )
    done = quiet_slurm.wait_job(number)
    assert (done.user, done.account, done.qos) == ("kuser", "clive", "clive")
    assert (done.state, done.partition, done.node) == ("COMPLETED", "hpg-b200", "b1")
    assert (done.cpus, done.mem_mb, done.gpus) == (8, 1024, 1)
    assert (done.comment, done.workdir) == ("a b|c", str(quiet_slurm.scratch))
    assert (quiet_slurm.scratch / f"slurm-{number}.out").read_text() == "0\n"
    assert done.submit is not None
    assert done.start is not None
    assert done.end is not None
    assert done.submit <= done.start <= done.end
    assert peak_use([done], "clive") == {"cpu": 8, "mem_mb": 1024, "gpus": 1}


def test_memory_overrun_is_told_by_the_step(quiet_slurm: Cluster) -> None:
    greedy = "python3 -c 'import time; held = bytearray(range(250)) * 1_000_000; time.sleep(20)'"
    number = quiet_slurm.sbatch(
        "kuser", "--account=clive", "--mem=50M", command=f"PATH=/usr/bin srun {greedy}"
    )
    done = quiet_slurm.wait_job(number)
    assert done.state == "FAILED"
    if quiet_slurm.memory == "cgroup":
        assert done.steps["0"].state == "OUT_OF_MEMORY"
    else:
        assert done.derived_exit_code == "0:9"


def test_throttle_shows_in_live_limits(quiet_slurm: Cluster) -> None:
    def limits() -> str:
        shown = quiet_slurm.run(
            ["scontrol", "-o", "show", "assoc_mgr", "flags=qos", "qos=clive"], "kuser"
        )
        found = re.search(r"GrpTRES=(\S+)", shown.stdout)
        assert found is not None
        return found[1]

    assert "cpu=104(0),mem=831488(0)" in limits()
    quiet_slurm.set_qos("clive", "GrpTRES=cpu=40,gres/gpu=1", "GrpJobs=2")
    assert "cpu=40(0),mem=831488(0)" in limits()
    assert "gres/gpu=1(0)" in limits()
    quiet_slurm.restore_limits()
    assert "cpu=104(0),mem=831488(0)" in limits()
    assert "gres/gpu=3(0)" in limits()


@pytest.mark.long
def test_daemon_that_hangs_goes_on(quiet_slurm: Cluster) -> None:
    quiet_slurm.kill_part("slurmdbd", sig=signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        quiet_slurm.run(["sacctmgr", "-n", "list", "cluster"], timeout_s=1)
    quiet_slurm.start_part("slurmdbd")
    assert "tilewright" in quiet_slurm.run(["sacctmgr", "-n", "list", "cluster"]).stdout


@pytest.mark.long
@pytest.mark.parametrize("noticed", [True, False])
def test_crashed_node_fails_its_job_and_comes_back(
    quiet_slurm: Cluster,
    noticed: bool,
) -> None:
    beat = quiet_slurm.scratch / f"beat-{noticed}"
    number = quiet_slurm.sbatch(
        *("kuser", *ON_B1, "--no-requeue"),
        command=f"srun sh -c 'while sleep 0.2; do echo . >>{beat}; done'",
    )
    wait_for(beat.exists, 20)
    quiet_slurm.crash_node("b1", noticed=noticed)
    size = beat.stat().st_size
    assert quiet_slurm.wait_job(number, 60).state == "NODE_FAIL"
    assert beat.stat().st_size == size
    quiet_slurm.revive_node("b1")
    again = quiet_slurm.sbatch("kuser", *ON_B1, command="true")
    assert quiet_slurm.wait_job(again).state == "COMPLETED"


def test_stop_leaves_nothing_behind(slurm: Cluster) -> None:
    """It ends the session's cluster, and the next quiet_slurm starts it again."""
    slurm.repair()
    slurm.sbatch("kuser", *ON_B1, command="trap '' TERM; srun sleep 600")
    wait_for(lambda: any(entry.state == "RUNNING" for entry in slurm.jobs()), 20)
    slurm.stop()
    assert not host.processes_of(slurm.slurm_conf)
    assert not slurm.folder.exists()
    assert not os.path.lexists(host.DEFAULT_CONF)
    assert not [
        path for node in slurm.node_names for path in Path("/sys/fs/cgroup").glob(f"*/slurm_{node}")
    ]
