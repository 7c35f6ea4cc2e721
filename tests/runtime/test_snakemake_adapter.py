"""Canaries: what placement touches of Snakemake beyond its interfaces, each by its name.

One small real run writes down what its scheduler, DAG, workflow and job have; where Snakemake
renames something, the case with that name fails.
"""

from __future__ import annotations

import inspect
import io
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import snakemake
import snakemake.cli
import snakemake.common
from snakemake.api import WorkflowApi
from snakemake.resources import Resource
from snakemake_executor_plugin_slurm import Executor as SlurmExecutor  # type: ignore[import-untyped]
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_scheduler_plugins.tests import DummyDAG

from snakemake_scheduler_plugin_tilewright.placement import cluster
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter as adapter
from snakemake_scheduler_plugin_tilewright.runtime.snakemake_command import (
    LOOKING,
    beside_profile,
    only_looks,
    targets,
)
from snakemake_scheduler_plugin_tilewright.scheduler import Scheduler
from tests.support.scribe import dispatched, run

NEEDED = [(what, name) for what in adapter.NEEDED for name in adapter.NEEDED[what]]
NAMES = [f"{what}.{name}" for what, name in NEEDED]

CANARY = """
import json
import threading
from pathlib import Path
from snakemake_interface_scheduler_plugins.base import SchedulerBase
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter as adapter

class Scheduler(SchedulerBase):
    calls = 0

    def select_jobs(self, selectable_jobs, remaining_jobs, available_resources, input_sizes):
        dag = self.dag
        jobs = {job.rule.name: job for job in selectable_jobs if not job.is_group()}
        group = next(job for job in selectable_jobs if job.is_group())
        job, workflow = jobs["work"], dag.workflow
        things = {"scheduler": workflow.scheduler, "dag": dag, "job": job, "workflow": workflow,
                  "executor": workflow.scheduler._executor, "group": group}
        names = {what: [n for n in names if hasattr(things[what], n)]
                 for what, names in adapter.NEEDED.items()}
        Path("names.json").write_text(json.dumps(names))
        seen = {}
        for what, thing in things.items():
            adapter.check(what, thing)
        seen["functions"] = [(rule, f.__name__) for rule, f in adapter.resource_functions(dag)]
        seen["chosen"] = [[list(c), t] for c, t in (
            adapter.chosen_resources(dag, rule) for rule in ("work", "other"))]
        seen["executor"] = adapter.executor(dag)
        seen["is_snakemakes"] = adapter.is_snakemakes(dag)
        seen["workdir"] = adapter.workdir(dag)
        seen["started"] = adapter.started(dag)
        seen["is_main"] = adapter.is_main(dag)
        seen["all done"] = adapter.all_done(dag)
        seen["anything_runs"] = adapter.anything_runs(dag)
        seen["running"] = adapter.running(dag, job)
        seen["failed"] = adapter.failed(dag, job)
        seen["has_tries"] = adapter.has_tries(job), adapter.has_tries(jobs["other"])
        seen["machine"] = adapter.machine_resources(dag)["_cores"]
        seen["ended"] = adapter.end(dag, job, "never sent", success=True)
        adapter.look_at_jobs_after(dag, 0.5)
        seen["wait_s"] = workflow.scheduler._executor.next_seconds_between_status_checks
        adapter.round_later(dag, 600)
        timers = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
        for timer in timers:
            timer.cancel()
            timer.join()
        adapter.without_timers(dag)
        adapter.round_later(dag, 600)
        after = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
        seen["timers"] = len(timers), len(after)
        adapter.wake(dag)

        def resources():
            kept = {n: job.resources.get(n) for n in ("mem_mb", "slurm_extra", "own", "new")}
            return kept | {"scheduled": job.scheduler_resources["own"]}

        part = next(job for job in dag.needrun_jobs() if job.rule.name == "part")
        own = hasattr(group, "wildcards")
        seen["unit"] = adapter.unit_of(dag, part) is group, adapter.unit_of(dag, job) is job
        seen["members"] = [len(list(adapter.members(group))), len(list(adapter.members(job)))]
        seen["open"] = [adapter.is_open(dag, one) for one in (group, job)]
        seen["grouped"] = [own, group.wildcards[:-1], len(group.wildcards[-1]), group.threads]
        adapter.change_resources(group, 1, {"mem_mb": 800, "slurm_account": "a"})
        seen["group"] = [group.resources.get(n) for n in ("mem_mb", "runtime", "slurm_account")]
        adapter.change_resources(group, 2, {"mem_mb": None})
        seen["group back"] = [group.resources.get(n) for n in ("mem_mb", "slurm_account")]
        seen["stated"] = resources()
        wanted = {"mem_mb": 700, "slurm_extra": "--nice=5 --exclude=b1", "new": "x", "own": 8}
        adapter.change_resources(job, 1, wanted)
        seen["changed"] = resources()
        adapter.change_resources(job, 2, dict.fromkeys(wanted))
        seen["back"] = resources()
        adapter.change_resources(job, 3, {"mem_mb": 900, "new": 3})
        adapter.give_up(dag, jobs["bad"])
        seen["given up"] = adapter.failed(dag, jobs["bad"]), jobs["bad"] in dag._ready_jobs
        Path("seen.json").write_text(json.dumps(seen))
        return [job, jobs["other"]]
"""
SNAKEFILE = """
rule all:
    default_target: True
    input: "work.txt", "other.txt", "bad.txt", "y.whole"
localrules: all
rule work:
    output: "work.txt"
    retries: 2
    resources:
        mem_mb=lambda wildcards: 100,
        slurm_extra="--nice=5",
        own=lambda wildcards, attempt: attempt,
    shell: "true"
rule other:
    output: "other.txt"
    shell: "true"
rule part:
    output: "{i}.part"
    group: "grouped"
    resources: mem_mb=200, runtime=3
    shell: "true"
rule whole:
    input: "x.part"
    output: "{i}.whole"
    group: "grouped"
    threads: 2
    resources: mem_mb=100, runtime=4
    shell: "true"
rule bad:
    output: "bad.txt"
    shell: "true"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose scheduler looked at everything, and gave up a job."""
    folder = tmp_path_factory.mktemp("canary")
    done = run(
        folder, SNAKEFILE, "canary", "--set-resources", "other:runtime=7", "--set-threads",
        "other=3", plugins={"scheduler_plugin_canary": CANARY},
    )  # fmt: skip
    (folder / "said").write_text(done.stdout + done.stderr)
    return folder


