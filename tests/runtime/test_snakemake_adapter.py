"""Canaries: what placement touches of Snakemake beyond its interfaces, each by its name.

One small real run writes down what its scheduler, DAG, workflow and job have; where Snakemake
renames something, the case with that name fails. So it is with the documented hooks.
"""

import inspect
import json
import logging
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import snakemake
import snakemake.cli
import snakemake.common
from snakemake.api import WorkflowApi
from snakemake.resources import Resource
from snakemake.rules import Rule
from snakemake_executor_plugin_slurm import Executor as SlurmExecutor  # type: ignore[import-untyped]
from snakemake_executor_plugin_slurm.utils import (  # type: ignore[import-untyped]
    get_job_wildcards,
)
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_scheduler_plugins.tests import DummyDAG

from snakemake_scheduler_plugin_tilewright.errors import PlacementError
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter as adapter
from snakemake_scheduler_plugin_tilewright.runtime.snakemake_command import (
    LOOKING,
    executor_of,
    profile_file,
    runs_nothing,
    targets,
)
from snakemake_scheduler_plugin_tilewright.scheduler import Scheduler
from tests.support.runs import REPO
from tests.support.scribe import Code, default_target, dispatched, rule, run

NEEDED = [(what, name) for what in adapter.NEEDED for name in adapter.NEEDED[what]]
NAMES = [f"{what}.{name}" for what, name in NEEDED]

CANARY = """
import inspect
import json
import threading
from pathlib import Path
from snakemake_interface_scheduler_plugins.base import SchedulerBase
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter as adapter

class Scheduler(SchedulerBase):
    def select_jobs(self, selectable_jobs, remaining_jobs, available_resources, input_sizes):
        dag = self.dag
        jobs = {job.rule.name: job for job in selectable_jobs if not job.is_group()}
        group = next(job for job in selectable_jobs if job.is_group())
        job, workflow = jobs["work"], dag.workflow
        things = {"scheduler": workflow.scheduler, "dag": dag, "job": job, "workflow": workflow,
                  "executor": workflow.scheduler._executor, "group": group}
        names = {what: [n for n in names if hasattr(things[what], n)]
                 for what, names in adapter.NEEDED.items()}
        Path("names.json").write_text(json.dumps({"names": names}))
        own = hasattr(group, "wildcards")
        for what, thing in things.items():
            adapter.check(what, thing)
        part = next(job for job in dag.needrun_jobs() if job.rule.name == "part")
        functions = {name: inspect.unwrap(job.rule.resources[name]._evaluator)
                     for name in ("own", "mem_mb")}
        given = {**functions, "placement": "work", "slurm_extra": None}
        chosen = [adapter.overridden_names(jobs[rule], given) for rule in ("work", "other")]
        seen = {
            "placement": adapter.placement_of(dag),
            "constants": [adapter.constant(jobs[rule], "placement") for rule in jobs],
            "chosen": [sorted(names - {"_nodes", "tmpdir", "disk_mb"}) for names in chosen],
            "executor": (adapter.executor(dag), adapter.is_snakemakes(dag)),
            "workdir": str(Path(adapter.workdir(dag)).resolve()),
            "whole": (adapter.started(dag), adapter.is_main(dag), adapter.anything_runs(dag),
                      adapter.all_done(dag)),
            "job": (adapter.running(dag, job), adapter.failed(dag, job)),
            "has_tries": (adapter.has_tries(job), adapter.has_tries(jobs["other"])),
            "machine": adapter.machine_resources(dag)["mem_mb"] == 1000,
            "ended": adapter.end(dag, job, "never sent", success=True),
            "unit": (adapter.unit_of(dag, part) is group, adapter.unit_of(dag, job) is job),
            "members": [len(list(adapter.members(one))) for one in (group, job)],
            "open": [adapter.is_open(dag, one) for one in (group, job)],
            "grouped": [own, group.wildcards[:-1], len(group.wildcards[-1]), group.threads],
        }
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

        adapter.assign(dag, group, {"mem_mb": 800, "slurm_account": "a"})
        seen["group"] = [group.resources.get(n) for n in ("mem_mb", "runtime", "slurm_account")]
        adapter.forget_resources(group)
        seen["group back"] = [group.resources.get(n) for n in ("mem_mb", "slurm_account")]
        seen["stated"] = resources()
        wanted = {"mem_mb": 700, "slurm_extra": "--nice=5 --exclude=b1", "new": "x", "own": 8}
        adapter.assign(dag, job, wanted)
        seen["changed"] = resources()
        adapter.forget_resources(job)
        seen["back"] = resources()
        adapter.assign(dag, job, {"mem_mb": 99_999, "new": 3, "_cores": 99, "own": None})
        seen["bounded"] = [job.resources.get(n) for n in ("mem_mb", "mem_mib", "own", "_cores")]
        seen["bounded"] += [job.threads, job.resources.mem]
        adapter.give_up(dag, jobs["bad"])
        seen["given up"] = adapter.failed(dag, jobs["bad"]), jobs["bad"] in dag._ready_jobs
        Path("seen.json").write_text(json.dumps(seen))
        return [job, jobs["other"]]

    def dag_updated(self):
        Path("called").write_text("Scheduler.dag_updated\\n")
"""
GROUPED = "grouped"
SNAKEFILE = "".join((
    """
def memory(wildcards):
    return 100
def own_of_attempt(wildcards, attempt):
    return attempt
workflow.placement = "as it was set"
""",
    default_target("work.txt", "other.txt", "bad.txt", "y.whole"),
    rule("work", output="work.txt", retries=2, mem_mb=Code("memory"), placement="work",
         slurm_extra="--nice=5", own=Code("own_of_attempt")),
    rule("other", output="other.txt"),
    rule("part", output="{i}.part", group=GROUPED, mem_mb=200, runtime=3),
    rule("whole", output="{i}.whole", input="x.part", group=GROUPED, threads=2, mem_mb=100,
         runtime=4),
    rule("bad", output="bad.txt"),
    'onerror:\n    shell("echo onerror >> called")\n',
))  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose scheduler looked at everything, and gave up a job."""
    folder = tmp_path_factory.mktemp("canary")
    done = run(
        folder, SNAKEFILE, "canary", "--set-resources", "other:runtime=7", "--set-threads",
        "other=3", "--resources", "mem_mb=1000", "--max-threads", "5",
        plugins={"scheduler_plugin_canary": CANARY},
    )  # fmt: skip
    (folder / "said").write_text(done.stdout + done.stderr)
    return folder


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[str, Any]:
    """What the adapter's functions found and did, and as ``names`` what there was before."""
    paths = [folder / "names.json", folder / "seen.json"]
    found = {key: value for path in paths if path.is_file()
             for key, value in json.loads(path.read_text()).items()}  # fmt: skip
    assert found, (folder / "said").read_text()
    return found


