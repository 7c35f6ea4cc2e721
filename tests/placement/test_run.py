"""A run on a scripted Slurm: jobs are sent, moved, refused, and end, whatever Slurm says."""

from collections import Counter, deque
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.placement.run import MOST_STARTS
from snakemake_scheduler_plugin_tilewright.runtime.errors import SlurmQueryError
from snakemake_scheduler_plugin_tilewright.slurm.query import MOST_QUESTIONS_A_MIN
from tests.support.placement_rules import CPU, GPU
from tests.support.scripted_slurm import AWAY, IDLE, Played, ScriptedSlurm, play

LIMIT = "QOSGrpCpuLimit"


def refusal(words: str) -> SlurmQueryError:
    return SlurmQueryError("sbatch", f"sbatch: error: Batch job submission failed: {words}")


@pytest.fixture
def slurm() -> ScriptedSlurm:
    return ScriptedSlurm()


@pytest.fixture
def played(tmp_path: Path, slurm: ScriptedSlurm) -> Played:
    return play(tmp_path, slurm)


# Sent and moved


def test_a_job_is_sent_after_four_questions_and_its_end_is_told(
    played: Played, slurm: ScriptedSlurm
) -> None:
    (task,) = played.submit(1)
    asked = [argv[0] for argv in slurm.calls]
    assert asked.index("sbatch") == 3  # and the queue, before a run begins
    assert played.sent == [f"{task.name} 101"]
    assert (task.slurm_name, played.step()) == (f"{played.run.name}.1", [])
    slurm.start(101)
    assert (played.step(), task.running) == ([], True)
    slurm.end(101)
    (end,) = played.step()
    assert (end.task, end.words, end.final) == (task, "", False)
    assert (played.run.active, played.step()) == ([], [])
    (done,) = played.events("done")
    assert (done["job"], done["node"], done["slurm_id"]) == (task.name, "c1", 101)


def test_a_round_sends_as_many_as_may_be_sent_until_the_queue_is_asked_again(
    tmp_path: Path, slurm: ScriptedSlurm
) -> None:
    """The next round sends the others at once: nothing is asked in between."""
    slurm.idle = "cpu|0/9999/0/9999|(null)|(null)|1|\n"
    played = play(tmp_path, slurm)
    played.submit(2 * MOST_STARTS + 20, ("cpu",))
    few = len(played.sent)  # what is idle is not known before the first jobs are sent
    played.step(30)
    assert len(played.sent) == few + MOST_STARTS
    assert played.run.due_s < slurm.now_s
    slurm.calls.clear()
    assert (played.step(0), len(played.sent)) == ([], few + 2 * MOST_STARTS)
    assert (played.step(0), len(played.sent)) == ([], 2 * MOST_STARTS + 20)
    assert {argv[0] for argv in slurm.calls} == {"sbatch"}
    assert played.run.due_s > slurm.now_s - 1
    assert not played.run.waiting


def fill_both(played: Played, slurm: ScriptedSlurm) -> tuple[list[int], list[int]]:
    """Let jobs pend for limits of two accounts, and start those of the second."""
    played.submit(8)
    first, second = slurm.at("a"), slurm.at("b")
    assert (len(first), len(second)) == (4, 4)
    slurm.pend(*first, *second, reason=LIMIT)
    played.step(30)
    played.step(30)
    assert slurm.at("a") == first
    slurm.start(*second)
    slurm.calls.clear()
    return first, second


def test_pending_jobs_are_moved_by_one_call_where_there_is_room(
    played: Played, slurm: ScriptedSlurm
) -> None:
    first, second = fill_both(played, slurm)
    played.step(30)
    assert slurm.at("a") == first  # Slurm said just now that the other one is full
    played.step(40)
    (moved,) = [argv for argv in slurm.calls if argv[:2] == ["scontrol", "update"]]
    ids = ",".join(map(str, first))
    assert moved[2:] == [f"JobId={ids}", "Account=b", "QOS=b", "Partition=cpu"]
    assert (slurm.at("a"), len(played.events("move"))) == ([], 4)
    assert slurm.names("scancel") == slurm.names("sbatch") == []
    assert not any(task.history.causes for task in played.run.active)
    assert {*second} < {task.slurm_id for task in played.run.active}