@pytest.fixture(scope="module")
def names(folder: Path) -> dict[str, list[str]]:
    """What of the names there is, written down before anything is used."""
    assert (folder / "names.json").is_file(), (folder / "said").read_text()
    return dict(json.loads((folder / "names.json").read_text()))


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[str, Any]:
    """What the adapter's functions found and did."""
    assert (folder / "seen.json").is_file(), (folder / "said").read_text()
    return dict(json.loads((folder / "seen.json").read_text()))


@pytest.mark.parametrize(("what", "name"), NEEDED, ids=NAMES)
def test_snakemake_has(names: dict[str, list[str]], what: str, name: str) -> None:
    assert name in names[what], f"Snakemake {snakemake.__version__} has no {what}.{name} any more"


@pytest.mark.parametrize("name", ["get_argument_parser", "get_profile_dir", "resolve_snakefile"])
def test_snakemakes_command_line_has(name: str) -> None:
    assert callable(getattr(snakemake.cli, name, None))


@pytest.mark.parametrize("name", LOOKING)
def test_snakemakes_parser_knows(name: str) -> None:
    given, _ = snakemake.cli.get_argument_parser().parse_known_args([])
    assert hasattr(given, name)


def test_rule_has_expand_priority() -> None:
    from snakemake.rules import Rule

    assert list(inspect.signature(Rule.expand_priority).parameters) == [
        "self", "wildcards", "input", "attempt",
    ]  # fmt: skip


