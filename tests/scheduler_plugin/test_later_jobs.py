"""Runs of rules that never heard of placement: single jobs, of checkpoints, and in groups."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from snakemake_scheduler_plugin_tilewright.runtime.ledger import read_ledger
from tests.support.scribe import Code, default_target, dispatched, events, rule, run

HEAD = """
from pathlib import Path
from tests.support.failing_slurm import RULES as SHAPES, cluster_with_qos
from snakemake_scheduler_plugin_tilewright.cluster import cluster
from snakemake_scheduler_plugin_tilewright.placement.dispatcher import Dispatcher
from snakemake_scheduler_plugin_tilewright.resources import Placement

found = cluster_with_qos()
cluster.of_command = lambda *asked: found
"""
SPLIT = rule("split", "checkpoint", output=Code('directory("parts")'), mem_mb=500, runtime=20)
AFTER_SPLIT = Code("lambda wildcards: checkpoints.split.get().output")
PARTS = """
def parts(wildcards):
    folder = checkpoints.split.get().output[0]
    found = glob_wildcards(folder + "/{i}.part").i
    return expand(["free/{i}.txt", "known/{i}.txt"], i=found)
"""
RULES = (
    PARTS,
    default_target(
        Code("parts"), *(f"b/{i}.txt" for i in range(4)), *(f"out/{i}.txt" for i in range(8)),
        "read.txt", "fed.txt", "twins/x_y/z.txt", "twins/x/y_z.txt", "second.txt",
        "known/first.txt", "train.txt", "fixed.txt", "hungry.txt", "growing.txt",
        "per_cpu.txt",
    ),
    SPLIT,
    rule("free", output="free/{i}.txt", input="parts", threads=2, mem_mb=600, runtime=20),
    rule("known", output="known/{i}.txt", threads=2, mem_mb=500, runtime=20),
    rule("a", output="a/{i}.txt", group="chain", threads=2, mem_mb=3000, runtime=10),
    rule(
        "b", output="b/{i}.txt", input="a/{i}.txt", group="chain", threads=4, runtime=5,
        mem_mb=Code("lambda wildcards, input: 2000 + input.size"),
    ),
    rule("write", output=Code('pipe("pipe.txt")'), threads=2, mem_mb=100, runtime=30),
    rule("read", output="read.txt", input="pipe.txt", threads=3, mem_mb=200, runtime=40),
    rule("starved", output="starved.txt", log="starved.log", group="fails", mem_mb=400, runtime=5),
    rule(
        "fed", output="fed.txt", input="starved.txt", group="fails", mem_mb=300, runtime=5,
        slurm_account="maigan",
    ),
    rule("twins", output="twins/{one}/{other}.txt", threads=2, mem_mb=300, runtime=5),
    rule(
        "second", output="second.txt", threads=2, mem_mb=300, runtime=5,
        slurm_account=Code("lambda wildcards, attempt: 'brusko'"),
    ),
    rule("plain", output="out/{i}.txt", threads=8, mem_mb=5000, runtime=60),
    rule("train", output="train.txt", threads=4, mem_mb=9000, slurm_extra="'--gres=gpu:1'"),
    rule(
        "fixed", output="fixed.txt", threads=2, slurm_account="maigan", slurm_partition="own",
        qos="maigan-b", mem_mb=700,
    ),
    rule("hungry", output="hungry.txt", log="hungry.log", threads=2, mem_mb=4000, runtime=30),
    rule(
        "growing", output="growing.txt", log="growing.log", threads=2,
        mem_mb=Code("lambda wildcards, attempt: 4000 * attempt**2"),
    ),
    rule("per_cpu", output="per_cpu.txt", log="per_cpu.log", threads=2, mem_mb_per_cpu=1500),
)  # fmt: skip
JOBS = {
    "group a+b": 4, "free": 2, "known": 3, "group read+write": 1, "second": 1, "split": 1,
    "twins": 2, "group fed+starved": 1, "plain": 8, "train": 1, "fixed": 1,
    "hungry": 1, "growing": 1, "per_cpu": 1,
}  # fmt: skip
FAIL = dict.fromkeys(("group fed+starved", "hungry", "growing", "per_cpu"), 1)


def play(folder: Path, rules: Iterable[str], *args: str, status: int = 0) -> str:
    """Run a workflow whose executor bears the name of Slurm's; return what was said."""
    done = run(folder, HEAD + "".join(rules), "tilewright", *args, executor="slurm")
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    return said


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("later")
    said = play(folder, RULES, "--retries", "3")
    assert "placement failed" not in said
    assert f"placement: {sum(JOBS.values())} jobs (34 of Snakemake's, some in groups) done" in said
    return folder