@pytest.mark.parametrize(("what", "name"), NEEDED, ids=NAMES)
def test_snakemake_has(seen: dict[str, Any], what: str, name: str) -> None:
    assert name in seen["names"][what], (
        f"Snakemake {snakemake.__version__} has no {what}.{name} any more"
    )


@pytest.mark.parametrize("name", ["get_argument_parser", "get_profile_dir", "resolve_snakefile"])
def test_snakemakes_command_line_has(name: str) -> None:
    assert callable(getattr(snakemake.cli, name, None))


@pytest.mark.parametrize("name", LOOKING)
def test_snakemakes_parser_knows(name: str) -> None:
    given, _ = snakemake.cli.get_argument_parser().parse_known_args([])
    assert hasattr(given, name)


def test_snakemake_has_what_no_run_shows() -> None:
    def own(wildcards: Any) -> int:
        return 3

    assert Resource("name", own)._evaluator is own
    assert not callable(getattr(Resource("name", 3), "_evaluator", None))
    assert isinstance(getattr(WorkflowApi, "_workflow", None), property)
    found = getattr(RemoteExecutor, "next_seconds_between_status_checks", None)
    assert isinstance(found, property)
    assert found.fset is not None
    given = ["self", "wildcards", "input", "attempt"]
    assert list(inspect.signature(Rule.expand_priority).parameters) == given


