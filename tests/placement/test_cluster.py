"""Site files, and detection end to end on recorded answers: use by others, failures, old limits."""

import io
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from snakemake_scheduler_plugin_tilewright.cluster import cluster
from snakemake_scheduler_plugin_tilewright.cluster.cluster import Cluster
from snakemake_scheduler_plugin_tilewright.cluster.limits import remaining
from snakemake_scheduler_plugin_tilewright.cluster.pools import make_pools
from snakemake_scheduler_plugin_tilewright.cluster.query import query_cluster
from snakemake_scheduler_plugin_tilewright.cluster.request import ResourceRequest
from snakemake_scheduler_plugin_tilewright.cluster.room import Room
from snakemake_scheduler_plugin_tilewright.cluster.site import Site, read_site
from snakemake_scheduler_plugin_tilewright.cluster.state import ClusterState, Note
from snakemake_scheduler_plugin_tilewright.cluster.summary import cluster_summary
from snakemake_scheduler_plugin_tilewright.commands.accounts import as_json, print_accounts
from snakemake_scheduler_plugin_tilewright.errors import PlacementError, SiteError, SlurmQueryError
from snakemake_scheduler_plugin_tilewright.resources import Placement
from snakemake_scheduler_plugin_tilewright.slurm.accounts import NO_ACCOUNT, LimitScope
from snakemake_scheduler_plugin_tilewright.slurm.parse import parse_partitions
from snakemake_scheduler_plugin_tilewright.slurm.partitions import why_not
from snakemake_scheduler_plugin_tilewright.slurm.query import SlurmClient
from tests.support.placement_rules import CPU, Rules, at, with_use
from tests.support.recorded import (
    ANSWERS,
    CONFIG,
    LIMITS,
    NODES,
    PARTITIONS,
    USE,
    Recorded,
    client,
    queue_line,
)
from tests.support.runs import REPO

HIPERGATOR = REPO / "profiles/hipergator/site.yaml"
REFUSED = SlurmQueryError("sacctmgr", "Connection refused")
DENIED = SlurmQueryError("scontrol", "Access/permission denied")
SILENT = SlurmQueryError("scontrol", "no answer within 15 s", refused=False)
Look = Callable[..., ClusterState]


@pytest.fixture
def recorded() -> Recorded:
    return Recorded(dict(ANSWERS))


@pytest.fixture
def look(recorded: Recorded, tmp_path: Path) -> Look:
    """Return what looks at the cluster with an empty cache, where Slurm answers otherwise."""

    def looked(site: Site = Site(), **answers: str | SlurmQueryError) -> ClusterState:  # noqa: B008
        recorded.answers |= {name.replace("_", "="): said for name, said in answers.items()}
        cache = tmp_path / f"cache-{len(list(tmp_path.iterdir()))}"
        return query_cluster(client(recorded, cache), 1001, site)

    return looked


def slots(found: ClusterState) -> dict[str, tuple[int, int | None]]:
    """Slots of each device kind, as if it were the only one."""
    pools = make_pools(found, ["gpu"]) + make_pools(found, ["cpu"])
    return {pool.name: (pool.slots, pool.free) for pool in pools}


