"""The simulated Slurm of the benchmark of placement keeps what a real one keeps."""

import contextlib
import math
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.placement.__main__ import Result, read_results, report
from benchmarks.placement.driver import Outcome, Place, Unplaced, Workflow, sbatch
from benchmarks.placement.records import (
    Account,
    Change,
    Node,
    Partition,
    Qos,
    Request,
    Scenario,
    Task,
)
from benchmarks.placement.scenarios import make_scenario
from benchmarks.placement.scheduler import SlurmJob
from benchmarks.placement.slurm_simulator import SimulatedSlurm
from snakemake_scheduler_plugin_tilewright.runtime.errors import SlurmQueryError
from snakemake_scheduler_plugin_tilewright.slurm.jobs import JOB_FORMAT, parse_queue
from snakemake_scheduler_plugin_tilewright.slurm.parse import (
    ASSOCIATION_FIELDS,
    IDLE_FORMAT,
    QOS_FIELDS,
    parse_assoc_mgr,
    parse_idle,
    parse_partitions,
    parse_sacctmgr,
)
from snakemake_scheduler_plugin_tilewright.slurm.reasons import cause_of, why_pending
from tests.support.recorded_texts import RELEASES

CPU = Request(4, 4096, 0, 60)
GPU = Request(4, 4096, 1, 60)


def site(**of: object) -> Scenario:
    """Return two nodes, of which one has GPUs, and two accounts with a QOS of their own."""
    nodes = (Node("c1", 16, 65536), Node("g1", 16, 65536, 2))
    partitions = (
        Partition("cpu", ("c1",), 2880, default=True),
        Partition("gpu", ("g1",), 2880),
        Partition("mixed", ("c1", "g1"), 60),
    )
    qos = (Qos("a", {"cpu": 8}), Qos("b", {}, {"gres/gpu": 1, "submit": 5}), Qos("c"))
    accounts = (
        Account("lab", ("a", "b", "c")),
        Account("other", ("c",), {"mem": 6000}, "dept"),
        Account("dept", (), {"cpu": 12}),
    )
    return replace(Scenario(1, nodes, partitions, qos, accounts), **of)  # type: ignore[arg-type]


def send(
    slurm: SimulatedSlurm, qos: str = "c", partition: str = "cpu", request: Request = CPU, **of: str
) -> SlurmJob:
    place = Place(of.get("account", "lab"), qos, partition, request)
    return slurm.jobs[int(slurm.run(sbatch(of.get("name", "job"), place)))]


def field(slurm: SimulatedSlurm, job: SlurmJob, letter: str) -> str:
    return slurm.run(["squeue", "-h", "-t", "all", "-j", str(job.id), "-o", f"%{letter}"]).strip()


@pytest.mark.parametrize("seed", range(6))
def test_limits_and_nodes_are_never_exceeded(seed: int) -> None:
    scenario = make_scenario(seed)
    scenario = replace(scenario, changes=tuple(c for c in scenario.changes if c.what != "limit"))
    slurm = SimulatedSlurm(scenario)
    accounts = [one for one in scenario.accounts if one.qos]
    for n, task in enumerate(scenario.tasks[:150]):
        account, request = accounts[n % len(accounts)], [*task.requests.values()][-1]
        where = "gpu" if request.gpus else "cpu"
        with contextlib.suppress(SlurmQueryError):  # a limit of submitted jobs
            slurm.run(sbatch(task.name, Place(account.name, account.qos[-1], where, request)))
    most_running = 0
    for _ in range(400):
        slurm.advance(slurm.next_event_s() if slurm.next_event_s() < 1e6 else slurm.clock_s + 30)
        running = [job for job in slurm.jobs.values() if job.state == "RUNNING"]
        most_running = max(most_running, len(running))
        used: Counter[tuple[str, ...]] = Counter()
        for job in running:
            above = [*slurm.limits.lineage(job.account)]
            for tres, amount in {**job.tres, "jobs": 1}.items():
                used["node", job.node, tres] += amount
                used["qos", job.qos, tres] += amount
                used["user", job.qos, job.user, tres] += amount
                used.update({("account", name, tres): amount for name in above})
        limits: dict[tuple[str, ...], int]
        limits = {("node", one.name, t): n for one in scenario.nodes for t, n in one.tres.items()}
        for qos in scenario.qos:
            limits |= {("qos", qos.name, tres): n for tres, n in qos.group.items()}
            each = [("user", qos.name, user) for user in ("ada", "bob", "cleo")]
            limits |= {(*who, tres): n for who in each for tres, n in qos.user.items()}
        if not any(qos.group for qos in scenario.qos):  # else these limits hold before those
            limits |= {("account", a.name, t): n for a in scenario.accounts
                       for t, n in a.group.items()}  # fmt: skip
        assert not [key for key, most in limits.items() if used[key] > most]
    assert most_running > 0