@pytest.mark.parametrize(("ended", "whole"), [("10", True), ("01", True), ("00", False)])
def test_a_group_that_holds_a_job_twice_has_finished_with_either(ended: str, whole: bool) -> None:
    """After its own checkpoint: the old one, which Snakemake forgot, and the new."""
    job = {"rule": SimpleNamespace(name="gather"), "wildcards_dict": {}}
    old, new = SimpleNamespace(**job), SimpleNamespace(**job)
    done = [one for one, yes in zip((old, new), ended, strict=True) if yes == "1"]
    group = SimpleNamespace(is_group=lambda: True, jobs=[old, new])
    dag = SimpleNamespace(
        finished=lambda one: any(one is other for other in done),
        job_factory=SimpleNamespace(cache={}),
    )
    assert adapter.finished(dag, group) == whole


def test_a_group_that_is_made_anew_has_the_same_wildcards() -> None:
    class Group:
        def __init__(self, *last: object) -> None:
            self.jobs, self.toposorted = frozenset(last), [list(last)]
            self.is_group = lambda: True

    class Last:
        def __init__(self, name: str) -> None:
            self.wildcards, self.uuid = [name], lambda: 9 * name
            self.is_group = lambda: False

    a, b = Last("a"), Last("b")
    first, again = Group(a, b), Group(b, a)  # nobody asks for the unit of the second
    dag: Any = SimpleNamespace(get_job_group=lambda job: first)
    assert adapter.unit_of(dag, a) is first
    found: list[Any] = [first, again]
    assert [group.wildcards for group in found] == [["a", "aaaaaaaa"]] * 2
    again.jobs, again.toposorted = frozenset([b]), [[b]]  # Snakemake merges groups in place
    assert found[1].wildcards == ["b", "bbbbbbbb"]


def test_a_run_is_seen_as_it_is(seen: dict[str, Any], folder: Path) -> None:
    assert "placement" in seen, (folder / "said").read_text()
    expected = {
        "placement": "as it was set",
        "chosen": [["_cores", "slurm_extra"], ["_cores", "runtime"]],
        "executor": ["scribe", True],
        "workdir": str(folder.resolve()),
        "whole": [True, True, False, False],
        "job": [False, False],
        "has_tries": [True, False],
        "machine": True,
        "wait_s": 1.0,  # the least
        "ended": False,
        "timers": [1, 0],
    }
    assert {name: seen[name] for name in expected} == expected
    assert not adapter.is_snakemakes(DummyDAG())


def test_a_group_is_seen_as_one_job(seen: dict[str, Any]) -> None:
    expected = {
        "unit": [True, True],
        "members": [2, 1],
        "open": [True, True],
        # if a group has wildcards of its own one day, they need not be set
        "grouped": [False, ["y"], 8, 2],
        "group": [800, 7, "a"],
        "group back": [200, None],
    }
    assert {name: seen[name] for name in expected} == expected


def test_the_executor_puts_the_wildcards_of_a_group_into_slurms_comment() -> None:
    assert get_job_wildcards(SimpleNamespace(wildcards=["a/b", "c"])) == "a_b_c"
    assert get_job_wildcards(SimpleNamespace()) == ""
    source = inspect.getsource(SlurmExecutor.run_job)
    assert "wildcard_str = get_job_wildcards(job)" in source
    assert 'comment_str = f"rule_{job.name}_wildcards_{wildcard_str}"' in source


class Named(dict[str, str]):
    """Resources as the executor reads them."""

    __getattr__ = dict.__getitem__


def test_the_executor_asks_for_no_account_and_guesses_none() -> None:
    module = inspect.getmodule(SlurmExecutor)
    with patch.object(module, "validate_account", side_effect=AssertionError):
        executor = SlurmExecutor.__new__(SlurmExecutor)
        executor._partitions = executor.logger = None
        adapter.trust_placement(SimpleNamespace(workflow=SimpleNamespace(
            scheduler=SimpleNamespace(_executor=executor))))  # fmt: skip
        for resources, account, partition in (
            ({}, "", ""), ({"slurm_account": "lab", "slurm_partition": "p"}, " -A lab", " -p p"),
        ):  # fmt: skip
            job: Any = SimpleNamespace(resources=Named(resources))
            assert list(executor.get_account_arg(job)) == [account]
            assert executor.get_partition_arg(job) == partition


