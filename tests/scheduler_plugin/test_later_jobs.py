"""Jobs that are not there as single ones at the start: of checkpoints, and in groups."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.placement.ledger import read_ledger
from tests.support.scribe import dispatched, events, run

HEAD = """
from pathlib import Path
from tests.support.failing_slurm import RULES, cluster_with_qos
from snakemake_scheduler_plugin_tilewright.placement import cluster
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan

cluster._current = cluster_with_qos()
"""
SNAKEFILE = f"""{HEAD}
def parts(wildcards):
    folder = checkpoints.split.get().output[0]
    found = glob_wildcards(folder + "/{{i}}.part").i
    return expand(["free/{{i}}.txt", "known/{{i}}.txt"], i=found)

rule all:
    default_target: True
    input:
        parts, expand("b/{{i}}.txt", i=range(4)), "read.txt", "fed.txt", "twins/x_y/z.txt",
        "twins/x/y_z.txt", "second.txt", "known/first.txt",
localrules: all
checkpoint split:
    output: directory("parts")
    resources: mem_mb=500, runtime=20
    shell: "true"
rule free:
    input: "parts"
    output: "free/{{i}}.txt"
    threads: 2
    resources: mem_mb=600, runtime=20
    shell: "true"
rule known:
    output: "known/{{i}}.txt"
    threads: 2
    resources: mem_mb=500, runtime=20
    shell: "true"
rule a:
    output: "a/{{i}}.txt"
    group: "chain"
    threads: 2
    resources: mem_mb=3000, runtime=10
    shell: "true"
rule b:
    input: "a/{{i}}.txt"
    output: "b/{{i}}.txt"
    group: "chain"
    threads: 4
    resources: mem_mb=lambda wildcards, input: 2000 + input.size, runtime=5
    shell: "true"
rule write:
    output: pipe("pipe.txt")
    threads: 2
    resources: mem_mb=100, runtime=30
    shell: "true"
rule read:
    input: "pipe.txt"
    output: "read.txt"
    threads: 3
    resources: mem_mb=200, runtime=40
    shell: "true"
rule hungry:
    output: "hungry.txt"
    log: "hungry.log"
    group: "fails"
    resources: mem_mb=400, runtime=5
    shell: "true"
rule fed:
    input: "hungry.txt"
    output: "fed.txt"
    group: "fails"
    resources: mem_mb=300, runtime=5, slurm_account="maigan"
    shell: "true"
rule twins:
    output: "twins/{{one}}/{{other}}.txt"
    threads: 2
    resources: mem_mb=300, runtime=5
    shell: "true"
rule second:
    output: "second.txt"
    threads: 2
    resources: mem_mb=300, runtime=5, slurm_account=lambda wildcards, attempt: "brusko"
    shell: "true"
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("later")
    return folder, run(folder, SNAKEFILE, "tilewright", "--retries", "3", executor="slurm")