@pytest.mark.parametrize(
    ("words", "goes_elsewhere"),
    [("Invalid qos specification", True), ("Job is no longer pending execution", False),
     ("Unable to contact slurm controller", False)],
)  # fmt: skip
def test_an_update_that_is_refused_leaves_the_job_where_it_is(
    played: Played, slurm: ScriptedSlurm, words: str, *, goes_elsewhere: bool
) -> None:
    first, _ = fill_both(played, slurm)
    slurm.answers["update"] = deque([SlurmQueryError("scontrol", words)] * 9)
    played.step(70)
    tried = [argv[2] for argv in slurm.calls if "update" in argv]
    # all at once, and then one by one
    assert tried[1:] == [f"JobId={one}" for one in first]
    assert (slurm.at("a"), played.events("move")) == (first, [])
    excluded = {place.account for one in played.run.active for place in one.history.excluded}
    assert excluded == ({"b"} if goes_elsewhere else set())
    assert len(played.run.active) == 8


def test_a_job_changes_its_device_kind_by_a_cancel_and_a_new_submission(tmp_path: Path) -> None:
    slurm = ScriptedSlurm({"a": ""})
    played = play(tmp_path, slurm)
    (other,) = played.submit(1, ("gpu",), rule="other")
    slurm.start(101, node="b1")
    played.step()
    (task,) = played.submit(1, ("gpu", "cpu"), cpu_seconds=1500.0)
    assert task.place is not None
    assert task.place.kind == "gpu"  # 120 s + 300 s < 1500 s
    slurm.pend(102, reason="QOSGrpGRES")
    played.step(30)
    assert (slurm.names("scancel"), task.slurm_id) == ([], 102)
    for _ in range(80):  # the other one is late, and later
        played.step(30)
        if task.slurm_id == 103:
            break
    assert slurm.names("scancel") == ["102"]
    assert [task.slurm_id, task.place.kind, task.switches] == [103, "cpu", 1]
    assert (other.running, played.sent[-1]) == (True, f"{task.name} 103")
    assert task.history.causes == []


# Refused


def test_what_sbatch_refuses_goes_elsewhere_at_once_and_fails_with_slurms_words(
    played: Played, slurm: ScriptedSlurm
) -> None:
    slurm.refuses = lambda place: "Invalid qos specification" if place["account"] == "a" else ""
    made = played.submit(4)
    for _ in range(12):
        assert played.step(1) == []
    assert (slurm.at("a"), len(slurm.at("b"))) == ([], 4)
    assert 1 <= len(played.events("refuse")) <= 4
    slurm.end(*slurm.jobs)
    assert {end.task for end in played.step()} == {*made}
    slurm.refuses = lambda place: f"no {place['account']} for you"
    more = played.submit(2, rule="other")
    ends = [end for _ in range(20) for end in played.step(1)]
    assert {end.task for end in ends} == {*more}
    # what was said of the QOS holds for jobs of any size
    assert {(end.words, end.final) for end in ends} == {
        ("no place takes it: Invalid qos specification; no b for you", True)
    }
    assert len(played.events("refuse")) <= 8


@pytest.mark.parametrize(
    "words",
    ["QOSMaxSubmitJobPerUserLimit", "Requested partition is inactive or drained",
     "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"],
)  # fmt: skip
def test_what_sbatch_refuses_for_now_is_sent_again_later(
    played: Played, slurm: ScriptedSlurm, words: str
) -> None:
    slurm.refuses = lambda place: words
    (task,) = played.submit(1)
    for _ in range(6):
        assert played.step() == []
    assert (task.place, task.history.excluded) == (None, frozenset())
    assert len(slurm.names("sbatch")) <= 8
    slurm.refuses = lambda place: ""
    for _ in range(40):
        played.step()
    assert len(slurm.jobs) == 1


