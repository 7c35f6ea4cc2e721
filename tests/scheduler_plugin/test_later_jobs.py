"""Runs of rules that never heard of placement: single jobs, of checkpoints, and in groups."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.scribe import Code, default_target, events, rule
from tests.support.small_slurm import options, run, sent

SPLIT = rule("split", "checkpoint", output=Code('directory("parts")'), mem_mb=500, runtime=20)
PARTS = """
def parts(wildcards):
    folder = checkpoints.split.get().output[0]
    return expand("free/{i}.txt", i=glob_wildcards(folder + "/{i}.part").i)
"""
LAST_LINE = """
from snakemake_scheduler_plugin_tilewright.progress import Progress

def end(progress, own=Progress.end):
    Path("progress").write_text(progress.line())
    own(progress)

Progress.end = end
"""
RULES = (
    LAST_LINE,
    PARTS,
    default_target(
        Code("parts"), *(f"b/{i}.txt" for i in range(4)), *(f"out/{i}.txt" for i in range(8)),
        "fed.txt", "twins/x_y/z.txt", "twins/x/y_z.txt", "second.txt", "train.txt", "fixed.txt",
        "hungry.txt", "growing.txt", "per_cpu.txt", "slow.txt", "lost.txt",
    ),
    SPLIT,
    rule("free", output="free/{i}.txt", input="parts", threads=2, mem_mb=600, runtime=20),
    rule("a", output="a/{i}.txt", group="chain", threads=2, mem_mb=3000, runtime=10),
    rule(
        "b", output="b/{i}.txt", input="a/{i}.txt", group="chain", threads=4, runtime=5,
        mem_mb=Code("lambda wildcards, input: 2000 + input.size"),
    ),
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
    rule("train", output="train.txt", threads=4, mem_mb=9000, gres="gpu:1"),
    rule(
        "fixed", output="fixed.txt", threads=2, slurm_account="maigan", slurm_partition="own",
        qos="maigan-b", mem_mb=700,
    ),
    rule("hungry", output="hungry.txt", log="hungry.log", threads=2, mem_mb=4000, runtime=30),
    rule(
        "growing", output="growing.txt", log="growing.log", threads=2,
        mem_mb=Code("lambda wildcards, attempt: 4000 * attempt**2"),
    ),
    rule("per_cpu", output="per_cpu.txt", threads=2, mem_mb_per_cpu=1500),
    rule("slow", output="slow.txt", runtime=30),
    rule("lost", output="lost.txt"),
)  # fmt: skip
JOBS = {
    "group a+b": 4, "free": 2, "second": 1, "split": 1, "twins": 2, "group fed+starved": 1,
    "plain": 8, "train": 1, "fixed": 1, "hungry": 1, "growing": 1, "per_cpu": 1, "slow": 1,
    "lost": 1,
}  # fmt: skip
MEMORY = ["OUT_OF_MEMORY"]
FAILS = {
    "rule_hungry": MEMORY, "rule_growing": MEMORY, "rule_per_cpu": MEMORY, "rule_fails": MEMORY,
    "rule_slow": ["TIMEOUT"], "rule_lost": ["NODE_FAIL"],
}  # fmt: skip


def play(folder: Path, rules: Iterable[str], *args: str, status: int = 0) -> str:
    done = run(folder, "".join(rules), *args, fails=FAILS)
    said = done.stdout + done.stderr
    assert done.returncode == status, said[-6000:]
    return said


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("later")
    said = play(folder, RULES, "--retries", "3")
    total = sum(JOBS.values())
    assert f"placement: {total} jobs done" in said
    assert "Select jobs to execute" not in said
    return folder


def calls(folder: Path, name: str) -> list[str]:
    return [options(job) for job in sent(folder, name)]


def test_all_of_them_are_placed_and_end_once(ran: Path) -> None:
    assert Counter(event["rule"] for event in events(ran, "done")) == JOBS
    causes = {event["rule"]: event["cause"] for event in events(ran, "fail")}
    assert causes == {
        "hungry": "memory", "growing": "memory", "per_cpu": "memory", "group fed+starved": "memory",
        "slow": "time", "lost": "node",
    }  # fmt: skip
    assert len(sent(ran)) == sum(JOBS.values()) + len(FAILS)
    ids = [event["slurm_id"] for event in events(ran, "place")]
    assert sorted(ids) == [job["id"] for job in sent(ran)]


def test_progress_counts_jobs_of_checkpoints_and_in_groups(ran: Path) -> None:
    total = sum(JOBS.values()) + 5
    said = (ran / "progress").read_text()
    assert said == f"{total} of {total} jobs done, 100 % of the work"
    state = json.loads((ran / ".snakemake/tilewright/state.json").read_text())
    assert state["ended"]


def test_jobs_ask_for_what_the_rule_states_on_an_account_that_placement_chose(ran: Path) -> None:
    jobs = sent(ran, "rule_plain")
    assert len({job["account"] for job in jobs}) > 1
    for job in jobs:
        assert (job["qos"], job["partition"]) == (job["account"], "hpg-default")
        assert " -t 60 " in options(job)
        assert "--mem 5000 " in options(job)
        assert "--cpus-per-task=8" in options(job)
    (train,) = sent(ran, "rule_train")
    assert (train["partition"], "--gres=gpu:1" in options(train)) == ("hpg-b200", True)


def test_what_the_rule_fixed_stays(ran: Path) -> None:
    (fixed,) = sent(ran, "rule_fixed")
    assert (fixed["account"], fixed["partition"], fixed["qos"]) == ("maigan", "own", "maigan-b")
    assert sent(ran, "rule_second")[0]["account"] == "brusko"
    (place,) = [event for event in events(ran, "place") if event["job"] == "rule_fixed"]
    assert (place["account"], place["qos"], place["partition"]) == ("maigan", "maigan-b", "own")


def test_after_a_failure_memory_or_time_doubles_unless_the_rule_asks_for_more(ran: Path) -> None:
    def values(name: str, option: str) -> list[int]:
        found = [re.search(rf"{option}[ =](\d+)", call) for call in calls(ran, name)]
        return [int(one[1]) for one in found if one]

    assert (values("rule_hungry", "--mem"), values("rule_hungry", "-t")) == ([4000, 8000], [30, 30])
    assert values("rule_growing", "--mem") == [4000, 16000]
    assert values("rule_per_cpu", "--mem-per-cpu") == [1500, 3000]
    assert values("rule_slow", "-t") == [30, 60]
    # of a group, on the account that one of its rules fixes
    assert values("rule_fails", "--mem") == [400, 800]
    assert {job["account"] for job in sent(ran, "rule_fails")} == {"maigan"}


def test_a_node_that_died_under_a_job_is_avoided_and_no_try_is_lost(ran: Path) -> None:
    first, second = calls(ran, "rule_lost")
    assert ("--exclude=c1" in first, "--exclude=c1" in second) == (False, True)


def test_a_group_is_one_job_with_the_summed_shape(ran: Path) -> None:
    groups = sent(ran, "rule_chain")
    assert len({job["comment"] for job in groups}) == 4
    for job in groups:  # one after the other: the larger of threads and memory, the sum of times
        assert "-t 15 " in options(job)
        assert "--mem 3000 " in options(job)
        assert "--cpus-per-task=4" in options(job)


def test_jobs_of_one_comment_are_two_jobs(ran: Path) -> None:
    twins = sent(ran, "rule_twins_wildcards_x_y_z")
    assert len({job["name"] for job in twins}) == 2
    assert (ran / "twins/x_y/z.txt").exists()
    assert (ran / "twins/x/y_z.txt").exists()


def test_the_end_of_a_group_with_its_own_checkpoint_is_noted(tmp_path: Path) -> None:
    play(tmp_path, [
        default_target("gather.txt"),
        rule("split", "checkpoint", output=Code('directory("parts")'), group="own"),
        rule("gather", output="gather.txt", group="own",
             input=Code("lambda wildcards: checkpoints.split.get().output")),
    ])  # fmt: skip
    assert [event["rule"] for event in events(tmp_path, "done")] == ["group gather+split"]


@pytest.mark.parametrize("keep_going", [False, True])
def test_after_a_failure_no_more_jobs_are_sent_unless_the_run_keeps_going(
    tmp_path: Path, *, keep_going: bool
) -> None:
    rules = [default_target("bad.txt", *(f"out/{i}.txt" for i in range(40))),
             rule("bad", output="bad.txt", log="bad.log", priority=9),
             rule("good", output="out/{i}.txt", slurm_account="clive", threads=8)]  # fmt: skip
    FAILS_ALWAYS = {"rule_bad": ["FAILED"]}
    done = run(tmp_path, "".join(rules), *["--keep-going"] * keep_going, fails=FAILS_ALWAYS)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert len(sent(tmp_path, "rule_bad")) == 1
    assert len(sent(tmp_path, "rule_good")) == 40 if keep_going else len(sent(tmp_path)) < 41
    assert ("not sent, as a job failed" in said) == (not keep_going)
    assert "failed: rule_bad on c1, Slurm job" in said


def test_a_job_that_fits_nowhere_fails_with_a_sentence(tmp_path: Path) -> None:
    rules = [default_target("large.txt", "small.txt"), rule("small", output="small.txt"),
             rule("large", output="large.txt", mem_mb=10**7)]  # fmt: skip
    said = play(tmp_path, rules, "--keep-going", status=1)
    assert "no place takes it: QOS brusko allows 256000 of mem, and it asks for 10000000" in said
    assert [job["comment"] for job in sent(tmp_path)] == ["rule_small"]
    assert "Traceback" not in said


def test_users_resources_bound_their_own_jobs_and_no_others(tmp_path: Path) -> None:
    rules = [default_target(*(f"{name}/{i}.txt" for name in "ab" for i in range(6))),
             rule("a", output="a/{i}.txt", licence=1), rule("b", output="b/{i}.txt")]  # fmt: skip
    play(tmp_path, rules, "--resources", "licence=1")
    order = [event["rule"] for event in events(tmp_path, "place")]
    assert Counter(order) == {"a": 6, "b": 6}
    assert order[:7].count("b") == 6
    assert [event["event"] for event in events(tmp_path, "wait")] == ["wait"] * len(
        events(tmp_path, "wait")
    )
