"""Detection end to end on recorded answers: use by others, failures, old limits."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from snakemake_scheduler_plugin_tilewright.commands.accounts import as_json, print_survey
from snakemake_scheduler_plugin_tilewright.placement import cluster
from snakemake_scheduler_plugin_tilewright.placement.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.placement.limits import Pool, left
from snakemake_scheduler_plugin_tilewright.placement.routing import Plan
from snakemake_scheduler_plugin_tilewright.placement.site import Site, SiteError, read_site
from snakemake_scheduler_plugin_tilewright.placement.survey import Note, Survey, SurveyError, survey
from snakemake_scheduler_plugin_tilewright.slurm.accounts import Holder
from snakemake_scheduler_plugin_tilewright.slurm.parse import parse_partitions
from snakemake_scheduler_plugin_tilewright.slurm.partitions import why_not
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient, Unknown
from snakemake_scheduler_plugin_tilewright.slurm.records import GPU_TYPE
from tests.conftest import REPO
from tests.support.placement_rules import CPU, Rules
from tests.support.recorded import (
    LIMITS,
    NODES,
    PARTITIONS,
    USE,
    Recorded,
    client,
    queue_line,
)

HIPERGATOR = REPO / "profiles/hipergator/site.yaml"


@pytest.fixture
def recorded() -> Recorded:
    return Recorded({"sacctmgr": LIMITS, "flags=qos": USE, "partition": PARTITIONS, "node": NODES})


def apart(found: Survey) -> list[Pool]:
    """Slots of each device kind, as if it were the only one."""
    return found.slots(["gpu"]) + found.slots(["cpu"])


def text_of(found: Survey) -> str:
    stream = io.StringIO()
    print_survey(found, read_site(HIPERGATOR), Console(file=stream, width=80))
    return stream.getvalue()


def test_the_worked_example_with_a_labmate(recorded: Recorded, tmp_path: Path) -> None:
    found = survey(client(recorded, tmp_path), 1001, read_site(HIPERGATOR))
    numbers = as_json(found)
    assert numbers["total"] == {"independent": 24, "shared": 15}
    slots = {f"{p['account']}_{p['kind']}": p for p in numbers["pools"]["independent"]}
    assert {name: pool["slots"] for name, pool in slots.items()} == {
        "clive_gpu": 3,
        "clive_cpu": 11,
        "maigan_gpu": 2,
        "maigan_cpu": 8,
    }
    # 112 GB are left on clive: no GPU job of 180 GB, two CPU jobs of 48 GB.
    assert (slots["clive_gpu"]["free"], slots["clive_cpu"]["free"]) == (0, 2)
    assert found.notes == ()
    shown = text_of(found)
    assert "at once: 5 GPU + 10 CPU = 15 jobs, GPU jobs first" in shown
    assert "each kind alone: 5 GPU or 19 CPU jobs" in shown
    assert (
        "slots for GPU jobs of 8 CPUs and 184320 MB, CPU jobs of 8 CPUs and 49152 MB (gpu_job"
        in " ".join(shown.split())
    )
    assert "brusko   blocked: its members keep" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown


def test_one_sacctmgr_and_a_cache(recorded: Recorded, tmp_path: Path) -> None:
    now = [0.0]
    asking = client(recorded, tmp_path, now)
    for _ in range(3):
        survey(asking, 1001, Site())
    assert recorded.asked == [
        "partition",
        "sacctmgr",
        "flags=qos",
        "node",
        "reservation",
        "licenses",
    ]
    now[0] = 31.0
    survey(asking, 1001, Site())
    assert recorded.asked[6:] == ["flags=qos", "node"]
    now[0] = 61.0
    survey(asking, 1001, Site())
    assert recorded.asked[8:] == ["flags=qos", "node"]


def test_limits_of_a_dead_slurmdbd_are_the_last_good_ones_and_said_to_be_old(
    recorded: Recorded, tmp_path: Path
) -> None:
    survey(client(recorded, tmp_path, [0.0]), 1001, Site())
    recorded.answers["sacctmgr"] = Unknown("sacctmgr", "Connection refused")
    found = survey(client(recorded, tmp_path, [7300.0]), 1001, Site())
    assert [account.name for account in found.accounts] == ["brusko", "clive", "maigan"]
    assert found.notes == (
        Note("limits", "limits are 2.0 h old: sacctmgr did not answer: Connection refused"),
    )


def test_never_known_limits_are_an_error_and_not_no_accounts(
    recorded: Recorded, tmp_path: Path
) -> None:
    recorded.answers["sacctmgr"] = Unknown("sacctmgr", "Connection refused")
    with pytest.raises(SurveyError, match="Connection refused"):
        survey(client(recorded, tmp_path), 1001, Site())
    recorded.answers["sacctmgr"] = "no table"
    with pytest.raises(SurveyError, match="holds no record in 'no table'"):
        survey(client(recorded, tmp_path), 1001, Site())
    recorded.answers["sacctmgr"] = Unknown("sacctmgr", "Connection refused")
    (tmp_path / "limits-ada.json").write_text("{broken")
    with pytest.raises(SurveyError, match="Connection refused"):
        survey(client(recorded, tmp_path), 1001, Site())


def test_unknown_use_is_a_question_mark_and_a_note(recorded: Recorded, tmp_path: Path) -> None:
    recorded.answers["flags=qos"] = Unknown("scontrol", "no answer within 15 s")
    found = survey(client(recorded, tmp_path), 1001, Site())
    clive = as_json(found)["accounts"][1]
    assert [one["used"] for one in clive["limits"]] == [None]
    assert clive["free"] == {"cpu": None, "gres/gpu": None, "mem": None}
    names = "QOS brusko, QOS clive, QOS maigan"
    silent = "scontrol did not answer: no answer within 15 s"
    assert found.notes == (Note("use", f"use of {names} is not known: {silent}"),)
    free = next(line for line in text_of(found).splitlines() if "free" in line)
    assert free.count("?") == 4


def test_a_partition_that_is_not_there_is_named(recorded: Recorded, tmp_path: Path) -> None:
    site = Site.model_validate({"partitions": {"gpu": "gpu-old"}})
    found = survey(client(recorded, tmp_path), 1001, site)
    assert found.notes == (
        Note("site", "partition gpu-old does not exist; up are hpg-b200, hpg-default"),
    )
    recorded.answers["partition"] = PARTITIONS.replace("State=UP", "State=DOWN", 1)
    down = Site.model_validate({"partitions": {"cpu": "hpg-default"}})
    (note,) = survey(client(recorded, tmp_path / "b"), 1001, down).notes
    assert note.text == "partition hpg-default is not up; up are hpg-b200"


def test_accounts_that_the_user_does_not_have_are_named(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What blocks an account of others refuses no run."""
    site = tmp_path / "site.yaml"
    site.write_text("blocked: {brusk: not ours}\n", encoding="utf-8")
    monkeypatch.setattr(cluster, "own_client", lambda calls_per_min: client(recorded, tmp_path))
    monkeypatch.setattr(cluster, "_current", None)
    there = "which ada does not have; there are brusko, clive, clive-b, maigan"
    found = cluster.use(site).survey
    assert found.notes == (Note("blocked", f"'blocked' names account brusk, {there}"),)
    site.write_text("caps: {maigen: cpu=40}\n", encoding="utf-8")
    said = f"'caps' names account maigen, {there}"
    with pytest.raises(SiteError, match=f"site.yaml: {said}"):
        cluster.use(site)
    shown = text_of(survey(client(recorded, tmp_path), 1001, read_site(site)))
    assert f"note: {said}" in " ".join(shown.split())


