"""Real Snakemake runs on the private cluster, through the project's own Slurm profile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from snakemake_scheduler_plugin_tilewright.runtime.ledger import read_ledger
from tests.support.runs import REPO
from tests.support.slurm_cluster import BUSY, Cluster, Job, peak_use, wait_for
from tests.support.slurm_cluster.settings import ACCOUNTS

#: The program ``tilewright-placement``.
PLACEMENT = [sys.executable, "-m", "snakemake_scheduler_plugin_tilewright.cli"]

_SOURCES = ("src", "scheduler-plugin/src", "", "tests/support/standin")
AT_NIGHT = pytest.mark.skipif(
    "TILEWRIGHT_NIGHT" not in os.environ, reason="takes minutes: set TILEWRIGHT_NIGHT=1"
)
SLEEPERS: dict[str, Any] = {
    "jobs": 8,
    "small": 0,
    "seconds": "2,6",
    "cpu_seconds": 20,
    "slowdown": 3,
    "gpu_job": {"cpus": 8, "mem_mb": 180_000},
    "cpu_job": {"cpus": 8, "mem_mb": 48_000},
}
#: Options ``--tilewright-…`` of each run, without this in front.
SETTINGS: dict[str, object] = {
    "accounts": "clive,maigan",
    "leave-out": "*-b",
    "gpu-partitions": "hpg-b200",
    "cpu-partitions": "hpg-default",
    "poll-seconds": 2,
}
#: In place of ``sbatch``: of rule work the sleeping job alone, by its number, and of rule beside
#: its output. Snakemake starts twice in each job, which takes longer than most of them sleep. How
#: the job's script notes its exit code stays.
_LIGHT = """\
#!/bin/bash
job=
for word in "$@"; do
  i=${{word##*_}}
  case "$word" in
    *rule_work_wildcards_*)
      fault=none
      case "$i" in {faults} esac
      job="{job} out/$i.txt {seconds} $fault $i 2> log/work/$i.log" ;;
    *rule_beside_wildcards_*) job="echo $i > beside/$i.txt" ;;
  esac
