"""The simulated Slurm of the benchmark of placement keeps what a real one keeps."""

import contextlib
import math
import re
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.placement.__main__ import Result, read_results, report
from benchmarks.placement.driver import Outcome, Place, Unplaced, sbatch
from benchmarks.placement.records import (
    Account,
    Node,
    Partition,
    Qos,
    Request,
    Scenario,
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


@pytest.mark.parametrize("seed", range(3))
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


@pytest.mark.parametrize("driver", [Unplaced(), Unplaced(one_account=True)])
@pytest.mark.parametrize("seed", [0, 4])
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