def test_resources_are_set_replaced_and_left_to_the_rule(
    seen: dict[str, Any], folder: Path
) -> None:
    stated = {"mem_mb": 100, "slurm_extra": "--nice=5", "own": 1, "new": None, "scheduled": 1}
    assert seen["stated"] == seen["back"] == stated
    changed = {"mem_mb": 700, "slurm_extra": "--nice=5 --exclude=b1", "own": 8, "new": "x"}
    assert seen["changed"] == {**changed, "scheduled": 8}
    ((_, given),) = dispatched(folder, "work")
    assert seen["bounded"] == [1000, 954, None, 5, 5, "1 GB"]
    assert (given["mem_mb"], given["slurm_extra"], given["new"]) == (1000, "--nice=5", 3)
    assert (given["threads"], given["placement"]) == (5, "work")


def test_a_job_that_was_given_up_fails_and_the_others_end(
    seen: dict[str, Any], folder: Path
) -> None:
    assert seen["given up"] == [True, False]
    assert "Exiting because a job execution failed" in (folder / "said").read_text()
    assert (folder / "work.txt").is_file()
    assert (folder / "other.txt").is_file()
    assert not (folder / "bad.txt").exists()


HOOKED = """
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
PARTS = """
def parts(wildcards):
    folder = checkpoints.split.get().output[0]
    return [f"free/{i}.txt" for i in glob_wildcards(folder + "/{i}.part").i]

"""
#: What of Snakemake's documented interfaces must be called for placement to work.
#: ``SchedulerBase.dag_updated`` is none of them: nothing calls it.
HOOKS = (
    "Scheduler.__post_init__", "Scheduler.select_jobs", "Scheduler.select_jobs with a group",
    "Scheduler.select_jobs with the jobs of a checkpoint", "SchedulerSettings.__post_init__",
    "onsuccess", "onerror",
)  # fmt: skip
SNAKEFILE_OF_HOOKS = "".join((
    PARTS, default_target(Code("parts"), "group.txt"),
    rule("split", "checkpoint", output=Code('directory("parts")')),
    rule("free", output="free/{i}.txt"),
    rule("group", output="group.txt", group=GROUPED),
    'onsuccess:\n    shell("echo onsuccess >> called")\n',
))  # fmt: skip


@pytest.fixture(scope="module")
def hooks(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What Snakemake called in a run that ends well, and of the other run that it did not."""
    well = tmp_path_factory.mktemp("hooks")
    plugins = {"scheduler_plugin_canary": HOOKED}
    done = run(well, SNAKEFILE_OF_HOOKS, "canary", plugins=plugins)
    assert done.returncode == 0, done.stdout + done.stderr
    called = [one / "called" for one in (folder, well)]
    return {line for path in called if path.is_file() for line in path.read_text().splitlines()}


@pytest.mark.parametrize("hook", HOOKS)
def test_snakemake_calls(hooks: set[str], hook: str) -> None:
    assert hook in hooks, f"Snakemake {snakemake.__version__} does not call {hook}"


def test_nothing_calls_dag_updated(hooks: set[str]) -> None:
    """If something does one day, jobs need not be looked for in every round."""
    assert "Scheduler.dag_updated" not in hooks


def thing_without(what: str, name: str = "") -> Any:
    return SimpleNamespace(**{n: None for n in adapter.NEEDED[what] if n != name})


@pytest.mark.parametrize(("what", "name"), NEEDED, ids=NAMES)
def test_what_lacks_something_is_refused_with_its_name(what: str, name: str) -> None:
    adapter.check(what, thing_without(what))
    with pytest.raises(PlacementError) as caught:
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
    values: dict[str, Any] = {**vars(thing_without("dag")), "needrun_jobs": list}
    values["workflow"] = SimpleNamespace(
        **{**vars(thing_without("workflow")), "rules": [], "executor_plugin": None}
    )
    logger = logging.getLogger("canary")
    lacking = {name: value for name, value in values.items() if name != "_ready_jobs"}
    with pytest.raises(WorkflowError, match=r"has no dag\._ready_jobs, which placement needs"):
        Scheduler(dag_of_snakemake(**lacking), None, logger)
    made = Scheduler(dag_of_snakemake(**values), None, logger)
    assert made.select_jobs([], [], {}, {}) == []
    placing: Any = SimpleNamespace(select=lambda *asked: ["job"])
    made._run, made._begun = placing, False
    values["workflow"].scheduler = thing_without("scheduler", "failed")
    with pytest.raises(WorkflowError, match=r"has no scheduler\.failed, which placement needs"):
        made.select_jobs([], [], {}, {})
    values["workflow"].scheduler = thing_without("scheduler")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    made._slurm = {"SLURM_CONF": os.environ.pop("SLURM_CONF")}  # as the executor does within a job
    assert made.select_jobs([], [], {}, {}) == ["job"]
    assert os.environ["SLURM_CONF"] == "/etc/slurm.conf"