def test_a_job_starts_at_once_if_it_is_the_first_and_else_in_a_cycle() -> None:
    slurm = SimulatedSlurm(site())
    first = send(slurm, request=Request(16, 1000, 0, 10))
    waits, small = send(slurm, request=Request(16, 1000, 0, 10)), send(slurm)
    assert (first.state, first.start_s) == ("RUNNING", 0.5)
    assert (waits.state, small.state) == ("PENDING", "PENDING")
    slurm.run(["scancel", str(first.id)])
    assert waits.state == "PENDING"
    slurm.advance(30.0)
    assert (waits.state, waits.start_s, small.state) == ("RUNNING", 30.0, "PENDING")


def test_a_job_goes_before_another_only_where_it_does_not_delay_it() -> None:
    slurm = SimulatedSlurm(site(forget_s=1e6))
    send(slurm, request=Request(12, 1000, 0, 100))
    large = send(slurm, request=Request(16, 1000, 0, 10))
    long, short = (send(slurm, request=Request(4, 1000, 0, minutes)) for minutes in (200, 50))
    slurm.advance(30.0)
    assert [job.state for job in (large, long, short)] == ["PENDING", "PENDING", "RUNNING"]
    assert (large.reason, long.reason) == ("Resources", "Priority")
    assert large.planned_s == pytest.approx(6000.5)


def test_pending_jobs_are_sent_elsewhere_and_keep_number_and_age() -> None:
    slurm = SimulatedSlurm(site())
    fills = send(slurm, "a", request=Request(8, 1000, 0, 60))
    jobs = [send(slurm, "a", name=str(n)) for n in range(2)]
    slurm.advance(30.0)
    assert [job.reason for job in jobs] == ["QOSGrpCpuLimit"] * 2
    before = [(job.id, job.submit_s) for job in jobs]
    ids = ",".join(str(job.id) for job in jobs)
    slurm.run(["scontrol", "update", f"JobId={ids}", "QOS=c", "Partition=cpu,mixed"])
    slurm.advance(60.0)
    assert [(job.id, job.submit_s) for job in jobs] == before
    assert [(job.state, job.qos, job.start_s) for job in jobs] == [("RUNNING", "c", 60.0)] * 2
    assert slurm.moves == 2
    assert slurm.limits.use["qos", "a"] == {"cpu": 8, "mem": 1000, "node": 1, "jobs": 1,
                                            "submit": 1}  # fmt: skip
    update = ["scontrol", "update", f"JobId={fills.id}", "QOS=c"]
    with pytest.raises(SlurmQueryError, match="Job is no longer pending execution"):
        slurm.run(update)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("Account=nosuch", "Invalid account or account/partition"),
        ("QOS=nosuch", "Invalid qos specification"),
        ("Account=other", "Invalid qos specification"),
        ("Partition=nosuch", "Invalid partition name specified"),
        ("Partition=cpu", "Requested node configuration is not available"),
        ("Gres=gpu:0", "not supported"),
        ("TimeLimit=100", "Access/permission denied"),
    ],
)
def test_a_place_that_does_not_exist_leaves_a_job_as_it_is(change: str, why: str) -> None:
    slurm = SimulatedSlurm(site())
    send(slurm, "b", "gpu", GPU)
    job = send(slurm, "b", "gpu", GPU)
    with pytest.raises(SlurmQueryError, match=why):
        slurm.run(["scontrol", "update", f"JobId={job.id}", change])
    assert (job.account, job.qos, job.partition, job.request) == ("lab", "b", "gpu", GPU)
    assert slurm.moves == 0


