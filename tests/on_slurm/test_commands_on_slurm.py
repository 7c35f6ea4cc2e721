"""``accounts`` and ``orphaned`` on a real Slurm cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.support.slurm_cluster import Cluster, wait_for


def test_the_two_commands(quiet_slurm: Cluster, tmp_path: Path) -> None:
    settings = {"tilewright-accounts": "clive,maigan", "tilewright-gpu-partitions": "hpg-b200"}
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile/config.yaml").write_text(yaml.safe_dump(settings))
    own = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}

    def placement(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "snakemake_scheduler_plugin_tilewright.cli", *args],
            cwd=tmp_path, env={**own, **quiet_slurm.env}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    shown = json.loads(placement("accounts", "--json", "--profile", "profile").stdout)
    assert {one["name"] for one in shown["accounts"]} == {"clive", "maigan"}

    assert placement("orphaned").returncode == 0
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    job = quiet_slurm.sbatch(
        user, "--account=clive", "--mem=100", f"--chdir={tmp_path}",
        "--comment=rule_stitch_wildcards_a", command="sleep 300",
    )  # fmt: skip
    wait_for(lambda: str(job) in placement("orphaned").stdout, 60)
    assert placement("orphaned").returncode == 1
    cancelled = placement("orphaned", "--cancel")
    assert (cancelled.returncode, "cancelled; Slurm ends" in cancelled.stdout) == (0, True)
    wait_for(lambda: placement("orphaned").returncode == 0, 60)