LOOK = """
-n; -np; -pn; -kn; -nk; -kpn; -Fn; -nj4; -fn; -S; -t; --config a=1 -n; --dry-run; --dryrun; --dryru;
registration -n --configfile c.yaml; registration -nj4; --summary; --detailed-summary; --dag;
--dag=mermaid-js; --rulegraph; --filegraph; --d3dag; --lint; --lint json; --list; --list-rules;
--list-changes code; --lc code; --list-untracked; --report; --report=out.html; --archive a.tar.gz;
--containerize; --touch; --cleanup-metadata out.txt
"""
RUN = """
; registration qc; --unlock; -j4; -j 4 -k; -s Snakefile; --snakefile n; --config n=1;
--config -C nn=1; --configfile new.yaml; -p; -F; -R stitch; --nolock; --notemp; -c2; -q rules;
--rerun-incomplete; --scheduler greedy; --set-resources work:slurm_account=clive;
--cleanup-shadow; n; results/run-n; --no-hooks; --delete-all-output;
registration --report-after-run
"""


@pytest.mark.parametrize(
    ("command", "looks"),
    [(one, text == LOOK) for text in (LOOK, RUN) for one in re.split(r";\s+", text.strip())],
)
def test_what_only_looks_and_what_runs_jobs_or_unlocks(command: str, looks: bool) -> None:
    assert runs_nothing(command.split()) == looks


def test_targets_are_those_of_snakemakes_own_commands(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["registration", "qc", "-n", "--configfile", "edf", "--until", "stitching"]
    assert targets(command) == ["registration", "qc"]
    assert targets(["plan", "--target", "qc"]) == []
    assert capsys.readouterr().err == ""


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with profiles: with a site file, without, hidden below ``profiles``, broken."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    slurm = (REPO / "profiles/slurm/config.yaml").read_text(encoding="utf-8")
    for name, text in (("ours", slurm), ("bare", ""), ("profiles/hidden", ""), ("broken", "a: [")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text(text, encoding="utf-8")
    for name in ("ours", "profiles/hidden"):
        (tmp_path / name / "site.yaml").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("command", "executor", "site"),
    [
        ("all", "", None), ("--no-such", "", None), ("-n -x", "", None),
        ("all --executor slurm", "slurm", None), ("-e slurm -n", "slurm", None),
        ("all --workflow-profile ours", "slurm", "ours"),
        ("--workflow-profile=ours/config.yaml -n", "slurm", "ours"),
        ("--profile ours -e local --jobs 3", "local", "ours"),
        ("--workflow-profile bare", "", None),
        ("--workflow-profile bare --profile ours", "slurm", "ours"),
        ("--workflow-profile hidden", "", "profiles/hidden"), ("--profile broken", "", None),
    ],
)  # fmt: skip
def test_a_command_or_its_profile_says_the_executor_and_a_profile_has_the_site_file_beside_it(
    command: str, executor: str, site: str | None, profiles: Path
) -> None:
    argv = ["snakemake", *command.split()]
    assert executor_of(argv) == executor
    found = profile_file("site.yaml", argv)
    assert (found and found.resolve()) == (profiles / site / "site.yaml" if site else None)


def test_the_profile_of_the_environment_and_a_site_file_in_the_working_directory(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SNAKEMAKE_PROFILE", "ours")
    found = profile_file("site.yaml", ["snakemake", "all"])
    assert found
    assert found.resolve() == profiles / "ours/site.yaml"
    (profiles / "site.yaml").touch()
    assert profile_file("site.yaml", ["snakemake", "--profile", "bare"]) == Path("site.yaml")
