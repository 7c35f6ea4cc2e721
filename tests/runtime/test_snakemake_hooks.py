"""Canaries: the documented hooks that placement relies on, each by its name: is it called?"""

from __future__ import annotations

import pytest
import snakemake

from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter as adapter
from tests.support.scribe import run

CANARY = """
from dataclasses import dataclass
from pathlib import Path
from snakemake_interface_scheduler_plugins.base import SchedulerBase
from snakemake_interface_scheduler_plugins.settings import SchedulerSettingsBase

def called(hook):
    with Path("called").open("a") as stream:
        stream.write(hook + "\\n")

@dataclass
class SchedulerSettings(SchedulerSettingsBase):
    def __post_init__(self):
        called("SchedulerSettings.__post_init__")

class Scheduler(SchedulerBase):
    def __post_init__(self):
        called("Scheduler.__post_init__")

    def dag_updated(self):
        called("Scheduler.dag_updated")

    def select_jobs(self, selectable_jobs, remaining_jobs, available_resources, input_sizes):
        called("Scheduler.select_jobs")
        for job in selectable_jobs:
            if job.is_group():
                called("Scheduler.select_jobs with a group")
            elif job.rule.name == "free" and job in remaining_jobs:
                called("Scheduler.select_jobs with the jobs of a checkpoint")
        return list(selectable_jobs)
"""
SNAKEFILE = """
def parts(wildcards):
    folder = checkpoints.split.get().output[0]
    return [f"free/{i}.txt" for i in glob_wildcards(folder + "/{i}.part").i]

rule all:
    default_target: True
    input: parts, "group.txt"
localrules: all
checkpoint split:
    output: directory("parts")
    shell: "true"
rule free:
    output: "free/{i}.txt"
    shell: "true"
rule group:
    output: "group.txt"
    group: "grouped"
    shell: "true"
rule bad:
    output: "bad.txt"
    log: "bad.log"
    shell: "true"
onsuccess:
    shell("echo onsuccess >> called")
onerror:
    shell("echo onerror >> called")
"""


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What Snakemake called in a run that ends well and in one that does not."""
    found: set[str] = set()
    for targets in ((), ("bad.txt",)):
        folder = tmp_path_factory.mktemp("hooks")
        plugins = {"scheduler_plugin_canary": CANARY}
        done = run(folder, SNAKEFILE, "canary", *targets, plugins=plugins)
        assert (done.returncode == 0) == (not targets), done.stdout + done.stderr
        found |= set((folder / "called").read_text().splitlines())
    return found


@pytest.mark.parametrize("hook", adapter.HOOKS)
def test_snakemake_calls(hooks: set[str], hook: str) -> None:
    assert hook in hooks, f"Snakemake {snakemake.__version__} does not call {hook}"


def test_nothing_calls_dag_updated(hooks: set[str]) -> None:
    """If something does one day, jobs need not be looked for in every round."""
    assert "Scheduler.dag_updated" not in hooks
