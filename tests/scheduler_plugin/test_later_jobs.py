"""Runs of rules that never heard of placement: single jobs, of checkpoints, and in groups."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright.placement.ledger import read_ledger
from tests.support.scribe import dispatched, events, run

HEAD = """
from pathlib import Path
from tests.support.failing_slurm import RULES, cluster_with_qos
from snakemake_scheduler_plugin_tilewright.placement import cluster
from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan

cluster._current = cluster_with_qos()  # as a profile names it
"""
SPLIT = """
localrules: all
checkpoint split:
    output: directory("parts")
    resources: mem_mb=500, runtime=20
    shell: "true"
"""
SNAKEFILE = f"""
def parts(wildcards):
    folder = checkpoints.split.get().output[0]
    found = glob_wildcards(folder + "/{{i}}.part").i
    return expand(["free/{{i}}.txt", "known/{{i}}.txt"], i=found)

rule all:
    default_target: True
    input:
        parts, expand("b/{{i}}.txt", i=range(4)), "read.txt", "fed.txt", "twins/x_y/z.txt",
        "twins/x/y_z.txt", "second.txt", "known/first.txt", "gather.txt",
        expand("out/{{i}}.txt", i=range(8)), "train.txt", "fixed.txt", "hungry.txt",
        "growing.txt", "per_cpu.txt"
{SPLIT}
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
checkpoint own:
    output: directory("own")
    group: "with_checkpoint"
    shell: "true"
rule gather:
    input: lambda wildcards: checkpoints.own.get().output
    output: "gather.txt"
    group: "with_checkpoint"
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
rule starved:
    output: "starved.txt"
    log: "starved.log"
    group: "fails"
    resources: mem_mb=400, runtime=5
    shell: "true"
rule fed:
    input: "starved.txt"
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
rule plain:
    output: "out/{{i}}.txt"
    threads: 8
    resources: mem_mb=5000, runtime=60
    shell: "true"
rule train:
    output: "train.txt"
    threads: 4
    resources: mem_mb=9000, slurm_extra="'--gres=gpu:1'"
    shell: "true"
rule fixed:
    output: "fixed.txt"
    threads: 2
    resources: slurm_account="maigan", slurm_partition="own", qos="maigan-b", mem_mb=700
    shell: "true"
rule hungry:
    output: "hungry.txt"
    log: "hungry.log"
    threads: 2
    resources: mem_mb=4000, runtime=30
    shell: "true"
rule growing:
    output: "growing.txt"
    log: "growing.log"
    threads: 2
    resources: mem_mb=lambda wildcards, attempt: 4000 * attempt**2
    shell: "true"
rule per_cpu:
    output: "per_cpu.txt"
    log: "per_cpu.log"
    threads: 2
    resources: mem_mb_per_cpu=1500
    shell: "true"
"""
JOBS = {
    "group a+b": 4, "free": 2, "known": 3, "group read+write": 1, "second": 1, "split": 1,
    "twins": 2, "group fed+starved": 1, "group gather+own": 1, "plain": 8, "train": 1, "fixed": 1,
    "hungry": 1, "growing": 1, "per_cpu": 1,
}  # fmt: skip
FAIL = dict.fromkeys(("group fed+starved", "hungry", "growing", "per_cpu"), 1)


def play(folder: Path, snakefile: str, *args: str, status: int = 0) -> str:
    """Run a Snakefile whose executor bears the name of Slurm's; return what was said."""
    done = run(folder, HEAD + snakefile, "tilewright", *args, executor="slurm")
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    return said


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("later")
    said = play(folder, SNAKEFILE, "--retries", "3")
    assert "placement failed" not in said
    assert f"placement: {sum(JOBS.values())} jobs (37 of Snakemake's, some in groups) done" in said
    return folder


@pytest.fixture(scope="module")
def places(ran: Path) -> dict[str, Any]:
    return {event["job"]: event for event in events(ran, "place")}


def tries(folder: Path, rule: str, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(given.get(name) for name in names) for _, given in dispatched(folder, rule)]


def test_all_of_them_are_placed_and_end(ran: Path) -> None:
    assert Counter(event["rule"] for event in events(ran, "done")) == JOBS
    placed = Counter(event["rule"] for event in events(ran, "place"))
    assert placed - Counter(JOBS) == FAIL
    causes = {event["rule"]: event["cause"] for event in events(ran, "fail")}
    assert causes == dict.fromkeys(FAIL, "memory")
    assert {event["account"] for event in events(ran, "place")} <= {"clive", "maigan", "brusko"}


def test_progress_counts_jobs_of_checkpoints_and_in_groups(ran: Path) -> None:
    state = json.loads((ran / ".snakemake/tilewright/state.json").read_text())
    assert state["jobs"] == state["done"]
    counts = {rule: state["jobs"][rule] for rule in ("split", "free", "known", "a", "write")}
    assert counts == {"split": 1, "free": 2, "known": 3, "a": 4, "write": 1}
    assert state["share"] == 1


