"""What sites do otherwise: names, limits, options in the environment, what they hide or lack."""

import contextlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

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


def test_odd_names_share_a_limit_above_them(dept: Cluster, tmp_path: Path) -> None:
    folder, names = tmp_path / "a|b 'c ü", ",".join(NAMES)
    folder.mkdir()
    run = ClusterRun(dept, folder).prepare(
        {"accounts": names}, jobs=12, seconds="9,10", slowdown=1.1
    )
    (folder / "profile.yaml").write_text(json.dumps({"tilewright-accounts": names}))
    said = dept.run([*PLACEMENT, "accounts", "--json", "--profile", folder / "profile.yaml"])
    assert {one["name"] for one in json.loads(said.stdout)["accounts"]} == set(NAMES)
    dept.modify("account", "dept", "GrpTRES=cpu=96,gres/gpu=2")
    dept.modify("account", ",".join(NAMES), "GrpJobs=3")
    run.run()
    run.check_outputs(*range(12))
    jobs = run.jobs()
    assert Counter(job.account for job in jobs).keys() == set(NAMES), dump(run.events)
    assert peak_use([replace(job, account="dept") for job in jobs], "dept")["gpus"] == 2
    assert not run.causes()


def test_limits_of_the_qos_of_a_partition_are_found_out(
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
            jobs=14, light=True, seconds="12,13", slowdown=1.1
        )
        run.run()
    finally:
        quiet_slurm.cancel_all()
        quiet_slurm.run([*part, "QoS="])
        quiet_slurm.run(["sacctmgr", "-i", "delete", "qos", "where", "name=part"])
    run.check_outputs(*range(14))
    cpus = [replace(job, account="part") for job in run.jobs() if job.partition == "hpg-default"]
    assert peak_use(cpus, "part")["cpu"] == 3 * 8, dump(run.events)
    assert not run.causes(), dump(run.events)


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
def test_an_account_with_a_limit_that_takes_no_job_is_left(limit: str, run: ClusterRun) -> None:
    """Slurm says why jobs pend there, and they go to the other account."""
    with limited(run.slurm, **LIMITS[limit]):
        run.prepare(jobs=6, light=True, seconds="9,10", slowdown=1.1).run()
    run.check_outputs(*range(6))
    done = [job for job in run.jobs() if job.state == "COMPLETED"]
    assert {job.account for job in done} == {"maigan"}, dump(run.events)
    assert not run.causes(), dump(run.events)
    assert max(run.moves().values(), default=0) <= 2, dump(run.events)  # from GPUs and CPUs


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
    run.prepare(jobs=6, light=True, seconds="9,10", slowdown=1.1).run()
    run.check_outputs(*range(6))
    jobs = run.check_placed({"maigan"})
    assert {job.qos for job in jobs} == {"maigan"}, jobs
    assert not run.moves()
    assert "is a lower bound" not in run.log
    (said,) = [line for line in run.log.splitlines() if "are not handed on to Slurm's" in line]
    assert set(run.env) & misleading - {"PATH"} >= {*said.partition(" are not")[0].split(", ")}
    assert "SBATCH_QOS" in said


@pytest.mark.parametrize(
    ("limit", "accounts"), [("billing=8", {"clive", "maigan"}), ("node=0", {"maigan"})]
)
def test_a_limit_on_any_tres_is_learned_from_slurms_reason(
    run: ClusterRun, limit: str, accounts: set[str]
) -> None:
    run.slurm.set_qos("clive", f"GrpTRES={limit}")
    run.prepare({"gpu-partitions": "none"}, jobs=9, light=True, seconds="9,10", slowdown=1.1)
    try:
        run.run()
    finally:
        run.slurm.set_qos("clive", f"GrpTRES={limit.partition('=')[0]}=-1")
    run.check_outputs(*range(9))
    assert not run.causes(), dump(run.events)
    assert max(run.moves().values(), default=0) <= 1, dump(run.events)
    assert {job.account for job in run.jobs() if job.state == "COMPLETED"} == accounts


def test_what_sbatch_refuses_is_tried_once_at_each_place(run: ClusterRun) -> None:
    """As job_submit.lua of a site does that has accounts for GPUs and others for CPUs."""
    run.prepare(jobs=12, light=True, seconds="5,6", slowdown=1.1)
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
    refused = [event for event in run.events if event["event"] == "refuse"]
    places = Counter((event["job"], event["account"], event["kind"]) for event in refused)
    assert max(places.values()) == 1, dump(run.events)
    assert {event["words"] for event in refused} == {"this account is not for such jobs"}
    assert not run.causes()