def test_nodes_are_packed_by_cpus_memory_and_gpus_of_all_their_partitions() -> None:
    slurm = SimulatedSlurm(site())
    of_memory = [send(slurm, request=Request(1, 32768, 0, 60)) for _ in range(3)]
    on_gpus = [send(slurm, "c", "gpu", GPU) for _ in range(3)]
    either = send(slurm, partition="mixed", request=Request(8, 4096, 0, 60))
    too_large = send(slurm, partition="mixed", request=Request(10, 4096, 0, 60))
    slurm.advance(30.0)
    assert [job.state for job in of_memory] == ["RUNNING", "RUNNING", "PENDING"]
    assert [job.state for job in on_gpus] == ["RUNNING", "RUNNING", "PENDING"]
    assert (either.node, either.partition, too_large.state) == ("g1", "mixed", "PENDING")
    with pytest.raises(SlurmQueryError, match="node configuration is not available"):
        send(slurm, request=GPU)


@pytest.mark.parametrize("release", RELEASES)
def test_reasons_are_in_the_words_of_each_release(release: str) -> None:
    down = tuple(Change(1.0, "drain", name) for name in ("c1", "g1"))
    slurm = SimulatedSlurm(site(release=release))
    send(slurm, "b", "gpu", GPU)
    jobs = {
        "QOSGrpCpuLimit": send(slurm, "a", request=Request(9, 1000, 0, 60)),
        "QOSMaxGRESPerUser": send(slurm, "b", "gpu", GPU),
        "AssocGrpMemLimit": send(slurm, request=Request(1, 7000, 0, 60), account="other"),
        "AssocGrpCpuLimit": send(slurm, request=Request(13, 1000, 0, 60), account="other"),
        "PartitionTimeLimit": send(slurm, partition="mixed", request=Request(1, 100, 0, 90)),
    }
    slurm.advance(30.0)
    assert {name: field(slurm, job, "r") for name, job in jobs.items()} == {n: n for n in jobs}
    slurm = SimulatedSlurm(site(release=release, changes=down))
    job = send(slurm)
    slurm.advance(30.0)
    job2 = send(slurm)
    slurm.advance(60.0)
    words = field(slurm, job2, "r")
    assert why_pending(words).obstacle == "nodes"
    assert (" " in words) == release.startswith("22")
    assert job.state == "RUNNING"


def test_a_limit_that_is_changed_holds_from_the_next_cycle_on() -> None:
    less = (Change(100.0, "limit", "a", {"cpu": 0}), Change(200.0, "limit", "a", {"cpu": 8}))
    slurm = SimulatedSlurm(site(changes=less))
    slurm.advance(101.0)
    job = send(slurm, "a")
    assert "cpu=0(0)" in slurm.run(["scontrol", "-o", "show", "assoc_mgr", "flags=qos", "qos=a"])
    slurm.advance(199.0)
    assert job.reason == "QOSGrpCpuLimit"
    slurm.advance(210.0)
    assert job.start_s == 210.0


def test_jobs_of_a_low_tier_end_for_those_of_a_higher_one() -> None:
    low = Partition("scavenge", ("c1",), 1440, tier=0)
    slurm = SimulatedSlurm(site(partitions=(*site().partitions, low)))
    job = send(slurm, partition="scavenge", request=Request(16, 1000, 0, 60))
    higher = send(slurm)
    assert (job.state, higher.state, field(slurm, job, "T")) == (
        "PREEMPTED",
        "RUNNING",
        "PREEMPTED",
    )


def task(name: str, **of: object) -> Task:
    return replace(Task(name, "r", (), {"cpu": CPU}, 1.0, {"cpu": 600.0}), **of)  # type: ignore[arg-type]