def test_jobs_have_the_account_of_the_ledger_and_the_size_that_the_rule_states(
    ran: Path, places: dict[str, Any]
) -> None:
    for rule, size in (("free", (2, 600, 20)), ("plain", (8, 5000, 60))):
        jobs = dispatched(ran, rule)
        assert len(jobs) == JOBS[rule]
        for wildcards, given in jobs:
            place = places[f"rule_{rule}_wildcards_{wildcards['i']}"]
            assert given["slurm_account"] == given["qos"] == place["account"]
            assert (place["kind"], given["slurm_partition"]) == ("cpu", "hpg-default")
            assert (given["threads"], given["mem_mb"], given["runtime"]) == size
    assert {wildcards["i"] for wildcards, _ in dispatched(ran, "free")} == {"a", "b"}
    assert len(set(tries(ran, "plain", "slurm_account"))) > 1
    account, kind = places["rule_train"]["account"], places["rule_train"]["kind"]
    found = tries(ran, "train", "slurm_partition", "slurm_extra", "slurm_account")
    assert (kind, found) == ("gpu", [("hpg-b200", "'--gres=gpu:1'", account)])


def test_what_the_rule_fixed_stays(ran: Path, places: dict[str, Any]) -> None:
    names = ("slurm_account", "slurm_partition", "qos", "mem_mb")
    assert tries(ran, "fixed", *names) == [("maigan", "own", "maigan-b", 700)]
    assert places["rule_fixed"]["account"] == "maigan"


def test_memory_doubles_after_a_failure_unless_the_rule_asks_for_more(
    ran: Path, places: dict[str, Any]
) -> None:
    assert tries(ran, "hungry", "mem_mb", "runtime") == [(4000, 30), (8000, 30)]
    assert tries(ran, "growing", "mem_mb") == [(4000,), (16000,)]
    assert tries(ran, "per_cpu", "mem_mb_per_cpu") == [(1500,), (3000,)]
    # what placement counts is what is sent
    for rule, mem_mb in (("hungry", 8000), ("growing", 16000), ("per_cpu", 6000)):
        assert places[f"rule_{rule}"]["mem_mb"] == mem_mb
    # of a group, on the account that one of its rules fixes
    found = tries(ran, "group fed+starved", "mem_mb", "slurm_account")
    assert found == [(400, "maigan"), (800, "maigan")]


def test_a_group_is_one_job_with_the_summed_shape_and_a_comment_of_its_own(
    ran: Path, places: dict[str, Any]
) -> None:
    given = [given for _, given in dispatched(ran, "group a+b")]
    assert len({one["comment"] for one in given}) == 4
    for one in given:
        place = places[one["comment"]]
        assert one["slurm_account"] == place["account"]
        # one after the other: the larger of threads and memory, the sum of the times
        assert (one["threads"], one["mem_mb"], one["runtime"]) == (4, 3000, 15)
        assert (place["cpus"], place["mem_mb"], place["runtime_min"]) == (4, 3000, 15)
    ((_, piped),) = dispatched(ran, "group read+write")  # at once: the sums, the longer time
    assert (piped["threads"], piped["mem_mb"], piped["runtime"]) == (5, 300, 40)
    assert places[piped["comment"]]["cpus"] == 5


def test_jobs_that_slurms_comment_cannot_tell_apart_go_one_after_the_other(ran: Path) -> None:
    ledger = read_ledger(ran / ".snakemake/tilewright/ledger.jsonl")
    twins = [e["event"] for e in ledger if e.get("job") == "rule_twins_wildcards_x_y_z"]
    assert twins == ["place", "done"] * 2


def test_groups_made_anew_are_found_and_tries_that_wait_when_a_checkpoint_ends_are_made(
    tmp_path: Path,
) -> None:
    # it makes some anew where a checkpoint ends between the group's naming and its start: which of
    # the equal groups of its cache it takes is left to the order of a set
    snakefile = f"""
from snakemake.jobs import GroupJob, GroupJobFactory
from snakemake_scheduler_plugin_tilewright.run import Run

GroupJobFactory.new = lambda self, name, jobs, most: GroupJob(name, frozenset(jobs), most)
Path("split.held").touch()

def watch(run, *asked, own=Run.select):
    chosen = own(run, *asked)
    with open("other.txt", "a") as stream:
        placed = [(run._names[one], one) for one in chosen if run._names[one]]
        stream.writelines(name for name, one in placed if run.jobs[name] is not one)
    return chosen

def without_room(self, ready, later, most, own=Dispatcher.round):
    failed = {{name for name in ready if self.tasks[name].past.causes}}
    if len(failed) == 2:
        Path("split.held").unlink(missing_ok=True)
    parted = self.tasks["rule_split"].sent_s and not self.tasks["rule_split"].place
    return own(self, [name for name in ready if parted or name not in failed], later, most)

Run.select, Dispatcher.round = watch, without_room
rule all:
    default_target: True
    input: lambda wildcards: checkpoints.split.get().output, "lost.txt", "fed.txt", "grown.txt"
{SPLIT}
rule late:
    input: "parts"
    output: "late.txt"
    shell: "true"
rule growing:
    input: "late.txt"
    output: "growing.txt"
    log: "growing.log"
    group: "anew"
    resources: mem_mb=400, runtime=5
    shell: "true"
rule grown:
    input: "growing.txt"
    output: "grown.txt"
    group: "anew"
    resources: mem_mb=300, runtime=5
    shell: "true"
rule lost:
    output: "lost.txt"
    log: "lost.log"
    shell: "true"
rule hungry:
    output: "hungry.txt"
    log: "hungry.log"
    group: "waits"
    shell: "true"
rule fed:
    input: "hungry.txt"
    output: "fed.txt"
    group: "waits"
    shell: "true"
"""
    play(tmp_path, snakefile, "--retries", "1")
    for rule in ("lost", "group fed+hungry", "group growing+grown"):
        assert tries(tmp_path, rule, "attempt") == [(1,), (2,)]
    assert tries(tmp_path, "group growing+grown", "mem_mb") == [(400,), (800,)]
    placed = {event["job"] for event in events(tmp_path, "place")}
    assert {comment for (comment,) in tries(tmp_path, "group growing+grown", "comment")} < placed
    causes = Counter(event["cause"] for event in events(tmp_path, "fail"))
    assert causes == {"memory": 2, "node": 1}
    assert not (tmp_path / "other.txt").read_text()  # else its end could not be told to Snakemake