@pytest.mark.parametrize("whose", ["sbatch", "executor"])
def test_what_no_place_takes_ends_by_name(run: ClusterRun, whose: str) -> None:
    run.prepare(jobs=1, light=True, seconds="5,6")
    words = "no place takes it: Invalid feature specification"
    if whose == "sbatch":
        said = "sbatch: error: Batch job submission failed: Invalid feature specification"
        run.stand_in("sbatch", f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    else:
        words = "slurm_logs"
        (run.folder / ".snakemake").mkdir()
        (run.folder / ".snakemake" / "slurm_logs").touch()
    run.run("--retries", "3", ok=False, timeout_s=60)
    assert words in run.log
    assert run.causes() == ({"refused"} if whose == "sbatch" else set())
    assert not run.jobs()


def test_a_course_on_nodes_that_are_all_reserved(run: ClusterRun) -> None:
    run.prepare({"reservation": "course"}, jobs=4, light=True, seconds="5,6")
    run.slurm.run(["scontrol", "create", "reservation", "ReservationName=course", "Nodes=ALL",
                   "StartTime=now", "Duration=60", "Users=root", "Flags=IGNORE_JOBS"])  # fmt: skip
    try:
        run.run()
    finally:
        run.slurm.cancel_all()
        run.slurm.run(["scontrol", "delete", "ReservationName=course"])
    run.check_outputs(*range(4))
    run.check_calm()


def test_hidden_partitions_are_seen_by_a_user(quiet_slurm: Cluster) -> None:
    """Root sees them without asking."""

    def ask(argv: Sequence[str], stdin: str | None = None) -> str:
        return quiet_slurm.run([*argv], "labmate").stdout

    client = SlurmClient("labmate", run=ask)
    quiet_slurm.update("PartitionName=hpg-turin", "Hidden=YES")
    try:
        number = quiet_slurm.sbatch("labmate", "-A", "clive", "-p", "hpg-turin", command="sleep 9")
        assert "hpg-turin" in {one.name for one in client.partitions()}
        assert number in {job.id for job in client.queue()}
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
        ("sacctmgr", "limits are not known: sacctmgr"),
        ("sacctmgr assoc_mgr", "limits are not known: sacctmgr"),
        ("sacctmgr assoc_mgr sshare", "jobs go to --tilewright-accounts, and limits are not known"),
        ("partition sinfo", "partitions are not known, so jobs go to the default one"),
    ],
)
def test_sites_that_hide(hidden: str, note: str, run: ClusterRun) -> None:
    run.prepare(jobs=6, light=True, seconds="9,10", slowdown=1.1)
    for word in hidden.split():
        program = word if word in ("sacctmgr", "sshare", "sinfo") else "scontrol"
        run.stand_in(program, _DENIED.format(program, word, shutil.which(program)))
    run.run()
    run.check_outputs(*range(6))
    assert {job.account for job in run.jobs()} <= {"clive", "maigan"}
    (began,) = [event for event in run.events if event["event"] == "run"]
    assert sum(note in one for one in began["notes"]) == 1, began


def test_jobs_that_no_queue_shows_end_as_they_noted(run: ClusterRun) -> None:
    run.prepare(jobs=2, light=True, seconds="2,3").stand_in("squeue", "#!/bin/sh\nexit 0\n")
    run.run()
    run.check_outputs(0, 1)
    assert not run.causes()


def test_slow_answers_are_waited_for(run: ClusterRun) -> None:
    run.prepare(jobs=2, light=True, seconds="2,3")
    for name in ("squeue", "scontrol", "sacctmgr"):
        run.stand_in(name, f'#!/bin/sh\nsleep 20\nexec {shutil.which(name)} "$@"\n')
    run.run(timeout_s=900)
    run.check_outputs(0, 1)
    run.check_calm()


def test_a_slurm_without_accounting_that_forgets_jobs_at_once(
    slurm: Cluster, tmp_path: Path
) -> None:
    """It ends the session's cluster, and the next quiet_slurm starts that again."""
    slurm.stop()
    with Cluster(accounting=False, MinJobAge="2") as bare:
        run = ClusterRun(bare, tmp_path)
        run.prepare(
            {"accounts": None, "poll-seconds": 40},
            jobs=30, light=True, small=1, seconds="9,10", slowdown=1.1, faults={"7": "once"},
        )  # fmt: skip
        run.run()
        run.check_outputs(*range(30))
    (began,) = [event for event in run.events if event["event"] == "run"]
    assert any("this Slurm keeps no accounts" in note for note in began["notes"]), began
    assert run.causes() == {"error"}
    assert not run.moves()
