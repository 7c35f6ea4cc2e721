"""``tilewright-placement plan``: what remains of any workflow, and one round of placement."""

import json
import sys
from collections import Counter
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from snakemake_scheduler_plugin_tilewright.cli import app
from snakemake_scheduler_plugin_tilewright.cluster import cluster
from snakemake_scheduler_plugin_tilewright.cluster.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.commands.plan import Remaining, plan_workflow, print_plan
from snakemake_scheduler_plugin_tilewright.errors import PlacementError, SlurmQueryError
from tests.commands.no_slurm import command
from tests.support.recorded import cluster_with, queue_line
from tests.support.runs import REPO, make_run

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
    use(monkeypatch, cluster_with("", tmp_path)[0])
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    return tmp_path / "Snakefile"


def use(monkeypatch: pytest.MonkeyPatch, found: Cluster) -> None:
    """Make a cluster that of every command."""
    monkeypatch.setattr(cluster, "of_command", lambda *asked: found)


def planned(*options: str, slurm: bool = True) -> tuple[Remaining, str]:
    """Return a plan, and how it is printed."""
    found, out = plan_workflow(options, site=None, slurm=slurm), StringIO()
    print_plan(found, Console(file=out, width=80))
    return found, out.getvalue()


def counts(found: Remaining) -> dict[str, tuple[int, int, int]]:
    """Return how many jobs of each rule remain, are ready, and start."""
    return {rule: (one.remain, one.ready, one.start.total()) for rule, one in found.rules.items()}


def test_jobs_are_those_of_the_command(tmp_path: Path) -> None:
    argv = list(sys.argv)
    assert counts(planned("--config", "samples=2")[0]) == {"a": (2, 2, 2), "b": (2, 0, 0)}
    assert counts(planned("--until", "a")[0]) == {"a": (3, 3, 3)}
    (tmp_path / "a").mkdir()
    (tmp_path / "a/0").touch()
    found, _ = planned("b/0")
    assert counts(found) == {"b": (1, 1, 1)}
    (pool,) = found.rules["b"].start
    assert pool == "clive GPU (QOS clive, partition hpg-b200)"
    assert counts(planned()[0]) == {"a": (2, 2, 2), "b": (3, 1, 1)}
    assert planned("a/0")[1] == "nothing remains to be done\n"
    assert sys.argv == argv


def test_no_more_start_than_are_free_and_it_is_said_why_others_wait() -> None:
    found, said = planned("--config", "samples=60")
    jobs = found.rules["a"]
    assert 0 < jobs.start.total() < jobs.ready == 60
    assert all(" CPU (QOS " in pool for pool in jobs.start)
    assert sum(n for pool, n in jobs.start.items() if "maigan" in pool) <= 80 // 16
    assert found.waiting.total() == 60 - jobs.start.total()
    assert (
        f"{60 - jobs.start.total()} ready jobs would wait: every slot it may use is taken" in said
    )
    assert max(map(len, said.split("\n\n", maxsplit=1)[0].splitlines()[:5])) <= 80
    few, _ = planned("--jobs", "2")
    assert few.rules["a"].start.total() == 2
    assert few.waiting == Counter({"Snakemake runs no more jobs at once (--jobs)": 1})


def test_what_a_run_refuses_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlacementError, match="cpu=400 and account"):
        planned("--set-threads", "a=400")
    for option, words in (("nothing", "No rule to produce nothing$"),
                          ("--colour", "unrecognized arguments: --colour")):  # fmt: skip
        with pytest.raises(PlacementError, match=words):
            planned(option, slurm=False)
    hidden, _ = cluster_with(SlurmQueryError("squeue", "refused"), tmp_path)
    use(monkeypatch, hidden)
    with pytest.raises(PlacementError, match=r"what is free is not known: .*refused"):
        planned()


def test_a_group_is_one_job() -> None:
    found, _ = planned("--config", "samples=1", "--groups", "a=g", "b=g")
    assert counts(found) == {"group a+b": (1, 1, 1)}


def test_what_is_not_counted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "Snakefile"
    path.write_text(f"localrules: a, all\n{SNAKEFILE}")
    found, _ = planned()
    assert counts(found) == {"b": (3, 0, 0)}
    assert found.notes == ["not counted: 3 local jobs, run where snakemake runs"]
    text = SNAKEFILE.replace("rule a:", "checkpoint a:").replace('input: "a/{i}"', "input: parts")
    path.write_text("def parts(wildcards):\n    return checkpoints.a.get(i=0).output\n" + text)
    for slurm in (True, False):
        notes = planned(slurm=slurm)[0].notes
        assert "the jobs that checkpoint a will add are not counted" in notes
    sent = queue_line(JobID="7", State="RUNNING", WorkDir=str(tmp_path), Comment="rule_a_b")
    use(monkeypatch, cluster_with(sent, tmp_path)[0])
    twice = "counted twice, as in use and as remaining: 1 job of this folder in the queue"
    assert twice in planned()[0].notes


def test_the_command_line_hands_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no Slurm
    done = CliRunner().invoke(app, ["plan", "--json", "--config", "samples=1", "--until", "a"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["rules"] == {"a": {"remain": 1, "ready": 1, "start": {}}}
    assert found["notes"][0].startswith("no Slurm here")


@pytest.mark.workflow
def test_the_jobs_of_tilewright_are_those_of_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, cycles=2, channels=2, rows=1, cols=2, planes=3, tile_px=128)
    run.snakemake("results/tonsil/illumination/cycle1-ffp.tif", "--cores", "2")
    dry = run.planned("registration", "qc")
    own = ("plan", "registration", "qc", "-s", str(REPO / "workflow/Snakefile"), "--configfile")
    done = command(app, run, monkeypatch, *own, "config.yaml", "--json")
    assert (done.exit_code, done.stderr) == (0, ""), done.exception
    rules = json.loads(done.stdout)["rules"]
    assert dry.pop("summary") == dry.pop("verdict") == 1  # local rules are not placed
    assert {rule: jobs["remain"] for rule, jobs in rules.items()} == dry
    assert rules["illumination"] == {"remain": 1, "ready": 1, "start": {}}
    bad = tmp_path / "bad.yaml"
    bad.write_text(run.config.read_text().replace("convention:", "pattern: 1\n  convention:"))
    for name, said in (
        ("bad.yaml", "'acquisition.pattern' is 1: input should be a valid string"),
        ("none.yaml", "[Errno 2] No such file or directory: 'none.yaml'"),
    ):
        done = command(app, run, monkeypatch, *own, name)
        assert done.exit_code == 1
        assert str(done.exception).startswith(f"plan: {said}")