@pytest.fixture(scope="module")
def places(ran: Path) -> dict[str, Any]:
    return {event["job"]: event for event in events(ran, "place")}


def tries(folder: Path, of: str, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(given.get(name) for name in names) for _, given in dispatched(folder, of)]


def test_all_of_them_are_placed_and_end(ran: Path) -> None:
    assert Counter(event["rule"] for event in events(ran, "done")) == JOBS
    placed = Counter(event["rule"] for event in events(ran, "place"))
    assert placed - Counter(JOBS) == FAIL
    causes = {event["rule"]: event["cause"] for event in events(ran, "fail")}
    assert causes == dict.fromkeys(FAIL, "memory")
    assert {event["account"] for event in events(ran, "place")} <= {"clive", "maigan", "brusko"}


def test_the_end_of_a_group_with_its_own_checkpoint_is_noted(tmp_path: Path) -> None:
    """In a run of its own: Snakemake adds jobs to such a group where another checkpoint ends.

    Its hash is another then, and Snakemake ends with a KeyError of ``scheduler.running``.
    """
    play(tmp_path, [
        default_target("gather.txt"),
        rule("split", "checkpoint", output=Code('directory("parts")'), group="own"),
        rule("gather", output="gather.txt", input=AFTER_SPLIT, group="own"),
    ])  # fmt: skip
    assert [event["rule"] for event in events(tmp_path, "done")] == ["group gather+split"]


def test_progress_counts_jobs_of_checkpoints_and_in_groups(ran: Path) -> None:
    state = json.loads((ran / ".snakemake/tilewright/state.json").read_text())
    assert state["jobs"] == state["done"]
    counts = {rule: state["jobs"][rule] for rule in ("split", "free", "known", "a", "write")}
    assert counts == {"split": 1, "free": 2, "known": 3, "a": 4, "write": 1}
    assert state["share"] == 1


def test_jobs_have_the_account_of_the_ledger_and_the_size_that_the_rule_states(
    ran: Path, places: dict[str, Any]
) -> None:
    for name, size in (("free", (2, 600, 20)), ("plain", (8, 5000, 60))):
        jobs = dispatched(ran, name)
        assert len(jobs) == JOBS[name]
        for wildcards, given in jobs:
            place = places[f"rule_{name}_wildcards_{wildcards['i']}"]
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
    for name, mem_mb in (("hungry", 8000), ("growing", 16000), ("per_cpu", 6000)):
        assert places[f"rule_{name}"]["mem_mb"] == mem_mb
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
    head = """
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
    failed = {name for name in ready if self.tasks[name].history.causes}
    if len(failed) == 2:
        Path("split.held").unlink(missing_ok=True)
    parted = self.tasks["rule_split"].sent_s and not self.tasks["rule_split"].assignment
    return own(self, [name for name in ready if parted or name not in failed], later, most)

Run.select, Dispatcher.round = watch, without_room
"""
    rules = (
        head, default_target(AFTER_SPLIT, "lost.txt", "fed.txt", "grown.txt"), SPLIT,
        rule("late", output="late.txt", input="parts"),
        rule("growing", output="growing.txt", input="late.txt", log="growing.log", group="anew",
             mem_mb=400, runtime=5),
        rule("grown", output="grown.txt", input="growing.txt", group="anew", mem_mb=300, runtime=5),
        rule("lost", output="lost.txt", log="lost.log"),
        rule("hungry", output="hungry.txt", log="hungry.log", group="waits"),
        rule("fed", output="fed.txt", input="hungry.txt", group="waits"),
    )  # fmt: skip
    play(tmp_path, rules, "--retries", "1")
    for name in ("lost", "group fed+hungry", "group growing+grown"):
        assert tries(tmp_path, name, "attempt") == [(1,), (2,)]
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
    head = """
from threading import enumerate as threads
from snakemake_scheduler_plugin_tilewright.runtime import snakemake_adapter

Path("split.held").touch()

def give_up(dag, job, own=snakemake_adapter.give_up):
    own(dag, job)
    if job.rule.name == "bad":
        Path("split.held").unlink()

def state(self, own=Dispatcher.state):  # both threads change what Slurm's client keeps
    assert self.lock._is_owned() or "tilewright-monitor" not in [one.name for one in threads()]
    return own(self)

snakemake_adapter.give_up, Dispatcher.state = give_up, state
"""
    large = Code("lambda wildcards, input: 99_000_000 if Path(input[0]).exists() else 9")
    rules = (
        head, default_target(AFTER_SPLIT, "bad.txt", "free.txt", "large.txt", "next.txt"), SPLIT,
        rule("bad", output="bad.txt", log="bad.log"),
        rule("free", output="free.txt", input="parts"),
        rule("small", output="small.txt", mem_mb=500, runtime=20),
        rule("large", output="large.txt", input="small.txt", mem_mb=large),
        rule("next", output="next.txt", input="small.txt"),
    )  # fmt: skip
    said = play(tmp_path, rules, "--retries", "5", "--keep-going", status=1)
    assert "rule_large is given up: rule_large can never start" in said
    assert "placement failed" not in said
    assert tries(tmp_path, "bad", "attempt") == [(1,), (2,)]
    assert len(dispatched(tmp_path, "free")) == 1
    assert (tmp_path / "next.txt").is_file()
    failed = Counter(event["job"] for event in events(tmp_path, "fail"))
    assert failed == {"rule_large": 1, "rule_bad": 2}


