"""Three Snakemake runs on one pretended machine, their jobs and one of them killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.devices.leases import lease_jobs
from tests.devices.leases.lease_jobs import Machine, read_log, sample
from tilewright.devices.lease import leases

SPAWN = get_context("spawn")
JOBS = 40
SNAKEFILE = f"""
rule all:
    input: expand("out/{{i}}", i=range({JOBS}))
rule job:
    output: "out/{{i}}"
    resources: gpu=1
    shell: "{sys.executable} {lease_jobs.__file__} \\"$(cat jobs/{{wildcards.i}}.json)\\""
           " && echo {{wildcards.i}} > {{output}}"
"""


class LeaseRun:
    """One Snakemake run, six jobs at a time; every third job is killed once."""

    def __init__(self, folder: Path, machine: Machine, root: Path, seed: int) -> None:
        self.folder, rng = folder, random.Random(seed)
        (folder / "jobs").mkdir(parents=True)
        (folder / "Snakefile").write_text(SNAKEFILE)
        for i in range(JOBS):
            described = lease_jobs.job(
                machine,
                root,
                rng.choice((2, 4, 6, 10, 14, 20)),
                whole=rng.random() < 0.08,
                import_s=rng.uniform(0, 0.1),
                hold_s=2.0 if i % 3 == 0 else rng.uniform(0.02, 0.25),
                name=f"{seed}.{i}" + (" killed" if i % 3 == 0 else ""),
            )
            (folder / f"jobs/{i}.json").write_text(json.dumps(described))

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "snakemake", "--cores", "6", "--resources", "gpu=6"]
        command += ["--retries", "4", "--nolock", "--rerun-incomplete", "--latency-wait", "2"]
        log = (self.folder / "log").open("ab")
        with log:
            return subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )


def kill_some(machine: Machine, killed: set[str]) -> None:
    """Kill each job that is to be killed while it waits or holds for the first time."""
    for line in read_log(machine):
        name = line["job"]
        if name.endswith("killed") and line["event"] == "asks" and name not in killed:
            killed.add(name)
            if time.monotonic() - line["s"] > 0.2:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(line["pid"], signal.SIGKILL)
            else:
                killed.discard(name)


@pytest.mark.workflow
def test_three_runs_share_a_machine_and_survive_kills(tmp_path: Path) -> None:
    machine, root = Machine(tmp_path / "machine"), tmp_path / "root"
    (root / "holding").mkdir(mode=0o700, parents=True)
    root.chmod(0o700)
    machine.build({"GPU-a": 25, "GPU-b": 25, "GPU-c": 13, "GPU-d": 25})
    runs = [LeaseRun(tmp_path / f"run{k}", machine, root, k) for k in range(3)]
    stop = SPAWN.Event()
    sampler = SPAWN.Process(target=sample, args=(str(machine.folder), str(root), stop))
    sampler.start()
    processes = [run.start() for run in runs]
    killed: set[str] = set()
    limit_s = time.monotonic() + 240
    while any(process.poll() is None for process in processes):
        assert time.monotonic() < limit_s, "something never ended"
        kill_some(machine, killed)
        if processes[0].poll() is None and len(list((runs[0].folder / "out").glob("*"))) > 10:
            break
        time.sleep(0.02)
    processes[0].kill()  # its jobs live on, and hold what they hold
    processes[0].wait()
    processes[0] = runs[0].start()
    while any(process.poll() is None for process in processes):
        assert time.monotonic() < limit_s, "something never ended"
        kill_some(machine, killed)
        time.sleep(0.02)
    stop.set()
    sampler.join(10)
    for run, process in zip(runs, processes, strict=True):
        assert process.returncode == 0, (run.folder / "log").read_text()[-3000:]
        assert {path.name for path in (run.folder / "out").iterdir()} == set(map(str, range(JOBS)))
    assert not machine.broken.exists(), machine.broken.read_text()
    assert int((machine.folder / "sampled").read_text()) > 3
    assert len(killed) > JOBS / 2
    lines = map(json.loads, (machine.folder / "evidence.jsonl").read_text().splitlines())
    noted = Counter(line["job"] for line in lines if line["outcome"] != "not granted")
    held = Counter(line["job"] for line in read_log(machine) if line["event"] == "holds")
    # one that is killed as it gets its device has a line and never said that it held
    assert held <= noted
    assert noted.total() <= held.total() + len(killed)
    assert leases(root) == []
