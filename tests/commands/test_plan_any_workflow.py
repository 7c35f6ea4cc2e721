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
from snakemake_scheduler_plugin_tilewright.commands.plan import plan_workflow, read_workflow
from snakemake_scheduler_plugin_tilewright.commands.plan_table import print_plan
from snakemake_scheduler_plugin_tilewright.placement import cluster
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a Snakefile, and the recorded cluster as that of this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TILEWRIGHT_SITE", raising=False)
    monkeypatch.setattr(cluster, "_current", cluster_with("", tmp_path)[0])
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_jobs_are_those_of_the_command() -> None:
    argv = list(sys.argv)
    options = ["--config", "samples=2", "--set-threads", "a=4", "--default-resources", "mem_mb=700"]
    plan, tasks, *_ = read_workflow(options, site=None, slurm=True)
    shapes = {
        task.name: plan.sizes.shape(
            task.job.rule, task.job.wildcards, gpu=task.job.kinds == ("gpu",)
        )
        for task in tasks
    }
    assert len(shapes) == 4
    found = {(s.cpus, s.mem_mb, s.gpus, s.runtime_min) for s in shapes.values()}
    assert found == {(4, 2000, 0, 20), (1, 700, 1, 4)}
    needs = {task.name: task.job.needs for task in tasks}
    assert needs["rule_b_wildcards_1"] == ("rule_a_wildcards_1",)
    assert sys.argv == argv
    until = read_workflow(["--until", "a"], site=None, slurm=True)[1]
    assert {task.job.rule for task in until} == {"a"}
    assert [t.name for t in read_workflow(["a/0"], site=None, slurm=True)[1]] == [
        "rule_a_wildcards_0"
    ]


@pytest.mark.usefixtures("folder")
def test_a_group_is_one_job() -> None:
    options = ["--groups", "a=g", "b=g", "--group-components", "g=3"]
    (task,) = read_workflow(options, site=None, slurm=True)[1]
    assert (task.job.rule, task.job.members) == ("group a+b", 6)
    out = StringIO()
    print_plan(plan_workflow(options, site=None, slurm=True), Console(file=out, width=80))
    said = "1 job (6 of Snakemake's, some in groups) to "
    assert out.getvalue().startswith(f"{said}do for all targets\n")
    checks = {check.about: check for check in examine(options, site=None, slurm=False)}
    assert checks["jobs"].text == f"{said}place"


def test_local_jobs_are_said_not_to_be_counted(folder: Path) -> None:
    text = (folder / "Snakefile").read_text()
    (folder / "Snakefile").write_text(f"localrules: a, all\n{text}")
    found = plan_workflow([], site=None, slurm=True)
    assert found.jobs == 3
    assert "not counted: 3 local jobs, run where snakemake itself runs" in found.notes


def test_where_jobs_would_go_and_what_is_in_the_way(folder: Path) -> None:
    found = plan_workflow([], site=None, slurm=True)
    assert found.jobs == 6
    assert found.forecast is not None
    assert {rule.rule: (rule.gpu, rule.cpu) for rule in found.forecast.rules} == {
        "a": (0, 3), "b": (3, 0),
    }  # fmt: skip
    here = plan_workflow([], site=None, slurm=False)
    assert here.here is not None
    assert here.here.jobs == {"a": 3, "b": 3}
    with pytest.raises(DagError, match="there is no rule to produce nothing"):
        plan_workflow(["nothing"], site=None, slurm=False)
    with pytest.raises(DagError, match="unrecognized arguments: --colour"):
        plan_workflow(["--colour"], site=None, slurm=False)
    checks = {check.about: check for check in examine([], site=None, slurm=False)}
    assert (checks["jobs"].state, checks["jobs"].text) == ("ok", "6 jobs to place")
    (folder / "Snakefile").unlink()
    checks = {check.about: check for check in examine([], site=None, slurm=False)}
    assert checks["jobs"].state == "problem"


def test_nothing_is_said_of_gpus_where_no_job_asks_for_one(folder: Path) -> None:
    options = ["--until", "a"]
    found = plan_workflow(options, site=None, slurm=True)
    out = StringIO()
    print_plan(found, Console(file=out, width=80))
    assert "(lower bound" in out.getvalue()
    assert "half of the stated runtime;" in " ".join(found.notes)
    assert "gpu" not in out.getvalue().lower()
    out = StringIO()
    print_plan(plan_workflow([], site=None, slurm=True), Console(file=out, width=80))
    assert "GPUs only" in out.getvalue()


def test_jobs_of_a_checkpoint_are_said_not_to_be_counted(folder: Path) -> None:
    assert not [n for n in plan_workflow([], site=None, slurm=True).notes if "checkpoint" in n]
    text = (folder / "Snakefile").read_text()
    (folder / "Snakefile").write_text(
        f"def parts(wildcards):\n    return checkpoints.a.get(i=0).output\n{text}".replace(
            "rule a:", "checkpoint a:"
        ).replace('input: "a/{i}"', "input: parts")
    )
    for slurm in (True, False):
        found = plan_workflow([], site=None, slurm=slurm)
        assert "the jobs that checkpoint a will add are not counted" in found.notes


@pytest.mark.usefixtures("folder")
def test_the_command_line_hands_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no Slurm
    done = CliRunner().invoke(app, ["plan", "--json", "--config", "samples=1", "--until", "a"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["jobs"] == 1
    assert CliRunner().invoke(app, ["doctor", "--nonsense"]).exit_code == 1