def test_snakemake_says_at_each_round() -> None:
    from snakemake.scheduling import job_scheduler

    source = inspect.getsource(job_scheduler)
    assert f'"{adapter.ROUND[0]}"' in source
    assert adapter.ROUND[1].replace("{}", "{len(run)}") in source


@pytest.mark.parametrize("quiet", [{"PROGRESS", "RULES"}, {"RULES"}, None])
def test_rounds_are_hidden_with_quiet_progress_and_nothing_else_is(quiet: set[str] | None) -> None:
    dag = SimpleNamespace(workflow=SimpleNamespace(output_settings=SimpleNamespace(quiet=quiet)))
    stream, logger = io.StringIO(), logging.Logger("of a run")
    logger.addHandler(logging.StreamHandler(stream))
    adapter.hide_rounds(dag, logger)
    for text in ("Select jobs to execute...", "Execute 2 jobs...", "3 of 9 jobs done"):
        logger.info(text)
    hidden = quiet is not None and "PROGRESS" in quiet
    assert stream.getvalue().count("\n") == (1 if hidden else 3)
    assert "3 of 9 jobs done" in stream.getvalue()


def test_snakemake_has_func_overwrite_params_attr() -> None:
    def own(wildcards: Any) -> None: ...

    name = snakemake.common.FUNC_OVERWRITE_PARAMS_ATTR
    assert getattr(adapter.remember_parameters(own), name)
    setattr(own, name, {"remembered": None})
    assert list(snakemake.common.get_function_params(own)) == ["remembered"]


def test_resource_has_evaluator() -> None:
    def own(wildcards: Any) -> int:
        return 3

    assert Resource("name", own)._evaluator is own
    assert not callable(getattr(Resource("name", 3), "_evaluator", None))


def test_workflow_api_has_workflow() -> None:
    assert isinstance(getattr(WorkflowApi, "_workflow", None), property)


def test_executor_has_next_seconds_between_status_checks() -> None:
    found = getattr(RemoteExecutor, "next_seconds_between_status_checks", None)
    assert isinstance(found, property)
    assert found.fset is not None


def test_a_group_that_is_made_anew_has_the_same_wildcards() -> None:
    class Group:
        def __init__(self, *last: object) -> None:
            self.jobs, self.toposorted = frozenset(last), [list(last)]

        def is_group(self) -> bool:
            return True

    class Last:
        def __init__(self, name: str) -> None:
            self.wildcards, self.uuid = [name], lambda: 9 * name

        def is_group(self) -> bool:
            return False

    a, b = Last("a"), Last("b")
    first, again = Group(a, b), Group(b, a)  # nobody asks for the unit of the second
    dag: Any = SimpleNamespace(get_job_group=lambda job: first)
    assert adapter.unit_of(dag, a) is first
    found: list[Any] = [first, again]
    assert [group.wildcards for group in found] == [["a", "aaaaaaaa"]] * 2
    again.jobs, again.toposorted = frozenset([b]), [[b]]  # Snakemake merges groups in place
    assert found[1].wildcards == ["b", "bbbbbbbb"]


def test_a_run_is_seen_as_it_is(seen: dict[str, Any], folder: Path) -> None:
    assert {rule for rule, _ in seen["functions"]} >= {"work"}
    assert [name for rule, name in seen["functions"] if rule == "work"].count("<lambda>") == 2
    assert seen["chosen"] == [[[], False], [["runtime"], True]]
    assert (seen["executor"], seen["is_snakemakes"]) == ("scribe", True)
    assert Path(seen["workdir"]).resolve() == folder.resolve()
    assert (seen["started"], seen["is_main"], seen["anything_runs"]) == (True, True, False)
    assert (seen["running"], seen["failed"]) == (False, False)
    assert seen["has_tries"] == [True, False]
    assert seen["machine"] > 0
    assert not seen["all done"]
    assert seen["wait_s"] == 1.0  # the least
    assert not seen["ended"]
    assert seen["timers"] == [1, 0]
    assert not adapter.is_snakemakes(DummyDAG())