def test_what_was_given_up_or_is_too_large_by_now_fails_by_name_and_the_others_end(
    tmp_path: Path,
) -> None:
    """Nor is it tried again when a checkpoint ends."""
    snakefile = f"""
from threading import enumerate as threads
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter

Path("split.held").touch()

def give_up(dag, job, own=snakemake_adapter.give_up):
    own(dag, job)
    if job.rule.name == "bad":
        Path("split.held").unlink()

def capacity(self, own=Dispatcher.capacity):  # both threads change what Slurm's client keeps
    assert self.lock._is_owned() or "tilewright-tend" not in [one.name for one in threads()]
    return own(self)

snakemake_adapter.give_up, Dispatcher.capacity = give_up, capacity
rule all:
    default_target: True
    input:
        lambda wildcards: checkpoints.split.get().output, "bad.txt", "free.txt", "large.txt",
        "next.txt"
{SPLIT}
rule bad:
    output: "bad.txt"
    log: "bad.log"
    shell: "true"
rule free:
    input: "parts"
    output: "free.txt"
    shell: "true"
rule small:
    output: "small.txt"
    resources: mem_mb=500, runtime=20
    shell: "true"
rule large:
    input: "small.txt"
    output: "large.txt"
    resources: mem_mb=lambda wildcards, input: 99_000_000 if Path(input[0]).exists() else 9
    shell: "true"
rule next:
    input: "small.txt"
    output: "next.txt"
    shell: "true"
"""
    said = play(tmp_path, snakefile, "--retries", "5", "--keep-going", status=1)
    assert "rule_large is given up: rule_large would pend for ever" in said
    assert "placement failed" not in said
    assert tries(tmp_path, "bad", "attempt") == [(1,), (2,)]
    assert len(dispatched(tmp_path, "free")) == 1
    assert (tmp_path / "next.txt").is_file()
    failed = Counter(event["job"] for event in events(tmp_path, "fail"))
    assert failed == {"rule_large": 1, "rule_bad": 2}


@pytest.mark.parametrize(
    ("head", "stated", "sentences"),
    [
        ('plan = Plan(RULES, cluster=cluster.current(), ledger=Path("ledger.jsonl"))',
         'group: "own"\n    threads: plan.threads("good")\n    resources: **plan.routed("good")',
         ("rule good asks placement where each of its jobs runs", "take it out of group own")),
        ("", "resources: mem_mb=99_000_000, runtime=20", ("rule_good would pend for ever",)),
    ],
    ids=["a group of rules that ask placement", "too large"],
)  # fmt: skip
def test_what_cannot_be_placed_is_refused_in_one_sentence_and_is_no_run_in_the_ledger(
    tmp_path: Path, head: str, stated: str, sentences: tuple[str, ...]
) -> None:
    snakefile = f'{head}\nrule good:\n    output: "good.txt"\n    {stated}\n    shell: "true"\n'
    said = play(tmp_path, snakefile, status=1)
    for sentence in sentences:
        assert sentence in said
    assert "Traceback" not in said
    assert not (tmp_path / "dispatched.jsonl").exists()
    assert events(tmp_path, "run") == []


def test_where_placement_fails_jobs_go_to_an_account_that_may_be_used(tmp_path: Path) -> None:
    snakefile = """
from snakemake_scheduler_plugin_tilewright import scheduler as plugin

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
    said = play(tmp_path, snakefile)
    assert "placement failed again and again, so this round is greedy" in said
    assert tries(tmp_path, "own", "slurm_account") == [("maigan",)]
    assert tries(tmp_path, "group any", "slurm_account") == [("brusko",)]
    assert {event["reason"] for event in events(tmp_path, "greedy")} == {"KeyError('x')"}