def test_all_of_them_are_placed_and_end(
    ran: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = ran
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "placement failed" not in said
    once = ["group read+write", "second", "split", "twins", "twins", "group fed+hungry"]
    once = sorted(["group a+b"] * 4 + ["free"] * 2 + ["known"] * 3 + once)
    assert sorted(event["rule"] for event in events(folder, "done")) == once
    placed = Counter(event["rule"] for event in events(folder, "place"))
    assert placed - Counter(once) == {"group fed+hungry": 1}
    accounts = {event["account"] for event in events(folder, "place")}
    assert accounts <= {"clive", "maigan", "brusko"}


def test_jobs_of_a_checkpoint_have_the_account_of_the_ledger(
    ran: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = ran
    places = {event["job"]: event["account"] for event in events(folder, "place")}
    jobs = dispatched(folder, "free")
    assert {wildcards["i"] for wildcards, _ in jobs} == {"a", "b"}
    for wildcards, given in jobs:
        assert given["slurm_account"] == places[f"rule_free_wildcards_{wildcards['i']}"]


def test_progress_counts_jobs_of_checkpoints_and_in_groups(
    ran: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    state = json.loads((ran[0] / ".snakemake/tilewright/state.json").read_text())
    assert state["jobs"] == state["done"]
    counts = {rule: state["jobs"][rule] for rule in ("split", "free", "known", "a", "write")}
    assert counts == {"split": 1, "free": 2, "known": 3, "a": 4, "write": 1}
    assert state["share"] == 1


def test_a_group_is_one_job_with_the_summed_shape_and_a_comment_of_its_own(
    ran: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = ran
    places = {event["job"]: event for event in events(folder, "place")}
    given = [given for _, given in dispatched(folder, "group a+b")]
    assert len({one["comment"] for one in given}) == 4
    for one in given:
        place = places[one["comment"]]
        assert one["slurm_account"] == place["account"]
        # one after the other: the larger of threads and memory, the sum of the times
        assert (one["threads"], one["mem_mb"], one["runtime"]) == (4, 3000, 15)
        assert (place["cpus"], place["mem_mb"], place["runtime_min"]) == (4, 3000, 15)
    ((_, piped),) = dispatched(folder, "group read+write")  # at once: the sums, the longer time
    assert (piped["threads"], piped["mem_mb"], piped["runtime"]) == (5, 300, 40)
    assert places[piped["comment"]]["cpus"] == 5


def test_a_group_that_ran_out_of_memory_gets_twice_as_much_on_the_account_that_it_fixes(
    ran: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = ran
    tries = [given for _, given in dispatched(folder, "group fed+hungry")]
    assert [(one["mem_mb"], one["slurm_account"]) for one in tries] == [
        (400, "maigan"),
        (800, "maigan"),
    ]
    assert [event["cause"] for event in events(folder, "fail")] == ["memory"]


def test_a_group_that_snakemake_makes_anew_is_found_in_the_queue(tmp_path: Path) -> None:
    # it does where a checkpoint ends between the group's naming and its start: which of the equal
    # groups of its cache it takes is left to the order of a set
    snakefile = f"""{HEAD}
from snakemake.jobs import GroupJob, GroupJobFactory
from snakemake_scheduler_plugin_tilewright.run import Run

GroupJobFactory.new = lambda self, name, jobs, most: GroupJob(name, frozenset(jobs), most)
select = Run.select

def watch(run, *asked):
    chosen = select(run, *asked)
    with open("other.txt", "a") as stream:
        placed = [(run._names[one], one) for one in chosen if run._names[one]]
        stream.writelines(name for name, one in placed if run.jobs[name] is not one)
    return chosen

Run.select = watch
rule all:
    default_target: True
    input: lambda wildcards: checkpoints.split.get().output, "fed.txt"
localrules: all
checkpoint split:
    output: directory("parts")
    shell: "true"
rule late:
    input: "parts"
    output: "late.txt"
    shell: "true"
rule hungry:
    input: "late.txt"
    output: "hungry.txt"
    log: "hungry.log"
    group: "fails"
    resources: mem_mb=400, runtime=5
    shell: "true"
rule fed:
    input: "hungry.txt"
    output: "fed.txt"
    group: "fails"
    resources: mem_mb=300, runtime=5
    shell: "true"
"""
    done = run(tmp_path, snakefile, "tilewright", "--retries", "3", executor="slurm")
    assert done.returncode == 0, done.stdout + done.stderr
    tries = [given for _, given in dispatched(tmp_path, "group fed+hungry")]
    assert [one["mem_mb"] for one in tries] == [400, 800]
    placed = {event["job"] for event in events(tmp_path, "place")}
    assert {one["comment"] for one in tries} < placed
    assert [event["cause"] for event in events(tmp_path, "fail")] == ["memory"]
    assert not (tmp_path / "other.txt").read_text()  # else its end could not be told to Snakemake


def test_the_end_of_a_group_with_its_own_checkpoint_is_noted(tmp_path: Path) -> None:
    snakefile = f"""{HEAD}
rule all:
    default_target: True
    input: "gather.txt"
localrules: all
checkpoint split:
    output: directory("parts")
    group: "own"
    shell: "true"
rule gather:
    input: lambda wildcards: checkpoints.split.get().output
    output: "gather.txt"
    group: "own"
    shell: "true"
"""
    done = run(tmp_path, snakefile, "tilewright", executor="slurm")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [event["rule"] for event in events(tmp_path, "done")] == ["group gather+split"]


def test_jobs_whose_next_try_waits_when_a_checkpoint_ends_are_tried(tmp_path: Path) -> None:
    snakefile = f"""{HEAD}
from snakemake.jobs import GroupJob, GroupJobFactory
from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher

GroupJobFactory.new = lambda self, name, jobs, most: GroupJob(name, frozenset(jobs), most)
Path("split.held").touch()

def without_room(self, ready, later, most, own=Dispatcher.round):
    failed = {{name for name in ready if self.tasks[name].past.causes}}
    if len(failed) == 2:
        Path("split.held").unlink(missing_ok=True)
    parted = self.tasks["rule_split"].sent_s and not self.tasks["rule_split"].place
    return own(self, [name for name in ready if parted or name not in failed], later, most)

Dispatcher.round = without_room
rule all:
    default_target: True
    input: lambda wildcards: checkpoints.split.get().output, "lost.txt", "fed.txt"
localrules: all
checkpoint split:
    output: directory("parts")
    shell: "true"
rule lost:
    output: "lost.txt"
    log: "lost.log"
    shell: "true"
rule hungry:
    output: "hungry.txt"
    log: "hungry.log"
    group: "fails"
    shell: "true"
rule fed:
    input: "hungry.txt"
    output: "fed.txt"
    group: "fails"
    shell: "true"
"""
    done = run(tmp_path, snakefile, "tilewright", "--retries", "1", executor="slurm")
    assert done.returncode == 0, done.stdout + done.stderr
    for rule in ("lost", "group fed+hungry"):
        assert [given["attempt"] for _, given in dispatched(tmp_path, rule)] == [1, 2]


def test_a_job_that_was_given_up_is_not_tried_again_when_a_checkpoint_ends(tmp_path: Path) -> None:
    snakefile = f"""{HEAD}
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter

Path("split.held").touch()

def give_up(dag, job, own=snakemake_adapter.give_up):
    own(dag, job)
    Path("split.held").unlink(missing_ok=True)

snakemake_adapter.give_up = give_up
rule all:
    default_target: True
    input: lambda wildcards: checkpoints.split.get().output, "bad.txt", "free.txt"
localrules: all
checkpoint split:
    output: directory("parts")
    shell: "true"
rule bad:
    output: "bad.txt"
    log: "bad.log"
    shell: "true"
rule free:
    input: "parts"
    output: "free.txt"
    shell: "true"
"""
    options = ("--retries", "5", "--keep-going")
    done = run(tmp_path, snakefile, "tilewright", *options, executor="slurm")
    assert done.returncode == 1, done.stdout + done.stderr
    assert [given["attempt"] for _, given in dispatched(tmp_path, "bad")] == [1, 2]
    assert len(dispatched(tmp_path, "free")) == 1


def test_jobs_that_slurms_comment_cannot_tell_apart_go_one_after_the_other(
    ran: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    ledger = read_ledger(ran[0] / ".snakemake/tilewright/ledger.jsonl")
    twins = [e["event"] for e in ledger if e.get("job") == "rule_twins_wildcards_x_y_z"]
    assert twins == ["place", "done"] * 2


def test_what_is_too_large_by_now_fails_by_name_and_the_others_end(tmp_path: Path) -> None:
    snakefile = f"""{HEAD}
from threading import enumerate as threads
from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher

def capacity(self, own=Dispatcher.capacity):  # both threads change what Slurm's client keeps
    assert self.lock._is_owned() or "tilewright-tend" not in [one.name for one in threads()]
    return own(self)

Dispatcher.capacity = capacity
rule all:
    default_target: True
    input: "large.txt", "next.txt"
localrules: all
rule small:
    output: "small.txt"
    threads: 2
    resources: mem_mb=500, runtime=20
    shell: "true"
rule large:
    input: "small.txt"
    output: "large.txt"
    threads: 2
    resources: mem_mb=lambda wildcards, input: 99_000_000 if Path(input[0]).exists() else 9
    shell: "true"
rule next:
    input: "small.txt"
    output: "next.txt"
    resources: mem_mb=500, runtime=20
    shell: "true"
"""
    done = run(
        tmp_path, snakefile, "tilewright", "--retries", "3", "--keep-going", executor="slurm"
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "rule_large is given up: rule_large would pend for ever" in said
    assert "placement failed" not in said
    assert (tmp_path / "next.txt").is_file()
    assert [event["job"] for event in events(tmp_path, "fail")] == ["rule_large"]


def test_a_group_of_rules_that_ask_placement_is_refused_in_one_sentence(tmp_path: Path) -> None:
    snakefile = f"""{HEAD}
plan = Plan(RULES, cluster=cluster.current(), ledger=Path("ledger.jsonl"))
rule all:
    default_target: True
    input: "good.txt"
localrules: all
rule good:
    output: "good.txt"
    group: "own"
    threads: plan.threads("good")
    resources: **plan.routed("good")
    shell: "true"
"""
    done = run(tmp_path, snakefile, "tilewright")
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "rule good asks placement where each of its jobs runs" in said
    assert "take it out of group own" in said
    assert "Traceback" not in said
    assert not (tmp_path / "dispatched.jsonl").exists()


def test_where_placement_fails_jobs_go_to_an_account_that_may_be_used(tmp_path: Path) -> None:
    snakefile = f"""{HEAD}
from snakemake_scheduler_plugin_tilewright import scheduler as plugin
from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher

def fail(*asked):
    raise KeyError("x")

plugin._PATIENCE, Dispatcher.round = 1, fail
rule all:
    default_target: True
    input: "own.txt", "any.txt"
localrules: all
rule own:
    output: "own.txt"
    resources: slurm_account="maigan"
    shell: "true"
rule any:
    output: "any.txt"
    group: "one"
    shell: "true"
"""
    done = run(tmp_path, snakefile, "tilewright", executor="slurm")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "placement failed again and again, so this round is greedy" in done.stderr
    ((_, own),) = dispatched(tmp_path, "own")
    ((_, any_),) = dispatched(tmp_path, "group any")
    assert (own["slurm_account"], any_["slurm_account"]) == ("maigan", "brusko")
    assert {event["reason"] for event in events(tmp_path, "greedy")} == {"KeyError('x')"}


def test_a_run_that_is_refused_is_none_in_the_ledger(tmp_path: Path) -> None:
    snakefile = f"""{HEAD}
rule large:
    output: "large.txt"
    threads: 2
    resources: mem_mb=99_000_000, runtime=20
    shell: "true"
"""
    done = run(tmp_path, snakefile, "tilewright", executor="slurm")
    assert "rule_large would pend for ever" in done.stdout + done.stderr
    assert events(tmp_path, "run") == []