def test_what_sbatch_refuses_goes_elsewhere_or_ends_by_name(tmp_path: Path) -> None:
    rules = (
        default_target(*(f"half/{i}.txt" for i in range(9)), "never.txt"),
        rule("half", output="half/{i}.txt", mem_mb=500, runtime=5),
        rule("never", output="never.txt", mem_mb=500, runtime=5),
    )
    said = play(tmp_path, rules, "--retries", "1", "--keep-going", status=1)
    words = "is not tried again: sbatch refuses it everywhere (Invalid qos specification)"
    assert said.count(f"failed (refused: Invalid qos specification) and {words}") == 1
    refused = Counter(event["rule"] for event in events(tmp_path, "fail"))
    assert refused["never"] == 3
    assert 1 <= refused["half"] <= 2  # all accounts but clive
    assert len(list((tmp_path / "half").glob("*.txt"))) == 9
    assert len(dispatched(tmp_path, "half")) == 9


@pytest.mark.parametrize(
    ("stated", "sentences"),
    [
        ({"group": "own", "threads": Code('placement.threads("good")'),
          "resources": '**placement.resources("good")'},
         ("rule good asks placement where each of its jobs runs", "take it out of group own")),
        ({"mem_mb": 99_000_000, "runtime": 20}, ("rule_good can never start",)),
    ],
    ids=["a group of rules that ask placement", "too large"],
)  # fmt: skip
def test_what_cannot_be_placed_is_refused_in_one_sentence_and_is_no_run_in_the_ledger(
    tmp_path: Path, stated: dict[str, object], sentences: tuple[str, ...]
) -> None:
    placement = (
        "placement = workflow.placement = Placement("
        'SHAPES.models, cluster=found, ledger=Path("ledger.jsonl"))\n'
    )
    said = play(tmp_path, (placement, rule("good", output="good.txt", **stated)), status=1)
    for sentence in sentences:
        assert sentence in said
    assert "Traceback" not in said
    assert not (tmp_path / "dispatched.jsonl").exists()
    assert events(tmp_path, "run") == []


def test_where_placement_fails_jobs_go_to_an_account_that_may_be_used(tmp_path: Path) -> None:
    head = """
from snakemake_scheduler_plugin_tilewright import scheduler as plugin

def fail(*asked):
    raise KeyError("x")

plugin._MOST_FAILED_ROUNDS, Dispatcher.round = 2, fail
"""
    own = rule("own", output="own.txt", slurm_account="maigan")
    free = rule("any", output="any.txt", group="one")
    said = play(tmp_path, (head, default_target("own.txt", "any.txt"), own, free))
    failures, greedy, _ = said.partition("placement failed 2 times")
    assert (failures.count("placement failed: KeyError('x')"), bool(greedy)) == (2, True)
    assert tries(tmp_path, "own", "slurm_account") == [("maigan",)]
    assert tries(tmp_path, "group any", "slurm_account") == [("brusko",)]
    assert {event["reason"] for event in events(tmp_path, "greedy")} == {"KeyError('x')"}