def text_of(found: ClusterState) -> str:
    stream = io.StringIO()
    print_accounts(found, Console(file=stream, width=80))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("blocked: {brusko: ''}", "'blocked.brusko'"),
        ("utilisation: 2", "'utilisation'"),
        ("burst: '['", "not a regular expression"),
        ("bursts: x", "'bursts': extra inputs are not permitted; remove it"),
        ("a: [", "is not YAML"),
        ("- a", "valid"),
        ("caps: {clive: 'cpus=40'}", "'caps.clive': 'cpus=40' is none of cpu=40, mem=200G and"),
        ("caps: {clive: 'cpu=40,mem=lots'}", "'mem=lots' is none of"),
        (b"\xff\xfe\x00", "cannot be read: it is not text"),
        (None, "cannot be read: it is no file"),
    ],
)
def test_a_wrong_site_file_says(tmp_path: Path, content: str | bytes | None, message: str) -> None:
    path = tmp_path / "site.yaml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(SiteError) as caught:
        read_site(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_worked_example_with_a_labmate(look: Look) -> None:
    found = look(read_site(HIPERGATOR))
    numbers = as_json(found)
    assert numbers["total"] == {"independent": 24, "shared": 15}
    # 112 GB are left on clive: no GPU job of 180 GB, two CPU jobs of 48 GB.
    pools = numbers["pools"]["independent"]
    assert [(p["account"], p["kind"], p["slots"], p["free"]) for p in pools] == [
        ("clive", "gpu", 3, 0), ("clive", "cpu", 11, 2),
        ("maigan", "gpu", 2, 2), ("maigan", "cpu", 8, 8),
    ]  # fmt: skip
    assert found.notes == ()
    shown = text_of(found)
    for part in (
        "at once: 5 GPU + 10 CPU = 15 jobs, GPU jobs first",
        "brusko   blocked: its members keep",
    ):
        assert part in shown
    jobs = "slots for GPU jobs of 8 CPUs and 184320 MB, CPU jobs of 8 CPUs and 49152 MB (gpu_job"
    assert jobs in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown


def test_one_sacctmgr_and_a_cache(recorded: Recorded, tmp_path: Path) -> None:
    now = [0.0]
    asking = client(recorded, tmp_path, now)
    for at_s, asked in (
        (0.0, ["config", "node", "reservation", "partition", "sacctmgr", "flags=qos", "licenses"]),
        (1.0, []), (31.0, ["node", "flags=qos"]), (61.0, ["node", "flags=qos"]),
    ):  # fmt: skip
        now[0] = at_s
        recorded.asked.clear()
        query_cluster(asking, 1001, Site())
        assert sorted(recorded.asked) == sorted(asked)


def test_what_a_look_begins_with_is_asked_at_once(recorded: Recorded, tmp_path: Path) -> None:
    """Where each answer takes 20 s, it took 140 s."""
    together = threading.Barrier(6, timeout=20)

    def wait(argv: Sequence[str], stdin: str | None = None) -> str:
        if "flags=qos" not in argv:
            together.wait()
        return recorded(argv, stdin)

    assert query_cluster(replace(client(recorded, tmp_path), run=wait), 1001, Site()).accounts


def test_limits_of_a_dead_slurmdbd_are_said_to_be_old(recorded: Recorded, tmp_path: Path) -> None:
    def found_at(now_s: float) -> ClusterState:
        asking = replace(client(recorded, tmp_path, [now_s]), shared_dir=tmp_path)
        return query_cluster(asking, 1001, Site())

    found_at(0.0)
    recorded.answers["sacctmgr"] = REFUSED
    found = found_at(7300.0)
    assert [account.name for account in found.accounts] == ["brusko", "clive", "maigan"]
    old = "limits are 2.0 h old: sacctmgr did not answer: Connection refused"
    assert found.notes == (Note("limits", old),)
    for path in tmp_path.glob("*.json"):
        path.write_text("{broken")
    found = found_at(7300.0)
    assert "Connection refused, so jobs go to your default account" in str(found.notes[0])


def test_unknown_use_is_a_question_mark_and_a_note(look: Look) -> None:
    found = look(flags_qos=SILENT, squeue="")  # where Slurm is silent the queue is not asked
    clive = as_json(found)["accounts"][1]
    assert [one["used"] for one in clive["limits"]] == [None]
    assert clive["free"] == {"cpu": None, "gres/gpu": None, "mem": None}
    names = "QOS brusko, QOS clive, QOS maigan"
    silent = "scontrol did not answer: no answer within 15 s"
    assert found.notes == (Note("use", f"use of {names} is not known: {silent}"),)
    free = next(line for line in text_of(found).splitlines() if "free" in line)
    assert free.count("?") == 4


def test_a_partition_that_is_not_there_is_named(look: Look) -> None:
    old, down, several = (
        Site.model_validate({"partitions": partitions})
        for partitions in ({"gpu": "gpu-old"}, {"cpu": "hpg-default"}, {"gpu": "hpg-b200"})
    )
    gone = "partition gpu-old does not exist; up are hpg-b200, hpg-default"
    assert look(old).notes == (Note("site", gone),)
    (note,) = look(down, partition=PARTITIONS.replace("State=UP", "State=DOWN", 1)).notes
    assert note.text == "partition hpg-default is not up; up are hpg-b200"
    two = PARTITIONS.replace("Default=NO", "Default=NO MinNodes=2 MaxNodes=4")
    assert look(partition=two).partitions["gpu"] == ()
    (note,) = look(several).notes
    assert "hpg-b200 is of no use: it takes jobs of 2 nodes at least" in note.text
    assert {pool.kind for pool in make_pools(look(partition=PARTITIONS.splitlines()[0]))} == {"cpu"}


def test_partitions_of_other_groups_are_not_chosen() -> None:
    gpu = next(one for one in parse_partitions(PARTITIONS) if one.name == "hpg-b200")
    staff = replace(gpu, allow_groups=("staff",))
    assert why_not(staff, frozenset({"ada"})).endswith("only, and you are in none of them")
    assert not why_not(staff, frozenset({"ada", "staff"}))
    assert not why_not(staff, None)  # root, or nobody says


def test_accounts_that_the_user_does_not_have_are_named(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What blocks an account of others refuses no run."""
    site = tmp_path / "site.yaml"
    site.write_text("blocked: {brusk: not ours}\n", encoding="utf-8")
    monkeypatch.setattr(cluster, "own_client", lambda calls_per_min: client(recorded, tmp_path))
    there = "which ada does not have; there are brusko, clive, clive-b, maigan"
    found = cluster.open_cluster(site).state
    assert found.notes == (Note("blocked", f"'blocked' names account brusk, {there}"),)
    site.write_text("caps: {maigen: cpu=40}\n", encoding="utf-8")
    said = f"'caps' names account maigen, {there}"
    with pytest.raises(SiteError, match=f"site.yaml: {said}"):
        cluster.open_cluster(site)
    shown = text_of(query_cluster(client(recorded, tmp_path), 1001, read_site(site)))
    assert f"note: {said}" in " ".join(shown.split())


def test_the_survey_has_limits_and_use_of_the_partition_qos(look: Look) -> None:
    found = look(
        partition=PARTITIONS.replace("QoS=N/A", "QoS=part", 1),
        flags_qos=USE + "QOS=part(9) GrpJobs=12(1) GrpSubmitJobs=N(4) GrpTRES=cpu=48(40)"
        " Account Limits= clive={MaxJobsPA=3(1) MaxJobsAccruePA=N(1) MaxSubmitJobsPA=N(3)"
        " MaxTRESPA=cpu=40(7)} User Limits= 1001={MaxJobsPU=2(1) MaxJobsAccruePU=N(1)"
        " MaxSubmitJobsPU=5(4) MaxTRESPU=cpu=9(5)}",
        sacctmgr=f"{LIMITS}part|cpu=64|cpu=16|cpu=9|12||2|5|1-00:00:00||cpu=40|3||||||||||\n",
    )
    (where,) = (one for one in found.partitions["cpu"] if one.default)
    assert where.max_time_min == 1440
    within = found.accounts[1].within(where)
    assert within.scopes[:3] == (
        LimitScope("QOS part", {"cpu": 48, "jobs": 12}, {"cpu": 40, "jobs": 1, "submit": 4}),
        LimitScope("ada on QOS part", {"cpu": 9, "jobs": 2, "submit": 5},
               {"cpu": 5, "jobs": 1, "submit": 4}),
        LimitScope("account clive on QOS part", {"cpu": 40, "jobs": 3},
               {"cpu": 7, "jobs": 1, "submit": 3}),
    )  # fmt: skip
    own = within.scopes[3]
    assert (own.name, set(own.limit)) == ("QOS clive", {"mem", "gres/gpu"})
    assert (within.per_job, within.longest_min) == ({"cpu": 16}, 1440)
    shown = text_of(found)
    assert "jobs that run or wait on clive: 4 of 5 (ada on QOS part)" in shown
    line = next(line for line in shown.splitlines() if "  QOS part " in line)
    cells = [cell.strip() for cell in line.split("│")[1:6]]
    assert cells == ["QOS part", "40 of 48", "", "", "1 of 12"]
    names = [line.split("│")[1] for line in shown.splitlines() if line.count("│") > 5]
    at = next(n for n, name in enumerate(names) if name.startswith("  account clive"))
    assert names[at + 1].startswith("  on QOS part")
    assert max(map(len, shown.splitlines())) <= 80


def test_limits_of_the_gpu_type_that_the_partition_has(look: Look) -> None:
    untyped = look(
        sacctmgr=LIMITS.replace("gres/gpu=3", "gres/gpu=3,gres/gpu:b200=2"),
        flags_qos=USE.replace("gpu=3(1)", "gpu=3(1),gres/gpu:b200=2(1)"),
    )
    assert untyped.accounts[1].at("").scopes[0].limit["gres/gpu"] == 3
    (note,) = untyped.notes
    assert note.text.startswith("limits that are not looked at: gres/gpu:b200 of clive (")
    found = look(partition=PARTITIONS.replace("gres/gpu=8", "gres/gpu=8,gres/gpu:b200=8"))
    (clive,) = found.accounts[1].at("").scopes
    assert (clive.limit["gres/gpu"], clive.limit["gres/gpu:b200"], found.notes) == (3, 2, ())
    held = {"cpu": 40, "mem": 716_800, "gres/gpu": 1, "gres/gpu:b200": 1}
    assert clive.used == {**held, "jobs": 2, "submit": 2}
    assert slots(found)["clive_gpu"] == (2, 0)  # memory


def test_use_of_accounts_above_and_of_numbers_of_jobs_is_seen_in_the_queue_too(look: Look) -> None:
    rows = (
        f"root{'|' * 17}\ndept|{'|' * 4}cpu=64||3{'|' * 6}root||||\nclive{'|' * 13}dept||||\n"
        f"clive|ada||clive,clive-b|clive|||||4|9{'|' * 7}\n"
    )
    own, of_account = (f"clive|{who}||clive,clive-b|clive|||||||||||||\n" for who in ("ada", ""))
    text = LIMITS.replace(of_account, "").replace(own, rows)
    job = {"State": "RUNNING", "QOS": "clive", "Account": "clive", "tres-alloc": "cpu=8"}
    jobs = [
        {"JobID": "1", "UserName": "ada", **job},
        {"JobID": "2", "UserName": "ada", **job, "State": "PENDING"},
        {"JobID": "3", "UserName": "ben", **job},
        {"JobID": "4", "UserName": "ben", **job, "Account": "maigan", "QOS": "x"},
    ]
    found = look(
        sacctmgr=text.replace("cpu=104,gres/gpu=3,mem=812G", "gres/gpu=3"),
        squeue="\n".join(queue_line(**one) for one in jobs),
        flags_assoc=DENIED,
        flags_qos=USE.replace("cpu=104(40),mem=831488(716800),", ""),
    )
    (note,) = found.notes
    assert note.text.startswith("use of account dept, ada of account clive is a lower bound")
    clive = found.accounts[1]
    by_name = {scope.name: scope for scope in clive.at("").scopes}
    assert by_name["account dept"].limit == {"cpu": 64, "jobs": 3}
    assert [remaining(clive, None, tres) for tres in ("cpu", "jobs", "submit")] == [48, 1, 7]
    found.check_known()
    assert slots(found)["clive_cpu"] == (3, 1)


def test_accounts_of_other_clusters_are_not_ours(look: Look) -> None:
    rows = [line for line in LIMITS.splitlines() if line.count("|") == 17]
    here = [f"{line[:-5]}hpg|||||" for line in rows]
    there = [f"{line[:-5].replace('clive', 'elsewhere')}other|||||" for line in rows]
    rest = [line for line in LIMITS.splitlines() if line not in rows]
    found = look(sacctmgr="\n".join([*here, *there, *rest]))
    assert [one.name for one in found.accounts] == ["brusko", "clive", "maigan"]
    with pytest.raises(PlacementError, match="which of hpg, other this is"):
        look(config=SILENT)


def test_memory_that_slurm_does_not_count_bounds_one_job_and_not_their_number(look: Look) -> None:
    job, none = ResourceRequest(1, 900_000, 0, 60), ResourceRequest(1, 0, 0, 60)
    for config, fit, of_none in (
        ("CR_CPU_MEMORY", 2, 2),  # all of the memory of a node, without a default
        ("CR_CPU_MEMORY\nDefMemPerCPU = 4000", 2, 256),
        ("CR_CORE", 256, 256),
    ):
        found = look(
            config=CONFIG.replace("CR_CORE_MEMORY", config),
            partition=PARTITIONS.replace("DefMemPerNode=1000", "DefMemPerNode=UNLIMITED"),
        )
        here = at(found, "clive", "cpu")
        rooms = [Room(found).on_nodes(found.where(here), one) for one in (job, none)]
        assert rooms == [fit, of_none]
        assert Room(found).on_nodes(found.where(here), replace(job, mem_mb=1_100_000)) == 0
    (note,) = look(config=DENIED).notes
    assert "configuration is not known, so memory and limits are taken to count: " in note.text


def test_gpus_that_are_no_tres_have_a_partition(look: Look) -> None:
    nodes = NODES.replace(",gres/gpu=8", "").replace(
        "Gres=(null)", "Gres=gpu:b200:8 GresUsed=gpu:b200:6(IDX:0-5)", 1
    )
    found = look(node=nodes, partition=PARTITIONS.replace(",gres/gpu=8", ""))
    (gpus,) = found.partitions["gpu"]
    assert (gpus.name, gpus.tres["gres/gpu"]) == ("hpg-b200", 8)
    here = at(found, "clive", "gpu")
    assert Room(found).on_nodes(found.where(here), ResourceRequest(1, 1000, 1, 60)) == 2


def test_accounts_are_named_in_any_case(look: Look) -> None:
    site = Site.model_validate({"allowed": ["CLIVE"], "caps": {"Clive": "cpu=8"}})
    found = look(site, partition=PARTITIONS.replace("AllowAccounts=ALL", "AllowAccounts=Clive"))
    assert [one.name for one in found.accounts] == ["clive"]
    assert "site" not in {note.about for note in found.notes}
    assert slots(found)["clive_cpu"] == (1, 0)  # use of the cap is not known


def test_a_slurm_without_accounts_is_bound_by_its_nodes(recorded: Recorded, tmp_path: Path) -> None:
    recorded.answers["sacctmgr"] = SlurmQueryError(
        "sacctmgr",
        "You are not running a supported accounting_storage plugin Only "
        "'accounting_storage/slurmdbd' is supported.",
    )
    asking = client(recorded, tmp_path)
    found = query_cluster(asking, 1001, Site())
    assert {name: n for name, (n, _) in slots(found).items()} == {
        "slurm_gpu": 8, "slurm_cpu": 32,  # 256 CPUs
    }  # fmt: skip
    assert "keeps no accounts" in found.notes[0].text
    found.check_known()
    placement = Placement(
        Rules({"work": {"cpu": CPU}}).models, cluster=Cluster(Site(), asking, 1001, found)
    )
    assert placement.static("work", {}).target.account == ""


def test_what_is_left_of_budgets_is_shown_in_hours(look: Look) -> None:
    found = look(flags_qos=USE.replace(
        " GrpTRES=", " GrpWall=N(3.5) GrpTRESMins=cpu=6000(300),gres/gpu=120(120)"
        " GrpTRESRunMins=cpu=N(60),gres/gpu=N(0),node=N(9) GrpTRES=", 1,
    ))  # fmt: skip
    shown = text_of(found)
    assert "left on clive: 94 CPU-hours of 100 CPU-hours (QOS clive)" in shown
    assert "left on clive: 0 GPU-hours of 2 GPU-hours (QOS clive)" in shown
    assert "left on maigan" not in shown
    cpu, gpu = as_json(found)["accounts"][1]["budgets"]
    assert (cpu["name"], cpu["limit"], cpu["used"], cpu["left"]) == ("cpu/min", 6000, 360, 5640)
    assert gpu["left"] == 0
    # no minute of a GPU is left, nor 20 hours of 8 CPUs, the site's largest job
    assert not {"clive_gpu", "clive_cpu"} & {pool.name for pool in make_pools(found)}


def test_a_reservation_that_begins_before_a_job_could_end_closes_its_nodes(look: Look) -> None:
    begins = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1000 + 3600))
    found = look(
        reservation=f"ReservationName=m StartTime={begins} EndTime=2030-01-01T00:00:00"
        " Nodes=c[1-2] NodeCnt=2 Flags=MAINT,SPEC_NODES TRES=cpu=256 State=INACTIVE\n"
    )
    assert found.nodes is not None
    assert {node.name: node.free_min for node in found.nodes} == {"b1": None, "c1": 60, "c2": 60}
    assert look(reservation=DENIED).notes[0].text.startswith("reservations are not known")


def test_a_run_believes_no_answer_of_another_that_is_more_than_seconds_old(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who was added to an account 73 s before was refused."""
    now = [1000.0]

    def asks(calls_per_min: float) -> SlurmClient:
        return replace(client(recorded, tmp_path, now), shared_dir=tmp_path / "answers")

    monkeypatch.setattr(cluster, "own_client", asks)
    (tmp_path / "site.yaml").write_text("allowed: [maigan]\n", encoding="utf-8")
    recorded.answers["sacctmgr"] = LIMITS.replace("maigan|ada|", "maigan|ben|")
    with pytest.raises(SiteError, match="account maigan, which ada does not have"):
        cluster.open_cluster(tmp_path / "site.yaml")
    recorded.answers["sacctmgr"] = LIMITS
    now[0] += 73.0
    found = cluster.open_cluster(tmp_path / "site.yaml")
    assert [account.name for account in found.state.accounts] == ["maigan"]
    asked = len(recorded.asked)
    now[0] += 2.0
    cluster.open_cluster(tmp_path / "site.yaml")
    assert len(recorded.asked) == asked


# What a run says of the cluster at its start


def test_accounts_limits_and_what_is_left_out_are_said_in_a_few_lines(look: Look) -> None:
    assert cluster_summary(look()) == [
        "jobs go to 3 accounts of ada; see `tilewright-placement accounts`",
        "  brusko: QOS brusko, 32 CPUs, 250 GB, 1 GPU; 32 CPUs, 250 GB, 1 GPU free now",
        "  clive: QOS clive, 104 CPUs, 812 GB, 3 GPUs; 64 CPUs, 112 GB, 2 GPUs free now",
        "  maigan: QOS maigan, 80 CPUs, 625 GB, 2 GPUs; 80 CPUs, 625 GB, 2 GPUs free now",
        "  left out: clive-b: burst account (its name matches -b$)",
        "  partitions: GPU jobs to hpg-b200; CPU jobs to hpg-default",
    ]
    lines = cluster_summary(look(), {"cpu"})  # nothing of GPUs where no job may use one
    assert lines[2] == "  clive: QOS clive, 104 CPUs, 812 GB; 64 CPUs, 112 GB free now"
    assert lines[5:] == ["  partitions: CPU jobs to hpg-default"]


def test_many_accounts_none_and_unknown_use_are_said(look: Look) -> None:
    found = look()
    unknown = with_use(found.accounts[1], lambda _: None)
    many = tuple(replace(unknown, name=f"lab{k}") for k in range(40))
    head, first, _, _, rest, *others = cluster_summary(replace(found, accounts=many))
    assert head == "jobs go to 40 accounts of ada; see `tilewright-placement accounts`"
    assert first.endswith("3 GPUs; what is free now is not known")
    assert rest == "  and lab3, lab4, lab5, lab6 and 33 more"
    assert len(others) == 2
    none = cluster_summary(replace(found, accounts=(NO_ACCOUNT,), left_out=()))
    assert none[0].startswith("jobs name no account")
    assert len(none) == 2