def test_a_cluster_without_gpus_has_no_gpu_slots(recorded: Recorded, tmp_path: Path) -> None:
    recorded.answers["partition"] = PARTITIONS.splitlines()[0]
    found = survey(client(recorded, tmp_path), 1001, Site())
    assert {pool.kind for pool in found.pools} == {"cpu"}


@pytest.fixture
def limited() -> Recorded:
    own = PARTITIONS.replace("QoS=N/A", "QoS=part", 1)
    use = (
        USE + "QOS=part(9) GrpJobs=12(1) GrpSubmitJobs=N(4) GrpTRES=cpu=48(40)"
        " Account Limits= clive={MaxJobsPA=3(1) MaxJobsAccruePA=N(1) MaxSubmitJobsPA=N(3)"
        " MaxTRESPA=cpu=40(7)} User Limits= 1001={MaxJobsPU=2(1) MaxJobsAccruePU=N(1)"
        " MaxSubmitJobsPU=5(4) MaxTRESPU=cpu=9(5)}"
    )
    limits = f"{LIMITS}part|cpu=64|cpu=16|cpu=9|12||2|5|1-00:00:00||cpu=40|3|||||\n"
    return Recorded({"sacctmgr": limits, "flags=qos": use, "partition": own, "node": NODES})


def test_the_survey_has_limits_and_use_of_the_partition_qos(
    limited: Recorded, tmp_path: Path
) -> None:
    found = survey(client(limited, tmp_path), 1001, Site())
    where = found.partitions["cpu"]
    assert where is not None
    assert where.max_time_min == 1440
    within = found.accounts[1].within(where)
    assert within.holders[:3] == (
        Holder("QOS part", {"cpu": 48, "jobs": 12}, {"cpu": 40, "jobs": 1, "submit": 4}),
        Holder("ada on QOS part", {"cpu": 9, "jobs": 2, "submit": 5},
               {"cpu": 5, "jobs": 1, "submit": 4}),
        Holder("account clive on QOS part", {"cpu": 40, "jobs": 3},
               {"cpu": 7, "jobs": 1, "submit": 3}),
    )  # fmt: skip
    assert (within.holders[3].name, set(within.holders[3].limit)) == (
        "QOS clive",
        {"mem", "gres/gpu"},
    )
    assert (within.per_job, within.longest_min) == ({"cpu": 16}, 1440)
    shown = text_of(found)
    assert "jobs that run or wait on clive: 4 of 5 (ada on QOS part)" in shown
    line = next(line for line in shown.splitlines() if "  QOS part " in line)
    assert [cell.strip() for cell in line.split("│")[1:6]] == [
        "QOS part", "40 of 48", "", "", "1 of 12",
    ]  # fmt: skip
    names = [line.split("│")[1] for line in shown.splitlines() if line.count("│") > 5]
    at = next(n for n, name in enumerate(names) if name.startswith("  account clive"))
    assert names[at + 1].startswith("    QOS part")
    assert max(map(len, shown.splitlines())) <= 80