def test_banners_around_the_number_are_no_numbers(played: Played, slurm: ScriptedSlurm) -> None:
    slurm.answers["sbatch"] = deque(["Welcome to node 7!\n12 users\nSubmitted batch job 345\n"])
    (task,) = played.submit(1)
    assert (task.slurm_id, played.sent) == (345, [f"{task.name} 345"])


@pytest.mark.parametrize("words", ["no answer within 120 s: timed out", "it printed no number"])
@pytest.mark.parametrize("taken", [True, False])
def test_sbatch_that_does_not_answer_is_asked_by_name_and_no_job_is_sent_twice(
    played: Played, slurm: ScriptedSlurm, words: str, *, taken: bool
) -> None:
    original, lost = slurm._sbatch, [True]

    def sbatch(argv: list[str]) -> str:
        if lost.pop() if lost else False:
            if taken:
                original(argv)
            if words.startswith("no answer"):
                raise SlurmQueryError("sbatch", words)
            return "Have a nice day\n"
        return original(argv)

    slurm._sbatch = sbatch  # type: ignore[method-assign, assignment]
    (task,) = played.submit(1)
    assert (task.slurm_id, played.sent) == (0, [])
    for _ in range(12):
        assert played.step() == []
    assert len(slurm.jobs) == 1
    assert (task.slurm_id, played.sent) == (101, [f"{task.name} 101"])
    assert task.slurm_name.endswith(".1" if taken else ".2")


# What Slurm does not say


def test_while_the_queue_is_away_nothing_is_concluded_and_then_all_ends_are_seen(
    played: Played, slurm: ScriptedSlurm
) -> None:
    made = played.submit(4)
    slurm.start(*slurm.jobs)
    played.step()
    slurm.answers["squeue"] = deque([AWAY] * 6)
    slurm.end(101, 102)
    slurm.end(103, state="FAILED")
    assert played.step() == []
    later = played.submit(1, rule="later")
    for _ in range(5):
        assert played.step() == []
    assert len(slurm.names("sbatch")) == 4
    assert [line for line in played.said if "Unable" in line or "again" in line] == [
        f"{AWAY}; what runs goes on, and Slurm is asked again", "Slurm answers again",
    ][:1]  # fmt: skip
    ends = {end.task: end.words for end in played.step()}
    assert ends.keys() == {*made[:3]}
    assert [bool(ends[task]) for task in made[:3]] == [False, False, True]
    assert played.said[-2:].count("Slurm answers again") == 1
    assert later[0].slurm_id == 105


