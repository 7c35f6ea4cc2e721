"""``accounts``, ``doctor`` and ``orphaned`` on a real Slurm cluster."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.support.runs import make_run
from tests.support.slurm_cluster import Cluster, wait_for


@pytest.mark.workflow
def test_the_three_commands(quiet_slurm: Cluster, tmp_path: Path) -> None:
    run = make_run(tmp_path, cycles=3, channels=2, rows=1, cols=2, planes=3, tile_px=128)
    settings = {"tilewright-accounts": "clive,maigan", "tilewright-gpu-partitions": "hpg-b200"}
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile/config.yaml").write_text(yaml.safe_dump(settings))
    own = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    placement = "snakemake_scheduler_plugin_tilewright"

    def tilewright(*args: str, of: str = "tilewright") -> subprocess.CompletedProcess[str]:
        profile = ["--profile", "profile"] if args[0] != "orphaned" else []
        return subprocess.run(
            [sys.executable, "-m", f"{of}.cli", *args, *profile],
            cwd=run.folder, env={**own, **quiet_slurm.env}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    shown = json.loads(tilewright("accounts", "--json", of=placement).stdout)
    assert {one["name"] for one in shown["accounts"]} == {"clive", "maigan"}

    looked = tilewright("doctor", "--configfile", "config.yaml", "--json")
    checks = {check["about"]: check["state"] for check in json.loads(looked.stdout)["checks"]}
    wrong = [about for about, state in checks.items() if state == "problem"]
    assert (wrong, looked.returncode) == ([], 0)
    assert checks["CuPy"] == ("ok" if find_spec("cupy") else "warning")
    assert checks["slurmctld"] == checks["disk"] == "ok"

    assert tilewright("orphaned", of=placement).returncode == 0
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    job = quiet_slurm.sbatch(
        user, "--account=clive", "--mem=100", f"--chdir={tmp_path}",
        "--comment=rule_stitch_wildcards_a", command="sleep 300",
    )  # fmt: skip
    wait_for(lambda: str(job) in tilewright("orphaned", of=placement).stdout, 20)
    assert tilewright("orphaned", of=placement).returncode == 1
    assert tilewright("doctor").returncode == 1
    ended = tilewright("orphaned", "--cancel", of=placement)
    assert (ended.returncode, tilewright("orphaned", of=placement).returncode) == (0, 0)