def test_a_group_is_seen_as_one_job(seen: dict[str, Any]) -> None:
    assert seen["unit"] == [True, True]
    assert seen["members"] == [2, 1]
    assert seen["open"] == [True, True]
    # if a group has wildcards of its own one day, they need not be set
    assert seen["grouped"] == [False, ["y"], 8, 2]
    assert seen["group"] == [800, 7, "a"]
    assert seen["group back"] == [200, None]


def test_the_executor_puts_the_wildcards_of_a_group_into_slurms_comment() -> None:
    from snakemake_executor_plugin_slurm.utils import (  # type: ignore[import-untyped]
        get_job_wildcards,
    )

    assert get_job_wildcards(SimpleNamespace(wildcards=["a/b", "c"])) == "a_b_c"
    assert get_job_wildcards(SimpleNamespace()) == ""
    source = inspect.getsource(SlurmExecutor.run_job)
    assert "wildcard_str = get_job_wildcards(job)" in source
    assert 'comment_str = f"rule_{job.name}_wildcards_{wildcard_str}"' in source


def test_resources_are_set_replaced_and_left_to_the_rule(
    seen: dict[str, Any], folder: Path
) -> None:
    stated = {"mem_mb": 100, "slurm_extra": "--nice=5", "own": 1, "new": None, "scheduled": 1}
    assert seen["stated"] == seen["back"] == stated
    assert seen["changed"] == {
        "mem_mb": 700,
        "slurm_extra": "--nice=5 --exclude=b1",
        "own": 8,
        "new": "x",
        "scheduled": 8,
    }
    ((_, given),) = dispatched(folder, "work")
    assert (given["mem_mb"], given["slurm_extra"], given["new"]) == (900, "--nice=5", 3)


def test_a_job_that_was_given_up_fails_and_the_others_end(
    seen: dict[str, Any], folder: Path
) -> None:
    assert seen["given up"] == [True, False]
    assert "Exiting because a job execution failed" in (folder / "said").read_text()
    assert (folder / "work.txt").is_file()
    assert (folder / "other.txt").is_file()
    assert not (folder / "bad.txt").exists()


def thing_without(what: str, name: str = "") -> Any:
    return SimpleNamespace(**{n: None for n in adapter.NEEDED[what] if n != name})


@pytest.mark.parametrize(("what", "name"), NEEDED, ids=NAMES)
def test_what_lacks_something_is_refused_with_its_name(what: str, name: str) -> None:
    adapter.check(what, thing_without(what))
    with pytest.raises(adapter.AdapterError) as caught:
        adapter.check(what, thing_without(what, name))
    assert str(caught.value) == (
        f"Snakemake {snakemake.__version__} has no {what}.{name}, which placement needs; install "
        "a version that this scheduler asks for, or run with --scheduler greedy"
    )


def dag_of_snakemake(**values: Any) -> Any:
    """Return a DAG of no jobs that says it is Snakemake's."""
    return type("DAG", (SimpleNamespace,), {"__module__": "snakemake.dag"})(**values)


def test_the_scheduler_plugin_refuses_a_dag_and_a_scheduler_of_another_snakemake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "_current", None)
    values: dict[str, Any] = {**vars(thing_without("dag")), "needrun_jobs": list}
    values["workflow"] = SimpleNamespace(**{**vars(thing_without("workflow")), "rules": []})
    logger = logging.getLogger("canary")
    lacking = {name: value for name, value in values.items() if name != "_ready_jobs"}
    with pytest.raises(WorkflowError, match=r"has no dag\._ready_jobs, which placement needs"):
        Scheduler(dag_of_snakemake(**lacking), None, logger)
    made = Scheduler(dag_of_snakemake(**values), None, logger)
    assert made.select_jobs([], [], {}, {}) == []
    placing: Any = SimpleNamespace(select=lambda *asked: ["job"])
    made._run = placing
    values["workflow"].scheduler = thing_without("scheduler", "failed")
    with pytest.raises(WorkflowError, match=r"has no scheduler\.failed, which placement needs"):
        made.select_jobs([], [], {}, {})
    values["workflow"].scheduler = thing_without("scheduler")
    assert made.select_jobs([], [], {}, {}) == ["job"]