def test_jobs_fail_as_real_ones_do() -> None:
    tasks = (
        task("time", requests={"cpu": replace(CPU, minutes=9)}), task("memory", memory=1.5),
        task("error", failures=1), task("node", true_s={"cpu": 5000.0}),
    )  # fmt: skip
    slurm = SimulatedSlurm(site(tasks=tasks, changes=(Change(1000.0, "fail", "c1"),)))
    jobs = {one.name: send(slurm, name=one.name, request=one.requests["cpu"]) for one in tasks}
    slurm.advance(1010.0)
    shown = {n: slurm.run(["scontrol", "-o", "show", "job", str(j.id)]) for n, j in jobs.items()
             if slurm._kept(j.id)}  # fmt: skip
    slurm = SimulatedSlurm(site(tasks=tasks, forget_s=1e6))
    jobs = {one.name: send(slurm, name=one.name, request=one.requests["cpu"]) for one in tasks}
    slurm.advance(1010.0)
    of = {n: slurm.run(["scontrol", "-o", "show", "job", str(j.id)]) for n, j in jobs.items()}
    found = {name: cause_of(text)[0] for name, text in (of | {"node": shown["node"]}).items()}
    assert found == {name: name for name in found}
    again = send(slurm, name="error")
    slurm.advance(2000.0)
    assert again.state == "COMPLETED"
    larger = send(slurm, name="memory", request=replace(CPU, mem_mb=8192))
    slurm.advance(3000.0)
    assert (larger.state, slurm.twice) == ("COMPLETED", 0)


@pytest.mark.parametrize("release", RELEASES)
def test_answers_are_those_of_each_release(release: str) -> None:
    slurm = SimulatedSlurm(site(release=release))
    jobs = [send(slurm, "c", "gpu", GPU, name="rule_a_wildcards_x") for _ in range(3)]
    seen = parse_queue(
        slurm.run(["squeue", "-a", "-h", "-u", "ada", "-t", "all", "-O", JOB_FORMAT])
    )
    assert {job.id for job in seen} == {job.id for job in jobs}
    assert (seen[-1].qos, seen[-1].comment) == ("c", "rule_a_wildcards_x")
    assert seen[-1].start_s == pytest.approx(
        slurm.now_s() - slurm.clock_s + (jobs[1].start_s or 0.0), abs=1
    )
    show = ["scontrol", "-a", "-d", "-o", "show"]
    texts = {name: slurm.run([*show, name]) for name in ("partition", "node", "config")}
    texts["job"] = slurm.run([*show, "job", str(jobs[0].id)])
    of = ["users=ada", "qos=a,b,c", "accounts=lab,other,dept"]
    texts["use"] = slurm.run([*show, "assoc_mgr", "flags=qos,assoc", *of])
    for name, text in texts.items():
        pattern = r"(?m)^(\w+) +=" if name == "config" else r"(?<!\S)([A-Za-z/&:]+)="
        own, real = (set(re.findall(pattern, one)) for one in (text, RELEASES[release][name]))
        assert own - real <= {"DerivedExitCode", "Comment", "MinJobAge", "PreemptType",
                              "PriorityFlags", "SchedulerType", "lab"}, name  # fmt: skip
    assert [one.tres["cpu"] for one in parse_partitions(texts["partition"])] == [16, 16, 32]
    idle = parse_idle(slurm.run(["sinfo", "-a", "-h", "-O", IDLE_FORMAT]))
    assert [idle[name].get("gres/gpu", 0) for name in ("cpu", "gpu", "mixed")] == [0, 0, 0]
    assert re.search(r"(?m)^ClusterName +=", texts["config"])
    use = parse_assoc_mgr(texts["use"], {"1001": "ada"})
    assert (use["QOS a"].limit, use["QOS c"].used["gres/gpu"]) == ({"cpu": 8}, 2)
    assert use["ada on QOS c"].used["submit"] == 3
    assert use["account dept"].limit == {"cpu": 12}
    asked = (f"show associations where user=ada format={','.join(ASSOCIATION_FIELDS)}\n"
             f"show associations where user= format={','.join(ASSOCIATION_FIELDS)}\n"
             f"show qos format={','.join(QOS_FIELDS)}\n")  # fmt: skip
    rows, qos = parse_sacctmgr(slurm.run(["sacctmgr", "-n", "-P", "-Q"], asked))
    assert {(row.account, row.user) for row in rows} >= {("lab", "ada"), ("dept", "")}
    assert {one.name: one.tres_per_user for one in qos}["b"] == {"gres/gpu": 1, "submit": 5}


