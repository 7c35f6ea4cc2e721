"""A dry run whose rules ask placement for their resources, beside the same rules with constants.

``python -m benchmarks.dry_run [--jobs 10000] [--repeats 3]``. No Slurm is needed: scripts named
``sacctmgr``, ``scontrol`` and ``squeue`` print what the worked example's cluster answered.
"""

from __future__ import annotations

import argparse
import getpass
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.recorded import LIMITS, NODES, PARTITIONS, USE

#: What each program answers to a command with this word.
ANSWERS: Mapping[str, Mapping[str, str]] = {
    "sacctmgr": {"": LIMITS},
    "scontrol": {"flags=qos": USE, "partition": PARTITIONS, "node": NODES},
    "squeue": {"": ""},
}
ROUTED = """\
import sys
sys.path.insert(0, {repo!r})
from tests.support.sleepers.sizes import Sleepers
from snakemake_scheduler_plugin_tilewright.placement import cluster
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
cluster.use()
sizes = Sleepers({{"nominal_s": 60, "gpu_job": {{"cpus": 8, "mem_mb": 180000}},
                   "cpu_job": {{"cpus": 8, "mem_mb": 48000}}}})
plan = Plan(sizes, "cpu", cluster.current())
routed, threads = plan.routed("work"), plan.threads("work")
"""
CONSTANT = """\
routed = dict(mem_mb=180000, runtime=240, gpu=1, slurm_account="clive", slurm_partition="hpg-b200")
threads = 8
"""
RULES = """
rule all:
    input: expand("c/{{i}}", i=range({chains}))
rule a:
    output: "a/{{i}}"
    threads: threads
    resources: **routed
    shell: "touch {{output}}"
rule b:
    input: "a/{{i}}"
    output: "b/{{i}}"
    threads: threads
    resources: **routed
    shell: "touch {{output}}"
rule c:
    input: "b/{{i}}"
    output: "c/{{i}}"
    threads: threads
    resources: **routed
    shell: "touch {{output}}"
"""


def write_slurm(folder: Path) -> None:
    """Write programs that answer as Slurm's."""
    folder.mkdir()
    user = getpass.getuser()
    for program, answers in ANSWERS.items():
        cases = "".join(
            f"*{word}*) cat <<'END'\n{text.replace('ada', user)}END\n;;\n"
            for word, text in answers.items()
        )
        script = folder / program
        script.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}esac\n')
        script.chmod(0o755)


def timed_s(folder: Path, head: str, chains: int) -> float:
    """Return the seconds of one dry run."""
    snakefile = folder / "Snakefile"
    snakefile.write_text(head + RULES.format(chains=chains))
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", "--quiet", "all", "--cores", "8",
         "--snakefile", str(snakefile)],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
             "XDG_CACHE_HOME": str(folder / "cache")},
        check=True,
        capture_output=True,
    )  # fmt: skip
    return time.perf_counter() - began


def main() -> None:
    """Print the times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    repo = str(Path(__file__).resolve().parents[1])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_slurm(folder / "bin")
        chains = options.jobs // 3
        times: dict[str, list[float]] = {"constant": [], "routed": []}
        for _ in range(options.repeats):
            times["constant"].append(timed_s(folder, CONSTANT, chains))
            times["routed"].append(timed_s(folder, ROUTED.format(repo=repo), chains))
    best = {kind: min(values) for kind, values in times.items()}
    ratio = best["routed"] / best["constant"]
    print(f"{3 * chains} jobs, least of {options.repeats} dry runs:")
    print(f"constant {best['constant']:.1f} s, routed {best['routed']:.1f} s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