@pytest.mark.parametrize(
    "command",
    [
        "-n",
        "-np",
        "-pn",
        "-kn",
        "-nk",
        "-kpn",
        "-Fn",
        "--config a=1 -n",
        "registration -n --configfile c.yaml",
        "--dry-run",
        "--dryrun",
        "--summary",
        "--detailed-summary",
        "--dag",
        "--dag=mermaid-js",
        "--rulegraph",
        "--filegraph",
        "--d3dag",
        "--lint",
        "--lint json",
        "--list",
        "--list-rules",
        "--list-changes code",
        "--list-untracked",
        "--report",
        "--report=out.html",
        "--archive a.tar.gz",
        "--containerize",
        "--touch",
        "--cleanup-metadata out.txt",
    ],
)
def test_these_only_look(command: str) -> None:
    assert only_looks(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "",
        "registration qc",
        "--unlock",
        "-j4",
        "-j 4 -k",
        "-s Snakefile",
        "--snakefile n",
        "--config n=1",
        "--config -C nn=1",
        "--configfile new.yaml",
        "-p",
        "-F",
        "-R stitch",
        "--nolock",
        "--notemp",
        "-c2",
        "-q rules",
        "--rerun-incomplete",
        "--scheduler greedy",
        "--set-resources work:slurm_account=clive",
        "--cleanup-shadow",
        "n",
        "results/run-n",
        "--no-hooks",
        "--delete-all-output",
    ],
)
def test_these_run_jobs_or_unlock(command: str) -> None:
    assert not only_looks(command.split())


@pytest.mark.parametrize("looks", ["-nj4", "-fn", "-S", "-t", "--dryru", "--lc code", "--report"])
def test_what_only_looks(looks: str) -> None:
    assert only_looks(["registration", *looks.split()])


def test_what_runs() -> None:
    assert not only_looks(["registration", "--report-after-run"])


def test_targets_are_those_of_snakemakes_own_commands(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["registration", "qc", "-n", "--configfile", "edf", "--until", "stitching"]
    assert targets(command) == ["registration", "qc"]
    assert targets(["plan", "--target", "qc"]) == []
    assert capsys.readouterr().err == ""


def test_a_copied_profile_has_the_site_file_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").touch()
        (tmp_path / name / "site.yaml").touch()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.yaml").touch()
    site = Path("site.yaml")

    def found(command: str) -> Path:
        return beside_profile(site, ["snakemake", *command.split()])

    assert found("all --workflow-profile theirs") == Path("theirs/site.yaml")
    assert found("--workflow-profile=ours/config.yaml -n").resolve() == tmp_path / "ours/site.yaml"
    assert found("--profile theirs --jobs 3").resolve() == tmp_path / "theirs/site.yaml"
    assert found("--workflow-profile bare --profile ours").resolve() == tmp_path / "ours/site.yaml"
    (tmp_path / "profiles").mkdir()
    (tmp_path / "ours").rename(tmp_path / "profiles/hidden")
    assert found("--workflow-profile hidden") == Path("profiles/hidden/site.yaml")
    (tmp_path / "profiles/hidden").rename(tmp_path / "ours")
    assert found("--workflow-profile bare") == found("all") == found("--no-such") == site
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "ours")
    assert found("all").resolve() == tmp_path / "ours/site.yaml"
    whole = tmp_path / "elsewhere.yaml"
    whole.touch()
    assert beside_profile(whole, ["snakemake", "--workflow-profile", "ours"]) == whole
