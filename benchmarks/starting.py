"""What starting costs: CPU seconds that no stage works in, and which processes spend them.

``python -m benchmarks.starting [--repeats 5]``. On one machine the process that runs Snakemake
starts a Python for each job's script; a job of Slurm starts Snakemake twice and then that Python.
Printed are, each the least of the repeats:

- the imports of every script, with Snakemake's own of every script, and how many modules they load;
- the Snakemake of a job, without its script: of a workflow of one rule, and of tilewright;
- a whole run of a tiny experiment on one machine: what is in no stage, by the logs of the jobs.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.scheduler_cost import cost_of
from tests.conftest import REPO
from tests.support.runs import TINY, Run, make_run

#: What Snakemake writes above every script.
PREAMBLE = "from snakemake.logging import logger\nfrom snakemake.iocontainers import Snakemake"
ONE_RULE = 'rule a:\n    output: "a"\n    shell: "touch {output}"\n'
#: Options of the Snakemake that runs one job, as the executor for Slurm gives them.
IN_A_JOB = (
    *("--cores", "1", "--force", "--mode", "subprocess", "--force-use-threads", "--nocolor"),
    *("--nolock", "--ignore-incomplete", "--no-hooks", "--rerun-triggers", "mtime"),
)
#: Its own CPU seconds and modules at its end, without what it started and waited for.
ITSELF = """\
import atexit, sys, time
atexit.register(
    lambda: print("itself", time.process_time(), len(sys.modules), file=sys.__stderr__, flush=True)
)
"""
AS_MAIN = "import runpy\nrunpy.run_module('snakemake', run_name='__main__', alter_sys=True)\n"
_CPU_TIME = re.compile(r"CPU time ([\d.]+) s, and ([\d.]+) s to start")
_PEAK = re.compile(r"peak memory (\d+) MB")


def cpu_times_s(log: Path) -> tuple[float, float]:
    """Return the CPU seconds in which a job worked, and in which it started, by its log."""
    work_s, start_s = _CPU_TIME.findall(log.read_text("utf-8"))[-1]
    return float(work_s), float(start_s)


def peak_mb(log: Path) -> int:
    """Return the most memory that a job has held, by its log."""
    return int(_PEAK.findall(log.read_text("utf-8"))[-1])


def itself(code: str, *args: str, folder: Path, repeats: int) -> tuple[float, int]:
    """Return the least CPU seconds of a Python, and how many modules it loads."""
    found = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, "-c", ITSELF + code, *args],
            cwd=folder,
            env={**os.environ, "TILEWRIGHT_DEVICE": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        seconds, modules = done.stderr.rpartition("itself ")[2].split()
        found.append((float(seconds), int(modules)))
    return min(found)


def imports_of(script: Path) -> str:
    """Return the lines with which a script imports."""
    found = ast.parse(script.read_text("utf-8")).body
    kept = [ast.unparse(node) for node in found if isinstance(node, (ast.Import, ast.ImportFrom))]
    return "\n".join([PREAMBLE, *kept, ""])


def in_a_job(folder: Path, snakefile: Path, job: str, rule: str, *more: str) -> Sequence[str]:
    """Return the arguments of the Snakemake that runs one job."""
    job_of = ("--target-jobs", job, "--allowed-rules", rule)
    return ("--snakefile", str(snakefile), *more, *job_of, *IN_A_JOB)


def of_run(run: Run) -> str:
    """Return what a whole run takes for each job, in and beside the stages."""
    cost = cost_of(
        run.command("registration", "qc", "--cores", "2"),
        run.folder,
        {**os.environ, "TILEWRIGHT_DEVICE": "cpu"},
    )
    logs = [*(run.results / "logs").rglob("*.log")]
    beside_s = (cost.cpu_s - sum(cpu_times_s(log)[0] for log in logs)) / len(logs)
    return f"{len(logs)} jobs: {cost.cpu_s:.1f} s | {beside_s:.2f} s in no stage, a job"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("| process | CPU | modules |\n|---|---|---|")

        def show(title: str, code: str, *args: str, where: Path = folder) -> None:
            seconds, modules = itself(code, *args, folder=where, repeats=repeats)
            print(f"| {title} | {seconds:.2f} s | {modules} |", flush=True)

        show("Python", "")
        show("Snakemake's part of a script", PREAMBLE)
        for script in sorted((REPO / "scripts").glob("*.py")):
            show(script.name, imports_of(script))
        one = folder / "Snakefile"
        one.write_text(ONE_RULE)
        show("Snakemake in a job, one rule", AS_MAIN, *in_a_job(folder, one, "a:", "a"))
        run = make_run(folder / "tiny", **TINY)
        run.snakemake("-n")  # writes the manifests that jobs read
        ours = in_a_job(
            folder, REPO / "workflow/Snakefile", "illumination:sample=tonsil,cycle=1",
            "illumination", "--configfile", str(run.config),
        )  # fmt: skip
        show("Snakemake in a job, tilewright", AS_MAIN, *ours, where=run.folder)
        print(f"| a run on one machine, {of_run(run)} |")


if __name__ == "__main__":
    main()