def test_limits_of_the_gpu_type_that_the_partition_has(recorded: Recorded, tmp_path: Path) -> None:
    recorded.answers["sacctmgr"] = LIMITS.replace("gres/gpu=3", "gres/gpu=3,gres/gpu:b200=2")
    recorded.answers["flags=qos"] = USE.replace("gpu=3(1)", "gpu=3(1),gres/gpu:b200=2(1)")
    untyped = survey(client(recorded, tmp_path / "a"), 1001, Site())
    assert untyped.accounts[1].at("").holders[0].limit["gres/gpu"] == 3
    assert untyped.notes == (
        Note("types", "limits of GPU types on clive are not looked at: Slurm does not count the "
             "GPUs of partition hpg-b200 as of one type"),
    )  # fmt: skip
    typed = PARTITIONS.replace("gres/gpu=8", "gres/gpu=8,gres/gpu:b200=8")
    recorded.answers["partition"] = typed
    found = survey(client(recorded, tmp_path / "b"), 1001, Site())
    (clive,) = found.accounts[1].at("").holders
    assert (clive.limit["gres/gpu"], clive.limit[GPU_TYPE], found.notes) == (3, 2, ())
    held = {"cpu": 40, "mem": 716_800, "gres/gpu": 1, GPU_TYPE: 1}
    assert clive.used == {**held, "jobs": 2, "submit": 2}
    slots = {p.name: (p.slots, p.free) for p in apart(found)}
    assert slots["clive_gpu"] == (2, 0)  # memory


def test_use_is_seen_in_the_queue_where_slurm_refuses_but_not_where_it_is_silent(
    limited: Recorded, tmp_path: Path
) -> None:
    limited.answers["squeue"] = ""
    limited.answers["flags=qos"] = Unknown("scontrol", "Access/permission denied")
    found = survey(client(limited, tmp_path), 1001, Site())
    assert uses(found) == [0]
    assert found.notes[0].text.startswith("use of QOS brusko, QOS clive, QOS maigan, QOS part, ac")
    assert "lower bound" in found.notes[0].text
    limited.answers["flags=qos"] = Unknown("scontrol", "no answer within 15 s", refused=False)
    found = survey(client(limited, tmp_path / "b"), 1001, Site())
    assert uses(found) == [None]
    assert "is not known: scontrol did not answer: no answer within 15 s" in found.notes[0].text