done
[ -n "$job" ] || exec {sbatch} "$@"
sed -e "1a $job" -e '1!{{/^code=/,$!d}}' | {sbatch} "$@"
"""


@dataclass
class ClusterRun:
    """A folder in which Snakemake runs on a cluster."""

    slurm: Cluster
    folder: Path
    snakefile: Path = REPO / "tests/support/sleepers/Snakefile"
    targets: tuple[str, ...] = ()
    first_id: int = 0
    env: dict[str, str] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=lambda: dict(SETTINGS))
    profile: tuple[str, ...] = ("--workflow-profile", str(REPO / "profiles/slurm"))

    def prepare(
        self, settings: dict[str, object] | None = None, *, light: bool = False, **config: Any
    ) -> ClusterRun:
        """Write the config; ``light`` jobs sleep and write, without a Snakemake.

        ``settings`` are added to `SETTINGS`; None takes one away.
        """
        self.settings = {**SETTINGS, **(settings or {})}
        if self.snakefile.parent.name == "sleepers":
            (self.folder / "config.yaml").write_text(yaml.safe_dump({**SLEEPERS, **config}))
        if light:
            faults = [f"{i}) fault={fault} ;;" for i, fault in config.get("faults", {}).items()]
            for folder in ("out", "log/work", "beside"):
                (self.folder / folder).mkdir(parents=True, exist_ok=True)
            script = _LIGHT.format(
                job=f"{sys.executable} {self.snakefile.with_name('job.py')}",
                seconds={**SLEEPERS, **config}["seconds"],
                faults=" ".join(faults),
                sbatch=shutil.which("sbatch"),
            )
            self.stand_in("sbatch", script)
        self.first_id = max((job.id for job in self.slurm.jobs()), default=0)
        return self

    def stand_in(self, program: str, script: str) -> None:
        """Have a script run in place of a program of Slurm."""
        path = self.folder / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)
        self.env["PATH"] = f"{path.parent}:{os.environ['PATH']}"

    def note_calls(self, *programs: str) -> Path:
        """Have each call of programs of Slurm noted: time, parent, job, command."""
        calls = self.folder / "calls.txt"
        for name in programs:
            note = f'echo "$(date +%s) $PPID ${{SLURM_JOB_ID:-none}} {name} $*" >> "{calls}"'
            self.stand_in(name, f'#!/bin/sh\n{note}\nexec {shutil.which(name)} "$@"\n')
        return calls

    def questions(self, *, of_jobs: bool = False) -> set[str]:
        """Return the noted calls of the run, or of its jobs, without those of other plugins."""
        lines = (self.folder / "calls.txt").read_text().splitlines()
        asked = [line.split(maxsplit=3)[2:] for line in lines]
        # Snakemake's plugin for Slurm looks at MinJobAge wherever it is imported
        return {what for job, what in asked if (job != "none") == of_jobs} - {
            "scontrol show config"
        }

    def check_jobs_ask_nothing(self) -> None:
        """Of the noted calls none is a job's."""
        assert not self.questions(of_jobs=True)
        assert any("assoc_mgr" in what for what in self.questions())

    def command(self, *args: str) -> list[str]:
        return [
            *(sys.executable, "-m", "snakemake", *self.targets, *args),
            *("--snakefile", str(self.snakefile), "--configfile", "config.yaml"),
            *self.profile,
            *self.options(),
        ]

    def options(self) -> list[str]:
        """Return the settings as options of a command."""
        given = [(key, value) for key, value in self.settings.items() if value is not None]
        return [word for key, value in given for word in (f"--tilewright-{key}", str(value))]

    def environment(self) -> dict[str, str]:
        own = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
        paths = {
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "PYTHONPATH": ":".join(str(REPO / one) for one in _SOURCES),
        }
        return {**own, **self.slurm.env, **paths, **self.env}

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start Snakemake in a session of its own; what it says goes to ``run.log``."""
        with (self.folder / "run.log").open("w") as log:
            return subprocess.Popen(
                self.command(*args), cwd=self.folder, env=self.environment(), stdout=log,
                stderr=subprocess.STDOUT, text=True, start_new_session=True,
                preexec_fn=_heed_signals,
            )  # fmt: skip

    def finish(self, process: subprocess.Popen[str], timeout_s: float = 300) -> int:
        """Wait for the end of a run; one that hangs fails the test with its log.

        ``timeout_s`` is for an idle machine.
        """
        try:
            return process.wait(BUSY * timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(
                f"still running after {BUSY * timeout_s:g} s\n{self.log[-6000:]}"
            ) from None

    def run(self, *args: str, ok: bool = True, timeout_s: float = 300) -> float:
        """Run to the end and return the seconds it took."""
        began = time.monotonic()
        status = self.finish(self.start(*args), timeout_s)
        assert (status == 0) == ok, self.log[-6000:]
        return time.monotonic() - began

    def orphaned(self, *args: str) -> subprocess.CompletedProcess[str]:
        """List the jobs of a killed run, or end them with ``--cancel``."""
        return subprocess.run(
            [*PLACEMENT, "orphaned", *args], cwd=self.folder, env=self.environment(),
            capture_output=True, text=True, check=False, timeout=BUSY * 60,
        )  # fmt: skip

    def wait_orphaned(self) -> None:
        """Wait until the jobs of a killed run have ended."""
        wait_for(lambda: self.orphaned().returncode == 0, 180, "the jobs that were left")

    @property
    def log(self) -> str:
        return (self.folder / "run.log").read_text()

    @property
    def events(self) -> list[dict[str, Any]]:
        """The ledger."""
        return [event for path in self.folder.rglob("ledger.jsonl") for event in read_ledger(path)]

    def placed(self) -> Counter[str]:
        """Return how many jobs went to each pool."""
        return Counter(event["pool"] for event in self.events if event["event"] == "place")

    def moves(self) -> Counter[str]:
        """Return how often each job was moved."""
        return Counter(event["job"] for event in self.events if event["event"] == "move")

    def causes(self) -> set[str]:
        """Return why tries failed."""
        return {event["cause"] for event in self.events if event["event"] == "fail"}

    def pending(self) -> list[int]:
        """Return the numbers of this run's jobs that pend now."""
        done = self.slurm.run(["squeue", "-h", "-u", "root", "-t", "PD", "-o", "%A"])
        return sorted(map(int, done.stdout.split()))

    def jobs(self) -> list[Job]:
        """Return this run's jobs as Slurm's accounting has them."""
        return [job for job in self.slurm.jobs()
                if job.id > self.first_id and job.workdir == str(self.folder)]  # fmt: skip

    def wait_running(self, count: int) -> None:
        """Wait until so many jobs run at once."""

        def running() -> bool:
            return sum(job.state == "RUNNING" for job in self.jobs()) >= count

        wait_for(running, 90, f"{count} running jobs")

    def check_limits(self, *others: Job) -> None:
        """No account ever held more than its limits."""
        for account in ACCOUNTS:
            peak = peak_use([*self.jobs(), *others], account.name)
            assert peak["cpu"] <= account.cpus, (account, peak)
            assert peak["mem_mb"] <= account.mem_gb * 1024, (account, peak)
            assert peak["gpus"] <= account.gpus, (account, peak)

    def check_calm(self) -> None:
        """No job was moved and none failed."""
        assert not self.moves(), dump(self.events)
        assert not self.causes(), dump(self.events)

    def check_placed(self, accounts: set[str]) -> list[Job]:
        """Every job of Slurm ran in one of these accounts and is in the ledger, place and end.

        Those that completed are returned.
        """
        events = self.events
        placed = Counter(event["job"] for event in events if event["event"] == "place")

        def known() -> bool:  # slurmdbd hears of starts and ends later where the machine is busy
            jobs = self.jobs()
            return len(jobs) >= placed.total() and all(job.ended for job in jobs)

        wait_for(known, 60, f"the accounting of {placed.total()} jobs")
        jobs = self.jobs()
        assert {job.account for job in jobs} <= accounts, dump(events)
        assert placed == Counter(job.comment for job in jobs), dump(events)
        completed = [job for job in jobs if job.state == "COMPLETED"]
        ended = {(e["job"], e["account"], e["slurm_id"]) for e in events if e["event"] == "done"}
        assert ended == {(job.comment, job.account, job.id) for job in completed}, dump(events)
        return completed

    def check_outputs(self, *expected: int, once: bool = True) -> None:
        """Every output is whole, nothing else is there, and each was written once."""
        found = {path.stem: path.read_text() for path in (self.folder / "out").glob("*.txt")}
        assert found == {str(i): f"{i}\n" * 1000 for i in expected}, found.keys()
        if once:
            writes = Counter((self.folder / "writes.txt").read_text().split())
            assert max(writes.values()) == 1, writes

    def traces(self, name: int) -> list[str]:
        """Return device and node of each try of one job."""
        return [p.read_text().strip() for p in sorted((self.folder / "traces").glob(f"{name}.*"))]


def _heed_signals() -> None:
    """Tests under nohup, or in the background of a shell, would hand on that these are ignored."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def foreign(
    slurm: Cluster,
    folder: Path,
    name: str,
    settings: dict[str, object] | None = None,
    **config: Any,
) -> ClusterRun:
    """Prepare a workflow of ``tests/support/foreign``, which is none of images."""
    run = ClusterRun(slurm, folder, REPO / f"tests/support/foreign/{name}/Snakefile")
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return run.prepare(settings)


def rule_of(job: Job) -> str:
    """Return the rule in a job's comment; of a group its name, without a number that differs."""
    rule = job.comment.removeprefix("rule_").partition("_wildcards_")[0]
    return rule[37:] if rule.count("-") == 4 else rule  # groups of pipes are numbered


def dump(events: list[dict[str, Any]]) -> str:
    """Return events as lines, for the message of a failed test."""
    return "\n".join(json.dumps(event) for event in events)
