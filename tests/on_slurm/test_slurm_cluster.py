"""The cluster that other tests rely on counts right and leaves nothing behind."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.runs import REPO
from tests.support.slurm_cluster import Cluster, Job, Unavailable, host, peak_use, wait_for
from tests.support.slurm_cluster.settings import NODE_NAMES


def test_peak_use_counts_jobs_that_overlap() -> None:
    def job(
        start: int | None, end: int | None, cpus: int, gpus: int, account: str = "clive"
    ) -> Job:
        return Job(1, account, "", "", "", 0, start, end, cpus, 1000, gpus, "", "", "")

    jobs = [
        job(0, 10, 4, 1),
        job(5, 8, 8, 0),
        job(10, None, 10, 1),  # begins in the second in which the first ended
        job(5, 5, 100, 1),  # cancelled before it ran
        job(None, 10, 100, 1),
        job(0, 10, 100, 1, "maigan"),
    ]
    assert peak_use(jobs, "clive") == {"cpu": 12, "mem_mb": 2000, "gpus": 1}
    assert peak_use(jobs, "nobody") == {"cpu": 0, "mem_mb": 0, "gpus": 0}


@pytest.mark.parametrize(
    ("absent", "user", "reason"),
    [("apt-get", 0, "no apt-get"), ("", 1000, "not root"), ("", 0, "could not resolve host")],
)
def test_install_packages_says_in_one_line_why_it_cannot(
    tmp_path: Path, absent: str, user: int, reason: str
) -> None:
    commands = {
        "id": f"echo {user}",
        "dpkg-query": "exit 1",
        "apt-get": "echo 'could not resolve host' >&2; exit 100",
    }
    for name in commands.keys() - {absent}:
        (tmp_path / name).write_text(f"#!/bin/sh\n{commands[name]}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("chmod", "mktemp", "rm", "tail"):
        (tmp_path / name).symlink_to(Path("/bin") / name)
    argv = [str(REPO / "tests/install_packages"), "Slurm", "slurm-wlm", "munge"]
    said = subprocess.check_output(argv, env={"PATH": str(tmp_path)}, text=True)
    assert reason in said
    assert said.count("\n") == 1


def test_a_real_slurm_conf_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = tmp_path / "slurm.conf"
    real.write_text("ClusterName=real\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(host, "_COMMANDS", {})
    monkeypatch.setattr(host, "DEFAULT_CONF", real)
    with pytest.raises(Unavailable, match=r"slurm\.conf exists"):
        Cluster().start()
    assert real.read_text() == "ClusterName=real\n"


def test_stop_leaves_nothing_behind(slurm: Cluster) -> None:
    """It ends the session's cluster, and the next quiet_slurm starts it again."""
    slurm.repair()
    gpu = ("--account=clive", "--partition=hpg-b200", "--gpus=1", "--mem=1G")
    slurm.sbatch("kuser", *gpu, command="trap '' TERM; srun sleep 600")
    wait_for(lambda: any(entry.state == "RUNNING" for entry in slurm.jobs()), 60)
    slurm.stop()
    assert not host.processes_of(slurm.slurm_conf)
    assert not slurm.folder.exists()
    assert not os.path.lexists(host.DEFAULT_CONF)
    groups = [f"*/slurm_{node}" for node in NODE_NAMES]  # a step that ends takes its own away
    wait_for(lambda: not [c for at in groups for c in Path("/sys/fs/cgroup").glob(at)], 60)
