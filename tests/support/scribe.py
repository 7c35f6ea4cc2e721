"""Real runs of Snakemake whose executor runs nothing and writes down what it was given."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from snakemake_scheduler_plugin_tilewright.runtime.ledger import read_ledger
from tests.support.runs import REPO

EXECUTOR = """
import json
from pathlib import Path
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings

common_settings = CommonSettings(
    non_local_exec=True, implies_no_shared_fs=False, job_deploy_sources=False,
    pass_default_storage_provider_args=False, pass_default_resources_args=False,
    pass_envvar_declarations_to_cmd=False, auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=0,
)

#: Rules whose jobs fail at their first try.
ONCE = ("lost", "gone", "hungry", "starved", "growing", "per_cpu")

class Executor(RemoteExecutor):
    def run_job(self, job):
        given = {"threads": job.threads, "attempt": job.attempt, **dict(job.resources.items())}
        name, wildcards = job.name, getattr(job, "wildcards", {})
        if job.is_group():
            given["comment"] = f"rule_{name}_wildcards_{'_'.join(wildcards)}"
            name, wildcards = "group " + "+".join(sorted(job.rules)), {}
        with Path("dispatched.jsonl").open("a") as stream:
            stream.write(json.dumps([name, dict(wildcards), given]) + "\\n")
        if self.fails(job):
            Path(job.log[0]).write_text("ValueError: the same every time\\n")
        else:
            jobs = job.jobs if job.is_group() else [job]
            for one, path in [(one, Path(path)) for one in jobs for path in one.output]:
                path.parent.mkdir(parents=True, exist_ok=True)
                if one.rule.is_checkpoint:
                    path.mkdir()
                    (path / "a.part").touch()
                    (path / "b.part").touch()
                path.touch()
        self.report_job_submission(SubmittedJobInfo(job))

    def run_jobs(self, jobs):
        for job in jobs:
            words = self.refusal(job)
            if words:
                self.report_job_error(SubmittedJobInfo(job), msg=words)
            else:
                self.run_job_pre(job)
                self.run_job(job)

    def refusal(self, job):
        half = job.name == "half" and job.resources.get("slurm_account") != "clive"
        if job.name == "never" or half:
            return (
                "SLURM sbatch failed. The error message was 'sbatch: error: Batch job submission "
                "failed: Invalid qos specification'.\\n    sbatch call:\\n        sbatch"
            )

    def fails(self, job):
        rules = job.rules if job.is_group() else {job.rule.name}
        return "bad" in rules or (bool(rules & set(ONCE)) and job.attempt == 1)

    async def check_active_jobs(self, active_jobs):
        for info in active_jobs:
            if self.fails(info.job):
                self.report_job_error(info)
            elif Path(f"{info.job.name}.held").exists():  # until it is gone
                yield info
            else:
                self.report_job_success(info)

    def cancel_jobs(self, active_jobs):
        pass
"""


class Code(str):
    """An expression of a Snakefile, as it stands."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def rule(name: str, keyword: str = "rule", /, **stated: object) -> str:
    """Return a rule whose jobs do nothing; what is no directive is one of its resources.

    ``resources`` are more of them, as they stand.
    """
    directives = ("output", "input", "log", "group", "threads", "retries")
    lines = [f"{key}: {stated.pop(key)!r}" for key in directives if key in stated]
    more = [str(stated.pop("resources"))] if "resources" in stated else []
    if resources := [f"{key}={value!r}" for key, value in stated.items()] + more:
        lines.append(f"resources: {', '.join(resources)}")
    return "\n    ".join([f"{keyword} {name}:", *lines, 'shell: "true"\n'])


def default_target(*inputs: str) -> str:
    """Return the rule that the others are made for; the executor gets no job of it."""
    wanted = ", ".join(map(repr, inputs))
    return f"rule all:\n    default_target: True\n    input: {wanted}\nlocalrules: all\n"


def run(
    folder: Path,
    snakefile: str,
    scheduler: str,
    *args: str,
    plugins: Mapping[str, str] = MappingProxyType({}),
    executor: str = "scribe",
) -> subprocess.CompletedProcess[str]:
    """Run Snakemake in a folder, with the executor of this file, by any name, and other plugins."""
    for name, text in {f"executor_plugin_{executor}": EXECUTOR, **plugins}.items():
        package = folder / f"plugins/snakemake_{name}"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(text)
    (folder / "Snakefile").write_text(snakefile)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("SLURM_")},
        "PYTHONPATH": f"{folder / 'plugins'}:{REPO / 'src'}:{REPO / 'scheduler-plugin/src'}:{REPO}",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "-j", "9", "--executor", executor, "--latency-wait",
         "1", "--seconds-between-status-checks", "1", "--scheduler", scheduler, *args],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def dispatched(folder: Path, rule: str) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Return wildcards and resources of the jobs that reached the executor."""
    lines = map(json.loads, (folder / "dispatched.jsonl").read_text().splitlines())
    return [(wildcards, given) for name, wildcards, given in lines if name == rule]


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the events of a name in the ledger of a workflow without a plan."""
    ledger = read_ledger(folder / ".snakemake/tilewright/ledger.jsonl")
    return [event for event in ledger if event["event"] == name]
