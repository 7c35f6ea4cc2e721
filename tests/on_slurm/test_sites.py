"""What sites do otherwise: names, limits, options in the environment, what they hide or lack."""

import contextlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from snakemake_scheduler_plugin_tilewright.slurm.jobs import parse_queue
from snakemake_scheduler_plugin_tilewright.slurm.parse import parse_partitions
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient
from tests.on_slurm.labmates import running
from tests.support.cluster_runs import AT_NIGHT, PLACEMENT, ClusterRun, dump
from tests.support.manual_pages import input_variables
from tests.support.slurm_cluster import Cluster, peak_use, wait_for

pytestmark = [pytest.mark.slurm, AT_NIGHT]

#: Below the account ``dept``, without limits of their own.
NAMES = ("12345", "lab-x", "lab.x", "lab_x")


@pytest.fixture
def dept(quiet_slurm: Cluster) -> Iterator[Cluster]:
    add, names = ["sacctmgr", "-i", "add"], ",".join(NAMES)
    quiet_slurm.run([*add, "account", "dept", "parent=root"])
    quiet_slurm.run([*add, "account", names, "parent=dept"])
    quiet_slurm.run([*add, "user", "root", f"account={names}"])
    yield quiet_slurm
    quiet_slurm.cancel_all()
    quiet_slurm.run(["sacctmgr", "-i", "delete", "user", "where", "name=root", f"account={names}"])
    for name in (names, "dept"):
        quiet_slurm.run(["sacctmgr", "-i", "delete", "account", "where", f"name={name}"])


