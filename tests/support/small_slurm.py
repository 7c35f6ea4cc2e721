"""A Slurm of one file, for real runs of Snakemake: programs of its names, whose jobs take no time.

Jobs do not call Snakemake again: the Snakefile's first lines have the executor hand over commands
that make the outputs of each job.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.recorded import IDLE, LIMITS, PARTITIONS, USE
from tests.support.runs import REPO

#: What all programs are: a folder has their jobs, answers that are text, and states of first tries.
PROGRAM = """#!{python}
import json, re, subprocess, sys
from pathlib import Path

folder = Path(__file__).parent
jobs, name, args = folder / "jobs", Path(__file__).name, sys.argv[1:]

def all_jobs():
    return [json.loads(path.read_text()) for path in sorted(jobs.iterdir())]

def new_number():
    # of several at once, each its own
    number = 1 + len(list((folder / "numbers").iterdir()))
    while True:
        try:
            (folder / "numbers" / str(number)).touch(exist_ok=False)
            return number
        except FileExistsError:
            number += 1

def value(*options):
    for i, word in enumerate(args):
        for option in options:
            if word == option:
                return args[i + 1]
            if word.startswith(option + "=") or (len(option) == 2 and word.startswith(option)):
                return word.removeprefix(option).removeprefix("=")
    return ""

if name == "sbatch":
    script, number = sys.stdin.read(), new_number()
    job = {"id": number, "name": value("--job-name", "-J"), "comment": value("--comment"),
           "account": value("--account", "-A"), "partition": value("--partition", "-p"),
           "qos": value("--qos", "-q"), "argv": args, "state": "COMPLETED"}
    fails = json.loads((folder / "fails.json").read_text())
    tries = sum(one["comment"] == job["comment"] for one in all_jobs())
    states = next((own for rule, own in fails.items() if job["comment"].startswith(rule)), [])
    if tries < len(states):
        job["state"] = states[tries]
    if job["state"] == "COMPLETED" and subprocess.run(["sh"], input=script, text=True).returncode:
        job["state"] = "FAILED"
    (folder / str(number)).write_text(json.dumps(job))
    (folder / str(number)).rename(jobs / f"{number:04}")
    print(f"Welcome to a cluster of 12 nodes\\nSubmitted batch job {number}")
elif name == "squeue":
    fields = re.findall(r"(\\w+):(\\d+)", value("-O"))
    for job in all_jobs():
        shown = {"JobID": job["id"], "State": job["state"], "Name": job["name"],
                 "NodeList": "c1", "WorkDir": str(Path.cwd()), "Comment": "rewritten by the site",
                 "Reason": "None"}
        print("".join(f"{shown.get(field, '')!s:<{width}.{width}}|" for field, width in fields))
elif "job" in args:
    (job,) = [one for one in all_jobs() if str(one["id"]) == args[-1]]
    print(f"JobId={job['id']} JobState={job['state']} Reason=None ExitCode=1:0")
else:
    word = next((one for one in ("partition", "flags=qos,assoc", "config") if one in args), name)
    print((folder / f"{word}.txt").read_text(), end="")
"""
HEAD = '''
import shlex
from pathlib import Path
from snakemake_scheduler_plugin_tilewright.executor import Executor

def quick(executor, job):
    """Return what makes the outputs of a job, and two parts of a checkpoint's."""
    lines = []
    for one in (job.jobs if job.is_group() else [job]):
        for path in map(Path, one.output):
            folder = path if one.rule.is_checkpoint else path.parent
            made = [folder / "a.part", folder / "b.part"] if one.rule.is_checkpoint else [path]
            lines.append(f"mkdir -p {shlex.quote(str(folder))}")
            lines.append(f"touch {' '.join(shlex.quote(str(one)) for one in made)}")
    return "; ".join(lines)

Executor.format_job_exec = quick
'''


def run(
    folder: Path,
    snakefile: str,
    *args: str,
    fails: Mapping[str, list[str]] = MappingProxyType({}),
    **answers: str,
) -> subprocess.CompletedProcess[str]:
    """Run Snakemake with our executor and scheduler in a folder.

    Parameters
    ----------
    fails : mapping
        Names of jobs, or how they begin, to the states of their first tries.
    """
    programs = folder / "slurm"
    for name in ("jobs", "numbers"):
        (programs / name).mkdir(parents=True, exist_ok=True)
    user = os.environ.get("USER") or subprocess.check_output(["id", "-un"], text=True).strip()
    texts = {
        "sacctmgr": LIMITS.replace("|ada|", f"|{user}|"), "sinfo": IDLE, "partition": PARTITIONS,
        "flags=qos,assoc": USE, "scancel": "", "config": "", **answers,
    }  # fmt: skip
    for name, text in texts.items():
        (programs / f"{name}.txt").write_text(text)
    (programs / "fails.json").write_text(json.dumps(dict(fails)))
    for name in ("sbatch", "squeue", "scontrol", "sacctmgr", "sinfo", "scancel", "sacct"):
        (programs / name).write_text(PROGRAM.replace("{python}", sys.executable, 1))
        (programs / name).chmod(0o755)
    (folder / "Snakefile").write_text(HEAD + snakefile)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("SLURM_")},
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": f"{REPO / 'src'}:{REPO / 'scheduler-plugin/src'}:{REPO}",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "-j", "50", "--executor", "tilewright", "--scheduler",
         "tilewright", "--latency-wait", "1", "--tilewright-poll-seconds", "1",
         "--tilewright-leave-out", "*-b", "--workflow-profile", "none", *args],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def sent(folder: Path, comment: str = "") -> list[dict[str, Any]]:
    """Return the jobs of a comment that sbatch took, with the options of each."""
    found = [json.loads(path.read_text()) for path in sorted((folder / "slurm/jobs").iterdir())]
    return [one for one in found if one["comment"].startswith(comment)]


def options(job: Mapping[str, Any]) -> str:
    """Return the call of sbatch of a job, in one line."""
    return " ".join(job["argv"])