def uses(found: Survey) -> list[int | None]:
    """Return the numbers of CPUs in use that are said of anything."""
    cpus = [
        None if holder.used is None else holder.used["cpu"]
        for one in found.accounts
        for at in one.limits.values()
        for holder in at.holders
    ]
    return list(dict.fromkeys(cpus))


def test_use_of_accounts_above_and_of_numbers_of_jobs_is_seen_in_the_queue_too(
    recorded: Recorded, tmp_path: Path
) -> None:
    rows = (
        f"dept|{'|' * 4}cpu=64||3{'|' * 6}root||||\nclive{'|' * 13}dept||||\n"
        f"clive|ada||clive,clive-b|clive|||||4|9{'|' * 7}\n"
    )
    text = LIMITS.replace("clive|ada||clive,clive-b|clive|||||||||||||\n", rows)
    recorded.answers["sacctmgr"] = text.replace("cpu=104,gres/gpu=3,mem=812G", "gres/gpu=3")
    job = {"State": "RUNNING", "QOS": "clive", "Account": "clive", "tres-alloc": "cpu=8"}
    recorded.answers["squeue"] = "\n".join([
        queue_line(JobID="1", UserName="ada", **job),
        queue_line(JobID="2", UserName="ada", **{**job, "State": "PENDING"}),
        queue_line(JobID="3", UserName="ben", **job),
        queue_line(JobID="4", UserName="ben", **{**job, "Account": "maigan", "QOS": "x"}),
    ])  # fmt: skip
    recorded.answers["flags=assoc"] = Unknown("scontrol", "Access/permission denied")
    recorded.answers["flags=qos"] = USE.replace("cpu=104(40),mem=831488(716800),", "")
    found = survey(client(recorded, tmp_path), 1001, Site())
    (note,) = found.notes
    assert note.text.startswith("use of account dept, ada of account clive is a lower bound")
    clive = found.accounts[1]
    by_name = {holder.name: holder for holder in clive.at("").holders}
    assert by_name["account dept"].limit == {"cpu": 64, "jobs": 3}
    assert [left(clive, None, tres) for tres in ("cpu", "jobs", "submit")] == [48, 1, 7]
    assert found.unknown() is None
    slots = {
        pool.name: (pool.slots, pool.free) for pool in found.slots(["gpu"]) + found.slots(["cpu"])
    }
    assert slots["clive_cpu"] == (3, 1)


def test_accounts_of_other_clusters_are_not_ours(limited: Recorded, tmp_path: Path) -> None:
    rows = [line for line in LIMITS.splitlines() if line.count("|") == 17]
    here = [f"{line[:-5]}hpg|||||" for line in rows]
    there = [f"{line[:-5].replace('clive', 'elsewhere')}other|||||" for line in rows]
    rest = [line for line in LIMITS.splitlines() if line not in rows]
    limited.answers["sacctmgr"] = "\n".join([*here, *there, *rest])
    limited.answers["config"] = "SLURM_VERSION = 22.05\nClusterName             = hpg\n"
    found = survey(client(limited, tmp_path), 1001, Site())
    assert [one.name for one in found.accounts] == ["brusko", "clive", "maigan"]
    limited.answers["config"] = Unknown("scontrol", "no answer within 15 s")
    with pytest.raises(SurveyError, match="which of hpg, other this is"):
        survey(client(limited, tmp_path / "b"), 1001, Site())


def test_a_slurm_without_accounts_is_one_account_that_its_nodes_bound(
    recorded: Recorded, tmp_path: Path
) -> None:
    recorded.answers["sacctmgr"] = Unknown(
        "sacctmgr",
        "You are not running a supported accounting_storage plugin Only "
        "'accounting_storage/slurmdbd' is supported.",
    )
    asking = client(recorded, tmp_path)
    found = survey(asking, 1001, Site())
    slots = {pool.name: pool.slots for pool in apart(found)}
    assert slots == {"slurm_gpu": 8, "slurm_cpu": 27}  # 85 % of 256 CPUs
    assert "keeps no accounts" in found.notes[0].text
    assert found.unknown() is None
    plan = Plan(Rules({"work": {"cpu": CPU}}), cluster=Cluster(Site(), asking, 1001, found))
    assert plan.routed("work")["slurm_account"]({}, 1) is None