def test_odd_names_share_a_node_and_a_limit_above_them(dept: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "a|b 'c ü"
    folder.mkdir()
    run = ClusterRun(dept, folder).prepare(
        jobs=12, seconds="9,10", site={"allowed": list(NAMES), "slowdown": 1.1}
    )
    said = dept.run(
        [*PLACEMENT, "accounts", "--json", "--site", folder / "site.yaml"],
        env={"XDG_CACHE_HOME": str(folder)},
    )
    pools = json.loads(said.stdout)["pools"]["shared"]
    slots = {pool["account"]: pool["slots"] for pool in pools if pool["kind"] == "gpu"}
    assert slots == dict.fromkeys(NAMES, 2)  # of the node's 8 GPUs
    dept.modify("account", "dept", "GrpTRES=cpu=96,gres/gpu=2")
    dept.modify("account", ",".join(NAMES), "GrpJobs=3")
    run.run()
    run.check_outputs(*range(12))
    jobs = run.jobs()
    assert Counter(job.account for job in jobs).keys() == set(NAMES), dump(run.events)
    assert peak_use([replace(job, account="dept") for job in jobs], "dept")["gpus"] == 2
    assert len({event["pool"] for event in run.events if event["event"] == "place"}) >= len(NAMES)
    run.check_calm()


def test_the_jobs_of_the_qos_of_a_partition_are_counted(
    quiet_slurm: Cluster, tmp_path: Path
) -> None:
    """A labmate runs one and has one pending; the limits of the account's own QOS are wider."""
    part = ["scontrol", "update", "PartitionName=hpg-default"]
    add = ["sacctmgr", "-i", "add", "qos", "part", "GrpJobs=4", "MaxSubmitJobsPerUser=3"]
    quiet_slurm.run(add)
    try:
        # slurmctld hears of a new QOS a moment later
        wait_for(lambda: quiet_slurm.run([*part, "QoS=part"], check=False).returncode == 0, 30)
        theirs = ["-A", "brusko", "-p", "hpg-default", "--mem=1G"]
        held = quiet_slurm.sbatch("labmate", *theirs, command="sleep 300")
        quiet_slurm.sbatch("labmate", *theirs, "--begin=now+1hour", command="true")
        running(quiet_slurm, held)
        run = ClusterRun(quiet_slurm, tmp_path).prepare(
            jobs=14, light=True, seconds="12,13", site={"slowdown": 1.1}
        )
        run.run()
    finally:
        quiet_slurm.cancel_all()
        quiet_slurm.run([*part, "QoS="])
        quiet_slurm.run(["sacctmgr", "-i", "delete", "qos", "where", "name=part"])
    run.check_outputs(*range(14))
    cpus = [replace(job, account="part") for job in run.jobs() if job.partition == "hpg-default"]
    assert peak_use(cpus, "part")["cpu"] == 3 * 8, dump(run.events)
    run.check_calm()


#: Limits that clive has and maigan has not.
LIMITS: dict[str, dict[str, str]] = {
    "budget": {"qos": "GrpTRESMins=cpu=1"},
    "running-budget": {"qos": "GrpTRESRunMins=cpu=1"},
    "wall-budget": {"qos": "GrpWall=1"},
    "job-budget": {"qos": "MaxTRESMinsPerJob=cpu=1"},
    "jobs-above": {"above": "GrpJobs=0"},
    "deny-accounts": {"partition": "DenyAccounts=clive", "before": "DenyAccounts="},
    "deny-qos": {"partition": "DenyQos=clive", "before": "DenyQos="},
    "allow-qos": {"partition": "AllowQos=maigan", "before": "AllowQos=ALL"},
    "exclusive": {
        "qos": "GrpTRES=cpu=48", "others": "GrpTRES=cpu=999,mem=4000G,gres/gpu=99",
        "partition": "OverSubscribe=EXCLUSIVE", "before": "OverSubscribe=NO",
    },
}  # fmt: skip


@contextlib.contextmanager
def limited(
    slurm: Cluster, qos: str = "", others: str = "", above: str = "", partition: str = "",
    before: str = "",
) -> Iterator[None]:  # fmt: skip
    """Set a limit for a while; at its end all jobs are cancelled."""

    def update(setting: str) -> None:
        for name in ("hpg-default", "hpg-b200") if setting else ():
            slurm.update(f"PartitionName={name}", setting)

    for name, setting in (("clive", qos), ("maigan", others)):
        if setting:
            slurm.set_qos(name, setting)
    if above:
        slurm.run(["sacctmgr", "-i", "add", "account", "dept"])
        slurm.modify("account", "clive", "parent=dept")
        slurm.modify("account", "dept", above)
    update(partition)
    try:
        yield
    finally:
        slurm.cancel_all()
        slurm.restore_limits()
        if above:
            slurm.modify("account", "clive", "parent=root")
            slurm.run(["sacctmgr", "-i", "delete", "account", "where", "name=dept"])
        update(before)


@pytest.mark.parametrize("limit", LIMITS)
def test_an_account_with_a_limit_that_takes_no_job_gets_none(limit: str, run: ClusterRun) -> None:
    """All of its jobs go to the other account at once, and none of them waits."""
    with limited(run.slurm, **LIMITS[limit]):
        run.prepare(jobs=6, light=True, seconds="9,10", site={"slowdown": 1.1}).run()
    run.check_outputs(*range(6))
    assert run.waits_for_limits() == []
    assert {job.account for job in run.jobs()} == {"maigan"}, dump(run.events)
    run.check_calm()


def test_a_budget_that_is_spent_in_mid_run_closes_the_account(run: ClusterRun) -> None:
    """Slurm ends the jobs that run there; they are tried again elsewhere with the same time."""
    process = run.prepare(jobs=8, light=True, seconds="45,46", site={"slowdown": 1.1}).start()
    run.wait_running(7)
    theirs = run.slurm.sbatch("labmate", "-A", "clive", "-c", "32", "--mem=1G", command="sleep 5")
    run.slurm.wait_job(theirs, 60)
    run.slurm.set_qos("clive", "GrpTRESMins=cpu=1")
    assert run.finish(process, 300) == 0
    run.check_outputs(*range(8))
    assert "budget" in run.causes() <= {"budget", "cancelled"}, dump(run.events)
    places = [event for event in run.events if event["event"] == "place"]
    assert {event["runtime_min"] for event in places} == {5}
    spent = next(event for event in run.events if event.get("cause") == "budget")
    later = [event for event in places if event["time_s"] > spent["time_s"]]
    assert {event["account"] for event in later} == {"maigan"}, dump(run.events)


def test_what_a_user_runs_besides_counts_and_options_in_the_environment_change_nothing(
    run: ClusterRun,
) -> None:
    run.slurm.set_qos("clive", "MaxTRESPerUser=cpu=16", "MaxJobsPerUser=9")
    own = run.slurm.sbatch("root", "-A", "clive", "-c", "16", "--mem=1G", command="sleep 900")
    running(run.slurm, own)
    misleading = input_variables() - {"SLURM_CONF", "SLURM_CONF_OUT", "SLURM_JOB_ID", "SQUEUE_ALL"}
    run.env |= dict.fromkeys(misleading, "none")
    run.env |= {"SBATCH_QOS": "clive-b", "SBATCH_ACCOUNT": "brusko", "SBATCH_TIMELIMIT": "1",
                "SQUEUE_ACCOUNT": "brusko", "SLURM_TIMELIMIT": "1"}  # fmt: skip
    run.prepare(jobs=6, light=True, seconds="9,10", site={"patience_s": 20, "slowdown": 1.1}).run()
    run.check_outputs(*range(6))
    jobs = run.check_placed({"maigan"})
    assert {job.qos for job in jobs} == {"maigan"}, jobs
    assert not run.moves()
    assert "is a lower bound" not in run.log
    names = ", ".join(sorted(misleading))
    assert run.log.count(f"this run takes {names} out of its environment: ") == 1


@pytest.mark.parametrize(
    ("limit", "reasons", "accounts"),
    [("billing=8", set(), {"clive", "maigan"}), ("node=0", {"QOSGrpNodeLimit"}, {"maigan"})],
)
def test_a_limit_on_any_tres_counts_or_is_learned_from_slurms_reason(
    run: ClusterRun, limit: str, reasons: set[str], accounts: set[str]
) -> None:
    """Jobs share nodes, and Slurm counts each node once: how many a job takes is not known."""
    run.slurm.set_qos("clive", f"GrpTRES={limit}")
    run.prepare(jobs=6, light=True, seconds="9,10", site={"patience_s": 8, "slowdown": 1.1})
    try:
        run.run()
    finally:
        run.slurm.set_qos("clive", f"GrpTRES={limit.partition('=')[0]}=-1")
    run.check_outputs(*range(6))
    moves = [event["reason"].split(" on ")[0] for event in run.events if event["event"] == "move"]
    assert set(moves) == reasons, dump(run.events)
    assert max(run.moves().values(), default=0) <= 1
    assert {job.account for job in run.jobs() if job.state == "COMPLETED"} == accounts


def test_what_sbatch_refuses_is_tried_once_at_each_place(run: ClusterRun) -> None:
    """As job_submit.lua of a site does that has accounts for GPUs and others for CPUs."""
    run.prepare(jobs=12, light=True, seconds="5,6", site={"slowdown": 1.1})
    path = run.folder / "bin" / "sbatch"
    light = path.rename(path.with_name("light"))
    wrong = '*"-A clive "*"-p hpg-b200"*|*"-A maigan "*"-p hpg-default"*'
    said = "sbatch: error: this account is not for such jobs"
    run.stand_in(
        "sbatch",
        f'#!/bin/sh\ncase "$*" in {wrong}) echo "{said}" >&2; exit 1;; esac\nexec {light} "$@"\n',
    )
    run.run("--retries", "1")
    run.check_outputs(*range(12))
    refused = [event for event in run.events if event.get("cause") == "refused"]
    assert len(refused) <= 2, dump(run.events)
    assert {event["words"] for event in refused} <= {"this account is not for such jobs"}


@pytest.mark.parametrize("whose", ["sbatch", "executor"])
def test_what_no_place_takes_ends_by_name(run: ClusterRun, whose: str) -> None:
    run.prepare(jobs=1, light=True, seconds="5,6")
    words = "sbatch refuses it everywhere (Invalid feature specification)"
    if whose == "sbatch":
        said = "sbatch: error: Batch job submission failed: Invalid feature specification"
        run.stand_in("sbatch", f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    else:
        words = "Snakemake's executor: "
        (run.folder / ".snakemake").mkdir()
        (run.folder / ".snakemake" / "slurm_logs").touch()
    run.run("--retries", "3", ok=False, timeout_s=60)
    assert words in run.log
    assert run.causes() == {"refused" if whose == "sbatch" else "error"}
    assert not run.jobs()


def test_a_course_on_nodes_that_are_all_reserved(run: ClusterRun) -> None:
    run.prepare(jobs=4, light=True, seconds="5,6")
    run.slurm.run(["scontrol", "create", "reservation", "ReservationName=course", "Nodes=ALL",
                   "StartTime=now", "Duration=60", "Users=root", "Flags=IGNORE_JOBS"])  # fmt: skip
    try:
        run.run("--slurm-reservation", "course")
    finally:
        run.slurm.cancel_all()
        run.slurm.run(["scontrol", "delete", "ReservationName=course"])
    run.check_outputs(*range(4))
    run.check_calm()


def test_hidden_partitions_are_seen_by_a_user(quiet_slurm: Cluster, tmp_path: Path) -> None:
    """Root sees them without asking."""

    def ask(argv: Sequence[str], stdin: str | None = None) -> str:
        return quiet_slurm.run([*argv], "labmate").stdout

    client = SlurmClient("labmate", tmp_path, run=ask)
    quiet_slurm.update("PartitionName=hpg-turin", "Hidden=YES")
    try:
        number = quiet_slurm.sbatch("labmate", "-A", "clive", "-p", "hpg-turin", command="sleep 9")
        assert "hpg-turin" in {one.name for one in parse_partitions(client.show("partition"))}
        assert number in {job.id for job in parse_queue(client.queue())}
    finally:
        quiet_slurm.update("PartitionName=hpg-turin", "Hidden=NO")
        quiet_slurm.cancel_all()


_DENIED = """#!/bin/sh
case "{0} $*" in *{1}*) echo "{0}: error: Access/permission denied" >&2; exit 1;; esac
exec {2} "$@"
"""


@pytest.mark.parametrize(
    ("hidden", "note"),
    [
        ("sacctmgr", "accounts are those of scontrol show assoc_mgr"),
        ("sacctmgr assoc_mgr", "accounts are those of sshare"),
        ("sacctmgr assoc_mgr sshare", "accounts are those of the site file"),
        ("partition sinfo", "the partitions are not seen"),
        ("node", "the nodes are not known"),
    ],
)
def test_sites_that_hide(hidden: str, note: str, run: ClusterRun) -> None:
    run.prepare(jobs=6, light=True, seconds="9,10", site={"slowdown": 1.1})
    for word in hidden.split():
        program = word if word in ("sacctmgr", "sshare", "sinfo") else "scontrol"
        run.stand_in(program, _DENIED.format(program, word, shutil.which(program)))
    run.run()
    run.check_outputs(*range(6))
    assert {job.account for job in run.jobs()} <= {"clive", "maigan"}
    (began,) = [event for event in run.events if event["event"] == "run"]
    assert sum(note in one for one in began["notes"]) == 1, began


def test_jobs_that_no_queue_shows_end_as_accounting_says(run: ClusterRun) -> None:
    run.prepare(jobs=2, light=True, seconds="2,3").stand_in("squeue", "#!/bin/sh\nexit 0\n")
    run.run("--slurm-status-command", "squeue")
    run.check_outputs(0, 1)
    assert "is completed, which Snakemake's executor does not see" in run.log


def test_slow_answers_are_waited_for(run: ClusterRun) -> None:
    run.prepare(jobs=2, light=True, seconds="2,3")
    for name in ("squeue", "scontrol", "sacctmgr"):
        run.stand_in(name, f'#!/bin/sh\nsleep 20\nexec {shutil.which(name)} "$@"\n')
    run.run(timeout_s=900)
    run.check_outputs(0, 1)
    run.check_calm()
    notes = [note for event in run.events if "notes" in event for note in event["notes"]]
    assert any("takes about 20 s to answer" in note for note in notes), notes


def test_a_slurm_without_accounting(slurm: Cluster, tmp_path: Path) -> None:
    """It ends the session's cluster, and the next quiet_slurm starts that again."""
    slurm.stop()
    with Cluster(accounting=False) as bare:
        run = ClusterRun(bare, tmp_path)
        run.prepare(
            jobs=12, light=True, small=1, seconds="9,10", site={"allowed": None, "slowdown": 1.1}
        )
        seconds = run.run()
        run.check_outputs(*range(12))
    kinds = [run.traces(i)[0].split()[0] for i in range(12)]
    assert set(kinds) == {"gpu", "cpu"}, (kinds, seconds)
    notes = [note for event in run.events if event["event"] == "notes" for note in event["notes"]]
    assert any("this Slurm keeps no accounts" in note for note in notes), notes
    run.check_calm()