def test_what_a_site_hides_is_refused() -> None:
    use = ["scontrol", "-o", "show", "assoc_mgr", "flags=qos", "qos=a"]
    limits = ["sacctmgr", "-n", "-P", "show", "qos", "format=name,grptres"]
    assert SimulatedSlurm(site(seen="no live use")).run(limits) == "a|cpu=8\nb|\nc|\n"
    stale = SimulatedSlurm(site(seen="old limits", old_limits={"a": {"cpu": 99}}))
    assert stale.run(limits).startswith("a|cpu=99\n")
    for slurm in (stale, SimulatedSlurm(site(seen="no limits"))):
        with pytest.raises(SlurmQueryError, match="permission denied"):
            slurm.run(use)
    with pytest.raises(SlurmQueryError, match="accounting_storage"):
        SimulatedSlurm(site(seen="no accounts")).run(limits)


def test_commands_take_time_and_those_of_threads_run_at_once() -> None:
    slurm = SimulatedSlurm(site())
    asked = ["squeue", "-h"]
    slurm.run(asked)
    assert slurm.clock_s == 1.0
    with slurm.beside():
        slurm.run(asked)
    assert slurm.clock_s == 1.0
    with ThreadPoolExecutor() as pool:
        assert [*pool.map(slurm.run, [asked] * 9)] == [""] * 9
    slurm.run(asked)
    assert (slurm.clock_s, slurm.asked["squeue"]) == (4.0, 12)


def test_jobs_are_forgotten_and_accounting_is_not() -> None:
    slurm = SimulatedSlurm(site(tasks=(task("t"),)))
    job = send(slurm, name="t")
    slurm.advance(1000.0)
    with pytest.raises(SlurmQueryError, match="Invalid job id specified"):
        slurm.run(["squeue", "-h", "-j", str(job.id)])
    assert slurm.run(["sacct", "-n", "-X", "-P", "-j", str(job.id), "-o", "State"]) == "COMPLETED\n"


@pytest.mark.parametrize("driver", [Unplaced(), Unplaced(one_account=True)])
@pytest.mark.parametrize("seed", [0, 4, 8])
def test_jobs_run_once_and_after_what_they_need(seed: int, driver: Unplaced) -> None:
    scenario = make_scenario(seed)
    slurm = SimulatedSlurm(scenario)
    outcome = driver.play(scenario, slurm)
    assert (outcome.jobs_lost, outcome.jobs_run_twice) == (0, 0)
    done = {job.comment: job for job in slurm.jobs.values() if job.state == "COMPLETED"}
    for one in scenario.tasks:
        first_s = min(j.submit_s for j in slurm.jobs.values() if j.comment == one.name)
        assert all(first_s > (done[need].end_s or 0) for need in one.needs)
    assert outcome.makespan_s >= max(job.end_s or 0 for job in done.values() if job.comment)


def test_a_job_that_fails_four_times_is_failed_for_good() -> None:
    flow = Workflow(site(tasks=(task("t"),)))
    for _ in range(4):
        assert "t" in flow.ready
        del flow.ready["t"]
        flow.fail("t")
    assert (set(flow.ready), flow.failed) == (set(), {"t"})


def test_makespans_are_over_those_of_the_file(tmp_path: Path) -> None:
    def results(*makespans_s: float) -> list[Result]:
        return [
            Result(n, "pipeline", 4, Outcome(seconds, 0, 0, 60, 4, 0, 0.0))
            for n, seconds in enumerate(makespans_s)
        ]

    rows = [
        {"seed": one.seed, "tags": one.tags, "jobs": one.jobs, **asdict(one.outcome)}
        for one in results(600.0, 100.0, math.inf)
    ]
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (tmp_path / "today.csv").write_text("\n".join(lines), encoding="utf-8")
    today = read_results(tmp_path / "today.csv")
    assert [*today.values()] == results(600.0, 100.0, math.inf)
    table = report({"new": results(300.0, 200.0, 500.0)}, today)
    assert "| new | all | 2 | 1.250 | 1.250 | 2.00 | 2.00 | 50 % | 0 | 0 | 0 | 10.8 |" in table
    table = report({"new": results(300.0, math.inf, 500.0)}, today)
    assert "| new | pipeline | 1 | 0.500 | 0.500 | 0.50 | 0.50 | 100 % | 1 |" in table