@pytest.mark.parametrize(
    ("known", "after_s", "words"),
    [
        ("exit file 0", 10, ""), ("exit file 3", 10, "error: FAILED, exit 3:0"),
        ("exit file 137", 10, "memory: FAILED, exit 137:0"), ("accounting", 10, ""),
        ("accounting failed", 10, "error: FAILED"), ("nothing", 70, "node: "),
    ],
)  # fmt: skip
def test_a_job_that_is_missing_from_the_queue_is_asked_for_elsewhere(
    tmp_path: Path, played: Played, slurm: ScriptedSlurm, known: str, after_s: float, words: str
) -> None:
    (task,) = played.submit(1)
    slurm.start(101)
    played.step()
    slurm.end(101, state="FAILED" if "failed" in known else "COMPLETED")
    slurm.forget(101)
    slurm.accounting = known.startswith("accounting")
    if known.startswith("exit"):
        (tmp_path / "ends" / task.slurm_name).write_text(f"{known.split()[-1]}\n")
    ends = [end for _ in range(int(after_s // 10) - 1) for end in played.step()]
    assert ends == []
    ends = played.step()
    if words.startswith("node"):
        assert ends == []  # sent again, at no cost
        (failed,) = played.events("fail")
        assert failed["cause"] == "node"
        assert task.slurm_id == 102
    else:
        (end,) = ends
        assert end.words.startswith(words)
        assert bool(end.words) == bool(words)


def test_a_job_of_which_sbatch_said_nothing_and_the_queue_neither_is_sent_again(
    played: Played, slurm: ScriptedSlurm
) -> None:
    slurm.answers["sbatch"] = deque([SlurmQueryError("sbatch", "Zero Bytes were transmitted")])
    (task,) = played.submit(1)
    for _ in range(5):
        assert (played.step(), slurm.jobs) == ([], {})
    played.step(20)
    played.step()
    assert [*slurm.jobs] == [task.slurm_id] == [101]


# Pending and held


def test_a_job_that_is_requeued_runs_again_and_is_no_failure(
    played: Played, slurm: ScriptedSlurm
) -> None:
    (task,) = played.submit(1)
    slurm.start(101)
    played.step(500)
    slurm.jobs[101].state, slurm.jobs[101].reason = "PENDING", "BeginTime"
    played.step()
    assert (task.pending, task.slurm_id, task.waits_since_s) == (True, 101, slurm.now_s)
    slurm.start(101)
    played.step()
    slurm.end(101)
    assert [end.words for end in played.step()] == [""]


def test_what_a_person_holds_stays_and_what_slurm_holds_goes_elsewhere(
    played: Played, slurm: ScriptedSlurm
) -> None:
    person, by_slurm = played.submit(2)
    slurm.pend(person.slurm_id, reason="JobHeldUser")
    slurm.pend(by_slurm.slurm_id, reason="launch_failed_requeued_held")
    first = by_slurm.slurm_id, by_slurm.place
    for _ in range(10):
        played.step()
    assert slurm.names("scancel") == [str(first[0])]
    assert slurm.jobs[person.slurm_id].reason == "JobHeldUser"
    assert by_slurm.slurm_id != first[0]
    assert by_slurm.place != first[1]
    assert any("`scontrol release` lets it go" in line for line in played.said)
    assert not played.events("fail")


def test_a_job_that_slurm_never_starts_goes_elsewhere_and_then_fails_with_its_words(
    played: Played, slurm: ScriptedSlurm
) -> None:
    (task,) = played.submit(1)
    seen = []
    for _ in range(2):
        assert task.place is not None
        seen.append(task.place.account)
        slurm.pend(task.slurm_id, reason="BadConstraints")
        ends = [end for _ in range(12) for end in played.step(3)]
    assert seen == ["a", "b"]
    (end,) = ends
    words = "no node there can hold it (Slurm: BadConstraints)"
    assert (end.words, end.final) == (f"no place takes it: {words}", True)
    assert not [job for job in slurm.jobs.values() if job.state == "PENDING"]


def test_why_a_job_pends_is_said_once(played: Played, slurm: ScriptedSlurm) -> None:
    played.submit(4)
    slurm.pend(*slurm.jobs, reason="Priority")
    for _ in range(20):
        played.step()
    words = "jobs that wait before it go first (Slurm: Priority)"
    assert [line for line in played.said if words in line] == [f"work_0 and 3 more pend: {words}"]


# Failed


@pytest.mark.parametrize(
    ("state", "reason", "free", "says"),
    [
        ("OUT_OF_MEMORY", "OutOfMemory", False, "gets twice the memory with its next try"),
        ("TIMEOUT", "TimeLimit", False, "gets twice the time with its next try"),
        ("FAILED", "NonZeroExitCode", False, "is tried again if Snakemake has a try left"),
        ("CANCELLED", "None", False, "is tried again if Snakemake has a try left"),
        ("NODE_FAIL", "NodeDown", True, "is sent elsewhere"),
        ("PREEMPTED", "None", True, "is sent elsewhere"),
    ],
)
def test_the_next_try_follows_from_the_cause(
    played: Played, slurm: ScriptedSlurm, state: str, reason: str, says: str, *, free: bool
) -> None:
    (task,) = played.submit(1)
    slurm.start(101, node="c7")
    played.step()
    slurm.end(101, state=state, reason=reason)
    ends = played.step()
    assert [says in line for line in played.said] == [True]
    (failed,) = played.events("fail")
    assert failed["next"].startswith(says)
    if free:
        assert (ends, task.slurm_id) == ([], 102)
        avoided = [word for word in slurm.calls[-1] if word.startswith("--exclude")]
        assert avoided == ["--exclude=c7"] * (state == "NODE_FAIL")
        return
    (end,) = ends
    assert (end.task, end.final) == (task, False)
    (again,) = played.submit(1)  # Snakemake's next try is another object of the same name
    times = {"OUT_OF_MEMORY": (2, 1), "TIMEOUT": (1, 2)}.get(state, (1, 1))
    sent = again.request("cpu")
    assert (sent.mem_mb, sent.runtime_min) == (CPU.mem_mb * times[0], CPU.runtime_min * times[1])


def test_the_same_error_twice_is_final_and_another_one_is_not(
    tmp_path: Path, played: Played, slurm: ScriptedSlurm
) -> None:
    log, finals = tmp_path / "job.log", []
    for words in ("ValueError: no nuclei", "OSError: disk", "ValueError: no nuclei"):
        log.write_text(f"Traceback\n{words}\n")
        (task,) = played.submit(1, log=str(log))
        slurm.start(task.slurm_id)
        played.step()
        slurm.end(task.slurm_id, state="FAILED", reason="NonZeroExitCode")
        (end,) = played.step()
        assert end.words == f"error: {words}"
        finals.append(end.final)
    assert finals == [False, False, True]


def test_where_others_ended_a_job_twice_it_does_not_go_again(tmp_path: Path) -> None:
    low = "PriorityTier=1 PreemptMode=REQUEUE"
    parts = ScriptedSlurm.partitions.replace("PriorityTier=1 PreemptMode=OFF", low)
    slurm = ScriptedSlurm({"a": ""}, partitions=parts + parts.splitlines()[0].replace(
        "PartitionName=cpu", "PartitionName=own").replace("Tier=1", "Tier=9").replace(
        "AllowAccounts=ALL", "AllowAccounts=other") + "\n")  # fmt: skip
    played = play(tmp_path, slurm)
    (task,) = played.submit(1)
    for _ in range(2):
        assert task.place is not None
        place = task.place
        assert place.rank == 1000
        slurm.start(task.slurm_id)
        played.step()
        slurm.end(task.slurm_id, state="PREEMPTED")
        played.step()
    assert place in task.history.excluded


# Bounds


def test_no_more_jobs_are_sent_than_snakemake_may_run_and_none_after_a_stop(
    tmp_path: Path,
) -> None:
    slurm = ScriptedSlurm({"a": "cpu=400"})
    played = play(tmp_path, slurm, most_jobs=3)
    made = played.submit(5)
    assert len(slurm.jobs) == 3
    slurm.start(*slurm.jobs)
    played.step()
    slurm.end(101)
    played.step()
    assert len(slurm.jobs) == 4
    assert played.run.withdraw() == [made[4]]
    slurm.start(104)
    slurm.end(102, 103)
    assert len(played.step()) == 2
    assert len(slurm.jobs) == 4
    slurm.end(104)
    assert [end.task for end in played.step()] == [made[3]]
    assert played.run.tasks == []


def test_slurm_is_asked_at_most_12_questions_a_minute(played: Played, slurm: ScriptedSlurm) -> None:
    played.submit(4)
    slurm.start(*slurm.jobs)
    slurm.accounting = True
    begin, asked = slurm.now_s, list[float]()
    seen = len(slurm.calls)
    for i in range(600):
        if i == 200:  # forgotten by the queue; accounting does not know them yet
            for one in [*slurm.jobs]:
                slurm.forget(one)
            slurm.ended = dict.fromkeys(slurm.ended, "RUNNING")
        played.step(1)
        new = slurm.calls[seen:]
        seen = len(slurm.calls)
        questions = [a for a in new if a[0] not in ("sbatch", "scancel") and "update" not in a]
        asked += [slurm.now_s] * len(questions)
    per_minute = Counter(int((at - begin) // 60) for at in asked)
    assert 4 < max(per_minute.values()) <= MOST_QUESTIONS_A_MIN
    # limits were asked for again, although live use is asked for every 20 s
    assert sum(argv[0] == "sacctmgr" for argv in slurm.calls) == 2
    worst = max(sum(at <= one < at + 60 for one in asked) for at in asked)
    assert worst <= MOST_QUESTIONS_A_MIN


def test_names_and_comments_that_the_site_rewrites_are_no_identity(
    played: Played, slurm: ScriptedSlurm
) -> None:
    (task,) = played.submit(1)
    slurm.jobs[101].name, slurm.jobs[101].comment = "site-job", "billed to a"
    slurm.start(101)
    played.step()
    assert task.running
    slurm.end(101)
    assert [end.words for end in played.step()] == [""]


def test_the_limits_leave_gpu_jobs_their_cpus(tmp_path: Path) -> None:
    slurm = ScriptedSlurm({"a": "cpu=64,gres/gpu=2"}, idle=IDLE)
    played = play(tmp_path, slurm)
    played.run.submit([])
    gpu = played.submit(1, ("gpu",), rule="gpu", requests={"gpu": GPU})
    played.submit(20)
    assert (len(gpu), len(slurm.jobs)) == (1, 1 + (64 - 8 - 10) // 8)


# What was known is used on


def test_partitions_and_limits_that_are_not_shown_again_are_kept(
    played: Played, slurm: ScriptedSlurm
) -> None:
    cluster = played.run.cluster
    known = cluster.partitions, cluster.accounts
    denied = SlurmQueryError("scontrol", "Access/permission denied")
    words = ("sacctmgr", "scontrol", "sshare")
    slurm.answers = {word: deque([denied] * 9) for word in words}
    cluster.look()
    assert (cluster.partitions, cluster.limits_known) == (known[0], True)
    assert [one.label for one in cluster.accounts] == [one.label for one in known[1]]


def test_a_limit_of_submitted_jobs_after_a_failed_node_is_no_end(
    played: Played, slurm: ScriptedSlurm
) -> None:
    (task,) = played.submit(1)
    slurm.start(101, node="c7")
    played.step()
    slurm.end(101, state="NODE_FAIL", reason="NodeDown")
    slurm.answers["sbatch"] = deque([refusal("QOSMaxSubmitJobPerUserLimit")] * 2)
    assert [end for _ in range(20) for end in played.step()] == []
    assert task.slurm_id == 102


def test_a_forgotten_job_took_as_long_as_it_ran_and_not_its_limit(
    tmp_path: Path, played: Played, slurm: ScriptedSlurm
) -> None:
    (task,) = played.submit(1)
    slurm.start(101)
    slurm.jobs[101].end_s = slurm.now_s + 36_000  # as Slurm shows a job that runs
    played.step()
    played.step(600)
    slurm.forget(101)
    (tmp_path / "ends" / task.slurm_name).write_text("0\n")
    played.step()
    (done,) = played.events("done")
    assert done["end_s"] - done["start_s"] == 620


def test_an_exit_code_that_was_not_written_is_no_failure(
    tmp_path: Path, played: Played, slurm: ScriptedSlurm
) -> None:
    (task,) = played.submit(1)
    slurm.start(101)
    played.step()
    slurm.end(101)
    slurm.forget(101)
    (tmp_path / "ends" / task.slurm_name).touch()  # no space was left
    (end,) = played.step()
    assert end.words == ""


def test_what_is_refused_once_is_not_sent_there_again_by_others_of_its_size(
    tmp_path: Path,
) -> None:
    invalid = "Requested node configuration is not available"
    slurm = ScriptedSlurm(refuses=lambda place: invalid * (place["account"] == "a"))
    played = play(tmp_path, slurm)
    played.submit(40)
    for _ in range(5):
        played.step()
    calls = [argv for argv in slurm.calls if argv[0] == "sbatch"]
    assert 0 < sum("--account=a" in argv for argv in calls) <= 4
