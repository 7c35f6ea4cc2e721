"""The scheduler plugin on one machine, in real Snakemake runs; only the number of GPUs is said."""

import json
import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import REPO

pytestmark = pytest.mark.workflow

SNAKEFILE = f"""
from dataclasses import replace
from pathlib import Path
from tests.support.sleepers.sizes import Sleepers
from snakemake_scheduler_plugin_tilewright import Placement, ResourceModel

sleepers = Sleepers(config)
def request(wildcards, kind):
    return replace(sleepers.work(wildcards, kind), gpu_mem_mb=900 * (kind == "gpu"))

models = {{"work": ResourceModel(tuple(config["kinds"]), request, sleepers.seconds)}}
placement = workflow.placement = Placement(
    models, "gpu", gpus=lambda need_mb: int(Path("gpus").read_text()))

rule all:
    input: expand("out/{{i}}", i=range(config["jobs"]))

rule work:
    output: "out/{{i}}"
    threads: placement.threads("work")
    resources: **placement.resources("work")
    shell: "{sys.executable} job.py {{resources.gpu_mem_mb}} {{threads}} {{resources.mem_mb}}"
           " {{output}}"
"""
JOB = """
import json, os, sys, time
from pathlib import Path

gpu_mem_mb, cpus, mem_mb = map(int, sys.argv[1:4])
gpu = int(gpu_mem_mb > 0)
def say(sign):
    line = json.dumps([time.monotonic(), sign * gpu, sign * cpus * (not gpu), sign * mem_mb])
    descriptor = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\\n".encode())
    os.close(descriptor)
say(1)
time.sleep(0.5 if gpu else 1.4)
say(-1)
if gpu and not int(Path("gpus").read_text()):
    sys.exit("no GPU can be leased")
Path(sys.argv[4]).touch()
if (last := Path("last")).exists() and len(list(Path("out").iterdir())) == 3:
    Path("gpus").write_text(last.read_text())
"""


def play(
    folder: Path, *pools: str, gpus: int, jobs: int, last: int | None = None, **config: Any
) -> tuple[subprocess.CompletedProcess[str], list[tuple[int, int, int]]]:
    """Run jobs; return what was said and the GPUs, CPUs and MB in use after each event."""
    (folder / "Snakefile").write_text(SNAKEFILE)
    (folder / "job.py").write_text(JOB)
    (folder / "gpus").write_text(str(gpus))
    if last is not None:
        (folder / "last").write_text(str(last))
    sizes = {"gpu_job": {"cpus": 1, "mem_mb": 100}, "cpu_job": {"cpus": 2, "mem_mb": 300}}
    values = {"jobs": jobs, "cpu_seconds": 1.4, "kinds": ["gpu", "cpu"], **sizes, **config}
    (folder / "config.json").write_text(json.dumps(values))
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "8", "--scheduler", "tilewright",
         "--configfile", "config.json", "--workflow-profile", "none", "--latency-wait", "1",
         "--keep-going", "--retries", "3", "--resources", *pools],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{REPO / 'src'}:{REPO / 'scheduler-plugin/src'}:{REPO}",
             "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    log = folder / "log"
    events = sorted(map(json.loads, log.read_text().splitlines())) if log.exists() else []
    steps = ((int(gpu), int(cpus), int(mb)) for _, gpu, cpus, mb in events)
    return done, list(accumulate(steps, lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] + b[2])))


def test_gpus_and_cpus_are_used_together_and_never_too_many(tmp_path: Path) -> None:
    done, used = play(tmp_path, "gpu=2", "cpu=4", "mem_mb=1000", gpus=2, jobs=40)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rule_work_wildcards_39 goes to " in done.stderr
    assert "Select jobs to execute" not in done.stderr
    assert max(gpus for gpus, _, _ in used) == 2
    assert 2 <= max(cpus for _, cpus, _ in used) <= 4
    assert max(mb for *_, mb in used) <= 1000
    assert len(used) == 80


@pytest.mark.parametrize(("gpus", "last", "jobs"), [(2, 1, 10), (1, 0, 6)])
def test_a_gpu_that_goes_is_used_no_more_and_cpus_do_the_rest(
    tmp_path: Path, gpus: int, last: int, jobs: int
) -> None:
    done, used = play(tmp_path, f"gpu={gpus}", "cpu=2", gpus=gpus, last=last, jobs=jobs)
    assert done.returncode == 0, done.stderr[-3000:]
    assert max(held for held, _, _ in used) == gpus
    assert max(held for held, _, _ in used[-6:]) == last


def test_jobs_that_need_a_gpu_end_with_a_reason_where_none_is_left(tmp_path: Path) -> None:
    done, used = play(tmp_path, "gpu=1", "cpu=2", gpus=0, kinds=["gpu"], jobs=1)
    assert done.returncode == 1
    assert "no GPU can be leased" in done.stderr
    assert len(used) == 4 * 2


def test_a_job_larger_than_the_machine_runs_alone(tmp_path: Path) -> None:
    large = {"cpus": 64, "mem_mb": 5000}
    done, used = play(tmp_path, "gpu=1", "cpu=2", "mem_mb=1000", gpus=0, cpu_job=large, jobs=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(used) == 4
    assert max(cpus for _, cpus, _ in used) <= 8
