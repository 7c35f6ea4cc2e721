"""What placement costs beside ``--scheduler greedy``: wall time, CPU time and memory.

``python -m benchmarks.scheduler_cost [--jobs 300] [--dag 5000] [--repeats 3]``. Two comparisons,
each with both schedulers in turn, the least of the repeats:

- jobs of one second on a private Slurm, which the tests' cluster lends (as root; ``--jobs 0``
  leaves it out). They are their shell command alone: the Snakemake that the executor starts in each
  costs the same under both, and takes two cores a quarter of an hour for 300;
- a DAG of chains of three jobs under an executor that ends each job at once, beside scripts that
  answer as Slurm's commands do: the coordinator alone.

CPU time is that of the coordinator and of all that it starts and waits for, memory the peak of its
largest process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from typing import NamedTuple

from benchmarks.dry_run import write_slurm
from tests.support.slurm_cluster import Cluster

SCHEDULERS = ("greedy", "tilewright")
CHAINS = """\
rule all:
    input: expand("c/{{i}}", i=range({chains}))
rule a:
    output: "a/{{i}}"
    resources: mem_mb=100, runtime=5
    shell: "touch {{output}}"
rule b:
    input: "a/{{i}}"
    output: "b/{{i}}"
    threads: 2
    resources: mem_mb=1000, runtime=5
    shell: "touch {{output}}"
rule c:
    input: "b/{{i}}"
    output: "c/{{i}}"
    resources: mem_mb=100, runtime=5
    shell: "touch {{output}}"
"""
SECONDS = """\
rule all:
    input: expand("out/{{i}}", i=range({jobs}))
rule work:
    output: "out/{{i}}"
    resources: mem_mb=1000, runtime=5
    shell: "sleep 1; touch {{output}}"
"""
#: In place of ``sbatch``: a job is its rule's shell command, by the number in its comment.
SHELL_ALONE = """\
#!/bin/bash
given=() number=
for word in "$@"; do
  case "$word" in
    rule_work_wildcards_*) number=${{word##*_}} ;;
    --wrap=*) word="--wrap=sleep 1; touch out/$number" ;;
  esac
  given+=("$word")
done
exec {sbatch} "${{given[@]}}"
"""
#: In place of the Slurm executor, first on the path of modules: each job has ended when it starts.
AT_ONCE = """\
from pathlib import Path

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=1,
)


class Executor(RemoteExecutor):
    def run_job(self, job):
        for path in map(Path, job.output):
            path.parent.mkdir(exist_ok=True)
            path.touch()
        self.report_job_submission(SubmittedJobInfo(job))

    async def check_active_jobs(self, active_jobs):
        for job in active_jobs:
            self.report_job_success(job)
        return
        yield

    def cancel_jobs(self, active_jobs):
        pass
"""


class Cost(NamedTuple):
    """Seconds of the clock and of CPUs, and the peak of memory in MB."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def cost_of(argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> Cost:
    """Run a command to its end; one that fails ends this, with its log."""
    began = time.perf_counter()
    log = folder / "run.log"
    with log.open("w") as said:
        process = Popen([*argv], cwd=folder, env=env, stdin=DEVNULL, stdout=said, stderr=STDOUT)
        _, status, use = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(argv)} failed:\n{log.read_text()[-3000:]}")
    wall_s = time.perf_counter() - began
    return Cost(wall_s, use.ru_utime + use.ru_stime, use.ru_maxrss / 1024)


def command(scheduler: str, *options: str) -> list[str]:
    """Return a command of Snakemake; under greedy an account is named, as a user would."""
    named = ["--default-resources", "slurm_account=clive"] if scheduler == "greedy" else []
    return [
        *(sys.executable, "-m", "snakemake", "--executor", "slurm", "--scheduler", scheduler),
        *("--max-jobs-per-timespan", "1000/1s", *options, *named),
    ]


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return variables without those of a job of Slurm, with a cache of the run's own."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    return {**own, "XDG_CACHE_HOME": str(folder / "cache"), **more}


def of_dag(scheduler: str, jobs: int) -> Cost:
    """Return what the coordinator takes for a DAG of so many placed jobs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "Snakefile").write_text(CHAINS.format(chains=jobs // 3))
        write_slurm(folder / "bin")
        # so that the executor looks at its jobs as often under both: every second
        (folder / "site.yaml").write_text("calls_per_min: 60\n")
        package = folder / "path/snakemake_executor_plugin_slurm"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(AT_ONCE)
        env = environment(
            folder,
            PATH=f"{folder / 'bin'}:{os.environ['PATH']}",
            PYTHONPATH=str(folder / "path"),
            TILEWRIGHT_SITE=str(folder / "site.yaml"),
        )
        return cost_of(
            command(scheduler, "--jobs", "50", "--seconds-between-status-checks", "1"), folder, env
        )


def of_seconds(scheduler: str, jobs: int, slurm: Cluster) -> Cost:
    """Return what a run of jobs of one second takes on a cluster."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "Snakefile").write_text(SECONDS.format(jobs=jobs))
        (folder / "out").mkdir()
        sbatch = folder / "bin/sbatch"
        sbatch.parent.mkdir()
        sbatch.write_text(SHELL_ALONE.format(sbatch=shutil.which("sbatch")))
        sbatch.chmod(0o755)
        options = ("--jobs", "100", "--slurm-status-command", "squeue", "--latency-wait", "60")
        path = f"{sbatch.parent}:{os.environ['PATH']}"
        env = environment(folder, **slurm.env, PATH=path)
        return cost_of(command(scheduler, *options), folder, env)


def show(title: str, costs: Mapping[str, Sequence[Cost]]) -> None:
    """Print the least of each figure of both schedulers, and their ratios."""
    best = [Cost(*map(min, zip(*costs[name], strict=True))) for name in SCHEDULERS]
    for name, cost in zip(SCHEDULERS, best, strict=True):
        figures = f"{cost.wall_s:.1f} s | {cost.cpu_s:.1f} s | {cost.peak_mb:.0f} MB"
        print(f"| {title} | {name} | {figures} |")
    ratios = " | ".join(f"{ours / theirs:.2f}" for theirs, ours in zip(*best, strict=True))
    print(f"| {title} | ratio | {ratios} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--dag", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print("| run | scheduler | wall | CPU | memory |")
    print("|---" * 5 + "|", flush=True)

    def compared(of: Callable[[str], Cost]) -> dict[str, list[Cost]]:
        rounds = [{name: of(name) for name in SCHEDULERS} for _ in range(options.repeats)]
        return {name: [costs[name] for costs in rounds] for name in SCHEDULERS}

    if options.dag:
        costs = compared(lambda name: of_dag(name, options.dag))
        show(f"{options.dag // 3 * 3} jobs that end at once", costs)
    if options.jobs:
        with Cluster() as slurm:
            costs = compared(lambda name: of_seconds(name, options.jobs, slurm))
        show(f"{options.jobs} jobs of 1 s", costs)


if __name__ == "__main__":
    main()
