"""``tilewright-placement plan`` and ``doctor`` on a workflow that never heard of placement."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from snakemake_scheduler_plugin_tilewright.cli import app
from snakemake_scheduler_plugin_tilewright.commands.dag import DagError
from snakemake_scheduler_plugin_tilewright.commands.doctor import examine
from snakemake_scheduler_plugin_tilewright.commands.plan import (
    PlannedRun,
    plan_workflow,
    read_workflow,
)
from snakemake_scheduler_plugin_tilewright.commands.plan_table import print_plan
from snakemake_scheduler_plugin_tilewright.placement import cluster
from snakemake_scheduler_plugin_tilewright.placement.jobs import Task
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from tests.support.recorded import cluster_with

SNAKEFILE = """
rule all:
    input: expand("b/{i}", i=range(config.get("samples", 3)))

rule a:
    output: "a/{i}"
    threads: 16
    resources: mem_mb=2000, runtime=20
    shell: "touch {output}"

rule b:
    input: "a/{i}"
    output: "b/{i}"
    resources: runtime=4, gpu=1
    shell: "touch {output}"
"""


@pytest.fixture(autouse=True)
def snakefile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a Snakefile, and the recorded cluster as that of this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TILEWRIGHT_SITE", raising=False)
    monkeypatch.setattr(cluster, "_current", cluster_with("", tmp_path)[0])
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    return tmp_path / "Snakefile"


def planned(*options: str, slurm: bool = True) -> tuple[PlannedRun, str]:
    """Return a plan, and how it is printed."""
    found, out = plan_workflow(options, site=None, slurm=slurm), StringIO()
    print_plan(found, Console(file=out, width=80))
    return found, out.getvalue()


def tasks(*options: str) -> tuple[Plan, list[Task]]:
    plan, found, *_ = read_workflow(options, site=None, slurm=True)
    return plan, list(found)


def jobs_checked(*options: str) -> tuple[str, str]:
    (found,) = [c for c in examine(options, site=None, slurm=False) if c.about == "jobs"]
    return found.state, found.text


def test_jobs_are_those_of_the_command() -> None:
    argv = list(sys.argv)
    options = ["--config", "samples=2", "--set-threads", "a=4", "--default-resources", "mem_mb=700"]
    plan, found = tasks(*options)
    assert len(found) == 4
    assert {
        (s.cpus, s.mem_mb, s.gpus, s.runtime_min)
        for job in (task.job for task in found)
        for s in [plan.sizes.shape(job.rule, job.wildcards, gpu=job.kinds == ("gpu",))]
    } == {(4, 2000, 0, 20), (1, 700, 1, 4)}
    needs = {task.name: task.job.needs for task in found}
    assert needs["rule_b_wildcards_1"] == ("rule_a_wildcards_1",)
    assert sys.argv == argv
    assert {task.job.rule for task in tasks("--until", "a")[1]} == {"a"}
    assert [task.name for task in tasks("a/0")[1]] == ["rule_a_wildcards_0"]


def test_a_group_is_one_job() -> None:
    options = ["--groups", "a=g", "b=g", "--group-components", "g=3"]
    _, (task,) = tasks(*options)
    assert (task.job.rule, task.job.members) == ("group a+b", 6)
    said = "1 job (6 of Snakemake's, some in groups) to "
    assert planned(*options)[1].startswith(f"{said}do for all targets\n")
    assert jobs_checked(*options) == ("ok", f"{said}place")


def test_local_jobs_are_said_not_to_be_counted(snakefile: Path) -> None:
    snakefile.write_text(f"localrules: a, all\n{SNAKEFILE}")
    found, _ = planned()
    assert found.jobs == 3
    assert "not counted: 3 local jobs, run where snakemake itself runs" in found.notes


def test_where_jobs_would_go_and_what_is_in_the_way(snakefile: Path) -> None:
    found, said = planned()
    assert found.jobs == 6
    assert found.forecast is not None
    shares = {rule.rule: (rule.gpu, rule.cpu) for rule in found.forecast.rules}
    assert shares == {"a": (0, 3), "b": (3, 0)}
    assert "GPUs only" in said
    assert not [note for note in found.notes if "checkpoint" in note]
    here, _ = planned(slurm=False)
    assert here.here is not None
    assert here.here.jobs == {"a": 3, "b": 3}
    for option, words in (("nothing", "there is no rule to produce nothing"),
                          ("--colour", "unrecognized arguments: --colour")):  # fmt: skip
        with pytest.raises(DagError, match=words):
            planned(option, slurm=False)
    assert jobs_checked() == ("ok", "6 jobs to place")
    snakefile.unlink()
    assert jobs_checked()[0] == "problem"


def test_nothing_is_said_of_gpus_where_no_job_asks_for_one() -> None:
    found, said = planned("--until", "a")
    assert "(lower bound" in said
    assert "half of the stated runtime;" in " ".join(found.notes)
    assert "gpu" not in said.lower()


def test_jobs_of_a_checkpoint_are_said_not_to_be_counted(snakefile: Path) -> None:
    text = SNAKEFILE.replace("rule a:", "checkpoint a:").replace('input: "a/{i}"', "input: parts")
    function = "def parts(wildcards):\n    return checkpoints.a.get(i=0).output\n"
    snakefile.write_text(function + text)
    for slurm in (True, False):
        notes = planned(slurm=slurm)[0].notes
        assert "the jobs that checkpoint a will add are not counted" in notes


def test_the_command_line_hands_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no Slurm
    done = CliRunner().invoke(app, ["plan", "--json", "--config", "samples=1", "--until", "a"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["jobs"] == 1
    assert CliRunner().invoke(app, ["doctor", "--nonsense"]).exit_code == 1