def test_what_is_left_of_budgets_is_shown_in_hours(recorded: Recorded, tmp_path: Path) -> None:
    recorded.answers["flags=qos"] = USE.replace(
        " GrpTRES=", " GrpWall=N(3.5) GrpTRESMins=cpu=6000(300),gres/gpu=120(120)"
        " GrpTRESRunMins=cpu=N(60),gres/gpu=N(0),node=N(9) GrpTRES=", 1,
    )  # fmt: skip
    found = survey(client(recorded, tmp_path), 1001, Site())
    shown = text_of(found)
    assert "left on clive: 94 CPU-hours of 100 CPU-hours (QOS clive)" in shown
    assert "left on clive: 0 GPU-hours of 2 GPU-hours (QOS clive)" in shown
    assert "left on maigan" not in shown
    cpu, gpu = as_json(found)["accounts"][1]["budgets"]
    assert (cpu["name"], cpu["limit"], cpu["used"], cpu["left"]) == ("cpu/min", 6000, 360, 5640)
    assert gpu["left"] == 0
    slots = {pool.name: pool.slots for pool in found.pools}
    assert "clive_gpu" not in slots  # no minute of a GPU is left
    assert "clive_cpu" not in slots  # nor 20 hours of 8 CPUs, the site's largest job


def test_partitions_of_other_groups_or_of_several_nodes_are_not_chosen(
    recorded: Recorded, tmp_path: Path
) -> None:
    known = {p.name: p for p in parse_partitions(PARTITIONS)}
    gpu = known["hpg-b200"]
    assert why_not(replace(gpu, allow_groups=("staff",)), frozenset({"ada"})).endswith(
        "only, and you are in none of them"
    )
    assert not why_not(replace(gpu, allow_groups=("staff",)), frozenset({"ada", "staff"}))
    assert not why_not(replace(gpu, allow_groups=("staff",)), None)  # root, or nobody says
    recorded.answers["partition"] = PARTITIONS.replace(
        "Default=NO", "Default=NO MinNodes=2 MaxNodes=4"
    )
    assert survey(client(recorded, tmp_path), 1001, Site()).partitions["gpu"] is None
    named = Site.model_validate({"partitions": {"gpu": "hpg-b200"}})
    (note,) = survey(client(recorded, tmp_path / "b"), 1001, named).notes
    assert "hpg-b200 is of no use: it takes jobs of 2 nodes at least" in note.text


def test_a_reservation_that_begins_before_a_job_could_end_closes_its_nodes(
    recorded: Recorded, tmp_path: Path
) -> None:
    begins = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1000 + 3600))
    recorded.answers["reservation"] = (
        f"ReservationName=m StartTime={begins} EndTime=2030-01-01T00:00:00 Nodes=c[1-2] NodeCnt=2"
        " Flags=MAINT,SPEC_NODES State=INACTIVE\n"
    )
    found = survey(client(recorded, tmp_path), 1001, Site())
    assert found.nodes is not None
    assert {node.name: node.free_min for node in found.nodes} == {"b1": None, "c1": 60, "c2": 60}
    recorded.answers["reservation"] = Unknown("scontrol", "Access/permission denied")
    found = survey(client(recorded, tmp_path / "b"), 1001, Site())
    assert found.notes[0].text.startswith("reservations are not known")


def test_a_run_believes_no_answer_of_another_that_is_more_than_seconds_old(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who was added to an account 73 s before was refused."""
    now = [1000.0]

    def asks(calls_per_min: float) -> SlurmClient:
        return replace(client(recorded, tmp_path, now), shared_dir=tmp_path / "answers")

    monkeypatch.setattr(cluster, "own_client", asks)
    monkeypatch.setattr(cluster, "_current", None)
    (tmp_path / "site.yaml").write_text("allowed: [maigan]\n", encoding="utf-8")
    recorded.answers["sacctmgr"] = LIMITS.replace("maigan|ada|", "maigan|ben|")
    with pytest.raises(SiteError, match="account maigan, which ada does not have"):
        cluster.use(tmp_path / "site.yaml")
    recorded.answers["sacctmgr"] = LIMITS
    now[0] += 73.0
    found = cluster.use(tmp_path / "site.yaml")
    assert [account.name for account in found.survey.accounts] == ["maigan"]
    asked = len(recorded.asked)
    now[0] += 2.0
    cluster.use(tmp_path / "site.yaml")
    assert len(recorded.asked) == asked
